"""How many records a partition keeps for a queue group: `length_max`, and what happens at it.

What members have does not count, and what is parked does: it is kept too. A batch is taken whole while there is room
for one record, so a group may have one batch more than its bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.declared import Declared
from mq_broker.core.messages import Room
from mq_broker.core.work.ranges import Range, joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, Reason, Send, Step, why_not_one_entry
from mq_protocol.queue_settings import Overflow, QueueSettings


def room(declared: Declared, partition: Partition) -> Room | None:
    """How far batches may be appended, by the group that has the least room. None: as far as anybody likes."""
    least: Room | None = None
    end = partition.next_offset
    for queue in declared.of(partition).values():
        length_max = queue.settings.length_max
        state = partition.replica.machine.work.get(queue.group)
        if not length_max or queue.settings.overflow is not Overflow.REJECT:
            continue
        if state is None or state.life != queue.life:  # it has not begun here
            continue
        end_max = end + length_max - state.unlent(end)
        if least is None or end_max < least.end_max:
            least = Room(end_max, queue.group, length_max)
    return least


def beyond_length(state: WorkState, settings: QueueSettings, end: int, steps: Sequence[Step]) -> list[Step]:
    """What drops the oldest records that are too many, behind these steps of the same entry; nothing if none are, or if
    the entry has no room for it. `end`: of the log."""
    length_max = settings.length_max
    if not length_max or settings.overflow is not Overflow.DROP_HEAD or state.unlent(end) <= length_max:
        return []
    gone = RunMap((first, until, True) for first, until in joined(_taken(steps)))
    taken = sum(high - low for first, until, _ in gone for low, high, _ in state.unleased(first, until))
    excess = state.unlent(end) - taken - length_max
    if excess <= 0:
        return []
    drop = Drop(((state.base, _until(state, gone, end, excess)),), Reason.LENGTH)
    return [] if why_not_one_entry((*steps, drop)) else [drop]


def _taken(steps: Iterable[Step]) -> Iterator[Range]:
    """What these steps settle or lend."""
    return (each for step in steps if isinstance(step, Lease | Accept | Drop | Send) for each in step.ranges)


def _until(state: WorkState, gone: RunMap[bool], end: int, excess: int) -> int:
    """Below it are so many records that nobody has, without what is gone."""
    for first, until, _ in state.unleased(state.base, end):
        for low, high, is_gone in gone.pieces(((first, until),)):
            if is_gone:
                continue
            if high - low >= excess:
                return low + excess
            excess -= high - low
    return end
