"""A member's sessions, turn by turn: the test is the leaders, and sets the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mq_client.errors import NotLeader, Unreachable
from mq_client.queueing import settling
from mq_client.queueing.leases import LOST, SETTLING
from mq_client.queueing.settling import ACK
from mq_client.queueing.work_streams import Told
from mq_protocol import mq_pb2 as pb
from tests.mq_client.queueing.played_keeper import Played, lent, places

A = pb.OUTCOME_ACK


def ack(played: Played, lease: Any, *indexes: int) -> Any:
    return played.keeper.settle(lease, places(*indexes), ACK)


def claimed(requests: list[pb.SessionRequest]) -> list[tuple[int, list[int]]]:
    """By the session that was opened: of each lease, what of it is held; nothing if all is."""
    [opened] = [request.open for request in requests if request.HasField("open")]
    return [(held.lease.entry, list(held.ranges)) for held in opened.held]


def test_what_had_no_answer_when_a_session_broke_is_said_again_once_and_what_is_held_is_claimed() -> None:
    played = Played()
    lease = played.lend(6)
    ack(played, lease, 5)
    played.one().done()
    future = ack(played, lease, 0, 1)
    assert played.one().lines == [(A, [0, 2])]
    former = played.streams["b:1"].listeners[1]
    played.break_off(Unreachable("the stream has ended"))
    played.clock.now = played.place.ask_after
    requests = played.said()
    assert claimed(requests) == [(5, [0, 5])], "all but what is done"
    [again] = played.sayings_in("b:1", requests)
    assert again.lines == [(A, [0, 2])]
    former(Told(pb.SessionResponse(session=1, lease=lent(6, 5, 5), lent_bytes=50), ()))
    played.rest()
    assert played.keeper.holdings.held == 5, "what comes by the former one goes back"
    again.done()
    played.rest()
    assert future.result(0) is None


def test_a_session_goes_to_whoever_leads_by_now() -> None:
    played = Played()
    lease = played.lend(5)
    ack(played, lease, 0)
    played.one()
    played.leaders.lead(2, epoch=2)
    played.refuse(NotLeader("not here"))
    played.clock.now += 1.0
    requests = played.said("b:2")
    assert claimed(requests) == [(5, [])]
    assert [saying.lines for saying in played.sayings_in("b:2", requests)] == [[(A, [0, 1])]]
    assert not played.streams["b:1"].listeners


def test_what_has_an_outcome_waits_for_its_answer_though_its_lease_is_gone() -> None:
    played = Played()
    lease = played.lend(2)
    future = ack(played, lease, 0)
    asked = played.one()
    played.tell(gone=[pb.LeaseId(leader_epoch=1, entry=5)])
    played.rest()
    assert [lease.state(index) for index in (0, 1)] == [SETTLING, LOST]
    asked.done()
    played.rest()
    assert future.result(0) is None


def test_a_silent_leader_is_doubted_and_left_once_another_leads() -> None:
    played = Played()
    lease = played.lend(5)
    ack(played, lease, 0)
    played.one()
    played.refreshes.asked.clear()
    played.pass_s(3.0)
    assert "b:1" in played.refreshes.asked
    played.leaders.lead(2, epoch=2)
    played.pass_s(1.0)
    requests = played.said("b:2")
    assert claimed(requests) == [(5, [])]
    assert [saying.lines for saying in played.sayings_in("b:2", requests)] == [[(A, [0, 1])]]
    assert not played.streams["b:1"].listeners


def test_partitions_that_were_added_are_found_and_worked_on() -> None:
    played = Played()
    played.said()
    played.refreshes.asked.clear()
    for _ in range(6):
        played.pass_s(1.0)
    assert "" in played.refreshes.asked, "it is looked for them now and then"
    played.leaders.lead(1, 1)
    played.pass_s(1.0)
    assert [request.open.partition for request in played.said() if request.HasField("open")] == [1]


def test_a_member_is_active_if_one_leader_says_so() -> None:
    played = Played(1, 1)
    for partition, active, anywhere in ((0, False, True), (1, False, False), (0, True, True)):
        played.tell(partition, active=active)
        played.rest()
        assert played.keeper.active == anywhere


def test_terms_that_were_changed_are_said_once() -> None:
    played = Played()
    played.said()
    with played.keeper.lock:
        played.keeper.terms = replace(played.keeper.terms, working=5, priority=3)
        played.keeper.wake()
    assert [(request.terms.working, request.terms.priority) for request in played.said()] == [(5, 3)]
    played.pass_s(1.0)
    assert played.said() == []


def test_claims_name_no_more_ranges_together_than_a_leader_takes() -> None:
    """Of a lease in more pieces all is claimed: what is not held of it runs out."""
    most = settling.RANGES_MAX
    played = Played(in_flight_max=3 * most)
    leases = [played.lend(most + 1, 5, 0), played.lend(most - 1, 6, most + 1), played.lend(5, 7, 2 * most)]
    for lease in leases[:2]:
        ack(played, lease, *range(1, len(lease.offsets), 2))
    ack(played, leases[2], 0)
    played.one().done()
    played.refuse(NotLeader("not here"))
    played.clock.now += 1.0
    assert claimed(played.said()) == [(5, [0, 1] + [1, 1] * (most // 2)), (6, []), (7, [2 * most + 1, 4])]


def test_a_leader_of_a_later_epoch_is_told_which_leases_are_held() -> None:
    """It does not know how long they are, nor that they are this member's by now."""
    played = Played()
    played.lend(5)
    assert not any(request.check for request in played.said())
    played.leaders.lead(1, epoch=2)
    played.pass_s(1.0)
    assert [lease.entry for request in played.said() for lease in request.check] == [5]
    played.pass_s(1.0)
    assert not any(request.check for request in played.said()), "once"
