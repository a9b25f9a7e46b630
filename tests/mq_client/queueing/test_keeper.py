"""A member's leases over changes of leaders, lost answers and lost leases; the leaders are played by the test."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mq_client import forks
from mq_client.errors import (
    InvalidRequest,
    InvalidSetting,
    LeaseLost,
    NotLeader,
    OutcomeUnknown,
    UnknownQueue,
    Unreachable,
)
from mq_client.queueing import keeper as keeper_module
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.cluster.harness import wait_until
from tests.mq_client.queueing.played_leaders import Leaders, Member, done, lent, said

A, R, F = pb.OUTCOME_ACK, pb.OUTCOME_RELEASE, pb.OUTCOME_FAIL


def test_outcomes_are_gathered_and_their_futures_end_when_they_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease", records_max=10, topic_id="x", member="m").answer(lent(5, 100, 4))
    records = [member.take() for _ in range(4)]
    assert [(record.offset, record.value, record.deliveries) for record in records[:2]] == [
        (100, {"n": 100}, 1),
        (101, {"n": 101}, 1),
    ]
    assert records[0].lease == (1, 5, 0)
    more = leaders.next("Lease", records_max=6)  # nothing waits any more, and so much may still be held
    assert [held.entry for held in more.request.held] == [5]
    acks = [records[2].ack(), records[0].ack()]
    failing = records[1].fail("boom", delay_ms=50)
    asked = leaders.next("Settle")
    assert said(asked) == [(A, [100, 1, 1, 1]), (F, [101, 1])]
    assert (asked.request.settles[1].error, asked.request.settles[1].delay_ms) == ("boom", 50)
    assert not acks[0].done()
    asked.answer(done(asked))
    for future in (*acks, failing):
        assert future.result(30) is None
    for record, first in ((records[0], "ack"), (records[1], "fail")):
        with pytest.raises(InvalidRequest, match=rf"has an outcome already: .* was given {first}\(\)"):
            record.release()
    with pytest.raises(InvalidSetting, match="delay_ms=5000"):
        records[3].release(delay_ms="5s")  # type: ignore[arg-type]
    member.close()


def test_a_member_never_holds_more_than_it_may_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1, 2, 3)
    member = Member(leaders, monkeypatch, in_flight_max=10)
    leaders.next("Lease", partition=0, records_max=10).answer(lent(1, 0, 4))
    first = [member.take() for _ in range(4)]
    leaders.next("Lease", partition=1, records_max=6).answer(pb.LeaseResponse())
    leaders.next("Lease", partition=2, records_max=6).answer(lent(1, 0, 6))
    leaders.nothing_within(0.1)
    future = first[0].ack()
    asked = leaders.next("Settle", partition=0)
    asked.answer(done(asked))
    future.result(30)
    leaders.nothing_within(0.1)  # less than half is free, and there is something to work on
    [member.take() for _ in range(6)]
    watches = [leaders.next("Lease", records_max=0) for _ in range(3)]
    assert [watch.request.partition for watch in watches] == [0, 1, 2]
    assert all(watch.request.wait_ms > 0 for watch in watches)
    watches[1].answer(pb.LeaseResponse(ready=True))
    leaders.next("Lease", partition=1, records_max=1).answer(lent(2, 0, 1))
    member.close()


def test_outcomes_without_an_answer_go_to_the_next_leader_and_nothing_held_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease").answer(lent(5, 0, 3))
    records = [member.take() for _ in range(3)]
    waiting = leaders.next("Lease")
    ack, release = records[0].ack(), records[1].release()
    asked = leaders.next("Settle")
    leaders.lead(2, epoch=2)
    asked.answer(Unreachable("gone"))
    waiting.answer(NotLeader("another", leader=2, leader_epoch=2))
    questions = [leaders.questions.get(timeout=30) for _ in range(2)]
    assert {question.address for question in questions} == {"b:2"}
    again = next(question for question in questions if question.method == "Settle")
    lease = next(question for question in questions if question.method == "Lease")
    assert [held.entry for held in lease.request.held] == [5]
    assert said(again) == [(A, [0, 1]), (R, [1, 1])]
    # Of the first attempt the ack was committed; the release was not before the lease ran out
    again.answer(pb.SettleResponse(answers=[pb.SettleAnswer(), pb.SettleAnswer(lost=[1, 1])]))
    assert ack.result(30) is None
    assert isinstance(release.exception(30), LeaseLost)
    last = records[2].ack()
    asked = leaders.next("Settle")
    assert asked.address == "b:2"
    asked.answer(done(asked))
    assert last.result(30) is None
    member.close()


def test_a_lost_lease_is_told_by_the_future_and_by_the_next_use(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease").answer(lent(5, 0, 2))
    first, second = member.take(), member.take()
    waiting = leaders.next("Lease")
    future = first.fail("late")
    asked = leaders.next("Settle")
    asked.answer(done(asked, 0, 1))
    with pytest.raises(LeaseLost, match="offset 0"):
        future.result(30)
    with pytest.raises(LeaseLost):
        first.ack()
    waiting.answer(pb.LeaseResponse(gone=[pb.LeaseId(leader_epoch=1, entry=5)]))
    assert list(leaders.next("Lease", records_max=10).request.held) == []
    for use in (second.ack, second.extend):
        with pytest.raises(LeaseLost, match="partition 0"):
            use()
    with pytest.raises(LeaseLost), second:
        raise AssertionError("this must not be begun")
    second.__exit__(ValueError, ValueError("what went wrong inside says more"), None)
    member.close()


PART = (StagedPart("out", 0, (b"u" * 16,), 1, "id"),)


def test_acks_with_outputs_are_numbered_on_from_what_the_leader_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former process of the member may have given numbers; a lower one would be taken for done."""
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    first = lent(5, 0, 3)
    first.number = 41
    leaders.next("Lease").answer(first)
    records = [member.take() for _ in range(3)]
    leaders.next("Lease")
    for record in records:
        member.keeper.ack_with_outputs(record._held, np.array([record._index]), PART)
    for number in (42, 43, 44):
        asked = leaders.next("Settle")
        assert [(one.number, len(one.outputs)) for one in asked.request.settles] == [(number, 1)]
        asked.answer(done(asked))
    member.close()


def test_of_an_ack_with_outputs_that_is_lost_in_part_the_rest_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease").answer(lent(5, 0, 3))
    batch = member.take_batch(3)
    leaders.next("Lease")
    future = member.keeper.ack_with_outputs(batch._held, batch._indexes, PART)
    asked = leaders.next("Settle")
    asked.answer(done(asked, 1, 1))
    with pytest.raises(LeaseLost, match="3 of these records"):
        future.result(30)
    asked = leaders.next("Settle")
    assert said(asked) == [(pb.OUTCOME_RELEASE, [0, 3])]
    asked.answer(done(asked, 1, 1))
    member.close()


def test_a_lease_whose_answer_was_lost_is_not_claimed_even_without_any_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1, 1)
    member = Member(leaders, monkeypatch, in_flight_max=2)
    leaders.next("Lease", partition=0).answer(OutcomeUnknown("no answer"))
    asked = [leaders.questions.get(timeout=30) for _ in range(2)]
    by_partition = {question.request.partition: question for question in asked}
    assert by_partition[1].request.records_max == 2, "the credit goes to the next leader meanwhile"
    assert by_partition[0].request.records_max == 0
    assert list(by_partition[0].request.held) == []
    assert by_partition[0].request.wait_ms == 0
    member.close()


def test_a_new_leader_is_told_what_is_held_even_without_any_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=2)
    leaders.next("Lease").answer(lent(5, 0, 2))
    member.take()
    leaders.lead(2, epoch=2)
    member.keeper._wake()
    asked = leaders.next("Lease", records_max=0, wait_ms=0)
    assert asked.address == "b:2"
    assert [held.entry for held in asked.request.held] == [5]
    member.close()


def test_what_waits_is_extended_and_what_was_begun_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(keeper_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=3)

    def pass_a_third() -> None:
        now[0] += 0.101  # its thread looks up by itself when the time is over

    leaders.next("Lease").answer(lent(5, 0, 3, lease_ms=300))
    record = member.take()
    ranges = []
    for _ in range(3):
        pass_a_third()
        asked = leaders.next("Extend")
        assert asked.method == "Settle"
        ranges.append(said(asked))
        asked.answer(done(asked))
    extend = pb.OUTCOME_EXTEND
    assert ranges == [[(extend, [0, 3])], [(extend, [1, 2])], [(extend, [1, 2])]]
    pass_a_third()
    # The leader is asked whether the lease is still there, though there is no credit to hand out
    asked = leaders.next("Lease", records_max=0)
    asked.answer(pb.LeaseResponse(gone=[pb.LeaseId(leader_epoch=1, entry=5)]))
    leaders.next("Lease", records_max=3)
    with pytest.raises(LeaseLost):
        record.ack()
    member.close()


def test_extending_by_hand_names_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=2)
    leaders.next("Lease").answer(lent(5, 0, 2))
    record = member.take()
    future = record.extend()
    asked = leaders.next("Extend")
    assert said(asked) == [(pb.OUTCOME_EXTEND, [0, 1])]
    asked.answer(done(asked, 0, 1))
    with pytest.raises(LeaseLost):
        future.result(30)
    with pytest.raises(LeaseLost):
        record.ack()
    member.close()


def test_closing_gives_back_what_has_no_outcome_and_asks_for_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=4)
    leaders.next("Lease").answer(lent(5, 0, 3))
    records = [member.take(), member.take()]
    ack = records[0].ack()
    asked = leaders.next("Settle")
    member.close()
    asked.answer(done(asked))
    asked = leaders.next("Settle")
    assert said(asked) == [(R, [1, 2])]
    asked.answer(done(asked))
    assert ack.result(30) is None
    with pytest.raises(LeaseLost, match="closed"):
        records[1].ack()
    member.keeper.join()
    assert member.keeper.over


def test_what_has_no_answer_at_the_end_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=1)
    leaders.next("Lease").answer(lent(5, 0, 1))
    future = member.take().ack()
    leaders.next("Settle")
    member.close(timeout_ms=100)
    with pytest.raises(OutcomeUnknown, match="closed before"):
        future.result(30)


def test_a_deleted_group_ends_the_queue_once_every_leader_must_have_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq_client.queueing.answers.DECLARED_S", 0.2)
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    while member.keeper.error is None:
        leaders.next("Lease").answer(UnknownQueue("no such queue"))
        wait_until(lambda: member.keeper.error or not leaders.questions.empty(), "it asks again, or is over")
    assert isinstance(member.keeper.error, UnknownQueue)
    member.close()


def test_a_batch_settles_rows_by_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch, in_flight_max=6)
    leaders.next("Lease").answer(lent(5, 10, 6))
    batch = member.take_batch(100)
    assert batch.offsets.tolist() == [10, 11, 12, 13, 14, 15]
    assert batch.rows.column("n").to_pylist() == batch.offsets.tolist()
    bad = batch.offsets % 3 == 0
    with pytest.raises(InvalidRequest, match="each of the 6 rows"):
        batch.ack([True])
    failing, rest = batch.fail(bad, "third"), batch.ack()
    asked = leaders.next("Settle")
    told = said(asked)
    if len(told) == 1:
        asked.answer(done(asked))
        asked = leaders.next("Settle")
        told += said(asked)
    assert told == [(F, [12, 1, 2, 1]), (A, [10, 2, 1, 2])]
    asked.answer(done(asked))
    failing.result(30)
    rest.result(30)
    assert batch.ack().result(0) is None, "there is nothing left to say"
    with pytest.raises(InvalidRequest, match="have an outcome already: leave them out of the mask"):
        batch.reject(bad, "again")
    member.close()


def test_a_process_that_was_forked_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(1)
    member = Member(leaders, monkeypatch)
    leaders.next("Lease").answer(lent(5, 0, 1))
    record = member.take()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidRequest, match="this queue was opened in the process"):
        record.ack()
    monkeypatch.setattr(forks, "_used_before_the_fork", True)
    monkeypatch.setenv(forks.VARIABLE, "0")
    with pytest.raises(InvalidRequest, match="and cannot use them"):
        record.ack()
    monkeypatch.undo()
    member.close()
