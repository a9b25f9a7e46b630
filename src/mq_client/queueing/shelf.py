"""Records that were lent and read, waiting to be worked on, in the order in which they were lent. Pure; used under the
keeper's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from mq_client.consuming.record_queue import ConsumerRecord, batch_to_records
from mq_client.queueing.leases import WAITING, HeldLease, Indexes

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
    first, end = np.searchsorted(lease.offsets, [base_offset, base_offset + batch.num_rows])
    wanted = lease.offsets[first:end] - base_offset
    if not len(wanted):
        return int(first), batch.slice(0, 0)
    return int(first), picked(batch, wanted)
