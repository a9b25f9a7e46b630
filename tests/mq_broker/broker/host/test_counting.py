"""What is counted of the effects of a partition."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.host.partition import count_in_sync, count_published, count_role
from mq_broker.core.messages import CasOutcome, LeaderName, NodeState, Published, RoleChanged
from mq_broker.measured import ISR_CHANGES, LEADERSHIPS, TOPIC_BYTES_IN, TOPIC_RECORDS_IN


def batch(index: int) -> Published:
    return Published(0, 5, index, 0, 70, 100)


@pytest.fixture
def topic() -> Any:
    yield "counted"
    TOPIC_RECORDS_IN.keep(())
    TOPIC_BYTES_IN.keep(())


def test_records_are_counted_by_who_led_when_they_were_written(topic: str) -> None:
    count_published(topic, 0, batch(9), taken_up=False)  # a follower
    count_published(topic, 20, batch(9), taken_up=False)  # of a former leader, which may have counted it
    assert (topic,) not in TOPIC_RECORDS_IN.rows()
    count_published(topic, 20, batch(21), taken_up=False)  # committed together with the beginning of the leadership
    count_published(topic, 20, batch(22), taken_up=True)
    count_published(topic, 20, batch(3), taken_up=True)  # staged long ago, and published only now
    assert (TOPIC_RECORDS_IN.rows()[topic,], TOPIC_BYTES_IN.rows()[topic,]) == (15, 210)


def test_leaderships_are_counted_when_they_begin_and_end_and_not_when_they_are_confirmed() -> None:
    before = LEADERSHIPS.rows()
    leads, follows = RoleChanged(1, 4, leading=True, ready=False), RoleChanged(2, 5, leading=False, ready=False)
    count_role(led=False, effect=leads)
    count_role(led=True, effect=RoleChanged(1, 4, leading=True, ready=True))
    count_role(led=True, effect=follows)
    count_role(led=False, effect=follows)
    assert {event: count - before[event] for event, count in LEADERSHIPS.rows().items()} == {
        ("taken",): 1,
        ("lost",): 1,
    }


def test_in_sync_sets_are_counted_when_they_are_another_and_written() -> None:
    before = ISR_CHANGES.rows()
    small = NodeState(LeaderName(1, 1), 4, ((1, "a"),), 0, "token")
    large = NodeState(LeaderName(1, 1), 4, ((1, "a"), (2, "b")), 0, "token")
    for was, state, outcome in (
        ((1, 2), small, CasOutcome.DONE),
        ((1,), large, CasOutcome.DONE),
        ((1,), small, CasOutcome.DONE),  # another leader, the same set
        ((1, 2), small, CasOutcome.REFUSED),
        ((1, 2), small, CasOutcome.UNKNOWN),
    ):
        count_in_sync(was, state, outcome)
    assert {change: n - before[change] for change, n in ISR_CHANGES.rows().items()} == {
        ("shrunk",): 1,
        ("expanded",): 1,
    }
