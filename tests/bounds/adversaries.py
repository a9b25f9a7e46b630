"""Members of a queue group that mean harm, and what they make its leader keep.

One acknowledges every second record of as many as a group may have between its base and its frontier. The others give
everything back, for as long as they like: as fast as they are lent it, or each record with a reason of its own. No
broker, no disk: the state, the entries and the leader's led_group are the real ones, the clock is set.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import dataclass
from itertools import count

from mq_broker.core.entries import Work
from mq_broker.core.work.ranges import RANGES_MAX, Range
from mq_broker.core.work.settling import Failed, Release
from mq_broker.core.work.state import WorkGroups, WorkState
from mq_broker.core.work.steps import ERROR_BYTES_MAX, Accept, Begin, Lease, LeaseId, Step
from mq_broker.storage.codec.work import groups_from_wire, groups_to_wire, work_to_wire
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.queues.partitions import Group, rounds

GROUP = "g"
LENT_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one replica keeps. `memory_bytes`: of the state, as one that opens with its snapshot has it.
    `journal_bytes`: of all entries of the group since it began. `records`: from its base to its frontier."""

    records: int
    runs: int
    leased: int
    memory_bytes: int
    snapshot_bytes: int
    entries: int
    journal_bytes: int


def cost_of(state: WorkState, entries: int, journal_bytes: int) -> Cost:
    parts = [part.SerializeToString() for part in groups_to_wire(((GROUP, state.frozen()),))]
    tracemalloc.start()
    try:
        kept = WorkGroups.thawed(groups_from_wire(pb.WorkPart.FromString(part) for part in parts))[GROUP]
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return Cost(kept.span, kept.runs, kept.leased, memory, sum(map(len, parts)), entries, journal_bytes)


def entry_bytes(*steps: Step) -> int:
    return len(work_to_wire(Work(GROUP, 1, steps)))


def acks_every_second(records: int) -> tuple[Cost, Cost]:
    """One member is lent all of them and acknowledges every second one, in as many entries as that takes. What is kept
    then, and once it has acknowledged the others too."""
    groups, indexes = WorkGroups(), count(1)
    entries = journal = 0

    def write(step: Step) -> None:
        nonlocal entries, journal
        entries, journal = entries + 1, journal + entry_bytes(step)
        groups.apply(GROUP, 1, (step,), 1, next(indexes), (0, records))

    write(Begin(0))
    write(Lease(((0, records),), "member"))
    costs = []
    for parity in (1, 0):
        for first in range(parity, records, 2 * RANGES_MAX):
            write(Accept(_every_second(first, min(first + 2 * RANGES_MAX, records))))
        costs.append(cost_of(groups[GROUP], entries, journal))
    return costs[0], costs[1]


def _every_second(first: int, end: int) -> tuple[Range, ...]:
    return tuple((offset, offset + 1) for offset in range(first, end, 2))


def gives_everything_back(seconds: int, hold: int, *, records: int, reasons: bool) -> Cost:
    """A member is lent records until it holds so many, and gives all of them back, once a second. With `reasons` every
    second one fails, each with a text of its own, as long as may be, and it wants so many more each time; else all are
    released, to be lent again at once."""
    return asyncio.run(_gives_back(seconds, hold, records, reasons=reasons))


async def _gives_back(seconds: int, hold: int, records: int, *, reasons: bool) -> Cost:
    group = Group(records, retry_ms=0, delivery_limit=0, in_flight_max=1_000_000)
    texts = count()
    for second in range(seconds):
        wanted = hold * (second + 1) if reasons else hold
        held: dict[LeaseId, list[int]] = {}
        while (room := wanted - sum(map(len, held.values()))) > 0:
            asking = group.ask("member", min(room, LENT_AT_ONCE), key=bytes(16), held=frozenset(held))
            group.hurry(asking)
            lent = await asking.answered
            if lent.lease is None:
                break
            held[lent.lease] = [offset for run in lent.runs for offset in range(run.first, run.end)]
        for lease, offsets in held.items():
            failed = offsets[::2] if reasons else []
            for at in failed:
                outcome = Failed(f"{next(texts)} ".ljust(ERROR_BYTES_MAX, "x"), 0)
                group.outcome(outcome, "member", lease, (at, at + 1))
            rest = offsets[1::2] if reasons else offsets
            group.outcome(Release(0), "member", lease, *((at, at + 1) for at in rest))
            while any(each == lease for each in group.state.leases):
                await rounds()
        group.pass_ms(1_000)
    await rounds()
    return cost_of(group.state, len(group.led.proposed), sum(len(work_to_wire(each)) for each in group.led.proposed))
