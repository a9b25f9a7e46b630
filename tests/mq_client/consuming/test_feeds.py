"""Consumers of one process that want the same go over to one stream, and nobody waits for anybody: brokers and the loop
are played."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mq_client.cluster.channels import Client as Caller
from mq_client.consuming import feeding
from mq_client.consuming import feeds as feeds_module
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.errors import NotLeader, OffsetOutOfRange, PermissionDenied, QuotaExceeded, TritonMQError, Unreachable
from mq_client.producing.batches import records_to_batch
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.sql.ddl import parse_schema
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.consuming.played_feeds import Loop, World, closes, opens
from tests.mq_client.consuming.played_subscription import CREDIT, Client, Stream, shared_batch


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_two_at_one_place_go_over_to_one_stream_and_leave_their_own(world: World) -> None:
    first, second = world.two()
    [stream] = world.shared
    assert opens(stream) == [(0, 5)]
    assert not first.place().fed, "not before the broker has said where the stream begins"
    first.opened(stream, 0, 5)
    for client in (first, second):
        assert client.place().fed
        assert closes(world.stream(client)) == [0]
        assert world.stream(client).last_said, "nothing else is on it"
        assert not world.stream(client, 2).last_said
    first.push(stream, 0, 5, 2)
    assert first.taken() == second.taken() == [(0, 5), (0, 6)]


def test_each_has_its_own_place_in_what_both_are_given(world: World) -> None:
    first, second, stream = world.met()
    first.push(stream, 0, 5, 3)
    assert first.subscriptions.queues["t"].get_nowait().offset == 5
    first.push(stream, 0, 8, 1)
    assert second.taken() == [(0, 5), (0, 6), (0, 7), (0, 8)]
    assert first.taken() == [(0, 6), (0, 7), (0, 8)]


def test_who_comes_to_the_place_later_is_fed_from_there_without_a_gap_or_a_repeat(world: World) -> None:
    first, _, stream = world.met()
    late = world.client()
    late.opened(world.stream(late), 0, 0)
    first.push(stream, 0, 5, 1)
    late.push(world.stream(late), 0, 0, 4)
    assert not late.place().fed
    assert [offset for _, offset in late.taken()] == list(range(4))
    late.push(world.stream(late), 0, 4, 2)
    assert late.place().fed
    late.push(world.stream(late), 0, 6, 1)  # on its way when it went over
    first.push(stream, 0, 6, 2)
    assert [offset for _, offset in late.taken()] == list(range(4, 8))


def test_who_is_ahead_of_the_stream_waits_until_it_comes_there(world: World) -> None:
    first, _, stream = world.met()
    ahead = world.client()
    ahead.opened(world.stream(ahead), 0, 7)
    assert not ahead.place().fed
    first.push(stream, 0, 5, 2)
    assert ahead.place().fed
    first.push(stream, 0, 7, 1)
    assert ahead.taken() == [(0, 7)]


def test_what_its_own_stream_still_says_of_a_partition_that_is_fed_does_not_count(world: World) -> None:
    clients = []
    for _ in range(2):
        clients.append(client := world.client())
        client.say(topic_info(1, 1, epoch=2))  # its own stream carries the other partition as well, and stays
        client.look()
        client.opened(world.stream(client), 0, 5)
    first, second = clients
    [stream] = world.shared
    first.opened(stream, 0, 5)
    own = world.stream(first)
    assert first.place().fed
    assert not own.last_said
    first.push(own, 0, 5, 1)
    first.opened(own, 0, error=NotLeader("ask 3", 3, 3), active=False)
    assert first.taken() == []
    assert first.place().fed
    first.push(stream, 0, 5, 2)
    assert first.taken() == second.taken() == [(0, 5), (0, 6)]


def test_batches_that_come_before_the_stream_was_opened_feed_nobody(world: World) -> None:
    first, second = world.two()
    [stream] = world.shared
    first.push(stream, 0, 3, 2)
    assert not first.place().fed
    first.opened(stream, 0, 5)
    assert first.place().fed
    assert second.place().fed


def test_a_consumer_that_cannot_work_is_not_fed(world: World) -> None:
    world.met()
    for suspended in (True, False):
        late = world.client()
        late.subscriptions.suspended = suspended
        late.opened(world.stream(late), 0, 5)
        assert late.place().fed is not suspended


def test_who_begins_within_a_batch_is_given_the_rest_of_it(world: World) -> None:
    first, second, stream = world.met()
    first.push(stream, 0, 3, 4)
    assert first.taken() == second.taken() == [(0, 5), (0, 6)]


@pytest.mark.parametrize("options", [{"group": "g"}, {"broadcast": "news"}])
def test_members_of_groups_are_fed_by_nobody_else(world: World, options: dict[str, Any]) -> None:
    first, second = world.client(**options), world.client(**options)
    for client in (first, second):
        client.opened(world.stream(client), 0, 5)
    assert not world.shared


def test_users_are_kept_apart(world: World) -> None:
    first, second = world.client(), world.client()
    second.connection.client = Caller(("b:1",), None, "tunnel:1")
    for client in (first, second):
        client.opened(world.stream(client), 0, 5)
    assert not world.shared


def test_a_topic_that_was_made_again_is_another_one(world: World) -> None:
    first, second = world.client(), world.client(topic_id="y")
    for client in (first, second):
        client.opened(world.stream(client), 0, 5)
    assert not world.shared


def test_who_reads_a_topic_that_was_made_again_takes_nothing_from_who_is_fed_the_former_one(world: World) -> None:
    first, second, stream = world.met()
    others = world.client(topic_id="y"), world.client(topic_id="y")
    for client in others:
        client.opened(world.stream(client), 0, 5)
    assert world.shared == [stream], "on which a partition is one topic's: its messages have the topic's name alone"
    first.push(stream, 0, 5, 1)
    assert first.taken() == second.taken() == [(0, 5)]
    for client in others:
        client.push(world.stream(client), 0, 5, 1)
        assert (client.place().fed, client.taken()) == (False, [(0, 5)])
    first.subscriptions.remove("t")
    second.subscriptions.remove("t")
    assert closes(stream) == [0]
    world.loop.passes(feeds_module.SOON_S)
    others[0].opened(world.shared[1], 0, 6)
    assert others[0].place().fed
    assert others[1].place().fed


def test_who_takes_nothing_goes_on_by_itself_and_the_others_are_fed_on(world: World) -> None:
    slow, fast, stream = world.met(credit_bytes=2 * CREDIT)
    base = 5
    while slow.place().fed:
        fast.push(stream, 0, base, 1)
        assert fast.taken() == [(0, base)]
        base += 1
        assert base < 30, "what it holds has a bound"
    assert slow.subscriptions._feeding._held["b:1"] < 3 * CREDIT
    slow.look()
    own = world.stream(slow)
    assert opens(own) == [(0, base - 1)], "from its own place"
    assert slow.taken() == [(0, offset) for offset in range(5, base - 1)]
    assert slow.subscriptions._feeding._held["b:1"] == 0
    slow.opened(own, 0, base - 1)
    slow.push(own, 0, base - 1, 1)
    assert slow.place().fed, "it is where the others are"
    fast.push(stream, 0, base, 1)
    assert slow.taken() == [(0, base - 1), (0, base)]
    assert not stream.last_said


def test_who_was_too_slow_stays_by_itself_for_some_time(world: World) -> None:
    slow, fast, stream = world.met(credit_bytes=2 * CREDIT)
    world._monkeypatch.setattr(feeding, "APART_S", 1e9)
    base = 5
    while slow.place().fed:
        fast.push(stream, 0, base, 1)
        base += 1
    slow.look()
    slow.taken()
    slow.opened(world.stream(slow), 0, base - 1)
    slow.push(world.stream(slow), 0, base - 1, 1)
    assert slow.place().position == base
    assert not slow.place().fed


def test_who_holds_much_is_not_fed_though_it_is_at_the_place(world: World) -> None:
    first, _, _ = world.met()
    full = world.client(credit_bytes=2 * CREDIT)
    own = world.stream(full)
    full.opened(own, 0, 0)
    full.push(own, 0, 0, 5, value=bytes(CREDIT))
    assert full.place().position == first.place().position
    assert not full.place().fed


def test_when_the_stream_for_all_breaks_each_goes_on_by_itself_from_its_own_place(world: World) -> None:
    first, second, stream = world.met()
    first.push(stream, 0, 5, 2)
    stream.over(Unreachable("the broker is gone"))
    for client in (first, second):
        assert not client.place().fed
        client.look()
        assert opens(world.stream(client)) == [(0, 7)]
        client.opened(world.stream(client), 0, 7)
    assert len(world.shared) == 1, "not at once"
    world.loop.time += feeds_module.SOON_S
    first.push(world.stream(first), 0, 7, 1)
    second.push(world.stream(second), 0, 7, 1)
    assert opens(world.shared[-1]) == [(0, 8)]
    assert len(world.shared) == 2


@pytest.mark.parametrize("error", [QuotaExceeded("no more streams"), PermissionDenied("no right to read")])
def test_a_stream_that_is_refused_is_not_asked_for_again_soon(world: World, error: TritonMQError) -> None:
    first, second = world.two()
    world.shared[0].over(error)
    world.loop.time += feeds_module.AGAIN_S - 1
    for base in (5, 6):
        for client in (first, second):
            client.push(world.stream(client), 0, base, 1)
    assert len(world.shared) == 1
    assert first.taken() == second.taken() == [(0, 5), (0, 6)], "they work without it"
    world.loop.time += 1
    for client in (first, second):
        client.push(world.stream(client), 0, 7, 1)
    assert len(world.shared) == 2


def test_who_knows_a_broker_s_former_stream_port_is_fed_with_the_others(world: World) -> None:
    first, second = world.client(), world.client()
    for client, stream_address in ((first, "b:10"), (second, "b:11")):
        client.connection._stream_addresses["b:1"] = stream_address
        client.opened(world.stream(client), 0, 5)
    [stream] = world.shared
    assert stream.stream_address == "b:11"
    first.opened(stream, 0, 5)
    assert first.place().fed
    assert second.place().fed


def test_a_right_that_is_taken_away_is_told_each_by_its_own_stream(world: World) -> None:
    first, second, stream = world.met()
    stream.over(PermissionDenied("no right to read"))
    for client in (first, second):
        assert client.subscriptions.queues["t"].error is None
        client.look()
        world.stream(client).over(PermissionDenied("no right to read"))
        with pytest.raises(PermissionDenied):
            client.subscriptions.queues["t"].get_nowait()


def test_a_new_leader_is_learned_from_the_stream_for_all(world: World) -> None:
    first, second, stream = world.met()
    first.opened(stream, 0, error=NotLeader("ask 3", 3, 2), active=False)
    for client in (first, second):
        client.look()
        assert world.stream(client, 3).address == "b:3"
        assert opens(world.stream(client, 3)) == [(0, 5)]
    assert stream.last_said, "nothing is left on it"


def test_records_that_were_lost_are_told_to_each_by_its_own_stream(world: World) -> None:
    first, second, stream = world.met()
    first.opened(stream, 0, 20, error=OffsetOutOfRange("lost", 20))
    for client in (first, second):
        client.look()
        own = world.stream(client)
        assert opens(own) == [(0, 5)]
        client.opened(own, 0, 5)
        client.opened(own, 0, 20, error=OffsetOutOfRange("lost", 20))
        client.push(own, 0, 20, 1)
        assert client.taken() == [(0, 20)]


def test_a_batch_that_does_not_follow_is_not_taken(world: World) -> None:
    first, _, stream = world.met()
    first.push(stream, 0, 6, 1)
    assert not first.place().fed
    first.look()
    assert opens(world.stream(first)) == [(0, 5)]


def test_columns_that_one_has_not_heard_of_are_learned_by_its_own_stream(world: World) -> None:
    first, second = world.client(columns="a long"), world.client(columns="a long")
    for client in (first, second):
        client.opened(world.stream(client), 0, 0)
    [stream] = world.shared
    first.opened(stream, 0, 0)
    second.say(topic_info(1, 2, schema=parse_schema("a long, b long")))
    second.look()
    push_row(first, stream, a=1, b=2)
    assert second.subscriptions.queues["t"].get_nowait().value == {"a": 1, "b": 2}
    assert not first.place().fed
    first.look()
    assert opens(world.stream(first)) == [(0, 0)]


def test_who_leaves_the_topic_or_stops_is_given_nothing_more(world: World) -> None:
    first, second, stream = world.met()
    third = world.client()
    third.opened(world.stream(third), 0, 5)
    assert third.place().fed
    first.subscriptions.remove("t")
    place = second.place()
    second.subscriptions._feeding.close(second.subscriptions.places.values())
    first.push(stream, 0, 5, 1)
    assert third.taken() == [(0, 5)]
    assert place.position == 5
    assert not stream.last_said
    third.subscriptions.remove("t")
    assert closes(stream) == [0]
    assert stream.last_said
    assert not feeds_module.feeds(world.loop)._feeds  # type: ignore[arg-type]


def test_a_consumer_that_has_ended_is_not_offered_again(world: World) -> None:
    first, second = world.client(), world.client()
    first.opened(world.stream(first), 0, 5)
    first.subscriptions._feeding.close(first.subscriptions.places.values())
    first.push(world.stream(first), 0, 5, 1)
    second.opened(world.stream(second), 0, 6)
    assert not world.shared


def test_a_partition_that_nobody_is_fed_is_closed_after_some_time(world: World) -> None:
    first, second, stream = world.met(credit_bytes=CREDIT)
    second.subscriptions.credit_bytes = CREDIT
    first.push(stream, 0, 5, 5, value=bytes(CREDIT))
    base = 10
    first.push(stream, 0, base, 1)
    for client in (first, second):
        assert not client.place().fed
    for client in (first, second):
        client.look()
        client.opened(world.stream(client), 0, 10)
    assert not stream.last_said
    world.loop.passes(feeds_module.EMPTY_S)
    assert stream.last_said
    assert first.place().feed is None, "it holds too much to wait for that"
    stream.over(None)
    assert not feeds_module.feeds(world.loop)._streams  # type: ignore[arg-type]


def test_a_stream_that_all_have_left_for_their_own_is_closed_though_nothing_comes_any_more(world: World) -> None:
    world._monkeypatch.setattr(feeding, "APART_S", 1e9)
    first, second, stream = world.met(credit_bytes=CREDIT)
    second.subscriptions.credit_bytes = CREDIT
    first.push(stream, 0, 5, 5, value=bytes(CREDIT))
    first.push(stream, 0, 10, 1)
    for client in (first, second):
        assert not client.place().fed
        client.subscriptions.remove("t")
    assert not stream.last_said
    world.loop.passes(feeds_module.EMPTY_S)
    assert closes(stream) == [0]
    assert stream.last_said
    assert not feeds_module.feeds(world.loop)._feeds  # type: ignore[arg-type]


def test_a_stream_that_somebody_has_come_back_to_stays(world: World) -> None:
    first, second, stream = world.met(credit_bytes=CREDIT)
    second.subscriptions.credit_bytes = CREDIT
    first.push(stream, 0, 5, 5, value=bytes(CREDIT))
    first.push(stream, 0, 10, 1)
    first.subscriptions.credit_bytes = 1 << 20
    first.look()
    first.opened(world.stream(first), 0, 10)
    first.push(world.stream(first), 0, 10, 1)
    first.taken()
    assert first.place().fed
    assert not second.place().fed
    world.loop.passes(feeds_module.EMPTY_S)
    assert not stream.last_said
    first.push(stream, 0, 11, 1)
    assert first.taken() == [(0, 11)]


def test_a_stream_that_is_opened_after_one_that_broke_is_not_closed_in_its_stead(world: World) -> None:
    first, second, stream = world.met(credit_bytes=CREDIT)
    second.subscriptions.credit_bytes = CREDIT
    behind = world.client()
    behind.opened(world.stream(behind), 0, 0)
    first.push(stream, 0, 5, 5, value=bytes(CREDIT))
    first.push(stream, 0, 10, 1)
    stream.over(Unreachable("the broker is gone"))
    world.loop.time += feeds_module.SOON_S
    for client in (first, second):
        client.subscriptions.credit_bytes = 1 << 20
        client.look()
        client.opened(world.stream(client), 0, 10)
    assert len(world.shared) == 2
    world.loop.passes(0)
    assert closes(world.shared[1]) == []
    first.opened(world.shared[1], 0, 10)
    assert first.place().fed
    assert second.place().fed


def test_other_work_of_the_loop_has_its_turn_between_consumers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = world.met()
    feed = first.place().feed
    assert feed is not None
    monkeypatch.setattr(feeds_module, "TURN_S", 0.0)
    giving = feed.push([records_of(base=5)])
    giving.send(None)
    assert first.taken() == [(0, 5), (0, 6)]
    assert second.taken() == []
    late = world.client()
    late.opened(world.stream(late), 0, 7)
    assert late.place().fed, "it is where the stream is, and is given nothing of before"
    second.subscriptions.remove("t")
    giving.send(None)
    with pytest.raises(StopIteration):
        giving.send(None)
    assert late.taken() == []


def test_credit_of_the_stream_for_all_is_given_again_though_nobody_has_taken_anything(world: World) -> None:
    world._monkeypatch.setattr(feeds_module, "CREDIT_BYTES", 1_000)
    first, _, stream = world.met()
    assert [credit.bytes for credit in stream.take("credit")] == [1_000]
    size = first.push(stream, 0, 5, 1)
    assert size * 4 >= 1_000
    assert [credit.bytes for credit in stream.take("credit")] == [size]


def test_a_leader_that_the_consumer_hears_of_by_itself_counts(world: World) -> None:
    first, second, stream = world.met()
    second.say(topic_info(3, 2, epoch=2))
    second.look()
    assert not second.place().fed
    assert opens(world.stream(second, 3)) == [(0, 5)]
    first.push(stream, 0, 5, 1)
    assert first.taken() == [(0, 5)]
    assert second.taken() == []


def push_row(client: Client, stream: Stream, **row: Any) -> None:
    words = ", ".join(f"{name} long" for name in row)
    payload = memoryview(encode_batch(pa.RecordBatch.from_pylist([row], schema=parse_schema(words))))
    stored = pb.StoredBatch(topic="t", partition=0, base_offset=0, record_count=1, payload_bytes=len(payload))
    client.hear(stream, pb.BatchesHeader(batches=[stored]), payload)


def records_of(count: int = 2, base: int = 0) -> SharedBatch:
    payload = memoryview(encode_batch(records_to_batch([], [b"v"] * count, [], [0] * count)))
    return shared_batch(payload, base, count)


def test_records_are_made_once_for_all_and_columns_for_each(world: World) -> None:
    first, second, stream = world.met()
    first.push(stream, 0, 5, 1)
    mine, theirs = first.subscriptions.queues["t"].get_nowait(), second.subscriptions.queues["t"].get_nowait()
    assert mine is theirs


def test_rows_are_each_consumer_s_to_change(world: World) -> None:
    clients = [world.client(columns="a long"), world.client(columns="a long")]
    for client in clients:
        client.opened(world.stream(client), 0, 0)
    [stream] = world.shared
    clients[0].opened(stream, 0, 0)
    push_row(clients[0], stream, a=1)
    mine, theirs = (client.subscriptions.queues["t"].get_nowait().value for client in clients)
    mine["a"] = 7
    assert theirs == {"a": 1}


def test_decoded_batches_are_kept_for_a_while_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [records_of() for _ in range(3)]
    monkeypatch.setattr(feeds_module, "KEPT_DECODED_BYTES", 2 * len(batches[0].payload))
    loop: Any = Loop()
    kept = feeds_module.Feeds(loop)
    made: list[int] = []

    def make(rows: pa.RecordBatch) -> list[Any]:
        made.append(rows.num_rows)
        return [object()]

    schema = records_to_batch([], [b"v"], [], [0]).schema
    for batch in batches:
        kept.keep([batch])
        batch.records(schema, 1, make)
        batch.records(schema, 1, make)
    assert made == [2, 2, 2]
    batches[0].records(schema, 1, make)
    batches[2].records(schema, 1, make)
    assert made == [2, 2, 2, 2], "only the first was too long ago"
    batches[2].records(schema, 2, make)
    assert made == [2, 2, 2, 2, 2], "who knows the topic with other columns has them decoded so"
