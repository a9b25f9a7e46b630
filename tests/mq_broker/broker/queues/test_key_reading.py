"""Keys of records, as leaders read them for queue groups that are in order."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.group.row_reading import RowReading, hashed
from mq_broker.broker.queues.policy.ordering import READ_AT_ONCE
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.work.steps import Accept
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch, schema_to_bytes
from mq_protocol.errors import InvalidSetting, NotEnoughReplicas, OffsetOutOfRange
from mq_protocol.queues.columns import keys_of
from mq_protocol.queues.settings import Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member, queue, ranges
from tests.mq_broker.broker.queues.partitions import Around, Group, Led, offsets

SEED = b"s" * 32


def records(*keys: bytes | None) -> pa.RecordBatch:
    columns = {name: [None] * len(keys) for name in RECORD_SCHEMA.names} | {"key": list(keys)}
    return pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)


def test_equal_keys_have_equal_hashes_and_what_has_no_key_is_left_out() -> None:
    payload = encode_batch(records(b"a", None, b"b", b"a", b"")).to_pybytes()
    offsets, hashes = hashed([(10, 5, 0, payload), (15, 5, 0, payload)], RECORD_SCHEMA, "", SEED, (12, 17))
    assert offsets == [12, 13, 14, 15]
    assert hashes[1] == hashes[3]
    assert len(set(hashes)) == 3
    assert hashes != hashed([(10, 5, 0, payload), (15, 5, 0, payload)], RECORD_SCHEMA, "", b"o" * 32, (12, 17))[1]


def test_a_batch_that_cannot_be_read_has_one_key_and_others_have_theirs() -> None:
    payload = encode_batch(records(b"a", b"b")).to_pybytes()
    offsets, hashes = hashed([(0, 3, 0, b"no batch"), (3, 2, 0, payload)], RECORD_SCHEMA, "", SEED, (1, 5))
    assert offsets == [1, 2, 3, 4]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_columns_of_many_types_are_keys() -> None:
    for kind, values in (
        (pa.int64(), [7, 7, None, 8]),
        (pa.string(), ["x", "x", None, "é"]),
        (pa.bool_(), [True, True, None, False]),
        (pa.timestamp("ns", tz="Europe/Berlin"), [7, 7, None, 8]),
        (pa.dictionary(pa.int32(), pa.string()), ["x", "x", None, "y"]),
    ):
        rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["c"])
        first, same, none, other = keys_of(rows, "c").to_pylist()
        assert first == same != other
        assert none is None


@virtual_time
async def test_records_of_a_key_are_lent_to_one_member_and_describe_names_a_key_that_is_stuck(tmp_path: Path) -> None:
    async with queue(tmp_path, records=0, order="key", order_by="n", dead_letter="park") as broker:
        await broker.produce("t", 1, 2, 1)
        await broker.produce("t", 2, 1, 3)
        one, two = Member(broker, "a"), Member(broker, "b")
        first = await one.lease(2)
        assert (ranges(first), first.order, first.order_by) == ([0, 2], pb.ORDER_KEY, "n")
        assert ranges(await two.lease(10)) == [5, 1]
        second = await one.lease(2, held=[first.lease])
        assert ranges(second) == [2, 2]
        [answer] = await one.settle(pb.SettleOne(lease=first.lease, ranges=[0, 1], outcome=pb.OUTCOME_REJECT))
        [pulled] = answer.pulled
        assert (pulled.lease, list(pulled.ranges)) == (second.lease, [2, 1])

        async def told() -> bool:
            request = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0])
            found = (await broker.ask("DescribeQueue", request)).partitions[0]
            return bool(found.parked == 1 and found.blocked_by == pb.BlockedBy(offset=0, key="1"))

        await until(told)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"order": "key"}, "needs order_by .* n"),
        ({"order": "key", "order_by": "m"}, "no column of topic t"),
        ({"order": "key", "order_by": "x"}, "type double cannot be a key"),
        ({"order": "key", "order_by": "key"}, "no columns"),
    ],
)
@virtual_time
async def test_keys_that_a_topic_does_not_have_are_refused_when_they_are_declared(
    tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    async with standalone(tmp_path) as broker:
        schema = None if settings.get("order_by") == "key" else pa.schema([("n", pa.int64()), ("x", pa.float64())])
        await broker.create_topic("t", schema=schema)
        await refused(broker, settings, pb.QUEUE_DECLARE, why)
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))
        await refused(broker, settings, pb.QUEUE_ALTER, why)


async def refused(broker: Broker, settings: dict[str, str], change: pb.QueueChange.ValueType, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", settings=settings, change=change))


# ---------------------------------------------------------------- piece by piece, for a group of a partition


class World:
    """Queue group `g`, whose records are in the order of their keys, read by a reader of a broker's own."""

    def __init__(self, led: Led, **settings: Any) -> None:
        self.around: Any = Around(led.topic)
        self.reading = RowReading(self.around, self.around)
        self.group = Group(led=led, order=Order.KEY, **settings)
        self.group.on_rows = self.reading.look

    async def lent(self, member: str, records_max: int) -> list[tuple[int, int]]:
        """Within a minute."""
        asking = self.group.ask(member, records_max)
        await asyncio.sleep(60)
        return offsets(asking) if asking.answered.done() else []

    @property
    def alarm(self) -> str:
        return self.reading.alarm("t-0", "g")


def of_one_record_each(*keys: bytes) -> Led:
    led = Led()
    for key in keys:
        led.put(records(key))
    return led


@pytest.mark.parametrize("told", [2, 0, -1])
@virtual_time
async def test_records_that_are_gone_are_passed_over(told: int) -> None:
    led = of_one_record_each(b"a", b"b", b"c", b"c")
    world = World(led)
    led.unreadable = [OffsetOutOfRange("dropped", told)]
    known = max(told, 1)
    assert [*await world.lent("m", 10), *await world.lent("other", 10)] == [(0, known), (known, 4)]
    assert [first for first, _ in led.reads][:2] == [0, known]


@virtual_time
async def test_why_keys_cannot_be_read_is_told_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    world = World(of_one_record_each(b"a"))
    world.group.led.unreadable = [NotEnoughReplicas("one")] * 3 + [NotEnoughReplicas("two")] * 1_000
    assert await world.lent("m", 1) == []
    assert "keys of records cannot be read, so nothing is lent: two" in world.alarm
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [text.rpartition(": ")[2] for text in warned] == ["one", "two"]
    world.group.led.unreadable.clear()
    assert await world.lent("m", 1) == [(0, 1)]
    assert world.alarm == ""


@virtual_time
async def test_the_rest_of_a_batch_that_is_too_long_to_be_looked_at_at_once_has_keys_too() -> None:
    rest = READ_AT_ONCE + 500  # in the second batch
    keys = [b"%d" % at for at in range(2 * READ_AT_ONCE)]
    keys[5] = keys[rest]
    led = Led()
    for first in range(0, len(keys), 6_000):
        led.put(records(*keys[first : first + 6_000]))
    world = World(led)
    led.apply("g", 1, Accept(((0, 5), (6, rest - 10))))
    assert await world.lent("m", 1) == [(5, 6)]
    assert await world.lent("other", 20) == [(rest - 10, rest), (rest + 1, rest + 11)]


@virtual_time
async def test_a_batch_of_columns_that_were_added_is_noticed_wherever_it_lies() -> None:
    """A producer that knows the former columns alone may come after one that knows more."""
    former = pa.schema([("n", pa.int64())])
    present = pa.schema([*former, ("m", pa.int64())])
    old, new = (
        Topic.of(TopicSpec("t", "0" * 32, ((1,),), schema_to_bytes(schema), earlier=earlier))
        for schema, earlier in ((former, ()), (present, (1,)))
    )
    led = Led(topic=old)
    for schema in (former, present, former):
        led.put(pa.RecordBatch.from_pylist([{"n": 1, "m": 1}, {"n": 2, "m": 2}], schema=schema))
    world = World(led, order_by="m")
    world.around.on_renewed = lambda _: setattr(led, "topic", new)
    assert await world.lent("m", 10) == [(0, 6)]
    assert (world.group.state.leased, world.alarm, led.topic) == (6, "", new)


@virtual_time
async def test_a_record_that_comes_as_a_reading_ends_is_read_as_well() -> None:
    """A task is done a moment before it is forgotten. A look in that moment began no other one, and the record was
    lent once something else came."""
    led = of_one_record_each(b"a")
    world = World(led)
    assert await world.lent("one", 1) == [(0, 1)]
    other = world.group.ask("other", 1)
    await asyncio.sleep(60)
    spawn, tasks, looks = world.around.spawn, [], []

    def look(*group: Any) -> None:
        looks.append(group)
        world.reading.look(*group)

    def comes_as_it_ends(_: asyncio.Task[None]) -> None:
        led.put(records(b"b"))
        look(*looks[-1])

    def spawn_one(work: Any, what: str) -> asyncio.Task[None]:
        tasks.append(spawn(work, what))
        if len(tasks) == 1:
            tasks[0].add_done_callback(comes_as_it_ends)
        return tasks[-1]

    world.around.spawn, world.group.on_rows = spawn_one, look
    led.put(records(b"a"))  # it waits for the first of its key, so nothing more comes of it
    world.group.led_group.wake()
    await asyncio.sleep(60)
    assert offsets(other) == [(2, 3)]
