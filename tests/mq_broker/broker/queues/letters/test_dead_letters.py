"""Dead letters of a queue group, sent by a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.host.shell import Shell
from mq_broker.broker.queues.letters import dead_letters
from mq_broker.broker.queues.letters.dead_letters import DeadLetters
from mq_broker.broker.queues.letters.outbox import Outbox
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, decode_batch, encode_batch, schema_fingerprint
from mq_protocol.errors import TritonMQError
from mq_protocol.queues.dead_letters import HEADERS, HOPS_MAX
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.queues.members import Member, of, partition_of

WHEN = 1_700_000_000_000_000


def records(*values: int, hops: int = 0) -> pa.RecordBatch:
    headers = [{"key": "color", "value": b"red"}]
    if hops:
        headers.append({"key": HEADERS["hops"], "value": str(hops).encode()})
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"k%d" % value for value in values], pa.binary()),
            pa.array([b"%d" % value for value in values], pa.binary()),
            pa.array([headers] * len(values), RECORD_SCHEMA.field("headers").type),
            pa.array([WHEN] * len(values), pa.timestamp("us", tz="UTC")),
        ],
        schema=RECORD_SCHEMA,
    )


async def produce(broker: Broker, batch: pa.RecordBatch) -> None:
    async with broker.producing() as stream:
        fingerprint = schema_fingerprint(RECORD_SCHEMA)
        await stream.send("t", encode_batch(batch), batch.num_rows, schema_fingerprint=fingerprint)
        assert not (await stream.result()).HasField("error")


@asynccontextmanager
async def queue(data: Path, count: int = 10, **settings: str) -> AsyncIterator[Broker]:
    """A broker with topic `t` of records, and the queue group `g`."""
    async with standalone(data) as broker:
        await broker.create_topic("t", schema=None)
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", settings=settings))
        if count:
            await produce(broker, records(*range(count)))
        yield broker


async def letters(broker: Broker, topic: str = "t.dead") -> list[dict[str, Any]]:
    try:
        end = await broker.end(topic)
        stored = await broker.fetch(topic, 0, end)
    except TritonMQError:
        return []
    return [row for _, payload in stored for row in decode_batch(payload, RECORD_SCHEMA).to_pylist()]


async def reject(broker: Broker, *offsets: int, most: int = 10, error: str = "bad") -> None:
    member = Member(broker)
    lent = await member.lease(most)
    settles = [
        pb.SettleOne(lease=lent.lease, ranges=[offset, 1], outcome=pb.OUTCOME_REJECT, error=error) for offset in offsets
    ]
    assert await member.settle(*settles) == [pb.SettleAnswer()] * len(offsets)


async def sent(broker: Broker, count: int, topic: str = "t.dead") -> list[dict[str, Any]]:
    """The letters, once there are so many."""

    async def there() -> list[dict[str, Any]] | None:
        found = await letters(broker, topic)
        return found if len(found) >= count else None

    found: list[dict[str, Any]] = await until(there)
    return found


@virtual_time
async def test_a_dead_letter_is_the_record_and_says_in_headers_why_and_where_it_was(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async with queue(tmp_path) as broker:
        await reject(broker, 3, 7)
        found = await sent(broker, 2)
        state = partition_of(shells).replica.machine.work["g"]
        await until(of(lambda: not state.outbox))
        assert [(row["key"], row["value"]) for row in found] == [(b"k3", b"3"), (b"k7", b"7")]
        assert {row["timestamp"].timestamp() * 1e6 for row in found} == {WHEN}
        headers = {header["key"]: header["value"] for header in found[1]["headers"]}
        when = headers.pop(HEADERS["timestamp"])
        assert when.endswith(b"+00:00")
        assert headers == {
            "color": b"red",
            HEADERS["error"]: b"bad",
            HEADERS["topic"]: b"t",
            HEADERS["partition"]: b"0",
            HEADERS["offset"]: b"7",
            HEADERS["group"]: b"g",
            HEADERS["reason"]: b"rejected",
            HEADERS["deliveries"]: b"1",
            HEADERS["failures"]: b"0",
            HEADERS["hops"]: b"1",
        }
        assert (state.totals.dead, state.leased, state.settled.missing_count(0, 10)) == (2, 8, 8)


@virtual_time
async def test_a_record_that_failed_too_often_is_sent_and_one_that_was_a_letter_too_often_is_parked(
    tmp_path: Path, shells: list[Shell]
) -> None:
    async with queue(tmp_path, count=0, delivery_limit="1", retry_ms="0", dead_letter="elsewhere") as broker:
        await produce(broker, records(1))
        await produce(broker, records(2, hops=HOPS_MAX))
        await produce(broker, records(3, hops=HOPS_MAX - 1))
        member = Member(broker)
        lent = await member.lease(3)
        fail = pb.SettleOne(lease=lent.lease, ranges=[0, 3], outcome=pb.OUTCOME_FAIL)
        assert await member.settle(fail) == [pb.SettleAnswer()]
        found = await sent(broker, 2, "elsewhere")
        assert [row["value"] for row in found] == [b"1", b"3"]
        last = {header["key"]: header["value"] for header in found[1]["headers"]}
        assert (last[HEADERS["reason"]], last[HEADERS["hops"]]) == (b"delivery_limit", b"16")
        assert len(found[1]["headers"]) == 1 + len(HEADERS), "what it said as the former letter is gone"
        state = partition_of(shells).replica.machine.work["g"]
        await until(of(lambda: [run[:2] for run in state.parked()] == [(1, 2)]))


@virtual_time
async def test_each_record_is_one_letter_though_the_broker_stops_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(DeadLetters, "look", lambda *_: None)
        async with queue(tmp_path, count=30, dead_letter="dead") as broker:  # it stops before it has begun
            await reject(broker, *range(0, 30, 2), most=30)
    with monkeypatch.context() as context:
        context.setattr(dead_letters, "Sending", _never_decided)
        async with standalone(tmp_path) as broker:  # it stops when the letters are staged
            await until(lambda: staged(broker, 15))
            assert await letters(broker, "dead") == []
    with monkeypatch.context() as context:
        context.setattr(Outbox, "look", lambda *_: None)
        async with standalone(tmp_path) as broker:  # it stops when they are decided
            await until(lambda: counted(broker, dead=15, outbox=1))
            assert await letters(broker, "dead") == []
    async with standalone(tmp_path) as broker:
        await until(lambda: counted(broker, dead=15, outbox=0))
        found = await sent(broker, 15, "dead")
        assert [int(row["value"]) for row in found] == list(range(0, 30, 2))


def _never_decided(*_: object) -> Any:
    raise asyncio.CancelledError


async def staged(broker: Broker, rows: int) -> bool:
    answer = await broker.ask("Staged", pb.StagedRequest())
    return sum(each.row_count for each in answer.staged) == rows


async def counted(broker: Broker, dead: int, outbox: int) -> bool:
    answer = await broker.ask("DescribeQueue", pb.DescribeQueueRequest(topic="t", group="g", partitions=[0]))
    [told] = answer.partitions
    return (told.dead, told.outbox) == (dead, outbox)


@virtual_time
async def test_records_whose_letters_cannot_go_anywhere_wait_and_describe_says_why(tmp_path: Path) -> None:
    async with queue(tmp_path, dead_letter="typed") as broker:
        await broker.create_topic("typed")
        await reject(broker, 0)

        async def told() -> pb.QueuePartition | None:
            request = pb.DescribeQueueRequest(topic="t", group="g", partitions=[0])
            [found] = (await broker.ask("DescribeQueue", request)).partitions
            return found if found.alarm else None

        found = await until(told)
        assert "topic typed does not take these dead letters: it lacks column key" in found.alarm
        assert (found.doomed, found.dead) == (1, 0)
        await alter(broker, dead_letter="drop")
        await until(lambda: settled(broker))


async def alter(broker: Broker, **settings: str) -> None:
    change = pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_ALTER, settings=settings)
    await broker.ask("AlterQueue", change)


async def settled(broker: Broker) -> bool:
    answer = await broker.ask("DescribeQueue", pb.DescribeQueueRequest(topic="t", group="g", partitions=[0]))
    return dict(answer.partitions[0].dropped) == {"rejected": 1}
