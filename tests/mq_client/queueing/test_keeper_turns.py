"""What a member says to its leaders and when, turn by turn, with a clock that the test sets."""

from __future__ import annotations

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    InternalError,
    InvalidRequest,
    LeaseLost,
    MemberInUse,
    NotEnoughReplicas,
    OutcomeUnknown,
    UnknownTopic,
)
from mq_client.queueing.keeper import GATHER_S
from mq_client.queueing.settling import ACK, failed
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.queueing.played_keeper import Played, lent, places

PART = (StagedPart("out", 0, (b"u" * 16,), 1, "id"),)
A, F, R, E = pb.OUTCOME_ACK, pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_EXTEND


# ---------------------------------------------------------------- when outcomes go out


def test_outcomes_wait_for_others_while_there_is_something_to_work_on() -> None:
    played = Played()
    lease = played.lend(4)
    played.take()
    future = played.keeper.settle_one(lease, 0, ACK)
    assert played.rest() == pytest.approx(GATHER_S)
    played.clock.now += GATHER_S * 0.9
    assert played.sayings() == []
    played.take()
    played.keeper.settle_one(lease, 1, ACK)
    played.clock.now += GATHER_S * 0.2
    [settle] = played.sayings()
    assert settle.lines == [(A, [0, 2])], "the time runs from the first of them"
    settle.done()
    played.rest()
    assert future.result(0) is None


def test_outcomes_go_out_at_once_if_nothing_else_is_to_be_worked_on_or_if_they_are_half_of_all() -> None:
    played = Played()
    lease = played.lend(1)
    played.take()
    played.keeper.settle_one(lease, 0, ACK)
    assert [saying.lines for saying in played.sayings()] == [[(A, [0, 1])]]
    played = Played(in_flight_max=10)
    lease = played.lend(8)
    for index in range(4):
        played.take()
        played.keeper.settle_one(lease, index, ACK)
    assert played.sayings() == []
    played.take()
    played.keeper.settle_one(lease, 4, ACK)
    assert [saying.lines for saying in played.sayings()] == [[(A, [0, 5])]]


def test_what_was_refused_for_now_is_said_again_after_a_pause_and_before_all_else() -> None:
    played = Played()
    lease = played.lend(2)
    played.take()
    played.keeper.settle(lease, places(0), ACK)
    played.one().refuse(NotEnoughReplicas("1 of 2"))
    played.rest()
    pause_s = played.place.settle_after - played.clock.now
    assert 0 < pause_s < 5
    assert played.rest() == pytest.approx(min(pause_s, 1.0), abs=0.01)
    played.clock.now += pause_s * 0.9
    assert played.sayings() == []
    played.keeper.settle(lease, places(1), ACK)
    played.clock.now = played.place.settle_after
    [again] = played.sayings()
    assert again.lines == [(A, [0, 2])], "nothing was done, so it is said like the first time"
    assert played.refreshes.asked.count("b:1") == 0, "that leader leads"


# ---------------------------------------------------------------- outcomes with outputs


def test_acks_with_outputs_are_numbered_on_from_what_the_leader_tells() -> None:
    """A former process of the member may have given numbers; a lower one would be taken for done."""
    played = Played()
    first = lent(5, 0, 3)
    first.number = 41
    played.lend_unread(first)
    lease = played.read()
    for index in range(3):
        played.keeper.ack_with_outputs(lease, places(index), PART)
    for number in (42, 43, 44):
        asked = played.one()
        assert [(one.number, len(one.outputs)) for one in asked.settles] == [(number, 1)]
        asked.done()


def test_of_an_ack_with_outputs_that_is_lost_in_part_the_rest_goes_back() -> None:
    played = Played()
    lease = played.lend(3)
    future = played.keeper.ack_with_outputs(lease, places(0, 1, 2), PART)
    played.one().done(1, 1)
    played.rest()
    with pytest.raises(LeaseLost, match="3 of these records"):
        future.result(0)
    back = played.one()
    assert back.lines == [(R, [0, 3])]
    back.done(1, 1)
    played.rest()
    assert played.keeper.holdings.held == 0


def test_the_next_ack_with_outputs_waits_for_the_one_before_and_nothing_else_does() -> None:
    """A leader takes a number below the last one for done: none may be refused for now while a later one is done."""
    played = Played(in_flight_max=6)
    lease = played.lend(6)
    for index in range(2):
        played.keeper.ack_with_outputs(lease, places(index), PART)
    first = played.one()
    assert [one.number for one in first.settles] == [1]
    played.keeper.settle(lease, places(2, 3, 4), ACK)
    assert played.sayings() == []
    first.refuse(NotEnoughReplicas("1 of 2"))
    played.rest()
    played.clock.now = played.place.settle_after
    again = played.one()
    assert [one.number for one in again.settles] == [1]
    again.done()
    following = played.one()
    assert [(one.number, list(one.ranges)) for one in following.settles] == [(2, [1, 1]), (0, [2, 3])]


def test_a_queue_that_has_failed_opens_a_session_without_credit_to_say_what_became_of_its_records() -> None:
    played = Played()
    lease = played.lend(2)
    played.said()
    played.refuse(InvalidRequest("never"))
    played.pass_s(2.0)
    assert played.said() == []
    future = played.keeper.settle(lease, places(0), ACK)
    played.clock.now += GATHER_S
    requests = played.said()
    assert [request.HasField("open") for request in requests] == [True, False]
    assert not any(request.HasField("credit") for request in requests)
    [asked] = played.sayings_in("b:1", requests)
    asked.done()
    played.rest()
    assert future.result(0) is None


def test_who_is_refused_a_session_is_told_what_was_never_said_and_what_may_be_done() -> None:
    played = Played()
    lease = played.lend(3)
    said = played.keeper.settle(lease, places(0), ACK)
    assert played.one().lines == [(A, [0, 1])]
    waits = [played.keeper.settle(lease, places(1), ACK), played.keeper.extend(lease, places(2))]
    played.refuse(MemberInUse("another process"))
    for future in waits:
        assert isinstance(future.exception(0), MemberInUse)
    assert isinstance(said.exception(0), OutcomeUnknown), "its leader may have done it"


# ---------------------------------------------------------------- extensions


def test_each_lease_is_extended_after_a_third_of_its_own_time() -> None:
    played = Played(in_flight_max=20)
    played.lend(5, entry=5, lease_ms=30_000)
    played.clock.now += 1.0
    for _ in range(5):
        played.take()
    played.lend(5, entry=6, first=10, lease_ms=2_400)
    assert played.place.extend_at == pytest.approx(played.clock.now + 0.8)
    assert played.rest() == pytest.approx(0.8)
    played.clock.now += 0.79
    assert played.sayings() == []
    played.clock.now += 0.01
    [extend] = played.sayings()
    assert [(one.lease.entry, one.outcome) for one in extend.settles] == [(6, E)]
    extend.done()
    assert played.rest() == pytest.approx(0.8)


def test_what_waits_is_extended_and_what_was_begun_runs_out() -> None:
    played = Played(in_flight_max=3)
    lease = played.lend(3, lease_ms=300)
    played.take()
    for lines in ([(E, [0, 3])], [(E, [1, 2])], [(E, [1, 2])]):
        played.clock.now += 0.101
        [extend] = played.sayings()
        assert extend.lines == lines
        extend.done()
    played.rest()
    played.clock.now += 0.101
    assert [name.entry for request in played.said() for name in request.check] == [5], "whether it is there still"
    played.tell(gone=[pb.LeaseId(leader_epoch=1, entry=5)])
    played.rest()
    with pytest.raises(LeaseLost, match="offset 0"):
        played.keeper.settle_one(lease, 0, ACK)
    assert played.keeper.holdings.held == 0


def test_a_lease_that_was_begun_and_is_not_extended_any_more_is_asked_about_when_its_time_is_over() -> None:
    played = Played(in_flight_max=2)
    played.lend(2, lease_ms=3_000)
    played.take()
    played.take()
    checks = []
    for _ in range(9):
        requests = played.said()
        checks += [len(request.check) for request in requests if request.check]
        for saying in played.sayings_in("b:1", requests):
            saying.done()
        played.pass_s(0.5)
    assert checks == [1], "once in the time of a lease"


# ---------------------------------------------------------------- who leads


def test_a_topic_that_was_made_again_or_is_refused_ends_the_queue() -> None:
    played = Played()
    played.leaders.lead(1, epoch=9, topic_id="another")
    played.rest()
    assert isinstance(played.keeper.error, UnknownTopic)
    assert "made again" in str(played.keeper.error)
    played = Played()
    played.refreshes.refused = UnknownTopic("deleted")
    played.rest()
    assert not played.streams
    assert played.keeper.error is played.refreshes.refused
    with played.keeper.lock:
        played.keeper.fail(InternalError("later"))
    assert isinstance(played.keeper.error, UnknownTopic), "the first error is told"


def test_a_session_says_as_whom_and_on_which_terms_it_is_opened() -> None:
    played = Played(lease_ms=5_000, bytes_max=777, priority=7, filter_text="n > 5")
    first, second = played.said()
    opened, terms, credit = first.open, first.terms, second.credit
    assert (opened.topic, opened.group, opened.topic_id, opened.member) == ("t", "g", "x", "m")
    assert (opened.member_key, list(opened.held)) == (b"k" * 16, [])
    assert (terms.lease_ms, terms.accept, terms.working) == (5_000, False, 1)
    assert (terms.priority, terms.filter) == (7, "n > 5")
    assert (credit.records, credit.bytes) == (10, 777)


# ---------------------------------------------------------------- credit


def test_a_member_of_one_record_may_be_lent_the_next_while_the_outcome_of_the_last_is_on_its_way() -> None:
    played = Played(in_flight_max=1)
    for entry in (5, 6):
        played.lend(1, entry, first=entry, ready=True)
        played.said()
        lease, index = played.take()
        assert played.said() == [], "its leader may lend no other one meanwhile"
        played.keeper.settle_one(lease, index, ACK)
        [request] = played.said()
        [saying] = played.sayings_in("b:1", [request])
        assert saying.lines == [(A, [entry, 1])]
        assert request.credit.records == entry - 3, "so that one entry settles it and lends the next"
        saying.done()


def test_each_leader_is_to_say_when_it_has_something_whether_or_not_it_is_given_credit() -> None:
    played = Played(1, 1, 1, in_flight_max=1)
    given = [request.credit for request in played.said() if request.HasField("credit")]
    assert sorted(credit.records for credit in given) == [0, 0, 1]
    assert all(credit.watch for credit in given)


def test_a_record_that_is_taken_and_settled_has_nobody_look_who_leads() -> None:
    played = Played(in_flight_max=1)
    played.rest()
    looks = played.leaders.looks
    for entry in (5, 6):
        lease = played.lend(1, entry, first=entry, ready=True)
        played.take()
        played.keeper.settle_one(lease, 0, ACK)
        played.one().done()
        played.rest()
    assert played.leaders.looks == looks


# ---------------------------------------------------------------- what is refused


def test_a_record_has_one_outcome_and_what_is_lost_has_none() -> None:
    played = Played()
    lease = played.lend(6)
    keeper = played.keeper
    keeper.settle(lease, places(0, 1), ACK)
    for again in (
        lambda: keeper.settle_one(lease, 1, ACK),
        lambda: keeper.settle(lease, places(1, 2), ACK),
        lambda: keeper.ack_with_outputs(lease, places(1, 2), PART),
        lambda: keeper.check_unsettled(lease, places(0)),
    ):
        with pytest.raises(InvalidRequest, match="outcome already"):
            again()
    keeper.drop(lease, places(4), 5)
    for lost in (
        lambda: keeper.settle_one(lease, 4, ACK),
        lambda: keeper.settle(lease, places(4), ACK),
        lambda: keeper.extend(lease, places(4)),
        lambda: keeper.ack_with_outputs(lease, places(3, 4), PART),
    ):
        with pytest.raises(LeaseLost, match="offset 4"):
            lost()
    future = keeper.settle(lease, places(3, 4), failed("x"))
    settle = played.one()
    assert settle.lines == [(A, [0, 2]), (F, [3, 1])]
    settle.done()
    played.rest()
    with pytest.raises(LeaseLost, match="1 of these records"):
        future.result(0)
    assert [keeper.has_outcome(lease, index) for index in (0, 2)] == [True, False]
    with pytest.raises(LeaseLost, match="offset 4"):
        keeper.has_outcome(lease, 4)


# ---------------------------------------------------------------- the end


def test_closing_gives_back_what_has_no_outcome_and_ends_once_all_is_answered() -> None:
    played = Played()
    lease = played.lend(4)
    played.take()
    future = played.keeper.settle(lease, places(0), ACK)
    played.said()
    played.keeper.close_soon(Deadline(10_000))
    requests = played.said()
    assert [(request.credit.recall, request.credit.records) for request in requests] == [(True, 4)]
    [settle] = played.sayings_in("b:1", requests)
    assert settle.lines == [(A, [0, 1]), (R, [1, 3])]
    settle.done()
    played.rest()
    assert future.result(0) is None
    assert not played.ended, "it may be lent more until its leader has heard that nothing more is to be lent"
    played.tell(lease=lent(6, 4, 2), lent_bytes=20)
    [back] = played.sayings()
    assert back.lines == [(R, [4, 2])]
    back.done()
    played.tell(credit=4)
    assert [request.close for request in played.said()] == [True]
    assert played.ended
    with pytest.raises(LeaseLost, match="the queue was closed"):
        played.keeper.settle_one(lease, 1, ACK)


def test_at_the_end_whoever_waits_is_told() -> None:
    played = Played(1, 1, in_flight_max=12)
    first, second = played.lend(6), played.lend(6, partition=1)
    futures = [
        played.keeper.ack_with_outputs(first, places(0), PART),
        played.keeper.settle(second, places(0), ACK),
        played.keeper.extend(second, places(1)),
    ]
    played.clock.now += GATHER_S
    played.said()
    futures += [played.keeper.settle(first, places(2), ACK)]
    played.keeper.close_soon(Deadline(100))
    played.pass_s(1.0)
    for future in futures:
        assert isinstance(future.exception(0), OutcomeUnknown)
    assert (played.ended, played.keeper.closing, played.refreshes.stopped) == (True, True, True)
    assert played.keeper.error is None, "a queue that was closed has no error"


def test_who_closes_a_queue_with_records_in_hand_is_told_once() -> None:
    played = Played()
    lease = played.lend(4)
    for _ in range(3):
        played.take()
    played.keeper.settle(lease, places(0), ACK)
    assert [played.keeper.close_soon(Deadline(1_000)) for _ in range(2)] == [2, 0]
