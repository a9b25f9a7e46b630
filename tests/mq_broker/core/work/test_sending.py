"""Dead letters are decided by an entry of their group only if all of their records are doomed still when it is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.work.settling import Ack, Answer, Gathered, SendDead, Setting, Settle, gather
from mq_broker.core.work.state import OUTBOX_MAX, WorkState
from mq_broker.core.work.steps import (
    Accept,
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
from mq_protocol.errors import Overloaded

LINE = OutputLine("0" * 32, 0, (bytes(16),))
N = 3 << 32
SETTING = Setting(3, 100, 0, N, delivery_limit=2)
LEASE = LeaseId(3, 1, 0)


def state(*steps: Step) -> WorkState:
    """Records 0 to 9 were lent to `a`; 2 and 4 are rejected, 6 failed twice."""
    made = WorkState(1, 0)
    began: tuple[Step, ...] = (
        Lease(((6, 7),), "a"),
        Return(((6, 7),), True),
        Lease(((0, 10),), "a"),
        Reject(((2, 3), (4, 5)), "bad"),
        Return(((6, 7),), True),
    )
    for number, step in enumerate((*began, *steps)):
        made.apply(step, LeaseId(3, 1, number), 100)
    return made


def decided(known: WorkState, *ranges: tuple[int, int], settles: tuple[Settle, ...] = ()) -> Gathered:
    return gather(known, settles, SETTING, (SendDead(ranges, Reason.REJECTED, (LINE,)),))


def test_doomed_records_are_settled_and_their_letters_decided_by_one_step() -> None:
    known = state()
    gathered = decided(known, (2, 3), (4, 5), (6, 7))
    [step] = gathered.steps
    assert step == Send(((2, 3), (4, 5), (6, 7)), Reason.REJECTED, N, (LINE,))
    assert (gathered.sent[0].lost, gathered.sent[0].error) == ((), None)
    known.apply(step, LeaseId(3, 2, 0), 100)
    assert (known.totals.dead, known.outbox[N].lines) == (3, (LINE,))
    assert not list(known.doomed(2))
    assert decided(known, (2, 3)).sent[0].lost == ((2, 3),), "it is settled: it is not sent again"


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Drop(((4, 5),), Reason.PURGED), "purged"),
        (Reset(((4, 5),)), "reset"),
        (Park(((4, 5),)), "parked"),
        (Accept(((4, 5),)), "accepted late"),
    ],
)
def test_of_letters_of_which_one_record_is_not_doomed_any_more_none_is_sent(step: Step, what: str) -> None:
    gathered = decided(state(step), (2, 3), (4, 5))
    assert (gathered.steps, gathered.sent[0].lost) == ((), ((2, 3), (4, 5))), what


def test_neither_what_is_lent_nor_what_is_fresh_nor_what_may_be_lent_again_is_sent() -> None:
    for ranges in (((0, 3),), ((10, 11),), ((2, 4),)):
        assert decided(state(), *ranges).steps == ()
    lenient = replace(SETTING, delivery_limit=3)
    send = SendDead(((6, 7),), Reason.DELIVERY_LIMIT, (LINE,))
    assert gather(state(), (), lenient, (send,)).steps == (), "the limit was raised meanwhile"


def test_a_late_ack_in_the_same_entry_comes_first_and_none_undoes_what_is_doomed() -> None:
    lease = LeaseId(3, 1, 2)
    late = Settle(lease, "a", ((4, 5), (6, 7), (8, 9)), Ack())
    send = SendDead(((8, 9),), Reason.EXPIRED, (LINE,))
    gathered = gather(state(Return(((8, 9),))), (late,), SETTING, (send,))
    assert gathered.settled == (Answer(lost=((4, 5), (6, 7))),)
    assert gathered.steps == (Accept(((8, 9),), late=lease),)
    assert gathered.sent[0].lost


def test_letters_wait_while_the_outbox_is_full() -> None:
    known = state()
    for number in range(OUTBOX_MAX):
        known.apply(Send((), Reason.REJECTED, number + 1, (LINE,)), LEASE, 100)
    assert isinstance(decided(known, (2, 3)).sent[0].error, Overloaded)
    known.apply(Sent(1), LEASE, 100)
    assert decided(known, (2, 3)).sent[0].error is None


def test_numbers_ascend_over_the_letters_of_one_entry() -> None:
    sends = tuple(SendDead((each,), Reason.REJECTED, (LINE,)) for each in ((2, 3), (4, 5)))
    gathered = gather(state(), (), SETTING, sends)
    assert [step.n for step in gathered.steps if isinstance(step, Send)] == [N, N + 1]
    twice = gather(state(), (), SETTING, (sends[0], sends[0]))
    assert len(twice.steps) == 1
    assert twice.sent[1].lost == ((2, 3),)
