"""Knows the cluster: which brokers live, which topics exist, who leads each partition. Asks the right broker, and asks
again.

Shared by the producer, the consumer, the reader and the rest. Owns a cache of metadata, refreshed when a broker says
that it does not lead or cannot be reached. Every call takes a `Deadline` and keeps it. Safe for use by several threads.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import pyarrow as pa
from google.protobuf.message import Message

from mq_client.cluster.client import Client, given_forward
from mq_client.cluster.credentials import current
from mq_client.cluster.deadline import Deadline, attempts
from mq_client.cluster.dialling import fault
from mq_client.cluster.lines import call_unary
from mq_client.cluster.listening import PATIENT, refuses
from mq_client.cluster.paging import Parts
from mq_client.errors import (
    InvalidSetting,
    NotAuthenticated,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from mq_client.security import Security, given
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_fingerprint, schema_from_bytes
from mq_protocol.names import (
    INTERNAL_PREFIX,
    OR_NO_RIGHT,
    SETTINGS,
    TopicSettings,
    check_topic_name,
    did_you_mean,
    parse_settings,
)
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST, Versions, check_overlap


class HeldBack:
    """Owns who is not to be asked yet, by address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, tuple[float, Overloaded]] = {}

    def note(self, address: str, error: Overloaded) -> None:
        """The broker there has answered so."""
        if error.retry_after_ms:
            with self._lock:
                self._until[address] = time.monotonic() + error.retry_after_ms / 1000, error

    def is_now(self, address: str) -> bool:
        """Whether the broker there is not to be asked yet."""
        with self._lock:
            found = self._until.get(address)
        return found is not None and time.monotonic() < found[0]

    def wait(self, address: str, deadline: Deadline) -> None:
        """Until the broker there may be asked. Raises its `Overloaded` again if that is not before the deadline."""
        with self._lock:
            until, error = self._until.get(address, (0.0, None))
        if error is None:
            return
        seconds = until - time.monotonic()
        if seconds >= deadline.remaining_s:
            deadline.pause(seconds)
            raise error
        if seconds > 0:
            time.sleep(seconds)
        with self._lock:
            if self._until.get(address, (0.0, None))[1] is error:
                del self._until[address]


_ATTEMPT_MS_MAX = 3_000.0
"""One broker's time to answer about metadata, before the next is asked."""

_REFRESH_MS = 5_000.0
"""How long it is tried to hear of a topic that is known, but from too long ago."""

_REFRESH_MS_MIN = 50.0
"""Refreshes of one topic closer together than this share one answer: many partitions notice a lost leader at once."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s,:\[\]]+):(?P<port>\d{1,5})")

_MINE = Versions(PROTOCOL, PROTOCOL_OLDEST)

R = TypeVar("R", bound=Message)


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses, in the order given. Raises `InvalidSetting` showing the one that is not `host:port`."""
    parts = (
        bootstrap.split(",")
        if isinstance(bootstrap, str)
        else list(bootstrap)
        if isinstance(bootstrap, Iterable)
        else None
    )
    if parts is None or not all(isinstance(part, str) for part in parts):
        raise InvalidSetting(f"bootstrap={bootstrap!r} is no text: give e.g. '127.0.0.1:7400,127.0.0.1:7401'")
    addresses = tuple(part.strip() for part in parts if part.strip())
    for address in addresses:
        found = _ADDRESS.fullmatch(address)
        if not found or not 0 < int(found["port"]) < 65536:
            raise InvalidSetting(
                f"bootstrap address {address!r} is not HOST:PORT: give e.g. '127.0.0.1:7400,127.0.0.1:7401'"
            )
    if not addresses:
        raise InvalidSetting("bootstrap is empty: give at least one HOST:PORT")
    return addresses


@dataclass(frozen=True)
class TopicView:
    """A topic as the cluster last described it. `leaders[p]`: broker id, 0 for none; `epochs[p]`: of that
    leadership."""

    name: str
    topic_id: str
    schema: pa.Schema
    fingerprint: int
    typed: bool
    settings: TopicSettings
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]
    info: pb.TopicInfo = field(repr=False, compare=False)

    @property
    def partitions(self) -> int:
        return len(self.leaders)

    @property
    def first_columns(self) -> int:
        """With how many columns the topic was made. Those behind them were added, and who writes may leave them out."""
        return min((len(self.schema), *self.info.earlier_columns))

    def is_made_as(self, other: TopicView) -> bool:
        """Whether all is alike but who leads: the topic itself, its columns, settings and number of partitions."""
        return (self.topic_id, self.fingerprint, self.partitions, self.settings) == (
            other.topic_id,
            other.fingerprint,
            other.partitions,
            other.settings,
        )


def _view(info: pb.TopicInfo) -> TopicView:
    partitions = sorted(info.partitions, key=lambda partition: partition.partition)
    schema = schema_from_bytes(info.schema)
    replicas = max((len(partition.replicas) for partition in partitions), default=1)
    return TopicView(
        name=info.name,
        topic_id=info.topic_id,
        schema=schema,
        fingerprint=schema_fingerprint(schema),
        typed=info.typed,
        settings=parse_settings({name: value for name, value in info.settings.items() if name in SETTINGS}, replicas),
        leaders=tuple(partition.leader for partition in partitions),
        epochs=tuple(partition.leader_epoch for partition in partitions),
        info=info,
    )


_HANDSHAKE_S: Final = 1.0
"""For so long a cluster that has never answered is asked, before it is looked why."""

_NAMED_MAX: Final = 5
"""So many topics an error names where none is near."""


class Connection:
    """Owns what is known of one cluster, reached through its bootstrap addresses. `refused_s`: a cluster that has never
    answered is given up when all of its addresses have refused connections for so long. `forward`: only the bootstrap
    addresses are reached, and pass on what is meant for others (client.py). `security`, `forward` None: what the
    environment says, unless that is not to count. Raises `InvalidSetting` for certificates of no use."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        refused_s: float = PATIENT,
        security: Security | None = None,
        forward: bool | None = None,
        from_environment: bool = True,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self._refused_s = refused_s
        if from_environment:
            security, forward = given(security), given_forward(forward)
        self.client = Client(self.bootstrap, security, bool(forward))
        current(self.client.security)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._held_back = HeldBack()
        self._brokers: dict[int, str] = {}
        self._racks: dict[int, str] = {}
        self._topics: dict[str, tuple[float, TopicView]] = {}
        self._answered: str | None = None  # who answered last is asked first: one that hangs is not met again and again

    # ------------------------------------------------------------------ what is known

    def topic(
        self, name: str, deadline: Deadline, age_s_max: float = math.inf, *, auto_create: bool = False
    ) -> TopicView:
        """The topic, from the cache or asked for. Raises `UnknownTopic` with the nearest name, `Unreachable`.

        `age_s_max`: what was heard longer ago is asked for again, and still used if nobody answers. `auto_create`: as
        for `refresh`, if the topic is not known yet.
        """
        known = self.known_topic(name)
        if known is None:
            return self.refresh(name, deadline, auto_create=auto_create)
        if self.topic_age_s(name) <= age_s_max:
            return known
        try:
            return self.refresh(name, deadline.at_most(_REFRESH_MS))
        except TritonMQError as error:
            if not error.retriable:
                raise
            return known

    def known_topic(self, name: str) -> TopicView | None:
        """The topic as last heard of, without asking."""
        found = self._topics.get(name)
        return found[1] if found else None

    def topic_age_s(self, name: str) -> float:
        """How long ago somebody was asked who told of the topic."""
        found = self._topics.get(name)
        return time.monotonic() - found[0] if found else math.inf

    def forget(self, name: str) -> None:
        with self._lock:
            self._topics.pop(name, None)

    def refresh(
        self,
        name: str,
        deadline: Deadline,
        doubted: Collection[str] = (),
        *,
        age_ms_max: float = _REFRESH_MS_MIN,
        auto_create: bool = False,
    ) -> TopicView:
        """The topic, asked for anew. A topic that one broker does not know is asked of the others too: it may be a
        moment old.

        `doubted`: addresses to ask last. A leader that does not get on may be cut off, and be the last to hear of its
        successor. `age_ms_max`: what somebody else has asked no longer ago than that will do, so that many who ask at
        once ask once. `auto_create`: it is about to be used, and may be made by a broker that is set to do so.
        """
        check_topic_name(name, internal=True)
        asked_at = time.monotonic()
        if not self._refreshing.acquire(timeout=deadline.remaining_s):
            raise Unreachable(
                f"no broker answered within {deadline.timeout_ms:.0f} ms at {', '.join(self.addresses())}"
            )
        try:
            found = self._topics.get(name)
            if found and found[0] > asked_at - age_ms_max / 1000:
                return found[1]
            return self._refresh(name, deadline, doubted, auto_create=auto_create)
        finally:
            self._refreshing.release()

    def _refresh(self, name: str, deadline: Deadline, doubted: Collection[str], *, auto_create: bool) -> TopicView:
        asked: set[str] = set()
        for _ in attempts(deadline):
            request = pb.MetadataRequest(topics=[name], auto_create=auto_create)
            asked_at = time.monotonic()
            address, response = self._ask_any(request, deadline, asked.union(doubted))
            self._learn(response, asked_at)
            found = self._topics.get(name)
            if name not in response.unknown_topics and found:
                return found[1]
            asked.add(address)
            internal = name.startswith(INTERNAL_PREFIX)  # made by the brokers when first asked for
            if not internal and asked >= set(self.addresses()):
                break
        self.forget(name)
        raise UnknownTopic(f"unknown topic {name!r}{self._suggestion(name, deadline)}")

    def _suggestion(self, name: str, deadline: Deadline) -> str:
        try:
            response = self._ask_all(pb.MetadataRequest(all_topics=True), deadline.at_most(_ATTEMPT_MS_MAX))
        except TritonMQError:
            return ": check its name"
        names = [topic.name for topic in response.topics if not topic.name.startswith(INTERNAL_PREFIX)]
        if near := did_you_mean(name, names):
            return near + self.or_no_right
        if not names:
            return f": there is no topic yet; `tritonmq topic create` makes one{self.or_no_right}"
        some = ", ".join(sorted(names)[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")
        return f": the topics are {some}; `tritonmq topic create` makes another{self.or_no_right}"

    @property
    def or_no_right(self) -> str:
        """`OR_NO_RIGHT` on a secured connection; empty where nobody has a name."""
        if self.client.security is None:
            return ""
        return OR_NO_RIGHT

    def metadata(
        self, deadline: Deadline, *, topics: Iterable[str] = (), all_topics: bool = False
    ) -> pb.MetadataResponse:
        """What brokers know of the cluster, asked now: of all topics in several questions, if there are many."""
        asked_at = time.monotonic()
        response = self._ask_all(
            pb.MetadataRequest(topics=list(dict.fromkeys(topics)), all_topics=all_topics), deadline
        )
        self._learn(response, asked_at)
        return response

    def _ask_all(self, request: pb.MetadataRequest, deadline: Deadline) -> pb.MetadataResponse:
        """Asked on until everything is told: an answer has a bound."""
        names = list(request.topics)
        whole, parts = pb.MetadataResponse(), Parts()
        while True:
            del request.topics[:]
            request.topics.extend(names[: limits.REQUEST_TOPICS_MAX])
            _, answer = self._ask_any(request, deadline)
            told, unknown = [topic.name for topic in answer.topics], set(answer.unknown_topics)
            if not parts.more(answer, told or tuple(unknown)):
                names = names[limits.REQUEST_TOPICS_MAX :]
            elif request.all_topics:
                request.after = max(told, default="")
            else:
                names = [name for name in names if name not in unknown.union(told)]
            del whole.brokers[:]  # those of the last answer hold
            whole.MergeFrom(answer)
            if not (answer.more or names):
                whole.more = False
                return whole

    def addresses(self) -> list[str]:
        """Every address worth asking: live brokers as last heard of, else the bootstrap ones."""
        with self._lock:
            live = list(self._brokers.values())
        return live or list(self.bootstrap)

    def brokers(self) -> dict[int, str]:
        """Addresses of the live brokers, as last heard of."""
        with self._lock:
            return dict(self._brokers)

    def racks(self) -> dict[int, str]:
        """Racks of the live brokers, as last heard of; empty where a broker was given none."""
        with self._lock:
            return dict(self._racks)

    def broker_address(self, broker: int) -> str | None:
        return self._brokers.get(broker)

    def leader_address(self, topic: TopicView, partition: int) -> str | None:
        """Where the partition's leader listens; None while nobody is known to lead."""
        return self._brokers.get(topic.leaders[partition])

    def _learn(self, response: pb.MetadataResponse, asked_at: float | None = None) -> None:
        """`asked_at`: an answer is as old as its question, and may have been long on its way. None: it is of now."""
        when = time.monotonic() if asked_at is None else asked_at
        with self._lock:
            if response.brokers:
                self._brokers = {broker.id: broker.address for broker in response.brokers}
                self._racks = {broker.id: broker.rack for broker in response.brokers}
            for info in response.topics:
                self._topics[info.name] = (when, _newer(self._topics.get(info.name), _view(info)))
            for name in response.unknown_topics:
                self._topics.pop(name, None)

    def note_leader(self, name: str, partition: int, error: NotLeader) -> None:
        """A broker said who leads: believe it if it is news."""
        with self._lock:
            found = self._topics.get(name)
            if not found or not error.leader or error.leader not in self._brokers:
                return
            when, view = found
            if 0 <= partition < view.partitions and error.leader_epoch >= view.epochs[partition]:
                leaders, epochs = list(view.leaders), list(view.epochs)
                leaders[partition], epochs[partition] = error.leader, error.leader_epoch
                self._topics[name] = (when, replace(view, leaders=tuple(leaders), epochs=tuple(epochs)))

    # ------------------------------------------------------------------ asking

    def ask(self, address: str, method: str, request: Message, response: type[R], deadline: Deadline) -> R:
        """Ask that one broker, once, and not before it wants to be asked again."""
        self._held_back.wait(address, deadline)
        try:
            return call_unary(address, method, request, response, deadline.remaining_s, self.client)
        except Overloaded as error:
            self._held_back.note(address, error)
            raise

    def ask_later(
        self,
        address: str,
        method: str,
        request: Message,
        response: type[R],
        deadline: Deadline,
        heard: Callable[[R | TritonMQError], None],
    ) -> Callable[[], object]:
        """Ask that one broker, once, without waiting: `heard` is called in another thread. What is given back breaks
        it off."""
        from mq_client.cluster.loop import call_later  # with asyncio: not for those that only read

        return call_later(address, method, request, response, deadline.remaining_s, heard, self.client)

    def ask_any(
        self, method: str, request: Message, response: type[R], deadline: Deadline, unclear: list[str] | None = None
    ) -> R:
        """Ask brokers in turn until one answers or refuses. For requests that may be asked twice.

        `unclear` collects the addresses whose answer is not known: what they were asked may have been done.
        """
        return self._ask_in_turn(method, request, response, deadline, unclear=unclear)[1]

    def ask_leader(
        self,
        name: str,
        partition: int,
        method: str,
        request: Message,
        response: type[R],
        deadline: Deadline,
        attempt_ms: float,
    ) -> R:
        """Ask the partition's leader, following it where it goes, each for at most `attempt_ms`. For requests that may
        be asked twice.
        """
        address: str | None = None
        last: TritonMQError | None = None
        for attempt in attempts(deadline):
            if attempt:
                silent = self._look_again(name, deadline, () if address is None else (address,))
                last = last or silent
            topic = self.topic(name, deadline)
            if partition >= topic.partitions:
                raise UnknownPartition(
                    f"topic {name!r} has no partition {partition}: it has 0 to {topic.partitions - 1}"
                )
            address = self.leader_address(topic, partition)
            if address is not None:
                try:
                    return self.ask(address, method, request, response, deadline.at_most(attempt_ms))
                except TritonMQError as error:
                    if not error.retriable:
                        raise
                    last = error
                    if isinstance(error, NotLeader):
                        self.note_leader(name, partition, error)
        raise _late(f"{method} of {name!r} partition {partition}", deadline, last)

    def _look_again(self, name: str, deadline: Deadline, doubted: Collection[str]) -> TritonMQError | None:
        """Ask who leads; the error, if nobody can say it now."""
        try:
            self.refresh(name, deadline, doubted)
        except TritonMQError as error:
            if not error.retriable:
                raise
            return error
        return None

    def _ask_any(
        self, request: pb.MetadataRequest, deadline: Deadline, asked: Collection[str] = ()
    ) -> tuple[str, pb.MetadataResponse]:
        request.protocol, request.protocol_oldest = _MINE.protocol, _MINE.protocol_oldest
        address, answer = self._ask_in_turn(
            "Metadata", request, pb.MetadataResponse, deadline, _ATTEMPT_MS_MAX, asked=asked
        )
        theirs = Versions.said(answer.protocol, answer.protocol_oldest, answer.release)
        check_overlap("this client", _MINE, f"the broker at {address}", theirs)
        return address, answer

    def _ask_in_turn(
        self,
        method: str,
        request: Message,
        response: type[R],
        deadline: Deadline,
        attempt_ms: float = math.inf,
        *,
        asked: Collection[str] = (),
        unclear: list[str] | None = None,
    ) -> tuple[str, R]:
        """Whoever answered last first, those in `asked` last. One attempt takes at most half of the time while others
        are left."""
        # Nobody has ever answered: more likely a wrong address than a cluster that is just restarting.
        if self._answered is None:
            deadline = deadline.at_most(limits.CONNECT_TIMEOUT_MS)
        tried: dict[str, TritonMQError] = {}
        last: TritonMQError | None = None
        began = time.monotonic()
        for _ in attempts(deadline):
            candidates = list(dict.fromkeys([*self.addresses(), *self.bootstrap]))
            candidates.sort(key=lambda a: (self._held_back.is_now(a), a in asked, a != self._answered))
            for place, address in enumerate(candidates):
                left_ms = deadline.remaining_s * 1000 / (2 if place + 1 < len(candidates) else 1)
                try:
                    answer = self.ask(address, method, request, response, deadline.at_most(min(attempt_ms, left_ms)))
                except TritonMQError as error:
                    tried[address] = error
                    if not error.retriable:
                        raise
                    last = error
                    if unclear is not None and not error.definite:
                        unclear.append(address)
                else:
                    self._answered = address
                    return address, answer
                if deadline.expired:
                    break
            else:
                if isinstance(last, Unreachable) and self._answered is None:
                    self._check_it_can_be_reached(tried, time.monotonic() - began)
        if last is not None and not isinstance(last, Unreachable | OutcomeUnknown):
            raise last
        reasons = "; ".join(f"{at}: {self.handshake_fault(at, error) or _brief(error)}" for at, error in tried.items())
        told = f"no broker answered within {deadline.timeout_ms:.0f} ms at {', '.join(tried)} ({reasons})"
        raise Unreachable(told if self._answered else f"{told}: {_NEVER_ANSWERED}")

    def _check_it_can_be_reached(self, tried: Mapping[str, TritonMQError], waited_s: float) -> None:
        """Of a cluster that has never answered. Raises what will not pass by itself."""
        if waited_s >= min(self._refused_s, _HANDSHAKE_S):
            self._check_handshakes(tried)
        if waited_s >= self._refused_s:
            self._check_somebody_listens(tried)

    def _check_handshakes(self, tried: Mapping[str, TritonMQError]) -> None:
        """Raises `NotAuthenticated` if none of them can be spoken with, for reasons that do not pass by themselves."""
        faults = {address: self.handshake_fault(address, error) for address, error in tried.items()}
        if all(faults.values()):
            told = "; ".join(f"{address}: {text}" for address, text in faults.items())
            raise NotAuthenticated(f"no broker can be spoken with: {told}")

    def handshake_fault(self, address: str, error: TritonMQError) -> str | None:
        """What is wrong with the certificates, or with the kind of the port, that a call to that address has failed
        with; None if it is something else."""
        return fault(error, address, self.client)

    def refuses(self, address: str) -> bool:
        """Whether nobody listens there, for sure."""
        return refuses(self.client.dialled(address))

    def _check_somebody_listens(self, addresses: Collection[str]) -> None:
        """Raises `Unreachable` if all of them refuse connections."""
        if all(self.refuses(address) for address in addresses):
            told = "; ".join(f"{address}: connection refused" for address in addresses)
            raise Unreachable(f"no broker listens at {told}: {_NEVER_ANSWERED}")


_NEVER_ANSWERED = (
    "start one (`tritonmq dev`, `tritonmq broker`), or give the address that yours listens on as HOST:PORT"
)


def _brief(error: TritonMQError) -> str:
    """Without the address, which is said beside it."""
    return str(error).rpartition("cannot be reached: ")[2][:120]


def _late(what: str, deadline: Deadline, last: TritonMQError | None) -> TritonMQError:
    if last is None:
        return Unreachable(f"{what}: no leader was known within {deadline.timeout_ms:.0f} ms; are its brokers alive?")
    if last.definite:
        return last
    return OutcomeUnknown(f"{what}: no answer within {deadline.timeout_ms:.0f} ms, last: {last}")


def _newer(known: tuple[float, TopicView] | None, told: TopicView) -> TopicView:
    """`told`, but never less than is known: brokers learn of elections, added partitions and added columns at their own
    pace."""
    if known is None or known[1].topic_id != told.topic_id:
        return told
    before = known[1]
    behind = before.partitions > told.partitions or len(before.schema) > len(told.schema)
    base, other = (before, told) if behind else (told, before)
    leaders, epochs = list(base.leaders), list(base.epochs)
    for partition, epoch in enumerate(other.epochs[: base.partitions]):
        if epoch > epochs[partition] or (behind and epoch == epochs[partition]):
            leaders[partition], epochs[partition] = other.leaders[partition], epoch
    return base if tuple(leaders) == base.leaders else replace(base, leaders=tuple(leaders), epochs=tuple(epochs))
