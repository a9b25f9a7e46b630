"""Who is ticked in which turn of a broker's ticks. Time is an argument."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host.quiescence import (
    AUDIT_ROUNDS,
    LATE_S,
    REST_TICK_S,
    SLICES,
    TICKS_AT_ONCE_MAX,
    TICKS_AT_ONCE_MIN,
    Ticking,
)

SLICE_S = 0.1
"""Of those at rest."""

OFTEN = int(REST_TICK_S / SLICE_S)


class One:
    """A replica that notes when it is ticked."""

    def __init__(self, *, leading: bool = True, in_contact: bool = False) -> None:
        self.leading, self.in_contact, self.closed = leading, in_contact, False
        self.rest: Any = SimpleNamespace(impatient=lambda _now_ms: False)
        self.ticked: list[tuple[int, float]] = []

    def tick(self, now_ms: int, now: float) -> None:
        self.ticked.append((now_ms, now))

    def wake(self, _now_ms: int) -> None:
        raise AssertionError("it is not impatient")


def resting(replicas: list[Any], now: float = 0.0) -> Ticking:
    """All of them at rest, in a slice of its own each, as long as the slices last."""
    ticking = Ticking()
    if now:
        ticking.turn(1, now, now)
    for each in replicas:
        ticking.add(each)
        ticking.slept(each)
    return ticking


def turns(ticking: Ticking, lateness_s: list[float], now: float = 100.0) -> None:
    for late_s in lateness_s:
        ticking.turn(1, now + late_s, now)


def counts_of(replicas: list[Any], ticking: Ticking, lateness_s: list[float]) -> list[int]:
    """How many were ticked in each of these turns."""
    counts = []
    for late_s in lateness_s:
        before = sum(len(each.ticked) for each in replicas)
        turns(ticking, [late_s])
        counts.append(sum(len(each.ticked) for each in replicas) - before)
    return counts


@pytest.mark.parametrize(("awake", "ticked"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_quarter_of_those_in_use_is_ticked_in_each_turn(awake: int, ticked: int) -> None:
    assert SLICES == 4
    ticking = Ticking()
    replicas: list[Any] = [One() for _ in range(awake)]
    for each in replicas:
        ticking.add(each)
    assert counts_of(replicas, ticking, [0.0] * 2) == [ticked] * 2
    ticking.turn(77, 5.5, 5.5)
    assert sum((77, 5.5) in each.ticked for each in replicas) == ticked


def test_of_very_many_a_late_loop_ticks_half_as_many_and_then_more_again() -> None:
    ticking = Ticking()
    replicas: list[Any] = [One() for _ in range(2 * SLICES * TICKS_AT_ONCE_MAX)]
    for each in replicas:
        ticking.add(each)
    assert (TICKS_AT_ONCE_MIN, TICKS_AT_ONCE_MAX) == (5, 100)
    late = 1.01 * LATE_S
    assert counts_of(replicas, ticking, [0.0, LATE_S]) == [100, 100], "not late yet"
    assert counts_of(replicas, ticking, [late] * 6) == [50, 25, 12, 6, 5, 5]
    assert counts_of(replicas, ticking, [0.0] * 3) == [10, 15, 20]
    turns(ticking, [0.0] * 30)
    assert counts_of(replicas, ticking, [0.0]) == [100]


def test_those_at_rest_are_ticked_one_slice_after_another_once_in_a_round() -> None:
    replicas: list[Any] = [One() for _ in range(OFTEN + 1)]
    ticking = resting(replicas)
    for slices in range(1, OFTEN):
        ticking.turn(slices, (slices + 0.5) * SLICE_S, 0.0)
        ticking.turn(slices, (slices + 0.9) * SLICE_S, 0.0)  # still the same slice
    assert not replicas[0].ticked, "its turn of this round was before these turns began"
    assert [each.ticked for each in replicas[1:OFTEN]] == [[(n, (n + 0.5) * SLICE_S)] for n in range(1, OFTEN)]
    ticking.turn(1_000, (OFTEN + 0.5) * SLICE_S, 0.0)
    assert [len(replicas[0].ticked), len(replicas[OFTEN].ticked)] == [1, 1], "there are no more slices than these"
    assert len(replicas[1].ticked) == 1


@pytest.mark.parametrize("begun", [0, 7, 12_345])
def test_what_a_loop_that_was_held_up_missed_is_made_up_for_once(begun: int) -> None:
    replicas: list[Any] = [One() for _ in range(OFTEN)]
    ticking = resting(replicas, (begun + 0.5) * SLICE_S)
    ticking.turn(1, (begun + 3.5) * SLICE_S, 0.0)
    assert [n for n, each in enumerate(replicas) if each.ticked] == sorted((begun + n) % OFTEN for n in (1, 2, 3))
    ticking.turn(2, (begun + 3.5 + 5 * OFTEN) * SLICE_S, 0.0)
    assert sorted(len(each.ticked) for each in replicas) == [1] * (OFTEN - 3) + [2] * 3
    ticking.turn(3, (begun + 4.5 + 5 * OFTEN) * SLICE_S, 0.0)
    assert sum(len(each.ticked) for each in replicas) == OFTEN + 3 + 1


def test_each_one_in_contact_is_audited_once_in_many_rounds_and_not_all_of_them_in_the_same() -> None:
    replicas: list[Any] = [One(in_contact=True) for _ in range(OFTEN)]
    ticking = resting(replicas, (OFTEN - 0.5) * SLICE_S)
    in_round: list[set[int]] = []
    for rounds in range(1, AUDIT_ROUNDS + 1):
        before = [len(each.ticked) for each in replicas]
        for number in range(OFTEN):
            ticking.turn(rounds, (rounds * OFTEN + number + 0.5) * SLICE_S, 0.0)
        in_round.append({n for n, each in enumerate(replicas) if len(each.ticked) > before[n]})
    assert [len(each.ticked) for each in replicas] == [1] * OFTEN
    assert in_round == [
        {n for n in range(OFTEN) if (n + rounds) % AUDIT_ROUNDS == 0} for rounds in range(1, AUDIT_ROUNDS + 1)
    ]
