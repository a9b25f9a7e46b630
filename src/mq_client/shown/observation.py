"""What the brokers of a cluster say of themselves, asked of all of them side by side and put together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.errors import InvalidRequest, TritonMQError, Unreachable
from mq_client.shown.described import described
from mq_client.shown.descriptions import TopicDescription, described_topic
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import REQUEST_TOPICS_MAX
from mq_protocol.names import INTERNAL_PREFIX, check_topic_name
from mq_protocol.observed import add_group, add_topic

DETAILS: Final = {"broker": pb.BROKER, "topics": pb.TOPICS, "partitions": pb.PARTITIONS}

_BROKER_MS: Final = 1_000.0
"""A broker's time to answer, when there are others."""

_CANCEL_MS: Final = 1_000.0
"""For so long calls that were broken off may take to say so."""


@dataclass(frozen=True, slots=True)
class BrokerObservation:
    """A broker that answered. `state`: "starting", "serving" or "draining". `coordination`: "connected", "suspended" or
    "file", as it sees it. `values`: its numbers, by the names of their metrics. `links[n]`: whether it has a link to
    broker n. `now_us`: when it looked, microseconds since 1970 by its clock."""

    id: int
    address: str
    incarnation: int
    version: str
    state: str
    coordination: str
    now_us: int
    values: Mapping[str, float]
    links: Mapping[int, bool]


@dataclass(frozen=True, slots=True)
class TopicObservation:
    """Sums over the partitions of which a leader answered, `led` of them. `staged_batches`: of transactions, not
    readable yet; `oldest_staged_us`: when the first of them was staged, microseconds since 1970, 0 if there is none."""

    name: str
    led: int
    records: int
    bytes: int
    staged_batches: int
    oldest_staged_us: int


@dataclass(frozen=True, slots=True)
class PartitionObservation:
    """As broker `told_by` knows it: its leader (`leads`), or if none answers the replica with the newest epoch.
    `leader`: 0 if none is known. `high_watermark`: the last entry of its journal known to be committed.
    `unheard_ms`: as in `PartitionDescription`."""

    topic: str
    partition: int
    told_by: int
    leads: bool
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    moving_to: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    staged_batches: int
    oldest_staged_us: int
    unheard_ms: dict[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """A group in a topic: what is behind its cursors in the partitions of which a leader answered. `lag`: records;
    `lag_us`: how old the oldest of them is. `members`: at least so many. `moved_us`: when a cursor moved last.
    `label`: what people call the group, as the name of a Spark query; empty if its leaders were told none."""

    group: str
    topic: str
    kind: str
    members: int
    lag: int
    lag_bytes: int
    lag_us: int
    moved_us: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """What the brokers that answered said, each list in order of name or number.

    `silent`: addresses of brokers that did not answer. What only they know is missing. `left_out`: how many rows there
    are besides, by their kind ("topics", "groups", "partitions", "cursors"): name topics to be told of theirs.
    """

    cluster_id: str
    brokers: tuple[BrokerObservation, ...]
    topics: tuple[TopicObservation, ...] = ()
    partitions: tuple[PartitionObservation, ...] = ()
    groups: tuple[GroupObservation, ...] = ()
    silent: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


class ObservingAdministrator:
    """A part of `Admin`, which gives it its connection."""

    _connection: Connection
    _timeout_ms: float

    def observe(self, detail: str = "topics", topics: Sequence[str] = ()) -> ClusterObservation:
        """The state of the cluster now: one question to each live broker, all side by side, one second for each.

        `detail`: "broker" (the brokers alone), "topics" (and their topics and groups) or "partitions" (and each
        partition). `topics`: these only, where they are known. Brokers give the same answer for half a second. Raises
        `InvalidRequest`, `Unreachable` if no broker answers.
        """
        if detail not in DETAILS:
            raise InvalidRequest(f"detail={detail!r} is not known: give {', '.join(map(repr, DETAILS))}")
        if isinstance(topics, str):
            raise InvalidRequest(f"topics={topics!r} is one text: give a list of names")
        for name in topics:
            check_topic_name(name, internal=True)
        request = pb.ObserveRequest(detail=DETAILS[detail], topics=dict.fromkeys(topics))
        return observe(self._connection, request, Deadline(self._timeout_ms))

    def set_log_level(self, broker: int, level: str, *, logger: str = "mq_broker", seconds: int = 600) -> None:
        """Have one broker log from `level` on ("debug", "info", "warning", "error"). It goes back by itself after so
        many seconds. Raises `InvalidRequest` for a broker that does not live, and for a logger that it lacks."""
        deadline = Deadline(self._timeout_ms)
        request = pb.SetLogLevelRequest(logger=logger, level=level.upper(), seconds=seconds)
        self._connection.ask(
            self._address_of(broker, deadline), "SetLogLevel", request, pb.SetLogLevelResponse, deadline
        )

    def log_levels(self, broker: int) -> dict[str, tuple[str, int]]:
        """The loggers of one broker that log otherwise than it was started to, each with its level and the seconds
        after which it goes back by itself. Raises `InvalidRequest` for a broker that does not live."""
        deadline = Deadline(self._timeout_ms)
        address = self._address_of(broker, deadline)
        told = self._connection.ask(address, "LogLevels", pb.LogLevelsRequest(), pb.LogLevelsResponse, deadline)
        return {each.logger: (each.level, each.seconds) for each in told.levels}

    def _address_of(self, broker: int, deadline: Deadline) -> str:
        self._connection.metadata(deadline)
        address = self._connection.broker_address(broker)
        if address is None:
            raise InvalidRequest(f"no broker {broker} lives: there are {sorted(self._connection.brokers())}")
        return address

    def describe_topics(
        self, observed: ClusterObservation | None = None, *, internal: bool = False
    ) -> list[TopicDescription]:
        """All topics, the brokers' own only with `internal`, by name, each partition as its leader knows it. One
        question to each broker, and one to any of them; more of what does not fit one answer.

        `observed`: what `observe("partitions")` has just given, which is then not asked again. Raises `Unreachable` if
        no broker answers.
        """
        deadline = Deadline(self._timeout_ms)
        if observed is None:
            observed = observe(self._connection, pb.ObserveRequest(detail=pb.PARTITIONS), deadline)
        infos = {
            info.name: info
            for info in self._connection.metadata(deadline, all_topics=True).topics
            if internal or not info.name.startswith(INTERNAL_PREFIX)
        }
        places = {(info.name, each.partition): each for info in infos.values() for each in info.partitions}
        for partition in chain(observed.partitions, self._left_out(observed, sorted(infos), deadline)):
            if partition.leads:
                _believe(places, partition.topic, _as_told(partition))
        return [described_topic(infos[name]) for name in sorted(infos)]

    def _left_out(
        self, observed: ClusterObservation, names: Sequence[str], deadline: Deadline
    ) -> Iterator[PartitionObservation]:
        """Those of topics of which no leader's word did fit an answer."""
        if not observed.left_out.keys() & {"topics", "partitions"}:
            return
        told = {partition.topic for partition in observed.partitions if partition.leads}
        missing = [name for name in names if name not in told]
        for first in range(0, len(missing), REQUEST_TOPICS_MAX):
            some = missing[first : first + REQUEST_TOPICS_MAX]
            yield from observe(
                self._connection, pb.ObserveRequest(detail=pb.PARTITIONS, topics=some), deadline
            ).partitions


def _as_told(partition: PartitionObservation) -> pb.PartitionInfo:
    return pb.PartitionInfo(
        partition=partition.partition,
        leader=partition.told_by,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        moving_to=partition.moving_to,
        unheard_ms=partition.unheard_ms,
    )


def _believe(places: Mapping[tuple[str, int], pb.PartitionInfo], topic: str, told: pb.PartitionInfo) -> None:
    """A leader alone knows its in-sync set exactly; others learn of it when they ask."""
    known = places.get((topic, told.partition))
    if known is not None and told.leader_epoch >= known.leader_epoch:
        known.CopyFrom(told)


def observe(connection: Connection, request: pb.ObserveRequest, deadline: Deadline) -> ClusterObservation:
    """Ask every live broker. Raises an error of one if none answers."""
    connection.metadata(deadline)
    addresses = connection.addresses()
    limit = deadline.at_most(_BROKER_MS if len(addresses) > 1 else deadline.timeout_ms)
    heard = _asked_side_by_side(connection, addresses, request, limit)
    told = {address: answer for address, answer in heard.items() if not isinstance(answer, TritonMQError)}
    errors = {address: answer for address, answer in heard.items() if isinstance(answer, TritonMQError)}
    if not told:
        raise next(iter(errors.values()))
    return replace(put_together(told), silent=tuple(sorted(errors)))


def _asked_side_by_side(
    connection: Connection, addresses: Sequence[str], request: pb.ObserveRequest, limit: Deadline
) -> dict[str, pb.ObserveResponse | TritonMQError]:
    """What each of them answers, an error where it does not. Returns once all have, or a moment after the limit."""
    heard: dict[str, pb.ObserveResponse | TritonMQError] = {}
    all_heard = threading.Event()
    lock = threading.Lock()

    def hear(address: str, answer: pb.ObserveResponse | TritonMQError) -> None:
        with lock:
            heard[address] = answer
            if len(heard) == len(addresses):
                all_heard.set()

    breaking_off = [
        connection.ask_later(address, "Observe", request, pb.ObserveResponse, limit, partial(hear, address))
        for address in addresses
    ]
    if not all_heard.wait(limit.remaining_s + _CANCEL_MS / 1000):
        for break_off in breaking_off:
            break_off()
    with lock:
        late = {a: Unreachable(f"broker at {a} did not answer in time: ask again") for a in addresses if a not in heard}
        return {**heard, **late}


def put_together(answers: Mapping[str, pb.ObserveResponse]) -> ClusterObservation:
    """One observation of what brokers answered, by their addresses."""
    topics: dict[str, pb.ObservedTopic] = {}
    partitions: dict[tuple[str, int], tuple[pb.ObservedPartition, int]] = {}
    groups: dict[tuple[str, str], pb.ObservedGroup] = {}
    left_out = Counter[str]()
    for answer in answers.values():
        for topic in answer.topics:
            if topics.setdefault(topic.name, topic) is not topic:
                add_topic(topics[topic.name], topic)
        for partition in answer.partitions:
            place = partition.topic, partition.partition
            if place not in partitions or _freshness(partitions[place][0]) < _freshness(partition):
                partitions[place] = partition, answer.broker
        for group in answer.groups:
            if groups.setdefault((group.group, group.topic), group) is not group:
                add_group(groups[group.group, group.topic], group)
        left_out.update(answer.left_out)
    brokers = [
        described(BrokerObservation, answer, id=answer.broker, address=address) for address, answer in answers.items()
    ]
    return ClusterObservation(
        next((answer.cluster_id for answer in answers.values()), ""),
        tuple(sorted(brokers, key=lambda broker: broker.id)),
        tuple(described(TopicObservation, row) for _, row in sorted(topics.items())),
        tuple(described(PartitionObservation, row, told_by=by) for _, (row, by) in sorted(partitions.items())),
        tuple(described(GroupObservation, row) for _, row in sorted(groups.items())),
        left_out=dict(left_out),
    )


def _freshness(told: pb.ObservedPartition) -> tuple[bool, int, int]:
    """Of two words about one partition the greater holds: the leader's, else that of the newest epoch."""
    return told.leads, told.leader_epoch, told.high_watermark
