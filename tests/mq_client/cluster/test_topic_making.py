"""Topics that are asked for together: what is asked of brokers, and what becomes of their answers. The test is the
brokers and the clock."""

from __future__ import annotations

from typing import Any

import pytest

from mq_client.administration.admin import Admin
from mq_client.errors import NotEnoughBrokers, OutcomeUnknown, PermissionDenied, TopicExists
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import to_wire
from tests.mq_client.cluster.administrating import say
from tests.mq_client.cluster.scripted import Scripted, told, topic_info


@pytest.fixture
def admin(scripted: Scripted) -> Admin:
    made = Admin("b:1", timeout_ms=20_000)
    made._connection = scripted
    return made


def made_together(scripted: Scripted, *given: Any) -> list[pb.CreateTopicsRequest]:
    """Topics of two partitions are there as soon as a broker has been asked to make them."""
    left, requests = list(given), []
    scripted.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), lambda request: told(unknown=tuple(request.topics)))

    def create(address: str, request: pb.CreateTopicsRequest) -> Any:
        requests.append(request)
        say(scripted, *(topic_info(1, 2, name=topic.name) for topic in request.topics))
        answer = left.pop(0)
        if isinstance(answer, dict):
            made = [pb.TopicMade(name=topic.name) for topic in request.topics]
            for each in made:
                if each.name in answer:
                    each.error.CopyFrom(to_wire(answer[each.name]))
            return pb.CreateTopicsResponse(topics=made)
        return answer

    scripted.answers["CreateTopics"] = create
    return requests


def test_what_became_of_each_topic_is_told_in_the_order_of_their_names(admin: Admin, scripted: Scripted) -> None:
    requests = made_together(scripted, {"b": NotEnoughBrokers("too few")})
    made = admin.create_topics(["c", "b", "a"], partitions=2, durability="os")
    assert [(each.name, type(each.error)) for each in made] == [
        ("c", type(None)),
        ("b", NotEnoughBrokers),
        ("a", type(None)),
    ]
    [request] = requests
    assert [(topic.name, topic.partitions, topic.settings["durability"]) for topic in request.topics] == [
        (name, 2, "os") for name in ("c", "b", "a")
    ]


def test_topics_made_by_an_attempt_whose_answer_was_lost_are_made(admin: Admin, scripted: Scripted) -> None:
    requests = made_together(scripted, OutcomeUnknown("late"), {"a": TopicExists("there"), "b": TopicExists("there")})
    assert [each.error for each in admin.create_topics(["a", "b"], partitions=2)] == [None, None]
    assert len(requests) == 2


def test_topics_that_somebody_else_made_meanwhile_are_errors_or_left_as_they_are(
    admin: Admin, scripted: Scripted
) -> None:
    made_together(scripted, {"a": TopicExists("there")})
    a, b = admin.create_topics(["a", "b"], partitions=2)
    assert isinstance(a.error, TopicExists)
    assert b.error is None
    made_together(scripted, OutcomeUnknown("late"), {"a": TopicExists("there")})
    [a] = admin.create_topics(["a"], partitions=3)
    assert isinstance(a.error, TopicExists), "with other partitions than were asked for"
    made_together(scripted, {"a": TopicExists("there")})
    [a] = admin.create_topics(["a"], partitions=2, if_not_exists=True)
    assert (a.error, a.was_there) == (None, True)


def test_many_topics_are_asked_for_in_several_requests_and_one_that_fails_keeps_no_other_back(
    admin: Admin, scripted: Scripted
) -> None:
    requests = made_together(scripted, {}, PermissionDenied("no right"), {})
    names = [f"t{number}" for number in range(250)]
    made = admin.create_topics(names)
    assert [len(request.topics) for request in requests] == [100, 100, 50]
    assert [type(each.error) for each in made] == [type(None)] * 100 + [PermissionDenied] * 100 + [type(None)] * 50
    requests = made_together(scripted, {}, {}, {})
    admin.create_topics(["a", "b", "c"], partitions=5_000)
    assert [len(request.topics) for request in requests] == [2, 1]
