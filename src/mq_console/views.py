"""What each page shows, as values: the templates render them as HTML, `/api/v1` as JSON, under the same names."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, cast

from mq_client import (
    Admin,
    GroupDescription,
    GroupObservation,
    InvalidRequest,
    PartitionMove,
    PartitionObservation,
    QueueDescription,
    QueueInfo,
    Reader,
    TopicDescription,
    TransactionDescription,
    TritonMQError,
    UnknownGroup,
)
from mq_client.shown.described import described
from mq_client.shown.looks import Look
from mq_console.tables import Column, Listed, Wish, listed
from mq_console.tail import ROWS_MAX, TailWish, read_tail
from mq_console.watching import Seen, Watcher
from mq_protocol.names import INTERNAL_PREFIX, SETTINGS, check_group_name, check_topic_name
from mq_protocol.sql.ddl import format_type

TOP_ROWS: Final = 8
SOON_S: Final = 2.0
SELDOM_S: Final = 5.0
QUEUES_DESCRIBED_MAX: Final = 20
"""How many queue groups one page asks brokers about."""


class NotThere(InvalidRequest):
    """A page of something that there is not."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in lists. `records_in_per_second`: None until it is known."""

    name: str
    partitions: int
    records: int
    bytes: int
    records_in_per_second: float | None
    staged_batches: int
    partitions_without_leader: int
    partitions_not_fully_in_sync: int


@dataclass(frozen=True, slots=True)
class Group(GroupObservation):
    """A group in a topic, in lists. `catching_up_s`: in so many seconds it will have read what is behind, at the rate
    of the last seconds; None if it does not catch up."""

    catching_up_s: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole cluster, as brokers told of it. `internal_partitions`: of the brokers' own topics, which are not
    among `topics`."""

    brokers: int
    brokers_serving: int
    topics: int
    partitions: int
    internal_partitions: int
    records: int
    bytes: int
    records_in_per_second: float
    groups: int
    lag_us: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How a console was started. `secured`: with a certificate or a token, so that a right may be missing."""

    hide_values: bool = False
    actions: bool = False
    secured: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """`data`: what JSON has; `more`: what only the page needs beside it."""

    template: str
    title: str
    data: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)


class Views:
    """Owns nothing but how to ask: the watcher, the client, and the answers that are kept for a moment."""

    def __init__(self, admin: Admin, reader: Reader, watcher: Watcher, settings: Settings) -> None:
        self.admin = admin
        self.watcher = watcher
        self.settings = settings
        self.asked = Asked()
        self._reader = reader

    # ------------------------------------------------------------------ the cluster

    def overview(self, seen: Seen, _query: Mapping[str, str]) -> View:
        history = self.watcher.history
        topics, groups = _topics(seen), _groups(seen)
        data = {
            "totals": totals(seen, topics, groups),
            "brokers": list(seen.brokers),
            "problems": list(seen.problems),
            "records_in_per_second": history.of("records in"),
        }
        busiest = sorted(topics, key=lambda each: (-(each.records_in_per_second or 0), -each.records, each.name))
        furthest = sorted(groups, key=lambda each: (-each.lag_us, -each.lag, each.group, each.topic))
        more = {"topics": busiest[:TOP_ROWS], "groups": furthest[:TOP_ROWS], "left_out": left_out(seen)}
        return View("overview.html", "Overview", data, more)

    def broker(self, seen: Seen, _query: Mapping[str, str], number: str) -> View:
        found = next((each for each in seen.brokers if str(each.id) == number), None)
        if found is None:
            raise NotThere(f"there is no broker {number}: there are {[each.id for each in seen.brokers]}")
        described = self.asked.ask("cluster", SELDOM_S, self.admin.describe_cluster)
        rack = next((each.rack for each in described.brokers if each.id == found.id), "")
        return View(
            "broker.html", f"Broker {found.id}", {"broker": found, "rack": rack, "cluster_level": described.level}
        )

    # ------------------------------------------------------------------ topics

    def topics(self, seen: Seen, query: Mapping[str, str]) -> View:
        table = listed(_topics(seen), TOPIC_COLUMNS, Wish.of(query), lambda each: each.name, "-partitions_in_need")
        return View("topics.html", "Topics", _page(table), {"table": table, "left_out": left_out(seen)})

    def topic(self, seen: Seen, query: Mapping[str, str], name: str) -> View:
        described = self._described(name)
        own = [each for each in _look_partitions(seen) if each.topic == name]
        table = listed(own, PARTITION_COLUMNS, Wish.of(query), lambda each: f"{each.partition:09}", "partition")
        known = next((each for each in _topics(seen) if each.name == name), None)
        groups = [each for each in _groups(seen) if each.topic == name]
        settings = {
            each.name: (described.settings.get(each.name, str(each.default)), each.name in described.settings)
            for each in SETTINGS.values()
        }
        data = {
            "topic": known,
            "topic_id": described.topic_id,
            "columns": [(each.name, format_type(each.type), each.nullable) for each in described.schema]
            if described.typed
            else None,
            "settings": described.settings,
            "partitions": table.rows,
            "groups": groups,
            "records_in_per_second": self.watcher.history.of("topic", name),
        }
        return View("topic.html", name, data, {"table": table, "name": name, "all_settings": settings})

    def tail(self, _seen: Seen, query: Mapping[str, str], name: str) -> View:
        described = self._described(name)
        wish = TailWish(
            _number(query, "partition"),
            _number(query, "from"),
            query.get("filter", "")[:4_000].strip(),
            min(max(_number(query, "rows") or 50, 1), ROWS_MAX),
        )
        question = partial(read_tail, self.admin, self._reader, described, wish, hide_values=self.settings.hide_values)
        data: dict[str, Any] = {"tail": None}
        more = {
            "name": name,
            "wish": wish,
            "fault": "",
            "partitions": len(described.partitions),
            "typed": described.typed,
        }
        try:
            data["tail"] = self.asked.ask(("tail", name, wish), 0.8, question)
        except TritonMQError as error:
            more["fault"] = str(error)
        return View("tail.html", f"{name}: rows", data, more)

    def _described(self, name: str) -> TopicDescription:
        check_topic_name(name, internal=True)
        return self.asked.ask(("topic", name), SELDOM_S, partial(self.admin.describe_topic, name))

    # ------------------------------------------------------------------ groups, queues, sinks, moves

    def groups(self, seen: Seen, query: Mapping[str, str]) -> View:
        table = listed(
            _groups(seen),
            GROUP_COLUMNS,
            Wish.of(query),
            lambda each: f"{each.group}\n{each.topic}\n{each.label}",
            "-lag_us",
        )
        return View("groups.html", "Groups", _page(table), {"table": table, "left_out": left_out(seen)})

    def group(self, seen: Seen, _query: Mapping[str, str], name: str) -> View:
        check_group_name(name)
        found: GroupDescription = self.asked.ask(("group", name), SOON_S, partial(self.admin.describe_group, name))
        topics = [each for each in _groups(seen) if each.group == name]
        history = {
            each.topic: {
                "lag": self.watcher.history.of("lag", name, each.topic),
                "lag_us": self.watcher.history.of("lag_us", name, each.topic),
            }
            for each in topics[:TOP_ROWS]
        }
        if not found.cursors and not topics:
            raise UnknownGroup(f"group {name!r} has no cursor: `tritonmq group list` shows those that have")
        data = {
            "group": name,
            "label": found.label,
            "topics": topics,
            "cursors": found.cursors,
            "silent": found.silent,
            "history": history,
        }
        return View("group.html", name, data)

    def queues(self, _seen: Seen, query: Mapping[str, str]) -> View:
        infos: list[QueueInfo] = self.asked.ask("queues", SELDOM_S, self.admin.list_queues)
        table = listed(
            infos,
            QUEUE_COLUMNS,
            Wish.of(query),
            lambda each: f"{each.topic}\n{each.group}",
            "topic",
            QUEUES_DESCRIBED_MAX,
        )
        rows = [self._queue(each) for each in table.rows]
        return View("queues.html", "Queues", {**_page(table), "rows": rows}, {"table": table})

    def _queue(self, info: QueueInfo) -> tuple[QueueInfo, QueueDescription | None, str]:
        """What is known of it now; without that, why not."""
        question = partial(self.admin.describe_queue, info.topic, info.group)
        try:
            return info, self.asked.ask(("queue", info.topic, info.group, info.life), SOON_S, question), ""
        except TritonMQError as error:
            return info, None, str(error)

    def sinks(self, _seen: Seen, query: Mapping[str, str]) -> View:
        found: list[TransactionDescription] = self.asked.ask("sinks", SELDOM_S, self.admin.transactions)
        table = listed(found, SINK_COLUMNS, Wish.of(query), lambda each: each.key, "-since_us")
        return View("sinks.html", "Sinks", _page(table), {"table": table})

    def moves(self, seen: Seen, query: Mapping[str, str]) -> View:
        found: list[PartitionMove] = self.asked.ask("moves", SOON_S, self.admin.moves)
        sizes = {(each.topic, each.partition): each.size_bytes for each in _look_partitions(seen) if each.moving_to}
        table = listed(found, MOVE_COLUMNS, Wish.of(query), lambda each: f"{each.topic}\n{each.partition:09}", "topic")
        return View("moves.html", "Moves", _page(table), {"table": table, "sizes": sizes})


# ------------------------------------------------------------------ rows


def _look_partitions(seen: Seen) -> tuple[PartitionObservation, ...]:
    return () if seen.look is None else seen.look.observed.partitions


def _topics(seen: Seen) -> list[Topic]:
    look = seen.look
    if look is None:
        return []
    partitions: dict[str, int] = {}
    for each in look.partitions:
        partitions[each.topic] = partitions.get(each.topic, 0) + 1
    staged = {each.name: each.staged_batches for each in look.observed.topics}
    leaderless, behind = _by_topic(look, "leaderless"), _by_topic(look, "behind")
    return [
        Topic(
            name,
            count,
            look.kept.get(name, 0),
            look.sizes.get(name, 0),
            seen.rates.get(name),
            staged.get(name, 0),
            leaderless.get(name, 0),
            behind.get(name, 0),
        )
        for name, count in partitions.items()
    ]


def _by_topic(look: Look, what: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in getattr(look, what):
        found[each.topic] = found.get(each.topic, 0) + 1
    return found


def _groups(seen: Seen) -> list[Group]:
    groups = () if seen.look is None else seen.look.observed.groups
    return [described(Group, each, catching_up_s=seen.catching_up.get((each.group, each.topic))) for each in groups]


def totals(seen: Seen, topics: list[Topic], groups: list[Group]) -> Totals:
    return Totals(
        len(seen.brokers),
        sum(each.state == "serving" for each in seen.brokers),
        len(topics),
        sum(each.partitions for each in topics),
        sum(each.topic.startswith(INTERNAL_PREFIX) for each in _look_partitions(seen)),
        sum(each.records for each in topics),
        sum(each.bytes for each in topics),
        sum(seen.rates.values()),
        len({each.group for each in groups}),
        max((each.lag_us for each in groups), default=0),
    )


def left_out(seen: Seen) -> Mapping[str, int]:
    """How much brokers know beside what they told, by kind."""
    return {} if seen.look is None else {what: count for what, count in seen.look.observed.left_out.items() if count}


def _page(table: Listed[Any]) -> dict[str, Any]:
    return {"rows": table.rows, "page": table.page, "pages": table.pages, "count": table.count}


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _missing(value: float | None) -> float:
    return -1.0 if value is None else value


TOPIC_COLUMNS: Final[list[Column[Topic]]] = [
    Column("name", "Topic", "topic"),
    Column("partitions", "Partitions", "count"),
    Column("records", "Records", "count"),
    Column("bytes", "Size", "bytes"),
    Column("records_in_per_second", "Records in/s", "rate", lambda each: _missing(each.records_in_per_second)),
    Column("trend", "Trend", "spark"),
    Column("staged_batches", "Staged", "count"),
    Column(
        "partitions_in_need",
        "State",
        "state",
        lambda each: (each.partitions_without_leader, each.partitions_not_fully_in_sync),
    ),
]
PARTITION_COLUMNS: Final[list[Column[PartitionObservation]]] = [
    Column("partition", "Partition", "id"),
    Column("leader", "Leader", "id"),
    Column("leader_epoch", "Epoch", "count"),
    Column("replicas", "Replicas", "replicas", lambda each: len(each.isr) - len(each.replicas)),
    Column("log_start_offset", "First offset", "count"),
    Column("log_end_offset", "End offset", "count"),
    Column("size_bytes", "Size", "bytes"),
    Column("staged_batches", "Staged", "count"),
]
GROUP_COLUMNS: Final[list[Column[Group]]] = [
    Column("topic", "Topic", "topic"),
    Column("group", "Group", "group", lambda each: each.label or each.group),
    Column("kind", "Kind", "text"),
    Column("members", "Members", "count"),
    Column("lag", "Lag, records", "count"),
    Column("lag_bytes", "Lag, bytes", "bytes"),
    Column("lag_us", "Behind", "duration"),
    Column("trend", "Trend", "spark"),
    Column("catching_up_s", "Caught up in", "seconds", lambda each: _missing(each.catching_up_s)),
    Column("moved_us", "Moved", "ago"),
]
QUEUE_COLUMNS: Final[list[Column[QueueInfo]]] = [
    Column("topic", "Topic", "topic"),
    Column("group", "Group", "text"),
]
SINK_COLUMNS: Final[list[Column[TransactionDescription]]] = [
    Column("query", "Query", "text"),
    Column("sink", "Sink", "text"),
    Column("batch_id", "Last decided", "count"),
    Column("row_count", "Rows", "count"),
    Column("changed_us", "Decided", "ago"),
    Column("published", "Published", "state"),
    Column("batches", "Staged batches", "count"),
    Column("bytes", "Staged", "bytes"),
    Column("since_us", "Oldest staged", "ago"),
]
MOVE_COLUMNS: Final[list[Column[PartitionMove]]] = [
    Column("topic", "Topic", "topic"),
    Column("partition", "Partition", "id"),
    Column("origin", "From", "ids"),
    Column("target", "To", "ids"),
    Column("leader", "Leader", "id"),
    Column("isr", "In sync", "ids"),
]


T = TypeVar("T")

ANSWERS_MAX: Final = 64


class Asked:
    """Answers of the cluster that are kept for a moment, so that ten people who look at a page ask one question.

    Owns at most `ANSWERS_MAX` of them. Thread-safe: who asks what is being asked waits for that answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._asking: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, age_s: float, question: Callable[[], T]) -> T:
        """The answer to `question`, at most `age_s` old. Raises what it raises; that is not kept."""
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        try:
            with asking:
                with self._lock:
                    at, answer = self._answers.get(key, (-age_s, None))
                    if key in self._answers and self._clock() - at < age_s:
                        return cast("T", answer)
                answer = question()
                with self._lock:
                    self._answers[key] = self._clock(), answer
                    self._answers.move_to_end(key)
                    while len(self._answers) > ANSWERS_MAX:
                        self._answers.popitem(last=False)
                return answer
        finally:
            with self._lock:
                self._asking.pop(key, None)

    def forget(self) -> None:
        """After a change: ask everything anew."""
        with self._lock:
            self._answers.clear()
