"""What subscriptions say to brokers and believe of them, one word at a time. The test is the thread, the brokers and
the clock."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from mq_client.cluster.deadline import Deadline
from mq_client.errors import (
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    PermissionDenied,
    UnknownTopic,
    Unreachable,
)
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.sql.ddl import parse_schema
from tests.logs import said_here
from tests.mq_client.cluster.scripted import told, topic_info
from tests.mq_client.consuming.played_subscription import CREDIT, Client, big


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(monkeypatch)
    made.subscribe("t")
    return made


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(monkeypatch, "g")
    made.subscribe("t")
    return made


# ---------------------------------------------------------------- opening


def test_a_topic_that_is_subscribed_to_already_is_left_as_it_is(client: Client) -> None:
    client.opened(client.stream(1), 0, 5)
    queue, place = client.subscriptions.queues["t"], client.place()
    client.subscribe("t")
    assert client.subscriptions.queues["t"] is queue
    assert client.place() is place


def test_a_partition_that_moves_is_closed_at_the_former_leader_and_goes_on_at_the_next(client: Client) -> None:
    first = client.stream(1)
    client.opened(first, 0, 5)
    client.push(first, 0, 5, 2)
    first.said.clear()
    client.stream(2).said.clear()
    client.say(topic_info(2, 2, epoch=2))
    client.look()
    assert [(p.topic, p.partition) for closing in first.take("close") for p in closing.partitions] == [("t", 0)]
    [opening] = client.stream(2).take("open")
    assert [(p.partition, p.offset) for p in opening.partitions] == [(0, 7)]
    assert first.last_said  # nothing is opened there any more
    assert (client.place().active, client.place().answered) == (False, False)
    client.push(first, 0, 7, 1)  # too late
    assert client.taken() == [(0, 5), (0, 6)]


def test_an_added_partition_begins_at_its_first_record(client: Client) -> None:
    client.say(topic_info(1, 2, 1))
    client.look()
    [wanted] = client.stream(1).take("open")[-1].partitions
    assert (wanted.partition, wanted.earliest, wanted.latest) == (2, True, False)
    assert client.place(2).added
    assert not client.place(1).added


def test_a_topic_that_cannot_be_asked_about_for_now_holds_up_no_other(client: Client) -> None:
    def answer(request: pb.MetadataRequest) -> Any:
        return Overloaded("busy") if "t" in request.topics else told(topic_info(3, name="u"))

    client.connection.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), answer)
    client.connection.clock.now += 1
    client.subscribe("u")
    assert client.stream(3).take("open")[0].partitions[0].topic == "u"
    assert client.subscriptions.queues["t"].error is None


def test_a_topic_that_is_gone_ends_and_the_others_go_on(client: Client) -> None:
    client.say(topic_info(1, name="u"))
    client.connection.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), told(topic_info(1, name="u"), unknown=("t",)))
    client.subscribe("u")
    assert isinstance(client.subscriptions.queues["t"].error, UnknownTopic)
    assert list(client.subscriptions.views) == ["u"]
    assert [place for place in client.subscriptions.places if place[0] == "t"] == []
    assert client.stream(2).last_said
    assert not client.stream(1).last_said


# ---------------------------------------------------------------- what brokers say


def test_a_partition_that_another_member_has_is_not_waited_for(member: Client) -> None:
    member.opened(member.stream(1), 0, 3)
    member.push(member.stream(1), 0, 3, 2)
    member.opened(member.stream(1), 0, active=False)
    assert member.taken() == []
    assert member.place().position == -1
    assert member.place().answered


def test_it_is_waited_for_until_all_partitions_are_opened(client: Client) -> None:
    with pytest.raises(OutcomeUnknown, match="t-0, t-1 could not be subscribed to within 0 ms"):
        client.subscriptions.wait_opened(["t"], Deadline(0))
    client.opened(client.stream(1), 0)
    with pytest.raises(OutcomeUnknown, match=r"^t-1 could not be subscribed to within 0 ms: their leaders have not"):
        client.subscriptions.wait_opened(["t"], Deadline(0))
    client.opened(client.stream(2), 1, active=False, error=NotLeader("broker 2 keeps its replica closed"))
    with pytest.raises(OutcomeUnknown, match=r"0 ms: broker 2 keeps its replica closed; `tritonmq doctor` looks for"):
        client.subscriptions.wait_opened(["t"], Deadline(0))
    client.look()
    client.opened(client.stream(2), 1, active=False)
    client.subscriptions.wait_opened(["t"], Deadline(0))
    client.subscriptions.wait_opened(["u"], Deadline(0))
    client.subscriptions.fail("t", UnknownTopic("gone"))
    with pytest.raises(UnknownTopic):
        client.subscriptions.wait_opened(["t"], Deadline(0))


def test_a_partition_that_is_refused_ends_its_topic(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.opened(client.stream(2), 1, active=False, error=InvalidRequest("no"))
    assert isinstance(client.subscriptions.queues["t"].error, InvalidRequest)
    assert said_here(caplog) == [], "it is raised, and need not be said twice"
    client.subscriptions.fail("t", UnknownTopic("later"))
    assert isinstance(client.subscriptions.queues["t"].error, InvalidRequest)  # the first reason stays


def test_what_a_subscription_that_failed_still_holds_is_given_back_to_the_next_one(client: Client) -> None:
    stream = client.stream(1)
    client.opened(stream, 0, 5)
    sizes = [big(client, stream, base) for base in (5, 6)]
    failed = client.subscriptions.queues["t"]
    assert failed.get_nowait().offset == 5
    stream.said.clear()
    client.subscriptions.fail("t", UnknownTopic("gone"))
    client.subscribe("t")
    assert [credit.bytes for credit in stream.take("credit")] == [sizes[1]]
    assert client.subscriptions.held("b:1") == 0
    with pytest.raises(UnknownTopic):
        failed.get_nowait()
    client.opened(stream, 0, 9)
    big(client, stream, 9)
    assert client.taken() == [(0, 9)]


def lose(client: Client, up_to: int) -> None:
    error = OffsetOutOfRange(f"lost: go on at {up_to}", up_to)
    client.opened(client.stream(1), 0, up_to, error=error)


def test_what_is_held_from_before_a_loss_is_handed_out_and_the_group_s_place_passes_over_what_was_lost(
    member: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stream, waiting = member.stream(1), member.subscriptions.queues["t"]
    member.opened(stream, 0, 0)
    member.push(stream, 0, 0, 2)
    lose(member, 5)
    assert said_here(caplog) == ["t-0: lost: go on at 5"]
    member.push(stream, 0, 5, 1)
    assert member.taken() == [(0, 0), (0, 1), (0, 5)]
    waiting.done_with_last()
    lose(member, 9)
    member.subscriptions._settle()
    assert stream.take("settled")[-1][0].offset == 9, "all before it is done with"


def test_a_loss_that_a_former_subscription_is_told_of_does_not_move_the_present_one(client: Client) -> None:
    client.opened(client.stream(1), 0, 0)
    client.subscriptions.remove("t")
    client.subscribe("t")
    lose(client, 5)
    client.opened(client.stream(1), 0, 3)
    client.push(client.stream(1), 0, 3, 1)
    assert client.taken() == [(0, 3)]


def test_a_topic_that_was_made_again_ends_the_subscription_behind_what_is_held(client: Client) -> None:
    client.opened(client.stream(1), 0, 0)
    client.push(client.stream(1), 0, 0, 2)
    former = client.subscriptions.queues["t"]
    client.say(topic_info(1, 2, topic_id="another"))
    client.look()
    assert client.taken() == [(0, 0), (0, 1)]
    with pytest.raises(UnknownTopic, match="subscribe anew"):
        former.get_nowait()
    client.subscribe("t")
    assert client.stream(1).take("open")[-1].partitions[0].topic_id == "another"


def test_words_about_what_is_not_subscribed_to_are_passed_over(client: Client) -> None:
    stream = client.stream(1)
    stream.said.clear()
    client.opened(stream, 7)
    payload = memoryview(b"x" * CREDIT)
    stored = pb.StoredBatch(topic="u", partition=0, base_offset=0, record_count=1, payload_bytes=CREDIT)
    client.hear(stream, pb.BatchesHeader(batches=[stored]), payload)
    assert [credit.bytes for credit in stream.take("credit")] == [CREDIT]  # what was pushed in vain may be pushed again
    client.opened(client.stream(2), 0, 9)  # it is opened at the other broker
    assert client.place().position == -1


def test_without_a_group_a_gap_is_told_and_passed_over(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.opened(client.stream(1), 0, 3)
    client.push(client.stream(1), 0, 3, 2)
    with caplog.at_level(logging.WARNING):
        client.opened(client.stream(1), 0, 5)
        assert said_here(caplog) == []
        client.opened(client.stream(1), 0, 9)
    assert said_here(caplog) == ["t-0: offsets 5 to 8 are no longer kept"]
    client.push(client.stream(1), 0, 9, 1)
    assert client.taken() == [(0, 3), (0, 4), (0, 9)]


def test_in_a_group_what_others_were_done_with_is_dropped_and_done_with(
    member: Client, caplog: pytest.LogCaptureFixture
) -> None:
    member.opened(member.stream(1), 0, 3)
    member.push(member.stream(1), 0, 3, 4)
    member.opened(member.stream(1), 0, 5)
    place = member.place()
    assert (place.began, place.processed, place.taken, place.position, place.pushed, place.settled) == (
        5,
        5,
        5,
        7,
        5,
        5,
    )
    assert said_here(caplog) == []
    assert member.taken() == [(0, 5), (0, 6)]
    member.opened(member.stream(1), 0, 4)  # the group is told to be behind, where this member knows better
    assert (place.began, place.processed, place.pushed, place.settled) == (5, 6, 4, 4)


def test_a_stream_that_breaks_is_logged_unless_it_was_to_end(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, second = client.stream(1), client.stream(2)
    first.over(None)
    assert said_here(caplog) == []
    client.subscriptions._sessions["b:2"].end()
    second.over(Unreachable("connection reset"))
    assert said_here(caplog) == []
    client.look()
    client.stream(1).over(Unreachable("connection reset"))
    assert [text[:26] for text in said_here(caplog)] == ["subscription at b:1 ended:"]


def test_a_stream_that_is_refused_for_want_of_a_right_ends_the_topics_that_were_on_it(client: Client) -> None:
    client.stream(2).over(PermissionDenied("no right to read"))
    with pytest.raises(PermissionDenied):
        client.subscriptions.queues["t"].get_nowait()
    client.look()
    assert len(client.streams) == 2, "no other broker would grant it"


# ---------------------------------------------------------------- columns that were added


def typed(client: Client, words: str) -> None:
    client.say(topic_info(1, 2, schema=parse_schema(words)))


def push_row(client: Client, base: int, **row: Any) -> None:
    words = ", ".join(f"{name} long" for name in row)
    payload = memoryview(encode_batch(pa.RecordBatch.from_pylist([row], schema=parse_schema(words))))
    stored = pb.StoredBatch(topic="t", partition=0, base_offset=base, record_count=1, payload_bytes=len(payload))
    client.hear(client.stream(1), pb.BatchesHeader(batches=[stored]), payload)


def test_a_batch_with_more_columns_than_are_known_makes_it_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch)
    typed(client, "a long")
    client.subscribe("t")
    client.opened(client.stream(1), 0, 0)
    client.connection.asked.clear()
    typed(client, "a long, b long")
    push_row(client, 0, a=1)
    assert client.connection.asked == []
    push_row(client, 1, a=2, b=3)
    assert len(client.connection.asked) == 1
    queue = client.subscriptions.queues["t"]
    assert [queue.get_nowait().value for _ in range(2)] == [{"a": 1}, {"a": 2, "b": 3}]


def test_a_broker_that_is_the_last_to_hear_of_added_columns_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch)
    typed(client, "a long")
    client.subscribe("t")
    client.opened(client.stream(1), 0, 0)
    client.connection.asked.clear()
    known = told(topic_info(1, 2, schema=parse_schema("a long, b long")))

    def late(_request: pb.MetadataRequest) -> pb.MetadataResponse:
        behind = len(client.connection.asked) < 3
        return told(topic_info(1, 2, schema=parse_schema("a long"))) if behind else known

    client.connection.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), late)
    push_row(client, 0, a=2, b=3)
    assert len(client.connection.asked) == 3
    assert client.subscriptions.queues["t"].get_nowait().value == {"a": 2, "b": 3}


def test_columns_that_nobody_can_tell_of_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch)
    typed(client, "a long")
    client.subscribe("t")
    client.opened(client.stream(1), 0, 0)
    client.connection._answered = None
    client.connection.clock.now += 1
    client.connection.brokers_say = dict.fromkeys(("b:1", "b:2", "b:3"), InvalidRequest("no"))
    push_row(client, 0, a=2, b=3)
    assert client.subscriptions.queues["t"].get_nowait().value == {"a": 2}
    assert client.subscriptions.queues["t"].error is None


# ---------------------------------------------------------------- credit


# ---------------------------------------------------------------- settling


# ---------------------------------------------------------------- the end


def test_what_is_unsubscribed_is_settled_closed_and_its_credit_given_back(member: Client) -> None:
    stream = member.stream(1)
    member.opened(stream, 0, 0)
    big(member, stream, 0)
    size = member.push(stream, 0, 1, 2)
    queue = member.subscriptions.queues["t"]
    queue.get_nowait()
    stream.said.clear()
    member.subscriptions.remove("t")
    assert [[p.offset for p in some] for some in stream.take("settled")] == [[1]]
    assert [p.partition for closing in stream.take("close") for p in closing.partitions] == [0]
    assert sum(credit.bytes for credit in stream.take("credit")) == size
    assert member.subscriptions.places == {}
    assert member.subscriptions.views == {}
    member.subscriptions.remove("t")
    assert queue.empty()


@pytest.fixture
def moved(member: Client) -> list[Any]:
    """The cursors that are moved at the end."""
    calls: list[Any] = []

    def move(_address: str, request: pb.MoveCursorsRequest) -> pb.MoveCursorsResponse:
        positions = [(place.topic, place.partition, place.offset) for place in request.positions]
        calls.append((request.group, positions, request.kind, request.member_id))
        return pb.MoveCursorsResponse(
            partitions=[pb.PartitionOffsets(partition=place.partition) for place in request.positions]
        )

    member.connection.answers["MoveCursors"] = move
    return calls


@pytest.mark.parametrize(("last_is_done", "offset"), [(True, 7), (False, 6)])
def test_a_member_that_stops_leaves_the_groups_place_where_it_is(
    member: Client, moved: list[Any], last_is_done: bool, offset: int
) -> None:
    stream = member.stream(1)
    member.opened(stream, 0, 5)
    member.opened(member.stream(2), 1, 5)
    member.push(stream, 0, 5, 3)
    queue = member.subscriptions.queues["t"]
    queue.get_nowait()
    queue.get_nowait()
    for _ in range(2):
        member.subscriptions.stop(Deadline(1_000), last_is_done=last_is_done)
    assert moved == [("g", [("t", 0, offset)], "consumer", "me")]
    assert [stream.last_said for stream in member.streams] == [True, True]
    assert [(stream.waited, stream.cancelled) for stream in member.streams] == [(True, True)] * 2
    assert queue.empty()
    member.say(topic_info(1, 2, name="u"))
    streams = len(member.streams)
    member.look()
    assert len(member.streams) == streams


def test_a_place_that_cannot_be_left_behind_does_not_stop_the_end(
    member: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: Any) -> NoReturn:
        raise PermissionDenied("gone")

    member.opened(member.stream(1), 0, 5)
    member.push(member.stream(1), 0, 5, 3)
    member.subscriptions.queues["t"].get_nowait()
    member.connection.answers["MoveCursors"] = gone
    with caplog.at_level(logging.WARNING):
        member.subscriptions.stop(Deadline(1_000), last_is_done=True)
    assert said_here(caplog) == ["group g may be given some records again: gone"]
    assert member.streams[0].cancelled
