"""How much a partition keeps for a queue group: `length_max`, `bytes_max`, and what happens at them.

What members have does not count, and what is parked does: it is kept too. A batch is taken whole while there is room
for one record, so a group may have one batch more than its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.declared import Declared
from mq_broker.broker.queues.kept import Kept
from mq_broker.core.messages import Room
from mq_broker.core.work.ranges import Range
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Drop, Reason
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queue_settings import Overflow, QueueSettings

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
