"""Rows that are compared with the filters of queue groups, and filters that are refused."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.group.led_group import LedGroup
from mq_broker.broker.queues.group.row_reading import RowReading, unfit_of
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.coordination.interface import TopicSpec
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch, schema_to_bytes
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_NUMBER_CHARACTERS_MAX
from mq_protocol.queues.columns import bound_filter
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member, queue, ranges
from tests.mq_broker.broker.queues.partitions import Around, Group, Led, lease_of, offsets

NUMBERS = pa.schema([("n", pa.int64())])


def numbers(*values: int | None) -> bytes:
    return encode_batch(pa.RecordBatch.from_pydict({"n": list(values)}, schema=NUMBERS)).to_pybytes()


def test_only_wanted_records_are_named_and_a_batch_that_cannot_be_read_is_kept() -> None:
    row_filter = bound_filter("n > 5", NUMBERS)
    stored = [
        (10, 4, 0, numbers(1, 9, 2, 3)),
        (14, 6, 0, b"no batch"),
        (20, 2, 0, numbers(4, None)),
        (22, 2, 0, numbers(8, 1)),
    ]
    assert unfit_of(stored, NUMBERS, row_filter, (11, 23)) == ([(12, 14), (20, 22)],)
    assert unfit_of(stored, NUMBERS, row_filter, (10, 11)) == ([(10, 11)],)


def test_a_record_without_a_time_of_its_own_has_that_of_its_batch() -> None:
    times = [datetime(2026, 1, 1, tzinfo=UTC), None]
    columns = {name: [None, None] for name in RECORD_SCHEMA.names} | {"timestamp": times, "key": [b"a", b"b"]}
    payload = encode_batch(pa.RecordBatch.from_pydict(columns, schema=RECORD_SCHEMA)).to_pybytes()
    row_filter = bound_filter("timestamp >= '2026-06-01' AND key = 'b'", RECORD_SCHEMA)
    batch_us = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp() * 1e6)
    assert unfit_of([(0, 2, batch_us, payload)], RECORD_SCHEMA, row_filter, (0, 2)) == ([(0, 1)],)
    assert unfit_of([(0, 2, 0, payload)], RECORD_SCHEMA, row_filter, (0, 2)) == ([(0, 2)],)


@virtual_time
async def test_what_does_not_match_is_dropped_and_counted_and_a_changed_filter_holds_at_once(tmp_path: Path) -> None:
    async with queue(tmp_path, filter="n >= 4") as broker:
        member = Member(broker)
        first = await member.lease(2)
        assert ranges(first) == [4, 2]
        await alter(broker, "n = 7 OR n = 4")
        second = await member.lease(10, held=[first.lease])
        assert ranges(second) == [7, 1]

        async def told() -> pb.QueuePartition | None:
            request = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0])
            found = (await broker.ask("DescribeQueue", request)).partitions[0]
            return found if found.dropped["filtered"] == 7 else None

        assert (await until(told)).leased == 3
        with pytest.raises(InvalidSetting, match="character 5"):
            await alter(broker, "n = ? 7")
        queues = (await broker.ask("Queues", pb.QueuesRequest(topic="t"))).queues
        assert queues[0].settings["filter"] == "n = 7 OR n = 4"
        await alter(broker, "")
        await broker.produce("t", 1)
        assert ranges(await member.lease(10, held=[first.lease, second.lease])) == [10, 1]


async def alter(broker: Broker, text: str) -> None:
    request = pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_ALTER, settings={"filter": text})
    await broker.ask("AlterQueue", request)


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        (NUMBERS, "n > 'x'", "column 'n', which is int64, with 'x'"),
        (NUMBERS, "m > 1", "column 'm', which the topic does not have"),
        (NUMBERS, "n >", "the end at character 4"),
        (NUMBERS, "n IN (" + "1, " * FILTER_CHARACTERS_MAX + "1)", f"at most {FILTER_CHARACTERS_MAX}"),
        (NUMBERS, "n = " + "1" * (FILTER_NUMBER_CHARACTERS_MAX + 1), f"at most {FILTER_NUMBER_CHARACTERS_MAX}"),
        (NUMBERS, "NOT " * (FILTER_DEPTH_MAX + 1) + "n = 1", f"more than {FILTER_DEPTH_MAX} deep"),
        (None, "value = 'x'", "its columns are: key, timestamp"),
    ],
)
@virtual_time
async def test_a_filter_that_the_topic_cannot_have_is_refused(
    tmp_path: Path, schema: pa.Schema | None, text: str, why: str
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", schema=schema)
        for change in (pb.QUEUE_DECLARE, pb.QUEUE_ALTER):
            request = pb.AlterQueueRequest(topic="t", group="g", settings={"filter": text}, change=change)
            with pytest.raises(InvalidSetting, match=why):
                await broker.ask("AlterQueue", request)
            await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))


@virtual_time
async def test_a_filter_that_nobody_goes_by_any_more_is_not_kept() -> None:
    led = Led(topic=Topic.of(TopicSpec("t", "0" * 32, ((1,),), schema_to_bytes(NUMBERS))))
    led.put(numbers(1, 9, 2, 3), 4)
    around: Any = Around(led.topic)
    reading, filters = RowReading(around, around), []

    def look(led_group: LedGroup, policy: Policy) -> None:
        filters.extend(map(weakref.ref, policy.wanting()))
        reading.look(led_group, policy)

    group = Group(led=led, filter="n > 5")
    group.on_rows = look
    asking = group.ask("m", 10)
    await asyncio.sleep(60)
    assert (offsets(asking), len(filters)) == ([(1, 2)], 1)
    group.declare(filter="")
    led.put(numbers(1), 1)
    await lease_of(group, "m", 10)
    gc.collect()
    assert filters[0]() is None
