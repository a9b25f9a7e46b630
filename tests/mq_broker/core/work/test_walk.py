"""A random walk: the state of a queue group against a model that keeps every record by itself."""

from __future__ import annotations

import random

import pytest

from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.state import WorkGroups, WorkState
from mq_broker.core.work.steps import (
    Accept,
    Begin,
    Drop,
    Lease,
    LeaseId,
    OutputLine,
    Park,
    Reason,
    Reject,
    Reset,
    Return,
    Send,
    Sent,
    Step,
)
from tests.mq_broker.core.work.model import Model, Record, held_by

GROUP = "g"


def random_ranges(rng: random.Random, low: int, end: int) -> Ranges:
    """A few ranges, long or of one record each, some of them beyond the end of the log."""
    at, ranges = low + rng.randrange(max((end - low) // 2, 1)), []
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        length = rng.choice([1, 1, 2, 7, rng.randrange(1, max(end // 3, 2))])
        ranges.append((at, at + length))
        at += length + rng.choice([0, 1, 1, 3, 50])
        if at > end + 20:
            break
    return tuple(ranges)


def random_step(rng: random.Random, state: WorkState, end: int) -> Step:
    ranges = random_ranges(rng, max(state.base - 5, 0), end)
    member = rng.choice(["m1", "m2"])
    lines = (OutputLine("id", 1, (bytes(16),)),)
    n = state.last_n + rng.choice([0, 1, 1, 1])
    if state.leases and rng.random() < 0.3:  # what is leased, whole: a send must fit
        lease = rng.choice(list(state.leases))
        member, ranges = state.leases[lease].member, tuple(held_by(state)[lease])
    match rng.randrange(14):
        case 0 | 1 | 2 | 3:
            return Lease(ranges, member)
        case 4 | 5:
            known = [lease for lease, _ in state.endings.frozen()[1]]
            return Accept(ranges, rng.choice(known) if known and rng.random() < 0.3 else None)
        case 6:
            return Drop(ranges[:3], rng.choice([Reason.EXPIRED, Reason.PURGED]))
        case 7 | 8:
            return Return(
                ranges, rng.random() < 0.7, rng.choice([0, 0, 90]), rng.choice(["", "bad", "worse"]), rng.random() < 0.5
            )
        case 9:
            return Reject(ranges[:2], "no")
        case 10:
            return Send(ranges, Reason.OUTPUT, n, lines, member, rng.randrange(20))
        case 11:
            doomed = tuple((low, high) for low, high, _ in state.doomed(3))
            return Send(doomed or ranges[:1], Reason.REJECTED, n, lines)
        case 12:
            return rng.choice([Park(ranges[:1]), Sent(rng.randrange(state.last_n + 1))])
        case _:
            return Reset(ranges)


@pytest.mark.parametrize("seed", range(12))
def test_each_record_is_in_exactly_one_state_as_a_model_says_it_and_a_snapshot_goes_on_as_a_replay_does(
    seed: int,
) -> None:
    rng = random.Random(seed)
    shift = rng.choice([0, 4000, 4096])  # chunks of settled offsets begin elsewhere in the log
    start, end, floor = shift, shift + 30, shift
    groups, model = WorkGroups(), Model({offset: Record(settled=offset < start) for offset in range(end)})
    groups.apply(GROUP, 1, [Begin(start)], 1, 1, (start, end))
    for index in range(2, 100):
        if rng.random() < 0.5:
            more = rng.choice([1, 40, 400])
            model.records |= {offset: Record() for offset in range(end, end + more)}
            end += more
        steps = [random_step(rng, groups[GROUP], end) for _ in range(rng.choice([1, 1, 4]))]
        groups.apply(GROUP, 1, steps, 1, index, (floor, end))
        for number, step in enumerate(steps):
            model.apply(step, LeaseId(1, index, number))
        chance = rng.random()
        if chance < 0.04:
            floor = rng.randrange(floor, min(groups[GROUP].base + 40, end))
            groups.pass_to(floor)
            for offset in range(floor):
                model.drop(model.records[offset], Reason.RETENTION)
        elif chance < 0.07:
            groups.recover(index, (1, index))
            groups.skip(end, end + 9000)
            for record in model.records.values():
                if record.lease is not None:
                    model.give_back(record)
            model.records |= {offset: Record(settled=True) for offset in range(end, end + 9000)}
            end += 9000
        if index % 8 == 0:
            model.agrees_with(groups[GROUP])
            frozen = groups.frozen()
            groups = WorkGroups.thawed(frozen)
            assert groups.frozen() == frozen
    model.agrees_with(groups[GROUP])


@pytest.mark.parametrize("seed", range(4))
def test_a_state_taken_up_from_a_snapshot_ends_where_the_replay_of_all_entries_ends(seed: int) -> None:
    rng = random.Random(100 + seed)
    whole, again = WorkGroups(), WorkGroups()
    for groups in (whole, again):
        groups.apply(GROUP, 1, [Begin(0)], 1, 1, (0, 3000))
    for index in range(2, 120):
        steps = [random_step(rng, whole[GROUP], 3000)]
        whole.apply(GROUP, 1, steps, 1, index, (0, 3000))
        again.apply(GROUP, 1, steps, 1, index, (0, 3000))
        if index % 5 == 0:
            again = WorkGroups.thawed(again.frozen())
        assert again.frozen() == whole.frozen()
