"""What brokers agree on through coordination: live brokers, topics, security documents; and the hints that say that
some of it has changed. `service.py` reads and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mq_broker.core.messages import NodeState
from mq_broker.security.client_port import ClientPort
from mq_protocol.limits import MESSAGE_BYTES_MAX, REPLICAS_MAX
from mq_protocol.versions import Versions


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
class ClusterSpec:
    """The cluster's id and its level of features. `unknown`: as a topic's."""

    id: str
    level: int
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


NewTopic = tuple[TopicSpec, tuple[NodeState, ...]]
"""With the first state of each partition."""
