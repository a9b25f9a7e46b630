"""Who is ticked in which turn of a broker's ticks. Time is an argument."""

from __future__ import annotations

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

    def __init__(self) -> None:
        self.closed = False
        self.ticked: list[tuple[int, float]] = []

    def tick(self, now_ms: int, now: float) -> None:
        self.ticked.append((now_ms, now))


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


@pytest.mark.parametrize("begun", [0, 7, 12_345])
def test_what_a_loop_that_was_held_up_missed_is_made_up_for_once(begun: int) -> None:
    replicas: list[Any] = [One() for _ in range(OFTEN)]
    ticking = resting(replicas, (begun + 0.5) * SLICE_S)

    def ticked_in_turn(turn: int, slice_: int) -> list[int]:
        ticking.turn(turn, (slice_ + 0.5) * SLICE_S, 0.0)
        return [n for n, each in enumerate(replicas) for now_ms, _ in each.ticked if now_ms == turn]

    def audited(first: int, last: int) -> list[int]:
        """Those whose audit is in one of these slices, counted from the beginning of the clock."""
        return sorted(n % OFTEN for n in range(first, last + 1) if (n // OFTEN + n % OFTEN) % AUDIT_ROUNDS == 0)

    assert ticked_in_turn(1, begun + 40) == audited(begun + 1, begun + 40) != []
    later = begun + 40 + 5 * OFTEN
    assert ticked_in_turn(2, later) == audited(later - OFTEN + 1, later), "a whole round at most"
    assert ticked_in_turn(3, later + 40) == audited(later + 1, later + 40) != []


def test_each_one_at_rest_is_audited_once_in_many_rounds_and_not_all_of_them_in_the_same() -> None:
    replicas: list[Any] = [One() for _ in range(OFTEN)]
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
