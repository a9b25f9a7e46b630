"""What becomes of requests to settle, one rule a test, and a random walk against a judge that looks at each record."""

from __future__ import annotations

import random

import pytest

from mq_broker.core.work.endings import How
from mq_broker.core.work.ranges import Ranges, joined
from mq_broker.core.work.settling import (
    Ack,
    AckWithOutputs,
    Answer,
    Backoff,
    Failed,
    Gathered,
    Outcome,
    Rejected,
    Release,
    Setting,
    Settle,
    gather,
)
from mq_broker.core.work.state import WorkGroups, WorkState
from mq_broker.core.work.steps import (
    Accept,
    Begin,
    Lease,
    LeaseId,
    OutputLine,
    Park,
    Reason,
    Reject,
    Return,
    Send,
    Step,
)
from mq_protocol.errors import InvalidRequest, NotLeader
from tests.mq_broker.core.work.model import Model, Record, offsets_of
from tests.mq_broker.core.work.test_walk import random_ranges

END = 1_000
FIRST = LeaseId(1, 2, 0)
"""Records 0 to 9, of member a. Records 10 to 19 are of b, by SECOND; 20 to 29 came back from a; the rest is fresh."""
SECOND = LeaseId(1, 2, 1)
BACK = LeaseId(1, 2, 2)
FORMER = LeaseId(1, 1, 0)
"""Of a life before."""
LINES = (OutputLine("id", 1, (bytes(16),)),)
N = 1 << 32


class Group:
    """A group whose leader is of epoch 1."""

    def __init__(self) -> None:
        self.groups = WorkGroups()
        self.index = 0
        self.take(Begin(0))
        self.take(Lease(((0, 10),), "a"), Lease(((10, 20),), "b"), Lease(((20, 30),), "a"), Return(((20, 30),)))

    @property
    def state(self) -> WorkState:
        return self.groups["g"]

    def take(self, *steps: Step) -> None:
        self.index += 1
        self.groups.apply("g", 1, steps, 1, self.index, (0, END))

    def gather(self, *settles: Settle, next_n: int = N) -> Gathered:
        setting = Setting(1, END, now_us=0, next_n=next_n)
        return gather(self.state, settles, setting)

    def ask(self, ranges: Ranges, outcome: Outcome, lease: LeaseId = FIRST, member: str = "a") -> Answer:
        """Settle by an entry of its own."""
        gathered = self.gather(Settle(lease, member, ranges, outcome))
        self.take(*gathered.steps)
        (answer,) = gathered.settled
        return answer


@pytest.mark.parametrize("outcome", [Ack(), Release(), Failed(), Rejected()])
def test_what_is_in_the_lease_is_done_and_what_it_has_acknowledged_is_acknowledged_and_nothing_else(
    outcome: Outcome,
) -> None:
    group = Group()
    lost = () if isinstance(outcome, Ack) else ((0, 4),)
    assert group.ask(((0, 4),), Ack()) == Answer()
    assert group.state.base == 4
    gathered = group.gather(Settle(FIRST, "a", ((0, 4),), outcome))
    assert (gathered.steps, gathered.settled) == ((), (Answer(lost),))
    assert group.ask(((0, 10),), outcome) == Answer(lost)
    assert group.state.leased == 10


@pytest.mark.parametrize("outcome", [Ack(), Release(), Failed(), Rejected(), AckWithOutputs(LINES, 1)])
def test_what_is_leased_to_anybody_else_is_lost_always(outcome: Outcome) -> None:
    group = Group()
    for lease, member in ((FIRST, "a"), (SECOND, "a"), (FIRST, "b")):
        assert group.ask(((10, 12),), outcome, lease, member).lost == ((10, 12),)
    assert group.ask(((0, 2),), outcome, FIRST, "b").lost == ((0, 2),), "another member's lease id"
    assert group.state.leased == 20


@pytest.mark.parametrize("outcome", [Release(), Failed(), Rejected(), AckWithOutputs(LINES, 1)])
def test_of_what_nobody_has_only_a_plain_ack_is_welcome(outcome: Outcome) -> None:
    group = Group()
    lease = BACK
    assert group.ask(((20, 22),), outcome, lease).lost == ((20, 22),)
    assert group.state.totals.accepted == 0
    assert group.ask(((20, 22),), Ack(), lease) == Answer()
    assert group.state.totals.accepted == 2


def test_a_record_that_was_never_lent_is_settled_by_nobody() -> None:
    group = Group()
    group.take(Park(((40, 41),)))
    assert group.ask(((28, 50),), Ack(), BACK).lost == ((30, 50),)


def test_each_record_of_a_request_is_judged_by_itself() -> None:
    group = Group()
    group.take(Accept(((11, 12), (35, 36))))
    assert group.ask(((5, 40),), Ack()).lost == ((10, 11), (12, 35), (36, 40))
    assert list(group.state.settled.missing(0, 40)) == [(0, 5), (10, 11), (12, 35), (36, 40)]
    assert group.ask(((5, 40),), Ack(), BACK).lost == ((10, 11), (12, 20), (30, 35), (36, 40))


def test_requests_are_judged_on_the_state_that_the_steps_before_them_leave() -> None:
    group = Group()
    gathered = group.gather(
        Settle(FIRST, "a", ((0, 3),), Failed("bad", 9)),
        Settle(FIRST, "a", ((2, 5),), Release()),  # record 2 went back
        Settle(FIRST, "a", ((1, 2),), Failed("bad", 9)),  # said again
        Settle(FIRST, "a", ((1, 2),), Ack()),  # it failed
        Settle(BACK, "a", ((20, 21),), Ack()),  # late, and welcome
        Settle(BACK, "a", ((20, 21),), Ack()),  # said again
        Settle(BACK, "a", ((20, 21),), Rejected()),  # settled already
        Settle(FIRST, "a", ((0, 1), (5, 6)), AckWithOutputs(LINES, 1)),  # record 0 went back
        Settle(FIRST, "a", ((5, 7),), AckWithOutputs(LINES, 2)),
        Settle(FIRST, "a", ((5, 7),), AckWithOutputs(LINES, 2)),  # asked again
        Settle(FIRST, "a", ((6, 8),), Ack()),
    )
    lost: list[Ranges] = [(), ((2, 3),), (), ((1, 2),), (), (), ((20, 21),), ((0, 1), (5, 6)), (), (), ()]
    assert [answer.lost for answer in gathered.settled] == lost
    assert gathered.steps == (
        Return(((0, 3),), True, 9, "bad", said=True),
        Return(((3, 5),), said=True),
        Accept(((20, 21),), late=BACK),
        Send(((5, 7),), Reason.OUTPUT, N, LINES, "a", 2),
        Accept(((7, 8),)),
    )


def test_steps_that_say_the_same_of_different_records_are_one() -> None:
    settles = [Settle(FIRST, "a", ((offset, offset + 1),), Ack()) for offset in (5, 2, 3, 9)]
    assert Group().gather(*settles).steps == (Accept(((2, 4), (5, 6), (9, 10))),)


def test_outputs_are_decided_with_their_lease_once_and_with_all_of_their_records() -> None:
    group = Group()
    assert group.ask(((8, 12),), AckWithOutputs(LINES, 1)).lost == ((8, 12),)
    assert not group.state.outbox
    assert group.ask(((8, 10),), AckWithOutputs(LINES, 1)) == Answer()
    assert group.ask(((8, 10),), AckWithOutputs(LINES, 1)) == Answer(), "asked again"
    assert list(group.state.outbox) == [N]
    assert isinstance(group.ask((), AckWithOutputs(LINES, 2)).error, InvalidRequest)


def test_outputs_with_a_number_that_was_taken_are_lost_unless_their_records_are_settled() -> None:
    group = Group()
    assert group.ask(((8, 10),), AckWithOutputs(LINES, 7)) == Answer()
    assert group.ask(((4, 6),), AckWithOutputs(LINES, 5)).lost == ((4, 6),), "of a process whose place was taken"
    gathered = group.gather(
        Settle(FIRST, "a", ((0, 2),), Release()),
        Settle(FIRST, "a", ((4, 6),), AckWithOutputs(LINES, 8)),
        Settle(FIRST, "a", ((4, 6),), AckWithOutputs(LINES, 8)),
        Settle(FIRST, "a", ((0, 2),), AckWithOutputs(LINES, 8)),
    )
    assert [answer.lost for answer in gathered.settled] == [(), (), (), ((0, 2),)]
    assert list(group.state.outbox) == [N]


@pytest.mark.parametrize("outcome", [Ack(), Release(), Failed(), Rejected(), AckWithOutputs(LINES, 1)])
def test_a_lease_of_a_former_life_settles_nothing_of_the_present_one(outcome: Outcome) -> None:
    group = Group()
    for step in (Begin(0), Lease(((0, 10),), "a"), Return(((0, 10),), True)):
        group.index += 1
        group.groups.apply("g", 2, [step], 1, group.index, (0, END))
    settle = Settle(FIRST, "a", ((0, 2),), outcome)
    assert group.gather(settle).settled[0].lost == ((0, 2),)
    group.groups = WorkGroups.thawed(group.groups.frozen())
    assert group.gather(settle).settled[0].lost == ((0, 2),), "a leader that began with a snapshot knows it too"
    assert group.gather(Settle(LeaseId(1, 4, 0), "a", ((0, 2),), Ack())).settled == (Answer(),), "its own late ack"


def test_a_lease_of_a_future_epoch_is_for_another_leader_and_wrong_ranges_are_refused_whole() -> None:
    group = Group()
    assert isinstance(group.ask(((0, 1),), Ack(), LeaseId(2, 1, 0)).error, NotLeader)
    for ranges in (((0, 2), (1, 3)), ((3, 4), (0, 1)), ((2, 2),), ((0, END + 1),), ((0, 1),) * 50_001):
        assert isinstance(group.ask(ranges, Ack()).error, InvalidRequest)
    assert group.state.totals.accepted == 0


def test_a_failed_record_comes_back_later_each_time_up_to_a_bound() -> None:
    backoff = Backoff(1_000, 2, 5_000)
    assert [backoff.due_us(7, failures) for failures in (0, 1, 2, 3, 10**6)] == [
        7 + seconds * 1_000_000 for seconds in (1, 2, 4, 5, 5)
    ]
    group = Group()
    group.take(Return(((0, 2),), True), Lease(((0, 2),), "a"))
    gathered = group.gather(Settle(LeaseId(1, 3, 1), "a", ((0, 2),), Failed("x")))
    assert gathered.steps == (Return(((0, 2),), True, 2_000_000, "x", said=True),)
    mixed = gather(
        group.state,
        [Settle(FIRST, "a", ((2, 3),), Failed("x")), Settle(LeaseId(1, 3, 1), "a", ((1, 2),), Failed("x"))],
        Setting(1, END, 0, N),
    )
    assert [step.due_us for step in mixed.steps if isinstance(step, Return)] == [1_000_000, 2_000_000]


def how_of(settle: Settle) -> How:
    hows = {Ack: How.ACCEPTED, Release: How.RELEASED, Failed: How.FAILED, Rejected: How.REJECTED}
    return hows[type(settle.outcome)] if settle.said else How.TAKEN


def naive(model: Model, settle: Settle, limit: int) -> tuple[set[int], set[int], set[int]]:
    """The records of the request that are the member's, those that it acknowledges late, and those that are lost,
    record by record."""
    mine, late, lost = set(), set(), set()
    for offset in offsets_of(settle.ranges):
        record = model.records[offset]
        if record.lease == settle.lease and model.members[settle.lease] == settle.member:
            mine.add(offset)
        elif record.ended.get(settle.lease) is not how_of(settle):
            (late if record.welcomes(settle.lease, how_of(settle), limit) else lost).add(offset)
    return mine, late, lost


def step_of(settle: Settle, done: Ranges, late: LeaseId | None) -> Step:
    match settle.outcome:
        case Ack():
            return Accept(done, late)
        case Release(delay_us):
            return Return(done, False, delay_us, said=settle.said)
        case Failed(error, delay_us):
            return Return(done, True, delay_us or 0, error, settle.said)
        case Rejected(error):
            return Reject(done, error)
        case AckWithOutputs():
            raise AssertionError("not walked")


@pytest.mark.parametrize("seed", range(6))
def test_a_whole_entry_leaves_the_state_that_its_requests_leave_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    end = 60
    limit = rng.choice([0, 3])
    groups, model = WorkGroups(), Model({offset: Record() for offset in range(end)})
    groups.apply("g", 1, [Begin(0)], 1, 1, (0, end))
    had: dict[LeaseId, tuple[str, set[int]]] = {}
    for index in range(2, 60):
        model.records |= {offset: Record() for offset in range(end, end + 10)}
        end += 10
        state = groups["g"]
        settles = []
        for _ in range(rng.choice([0, 1, 3, 8])):
            lease = rng.choice([*had, FORMER])
            outcome = rng.choice([Ack(), Ack(), Release(), Failed("bad", 0), Rejected("no")])
            said = rng.random() < 0.6 or isinstance(outcome, Ack | Rejected)
            member = had[lease][0] if lease in had and (not said or rng.random() < 0.9) else "x"
            records = set(range(end)) if lease == FORMER or rng.random() < 0.3 else had[lease][1]
            ranges = [(a, min(b, end)) for a, b in random_ranges(rng, state.base // 2, end) if a < end]
            some = sorted(records & set(offsets_of(tuple(ranges))))
            # Of what it never had a lease that is known whole is believed to have acknowledged it
            some = [o for o in some if lease == FORMER or o in had[lease][1] or not model.records[o].settled]
            settles.append(Settle(lease, member, joined((o, o + 1) for o in some), outcome, said))
        gathered = gather(state, settles, Setting(1, end, 0, N, delivery_limit=limit))
        assert len(gathered.settled) == len(settles)
        for settle, answer in zip(settles, gathered.settled, strict=True):
            mine, late, lost = naive(model, settle, limit)
            if settle.said:
                # The records that an entry takes from its member in the same entry nobody acknowledges late
                assert lost <= set(offsets_of(answer.lost)) <= lost | late
            for offset in sorted(mine | late - set(offsets_of(answer.lost))):
                of = settle.lease if offset in late else None
                model.apply(step_of(settle, ((offset, offset + 1),), of), LeaseId(1, index, 0))
        leases = [Lease(((low, min(low + 9, end)),), rng.choice("abc")) for low in rng.sample(range(end), 3)]
        steps = (*gathered.steps, *leases)
        ahead, before = state.copy(), state.frozen()
        for number, step in enumerate(steps):
            ahead.apply(step, LeaseId(1, index, number), end)
        assert state.frozen() == before
        groups.apply("g", 1, steps, 1, index, (0, end))
        assert ahead.frozen() == state.frozen(), "the leader's view is what is committed later"
        for number, lease_step in enumerate(leases, len(gathered.steps)):
            lease = LeaseId(1, index, number)
            lent = {offset for first, past, its in state.lent if its == lease for offset in range(first, past)}
            if lent := lent - {offset for offset in lent if offset in state.settled}:
                model.apply(Lease(joined((o, o + 1) for o in sorted(lent)), lease_step.member), lease)
                had[lease] = lease_step.member, lent
        model.agrees_with(state, limit)
