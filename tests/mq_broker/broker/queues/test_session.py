"""One member's session at a leader whose entries are committed when the test says so."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.broker.queues import session as session_module
from mq_broker.broker.queues.group.requests import Lent
from mq_broker.broker.queues.session import CreditHolds, Gone, Load, News, NumberedAnswer, Ready, Session
from mq_broker.core.work.ranges import RANGES_MAX, Ranges
from mq_broker.core.work.settling import Ack, AckWithOutputs, Settle
from mq_broker.core.work.steps import LeaseId, OutputLine
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import Overloaded, StagedBatchMissing
from mq_protocol.limits import LEASES_HELD_MAX
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import BYTES_PER_RECORD, EPOCH, Group, lease_of, rounds

UNKNOWN = LeaseId(EPOCH, 99, 0)


async def opened(group: Group, member: str = "a", *, load: Load | None = None) -> Session:
    """A session that was told what of its claims holds."""
    first = pb.WorkOpen(topic="t", group="g", member=member, member_key=b"k" * 16)
    session = Session(1, group.led, first, {}, pb.WorkTerms(), lambda *_: None, load or Load())
    session.begin(group.led_group)
    await rounds()
    return session


def give(session: Session, records: int, *, watch: bool = True, recall: bool = False) -> None:
    session.set_credit(pb.WorkCredit(records=records, watch=watch, recall=recall))


def told(session: Session) -> list[News]:
    """What is new for the member."""
    return [session.next_news() for _ in range(len(session.told))]


def acks(lease: LeaseId, *ranges: Ranges) -> list[Settle]:
    return [Settle(lease, "a", each, Ack()) for each in ranges]


@virtual_time
async def test_credit_that_is_taken_back_is_confirmed_behind_what_an_entry_lends_by_it_still() -> None:
    group = Group(10)
    session = await opened(group)
    group.led.keeps_up = False
    give(session, 5)
    await rounds()
    told(session)
    give(session, 0, recall=True)
    await rounds()
    assert told(session) == [], "an entry that lends five records is on its way"
    group.led.commit()
    await rounds()
    lent, holds, *_ = told(session)
    assert isinstance(lent, Lent)
    assert holds == CreditHolds(0)
    assert group.leased() == {"a": ((0, 5),)}


@virtual_time
async def test_a_session_is_lent_by_its_next_credit_while_an_entry_is_on_its_way() -> None:
    group = Group(10)
    session = await opened(group)
    told(session)
    group.led.keeps_up = False
    give(session, 3, watch=False)
    await rounds()
    give(session, 5, watch=False)
    await rounds()
    assert group.led.in_flight == 2
    assert told(session) == []
    group.led.commit()
    await rounds()
    lent = [news for news in told(session) if isinstance(news, Lent)]
    assert [(run.first, run.end) for news in lent for run in news.runs] == [(0, 3), (3, 5)]
    give(session, 5, watch=False)
    await rounds()
    assert group.led.in_flight == 0, "its credit is used up"


@virtual_time
async def test_settles_of_a_session_that_breaks_count_no_more_at_the_broker() -> None:
    group, load = Group(10), Load()
    session = await opened(group, load=load)
    give(session, 4, watch=False)
    await rounds()
    [lease] = group.state.leases
    group.led.keeps_up = False
    session.settle(acks(lease, ((0, 1),)))
    await rounds()
    session.settle(acks(lease, ((1, 2),), ((2, 3),)))
    assert (load.settles, group.led.in_flight) == (3, 1), "one is in an entry, and two wait"
    session.close(clean=False)
    group.led.commit()
    await rounds()
    assert load.settles == 0
    assert group.leased() == {"a": ((1, 4),)}, "what waited is not done"


@virtual_time
async def test_a_member_is_told_that_nothing_is_ready_where_its_last_lease_said_that_more_was() -> None:
    """A member gives its credit to the leaders that have more."""
    group = Group(0)
    session = await opened(group)
    give(session, 4)
    await rounds()
    assert told(session) == [Ready(False)]
    group.led.append(6)
    group.led_group.wake()
    await rounds()
    [lent] = told(session)
    assert isinstance(lent, Lent)
    assert lent.ready, "two more are"
    await lease_of(group, "b", 2)
    give(session, 8)
    await rounds()
    assert told(session) == [Ready(False)]


@virtual_time
async def test_leases_that_are_to_be_compared_while_an_entry_is_on_its_way_are_compared_behind_it() -> None:
    group = Group(10)
    session = await opened(group)
    group.led.keeps_up = False
    give(session, 5, watch=False)
    await rounds()
    session.check([UNKNOWN])
    await rounds()
    told(session)
    group.led.keeps_up = True
    group.led.commit()
    await rounds()
    assert Gone((UNKNOWN,)) in told(session)


@virtual_time
async def test_bytes_that_are_spent_to_the_last_are_a_bound_still() -> None:
    group = Group(10)
    session = await opened(group)
    session.set_credit(pb.WorkCredit(records=10, bytes=2 * BYTES_PER_RECORD))
    await rounds()
    assert group.leased() == {"a": ((0, 2),)}
    session.set_credit(pb.WorkCredit(records=10, bytes=3 * BYTES_PER_RECORD))
    await rounds()
    assert group.leased() == {"a": ((0, 2), (2, 3))}


@virtual_time
async def test_more_settles_than_may_wait_for_their_answers_are_refused_by_number() -> None:
    group = Group(10)
    session, lease = await with_a_lease(group)
    group.led.keeps_up = False
    full = session_module.UNANSWERED_MAX
    session.settle(acks(lease, *[((0, 1),)] * full))
    session.settle(acks(lease, ((2, 3),)))
    [refused] = told(session)
    assert isinstance(refused, NumberedAnswer)
    assert (refused.number, type(refused.answer.error)) == (full + 1, Overloaded)
    await rounds()
    group.led.keeps_up = True
    group.led.commit()
    session.settle(acks(lease, ((2, 3),)))
    await rounds()
    answers = [each for each in told(session) if isinstance(each, NumberedAnswer)]
    assert [(each.number, each.answer.error) for each in answers] == [
        (number, None) for number in (*range(1, full + 1), full + 2)
    ]


@virtual_time
async def test_a_session_that_does_not_read_is_lent_no_more_until_it_does() -> None:
    group = Group(0)
    session = await opened(group)
    give(session, 1_000, watch=False)
    for _ in range(120):
        group.led.append(1)
        group.led_group.wake()
        await rounds()
    assert group.state.leased < 60, "what it has not read takes memory"
    lent = 0
    while lent < 120:
        news = told(session)
        assert news
        lent += sum(run.end - run.first for each in news if isinstance(each, Lent) for run in each.runs)
        await rounds()


@virtual_time
async def test_what_waits_for_an_answer_counts_by_ranges() -> None:
    """One settle may name 8,000, and each takes memory while entries before it are written."""
    session = await opened(Group(RANGES_MAX))
    told(session)
    [wide] = acks(UNKNOWN, tuple((at, at + 1) for at in range(0, RANGES_MAX, 2)))
    session.settle([wide] * 5)
    refused = [each.answer for each in told(session) if isinstance(each, NumberedAnswer)]
    assert [type(answer.error) for answer in refused] == [Overloaded] * 5
    session.settle([wide])
    await rounds()
    [answer] = [each.answer for each in told(session) if isinstance(each, NumberedAnswer)]
    assert answer.lost == wide.ranges, "the others are not counted any more"


@virtual_time
async def test_leases_that_wait_to_be_compared_are_bounded() -> None:
    session = await opened(Group(10))
    with pytest.raises(Overloaded):
        session.check(LeaseId(EPOCH, entry, 0) for entry in range(LEASES_HELD_MAX + 1))


class _Staged:
    """What an ack with outputs waits for, until the test says what came of it."""

    def __init__(self) -> None:
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> None:
        await self.known


def ack_with_outputs(lease: LeaseId, offset: int, number: int = 1) -> Settle:
    line = OutputLine("id", 0, (bytes(16),))
    return Settle(lease, "a", ((offset, offset + 1),), AckWithOutputs((line,), number))


async def with_a_lease(group: Group) -> tuple[Session, LeaseId]:
    """A session that was lent the first five records, and has no credit left."""
    session = await opened(group)
    give(session, 5, watch=False)
    await rounds()
    [lease] = group.state.leases
    told(session)
    return session, lease


def numbered(session: Session) -> list[tuple[int, type[BaseException] | None]]:
    """The answers since the last call: of which settle, and the error."""
    answers = [each for each in told(session) if isinstance(each, NumberedAnswer)]
    return [(each.number, None if each.answer.error is None else type(each.answer.error)) for each in answers]


@virtual_time
async def test_nothing_waits_for_outputs_that_are_looked_for_but_the_next_ones() -> None:
    group = Group(10)
    session, lease = await with_a_lease(group)
    staged = _Staged()
    [first] = acks(lease, ((1, 2),))
    session.settle([ack_with_outputs(lease, 0), first], {0: staged})
    session.settle([ack_with_outputs(lease, 2, number=2)], {0: _Staged()})
    session.settle(acks(lease, ((3, 4),)))
    await rounds()
    assert numbered(session) == [(3, Overloaded), (2, None), (4, None)], "a number may not pass one that is refused"
    staged.known.set_result(None)
    await rounds()
    assert numbered(session) == [(1, None)]
    assert (group.state.totals.accepted, group.state.taken) == (3, {"a": 1})
    again = _Staged()
    again.known.set_result(None)
    session.settle([ack_with_outputs(lease, 2, number=2)], {0: again})
    await rounds()
    assert (numbered(session), group.state.taken) == ([(5, None)], {"a": 2})


@virtual_time
async def test_outputs_that_are_refused_are_so_by_number_and_leave_their_records_with_the_member() -> None:
    group = Group(10)
    session, lease = await with_a_lease(group)
    staged = _Staged()
    session.settle([ack_with_outputs(lease, 0)], {0: staged})
    staged.known.set_exception(StagedBatchMissing("it is not there"))
    await rounds()
    assert numbered(session) == [(1, StagedBatchMissing)]
    assert group.leased() == {"a": ((0, 5),)}
    session.settle(acks(lease, ((0, 1),)))
    await rounds()
    assert numbered(session) == [(2, None)]


@pytest.mark.parametrize("clean", [False, True])
@virtual_time
async def test_outputs_that_are_looked_for_as_the_session_ends_are_not_published(clean: bool) -> None:
    group, load = Group(10), Load()
    session = await opened(group, load=load)
    give(session, 5, watch=False)
    await rounds()
    [lease] = group.state.leases
    staged = _Staged()
    session.settle([ack_with_outputs(lease, 0)], {0: staged})
    await rounds()
    assert load.settles == 1
    session.close(clean=clean)
    await rounds()
    assert staged.known.cancelled()
    assert (load.settles, group.state.totals.accepted) == (0, 0)


# ---------------------------------------------------------------- credit for once


async def opened_lasting(group: Group, claims: dict[LeaseId, Ranges] | None = None) -> Session:
    first = pb.WorkOpen(topic="t", group="g", member="a", member_key=b"k" * 16, lasting=True)
    session = Session(1, group.led, first, claims or {}, pb.WorkTerms(), lambda *_: None, Load())
    session.begin(group.led_group)
    await rounds()
    return session


def ask_once(session: Session, records: int) -> None:
    session.set_credit(pb.WorkCredit(records=records, once=True))


def lent_once(session: Session) -> tuple[list[tuple[int, int]], int]:
    """What it was lent by a credit for once, and the records of the credit."""
    *before, holds = told(session)
    assert isinstance(holds, CreditHolds)
    return [(run.first, run.end) for news in before if isinstance(news, Lent) for run in news.runs], holds.records


@virtual_time
async def test_a_credit_for_once_is_void_once_something_was_lent_or_nothing_is_ready() -> None:
    group = Group(4)
    session = await opened(group)
    ask_once(session, 3)
    await rounds()
    assert lent_once(session) == ([(0, 3)], 3)
    ask_once(session, 9)
    await rounds()
    assert lent_once(session) == ([(3, 4)], 9)
    group.led.append(2)
    group.led_group.wake()
    await rounds()
    assert (told(session), group.leased()) == ([], {"a": ((0, 3), (3, 4))})
    session.close(clean=True)
    await rounds()
    ask_once(other := await opened(Group(0)), 5)
    await rounds()
    assert lent_once(other) == ([], 5)


@virtual_time
async def test_what_a_credit_for_once_has_lent_is_told_before_it_is_said_to_be_void() -> None:
    group = Group(4)
    session = await opened(group)
    told(session)
    group.led.keeps_up = False
    ask_once(session, 2)
    await rounds()
    assert told(session) == []
    group.led.commit()
    await rounds()
    assert lent_once(session) == ([(0, 2)], 2)


@virtual_time
async def test_of_a_lasting_member_what_it_does_not_name_goes_back_with_its_first_credit_and_that_is_committed() -> (
    None
):
    group = Group(9)
    kept = await lease_of(group, "a", 3)
    await lease_of(group, "a", 3, held=[kept])
    session = await opened_lasting(group, {kept: ()})
    session.settle(acks(kept, ((0, 1),)))
    await rounds()
    assert numbered(session) == [(1, None)]
    assert group.leased() == {"a": ((1, 3), (3, 6))}, "nothing is returned by saying what became of records"
    group.led.keeps_up = False
    session.check([kept])
    ask_once(session, 0)
    await rounds()
    assert told(session) == []
    group.led.commit()
    await rounds()
    assert lent_once(session) == ([], 0)
    assert group.leased() == {"a": ((1, 3),)}


@pytest.mark.parametrize("clean", [False, True])
@virtual_time
async def test_what_a_lasting_member_has_outlives_its_session(clean: bool) -> None:
    group = Group(6, resume_ms=100)
    session = await opened_lasting(group)
    ask_once(session, 2)
    await rounds()
    [(lease, _)] = [(news.lease, news.runs) for news in told(session) if isinstance(news, Lent)]
    assert lease is not None
    session.close(clean=clean)
    group.pass_ms(5_000)
    await rounds()
    assert group.leased() == {"a": ((0, 2),)}
    again = await opened_lasting(group)
    again.check([lease, UNKNOWN])
    ask_once(again, 1)
    await rounds()
    gone, *_ = told(again)
    assert gone == Gone((UNKNOWN,))
    assert group.leased() == {"a": ((0, 2), (2, 3))}
    group.pass_ms(60_000)
    await rounds()
    assert group.leased() == {}, "it has its lease's time"
