"""When those may go on who rest: those of one account one after the other, and nobody for another account."""

from __future__ import annotations

import pytest

from mq_broker.rpc.turns import Spacing


class Clock:
    """Spacing that rests nobody for longer than a second at once, at a time that a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.spacing = Spacing(1.0, lambda: self.now)


def test_works_of_an_account_rest_one_after_the_other_up_to_the_longest_rest_and_those_of_others_beside_them() -> None:
    clock = Clock()
    assert [clock.spacing.rest_s(0.4, "a") for _ in range(4)] == pytest.approx([0.4, 0.8, 1.0, 1.0])
    assert clock.spacing.rest_s(0.4, "b") == pytest.approx(0.4)
    clock.now += 1.0
    assert clock.spacing.rest_s(0.4, "a") == pytest.approx(0.4), "nothing is owed once they have rested"


def test_who_rests_again_and_again_rests_but_its_own_time_where_others_rest_for_the_longest_already() -> None:
    clock = Clock()
    assert [clock.spacing.slot_s(0.4, "a") for _ in range(4)] == pytest.approx([0.4, 0.8, 0.4, 0.4])
    clock.now += 0.8
    assert clock.spacing.slot_s(0.4, "a") == pytest.approx(0.4), "nobody owes more than the longest rest"
