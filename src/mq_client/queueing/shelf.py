"""Records that were lent and read, waiting to be worked on, in the order in which they were lent. Pure; used under the
keeper's lock."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from mq_client.cluster.connection import TopicView
from mq_client.consuming.record_queue import ConsumerRecord, batch_to_records
from mq_client.consuming.slices import StoredSlice, cut, wanted_of
from mq_client.errors import TritonMQError
from mq_client.queueing.leases import WAITING, HeldLease, Indexes
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_nodes
from mq_protocol.queues.columns import keys_of
from mq_protocol.wire.ipc_message import node_count

_DECODED_AT_ONCE: Final = 256
"""Records made of columns at a time: few enough not to hold up others who wait for the lock."""


@dataclass(eq=False, slots=True)
class Rows:
    """Rows of one lease, as they came in one batch: of the places `first` to `first + batch.num_rows - 1` in it."""

    lease: HeldLease
    first: int
    batch: pa.RecordBatch
    timestamp_us: int
    topic: str
    typed: bool
    next: int = 0
    _decoded_from: int = 0
    _decoded: Sequence[ConsumerRecord] = field(default=())

    @property
    def end(self) -> int:
        return self.first + int(self.batch.num_rows)

    def record(self, row: int) -> ConsumerRecord:
        at = row - self._decoded_from
        if not 0 <= at < len(self._decoded):
            part = self.batch.slice(row, _DECODED_AT_ONCE)
            offsets = self.lease.offsets[self.first + row : self.first + row + part.num_rows].tolist()
            made = batch_to_records(
                part, self.topic, self.lease.partition, offsets[0], self.timestamp_us, typed=self.typed
            )
            # Rows of one piece need not follow one another in the log
            if offsets[-1] - offsets[0] >= len(offsets):
                made = [record._replace(offset=offset) for record, offset in zip(made, offsets, strict=True)]
            self._decoded, self._decoded_from, at = made, row, 0
        return self._decoded[at]


class Lent(NamedTuple):
    """Rows of one lease, to be worked on together."""

    lease: HeldLease
    indexes: Indexes
    rows: pa.RecordBatch


class Shelf:
    """Owns what waits."""

    def __init__(self) -> None:
        self._rows: deque[Rows] = deque()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def put(self, rows: Rows) -> None:
        if rows.batch.num_rows:
            self._rows.append(rows)

    def rest(self) -> Sequence[Rows]:
        """What waits; of the first, from its `next` row on."""
        return tuple(self._rows)

    def clear(self) -> None:
        self._rows.clear()

    def take(self) -> tuple[HeldLease, int, ConsumerRecord] | None:
        """The next record that is still this member's: its lease, its place there, itself."""
        while self._rows:
            rows = self._rows[0]
            while rows.next < rows.batch.num_rows:
                row = rows.next
                rows.next += 1
                if rows.next == rows.batch.num_rows:
                    self._rows.popleft()
                if rows.lease.state(rows.first + row) == WAITING:
                    return rows.lease, rows.first + row, rows.record(row)
        return None

    def take_rows(self, rows_max: int) -> Lent | None:
        """As many of the next rows of one lease as are here, up to `rows_max`."""
        parts: list[pa.RecordBatch] = []
        indexes: list[Indexes] = []
        lease: HeldLease | None = None
        left = rows_max
        while self._rows and left and lease in (None, self._rows[0].lease):
            rows = self._rows[0]
            states = rows.lease.states[rows.first + rows.next : rows.end]
            mine = np.flatnonzero(states == WAITING)[:left]
            if len(mine):
                lease = rows.lease
                parts.append(picked(rows.batch, mine + rows.next))
                indexes.append(mine + rows.next + rows.first)
                left -= len(mine)
                rows.next += int(mine[-1]) + 1
            if not len(mine) or rows.next >= rows.batch.num_rows:
                self._rows.popleft()
        if lease is None:
            return None
        batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return Lent(lease, np.concatenate(indexes), batch)


def picked(batch: pa.RecordBatch, rows: Indexes) -> pa.RecordBatch:
    """These rows, which ascend."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.slice(first, len(rows))
    return batch.take(pa.array(rows))


def rows_of(lease: HeldLease, base_offset: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """The rows that the lease has of a batch whose first row has `base_offset`: the place of the first of them in the
    lease, and themselves."""
    offsets, end = lease.offsets, base_offset + batch.num_rows
    if len(offsets) == batch.num_rows and offsets[0] == base_offset and offsets[-1] == end - 1:
        return 0, batch  # numpy would let other threads run for it, and an event loop waits for them
    first, end = np.searchsorted(offsets, [base_offset, end])
    wanted = lease.offsets[first:end] - base_offset
    if not len(wanted):
        return int(first), batch.slice(0, 0)
    return int(first), picked(batch, wanted)


def slices_in(
    answer: pb.LeaseResponse, payloads: Sequence[memoryview], view: TopicView | None
) -> Sequence[StoredSlice]:
    """The batches of a lease, whose payloads came beside it. None if it has none, or what cannot be read: it is fetched
    then, and whoever fetches it finds out what is wrong. `view`: the topic as it is known."""
    if not answer.batches or view is None:
        return ()
    wanted = wanted_of(view, None, "")
    slices, decoded = [], 0
    try:
        for stored, payload in zip(answer.batches, payloads, strict=True):
            if view.typed and node_count(payload) > schema_nodes(view.schema):
                return ()  # columns were added that are not known here yet
            end = stored.base_offset + stored.record_count
            piece = cut(stored, payload, stored.base_offset, end, wanted)
            decoded += piece.batch.nbytes
            if not piece.batch.num_rows or decoded > limits.BATCH_DECODED_BYTES_CEILING:
                return ()
            slices.append(piece)
    except (TritonMQError, ValueError):
        return ()
    return slices


def rows_in(slices: Sequence[StoredSlice], lease: HeldLease, topic: str, *, typed: bool) -> list[Rows]:
    """All rows of the lease; none unless all are there."""
    found = []
    upto = 0
    for piece in slices:
        if piece.offsets is None:
            first, batch = rows_of(lease, piece.base_offset, piece.batch)
        else:
            first, batch = upto, piece.batch
            if not np.array_equal(lease.offsets[first : first + batch.num_rows], piece.offsets):
                return []
        if first != upto or not batch.num_rows:
            return []
        upto += batch.num_rows
        found.append(Rows(lease, first, batch, piece.timestamp_us, topic, typed))
    return found if upto == len(lease.offsets) else []


Key = tuple[int, Hashable]
"""A key and its partition."""

Place = tuple[int, int, Rows]
"""When it came, and the row of these."""


@dataclass(slots=True)
class _Doubt:
    """Records of a key that wait, which the leader was asked about, and has not answered about. `asked_at`: infinite
    until it is asked."""

    asked_at: float = math.inf
    left: set[tuple[HeldLease, int]] = field(default_factory=set)


class OrderedShelf(Shelf):
    """Owns what waits, and which keys somebody works on."""

    def __init__(self, before: Shelf) -> None:
        super().__init__()
        self._count = 0
        self._free: list[tuple[int, int, Rows, Key | None]] = []  # a heap; of each key the first one, if it is free
        self._waiting: dict[Key, deque[Place]] = {}
        self._kept: dict[HeldLease, dict[int, Key | None]] = {}  # keys of what waits
        self._busy: dict[Key, int] = {}  # how many records of it are handed out
        self._begun: dict[HeldLease, dict[int, Key]] = {}
        self._acked: dict[HeldLease, dict[int, Key]] = {}  # without an answer
        self._doubted: dict[Key, _Doubt] = {}
        self._to_ask: dict[Key, None] = {}
        for rows in before.rest():
            self.put(rows)

    def __bool__(self) -> bool:
        """Whether something may be handed out."""
        while self._free:
            number, row, rows, key = self._free[0]
            waits = rows.lease.state(rows.first + row) == WAITING
            waiting = self._waiting.get(key) if key is not None else None
            first = bool(waiting) and key not in self._busy and waiting is not None and waiting[0][0] == number
            if waits and (key is None or first):
                return True
            heapq.heappop(self._free)
            if key is not None and first:  # it was lost
                self._drop_first(key)
                self._offer(key)
        return False

    def _drop_first(self, key: Key) -> None:
        waiting = self._waiting[key]
        waiting.popleft()
        if not waiting:
            del self._waiting[key]

    def put(self, rows: Rows) -> None:
        for row, key in enumerate(_keys(rows), rows.next):
            if rows.lease.state(rows.first + row) != WAITING:
                continue  # lost while it was read
            self._count += 1
            self._kept.setdefault(rows.lease, {})[rows.first + row] = key
            if key is None:
                heapq.heappush(self._free, (self._count, row, rows, None))
                continue
            waiting = self._waiting.setdefault(key, deque())
            waiting.append((self._count, row, rows))
            if len(waiting) == 1:
                self._offer(key)

    def clear(self) -> None:
        self._free.clear()
        self._waiting.clear()
        self._kept.clear()

    def _offer(self, key: Key) -> None:
        """Its next record may be handed out, unless somebody works on one."""
        waiting = self._waiting.get(key)
        if waiting and key not in self._busy:
            heapq.heappush(self._free, (*waiting[0], key))

    # ------------------------------------------------------------------ handing out

    def take(self) -> tuple[HeldLease, int, ConsumerRecord] | None:
        found = self._next(None, set())
        if found is None:
            return None
        rows, row = found
        return rows.lease, rows.first + row, rows.record(row)

    def take_rows(self, rows_max: int) -> Lent | None:
        """Of a key as many as follow one another."""
        lease: HeldLease | None = None
        found: dict[int, tuple[Rows, list[int]]] = {}
        mine: set[Key] = set()
        for _ in range(rows_max):
            each = self._next(lease, mine)
            if each is None:
                break
            rows, row = each
            lease = rows.lease
            found.setdefault(id(rows), (rows, []))[1].append(row)
        if lease is None:
            return None
        parts = [picked(rows.batch, np.asarray(numbers, dtype=np.int64)) for rows, numbers in found.values()]
        indexes = [np.asarray(numbers, dtype=np.int64) + rows.first for rows, numbers in found.values()]
        return Lent(lease, np.concatenate(indexes), parts[0] if len(parts) == 1 else pa.concat_batches(parts))

    def _next(self, lease: HeldLease | None, mine: set[Key]) -> tuple[Rows, int] | None:
        """The next one that may be handed out; of that lease, if one is given, and then also of keys in `mine`, which
        are in the same hands."""
        while self._free:
            number, row, rows, key = self._free[0]
            if lease is not None and rows.lease is not lease:
                return None
            heapq.heappop(self._free)
            index = rows.first + row
            if key is not None:
                waiting = self._waiting.get(key)
                if not waiting or waiting[0][0] != number or (key in self._busy and key not in mine):
                    continue
                self._drop_first(key)
            if rows.lease.state(index) == WAITING:
                self._forget(rows.lease, (index,))
                if key is not None:
                    self._busy[key] = self._busy.get(key, 0) + 1
                    self._begun.setdefault(rows.lease, {})[index] = key
                    mine.add(key)
                    if key in self._waiting:  # for the same hands
                        heapq.heappush(self._free, (*self._waiting[key][0], key))
                return rows, row
            if key is not None:
                self._offer(key)
        return None

    # ------------------------------------------------------------------ what becomes of it

    def acknowledge(self, lease: HeldLease, indexes: Iterable[int]) -> None:
        """Their keys are free, as far as they were handed out."""
        begun = self._begun.get(lease, {})
        for index in indexes:
            key = begun.pop(int(index), None)
            if key is not None:
                self._acked.setdefault(lease, {})[int(index)] = key
                self._let_go(key)

    def end(self, lease: HeldLease, indexes: Iterable[int], *, doubt: bool) -> None:
        """The leader has answered. `doubt`: they are lost, so others of their keys that wait may be."""
        ended = [int(index) for index in indexes]
        if doubt:
            self._doubt_behind(lease, ended)
        self._forget(lease, ended)
        begun, acked = self._begun.get(lease, {}), self._acked.get(lease, {})
        for index in ended:
            key = begun.pop(index, None)
            acked.pop(index, None)
            if key is not None:
                self._let_go(key)
        if not begun:
            self._begun.pop(lease, None)
        if not acked:
            self._acked.pop(lease, None)

    def _forget(self, lease: HeldLease, indexes: Iterable[int]) -> None:
        """These do not wait any more."""
        kept = self._kept.get(lease)
        if kept is None:
            return
        for index in indexes:
            kept.pop(index, None)
        if not kept:
            del self._kept[lease]

    def _doubt_behind(self, lease: HeldLease, lost: Iterable[int]) -> None:
        """What waits of the keys of these. Of those that were not read the key is unknown, so it may be any."""
        known = [each.get(lease, {}) for each in (self._begun, self._acked, self._kept)]
        for index in lost:
            found = next((keys for keys in known if index in keys), None)
            if found is not None:
                self._doubt(found[index])
            elif lease.state(index) == WAITING:
                for key in [key for key in self._waiting if key[0] == lease.partition]:
                    self._doubt(key)
                return

    def doubt(self, rows: Rows) -> None:
        """Something was lost since the leader was asked to lend these: they may be lost, too."""
        kept = self._kept.get(rows.lease, {})
        for index in range(rows.first, rows.end):
            self._doubt(kept.get(index))

    def _doubt(self, key: Key | None) -> None:
        if key is not None:
            self._doubted[key] = _Doubt()
            self._to_ask[key] = None
            self._busy.setdefault(key, 0)

    def _let_go(self, key: Key) -> None:
        """One record of it is in nobody's hands any more."""
        self._busy[key] -= 1
        if not self._busy[key] and key not in self._doubted:
            del self._busy[key]
            self._offer(key)

    def take_doubts(self, now: float) -> list[tuple[HeldLease, Indexes]]:
        """Records that wait, of which the leader is to be asked whether they are this member's."""
        asked: dict[HeldLease, list[int]] = {}
        for key in self._to_ask:
            doubt = self._doubted[key]
            doubt.asked_at = now
            for _, row, rows in self._waiting.get(key, ()):
                if rows.lease.state(rows.first + row) == WAITING:
                    asked.setdefault(rows.lease, []).append(rows.first + row)
                    doubt.left.add((rows.lease, rows.first + row))
            self._settle_doubt(key)
        self._to_ask.clear()
        return [(lease, np.array(sorted(indexes), dtype=np.int64)) for lease, indexes in asked.items()]

    def checked(self, lease: HeldLease, indexes: Indexes, asked_at: float) -> None:
        """The leader has said which of these are this member's. What came in doubt after it was asked is so still."""
        told = {(lease, int(index)) for index in indexes} if self._doubted else set()
        for key in [key for key, doubt in self._doubted.items() if doubt.asked_at <= asked_at]:
            self._doubted[key].left -= told
            self._settle_doubt(key)

    def _settle_doubt(self, key: Key) -> None:
        if self._doubted[key].left:
            return
        del self._doubted[key]
        if not self._busy.get(key):
            self._busy.pop(key, None)
            self._offer(key)

    def overtaken(self, lease: HeldLease, indexes: Indexes) -> int | None:
        """An earlier record that was handed out with these, of the key of one of them, and has no outcome."""
        begun, meant = self._begun.get(lease, {}), set(indexes.tolist())
        keys = {begun[index]: index for index in sorted(meant) if index in begun}
        found = [i for i, key in begun.items() if key in keys and i < keys[key] and i not in meant]
        return min(found, default=None)


def _keys(rows: Rows) -> list[Key | None]:
    lease, count = rows.lease, rows.batch.num_rows - rows.next
    if lease.order == pb.ORDER_NONE:
        return [None] * count
    if lease.order == pb.ORDER_ALL:
        return [(lease.partition, ())] * count
    found = keys_of(rows.batch, lease.order_by).to_pylist()[rows.next :]
    return [None if key is None else (lease.partition, key) for key in found]
