"""What each step of a `Work` entry does to a group, one rule a test."""

from __future__ import annotations

import pytest

from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.state import (
    OUTBOX_MAX,
    RUNS_MAX,
    SPAN_MAX,
    TAKEN_MAX,
    FrozenWork,
    Mark,
    Outgoing,
    WorkGroups,
    WorkState,
)
from mq_broker.core.work.steps import (
    Accept,
    Begin,
    Drop,
    End,
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

END = 1_000
LINES = (OutputLine("id", 1, (bytes(16),)),)


class Group:
    """One group of a log of so many records."""

    def __init__(self, end: int = END) -> None:
        self.end = end
        self.groups = WorkGroups()
        self.index = 0
        self.take(Begin(0))

    def take(self, *steps: Step, life: int = 1, epoch: int = 1) -> WorkState:
        self.index += 1
        self.groups.apply("g", life, steps, epoch, self.index, (0, self.end))
        return self.groups["g"]

    @property
    def state(self) -> WorkState:
        return self.groups["g"]


def test_a_lease_is_named_by_the_entry_and_the_step_that_made_it() -> None:
    group = Group()
    state = group.take(Lease(((0, 5),), "a"), Lease(((5, 9),), "b"), epoch=7)
    assert state.holder(4) == (LeaseId(7, 2, 0), "a")
    assert state.holder(5) == (LeaseId(7, 2, 1), "b")
    assert state.holder(9) is None
    assert LeaseId(7, 2, 1) < LeaseId(8, 1, 0), "a later leader's leases are later, whatever its indexes are"


def test_what_becomes_of_a_record_in_one_group_is_nothing_to_another() -> None:
    group = Group()
    group.groups.apply("h", 1, (Begin(0), Lease(((0, 3),), "c")), 1, 9, (0, END))
    before = group.groups["h"].frozen()
    for _ in range(3):
        group.take(Lease(((0, 2),), "a"))
        group.take(Return(((0, 2),), charged=True))
    group.take(Lease(((0, 2),), "a"))
    group.take(Reject(((0, 1),)), Accept(((1, 2),)))
    assert group.groups["h"].frozen() == before
    assert group.groups["h"].counts(0) == (1, 0)


def test_two_members_never_hold_one_record() -> None:
    state = Group().take(Lease(((0, 5),), "a"), Lease(((3, 9),), "b"))
    assert [state.holder(offset) for offset in (4, 5)] == [(LeaseId(1, 2, 0), "a"), (LeaseId(1, 2, 1), "b")]
    assert state.leased == 9


def test_settling_splits_no_run() -> None:
    group = Group()
    group.take(Lease(((0, 900),), "a"))
    group.take(Return(((100, 900),), charged=True))
    group.take(Lease(((100, 900),), "b"))
    state = group.take(Accept(tuple((offset, offset + 1) for offset in range(1, 900, 2))))
    assert state.runs == 3
    assert (state.leased, state.totals.accepted, state.base) == (450, 450, 0)


def test_deliveries_count_leases_and_failures_count_charged_returns() -> None:
    group = Group()
    counted = []
    for step in (Return(((3, 4),)), Return(((3, 4),), True, 0, "bad"), Return(((3, 4),)), Reject(((3, 4),))):
        group.take(Lease(((3, 4),), "a"))
        counted.append(group.state.counts(3))
        group.take(step)
        counted.append(group.state.counts(3))
    assert counted == [(1, 0), (1, 0), (2, 0), (2, 1), (3, 1), (3, 1), (4, 1), (4, 1)]
    assert group.state.marks.at(3) == Mark(4, 1, 0, rejected=True, error="bad"), (
        "an error is kept until there is another"
    )


def test_a_rejected_or_parked_record_is_lent_to_nobody_until_it_is_reset() -> None:
    group = Group()
    group.take(Lease(((0, 3),), "a"))
    group.take(Reject(((0, 1),), "no"), Return(((1, 3),), charged=True, due_us=99, error="bad"))
    group.take(Park(((1, 2),)))
    assert group.take(Lease(((0, 3),), "b")).leased == 1
    state = group.take(Reset(((0, 3),)))
    assert list(state.ready(0, 1, 0, 3)) == [(0, 2, Mark(1))], "record 2 is leased: nothing about it is reset"
    assert group.take(Lease(((0, 2),), "b")).leased == 3


def test_a_record_that_failed_as_often_as_the_limit_says_is_doomed_and_a_limit_of_zero_dooms_none() -> None:
    group = Group()
    for _ in range(3):
        group.take(Lease(((0, 1),), "a"), Return(((0, 1),), charged=True, due_us=5))
    assert [len(list(group.state.doomed(limit))) for limit in (3, 4, 2, 0)] == [1, 0, 1, 0]
    assert [len(list(group.state.delayed(4, limit))) for limit in (3, 4)] == [0, 1]
    assert not list(group.state.delayed(5, 4))
    assert list(group.state.ready(5, 4, 0, 1)) == [(0, 1, Mark(3, 3, 5))]


def test_a_drop_takes_nothing_that_is_leased() -> None:
    group = Group()
    group.take(Lease(((2, 4),), "a"))
    state = group.take(Drop(((0, END),), Reason.PURGED))
    assert (state.base, state.leased) == (2, 2)
    assert state.totals.dropped == ((Reason.PURGED, END - 2),)


def test_a_send_is_whole_or_nothing() -> None:
    group = Group()
    group.take(Lease(((0, 4),), "a"), Lease(((4, 6),), "b"))
    for wrong in (
        Send(((0, 5),), Reason.OUTPUT, 9, LINES, "a", 1),  # one record is another's
        Send(((0, 2),), Reason.REJECTED, 9, LINES),  # leased: no dead letter
        Send(((6, 7),), Reason.OUTPUT, 9, LINES, "a", 1),  # nobody has it
        Send(((0, 2), (END, END + 1)), Reason.OUTPUT, 9, LINES, "a", 1),
    ):
        before = group.state.frozen()
        assert group.take(wrong).frozen() == before
    state = group.take(Send(((0, 4),), Reason.OUTPUT, 9, LINES, "a", 1))
    assert (state.base, list(state.outbox), state.totals.accepted) == (4, [9], 4)
    before = state.frozen()
    for again in (Send((), Reason.OUTPUT, 10, LINES, "a", 1), Send(((4, 6),), Reason.OUTPUT, 9, LINES, "b", 1)):
        assert group.take(again).frozen() == before, "a number is taken once, and numbers of the outbox ascend"


def test_a_dead_letter_is_settled_and_in_the_outbox_by_one_step_and_forgotten_when_it_is_published() -> None:
    group = Group()
    group.take(Lease(((0, 2),), "a"), Reject(((0, 2),), "no"))
    state = group.take(Send(((0, 2),), Reason.REJECTED, 1 << 32, LINES))
    assert (state.base, state.totals.dead, len(state.marks)) == (2, 2, 0)
    assert state.outbox[1 << 32].lines == LINES
    assert group.take(Sent(1 << 32)).outbox == {}
    assert group.take(Send((), Reason.REJECTED, (1 << 32) + 1, LINES)).totals.dead == 2, "sent anew, without records"


def test_records_are_needed_until_they_are_settled_and_their_dead_letters_published() -> None:
    state = Group().take(Lease(((0, 20),), "a"), Accept(((0, 10),)))
    assert state.needed_from() == 10
    for n, ranges, reason, needed in (
        (1, ((12, 13),), Reason.REJECTED, 10),
        (2, ((7, 8), (9, 10)), Reason.REJECTED, 7),
        (3, ((2, 3),), Reason.OUTPUT, 7),
        (4, (), Reason.LENGTH, 7),
        (5, ((3, 4),), Reason.DELIVERY_LIMIT, 3),
        (6, ((5, 6),), Reason.REJECTED, 3),
    ):
        state.outbox[n] = Outgoing(LINES, ranges, reason)
        assert state.needed_from() == needed


def test_the_members_whose_numbers_are_remembered_have_a_bound() -> None:
    group = Group(2 * TAKEN_MAX)
    others = [f"m{number}" for number in range(TAKEN_MAX - 2)]
    for n, member in enumerate(["a", "b", *others, "a", "c"], start=1):
        group.take(Lease(((n, n + 1),), member), Send(((n, n + 1),), Reason.OUTPUT, n, LINES, member, n))
    assert list(group.state.taken) == [*others, "a", "c"], "who has been silent longest is forgotten"
    assert group.state.taken["a"] == TAKEN_MAX + 1


def test_at_a_bound_fresh_records_wait_and_returned_ones_do_not() -> None:
    group = Group(2 * RUNS_MAX)
    returned = range(0, RUNS_MAX - 2, 2)  # each is a run of its own, and leaves one of the lease behind it
    group.take(Lease(((0, RUNS_MAX - 1),), "a"), Return(tuple((each, each + 1) for each in returned)))
    assert (group.state.runs, group.state.fresh_room()) == (RUNS_MAX - 2, SPAN_MAX)
    group.take(Lease(((RUNS_MAX, RUNS_MAX + 1),), "b"))
    assert (group.state.runs, group.state.fresh_room()) == (RUNS_MAX - 1, SPAN_MAX)
    group.take(Lease(((RUNS_MAX + 2, RUNS_MAX + 3),), "b"))
    state = group.state
    assert (state.runs, state.fresh_room()) == (RUNS_MAX, 0)
    assert [low for low, _, mark in state.ready(0, 3, 0, RUNS_MAX) if mark is not None] == list(returned)
    assert group.take(Accept(((0, RUNS_MAX),))).fresh_room() == SPAN_MAX, "settling is never refused"


def test_an_outbox_is_full_at_its_bound() -> None:
    group = Group()
    for n in range(1, OUTBOX_MAX + 1):
        assert not group.state.outbox_full()
        group.take(Send((), Reason.LENGTH, n, LINES))
    assert group.state.outbox_full()


def test_the_span_goes_from_base_to_the_highest_record_ever_lent() -> None:
    group = Group()
    group.take(Lease(((500, 600),), "a"))
    assert (group.state.span, group.state.frontier) == (600, 600)
    group.take(Drop(((0, 450),), Reason.EXPIRED))
    assert group.state.span == 150
    assert group.take(Accept(((0, END),))).span == 0


def test_steps_of_another_life_do_nothing_but_begin_a_later_one() -> None:
    group = Group()
    group.take(Lease(((0, 5),), "a"))
    before = group.state.frozen()
    for life, step in ((2, Accept(((0, 5),))), (2, End()), (0, End()), (1, Begin(7)), (0, Begin(7))):
        assert group.take(step, life=life).frozen() == before
    assert group.take(Begin(7), life=2).frozen() == WorkState(2, 7, begun=(1, group.index)).frozen()
    group.groups.apply("g", 2, [End()], 1, 99, (0, END))
    assert not group.groups
    group.groups.apply("g", 2, [Accept(((0, 5),))], 1, 100, (0, END))
    assert not group.groups


def test_a_group_begins_within_the_log() -> None:
    groups = WorkGroups()
    for life, offset in ((1, 5), (2, 70), (3, 40)):
        groups.apply("g", life, [Begin(offset)], 1, life, (20, 50))
        assert groups["g"].base == {5: 20, 70: 50, 40: 40}[offset]


def test_no_step_touches_what_is_beyond_the_end_of_the_log() -> None:
    state = Group().take(Accept(((END, END + 5),)), Lease(((END - 1, END + 5),), "a"))
    assert (state.base, state.leased, state.totals.accepted) == (0, 1, 0)
    assert list(state.unleased(END - 1, END + 5)) == [(END, END + 5, None)]


def test_a_recovery_ends_every_lease_uncharged_and_settles_the_offsets_that_no_record_has() -> None:
    group = Group()
    group.take(Lease(((0, 5),), "a"), Lease(((5, 10),), "b"), Accept(((2, 3),)))
    group.groups.recover(1, (1, 99))
    group.groups.skip(END, 1 << 40)
    state = group.state
    assert (state.leases, state.leased, len(state.lent)) == ({}, 0, 0)
    assert (state.totals.returned, state.totals.charged, state.counts(0)) == (9, 0, (1, 0))
    assert list(state.settled.missing(5, 1 << 41)) == [(5, END), (1 << 40, 1 << 41)]
    state.apply(Accept(((0, END),)), LeaseId(1, 9, 0), 1 << 40)
    assert state.base == 1 << 40


def test_what_retention_drops_is_settled_leases_too() -> None:
    group = Group()
    group.take(Lease(((0, 5),), "a"), Lease(((7, 10),), "b"), Accept(((5, 8),)))
    group.groups.pass_to(4)
    assert (group.state.base, group.state.leased) == (4, 3)
    assert group.state.totals.dropped == ((Reason.RETENTION, 4),)
    group.groups.pass_to(2)
    assert group.state.totals.dropped == ((Reason.RETENTION, 4),)


@pytest.mark.parametrize(
    "frozen",
    [
        FrozenWork(1, OffsetSet(5).frozen(), 9, (), ((5, 9, LeaseId(1, 1, 0)),)),
        FrozenWork(1, OffsetSet(5).frozen(), 9, ((LeaseId(1, 1, 0), "a"),)),
        FrozenWork(1, OffsetSet(5).frozen(), 8, ((LeaseId(1, 1, 0), "a"),), ((5, 9, LeaseId(1, 1, 0)),)),
        FrozenWork(1, OffsetSet(5).frozen(), 9, ((LeaseId(1, 1, 0), "a"),), ((4, 9, LeaseId(1, 1, 0)),)),
        FrozenWork(1, OffsetSet(5).frozen(), 9, (), (), ((4, 9, Mark(1)),)),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(frozen: FrozenWork) -> None:
    with pytest.raises(ValueError):
        WorkState.thawed(frozen)
