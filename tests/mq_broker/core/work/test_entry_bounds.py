"""How much one entry of a queue group takes, and what becomes of requests that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mq_broker.core.entries import Work
from mq_broker.core.work.ranges import OFFSET_END_MAX, RANGES_MAX, Range, count, from_gaps, joined, why_wrong
from mq_broker.core.work.settling import (
    PIECES_MAX,
    Ack,
    AckWithOutputs,
    Answer,
    Backoff,
    Failed,
    Gathered,
    Rejected,
    Release,
    SendDead,
    Setting,
    Settle,
    gather,
)
from mq_broker.core.work.state import OUTBOX_MAX, WorkState
from mq_broker.core.work.steps import (
    ENTRY_BYTES_MAX,
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
    ranges_of,
    step_bytes,
    why_not_one_entry,
)
from mq_broker.storage.codec.work import work_to_wire
from mq_protocol.errors import InvalidRequest, NotLeader, Overloaded

END = 100_000
LEASED = 50_000
N = 1 << 32
LEASE = LeaseId(1, 1, 0)
SETTING = Setting(1, END, 0, N, delivery_limit=1)
LINE = OutputLine("1" * 32, 3, (b"u" * 16, b"v" * 16))


def state(*more: Step) -> WorkState:
    """Records below `LEASED` are leased by `a`."""
    made = WorkState(1, 0)
    for number, step in enumerate((Lease(((0, LEASED),), "a"), *more)):
        made.apply(step, LeaseId(1, 1, number), END)
    return made


def singles(first: int, many: int) -> tuple[Range, ...]:
    """So many ranges that do not touch."""
    return tuple((first + 2 * each, first + 2 * each + 1) for each in range(many))


def ack(*ranges: Range) -> Settle:
    return Settle(LEASE, "a", ranges, Ack())


def gathered(*settles: Settle, dead: Sequence[SendDead] = ()) -> Gathered:
    return gather(state(), settles, SETTING, dead)


# ---------------------------------------------------------------- ranges and bytes


HALF = RANGES_MAX // 2


def test_what_has_no_room_in_an_entry_is_left_in_its_order() -> None:
    settles = [ack(*singles(0, HALF)), ack(*singles(RANGES_MAX, HALF)), ack((40_000, 40_001)), ack((40_002, 40_003))]
    first = gathered(*settles)
    assert [step.ranges for step in first.steps if isinstance(step, Accept)] == [singles(0, RANGES_MAX)]
    assert len(first.settled) == 2
    assert len(gathered(*settles[2:]).settled) == 2


def test_what_could_be_in_no_entry_is_refused_and_what_fills_one_is_not() -> None:
    [answer] = gathered(ack(*singles(0, RANGES_MAX))).settled
    assert answer == Answer()
    [answer] = gathered(ack(*singles(0, RANGES_MAX + 1))).settled
    assert isinstance(answer.error, InvalidRequest)
    assert "fewer at once" in str(answer.error)


def test_the_text_of_a_failure_counts_for_the_bytes_of_an_entry() -> None:
    def fail(at: int, text: int) -> Settle:
        return Settle(LEASE, "a", ((at, at + 1),), Failed("x" * text, 0))

    bare = sum(map(step_bytes, gathered(fail(0, 0)).steps))
    room = ENTRY_BYTES_MAX - 2 * bare
    assert len(gathered(fail(0, 100), fail(1, room - 100), fail(2, 0)).settled) == 2
    assert len(gathered(fail(0, 100), fail(1, room - 99)).settled) == 1
    for more, error in ((0, type(None)), (1, InvalidRequest)):
        assert type(gathered(fail(0, ENTRY_BYTES_MAX - bare + more)).settled[0].error) is error


def test_letters_that_have_no_room_are_left_and_take_none_from_what_came_before() -> None:
    known = state(Return(((0, LEASED),), charged=True))
    letters = [SendDead(singles(first, HALF), Reason.DELIVERY_LIMIT, (LINE,)) for first in (0, RANGES_MAX, 40_000)]
    found = gather(known, (), SETTING, letters)
    assert len(found.sent) == 2
    assert [step.n for step in found.steps if isinstance(step, Send)] == [N, N + 1]
    texts = tuple([b"u" * 16] * (ENTRY_BYTES_MAX // 16))
    [answer] = gather(known, (), SETTING, [replace(letters[0], lines=(replace(LINE, uuids=texts),))]).sent
    assert isinstance(answer.error, InvalidRequest)


def test_what_a_request_is_compared_with_has_a_bound() -> None:
    def known(runs: int) -> WorkState:
        return state(Accept(singles(1, runs)), Return(((0, LEASED),)), Lease(singles(0, runs), "b"))

    whole = Settle(LeaseId(1, 1, 3), "b", ((0, LEASED),), Release())
    assert len(gather(known(40), (whole, whole), SETTING).settled) == 2
    many = known(RANGES_MAX)
    [answer] = gather(many, (whole,), SETTING).settled
    assert isinstance(answer.error, InvalidRequest)
    small = Settle(LeaseId(1, 1, 3), "b", ((0, 1),), Release())
    found = gather(many, (small, whole), SETTING)
    assert len(found.settled) == 1, "alone it is refused, in the next entry"


def in_pieces(count: int) -> tuple[Settle, Settle]:
    """Requests that are compared with so many."""
    of_another = count % 2  # three for each, and two for each of the others
    twos = singles(1_000, (count - 3 * of_another) // 2)
    return ack(*twos), Settle(LEASE, "b", singles(40_000, of_another), Ack())


@pytest.mark.parametrize(
    ("known", "settle", "pieces"),
    [
        (state(), ack((0, 10)), 2),  # a run that no step before has touched, and its lease
        (state(), ack((0, 10), (20, 30)), 4),
        (state(), Settle(LEASE, "b", ((0, 10),), Ack()), 3),  # and how the lease ended, and what of it is lost
        (state(Accept(((2, 4), (6, 8)))), Settle(LEASE, "b", ((0, 10),), Ack()), 5),
        (state(Accept(((2, 4), (6, 8)))), Settle(LEASE, "a", ((0, 10),), Release()), 5),  # and what is settled of it
        (state(Return(((0, 100),))), ack((0, 10)), 5),  # and what nobody has, which may be acknowledged late
        (state(Return(((0, 5),)), Return(((5, 100),), False, 0, "bad")), ack((0, 10)), 6),
        (state(Return(((0, 5),)), Return(((5, 100),), said=True)), ack((0, 10)), 6),
    ],
)
def test_each_piece_that_a_request_is_compared_with_counts(known: WorkState, settle: Settle, pieces: int) -> None:
    for room in (pieces, pieces - 1):
        settled = gather(known, (*in_pieces(PIECES_MAX - room), settle), SETTING).settled
        assert (len(settled) == 3) == (room == pieces)


# ---------------------------------------------------------------- the outbox


def outbox(many: int) -> tuple[Send, ...]:
    """So many decisions that are not published yet."""
    return tuple(Send((), Reason.OUTPUT, number, (LINE,)) for number in range(1, many + 1))


def test_outputs_that_have_no_room_take_no_number() -> None:
    def outputs(number: int, *ranges: Range) -> Settle:
        return Settle(LEASE, "a", ranges, AckWithOutputs((LINE,), number))

    too_much = Settle(LEASE, "a", ((0, 1),), AckWithOutputs((replace(LINE, uuids=LINE.uuids * 100_000),), 1))
    later = outputs(2, *singles(40_000, 3))
    found = gathered(too_much, outputs(1, *singles(0, RANGES_MAX - 2)), later)
    [refused, done] = found.settled
    assert isinstance(refused.error, InvalidRequest), "it could be in no entry"
    assert done == Answer(), "and the later one has no room"
    assert [(step.n, step.number) for step in found.steps if isinstance(step, Send)] == [(N, 1)]


def test_as_many_acks_with_outputs_share_an_entry_as_the_outbox_has_room_for() -> None:
    known = state(*outbox(OUTBOX_MAX - 2))
    settles = [Settle(LEASE, "a", ((each, each + 1),), AckWithOutputs((LINE,), each + 1)) for each in range(3)]
    found = gather(known, (*settles, ack((3, 4))), SETTING)
    assert [step.n for step in found.steps if isinstance(step, Send)] == [N, N + 1]
    assert [type(answer.error) for answer in found.settled] == [type(None), type(None), Overloaded, type(None)]
    again = gather(known, [settles[0], settles[0]], SETTING)
    assert (len(again.steps), again.settled) == (1, (Answer(), Answer())), "asked twice it is done once"


def test_letters_and_outputs_share_the_room_of_the_outbox() -> None:
    known = state(*outbox(OUTBOX_MAX - 2), Return(((50, 100),), charged=True))
    output = Settle(LEASE, "a", ((0, 1),), AckWithOutputs((LINE,), 1))
    dead = [SendDead(((each, each + 1),), Reason.DELIVERY_LIMIT, (LINE,)) for each in (60, 70)]
    found = gather(known, [output], SETTING, dead)
    assert [type(answer.error) for answer in found.sent] == [type(None), Overloaded]


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_settled_or_sent_is_told_why() -> None:
    assert isinstance(gathered(Settle(LeaseId(2, 1, 0), "a", ((0, 1),), Ack())).settled[0].error, NotLeader)
    assert "beyond the end" in str(gathered(ack((END, END + 1))).settled[0].error)
    [sent] = gathered(dead=(SendDead((), Reason.REJECTED, (LINE,)),)).sent
    assert "there are none" in str(sent.error)
    [sent] = gathered(dead=(SendDead(((END, END + 1),), Reason.REJECTED, (LINE,)),)).sent
    assert "beyond the end" in str(sent.error)


def test_steps_that_say_the_same_are_one_and_others_stay_in_their_order() -> None:
    outcomes = [Ack(), Ack(), Release(5), Release(5), Release(6), Rejected("a"), Rejected("b"), Ack()]
    found = gathered(*(Settle(LEASE, "a", ((at, at + 1),), each) for at, each in enumerate(outcomes)))
    assert found.steps == (
        Accept(((0, 2),)),
        Return(((2, 4),), due_us=5, said=True),
        Return(((4, 5),), due_us=6, said=True),
        Reject(((5, 6),), "a"),
        Reject(((6, 7),), "b"),
        Accept(((7, 8),)),
    )


# ---------------------------------------------------------------- when what failed is lent again


def test_pauses_grow_by_the_factor_up_to_the_longest() -> None:
    backoff = Backoff(first_ms=100, factor=3.0, most_ms=2_000)
    assert [backoff.due_us(7, failures) for failures in range(4)] == [100_007, 300_007, 900_007, 2_000_007]
    assert backoff.due_us(0, 10_000) == 2_000_000
    assert Backoff(first_ms=100, factor=1.0).due_us(0, 50) == 100_000
    assert Backoff(first_ms=0).due_us(9, 3) == 9


def test_records_that_failed_differently_often_wait_differently_long() -> None:
    known = state(Return(((0, 2),), charged=True), Lease(((0, 2),), "a"))
    settles = [Settle(LEASE, "a", ((2, 4),), Failed("x")), Settle(LeaseId(1, 1, 2), "a", ((0, 2),), Failed("x"))]
    found = gather(known, settles, replace(SETTING, backoff=Backoff(1_000, 2.0)))
    assert [(step.ranges, step.due_us) for step in found.steps if isinstance(step, Return)] == [
        (((2, 4),), 1_000_000),
        (((0, 2),), 2_000_000),
    ]


# ---------------------------------------------------------------- steps


STEPS: list[Step] = [
    Begin(5),
    Lease(singles(1 << 40, 50), "member" * 20),
    Accept(singles(0, 500)),
    Drop(((1 << 61, (1 << 61) + (1 << 60)),), Reason.PURGED),
    Return(singles(7, 3), True, (1 << 62), "ü" * 100),
    Reject(((1 << 50, (1 << 50) + 1),), "x" * 256),
    Send(singles(0, 9), Reason.OUTPUT, N, (LINE, replace(LINE, uuids=tuple([b"u" * 16] * 100))), "m" * 100, 1 << 62),
    Send((), Reason.REJECTED, N, (LINE,) * 64),
    Sent(1 << 60),
    Park(((1, 2),)),
    Reset(((1, 2),)),
    End(),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_step_takes_no_more_bytes_than_it_is_counted_for_and_not_many_fewer(step: Step) -> None:
    written = len(work_to_wire(Work("", 1, (step,))))
    assert written <= step_bytes(step) + 16
    assert step_bytes(step) < 3 * written + 100 + 8 * len(ranges_of(step))


def test_steps_that_are_too_much_or_wrong_are_no_entry() -> None:
    assert why_not_one_entry(STEPS) == ""
    assert why_not_one_entry([Accept(singles(0, RANGES_MAX))]) == ""
    assert "ranges" in why_not_one_entry([Accept(singles(0, RANGES_MAX)), Park(((1, 2),))])
    assert why_not_one_entry([Accept(singles(0, RANGES_MAX)), Begin(3)]) == ""
    assert "empty" in why_not_one_entry([Begin(1), Accept(((3, 3),))])
    reject = Reject(((1, 2),))
    full = replace(reject, error="x" * (ENTRY_BYTES_MAX - sum(map(step_bytes, [*STEPS, reject]))))
    assert why_not_one_entry([*STEPS, full]) == ""
    assert "bytes are more than" in why_not_one_entry([*STEPS, replace(full, error=full.error + "x")])


def test_ranges_are_counted_joined_and_bounded() -> None:
    assert (count(((0, 3), (5, 6))), count(())) == (4, 0)
    assert joined(((5, 6), (0, 3)), ((3, 4), (1, 2))) == ((0, 4), (5, 6))
    assert why_wrong(((0, OFFSET_END_MAX),)) == ""
    assert "beyond the end" in why_wrong(((0, OFFSET_END_MAX + 1),))
    assert why_wrong(singles(0, RANGES_MAX)) == ""
    assert len(from_gaps([0, 1] * RANGES_MAX)) == RANGES_MAX
    assert from_gaps([0, OFFSET_END_MAX]) == ((0, OFFSET_END_MAX),)
    with pytest.raises(ValueError, match="out of range"):
        from_gaps([1, OFFSET_END_MAX])
