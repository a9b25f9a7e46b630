"""How much a partition keeps for a queue group: `length_max`, `bytes_max`, and what happens at them.

What members have does not count, and what is parked does: it is kept too. A batch is taken whole while there is room
for one record, so a group may have one batch more than its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.core.messages import Room
from mq_broker.core.work.ranges import Range
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Drop, Reason, Step, ranges_of
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Overflow, QueueSettings

COUNTED_AT_ONCE: Final = 200
"""Runs that are counted in one turn, some three milliseconds, and a chunk at least."""

_CHUNK: Final = 1_024


class Kept:
    """How many bytes of records a partition keeps for a group beside those that members have: a record has its share of
    its batch's bytes, as the offset index tells. A chunk of 1,024 offsets is counted again after its records were
    leased, settled or given back, so much in a turn.

    Owns the bytes of each chunk from base to `_fresh`: nothing behind was ever lent or settled. A chunk that was not
    counted yet has all that is stored of it, and one that is to be counted again what it had."""

    def __init__(self, state: WorkState, index: OffsetIndex) -> None:
        self._state = state
        self._index = index
        self._base = self._fresh = state.base
        self._settled_to = min(state.settled.top(), index.log_end_offset)
        self._bytes: dict[int, int] = {}
        self._total = 0
        self._dirty: dict[int, None] = {}

    def bytes(self) -> int:
        """Of all records that are neither settled nor leased."""
        return self._total + self._index.bytes_between(self._fresh, self._index.log_end_offset)

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        for step in steps:
            for first, end in ranges_of(step):
                self._settled_to = max(self._settled_to, min(end, self._index.log_end_offset))
                for chunk in _chunks(max(first, self._base), min(end, self._fresh)):
                    self._dirty[chunk] = None

    def count(self) -> bool:
        """Keep up with the state. Whether all is counted."""
        self._follow()
        counted = 0
        while self._dirty and counted < COUNTED_AT_ONCE:
            chunk = next(iter(self._dirty))
            del self._dirty[chunk]
            size = 0
            for first, end in self._unlent(chunk):
                size += self._index.bytes_between(first, end)
                counted += 1
            self._set(chunk, size)
        return not self._dirty

    def _follow(self) -> None:
        """What is settled from the beginning goes, and what was lent since comes."""
        state = self._state
        if self._base < state.base:
            for chunk in _chunks(self._base, min(state.base, self._fresh)):
                if (chunk + 1) * _CHUNK <= state.base:
                    self._total -= self._bytes.pop(chunk, 0)
                    self._dirty.pop(chunk, None)
                else:
                    self._dirty[chunk] = None
            self._base = state.base
        fresh = max(state.frontier, state.marks.end(), state.base, self._settled_to)
        for chunk in _chunks(max(self._fresh, state.base), fresh):
            first = max(chunk * _CHUNK, self._fresh, state.base)
            more = self._index.bytes_between(first, min((chunk + 1) * _CHUNK, fresh))
            self._set(chunk, self._bytes.get(chunk, 0) + more)
            self._dirty[chunk] = None
        self._fresh = max(self._fresh, fresh)

    def _set(self, chunk: int, size: int) -> None:
        self._total += size - self._bytes.get(chunk, 0)
        self._bytes[chunk] = size

    def _unlent(self, chunk: int) -> Iterator[Range]:
        """Of the chunk, without regard to marks."""
        low = max(chunk * _CHUNK, self._state.base)
        begun = until = low
        for first, end, _ in self._state.unleased(low, min((chunk + 1) * _CHUNK, self._fresh)):
            if first != until:
                yield begun, until
                begun = first
            until = end
        yield begun, until


def _chunks(first: int, end: int) -> range:
    return range(first // _CHUNK, -(-end // _CHUNK)) if first < end else range(0)


_NO_END: Final = 1 << 62


def room(declared: Declared, kept_of: Callable[[Partition, str], Kept | None], partition: Partition) -> Room | None:
    """How far batches may be appended, by the groups that have the least room. None: as far as anybody likes.
    `kept_of`: what is known of a group's bytes here; None if nothing is."""
    least: Room | None = None
    end = partition.next_offset
    for queue in declared.of(partition).values():
        settings = queue.settings
        state = partition.replica.machine.work.get(queue.group)
        if not (settings.length_max or settings.bytes_max) or settings.overflow is not Overflow.REJECT:
            continue
        if state is None or state.life != queue.life:  # it has not begun here
            continue
        least = least or Room(_NO_END, "", 0)
        end_max = end + settings.length_max - state.unlent(end)
        if settings.length_max and end_max < least.end_max:
            least = replace(least, end_max=end_max, group=queue.group, length_max=settings.length_max)
        if settings.bytes_max:
            kept = kept_of(partition, queue.group)
            size = partition.index.bytes_between(state.base, end) if kept is None else kept.bytes()
            left = settings.bytes_max - size
            if not least.heavy_group or left < least.bytes_left:
                bytes_max = settings.bytes_max
                least = replace(least, heavy_group=queue.group, bytes_left=left, bytes_max=bytes_max)
    return least


@dataclass(frozen=True, slots=True)
class Excess:
    """What a group keeps beyond its bounds: so many records, so many bytes."""

    records: int
    bytes: int


def excess_of(state: WorkState, settings: QueueSettings, end: int, kept: Kept | None) -> Excess | None:
    """None if it is not too much. `end`: of the log. `kept`: of a group that has a bound of bytes."""
    records = state.unlent(end) - settings.length_max if settings.length_max else 0
    size = kept.bytes() - settings.bytes_max if settings.bytes_max and kept is not None else 0
    if settings.overflow is not Overflow.DROP_HEAD or (records <= 0 and size <= 0):
        return None
    return Excess(records, size)


def drop_of(state: WorkState, index: OffsetIndex, end: int, excess: Excess) -> Drop:
    """What drops the oldest records that are too many."""
    until = max((until for _, until, _ in _oldest(state, index, end, excess)), default=state.base)
    return Drop(((state.base, until),), Reason.LENGTH)


def surplus_of(state: WorkState, index: OffsetIndex, end: int, excess: Excess, limit: int) -> list[Range]:
    """The oldest records that are too many, and are to become dead letters. What is parked is passed over: it was one
    already. What is doomed becomes one in any case. `limit`: the group's `delivery_limit`."""
    runs = _oldest(state, index, end, excess, parked=False)
    return [(first, until) for first, until, mark in runs if mark is None or not mark.doomed(limit)]


def _oldest(
    state: WorkState, index: OffsetIndex, end: int, excess: Excess, *, parked: bool = True
) -> Iterator[tuple[int, int, Mark | None]]:
    """As many of the records that nobody has as are too many, the first ones."""
    records, size = excess.records, excess.bytes
    for first, until, mark in state.unleased(state.base, end):
        if mark is not None and mark.parked and not parked:
            continue
        cut = min(until, max(first + records, _after_bytes(index, first, until, size)))
        yield first, cut, mark
        records -= cut - first
        size -= index.bytes_between(first, cut) if size > 0 else 0
        if records <= 0 and size <= 0:
            return


def _after_bytes(index: OffsetIndex, first: int, end: int, size: int) -> int:
    """Before it are at least so many bytes, from `first` on; `end` if there are not so many."""
    low, high = first, end
    while low < high and size > 0:
        middle = (low + high) // 2
        if index.bytes_between(first, middle) >= size:
            high = middle
        else:
            low = middle + 1
    return low


class Bounding:
    """Owns how many bytes are kept, of a group that has a bound of them."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.kept: Kept | None = None

    def begin(self) -> None:
        """A new life of the group."""
        self.kept = None

    def keep_up(self, state: WorkState, settings: QueueSettings) -> bool:
        """With the state. Returns whether all is counted."""
        if bool(settings.bytes_max) is (self.kept is None):
            self.kept = Kept(state, self._partition.index) if settings.bytes_max else None
        return self.kept is None or self.kept.count()

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        if self.kept is not None:
            self.kept.written(steps)
            self.kept.count()

    def bounded(self, state: WorkState, settings: QueueSettings, policy: Policy) -> Drop | None:
        """What drops the rest, once all is counted, unless that becomes dead letters."""
        if self.kept is not None and not self.kept.count():
            return None
        end, index = self._partition.next_offset, self._partition.index
        excess = excess_of(state, settings, end, self.kept)
        if excess is None:
            return None
        if policy.surplus is None:
            return drop_of(state, index, end, excess)
        policy.surplus.add(surplus_of(state, index, end, excess, policy.ready.limit))
        return None
