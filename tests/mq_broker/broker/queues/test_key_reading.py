"""Keys of records, as leaders read them for queue groups that are in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.queues.group.row_reading import RowReading, hashed
from mq_broker.broker.queues.policy.ordering import ByKey
from mq_broker.core.work.state import WorkState
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.errors import InvalidSetting
from mq_protocol.queues.columns import keys_of
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member, queue, ranges

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


@virtual_time
async def test_a_batch_of_columns_that_were_added_is_noticed_wherever_it_lies() -> None:
    """A producer that knows the former columns alone may come after one that knows more."""
    former = pa.schema([("n", pa.int64())])
    present = pa.schema([*former, ("m", pa.int64())])

    class Topics:
        async def renewed(self, topic: Any) -> None:
            topic.schema = present

    def stored(base: int, schema: pa.Schema) -> tuple[Any, memoryview]:
        rows = pa.RecordBatch.from_pylist([{"n": 1, "m": 1}, {"n": 2, "m": 2}], schema=schema)
        return SimpleNamespace(base_offset=base, record_count=2, timestamp_us=0), memoryview(encode_batch(rows))

    def read(*_: int) -> list[tuple[Any, memoryview]]:
        asked.append(topic.schema)
        return [stored(0, former), stored(2, present), stored(4, former)]

    asked: list[pa.Schema] = []
    tasks: list[asyncio.Task[None]] = []
    topic = SimpleNamespace(schema=former, spec=SimpleNamespace(schema=b"columns"))
    partition: Any = SimpleNamespace(name="t-0", next_offset=6, topic=topic, read=read)
    keys = ByKey(WorkState(1, 0), 3, "m")
    policy: Any = SimpleNamespace(ready=keys, wanting=list)
    gathering: Any = SimpleNamespace(group="g", partition=partition, reads=lambda _: len(asked) < 5, wake=lambda: None)

    def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work, name=name))
        return tasks[-1]

    shell: Any = SimpleNamespace(spawn=spawn)
    reading = RowReading(shell, Topics())  # type: ignore[arg-type]
    reading.look(gathering, policy)
    await asyncio.gather(*tasks)
    reading.close()
    assert (asked, keys.read_to, reading.alarm("t-0", "g")) == ([former, present], 6, "")
