"""Queue groups administered at brokers that the test plays: pages, lost answers, and what is refused before anybody is
asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mq_client import Queue
from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    InternalError,
    InvalidRequest,
    InvalidSetting,
    OffsetOutOfRange,
    OutcomeUnknown,
    TritonMQError,
    UnknownQueue,
)
from mq_client.queueing import administration as asking
from mq_client.queueing.administrator import QueueAdministrator
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.administrating import answers, say
from tests.mq_client.cluster.scripted import Scripted, played_clock, topic_info

INFO = pb.QueueInfo(topic="t", group="g", life=1)


class Administrator(QueueAdministrator):
    def __init__(self, connection: Scripted) -> None:
        self._connection = connection
        self._timeout_ms = 5_000.0


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted(played_clock(monkeypatch))
    say(made, topic_info(1, 2))
    made.learn(topic_info(1, 2))
    return made


def described(connection: Scripted, *begun: bool) -> list[Any]:
    """Partitions say in turn whether they have begun; the last word for ever."""
    left = list(begun)

    def answer(_: str, request: pb.DescribeQueueRequest) -> pb.DescribeQueueResponse:
        requests.append(request)
        word = left.pop(0) if len(left) > 1 else left[0]
        found = [pb.QueuePartition(partition=number, life=int(word)) for number in request.partitions]
        return pb.DescribeQueueResponse(queue=INFO, partitions=found)

    requests: list[Any] = []
    connection.answers["DescribeQueue"] = answer
    return requests


# ---------------------------------------------------------------- declaring and deleting


def test_a_queue_that_was_declared_is_waited_for_until_every_partition_has_begun_it(scripted: Scripted) -> None:
    made = answers(scripted, "AlterQueue", pb.AlterQueueResponse(queue=INFO, made=True))
    asked = described(scripted, True, False, True)
    _, new = asking.declare(scripted, "t", "g", "earliest", {"paused": True}, Deadline(5_000))
    assert (new, len(asked), len(made)) == (True, 4, 1)


def test_a_queue_that_is_there_is_not_waited_for(scripted: Scripted) -> None:
    requests = answers(scripted, "AlterQueue", pb.AlterQueueResponse(queue=INFO))
    asked = described(scripted, False)
    for start, wanted in (
        ("earliest", (True, False, 0)),
        ("latest", (False, True, 0)),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), (False, False, 1_000_000)),
    ):
        assert not asking.declare(scripted, "t", "g", start, {"paused": True, "lease_ms": 5}, Deadline(5_000))[1]
        assert (requests[-1].earliest, requests[-1].latest, requests[-1].timestamp_us) == wanted
    assert dict(requests[0].settings) == {"paused": "true", "lease_ms": "5"}
    assert asked == []


def test_deleting_what_is_gone_is_an_error_unless_an_answer_was_lost(scripted: Scripted) -> None:
    answers(scripted, "AlterQueue", UnknownQueue("no such queue"))
    with pytest.raises(UnknownQueue):
        asking.delete(scripted, "t", "g", Deadline(5_000))
    answers(scripted, "AlterQueue", OutcomeUnknown("no answer"), UnknownQueue("no such queue"))
    asking.delete(scripted, "t", "g", Deadline(5_000))


# ---------------------------------------------------------------- pages


def test_queues_are_asked_for_page_by_page_and_told_in_order(scripted: Scripted) -> None:
    def info(topic: str, group: str) -> pb.QueueInfo:
        return pb.QueueInfo(topic=topic, group=group, life=1)

    requests = answers(
        scripted,
        "Queues",
        pb.QueuesResponse(queues=[info("b", "x"), info("a", "z")], more=True),
        pb.QueuesResponse(queues=[info("a", "y")]),
    )
    seen = []
    plain = scripted.answers["Queues"]

    def noted(address: str, request: Any) -> Any:
        seen.append((request.topic, request.after_topic, request.after_group))
        return plain(address, request)

    scripted.answers["Queues"] = noted
    found = asking.list_queues(scripted, None, Deadline(5_000))
    assert [(queue.topic, queue.group) for queue in found] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert seen == [("", "", ""), ("", "a", "z")]
    assert len(requests) == 2
    answers(scripted, "Queues", pb.QueuesResponse(more=True))
    with pytest.raises(InternalError, match="says that there is more"):  # clients believe no broker
        asking.list_queues(scripted, "t", Deadline(5_000))


def test_runs_are_asked_for_in_parts_and_no_more_than_wanted(scripted: Scripted) -> None:
    def part(*runs: tuple[int, int], more: bool) -> pb.DescribeQueueResponse:
        made = [pb.QueueRun(first=first, end=end, state=pb.RECORD_READY) for first, end in runs]
        return pb.DescribeQueueResponse(queue=INFO, partitions=[pb.QueuePartition(partition=1, runs=made, more=more)])

    requests = answers(scripted, "DescribeQueue", part((0, 2), (5, 6), more=True), part((8, 9), more=False))
    found = Administrator(scripted).queue_records("t", "g", 1, "ready")
    assert [(run.first, run.end) for run in found] == [(0, 2), (5, 6), (8, 9)]
    assert [(request.after, list(request.partitions)) for request in requests] == [(0, [1]), (6, [1])]
    requests = answers(scripted, "DescribeQueue", part((0, 2), (5, 6), more=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mq_client.queueing.administrator.BROWSED_MAX", 3)
        assert len(Administrator(scripted).queue_records("t", "g", 1)) == 3
    assert len(requests) == 2
    answers(scripted, "DescribeQueue", part(more=True))
    assert Administrator(scripted).queue_records("t", "g", 1) == []


# ---------------------------------------------------------------- browsing


class Stored:
    """In the place of `Reader`: 100 records in batches of 4, of which the first ones are gone."""

    start = 0
    asked: list[tuple[int, int, int]] = []  # noqa: RUF012 - one for a test, set by it

    def __init__(self, *_: object) -> None:
        pass

    def read_stored(self, _topic: str, partition: int, first: int, end: int) -> Any:
        Stored.asked.append((partition, first, end))
        if first < Stored.start:
            raise OffsetOutOfRange("gone", next_offset=Stored.start)
        while first < end:
            until = min(end, first + 4)
            batch = type("Batch", (), {"num_rows": until - first})
            yield type("Piece", (), {"batch": batch, "base_offset": first, "end_offset": until, "timestamp_us": 0})
            first = until


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> type[Stored]:
    Stored.start, Stored.asked = 0, []
    monkeypatch.setattr(asking, "Reader", Stored)
    monkeypatch.setattr(
        asking,
        "batch_to_records",
        lambda batch, topic, partition, base, _, typed: [(partition, base + at) for at in range(batch.num_rows)],
    )
    return Stored


def test_the_first_records_in_a_state_are_read_by_partition_and_offset(
    scripted: Scripted, stored: type[Stored]
) -> None:
    def answer(_: str, request: pb.DescribeQueueRequest) -> pb.DescribeQueueResponse:
        [number] = request.partitions
        runs = [pb.QueueRun(first=first, end=first + 5, state=pb.RECORD_PARKED) for first in (10, 20)]
        return pb.DescribeQueueResponse(queue=INFO, partitions=[pb.QueuePartition(partition=number, runs=runs)])

    scripted.answers["DescribeQueue"] = answer
    admin = Administrator(scripted)
    for count, expected in (
        (1, [(0, 10)]),
        (7, [*((0, at) for at in range(10, 15)), (0, 20), (0, 21)]),
        (10, [(0, at) for first in (10, 20) for at in range(first, first + 5)]),
        (11, [*((0, at) for first in (10, 20) for at in range(first, first + 5)), (1, 10)]),
    ):
        assert admin.peek_queue("t", "g", count, "parked") == expected
    stored.asked.clear()
    admin.peek_queue("t", "g", 10, "parked")
    assert {partition for partition, _, _ in stored.asked} == {0}, "no more is read than is wanted"


# ---------------------------------------------------------------- refused before anybody is asked

BAD = "no/name"


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin, topic, group: admin.declare_queue(topic, group),
        lambda admin, topic, group: admin.alter_queue(topic, group, lease_ms="5m"),
        lambda admin, topic, group: admin.pause_queue(topic, group),
        lambda admin, topic, group: admin.describe_queue(topic, group),
        lambda admin, topic, group: admin.queue_records(topic, group, 0),
        lambda admin, topic, group: admin.peek_queue(topic, group),
        lambda admin, topic, group: admin.pop_queue(topic, group),
        lambda admin, topic, group: admin.purge_queue(topic, group),
        lambda admin, topic, group: admin.delete_queue(topic, group),
        lambda admin, topic, group: admin.list_queues(topic if group == "g" else BAD),
    ],
)
def test_names_that_cannot_be_are_refused_at_once(
    scripted: Scripted, ask: Callable[[Administrator, str, str], object]
) -> None:
    for topic, group in ((BAD, "g"), ("t", BAD)):
        with pytest.raises(TritonMQError, match="name"):
            ask(Administrator(scripted), topic, group)
    assert scripted.asked == []


def test_counts_and_starts_that_cannot_be_are_refused_at_once(scripted: Scripted) -> None:
    admin = Administrator(scripted)
    for count in (0, -1, asking.BROWSED_MAX + 1):
        for ask in (admin.pop_queue, admin.peek_queue):
            with pytest.raises(InvalidRequest, match="can be asked for at once"):
                ask("t", "g", count)
    with pytest.raises(InvalidRequest, match=r"did you mean 'latest'\? give"):
        admin.declare_queue("t", "g", start="lastest")
    assert scripted.asked == []
    for options in (
        {"in_flight_max": 0},
        {"in_flight_max": 1 << 31},
        {"in_flight_max": "1"},
        {"in_flight_bytes_max": 0},
        {"working": True},
        {"ack": "later"},
        {"lease_ms": 999},
        {"lease_ms": "5m"},
        {"lease_ms": 12 * 3_600_000 + 1},
        {"idle_ms": -1},
        {"timeout_ms": 0},
    ):
        with pytest.raises(InvalidSetting):
            Queue("b:1", "t", "g", **options)  # type: ignore[arg-type]
    for topic, group, member in ((BAD, "g", None), ("t", BAD, None), ("t", "g", BAD * 500)):
        with pytest.raises(TritonMQError):
            Queue("b:1", topic, group, member_id=member)
    for options in (
        {"in_flight_max": (1 << 31) - 1, "working": 1},
        {"lease_ms": 1_000},
        {"lease_ms": 12 * 3_600_000},
    ):
        Queue("b:1", "t", "g", **options).close()  # type: ignore[arg-type]
