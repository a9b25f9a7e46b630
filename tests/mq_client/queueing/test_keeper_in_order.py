"""A member of a queue whose records are worked on one after another; the leaders are played by the test."""

from __future__ import annotations

import numpy as np
import pytest

from mq_client.errors import InvalidRequest, LeaseLost, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_leaders import WAIT_S, Asked, Leaders, Member, done, lent, said

A, F = pb.OUTCOME_ACK, pb.OUTCOME_FAIL


def in_order(entry: int, first: int, count: int) -> pb.LeaseResponse:
    told = lent(entry, first, count)
    told.order = pb.ORDER_ALL
    return told


def question(leaders: Leaders, outcome: pb.Outcome.ValueType) -> Asked:
    """The next one that says this of something; others wait for their answer."""
    while True:
        asked = leaders.questions.get(timeout=WAIT_S)
        if asked.method == "Settle" and asked.request.settles[0].outcome == outcome:
            return asked


def free(member: Member) -> bool:
    """Whether something may be handed out."""
    with member.keeper.lock:
        return bool(member.keeper.holdings.shelf)


def test_the_next_record_is_handed_out_once_the_one_before_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease").answer(in_order(5, 0, 3))
    first = member.take()
    assert not free(member)
    first.ack()
    assert member.take().offset == 1, "before the answer"
    member.close()


def test_when_a_record_goes_back_nothing_of_its_key_is_begun_before_the_answer_and_what_went_with_it_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(in_order(5, 0, 4))
    future = member.take().fail("boom")
    asked = leaders.next("Settle")
    assert said(asked) == [(F, [0, 1])]
    assert not free(member)
    answer = done(asked)
    answer.answers[0].pulled.add(lease=pb.LeaseId(leader_epoch=1, entry=5), ranges=[1, 2])
    asked.answer(answer)
    assert future.result(30) is None
    again = leaders.next("Lease", records_max=3)
    assert [held.entry for held in again.request.held] == [5]
    assert member.take().offset == 3, "what it was not told to let go it has still"
    member.close()


def test_after_a_lost_record_the_leader_is_asked_which_of_the_others_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(in_order(5, 0, 4))
    first = member.take()
    future = first.ack()
    second = member.take()
    asked = question(leaders, A)
    assert not free(member)
    second_future = second.ack()
    third = member.take()
    asked.answer(done(asked, 0, 1))
    with pytest.raises(LeaseLost):
        future.result(30)
    extension = question(leaders, pb.OUTCOME_EXTEND)
    assert said(extension) == [(pb.OUTCOME_EXTEND, [3, 1])]
    third.ack()
    assert not free(member), "it is not known yet whether the last one is this member's"
    extension.answer(done(extension, 3, 1))
    asked = question(leaders, A)
    asked.answer(done(asked))
    assert second_future.result(30) is None
    assert not free(member)
    member.close()


def test_records_lent_before_a_loss_was_told_are_asked_about_before_they_are_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(in_order(5, 0, 2))
    record = member.take()
    lending = leaders.next("Lease", records_max=2)
    future = record.ack()
    asked = question(leaders, A)
    asked.answer(done(asked, 0, 1))
    with pytest.raises(LeaseLost):
        future.result(30)
    extension = question(leaders, pb.OUTCOME_EXTEND)
    assert said(extension) == [(pb.OUTCOME_EXTEND, [1, 1])]
    lending.answer(in_order(6, 2, 1))
    extension.answer(done(extension))
    more = question(leaders, pb.OUTCOME_EXTEND)
    assert said(more) == [(pb.OUTCOME_EXTEND, [1, 1]), (pb.OUTCOME_EXTEND, [2, 1])]
    assert not free(member)
    more.answer(done(more))
    assert member.take().offset == 1
    member.close()


def test_after_a_return_whose_first_answer_was_lost_the_leader_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(in_order(5, 0, 4))
    future = member.take().fail("boom")
    leaders.next("Settle").answer(Unreachable("gone"))
    again = question(leaders, F)
    assert said(again) == [(F, [0, 1])]
    again.answer(done(again))
    assert future.result(30) is None
    extension = question(leaders, pb.OUTCOME_EXTEND)
    assert said(extension) == [(pb.OUTCOME_EXTEND, [1, 3])]
    assert not free(member)
    extension.answer(done(extension, 1, 2))
    more = question(leaders, pb.OUTCOME_EXTEND)
    assert said(more) == [(pb.OUTCOME_EXTEND, [3, 1])], "others were lost since the question was sent"
    assert not free(member)
    more.answer(done(more))
    assert member.take().offset == 3
    member.close()


def test_rows_of_a_key_are_acknowledged_with_outputs_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(in_order(5, 0, 4))
    batch = member.take_batch(4)
    part = StagedPart("out", 0, (b"u" * 16,), 1, "o")
    with pytest.raises(InvalidRequest, match="offset 0 has the key of a later row"):
        member.keeper.ack_with_outputs(batch._held, np.array([1]), (part,))
    member.keeper.ack_with_outputs(batch._held, np.array([0, 1]), (part,))
    assert said(question(leaders, A)) == [(A, [0, 2])]
    member.close()
