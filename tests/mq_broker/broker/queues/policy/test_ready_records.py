"""Which ready records a request is lent, and in which order; and a walk on which what is kept aside says the same as
the state, in which every record is looked up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mq_broker.broker.queues.policy.ready_records import LOOKED_AT_MAX, Choice, ReadyRecords, Wish
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, LeaseId, Park, Reason, Reject, Reset, Return, Step

END = 100
LIMIT = 3
BYTES_EACH = 10


def state(*steps: Step) -> WorkState:
    made = WorkState(1, 0)
    for number, step in enumerate(steps):
        made.apply(step, LeaseId(1, 1, number), END)
    return made


def ready(known: WorkState, limit: int = LIMIT) -> ReadyRecords:
    made = ReadyRecords(known, limit)
    while not made.scan(1_000):
        pass
    return made


def fits(first: int, end: int, bytes_max: int) -> tuple[int, int]:
    end = min(end, first + bytes_max // BYTES_EACH)
    return end, (end - first) * BYTES_EACH


def choose(
    of: ReadyRecords, records_max: int = 10, *, now_us: int = 0, end: int = END, bytes_max: int = 0, alone: bool = True
) -> Choice:
    return of.choose(Wish(records_max, bytes_max, alone), now_us, end, fits)


def failed(times: int, *ranges: Range, due_us: int = 0, error: str = "") -> list[Step]:
    """They were lent so often, and failed each time."""
    return [step for _ in range(times) for step in (Lease(ranges, "a"), Return(ranges, True, due_us, error))]


def given_back(*ranges: Range) -> list[Step]:
    return [Lease(ranges, "a"), Return(ranges)]


# ---------------------------------------------------------------- what a request is lent


def test_what_came_back_is_lent_before_what_was_never_lent_and_by_runs_of_equal_marks() -> None:
    of = ready(state(Lease(((0, 20),), "a"), Return(((2, 4),)), Return(((7, 9),), True)))
    choice = choose(of, 6)
    assert choice.runs == [(2, 4, Mark(1)), (7, 9, Mark(1, 1)), (20, 22, None)]
    assert choose(of, 100, end=30).ranges == ((22, 30),)
    assert not choose(of, 100, end=30).runs, "there are no more records in the log"
    assert choose(of, 100, end=31).ranges == ((30, 31),)


def test_a_choice_has_no_more_bytes_than_are_asked_for_over_all_its_runs() -> None:
    known = state(*given_back((0, 3)), *given_back((5, 8)))
    choice = choose(ready(known), 100, bytes_max=45)
    assert (choice.ranges, choice.bytes, choice.records) == (((0, 3), (3, 4)), 40, 4)
    of = ready(known)
    assert choose(of, 100, bytes_max=1).ranges == ((0, 1),), "one record at least"
    assert choose(of, 100, bytes_max=25).ranges == ((1, 3),)
    assert choose(of, 2, bytes_max=1_000).ranges == ((3, 5),), "the number of records counts too"


def test_a_choice_that_looked_at_much_and_found_nothing_goes_on_in_another_turn() -> None:
    end = 4 * LOOKED_AT_MAX
    known = WorkState(1, 0)
    for number, step in enumerate(given_back((0, end))):
        known.apply(step, LeaseId(1, 1, number), end)
    of = ready(known)
    known.apply(Lease(tuple((offset, offset + 1) for offset in range(0, end, 2)), "b"), LeaseId(1, 2, 0), end)
    known.apply(Lease(tuple((offset, offset + 1) for offset in range(1, end - 1, 2)), "c"), LeaseId(1, 2, 1), end)
    turns, chosen = 0, choose(of, end=end)
    while chosen.unfinished:
        turns, chosen = turns + 1, choose(of, end=end)
        assert chosen.looked <= LOOKED_AT_MAX + 1
    assert (chosen.ranges[0], turns) == ((end - 1, end), 3)


# ---------------------------------------------------------------- records that are lent alone


def test_a_record_that_waits_to_be_lent_alone_and_was_redriven_is_lent_with_others() -> None:
    known = state(*failed(2, (0, 3)))
    of = ready(known)
    known.apply(Reset(((0, 2),)), LeaseId(1, 9, 0), END)
    assert not of.waits_alone(0)
    assert choose(of, 4).ranges == ((0, 2), (3, 5))
    assert of.waits_alone(0)
    assert choose(of).ranges == ((2, 3),)


# ---------------------------------------------------------------- the walk


def walk_step(rng: random.Random, known: WorkState, limit: int, now_us: int) -> Step:
    at = rng.randrange(END)
    ranges: Ranges = ((at, at + rng.choice([1, 2, 7])),)
    held = [(low, high) for low, high, _ in known.lent]
    kind = rng.randrange(9) if held else 0
    if kind and rng.random() < 0.8:
        ranges = (rng.choice(held),)
    match kind:
        case 0:
            return rng.choice([Accept(ranges), Drop(ranges, Reason.PURGED)])
        case 1:
            return Reset(tuple((low, high) for low, high, _ in known.parked()))
        case 2:
            return Reject(tuple((low, high) for low, high, _ in known.lent.covered(ranges)))
        case 3:
            return Park(tuple((low, high) for low, high, _ in known.doomed(limit)))
        case _:
            ranges = tuple((low, high) for low, high, _ in known.lent.covered(ranges))
            return Return(ranges, rng.random() < 0.6, rng.choice([0, 0, now_us + rng.randrange(1, 30)]))


def spread(runs: Sequence[tuple[int, int, Mark | None]], known: WorkState) -> set[int]:
    return {offset for low, high, _ in runs for a, b in known.settled.missing(low, high) for offset in range(a, b)}


def take_all(of: ReadyRecords, known: WorkState, now_us: int, rng: random.Random) -> set[int]:
    """Everything that may be lent now, in choices of different sizes."""
    found: set[int] = set()
    while (choice := choose(of, rng.choice([1, 3, 50]), now_us=now_us, alone=rng.random() < 0.5)).runs or (
        choice := choose(of, now_us=now_us)
    ).runs:
        offsets = spread(choice.runs, known)
        assert len(offsets) == choice.records
        assert not found & offsets, "no record is chosen twice"
        found |= offsets
    return found


@pytest.mark.parametrize("seed", range(12))
def test_what_is_kept_aside_agrees_with_the_state_at_every_step_of_a_walk(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice([0, 1, 2, 3])
    known, now_us = WorkState(1, 0), 1
    of = ready(known, limit)
    doomed: set[int] = set()
    for index in range(2, 160):
        number = 0
        for _ in range(rng.choice([0, 1, 3])):
            choice = choose(of, rng.choice([1, 4]), now_us=now_us, alone=rng.random() < 0.5)
            known.apply(Lease(choice.ranges, "a"), LeaseId(1, index, number := number + 1), END)
        for _ in range(rng.choice([1, 2])):
            step = walk_step(rng, known, limit, now_us)
            known.apply(step, LeaseId(1, index, number := number + 1), END)
            if isinstance(step, Return | Reject | Reset):
                of.came_back(step.ranges)
        now_us += rng.choice([0, 3, 15])
        assert of.wake(now_us)
        doomed |= spread(of.take_doomed(1_000), known)
        assert doomed >= spread(list(known.doomed(limit)), known)
        doomed = spread(list(known.doomed(limit)), known)
        waiting = [mark.due_us for _, _, mark in known.delayed(now_us, limit)]
        due_us = of.next_due_us()
        assert not waiting or (due_us is not None and due_us <= min(waiting))
        if index % 5 == 0:
            expected = spread(list(known.ready(now_us, limit, 0, END)), known)
            assert take_all(of, known, now_us, rng) == expected
            of = ReadyRecords(known, limit)
            while not of.scan(rng.choice([1, 2, 50])):
                pass
            assert of.wake(now_us)
            assert take_all(of, known, now_us, rng) == expected, "and as a new leader sees it"
            of = ready(known, limit)
            assert of.wake(now_us)
