"""A member of a higher priority says that it is there, and that it leaves."""

from __future__ import annotations

import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import InvalidSetting
from mq_client.queueing.places import TELLS_S
from mq_client.queueing.queue import Queue
from mq_protocol import mq_pb2 as pb
from tests.mq_client.queueing.played_keeper import Played


def test_leaders_that_are_asked_for_nothing_hear_that_a_member_of_a_higher_priority_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for priority in (5, 0):
        played = Played(monkeypatch, 1, in_flight_max=4, priority=priority)
        played.lend(4)
        assert played.asked() == [], "it has as much as it may hold"
        played.clock.now += TELLS_S
        told = [(each.method, each.request.priority, each.request.records_max) for each in played.asked()]
        assert told == ([("Lease", 5, 0)] if priority else [])


def test_each_question_names_the_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, priority=7)
    asked = played.one("Lease")
    assert (asked.request.priority, asked.request.leaving) == (7, False)


def test_a_member_of_a_higher_priority_tells_that_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for priority in (5, 0):
        played = Played(monkeypatch, in_flight_max=4, priority=priority)
        played.lend(4)
        played.keeper.close_soon(Deadline(5_000))
        if priority:
            leaving = played.one("Lease")
            assert leaving.request.leaving
            leaving.answer(pb.LeaseResponse())
        played.one("Settle").answer(pb.SettleResponse(answers=[pb.SettleAnswer()]))
        played.rest()
        assert played.ended


@pytest.mark.parametrize("wrong", [-1, 32, True, 1.0, "5"])
def test_a_priority_is_a_number_from_0_to_31(wrong: object) -> None:
    with pytest.raises(InvalidSetting, match="from 0 to 31"):
        Queue("localhost:1", "t", "g", priority=wrong)  # type: ignore[arg-type]
