"""Outcomes and the question for more records go to a leader together, and rows come with its answer."""

from __future__ import annotations

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import NotLeader, OutcomeUnknown, UnknownTopic
from mq_client.queueing.answered_rows import ROWS_BYTES_MAX
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.places import STAYS_MAX
from mq_client.queueing.settling import ACK, RELEASE
from mq_protocol import mq_pb2 as pb
from tests.mq_client.queueing.played_keeper import Played, places
from tests.mq_client.queueing.played_leaders import Asked, lent, said
from tests.mq_client.queueing.test_answered_rows import answer


def with_rows(entry: int, first: int, count: int, *, ready: bool = True, answers: int = 0) -> pb.LeaseResponse:
    response = lent(entry, first, count, ready=ready)
    response.MergeFrom(answer((first, count, None)))
    response.answers.extend(pb.SettleAnswer() for _ in range(answers))
    return response


def work(played: Played, ready: bool = True) -> Asked:
    """A member that may hold one record is lent the first, works on it, and asks for the next."""
    [asked] = [each for each in played.asked() if each.method == "Lease" and each.request.records_max]
    asked.answer(with_rows(5, 0, 1, ready=ready))
    played.rest()
    lease, index = played.take()
    played.keeper.settle_one(lease, index, ACK)
    [asked] = [each for each in played.asked() if each.request.settles or each.method == "Settle"]
    return asked


def test_the_next_record_is_asked_for_with_the_outcome_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    asked = work(played)
    assert (asked.method, said(asked)) == ("Lease", [(pb.OUTCOME_ACK, [0, 1])])
    request = asked.request
    assert (request.records_max, request.wait_ms, request.rows_bytes_max) == (1, 0, ROWS_BYTES_MAX)
    assert [held.entry for held in request.held] == [5], "it is this member's until the answer is there"
    asked.answer(with_rows(6, 1, 1, answers=1))
    played.rest()
    assert played.keeper.holdings.held == 1
    lease, _ = played.take()
    assert lease.id.entry == 6
    assert not played.keeper.holdings.unread, "its row is there"
    assert [held.id.entry for held in played.place.leases.values()] == [6]


def test_a_leader_that_has_nothing_more_is_told_the_outcome_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(Played(monkeypatch, in_flight_max=1), ready=False).method == "Settle"


def test_outcomes_go_alone_while_they_leave_too_little_room_or_another_leader_has_the_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, in_flight_max=10)
    lease = played.lend(10, ready=True)
    for _ in range(4):
        played.keeper.settle_one(*played.take(), ACK)
    assert [asked.method for asked in [*played.asked(), *(played.pass_s(0.01) and played.asked())]] == ["Settle"]
    for _ in range(5):
        played.keeper.settle_one(*played.take(), ACK)
    assert lease.settling == 9
    played = Played(monkeypatch, 1, 2, in_flight_max=10)
    [asked, *_] = played.asked()
    assert asked.request.partition == 0
    asked.answer(with_rows(5, 0, 5))
    played.rest()
    for _ in range(5):
        lease, index = played.take()
    [other] = played.asked()
    assert (other.request.partition, other.request.records_max) == (1, 5)
    played.keeper.settle_one(lease, index, ACK)
    played.pass_s(0.01)
    assert [each.method for each in played.asked()] == ["Settle"]


def test_a_leader_keeps_the_credit_for_some_turns_while_others_have_something(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 1, 2, in_flight_max=1)
    asked = work(played)
    for turn in range(STAYS_MAX - 1):
        assert (asked.method, asked.request.partition) == ("Lease", 0)
        asked.answer(with_rows(6 + turn, 1 + turn, 1, answers=1))
        played.rest()
        played.keeper.settle_one(*played.take(), ACK)
        [asked] = played.asked()
    asked.answer(with_rows(20, 10, 1, answers=1))
    played.rest()
    played.keeper.settle_one(*played.take(), ACK)
    alone = played.one("Settle")
    alone.answer(pb.SettleResponse(answers=[pb.SettleAnswer()]))
    following = played.one("Lease")
    assert (following.request.partition, list(following.request.settles)) == (1, [])


def test_a_leader_keeps_the_credit_while_no_other_has_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    asked = work(played)
    for turn in range(3 * STAYS_MAX):
        assert asked.method == "Lease"
        asked.answer(with_rows(6 + turn, 1 + turn, 1, answers=1))
        played.rest()
        played.keeper.settle_one(*played.take(), ACK)
        asked = played.one("Lease")


def test_without_an_answer_the_outcome_is_said_again_and_what_may_have_been_lent_is_not_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    work(played).answer(OutcomeUnknown("no answer"))
    played.rest()
    played.pass_s(5.0)
    told, named = sorted(played.asked(), key=lambda asked: asked.method, reverse=True)
    assert (told.method, said(told)) == ("Settle", [(pb.OUTCOME_ACK, [0, 1])])
    assert (named.method, named.request.records_max) == ("Lease", 0)
    assert [held.entry for held in named.request.held] == [5]


def test_where_nobody_leads_the_outcome_is_said_to_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    asked = work(played)
    played.leaders.lead(2, epoch=2)
    asked.answer(NotLeader("not here", 2, 2))
    played.rest()
    played.pass_s(5.0)
    assert [(asked.address, said(asked)) for asked in played.asked() if asked.method == "Settle"] == [
        ("b:2", [(pb.OUTCOME_ACK, [0, 1])])
    ]


def test_what_is_lost_is_told_by_the_answer_to_both(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    [asked] = played.asked()
    asked.answer(with_rows(5, 0, 1))
    played.rest()
    future = played.keeper.settle_one(*played.take(), ACK)
    response = with_rows(6, 1, 1, answers=1)
    response.answers[0].lost.extend([0, 1])
    played.one("Lease").answer(response)
    played.rest()
    assert "offset 0" in str(future.exception(0))
    assert played.keeper.holdings.held == 1


def test_in_order_outcomes_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    [asked] = played.asked()
    response = with_rows(5, 0, 1)
    response.order, response.order_by = pb.ORDER_KEY, "n"
    asked.answer(response)
    played.rest()
    with played.keeper.lock:
        found = played.keeper.holdings.shelf.take()
    assert found is not None
    lease, index, _ = found
    lease.begin(index)
    played.keeper.settle_one(lease, index, RELEASE)
    assert played.one("Settle")


def test_at_the_end_after_an_error_and_with_outputs_outcomes_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> tuple[Played, HeldLease, int]:
        played = Played(monkeypatch, in_flight_max=1)
        [asked] = played.asked()
        asked.answer(with_rows(5, 0, 1))
        played.rest()
        return played, *played.take()

    played, lease, index = begun()
    played.keeper.settle_one(lease, index, ACK)
    played.keeper.close_soon(Deadline(10_000))
    assert played.one("Settle")
    played, lease, index = begun()
    with played.keeper.lock:
        played.keeper.fail(UnknownTopic("gone"))
    played.keeper.settle_one(lease, index, ACK)
    assert played.one("Settle")
    played, lease, index = begun()
    played.keeper.ack_with_outputs(lease, places(index), ())
    assert played.one("Settle")


def test_bytes_that_outcomes_set_free_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(answer((0, 1, None)).payload)
    played = Played(monkeypatch, in_flight_max=1, bytes_max=size)
    asked = work(played)
    assert (asked.method, asked.request.bytes_max) == ("Lease", size)


def test_what_rows_took_is_taken_for_what_the_next_ones_will(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(answer((0, 1, None)).payload)
    played = Played(monkeypatch, in_flight_max=2)
    [asked] = played.asked()
    asked.answer(with_rows(5, 0, 1))
    played.rest()
    assert played.keeper.holdings.held_bytes == size
    played.take()
    [asked] = played.asked()
    asked.answer(lent(6, 1, 1))
    played.rest()
    assert played.keeper.holdings.held_bytes == 2 * size


def test_rows_of_a_topic_that_was_made_again_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    [asked] = played.asked()
    played.keeper.topic_id = "of before"
    asked.answer(with_rows(5, 0, 1))
    with played.keeper.lock:
        while played.keeper._heard:
            played.keeper._heard.popleft()(played.clock.now)
    assert not played.keeper.holdings.shelf
    assert played.keeper.holdings.unread


def test_an_answer_that_is_given_up_tells_of_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, in_flight_max=1)
    asked = work(played)
    played.leaders.lead(2, epoch=2)
    played.rest()
    assert asked.broken
