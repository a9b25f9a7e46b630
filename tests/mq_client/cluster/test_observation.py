"""What several brokers say of themselves, put together. The test is the brokers and the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mq_client.administration.admin import Admin
from mq_client.errors import InvalidRequest, InvalidTopicName, OutcomeUnknown, TritonMQError
from mq_client.shown.observation import ClusterObservation, GroupObservation, TopicObservation
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import REQUEST_TOPICS_MAX
from tests.mq_client.cluster.administrating import say
from tests.mq_client.cluster.scripted import Scripted, topic_info


class Watched(Scripted):
    """What is asked later is heard at once; from `b:9` on never."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.mute: set[str] = set()
        self.broken_off: list[str] = []

    def ask_later(
        self, address: str, method: str, request: Any, response: Any, deadline: Any, heard: Callable[[Any], None]
    ) -> Callable[[], object]:
        if address not in self.mute:
            try:
                answer = self.ask(address, method, request, response, deadline)
            except TritonMQError as error:
                heard(error)
            else:
                heard(answer)
        return lambda: self.broken_off.append(address)


@pytest.fixture
def watched(clock: Any) -> Watched:
    made = Watched(clock)
    say(made, topic_info(1))
    made.clock.now += 1
    return made


@pytest.fixture
def admin(watched: Watched) -> Admin:
    made = Admin("b:1", timeout_ms=20_000)
    made._connection = watched
    return made


def said(broker: int, *, epoch: int = 4, leads: bool = False, end: int = 100, **groups: int) -> pb.ObserveResponse:
    """By a broker with partition 0 of topic `t`; groups are that many records behind."""
    answer = pb.ObserveResponse(broker=broker, cluster_id="c", state="serving", values={"disk_free_bytes": 5.0})
    answer.topics.add(
        name="t", led=int(leads), records=end * leads, bytes=10 * leads, staged_batches=int(leads),
        oldest_staged_us=(50 + broker) * leads,
    )  # fmt: skip
    answer.partitions.add(
        topic="t", leads=leads, leader=1, leader_epoch=epoch, replicas=[1, 2, 3], isr=[1, 3], log_end_offset=end,
        high_watermark=7, size_bytes=10, staged_batches=1, oldest_staged_us=50, unheard_ms={2: 7_000} if leads else {},
    )  # fmt: skip
    for group, records in groups.items():
        answer.groups.add(
            group=group, topic="t", kind="spark", members=broker, lag=records, lag_bytes=10 * records, lag_us=records,
            moved_us=100 + broker, label=f"{group} at {broker}" if group == "h" else "",
        )  # fmt: skip
    return answer


def answering(watched: Watched, **answers: Any) -> None:
    def answer(address: str, _request: Any) -> Any:
        found = answers["b" + address.removeprefix("b:")]
        if isinstance(found, Exception):
            raise found
        return found

    watched.answers["Observe"] = answer


def test_every_broker_is_asked_once_and_the_leader_is_believed(admin: Admin, watched: Watched) -> None:
    answering(watched, b1=said(1, leads=True), b2=said(2, epoch=9, end=99), b3=said(3))
    watched.asked.clear()
    found = admin.observe("partitions", ["t", "t"])
    requests = [(address, request) for address, method, request in watched.asked if method == "Observe"]
    asked = pb.ObserveRequest(detail=pb.PARTITIONS, topics=["t"])
    assert sorted(requests, key=lambda each: each[0]) == [("b:1", asked), ("b:2", asked), ("b:3", asked)]
    assert [(broker.id, broker.address, broker.state) for broker in found.brokers] == [
        (1, "b:1", "serving"),
        (2, "b:2", "serving"),
        (3, "b:3", "serving"),
    ]
    [partition] = found.partitions
    assert (partition.told_by, partition.log_end_offset, partition.leads) == (1, 100, True)
    assert (partition.replicas, partition.isr, partition.moving_to) == ((1, 2, 3), (1, 3), ())
    assert found.topics == (TopicObservation("t", 1, 100, 10, 1, 51),)
    assert (found.silent, found.left_out, found.cluster_id) == ((), {}, "c")


def test_what_leaders_say_of_a_topic_and_of_a_group_is_put_together(admin: Admin, watched: Watched) -> None:
    answering(watched, b1=said(1, leads=True, g=4), b2=said(2, leads=True, g=6, h=1), b3=said(3))
    found = admin.observe()
    assert found.topics == (TopicObservation("t", 2, 200, 20, 2, 51),)
    assert found.groups == (
        GroupObservation("g", "t", "spark", 2, 10, 100, 6, 102),
        GroupObservation("h", "t", "spark", 2, 1, 10, 1, 102, "h at 2"),
    )


def test_who_does_not_answer_is_named(admin: Admin, watched: Watched) -> None:
    watched.takes_s = {"b:2": 100.0}
    full = said(1, leads=True)
    full.left_out["groups"] = 3
    answering(watched, b1=full, b2=said(2), b3=OutcomeUnknown("gone"))
    watched.allowed_s.clear()
    found = admin.observe()
    assert (found.silent, found.left_out) == (("b:2", "b:3"), {"groups": 3})
    assert watched.allowed_s[-2] <= 1.0


def test_if_nobody_answers_that_is_an_error(admin: Admin, watched: Watched) -> None:
    gone = OutcomeUnknown("gone")
    answering(watched, b1=gone, b2=gone, b3=gone)
    with pytest.raises(OutcomeUnknown, match="gone"):
        admin.observe()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"detail": "all"}, InvalidRequest, "'broker', 'topics', 'partitions'"),
        ({"topics": "t"}, InvalidRequest, "a list of names"),
        ({"topics": ["no topic\n"]}, InvalidTopicName, "no topic"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anybody_is_asked(
    admin: Admin, watched: Watched, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    watched.asked.clear()
    with pytest.raises(error, match=says):
        admin.observe(**given)
    assert watched.asked == []


def test_topics_are_described_as_their_leaders_know_them_with_one_question_to_each(
    admin: Admin, watched: Watched
) -> None:
    say(watched, topic_info(1, epoch=3), topic_info(2, name="u", epoch=9), topic_info(1, name="__own"))
    answering(watched, b1=said(1, leads=True), b2=said(2), b3=said(3, epoch=5))
    watched.asked.clear()
    t, u = admin.describe_topics()
    assert sorted(method for _, method, _ in watched.asked) == ["Metadata", "Metadata", "Observe", "Observe", "Observe"]
    [partition] = t.partitions
    assert (t.name, partition.leader, partition.leader_epoch, partition.isr) == ("t", 1, 4, (1, 3))
    assert partition.unheard_ms == {2: 7_000}
    assert (u.name, u.partitions[0].leader, u.partitions[0].isr) == ("u", 2, (1, 2, 3))
    assert [topic.name for topic in admin.describe_topics(internal=True)] == ["__own", "t", "u"]
    watched.asked.clear()
    observed = ClusterObservation("c", ())  # nobody leads there
    assert admin.describe_topics(observed)[0].partitions[0].leader_epoch == 3
    assert [method for _, method, _ in watched.asked] == ["Metadata"]


def test_a_followers_word_is_not_taken_for_a_leaders(admin: Admin, watched: Watched) -> None:
    say(watched, topic_info(3, epoch=5))
    answering(watched, b1=said(1, epoch=9), b2=said(2, epoch=9), b3=OutcomeUnknown("gone"))
    assert (admin.describe_topics()[0].partitions[0].leader, admin.describe_topics()[0].partitions[0].leader_epoch) == (
        3,
        5,
    )


def test_an_older_leaders_word_is_not_believed(admin: Admin, watched: Watched) -> None:
    say(watched, topic_info(2, epoch=5))
    answering(watched, b1=said(1, leads=True, epoch=4), b2=said(2), b3=said(3))
    assert admin.describe_topics()[0].partitions[0].leader == 2


def test_what_did_not_fit_an_answer_is_asked_for_by_name(admin: Admin, watched: Watched) -> None:
    others = [f"{number:04}" for number in range(REQUEST_TOPICS_MAX - 1)]
    say(watched, *(topic_info(1, epoch=3, name=name) for name in (*others, "t")), topic_info(1, name="u"))
    asked: list[list[str]] = []

    def answer(address: str, request: Any) -> Any:
        if address != "b:1":
            return said(2)
        asked.append(list(request.topics))
        if "t" in request.topics:
            return said(1, leads=True)
        cut_off = pb.ObserveResponse(broker=1)
        cut_off.left_out["partitions"] = 2
        return cut_off

    watched.answers["Observe"] = answer
    *_, t, u = admin.describe_topics()
    assert (t.partitions[0].isr, u.partitions[0].isr) == ((1, 3), (1, 2, 3))
    assert asked == [[], [*others, "t"], ["u"]]
