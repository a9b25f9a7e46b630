"""What a broker needs from a coordination service: who lives, which topics exist, and a compare-and-set per partition.

Two implementations, one test suite: `zookeeper.py` (kazoo, real servers) and `file.py` (a single broker, no server).
Methods are coroutines that never block the event loop; each has a deadline inside and raises `CoordinationUnavailable`
past it. Events arrive on the loop through the listener given to `start`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NoReturn, Protocol

from mq_broker.core.messages import CasOutcome, NodeState
from mq_broker.security.client_port import ClientPort
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import MESSAGE_BYTES_MAX, REPLICAS_MAX
from mq_protocol.versions import FIRST, Versions


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker: `incarnation` is one life of its process (see `CoordinationService.begin_life`). `address` is for
    clients, `peer_address` for other brokers; the latter is empty for a broker that stands alone. `message_bytes_max`:
    what it takes in one message from a client. `versions`: what it speaks and knows.

    `tls_address` and `tls_peer_address` are the same with TLS; empty if it has none. Then `address` and `peer_address`
    are those of its port in plain text, which it has while a cluster is being secured, or else the same ones.

    `grpc_address` and `tls_grpc_address`: where clients of gRPC reach it, without and with TLS; `grpc_token_address`:
    with a token. `flight_address` and `tls_flight_address`: where clients of Arrow Flight do. Empty if they do not.

    `zookeeper_auth`: it has a credential for ZooKeeper. `judges`: it judges rights. `insecure`: other machines reach
    one of its ports in plain text."""

    broker: int
    incarnation: int
    address: str
    rack: str = ""
    peer_address: str = ""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    versions: Versions = field(default_factory=Versions)
    tls_address: str = ""
    tls_peer_address: str = ""
    zookeeper_auth: bool = False
    judges: bool = False
    insecure: bool = False
    grpc_address: str = ""
    tls_grpc_address: str = ""
    grpc_token_address: str = ""
    flight_address: str = ""
    tls_flight_address: str = ""

    @property
    def is_tls_alone(self) -> bool:
        """Whether none of its ports is in plain text, as far as it says."""
        plain = self.flight_address or self.grpc_address
        return bool(self.tls_address) and self.address == self.tls_address and not plain

    def address_for(self, port: ClientPort) -> str:
        """Where clients reach it that use ports of this kind; empty if they do not."""
        if not port.grpc:
            return _reached(self.address, self.tls_address, tls=port.tls)
        if port.token:
            return self.grpc_token_address
        return self.tls_grpc_address if port.tls else self.grpc_address

    def flight_address_for(self, port: ClientPort) -> str:
        """Where such clients ask it by Flight; empty if they cannot."""
        if port.token:
            return self.grpc_token_address if self.tls_flight_address else ""
        return self.tls_flight_address if port.tls else self.flight_address

    def peer_address_for(self, *, tls: bool) -> str:
        """Where other brokers reach it, likewise."""
        return _reached(self.peer_address, self.tls_peer_address, tls=tls)


def _reached(address: str, tls_address: str, *, tls: bool) -> str:
    if tls:
        return tls_address
    return "" if address == tls_address else address


@dataclass(frozen=True, slots=True)
class Features:
    """The cluster's level of features. `unknown`: as a topic's."""

    level: int = FIRST
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition on its way to `target`, in order of rank, from `origin`. The two are equal where a move was called
    off. `unknown`: what a newer version has written beside them, as JSON; every write keeps it."""

    target: tuple[int, ...]
    origin: tuple[int, ...]
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue group of a topic as stored. `life` tells it from a former one of the same name. `start_us`: records that
    are older, in microseconds since 1970, were never its; 0 for none. `settings`: only those that were given.
    `unknown`: as a move's. `owner`: who declared it, as `User:etl`; empty where that has no name."""

    life: int
    start_us: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    unknown: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as stored. `assignment[p]` are the brokers of partition p in order of rank; while `moving` has p, those
    of its origin and those of its target. `schema`: serialized Arrow schema; empty for the record schema; `earlier`:
    how many columns each of its former versions had, first to last. `settings`: only those that were given, validated
    by mq_broker.broker. `unknown`: keys of the document that only a newer version knows, as JSON; every write keeps
    them. `queues`: its queue groups, by name; `queue_lives`: the highest life that one of them ever had. `owner`: who
    made it, as `User:etl`; empty where that has no name."""

    name: str
    topic_id: str
    assignment: tuple[tuple[int, ...], ...]
    schema: bytes = b""
    settings: dict[str, str] = field(default_factory=dict)
    moving: dict[int, Move] = field(default_factory=dict)
    earlier: tuple[int, ...] = ()
    unknown: str = ""
    queues: dict[str, QueueSpec] = field(default_factory=dict)
    queue_lives: int = 0
    owner: str = ""

    @property
    def replicas(self) -> int:
        """How many copies of each partition there can be counted on; the fewest where they differ. While a partition
        gets more they are as many as before, while it gets fewer as many as it will have."""
        moves = (min(len(move.target), len(move.origin)) for move in self.moving.values())
        return min(
            *moves, *(len(members) for n, members in enumerate(self.assignment) if n not in self.moving), REPLICAS_MAX
        )

    @property
    def target(self) -> tuple[tuple[int, ...], ...]:
        """Who is to hold each partition once nothing moves any more."""
        return tuple(
            self.moving[n].target if n in self.moving else members for n, members in enumerate(self.assignment)
        )


class CoordinationEvent(Enum):
    """Hints (they coalesce): act on what is read after them, never on the event itself (trap 20). The first connection
    is the return of `start`, not an event. After CONNECTED come BROKERS_CHANGED and TOPICS_CHANGED: anything may have
    changed, security documents too."""

    BROKERS_CHANGED = "brokers_changed"
    TOPICS_CHANGED = "topics_changed"
    SECURITY_CHANGED = "security_changed"  # once they have been read, see `SecurityStore`
    SUSPENDED = "suspended"  # no answer from the service; the session may still live
    # Connected again: with the same session, or after SESSION_LOST with a new one (register anew)
    CONNECTED = "connected"
    SESSION_LOST = "session_lost"  # the session ended: registrations made in it are gone


LIVES_BEHIND_MAX = 10_000

PARTITIONS_ADDED_AT_ONCE_MAX = 400
"""What fits one transaction with the topic's document beside it."""

Listener = Callable[[CoordinationEvent], None]


class TopicChanges(NamedTuple):
    """The topics as of `version`: `present` by name, and `gone` names. All there are if `whole`, else those that
    changed. `unreadable`: names of topics that are there and whose documents cannot be read, which the log says: they
    are not to be taken for deleted (trap 18)."""

    version: int
    whole: bool
    present: dict[str, TopicSpec]
    gone: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


ACL_DOCUMENTS = tuple(f"acls/{number}" for number in range(16))
SECURITY_DOCUMENTS = (*ACL_DOCUMENTS, "revoked", "quotas", "tokens", "floor")
"""Their names. What they say is not for the coordination service to know."""

SECURITY_DOCUMENT_BYTES_MAX = 512 << 10


@dataclass(frozen=True, slots=True)
class SecurityDocuments:
    """Those there are, by name: version and contents. `version` of them all: grows with every change."""

    version: int = 0
    documents: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)

    def changed(self, changes: Mapping[str, tuple[int, bytes]]) -> SecurityDocuments | None:
        """As they are after such a write; None if it is refused."""
        if any(self.documents.get(name, (-1, b""))[0] != expected for name, (expected, _) in changes.items()):
            return None
        written = {name: (expected + 1, data) for name, (expected, data) in changes.items()}
        return SecurityDocuments(self.version + 1, {**self.documents, **written})


class SecurityStore(Protocol):
    async def read(self) -> SecurityDocuments:
        """All of them, not older than this call. Once it has returned, SECURITY_CHANGED will follow any later change
        that was made by `write`; what others write there is only seen by who reads again. Raises
        `CoordinationUnavailable`."""

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        """Each document with the version that it is expected to have (-1: there is none) and its new contents; all of
        them or none. (DONE, the new version of them all), (REFUSED, -1) or (UNKNOWN, -1). Raises `InvalidRequest` for a
        document that is too large, or more than can be written at once."""


class LockPlace(Protocol):
    """A place in the queue for a lock: `first`, then `hold`, and `leave` in any case. It ends with `leave`, and with
    the session in which it was taken."""

    async def first(self, wait_s: float) -> int:
        """Wait until every place before this one is gone; looks once at least. The token, which is higher than any that
        was given for that lock before. Raises `LockNotAcquired` after `wait_s`, `LockLost` if this place ended
        meanwhile."""

    async def hold(self) -> NoReturn:
        """Once this place is the first: runs until it has ended, or until it may have. Raises `LockLost`, which says
        why."""

    async def leave(self) -> None:
        """Give the place up. It is gone when this returns, if the service answers; if not, as soon as it answers again.
        Does not wait for a place that has ended by itself."""


NewTopic = tuple[TopicSpec, tuple[NodeState, ...]]
"""With the first state of each partition."""


async def refusal(making: Awaitable[None]) -> TritonMQError | None:
    """What the making of one topic of many has raised."""
    try:
        await making
    except TritonMQError as error:
        return error
    return None


class CoordinationService(Protocol):
    async def start(self, listener: Listener) -> None:
        """Connect. Raises `CoordinationUnavailable` naming the address when nobody answers within the connect
        timeout."""

    async def stop(self) -> None:
        """Close the session: registrations vanish at once."""

    async def cluster_id(self) -> str:
        """Made once per cluster, by whoever comes first."""

    async def peer_secret(self) -> bytes | None:
        """32 random bytes by which brokers of this cluster know each other. Made once, by whoever comes first. Never
        log them. None where a cluster is one broker, which has no peers. `InternalError` if something else is in its
        place."""

    async def begin_life(self, broker: int, above: int = 0) -> int:
        """The incarnation of this process: grows with every call for that broker id, for ever. `above`: the last one
        that is known elsewhere, for a service that was put back to an older copy gives no number twice either. Raises
        `InvalidSetting` if it is more than `LIVES_BEHIND_MAX` starts behind, and `CoordinationUnavailable`."""

    async def known_stamp(self, broker: int) -> int | None:
        """The last stamp of that broker's data directory that was kept here; 0 if none was, or it cannot be read. None
        where this lies in that directory itself, and is copied with it. Raises `CoordinationUnavailable`."""

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        """What that broker's directory has reached, durably, and a registered process has said: a lower one in its
        place only makes an older copy look young. Raises `CoordinationUnavailable`."""

    async def register(self, registration: BrokerRegistration) -> None:
        """Make the broker's ephemeral node, in *this* session: a node left by its own former session, or by an earlier
        life at the same address, is replaced, never taken for success (trap 2). An earlier life at *another* address is
        waited for until its session must have ended. Raises `InvalidRequest` if another live process has this broker
        id, a newer one above all: whoever finds its own broker id in `brokers()` with a newer incarnation must stop."""

    async def brokers(self) -> dict[int, BrokerRegistration]:
        """Those registered now; once this has returned, BROKERS_CHANGED will follow any later change. One whose
        registration cannot be read is left out, and the log says so."""

    async def level(self) -> int:
        """The cluster's level of features (`mq_protocol/versions.py`). Once this has returned, BROKERS_CHANGED will
        follow any later change. Raises `CoordinationUnavailable`, also if its document cannot be read."""

    async def raise_level(self, level: int) -> int:
        """The level afterwards: at least `level`, since it is never lowered. May be asked again.
        `CoordinationUnavailable`."""

    async def topics(self) -> dict[str, TopicSpec]:
        """All topics that can be read; once this has returned, TOPICS_CHANGED will follow any later change."""

    async def topic_changes(self, since: int) -> TopicChanges:
        """As `topics`, but where it is known what has changed since the answer whose `version` was `since`, only that.
        -1: all."""

    async def create_topic(self, topic: TopicSpec, states: tuple[NodeState, ...]) -> None:
        """The topic and the first state (version 0) of each partition, all or nothing: nobody sees one without the
        other. `topic_id` must be fresh. Raises `TopicExists`; `CoordinationUnavailable` if it was certainly not made,
        `OutcomeUnknown` if that is all that can be said."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        """As `create_topic` for each, with what that would have raised at its place. One that is refused keeps no other
        back."""

    async def read_topic(self, name: str) -> tuple[int, TopicSpec] | None:
        """(version, topic), read after a sync; None if there is no such topic. `CoordinationUnavailable` for one whose
        document cannot be read, as `read_state` and `delete_topic`."""

    async def update_topic(
        self, expected_version: int, topic: TopicSpec, states: tuple[NodeState, ...] = ()
    ) -> tuple[CasOutcome, int]:
        """Compare-and-set on the topic's document, whose name and id stay: (DONE, new version), (REFUSED, -1) or
        (UNKNOWN, -1), as `write_state`. `states` are the first ones of partitions that the document has more than
        before, at most `PARTITIONS_ADDED_AT_ONCE_MAX`: they are there with it or not at all. TOPICS_CHANGED follows
        everywhere."""

    async def delete_topic(self, name: str) -> None:
        """Raises `UnknownTopic`; `OutcomeUnknown` if the answer was lost: ask again. State nodes live under the topic's
        id, so a topic made again never meets old ones (trap 29)."""

    async def read_state(self, topic_id: str, partition: int) -> tuple[int, NodeState] | None:
        """(version, state), read after a sync; None if there is no such node."""

    async def write_state(
        self, topic_id: str, partition: int, expected_version: int, state: NodeState
    ) -> tuple[CasOutcome, int]:
        """Compare-and-set: (DONE, new version), (REFUSED, -1) or (UNKNOWN, -1). Never raises for a lost answer: that is
        UNKNOWN."""

    async def queue_for_lock(self, name: str) -> LockPlace:
        """Take the last place in the queue for that lock, for one of this broker's clients. Raises
        `CoordinationUnavailable`."""

    @property
    def lock_silence_ms(self) -> int:
        """How long a holder may go without hearing from this broker and still be sure that nobody else has the lock,
        should the broker have stopped: its session lasts longer."""

    @property
    def security(self) -> SecurityStore:
        """The documents that say who may do what."""

    @property
    def condition(self) -> str:
        """ "connected", "suspended" or "file", for people."""

    @property
    def access(self) -> str:
        """Who may read and write what is kept: "open" (everybody who reaches the service), "closing" or "closed" (the
        brokers alone); empty where there is no service."""
