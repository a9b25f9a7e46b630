"""Where records wait to become batches, and batches wait to be answered. Pure: time is an argument, threads are the
producer's.

A batch closes by size, by linger, or when it is asked to. Closed batches enter their partition's lane (lanes.py), which
keeps their order. Everything here is bounded by the producer's memory: `pending_bytes` counts every record from
`publish` to its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq_client.cluster.connection import TopicView
from mq_client.errors import TritonMQError
from mq_client.producing.futures import BatchOutcome, BatchPlace, Outcome, RecordFuture, RecordPlace
from mq_client.producing.lanes import NOT_SCHEDULED, USUAL, Attributes, Due, Lane, OutgoingBatch
from mq_client.producing.targets import OpenBatch, Target, fits_uuid, put
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch

_HELD_S: Final = 0.05
"""How long another batch's answer is waited for. Long beside a round trip; short beside what a slow broker may make
others wait."""


UUID_BYTES: Final = 16

TURN_RECORDS: Final = 64
"""Without a key, so many go to one partition in a row: some for each where many come at once, and batches that are not
tiny."""

_SPREAD_MAX: Final = 8
"""Partitions among which records without a key are spread at a time: with all of many, each batch would be small."""

_new: Final = object.__new__


class AccumulatorSettings(NamedTuple):
    """`linger_s`: how long a batch waits for more records. `delivery_s`: from a batch's first record to giving it up.
    `takes_turns`: after TURN_RECORDS in a batch, the next without a key goes to another partition.
    """

    batch_bytes_max: int
    linger_s: float
    delivery_s: float
    retries: int
    max_in_flight: int
    compression: str | None
    takes_turns: bool = True


class Answer(NamedTuple):
    """A final answer, to be told to whoever waits once no lock is held."""

    outcome: Outcome
    place: BatchPlace | None
    error: TritonMQError | None

    def tell(self) -> None:
        self.outcome.settle(self.place, self.error)


class Accumulator:
    """Owns open batches, lanes, and the table of what is in flight. Not thread-safe: the producer's lock is around
    it."""

    def __init__(
        self, settings: AccumulatorSettings, random: Random, new_uuid: Callable[[], bytes] = lambda: os.urandom(16)
    ) -> None:
        self.settings = settings
        self.traceparent: Callable[[], bytes] | None = None  # of what is added now, where spans are made
        self.pending_bytes = 0
        self.lanes: dict[tuple[str, int, bool], Lane] = {}
        self.in_flight: dict[int, tuple[Lane, OutgoingBatch]] = {}
        self._random = random
        self._new_uuid = new_uuid
        self._targets: dict[str, Target] = {}
        self._open: dict[tuple[Target, int], OpenBatch] = {}  # oldest first
        self._busy: dict[Lane, None] = {}  # lanes with unanswered batches
        self._correlation = 0

    def add_target(self, view: TopicView) -> Target:
        """Begin to write to a topic."""
        target = Target(view, self.settings.batch_bytes_max, self._random)
        self._targets[view.name] = target
        return target

    def drop_target(self, target: Target) -> None:
        """The topic has changed: what is open is closed, and the next record finds a new target."""
        for each in (target, *target.others.values()):
            each.dropped = True
            for partition in range(len(each.open)):
                self._close(each, partition)
        self._targets.pop(target.view.name, None)

    def of(self, target: Target, attributes: Attributes) -> Target:
        """Where records of the same topic are gathered that have those attributes."""
        if attributes == target.attributes:
            return target
        other = target.others.get(attributes)
        if other is None:
            target.make_room()
            other = Target(target.view, self.settings.batch_bytes_max, self._random, attributes)
            target.others[attributes] = other
        return other

    def targets(self) -> list[Target]:
        """The topics that are written to."""
        return list(self._targets.values())

    # ------------------------------------------------------------------ records in

    def add_plain(
        self,
        target: Target,
        partition: int | None,
        key: bytes | None,
        value: bytes,
        size: int,
        clock_ns: int,
        pending_bytes_max: int,
    ) -> RecordFuture | None:
        """`add` for what most records are: a value, perhaps a key, for a batch that is open and stays so.

        None if there is no such batch, or this would fill it, or is not allowed: `add` it then. Nothing is called that
        need not be, as this is done a million times a second.
        """
        batch = target.open[target.sticky if partition is None else partition]
        if batch is None or size > target.plain_size_max:
            return None
        filled, pending = batch.size + size, self.pending_bytes + size
        if filled >= target.batch_bytes_max or pending > pending_bytes_max:
            return None
        batch.size, self.pending_bytes = filled, pending
        values = batch.values
        index = len(values)
        try:
            if key is not None:
                put(batch.keys, index, key)
            future: RecordFuture = _new(RecordFuture)
            future.outcome, future.index = batch.outcome, index
            batch.clock_ns.append(clock_ns)
            values.append(value)
        except BaseException:  # a signal's
            batch.cut(index)
            raise
        if partition is None and index & 63 == 63:  # TURN_RECORDS are in it
            self._take_turns(target)
        return future

    def add(
        self,
        target: Target,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        given_us: int | None,
        size: int,
        clock_ns: int,
        now: float,
        uuid: bytes | None = None,
    ) -> tuple[RecordFuture, bool]:
        """A record into its partition's open batch. Its future, and whether the sender has something new to look at.

        `given_us`: its timestamp; without one it is `clock_ns`, the wall clock's time. `uuid`: its own.
        """
        named = partition is not None
        batch, partition, news = self._room(target, partition, size, now, uuid)
        index = len(batch.values)
        try:
            if uuid is not None:
                batch.uuids[uuid] = index
            if key is not None:
                put(batch.keys, index, key)
            if headers is not None:
                put(batch.headers, index, headers)
            if given_us is not None:
                batch.given_us[index] = given_us
            batch.clock_ns.append(clock_ns)
            batch.values.append(value)
        except BaseException:  # a signal's
            batch.cut(index)
            raise
        return self._added(target, partition, batch, index, named=named, news=news)

    def add_row(
        self,
        target: Target,
        partition: int | None,
        row: Sequence[Any],
        size: int,
        now: float,
        uuid: bytes | None = None,
    ) -> tuple[RecordFuture, bool]:
        """As `add`, for a typed topic and what `RowShape.fit` made of a row."""
        named = partition is not None
        batch, partition, news = self._room(target, partition, size, now, uuid)
        index = len(batch.rows)
        try:
            if uuid is not None:
                batch.uuids[uuid] = index
            batch.rows.append(row)
        except BaseException:  # a signal's
            batch.cut(index)
            raise
        return self._added(target, partition, batch, index, named=named, news=news)

    def _added(
        self, target: Target, partition: int, batch: OpenBatch, index: int, *, named: bool, news: bool
    ) -> tuple[RecordFuture, bool]:
        """What `add` returns of the record at that place. `named`: its partition was."""
        if self.traceparent is not None and not batch.traceparent:
            batch.traceparent = self.traceparent()
        future = RecordFuture(batch.outcome, index)
        if not named and index & (TURN_RECORDS - 1) == TURN_RECORDS - 1:
            self._take_turns(target)
        if batch.size >= target.batch_bytes_max:
            self._close(target, partition)
            news = True
        return future, news

    def _room(
        self, target: Target, partition: int | None, size: int, now: float, uuid: bytes | None
    ) -> tuple[OpenBatch, int, bool]:
        if partition is None:
            partition = target.sticky
        batch = self._open.get((target, partition))
        news = False
        if batch is not None and (batch.size + size > target.batch_bytes_max or not fits_uuid(batch, uuid)):
            self._close(target, partition)
            batch = None
        if batch is None:
            batch = self._open[target, partition] = OpenBatch(target.view.name, now)
            if uuid is None:
                target.open[partition] = batch
            news = True
        batch.size += size
        self.pending_bytes += size
        return batch, partition, news

    def add_closed(
        self,
        view: TopicView,
        partition: int,
        batch: pa.RecordBatch,
        outcome: Outcome,
        now: float,
        *,
        uuid: bytes | None = None,
        stage: pb.StageOf | None = None,
        deadline: float | None = None,
        due: Due = NOT_SCHEDULED,
        attributes: Attributes = USUAL,
    ) -> None:
        """A batch that is complete, behind what is open for its partition. One that is scheduled waits for no other
        one, and no other one waits for it."""
        target = self._targets.get(view.name)
        if target is not None and stage is None and due == NOT_SCHEDULED and partition < len(target.open):
            for each in (target, *target.others.values()):
                self._close(each, partition)
        size = batch.nbytes
        self.pending_bytes += size
        lane, closed = self._closed(
            view,
            partition,
            uuid,
            batch.num_rows,
            size,
            outcome,
            lambda: batch,
            now,
            stage=stage,
            deadline=deadline,
            due=due,
            attributes=attributes,
        )
        if self.traceparent is not None:
            closed.traceparent = self.traceparent()
        self._busy[lane] = None
        lane.add(closed)

    # ------------------------------------------------------------------ batches out

    def close_ready(self, now: float) -> float | None:
        """Close what has lingered long enough, where its lane could send it (else it goes on filling). When to look
        again.

        A batch that is not full also waits, up to `_HELD_S`, while another is unanswered: what comes during one round
        trip then goes out together, instead of in as many batches as there were records, which the brokers would be
        busy with for longer.
        """
        # An answer wakes the sender
        waits = max(self.settings.linger_s, _HELD_S) if self.in_flight else self.settings.linger_s
        for (target, partition), batch in list(self._open.items()):
            if batch.opened_at + waits > now:
                return batch.opened_at + waits
            if (
                self._lane(target.view.name, partition, False).has_room
                or now - batch.opened_at > self.settings.delivery_s / 2
            ):
                self._close(target, partition)
        return None

    def close_all(self) -> None:
        """Close every open batch: a flush."""
        for target, partition in list(self._open):
            self._close(target, partition)

    def _close(self, target: Target, partition: int) -> None:
        batch = self._open.get((target, partition))
        if batch is None:
            return
        view, rows = target.view, target.rows

        def build() -> pa.RecordBatch:
            return batch.built() if rows is None else rows.batch(batch.rows)

        count = len(batch.rows) if view.typed else len(batch.values)
        uuids = list(batch.uuids)
        alone = uuids[0] if len(uuids) == 1 else None  # the batch's own UUID is a record's as well
        lane, closed = self._closed(view, partition, alone, count, batch.size, batch.outcome, build, batch.opened_at)
        closed.attributes, closed.traceparent = target.attributes, batch.traceparent
        if len(uuids) > 1:
            closed.record_uuids = b"".join(uuids)
        first = self._next_sticky(target) if partition == target.sticky else target.sticky
        if count:
            self._busy[lane] = None
        # A signal's exception comes after a call, if it comes: open or closed, but nowhere the batch cannot be.
        target.first = target.sticky = first
        target.open[partition] = None
        del self._open[target, partition]
        if count:
            lane.batches.append(closed)
        else:  # the only record was one that a signal broke off
            self.pending_bytes -= batch.size

    def turn(self, target: Target) -> int:
        """The partition whose turn it is among those that take what has no key."""
        partition = target.sticky
        target.first = target.sticky = self._next_sticky(target)
        return partition

    def _take_turns(self, target: Target) -> None:
        """The next of those from `first` on that have no batches waiting; if none, it stays with the one that it is."""
        if not self.settings.takes_turns:
            return
        count = len(target.open)
        spread = min(count, _SPREAD_MAX)
        at = (target.sticky - target.first) % count
        for step in range(1, spread):
            partition = (target.first + (at + step) % spread) % count
            if self._keeps_up(target, partition):
                target.sticky = partition
                return

    def _keeps_up(self, target: Target, partition: int) -> bool:
        lane = self.lanes.get((target.view.name, partition, False))
        return lane is None or lane.in_flight == len(lane.batches)

    def _next_sticky(self, target: Target) -> int:
        """The next partition; those that have batches waiting are passed over while others have none."""
        count = len(target.open)
        candidates = [(target.sticky + step) % count for step in range(1, count + 1)]
        return next((partition for partition in candidates if self._keeps_up(target, partition)), candidates[0])

    def _closed(
        self,
        view: TopicView,
        partition: int,
        uuid: bytes | None,
        count: int,
        size: int,
        outcome: Outcome,
        build: Callable[[], pa.RecordBatch],
        opened_at: float,
        *,
        stage: pb.StageOf | None = None,
        deadline: float | None = None,
        due: Due = NOT_SCHEDULED,
        attributes: Attributes = USUAL,
    ) -> tuple[Lane, OutgoingBatch]:
        """The batch, and the lane that it is to enter."""
        compression = self.settings.compression
        return self._lane(view.name, partition, stage is not None or due != NOT_SCHEDULED), OutgoingBatch(
            topic=view.name,
            partition=partition,
            uuid=uuid or self._new_uuid(),
            record_count=count,
            size=size,
            fingerprint=view.fingerprint,
            outcome=outcome,
            build=lambda: encode_batch(build(), compression),
            deadline=opened_at + self.settings.delivery_s if deadline is None else deadline,
            stage=stage,
            due=due,
            attributes=attributes,
            schema=view.schema,
        )

    def _lane(self, topic: str, partition: int, staged: bool) -> Lane:
        key = (topic, partition, staged)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(
                topic,
                partition,
                max_in_flight=self.settings.max_in_flight,
                retries=self.settings.retries,
                ordered=not staged,
                random=self._random,
            )
        return lane

    def busy(self) -> list[Lane]:
        """Lanes with unanswered batches."""
        return list(self._busy)

    @property
    def idle(self) -> bool:
        """Nothing is open and nothing unanswered."""
        return not self._busy and not self._open

    def take(self, lane: Lane, now: float) -> tuple[OutgoingBatch, int, bytes] | None:
        """The lane's next batch to send, its correlation and its `after`; it is in flight from now on."""
        batch = lane.next(now)
        if batch is None:
            return None
        self._correlation += 1
        after = lane.sent(batch, self._correlation, now)
        self.in_flight[self._correlation] = (lane, batch)
        return batch, self._correlation, after

    # ------------------------------------------------------------------ answers in

    def answer(self, correlation: int, place: BatchPlace) -> Answer | None:
        """It is in the log. None if that batch has been given up since."""
        found = self.in_flight.pop(correlation, None)
        if found is None:
            return None
        lane, batch = found
        lane.answered(batch)
        return self._ended(lane, batch, place, None)

    def shorten(self, correlation: int, there: Mapping[int, RecordPlace]) -> Answer | None:
        """These records of a batch, by their place in it, were in the log already, and nothing of it was written. The
        others are to be sent again by themselves; an answer if there are none.
        """
        found = self.in_flight.pop(correlation, None)
        if found is None:
            return None
        lane, batch = found
        lane.shortened(batch)
        positions = batch.positions or range(batch.record_count)
        assert isinstance(batch.outcome, BatchOutcome)
        batch.outcome.were_there(batch.partition, {positions[at]: place for at, place in there.items()})
        kept = [at for at in range(batch.record_count) if at not in there]
        if not kept:
            lane.batches.remove(batch)
            return self._ended(lane, batch, BatchPlace(batch.partition, -1, 0, 0, duplicate=True), None)
        rest = decode_batch(batch.encoded(), batch.schema).take(pa.array(kept, pa.int64()))
        uuids = [batch.record_uuids[at * UUID_BYTES : (at + 1) * UUID_BYTES] for at in kept]
        batch.positions = [positions[at] for at in kept]
        batch.payload = encode_batch(rest, self.settings.compression)
        batch.record_count, batch.record_uuids = len(kept), b"".join(uuids)
        batch.uuid = self._new_uuid()
        return None

    def refuse(self, correlation: int, error: TritonMQError, now: float, *, reached: bool = True) -> Answer | None:
        """An attempt failed; an answer if that is final, None if it will be sent again."""
        found = self.in_flight.pop(correlation, None)
        if found is None:
            return None
        lane, batch = found
        final = lane.failed(batch, error, now, reached=reached)
        return self._ended(lane, batch, None, final) if final is not None else None

    def recall(self, lane: Lane, error: TritonMQError, now: float) -> list[Answer]:
        """What is in flight will not be answered where it was sent."""
        correlations = [batch.correlation for batch in lane.batches if batch.correlation is not None]
        answers = [self.refuse(correlation, error, now) for correlation in correlations]
        return [answer for answer in answers if answer is not None]

    def refuse_all(self, lane: Lane, error: TritonMQError) -> list[Answer]:
        """None of the lane's batches can be sent any more. Those in flight are given up as unknown."""
        answers = []
        for batch in list(lane.batches):
            if batch.correlation is None and not batch.in_doubt:
                lane.batches.remove(batch)
                answers.append(self._ended(lane, batch, None, error))
            else:
                batch.last_error = error
                answers.append(self.give_up(lane, batch))
        return answers

    def give_up(self, lane: Lane, batch: OutgoingBatch) -> Answer:
        """It is past its deadline."""
        if batch.correlation is not None:
            del self.in_flight[batch.correlation]
        return self._ended(lane, batch, None, lane.give_up(batch))

    def _ended(self, lane: Lane, batch: OutgoingBatch, place: BatchPlace | None, error: TritonMQError | None) -> Answer:
        self.pending_bytes -= batch.size
        batch.done = True
        if not lane.batches:
            self._busy.pop(lane, None)
        return Answer(batch.outcome, place, error)
