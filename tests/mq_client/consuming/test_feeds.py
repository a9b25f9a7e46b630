"""Consumers of one process that want the same go over to one stream, and nobody waits for anybody: brokers and the loop
are played."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mq_client.cluster.client import Client as Caller
from mq_client.consuming import feeds as feeds_module
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.errors import NotLeader, OffsetOutOfRange, QuotaExceeded, TritonMQError, Unreachable
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


def test_a_consumer_that_cannot_work_is_not_fed(world: World) -> None:
    world.met()
    for suspended in (True, False):
        late = world.client()
        late.subscriptions.suspended = suspended
        late.opened(world.stream(late), 0, 5)
        assert late.place().fed is not suspended


@pytest.mark.parametrize("options", [{"group": "g"}, {"broadcast": "news"}])
def test_members_of_groups_are_fed_by_nobody_else(world: World, options: dict[str, Any]) -> None:
    first, second = world.client(**options), world.client(**options)
    for client in (first, second):
        client.opened(world.stream(client), 0, 5)
    assert not world.shared


def test_users_are_kept_apart(world: World) -> None:
    first, second = world.client(), world.client()
    second.connection.client = Caller(("b:1",), forward=True)
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


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(Unreachable("the broker is gone"), feeds_module.SOON_S), (QuotaExceeded("no more"), feeds_module.AGAIN_S)],
)
def test_a_stream_that_may_not_be_opened_yet_is_opened_in_time_though_nothing_comes(
    world: World, error: TritonMQError, wait_s: float
) -> None:
    first, second = world.two()
    for number in (1, 2):
        world.shared[-1].over(error)
        world.loop.passes(wait_s - 0.1)
        assert len(world.shared) == number
        world.loop.passes(0.1)
    first.opened(world.shared[2], 0, 5)
    assert first.place().fed
    assert second.place().fed


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(NotLeader("ask 3", 3, 2), feeds_module.SOON_S), (OffsetOutOfRange("lost"), feeds_module.AGAIN_S)],
)
def test_a_partition_that_was_refused_is_asked_for_again_in_time(
    world: World, error: TritonMQError, wait_s: float
) -> None:
    first, second = world.two()
    first.opened(world.shared[0], 0, error=error, active=False)
    for client in (first, second):
        client.push(world.stream(client), 0, 5, 1)
    world.loop.passes(wait_s - 0.1)
    assert [opens(stream) for stream in world.shared] == [[(0, 5)]]
    world.loop.passes(0.1)
    assert opens(world.shared[1]) == [(0, 6)]


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


def test_an_answer_to_a_former_opening_leaves_nobody_where_the_stream_is_not(world: World) -> None:
    clients = []
    for _ in range(6):
        clients.append(client := world.client())
        client.say(topic_info(1, 1, epoch=2))  # partition 1 is on the same broker, and keeps the stream open
        client.look()
    others, (early, leaves), late = clients[:2], clients[2:4], clients[4:]
    for client in others:
        client.opened(world.stream(client), 1, 0)
    [stream] = world.shared
    others[0].opened(stream, 1, 0)
    for client in (early, leaves):
        client.opened(world.stream(client), 0, 5)
    leaves.subscriptions._feeding.close(leaves.subscriptions.places.values())
    world.loop.passes(feeds_module.EMPTY_S)
    assert closes(stream) == [0], "before it was answered"
    for client in late:
        client.opened(world.stream(client), 0, 100)
    early.opened(stream, 0, 5)
    early.opened(stream, 0, 100)
    assert [client.place().fed for client in (early, *late)] == [False, True, True]
    early.look()
    assert (0, 5) in opens(world.stream(early))


def test_credit_of_the_stream_for_all_is_given_again_though_nobody_has_taken_anything(world: World) -> None:
    first, _, stream = world.met()
    assert [credit.bytes for credit in stream.take("credit")] == [feeds_module.CREDIT_BYTES]
    size = first.push(stream, 0, 5, 1, value=bytes(feeds_module.CREDIT_BYTES // 4))
    assert [credit.bytes for credit in stream.take("credit")] == [size]


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


def push_row(client: Client, stream: Stream, **row: Any) -> None:
    words = ", ".join(f"{name} long" for name in row)
    payload = memoryview(encode_batch(pa.RecordBatch.from_pylist([row], schema=parse_schema(words))))
    stored = pb.StoredBatch(topic="t", partition=0, base_offset=0, record_count=1, payload_bytes=len(payload))
    client.hear(stream, pb.BatchesHeader(batches=[stored]), payload)


def records_of(count: int = 2, base: int = 0, size: int = 1) -> SharedBatch:
    payload = memoryview(encode_batch(records_to_batch([], [bytes(size)] * count, [], [0] * count)))
    return shared_batch(payload, base, count)


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


def test_decoded_batches_are_kept_for_a_while_within_a_bound() -> None:
    batches = [records_of(size=feeds_module.KEPT_DECODED_BYTES // 5) for _ in range(3)]
    assert 2 <= feeds_module.KEPT_DECODED_BYTES / len(batches[0].payload) < 3
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
