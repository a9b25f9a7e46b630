"""What a member asks of its leaders and when, turn by turn, with a clock that the test sets."""

from __future__ import annotations

import math
import threading

import pytest

from mq_client.cluster.connection import TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    InternalError,
    InvalidRequest,
    LeaseLost,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    UnknownTopic,
    Unreachable,
)
from mq_client.queueing import keeper as keeper_module
from mq_client.queueing.planning import GATHER_S
from mq_client.queueing.settling import ACK, RANGES_MAX, RELEASE, failed
from mq_protocol import mq_pb2 as pb
from mq_protocol.manifest import StagedPart
from tests.mq_client.cluster.scripted import told, topic_info
from tests.mq_client.queueing.played_keeper import Played, places
from tests.mq_client.queueing.played_leaders import SCHEMA, done, lent, said

PART = (StagedPart("out", 0, (b"u" * 16,), 1, "id"),)


# ---------------------------------------------------------------- when outcomes go out


def test_outcomes_wait_for_others_while_there_is_something_to_work_on(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    played.take()
    future = played.keeper.settle_one(lease, 0, ACK)
    assert played.rest() == pytest.approx(GATHER_S)
    played.clock.now += GATHER_S * 0.9
    assert played.asked() == []
    played.take()
    played.keeper.settle_one(lease, 1, ACK)
    played.clock.now += GATHER_S * 0.2
    settle = played.one("Settle")
    assert said(settle) == [(pb.OUTCOME_ACK, [0, 2])], "the time runs from the first of them"
    settle.answer(done(settle))
    played.rest()
    assert future.result(0) is None


def test_outcomes_go_out_at_once_if_nothing_else_is_to_be_worked_on_or_if_they_are_half_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    played.asked()
    played.take()
    played.keeper.settle_one(lease, 0, ACK)
    assert "Settle" in [asked.method for asked in played.asked()]
    played = Played(monkeypatch, in_flight_max=10)
    lease = played.lend(8)
    played.asked()
    for index in range(4):
        played.take()
        played.keeper.settle_one(lease, index, ACK)
    assert played.asked() == []
    played.take()
    played.keeper.settle_one(lease, 4, ACK)
    assert [asked.method for asked in played.asked()] == ["Settle"]


def test_whoever_says_something_wakes_the_thread_and_not_more_often_than_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, in_flight_max=20)
    lease = played.lend(12)
    played.asked()

    def wakes(act: object) -> bool:
        before = played.work.woken
        assert callable(act)
        act()
        return played.work.woken > before

    keeper = played.keeper
    assert wakes(lambda: keeper.settle_one(lease, 0, ACK))
    assert not wakes(lambda: keeper.settle_one(lease, 1, ACK)), "it is gathered with the first"
    assert wakes(lambda: keeper.settle(lease, places(2, 3), RELEASE))
    assert wakes(lambda: keeper.ack_with_outputs(lease, places(4), PART))
    assert wakes(lambda: keeper.extend(lease, places(5)))
    assert wakes(lambda: keeper.drop(lease, places(6), 4))
    assert wakes(lambda: keeper.say(lease, places(7), RELEASE))
    assert wakes(keeper.wake)
    assert wakes(keeper._wake)
    assert wakes(lambda: keeper.close_soon(Deadline(1_000)))
    assert not wakes(lambda: keeper.close_soon(Deadline(1_000)))


def test_what_was_refused_for_now_is_said_again_after_a_pause_and_before_all_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    lease = played.lend(2)
    played.asked()
    played.take()
    played.keeper.settle(lease, places(0), ACK)
    played.clock.now += GATHER_S
    settle = played.one("Settle")
    settle.answer(NotEnoughReplicas("1 of 2"))
    played.rest()
    pause_s = played.place.settle_after - played.clock.now
    assert 0 < pause_s < 5
    assert played.rest() == pytest.approx(min(pause_s, 1.0), abs=0.01)
    played.clock.now += pause_s * 0.9
    assert played.asked() == []
    played.keeper.settle(lease, places(1), ACK)
    played.clock.now = played.place.settle_after
    again = played.one("Settle")
    assert said(again) == [(pb.OUTCOME_ACK, [0, 2])], "nothing was done, so it is said like the first time"
    assert played.refreshes.asked.count("b:1") == 0, "that leader leads"


# ---------------------------------------------------------------- extensions


def test_each_lease_is_extended_after_a_third_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=20)
    played.lend(5, entry=5, lease_ms=30_000)
    played.clock.now += 1.0
    for _ in range(5):
        played.take()
    played.lend(5, entry=6, first=10, lease_ms=2_400)
    played.asked()
    assert played.place.extend_at == pytest.approx(played.clock.now + 0.8)
    assert played.rest() == pytest.approx(0.8)
    played.clock.now += 0.79
    assert played.asked() == []
    played.clock.now += 0.01
    extend = played.one("Settle")
    assert [(one.lease.entry, one.outcome) for one in extend.request.settles] == [(6, pb.OUTCOME_EXTEND)]
    extend.answer(done(extend))
    assert played.rest() == pytest.approx(0.8)


def test_an_extension_that_failed_is_said_again_after_a_pause_and_no_second_one_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    lease = played.lend(5)
    played.asked()
    played.keeper.extend(lease, places(0))
    extend = played.one("Settle")
    played.keeper.extend(lease, places(1))
    assert played.asked() == [], "one at a time"
    extend.answer(OutcomeUnknown("no answer"))
    played.rest()
    assert played.place.extend_after > played.clock.now
    assert played.asked() == []
    played.clock.now = played.place.extend_after
    again = played.one("Settle")
    assert said(again) == [(pb.OUTCOME_EXTEND, [0, 1]), (pb.OUTCOME_EXTEND, [1, 1])]


def test_a_lease_that_was_begun_and_is_not_extended_any_more_is_asked_about_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, in_flight_max=2)
    played.lend(2, lease_ms=3_000)
    played.take()
    played.take()
    for _ in range(3):
        for asked in played.asked():
            asked.answer(done(asked))
        played.pass_s(1.0)
    kinds: list[tuple[str, int]] = []
    for _ in range(3):
        for asked in played.asked():
            kinds.append((asked.method, len(asked.request.held) if asked.method == "Lease" else -1))
            asked.answer(pb.LeaseResponse() if asked.method == "Lease" else done(asked))
        played.pass_s(0.5)
    assert kinds.count(("Lease", 1)) == 1, "once in the time of a lease"


def test_a_queue_that_holds_nothing_extends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 1, 2)
    for _ in range(4):
        assert all(asked.method == "Lease" for asked in played.asked())
        played.pass_s(10.0)


# ---------------------------------------------------------------- who leads


def test_a_question_that_stays_unanswered_makes_the_member_ask_who_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    played.asked()
    played.keeper.settle(lease, places(0), ACK)
    played.clock.now += GATHER_S
    played.asked()
    played.refreshes.asked.clear()
    played.pass_s(1.9)
    assert "b:1" not in played.refreshes.asked
    assert played.rest() <= 0.11
    played.pass_s(0.1)
    assert played.refreshes.asked.count("b:1") == 1
    played.pass_s(1.0)
    assert played.refreshes.asked.count("b:1") == 1
    played.pass_s(1.0)
    assert played.refreshes.asked.count("b:1") == 2, "again, as long as there is no answer"


def test_a_leader_that_is_asked_to_wait_for_records_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    [asked] = played.asked()
    assert asked.request.wait_ms > 0
    played.pass_s(4.0)
    assert "b:1" not in played.refreshes.asked
    assert not asked.broken


def test_questions_to_a_broker_that_leads_no_more_are_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(3)
    played.take()
    [waiting] = played.asked()
    played.keeper.settle(lease, places(0), ACK)
    played.keeper.extend(lease, places(1))
    played.clock.now += GATHER_S
    asked = [waiting, *played.asked()]
    assert sorted(each.method for each in asked) == ["Lease", "Settle", "Settle"]
    played.leaders.lead(2, epoch=2)
    played.rest()
    assert [each.broken for each in asked] == [True, True, True]


def test_topic_and_leaders_are_looked_at_from_time_to_time_and_often_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    played.asked()
    for _ in range(20):
        played.pass_s(1.0)
    assert played.refreshes.asked.count("") == 5
    played.leaders.lead(0, epoch=2)
    played.rest()
    played.refreshes.asked.clear()
    assert played.rest() == pytest.approx(0.2, abs=0.01)
    for _ in range(4):
        played.pass_s(0.2)
    assert played.refreshes.asked.count("") >= 3
    assert [asked.method for asked in played.asked()] == []


def test_a_partition_that_is_added_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 1)
    [asked] = played.asked()
    played.leaders.lead(1, 2, epoch=2)
    asked.answer(pb.LeaseResponse())
    [asked] = played.asked()
    assert (asked.request.partition, asked.request.records_max, asked.request.wait_ms) == (1, 10, 0)


def test_a_topic_that_was_made_again_or_is_refused_ends_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.leaders._learn(told(topic_info(1, topic_id="another", epoch=9, schema=SCHEMA)))
    played.keeper.topic_id = "former"
    played.rest()
    assert isinstance(played.keeper.error, UnknownTopic)
    assert "made again" in str(played.keeper.error)
    played = Played(monkeypatch)
    played.refreshes.refused = UnknownTopic("deleted")
    assert played.asked() == []
    assert played.keeper.error is played.refreshes.refused
    with played.keeper.lock:
        played.keeper.fail(InternalError("later"))
    assert isinstance(played.keeper.error, UnknownTopic), "the first error is told"


def test_a_new_leader_is_told_what_is_held_and_not_if_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=2)
    played.lend(2)
    played.asked()
    played.leaders.lead(2, epoch=2)
    [asked] = played.asked()
    assert (asked.address, asked.request.records_max, asked.request.wait_ms) == ("b:2", 0, 0)
    assert [held.entry for held in asked.request.held] == [5]


@pytest.mark.parametrize(("accept", "records_max"), [(False, 0), (True, 10)])
def test_credit_that_may_have_been_lent_by_a_lost_answer_is_asked_about_first(
    monkeypatch: pytest.MonkeyPatch, accept: bool, records_max: int
) -> None:
    played = Played(monkeypatch, accept=accept)
    [first] = played.asked()
    played.leaders.lead(2, epoch=2)
    played.rest()
    assert first.broken
    first.answer(OutcomeUnknown("broken off"))
    played.rest()
    played.clock.now = played.place.ask_after
    [again] = played.asked()
    assert (again.address, again.request.records_max, list(again.request.held)) == ("b:2", records_max, [])


def test_a_question_says_as_whom_and_on_which_terms_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, lease_ms=5_000, bytes_max=777)
    request = played.one("Lease").request
    assert (request.topic, request.group, request.topic_id, request.member) == ("t", "g", "x", "m")
    assert (request.member_key, request.lease_ms, request.accept, request.working) == (b"k" * 16, 5_000, False, 1)
    assert (request.records_max, request.bytes_max) == (10, 777)


# ---------------------------------------------------------------- credit


def test_more_is_asked_for_when_half_of_what_may_be_held_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=10, bytes_max=100)
    lease = played.lend(10)
    assert played.asked() == []
    for index in range(4):
        played.take()
        played.keeper.settle(lease, places(index), ACK)
    played.clock.now += GATHER_S
    settle = played.one("Settle")
    settle.answer(done(settle))
    assert played.asked() == [], "four are free"
    played.take()
    played.keeper.settle(lease, places(4), ACK)
    played.clock.now += GATHER_S
    settle = played.one("Settle")
    settle.answer(done(settle))
    [asked] = played.asked()
    assert (asked.request.records_max, asked.request.bytes_max) == (5, 50)


def test_who_settles_by_being_lent_is_woken_for_more_once_half_of_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=4, accept=True)
    played.lend(4)
    assert played.asked() == []
    before = played.work.woken
    played.take()
    assert played.work.woken == before
    played.take()
    assert played.work.woken > before
    assert [asked.request.records_max for asked in played.asked()] == [2]


# ---------------------------------------------------------------- what is refused


def test_a_record_has_one_outcome_and_what_is_lost_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(6)
    played.asked()
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
    played.clock.now += GATHER_S
    [settle] = [asked for asked in played.asked() if asked.method == "Settle"]
    assert said(settle) == [(pb.OUTCOME_ACK, [0, 2]), (pb.OUTCOME_FAIL, [3, 1])]
    settle.answer(done(settle))
    played.rest()
    with pytest.raises(LeaseLost, match="1 of these records"):
        future.result(0)
    assert [keeper.has_outcome(lease, index) for index in (0, 2)] == [True, False]
    with pytest.raises(LeaseLost, match="offset 4"):
        keeper.has_outcome(lease, 4)


def test_an_ack_with_outputs_names_no_more_than_one_request_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=3 * RANGES_MAX)
    lease = played.lend(2 * RANGES_MAX + 2)
    played.keeper.check_unsettled(lease, places(*range(0, 2 * RANGES_MAX, 2)))
    with pytest.raises(InvalidRequest, match="acknowledge fewer records"):
        played.keeper.check_unsettled(lease, places(*range(0, 2 * RANGES_MAX + 2, 2)))
    monkeypatch.setattr(keeper_module, "RECORDS_MAX", 10)
    played.keeper.check_unsettled(lease, places(*range(10)))
    with pytest.raises(InvalidRequest, match="acknowledge fewer records"):
        played.keeper.check_unsettled(lease, places(*range(11)))


# ---------------------------------------------------------------- the end


def test_closing_asks_for_no_more_then_gives_back_and_ends_once_all_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    [waiting] = played.asked()
    played.take()
    played.keeper.settle(lease, places(0), ACK)
    played.keeper.close_soon(Deadline(10_000))
    assert waiting.broken
    # Its leader may have the broken question still. What is given back before would be lent to that. Leases that it
    # may have been answered with are not claimed
    first = played.one("Lease")
    assert (first.request.leaving, first.request.records_max, first.request.wait_ms) == (True, 0, 0)
    assert [held.entry for held in first.request.held] == [5]
    assert played.asked() == []
    first.answer(pb.LeaseResponse())
    settle = played.one("Settle")
    assert said(settle) == [(pb.OUTCOME_ACK, [0, 1]), (pb.OUTCOME_RELEASE, [1, 3])]
    assert not played.ended
    settle.answer(done(settle))
    played.rest()
    assert played.ended
    with pytest.raises(LeaseLost, match="the queue was closed"):
        played.keeper.settle_one(lease, 1, ACK)


def test_outcomes_are_told_at_the_end_though_the_leader_did_not_hear_that_the_member_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    played.asked()
    played.take()
    played.keeper.settle(lease, places(0), ACK)
    played.keeper.close_soon(Deadline(60_000))
    played.one("Lease").answer(Unreachable("gone"))
    settle = played.one("Settle")
    assert said(settle) == [(pb.OUTCOME_ACK, [0, 1]), (pb.OUTCOME_RELEASE, [1, 3])]
    settle.answer(done(settle))
    assert not played.ended
    played.clock.now = max(played.clock.now, played.place.ask_after)
    last = played.one("Lease")
    assert (last.request.leaving, list(last.request.held)) == (True, [])
    last.answer(pb.LeaseResponse())
    played.rest()
    assert played.ended


def test_closing_says_at_once_what_is_given_back_if_nothing_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=4)
    played.lend(4)
    played.keeper.close_soon(Deadline(10_000))
    settle = played.one("Settle")
    settle.answer(done(settle))
    played.rest()
    assert played.ended


def test_closing_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    played.asked()
    future = played.keeper.settle(lease, places(0), ACK)
    played.keeper.close_soon(Deadline(700))
    played.asked()
    assert played.rest() == pytest.approx(0.7, abs=0.01)
    played.pass_s(0.69)
    assert not played.ended
    played.pass_s(0.02)
    assert played.ended
    played.keeper._end(OutcomeUnknown("the queue was closed"))
    with pytest.raises(OutcomeUnknown):
        future.result(0)


def test_a_closing_queue_asks_about_lost_leases_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.asked()
    played.keeper.close_soon(Deadline(60_000))
    [asked] = played.asked()
    asked.answer(Unreachable("gone"))
    played.rest()
    assert not played.ended
    assert played.asked() == []
    played.clock.now = played.place.ask_after
    assert [each.method for each in played.asked()] == ["Lease"]


def test_at_the_end_whoever_waits_is_told_and_all_questions_are_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=12)
    lease = played.lend(6)
    played.take()
    asked = played.asked()
    futures = [played.keeper.settle(lease, places(0), ACK), played.keeper.extend(lease, places(1))]
    played.clock.now += GATHER_S
    asked += played.asked()
    futures += [played.keeper.settle(lease, places(2), ACK), played.keeper.extend(lease, places(3))]
    assert len(asked) == 3
    played.keeper._end(OutcomeUnknown("closed"))
    assert all(each.broken for each in asked)
    for future in futures:
        assert isinstance(future.exception(0), OutcomeUnknown)
    assert (played.keeper.over, played.keeper.closing, played.refreshes.stopped) == (True, True, True)
    assert played.keeper.error is None, "a queue that was closed has no error"


def test_a_thread_that_fails_by_a_defect_says_so_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    future = played.keeper.settle(lease, places(0), ACK)

    def broken() -> bool:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(played.keeper, "_turn", broken)
    with pytest.raises(ZeroDivisionError):
        played.keeper._run()
    assert isinstance(future.exception(0), InternalError)
    assert "ZeroDivisionError: ours" in str(played.keeper.error)
    played.keeper._thread = threading.Thread(target=lambda: None)
    played.keeper._thread.start()
    played.keeper.close_soon(Deadline(1_000))
    played.keeper.join()


def test_a_queue_that_was_never_begun_is_over_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    played.keeper._thread = None
    played.keeper.close_soon(Deadline(1_000))
    assert played.keeper.over
    played.keeper.ensure_started("x")
    assert not played.keeper.started
    played.keeper.join()
    assert played.keeper._close_by < math.inf


def test_an_error_of_the_queue_stops_its_questions_and_not_its_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    [waiting] = played.asked()
    with played.keeper.lock:
        played.keeper.fail(UnknownTopic("deleted"))
    waiting.answer(NotLeader("another", leader=1, leader_epoch=1))
    played.keeper.settle(lease, places(0), ACK)
    played.clock.now += GATHER_S
    assert [asked.method for asked in played.asked()] == ["Settle"]
    waiting.answer(lent(9, 50, 1))
    played.rest()
    assert not played.keeper.holdings.unread, "an answer to a question that is over is passed over"


def test_a_broker_that_goes_while_questions_are_made_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(1)
    played.asked()
    played.keeper.settle(lease, places(0), ACK)
    played.clock.now += GATHER_S
    known = played.leaders.leader_address

    def known_once(view: TopicView, partition: int) -> str | None:
        """Another thread learns that the broker is gone as soon as it was looked up."""
        address = known(view, partition)
        monkeypatch.setattr(played.leaders, "_brokers", {})
        return address

    monkeypatch.setattr(played.leaders, "leader_address", known_once)
    assert [asked.method for asked in played.asked()] == ["Settle"]


def test_who_closes_a_queue_with_records_in_hand_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(4)
    for _ in range(3):
        played.take()
    played.keeper.settle(lease, places(0), ACK)
    assert [played.keeper.close_soon(Deadline(1_000)) for _ in range(2)] == [2, 0]


def test_a_queue_that_is_closed_with_nothing_in_hand_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    lease = played.lend(3)
    played.take()
    played.keeper.settle(lease, places(0), ACK)
    assert played.keeper.close_soon(Deadline(1_000)) == 0
