"""Settles of groups whose records are worked on one after another."""

from __future__ import annotations

import pytest

from mq_broker.core.work.order import OneKey
from mq_broker.core.work.ranges import Ranges
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.settling import Ack, Answer, Failed, Outcome, Release, Setting, Settle, gather
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Lease, LeaseId, Return

END = 100
FIRST, SECOND = LeaseId(1, 1, 0), LeaseId(1, 2, 0)


def lent() -> WorkState:
    """Two leases of one member."""
    state = WorkState(1, 0)
    state.apply(Lease(((0, 4),), "a"), FIRST, END)
    state.apply(Lease(((4, 8),), "a"), SECOND, END)
    return state


def settle(state: WorkState, *several: tuple[LeaseId, Ranges, Outcome]) -> list[Answer]:
    """By one entry, which is applied."""
    settles = [Settle(lease, "a", ranges, outcome) for lease, ranges, outcome in several]
    gathered = gather(state, settles, Setting(1, END, 0, 1, order=OneKey(state)))
    for number, step in enumerate(gathered.steps):
        state.apply(step, LeaseId(1, 9, number), END)
    return [*gathered.settled]


def test_acks_are_done_as_far_as_all_before_them_are_done_too() -> None:
    state = lent()
    answers = settle(state, (FIRST, ((2, 3),), Ack()), (FIRST, ((0, 1), (3, 4)), Ack()), (FIRST, ((1, 2),), Ack()))
    assert [answer.waits for answer in answers] == [((2, 3),), ((3, 4),), ()]
    assert state.base == 2
    assert settle(state, (FIRST, ((2, 4),), Ack()), (SECOND, ((4, 6),), Ack())) == [Answer(), Answer()]
    assert state.base == 6


@pytest.mark.parametrize("outcome", [Release(), Failed("no")])
def test_what_goes_back_takes_the_members_later_records_with_it(outcome: Outcome) -> None:
    state = lent()
    [answer] = settle(state, (FIRST, ((1, 3),), outcome))
    assert answer.pulled == ((FIRST, ((3, 4),)), (SECOND, ((4, 8),)))
    assert [state.counts(offset)[1] for offset in (1, 2, 3, 4)] == [isinstance(outcome, Failed)] * 2 + [False] * 2
    assert state.leased == 1


def test_what_was_pulled_is_pulled_once_and_not_settled_by_a_later_request_of_the_entry() -> None:
    state = lent()
    answers = settle(
        state, (FIRST, ((1, 2),), Release()), (FIRST, ((0, 1), (2, 3)), Ack()), (SECOND, ((5, 6),), Release())
    )
    assert [answer.lost for answer in answers] == [(), ((2, 3),), ((5, 6),)]
    assert (state.base, state.totals.returned) == (1, 7)


def test_a_member_is_told_what_went_back_by_a_step_before_too() -> None:
    """Its lease ran out in the same entry. Else it would begin with what comes after a record that went back."""
    state = lent()
    answers = settle(state, (SECOND, ((4, 7),), Failed("ran out", begun_first=True)), (FIRST, ((1, 2),), Failed("no")))
    assert answers[1].pulled == ((FIRST, ((2, 4),)), (SECOND, ((4, 8),)))
    assert [state.counts(offset) for offset in (1, 2, 4, 5, 7)] == [(1, 1), (1, 0), (1, 1), (1, 0), (1, 0)]
    assert (state.leased, state.totals.returned) == (1, 7)


def test_of_what_a_member_cannot_have_begun_nothing_is_charged() -> None:
    state = lent()
    settle(state, (FIRST, ((0, 4),), Ack()))
    [answer] = settle(state, (SECOND, ((4, 7),), Failed("ran out", begun_first=True)))
    assert answer.pulled == ((SECOND, ((5, 8),)),)
    assert [state.counts(offset)[1] for offset in (4, 5, 6, 7)] == [1, 0, 0, 0]


def test_a_record_that_nobody_has_is_not_acknowledged() -> None:
    state = lent()
    settle(state, (FIRST, ((0, 4),), Release()))
    assert settle(state, (FIRST, ((0, 4),), Ack())) == [Answer(lost=((0, 4),))]


def test_steps_before_count_as_done() -> None:
    state = lent()
    gathered = gather(state, [Settle(FIRST, "a", ((0, 4),), Ack())], Setting(1, END, 0, 1, order=OneKey(state)))
    assert gathered.steps == (Accept(((0, 4),)),)
    order = OneKey(state)
    done: RunMap[bool] = RunMap([(0, 4, True)])
    assert order.overtaking(((4, 6),), done) == ()
    assert order.overtaking(((5, 6),), done) == ((5, 6),)
    state.apply(Return(((4, 8),)), LeaseId(1, 3, 0), END)
    assert order.behind(((0, 1),)) == ((1, 4),)
