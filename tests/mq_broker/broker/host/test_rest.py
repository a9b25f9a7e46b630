"""When one replica goes to rest, what wakes it, and what its core is told of the time. Time is an argument."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host.quiescence import Rest, RestTimes
from mq_broker.core.entries import Entry, MoveCursor
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Event,
    Flushed,
    LogReplaced,
    Tick,
    TransferLeadership,
    TurnEnded,
)

TIMES = RestTimes(calm_ms=1_000, follower_calm_ms=500)
HEARTBEAT = AppendEntries(2, 1, 5, 9, 5, 9, 9, 1)
ENTRIES = AppendEntries(2, 1, 5, 9, 5, 10, 9, 1, entries=(Entry(10, 5, 1, MoveCursor("g", 1, "consumer")),))
SUCCESSOR = AppendEntries(2, 1, 5, 9, 5, 9, 9, 1, successor=1)
ACK = AppendAck(3, 1, "log", 5, 9, 9, 1)
REQUEST = TransferLeadership(2, 99)


def replica(*, leading: bool, at_rest: bool = True, contact_ms: int | None = None) -> Any:
    """Led by broker 2 in epoch 5. `contact_ms`: since when that broker has been in contact."""
    return SimpleNamespace(leading=leading, at_rest=at_rest, led_by=(2, 5), contact_ms=contact_ms)


LEADER, FOLLOWER = replica(leading=True), replica(leading=False, contact_ms=0)


def awake(since_ms: int = 0) -> Rest:
    """A replica that has had nothing to do since then."""
    rest = Rest(TIMES)
    assert not rest.settled(LEADER, since_ms)
    return rest


def asleep(who: Any = LEADER, now_ms: int = 1_000) -> Rest:
    rest = awake()
    rest.told(HEARTBEAT, now_ms - 1)
    assert rest.settled(who, now_ms)
    return rest


def test_a_new_replica_is_awake_and_calm_only_from_its_first_turn_on() -> None:
    rest = Rest(TIMES)
    assert not rest.settled(LEADER, 5_000)
    assert not rest.settled(LEADER, 5_999)
    assert rest.settled(LEADER, 6_000)
    assert rest.asleep


def test_a_leader_goes_to_rest_after_it_was_calm_for_long_enough() -> None:
    rest = awake()
    assert [rest.settled(LEADER, now_ms) for now_ms in (499, 500, 999, 1_000)] == [False, False, False, True]


def test_a_follower_goes_to_rest_sooner_than_a_leader() -> None:
    rest = awake()
    rest.told(HEARTBEAT, 100)
    assert [rest.settled(FOLLOWER, now_ms) for now_ms in (499, 500)] == [False, True]


def test_a_follower_whose_leaders_broker_is_not_in_contact_does_not_rest() -> None:
    rest = awake()
    rest.told(HEARTBEAT, 9_000)
    assert not rest.settled(replica(leading=False), 9_000)


def test_a_follower_whose_leaders_broker_is_in_contact_rests_once_it_has_heard_it_since_that_began() -> None:
    rest = awake()
    rest.told(HEARTBEAT, 100)
    assert not rest.settled(replica(leading=False, contact_ms=101), 700)
    assert rest.settled(replica(leading=False, contact_ms=100), 60_000), (
        "however long ago: brokers would say if it led no more"
    )


@pytest.mark.parametrize("stranger", [replace(HEARTBEAT, leader=3), replace(HEARTBEAT, leader_epoch=4)])
def test_who_heard_another_leader_last_does_not_rest(stranger: AppendEntries) -> None:
    rest = awake()
    rest.told(HEARTBEAT, 690)
    rest.told(stranger, 695)
    assert not rest.settled(FOLLOWER, 700)


def test_an_answer_of_who_leads_no_more_or_to_another_epoch_wakes_and_that_leader_must_be_heard_again() -> None:
    leads = replica(leading=True)
    rest = asleep()
    assert not rest.spoken_to(ACK, leads), "it answers a heartbeat of this epoch"
    assert rest.spoken_to(replace(ACK, leader_epoch=4), leads)
    follower = asleep(FOLLOWER)
    assert follower.spoken_to(ACK, FOLLOWER), "a follower is answered by nobody"
    follower.wake(2_000)
    assert not follower.spoken_to(ACK, FOLLOWER), "it is awake"
    follower.told(HEARTBEAT, 2_400)
    assert not follower.settled(FOLLOWER, 2_000)
    assert follower.settled(FOLLOWER, 2_500)
    follower.spoken_to(replace(ACK, follower=2), FOLLOWER)
    follower.wake(3_000)
    assert not follower.settled(FOLLOWER, 3_000)
    assert not follower.settled(FOLLOWER, 3_501)
    follower.told(HEARTBEAT, 3_502)
    assert follower.settled(FOLLOWER, 3_502)


def test_who_rests_by_contact_must_hear_again_a_leader_that_leads_no_more_and_nobody_else() -> None:
    in_contact = replica(leading=False, contact_ms=0)
    for answers, rests in ((3, True), (2, False)):
        rest = awake()
        rest.told(HEARTBEAT, 100)
        rest.spoken_to(replace(ACK, follower=answers), in_contact)
        assert rest.settled(in_contact, 9_000) is rests
    rest.told(HEARTBEAT, 9_001)
    assert rest.settled(in_contact, 9_001)


def test_who_has_something_under_way_does_not_go_to_rest() -> None:
    for leading in (True, False):
        rest = awake()
        rest.told(HEARTBEAT, 9_999)
        assert not rest.settled(replica(leading=leading, at_rest=False), 10_000)
        assert rest.settled(LEADER if leading else FOLLOWER, 10_000)


@pytest.mark.parametrize("event", [REQUEST, ENTRIES, SUCCESSOR, Flushed(9, 5), LogReplaced("log", "why")])
def test_whatever_happens_begins_the_calm_anew(event: Event) -> None:
    rest = awake()
    assert rest.told(event, 900) == (event,)
    assert not rest.settled(LEADER, 900)
    assert not rest.settled(LEADER, 1_899)
    assert rest.settled(LEADER, 1_900)


@pytest.mark.parametrize("event", [HEARTBEAT, ACK, Tick(5)])
def test_heartbeats_their_answers_and_ticks_do_not(event: Event) -> None:
    rest = awake()
    assert rest.told(event, 900) == (event,)
    assert rest.settled(LEADER, 1_000)


def test_time_stands_still_at_rest_and_comes_with_the_heartbeat() -> None:
    rest = asleep()
    assert rest.told(HEARTBEAT, 3_000) == (TurnEnded(3_000), HEARTBEAT, Tick(3_000))
    assert rest.told(ACK, 3_001) == (ACK,)
    assert rest.asleep
    assert rest.turn_ended(4_000) == TurnEnded(0)
    assert awake().turn_ended(4_000) == TurnEnded(4_000)


@pytest.mark.parametrize("event", [REQUEST, ENTRIES, SUCCESSOR])
def test_whoever_is_woken_is_told_the_time_first(event: Event) -> None:
    rest = asleep()
    assert rest.told(event, 3_000) == (TurnEnded(3_000), event)
    assert not rest.asleep
    assert not rest.settled(LEADER, 3_000)
    assert not rest.settled(LEADER, 3_999)


@pytest.mark.parametrize("event", [Flushed(9, 5), LogReplaced("log", "why")])
def test_what_the_disk_has_done_comes_before_the_time(event: Event) -> None:
    assert asleep().told(event, 3_000) == (event, TurnEnded(3_000))


def test_one_that_is_woken_by_its_broker_is_told_the_time_and_calm_from_then_on() -> None:
    rest = asleep()
    assert rest.wake(3_000) == TurnEnded(3_000)
    assert not rest.asleep
    assert not rest.settled(LEADER, 3_000)
    assert rest.settled(LEADER, 4_000)
