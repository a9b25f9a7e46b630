"""Dead letters sent back to where they came from, each exactly once."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_offsets
from mq_client.errors import InvalidRequest, LeaseLost, OutcomeUnknown, Overloaded, UnknownQueue, UnknownTopic
from mq_client.queueing.administration import declare, describe, find_queue, list_queues, runs, sweep
from mq_client.queueing.queue import Queue
from mq_client.queueing.records import LeasedBatch
from mq_client.reader import Reader
from mq_client.shown.descriptions import QueueInfo, QueueRun
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA
from mq_protocol.errors import RefusedError
from mq_protocol.names import check_group_name, check_new_group_name, check_topic_name, did_you_mean
from mq_protocol.queues.dead_letters import DEAD_COLUMN, HEADERS
from mq_protocol.queues.settings import DeadLetter, QueueSettings, parse_queue_settings

log = logging.getLogger(__name__)

BATCH_RECORDS: Final = 1_000
IDLE_MS: Final = 200.0
LATER_MS: Final = 1_000.0
"""For how long a letter is let alone that came after the beginning: it may be one that was sent back, and failed."""

TURNS_A_SECOND: Final = 10
"""With a rate: how often some are sent. Fewer than ten a second are sent one by one."""

_NOT_LENT: Final = (
    "letters of topic '{}' are ready, and none was lent for {:g} s: look at `tritonmq cluster status`, then run this "
    "again; it goes on where it stopped"
)
_WAITING: Final = {
    pb.RECORD_READY: "not sent yet",
    pb.RECORD_LEASED: "held by another member",
    pb.RECORD_DELAYED: "waiting for a retry",
}
_OURS: Final = frozenset(HEADERS.values())
_TAKEN_OFF: Final = _OURS - {HEADERS["hops"]}


REDRIVE: Final = "redrive"
"""The queue group that sends letters back where nothing else is said. It is declared when it is first needed."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What `Admin.redrive_topic` has done. `sent`: letters, by the topic that they went to. `left`: letters that are
    still in the dead-letter topic, by the reason."""

    sent: Mapping[str, int]
    left: Mapping[str, int]


class Order(NamedTuple):
    """What was asked for. `declare`: make the group if it is not there. `rate`: letters a second; `limit`: letters in
    all; None: as fast, and as many, as there are. `on_sent` is told how many were sent, each time some were."""

    topic: str
    to: str | None
    group: str
    declare: bool
    rate: float | None
    limit: int | None
    on_sent: Callable[[int], None]


def redrive(connection: Connection, order: Order, timeout_ms: float) -> Redriven:
    """See `Admin.redrive_topic`."""
    _check(order)
    ends = _check_topics(connection, order, timeout_ms)
    found = _find_group(connection, order, Deadline(timeout_ms))
    if not ends:
        return Redriven(MappingProxyType({}), MappingProxyType({}))
    _warn_of_others(connection, order, ends, timeout_ms)
    _open_group(connection, order, found, Deadline(timeout_ms))
    return _Redrive(connection, order, ends, timeout_ms).run()


def _check(order: Order) -> None:
    check_topic_name(order.topic)
    check_group_name(order.group)
    if order.to is not None:
        check_topic_name(order.to)
    if order.to == order.topic:
        raise InvalidRequest(f"to={order.to!r} is the dead-letter topic itself: give another topic")
    if order.rate is not None and not 0 < order.rate <= 1_000_000:
        raise InvalidRequest(f"rate={order.rate}: give records a second, more than 0 and at most 1,000,000")
    if order.limit is not None and not order.limit > 0:
        raise InvalidRequest(f"limit={order.limit}: give a number of records, from 1")


def _check_topics(connection: Connection, order: Order, timeout_ms: float) -> dict[int, int]:
    """Where each partition that holds something ends now. Nothing has been declared or lent when this raises."""
    try:
        view = connection.topic(order.topic, Deadline(timeout_ms))
    except UnknownTopic as error:
        for queue in list_queues(connection, None, Deadline(timeout_ms)):
            if queue.settings.get("dead_letter") == order.topic:
                raise UnknownTopic(
                    f"topic {queue.topic} has no dead letters yet: {order.topic} is made when its queue {queue.group} "
                    "sends the first one"
                ) from error
        raise
    if order.to is not None:
        connection.topic(order.to, Deadline(timeout_ms))
    found = ask_offsets(connection, order.topic, Deadline(timeout_ms))
    first = {n: each.log_start_offset for n, each in found.items() if each.log_end_offset > each.log_start_offset}
    if order.to is None and first and not _holds_letters(connection, view, first, timeout_ms):
        raise InvalidRequest(
            f"topic {order.topic!r} holds no dead letters: its first record does not say which topic it came from. "
            "Give the topic that dead letters are sent to, usually NAME.dead, or say where to send these (to=, --to)"
        )
    return {number: found[number].log_end_offset for number in first}


def _holds_letters(connection: Connection, view: TopicView, first: Mapping[int, int], timeout_ms: float) -> bool:
    if view.typed:
        return DEAD_COLUMN in view.schema.names
    number, offset = min(first.items())
    reader = Reader(connection, timeout_ms)
    for piece in reader.read_stored(view.name, number, offset, offset + 1, timeout_ms=timeout_ms):
        return bool(_origins_of_records(piece.batch)[0][0])
    return True


def _find_group(connection: Connection, order: Order, deadline: Deadline) -> QueueInfo | None:
    """The group as it is declared; None if it is to be made now. Raises `UnknownQueue` if it is not to be made: a new
    group would send every letter again."""
    found = find_queue(connection, order.topic, order.group, deadline)
    if found is not None or order.declare or order.group == REDRIVE:
        return found
    try:
        return describe(connection, order.topic, order.group, deadline).info  # leaders know what was just declared
    except UnknownQueue:
        known = [queue.group for queue in list_queues(connection, order.topic, deadline)]
        there = f"its groups are {', '.join(known)}" if known else "it has none so far"
        raise UnknownQueue(
            f"topic {order.topic} has no queue group {order.group!r}{did_you_mean(order.group, known) or ':'} "
            f"{there}. A new group sends every letter that is there: if you "
            "want that, give --declare (declare=True)"
        ) from None


def _warn_of_others(connection: Connection, order: Order, ends: Mapping[int, int], timeout_ms: float) -> None:
    settled = settled_by_others(connection, order.topic, order.group, ends, Deadline(timeout_ms))
    for group, letters in settled.items():
        log.warning(
            "queue %s has settled letters of topic %s that queue %s has not (%d of them): they are sent all the same. "
            "To send only what %s has left, stop this and give --group %s",
            *(group, order.topic, order.group, letters, group, group),
        )


def _open_group(connection: Connection, order: Order, found: QueueInfo | None, deadline: Deadline) -> None:
    """The group whose members send letters back. What could not be sent before is tried again."""
    if found is None:
        check_new_group_name(order.group)
        settings = {"dead_letter": "park", "delivery_limit": 0}
        found, _ = declare(connection, order.topic, order.group, "earliest", settings, deadline)
    known: QueueSettings = parse_queue_settings(found.settings, order.topic)
    if known.dead_letter != DeadLetter.PARK:
        raise InvalidRequest(
            f"queue {order.group} of topic {order.topic} does not keep what cannot be sent, for its dead_letter is "
            f"{found.settings.get('dead_letter')}: set it to park, or give another group"
        )
    if known.paused:
        raise InvalidRequest(
            f"queue {order.group} of topic {order.topic} is paused: resume it (`tritonmq queue resume {order.topic} "
            f"{order.group}`), or give another group"
        )
    sweep(connection, order.topic, order.group, deadline, redrive=True)


class _Redrive:
    """Owns one run: a member of the group, until nothing is left that was there when it began."""

    def __init__(
        self,
        connection: Connection,
        order: Order,
        ends: Mapping[int, int],
        timeout_ms: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = connection
        self._order = order
        self._ends = ends
        self._timeout_ms = timeout_ms
        self._clock, self._sleep = clock, sleep
        self._views: dict[str, TopicView | RefusedError] = {}
        self._sent = Counter[str]()
        self._refused = Counter[str]()
        self._next_at = clock()

    def run(self) -> Redriven:
        order = self._order
        at_once = BATCH_RECORDS
        if order.rate is not None:
            at_once = min(BATCH_RECORDS, max(1, int(order.rate / TURNS_A_SECOND)))
        with Queue(
            self._connection.bootstrap if self._connection.client.forward else self._connection.addresses(),
            order.topic,
            order.group,
            in_flight_max=2 * at_once,
            idle_ms=IDLE_MS,
            timeout_ms=self._timeout_ms,
            security=self._connection.client.security,
            forward=self._connection.client.forward,
        ) as queue:
            patience = Deadline(self._timeout_ms)
            while wanted := self._wanted(at_once):
                batch = next(queue.batches(wanted), None)
                if batch is not None:
                    self._take(queue, batch)
                    patience = Deadline(self._timeout_ms)
                elif not self._waits(queue.member_id, Deadline(self._timeout_ms)):
                    break
                elif patience.expired:
                    raise OutcomeUnknown(_NOT_LENT.format(order.topic, self._timeout_ms / 1000))
        return Redriven(MappingProxyType(dict(sorted(self._sent.items()))), MappingProxyType(self._left()))

    def _wanted(self, at_once: int) -> int:
        limit = self._order.limit
        return at_once if limit is None else min(at_once, limit - self._sent.total())

    def _waits(self, member_id: str, deadline: Deadline) -> bool:
        """Whether some letter that was there at the beginning is ready, or on its way to this member."""
        return any(self._early(pb.RECORD_READY, deadline)) or any(
            run.member == member_id for run, _ in self._early(pb.RECORD_LEASED, deadline)
        )

    def _left(self) -> dict[str, int]:
        """What was refused, and what is not settled for other reasons."""
        left = Counter(self._refused)
        deadline = Deadline(self._timeout_ms)
        for state, why in _WAITING.items():
            left[why] += sum(records for _, records in self._early(state, deadline))
        return {why: count for why, count in sorted(left.items()) if count}

    def _early(self, state: pb.RecordState.ValueType, deadline: Deadline) -> Iterator[tuple[QueueRun, int]]:
        """The runs of records in that state that were there at the beginning, and how many of each were."""
        for partition, end in self._ends.items():
            for run in runs(self._connection, self._order.topic, self._order.group, partition, state, deadline):
                if run.first >= end:
                    break
                yield run, min(run.end, end) - run.first

    # ------------------------------------------------------------------ one batch

    def _take(self, queue: Queue, batch: LeasedBatch) -> None:
        """Each row of it is sent, left with the reason, or let alone because it came later."""
        early = batch.offsets < self._ends.get(batch.partition, 0)
        if not early.all():
            batch.release(~early, delay_ms=LATER_MS)
        pieces = deque(pieces_of(batch.rows, np.flatnonzero(early), self._order.to))
        refused: dict[str, list[int]] = {}
        part = _Part(queue)
        while pieces:
            piece = pieces.popleft()
            try:
                self._add(part, piece)
            except Overloaded:
                if part.rows:
                    self._send(batch, part)
                    part = _Part(queue)
                    pieces.appendleft(piece)
                else:
                    pieces.extendleft(reversed(piece.halves()))
            except RefusedError as error:
                if len(piece.rows) == 1:
                    refused.setdefault(str(error), []).append(int(piece.rows[0]))
                else:
                    pieces.extendleft(reversed(piece.halves()))
        self._send(batch, part)
        for reason, rows in refused.items():
            batch.reject(_mask(len(batch), rows), reason)
            self._refused[reason] += len(rows)

    def _add(self, part: _Part, piece: Piece) -> None:
        """Raises why it cannot be sent: `Overloaded` if not with the others."""
        view = self._view(piece)
        known = piece.partition is not None and 0 <= piece.partition < view.partitions
        part.outputs.publish_batch(view.name, piece.fitting(view), partition=piece.partition if known else None)
        part.rows += piece.rows.tolist()
        part.sent[view.name] += len(piece.rows)

    def _view(self, piece: Piece) -> TopicView:
        name = piece.topic
        if not name:
            raise InvalidRequest("it does not say which topic it came from: say where to send it (to=, --to)")
        if name == self._order.topic:
            raise InvalidRequest("it came from this topic itself: say where to send it (to=, --to)")
        found = self._views.get(name)
        if found is None:
            try:
                check_topic_name(name)
                found = self._connection.topic(name, Deadline(self._timeout_ms))
            except RefusedError as error:
                found = error
            self._views[name] = found
        if isinstance(found, RefusedError):
            raise type(found)(str(found))
        return found

    def _send(self, batch: LeasedBatch, part: _Part) -> None:
        if not part.rows:
            return
        self._pace(len(part.rows))
        try:
            batch.ack(_mask(len(batch), part.rows), outputs=part.outputs).result(self._timeout_ms / 1000)
        except LeaseLost:  # another member has them, or will
            return
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"whether {len(part.rows)} letters were sent is not known; run this again: no letter is sent twice"
            ) from error
        self._sent.update(part.sent)
        self._order.on_sent(len(part.rows))

    def _pace(self, records: int) -> None:
        if self._order.rate is None:
            return
        now = self._clock()
        if self._next_at > now:
            self._sleep(self._next_at - now)
        self._next_at = max(self._next_at, now) + records / self._order.rate


class _Part:
    """What one ack sends: rows of the batch, and how many go to which topic. No topic is made for letters: one that was
    deleted is not to come back with nothing but these."""

    def __init__(self, queue: Queue) -> None:
        self.outputs = queue.outputs()
        self.outputs.auto_create = False
        self.rows: list[int] = []
        self.sent = Counter[str]()


@dataclass(frozen=True, slots=True)
class Piece:
    """Letters that go to one topic. `rows`: their places in the batch; `partition`: None if their keys say it."""

    topic: str
    partition: int | None
    rows: NDArray[np.int64]
    table: pa.RecordBatch

    def halves(self) -> tuple[Piece, Piece]:
        half = len(self.rows) // 2
        return self._part(0, half), self._part(half, len(self.rows) - half)

    def _part(self, first: int, count: int) -> Piece:
        table = self.table.slice(first, count)
        return Piece(self.topic, self.partition, self.rows[first : first + count], table)

    def fitting(self, view: TopicView) -> pa.RecordBatch:
        """Why they were dead stays behind, unless the topic has a place for it."""
        names = self.table.schema.names
        if DEAD_COLUMN in names and DEAD_COLUMN not in view.schema.names:
            return self.table.select([name for name in names if name != DEAD_COLUMN])
        return self.table


def pieces_of(rows: pa.RecordBatch, chosen: NDArray[np.int64], to: str | None) -> Iterator[Piece]:
    """The chosen rows by where they go: to the topic and partition that they came from, or to topic `to`."""
    table = rows.take(pa.array(chosen))
    typed = table.schema.names != RECORD_SCHEMA.names
    origins = _origins_of_rows(table) if typed else _origins_of_records(table)
    if not typed:
        table = _without_reasons(table)
    groups: dict[tuple[str, int | None], list[int]] = {}
    for at, (name, number) in enumerate(origins):
        groups.setdefault((to or name, None if to else number), []).append(at)
    for (name, number), places in groups.items():
        yield Piece(name, number, chosen[places], table.take(pa.array(places, pa.int64())))


def _origins_of_rows(table: pa.RecordBatch) -> list[tuple[str, int | None]]:
    if DEAD_COLUMN not in table.schema.names:
        return [("", None)] * table.num_rows
    facts = table.column(DEAD_COLUMN).to_pylist()
    return [(str((fact or {}).get("topic") or ""), (fact or {}).get("partition")) for fact in facts]


def _origins_of_records(table: pa.RecordBatch) -> list[tuple[str, int | None]]:
    """A record with a key goes where its key says, as when it was published."""
    found: list[tuple[str, int | None]] = []
    has_key = table.column("key").is_valid().to_pylist()
    for keyed, headers in zip(has_key, table.column("headers").to_pylist(), strict=True):
        facts = {header["key"]: header["value"] or b"" for header in headers or () if header is not None}
        name = facts.get(HEADERS["topic"], b"").decode(errors="replace")
        number = facts.get(HEADERS["partition"], b"")
        found.append((name, int(number) if not keyed and number.isdigit() and len(number) < 10 else None))
    return found


def _without_reasons(table: pa.RecordBatch) -> pa.RecordBatch:
    """Without the headers that made them letters. The count of hops stays: a record that dies again and again is parked
    in the end."""
    at = table.schema.get_field_index("headers")
    kept = [_kept(headers) for headers in table.column(at).to_pylist()]
    return table.set_column(at, table.schema.field(at), pa.array(kept, table.schema.field(at).type))


def _kept(headers: list[Any] | None) -> list[Any] | None:
    return None if headers is None else [each for each in headers if each is None or each["key"] not in _TAKEN_OFF]


def _mask(rows: int, chosen: list[int]) -> NDArray[np.bool_]:
    mask = np.zeros(rows, dtype=np.bool_)
    mask[chosen] = True
    return mask


Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Of offsets, each from its first to before its second number, in order and apart."""

RUNS_MAX: Final = 10_000
"""So many runs of a group are looked at in each partition: of a larger group the count is about right."""


def settled_by_others(
    connection: Connection, topic: str, group: str, ends: Mapping[int, int], deadline: Deadline
) -> dict[str, int]:
    """How many records that are still kept, and lie below `ends`, each other group has settled, of those that `group`
    has not. Groups with none are left out. A group that is not declared has settled none."""
    others = [each.group for each in list_queues(connection, topic, deadline) if each.group != group]
    if not others:
        return {}
    kept = {
        partition: (each.log_start_offset, ends[partition])
        for partition, each in ask_offsets(connection, topic, deadline).items()
        if partition in ends
    }
    found: dict[str, int] = {}
    for other in others:
        try:
            told = describe(connection, topic, other, deadline).partitions
        except UnknownQueue:  # deleted meanwhile
            continue
        for each in told:
            if not each.accepted or each.partition not in kept:
                continue
            span = kept[each.partition]
            ours = _unsettled(connection, topic, group, each.partition, span, deadline)
            theirs = _unsettled(connection, topic, other, each.partition, span, deadline)
            # A group that began late looks as if it had settled what was before.
            count = min(each.accepted, length(ours) - length(common(ours, theirs)))
            if count:
                found[other] = found.get(other, 0) + count
    return found


def _unsettled(
    connection: Connection, topic: str, group: str, partition: int, span: tuple[int, int], deadline: Deadline
) -> list[tuple[int, int]]:
    try:
        told = islice(runs(connection, topic, group, partition, pb.RECORD_ANY, deadline), RUNS_MAX)
        return common([(run.first, run.end) for run in told], [span])
    except UnknownQueue:
        return [span]


def common(first: Ranges, second: Ranges) -> list[tuple[int, int]]:
    """The offsets that are in both."""
    found: list[tuple[int, int]] = []
    at = other = 0
    while at < len(first) and other < len(second):
        low, high = max(first[at][0], second[other][0]), min(first[at][1], second[other][1])
        if low < high:
            found.append((low, high))
        if first[at][1] < second[other][1]:
            at += 1
        else:
            other += 1
    return found


def length(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)
