"""Above the mark of memory: how much one message has of records, by each way in which they are read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from mq_broker.broker import server
from mq_broker.broker.runtime.memory import COPIES_SENT, PRESSED_BYTES, Held
from mq_broker.rpc.service import path
from mq_client.queueing.offsets import from_gaps
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.envelope import decode
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker, rows, standalone

BATCHES = 60
ROWS = 400
PAYLOAD = encode_batch(rows(*range(ROWS)))
LARGE_ROWS = 30_000
LARGE = encode_batch(rows(*range(LARGE_ROWS)))
ROOM_OF_HEADERS = 4 << 10
"""What is told beside the records of a message."""
WHILE_IT_IS_TAKEN = 2 * COPIES_SENT
"""What was read is counted before the room that was kept for it is given back."""


class _Pressed(Held):
    """The broker's count. Somebody holds what is at the mark and a byte above it, for ever. `most`: beside that.
    `added`: what was counted for others, one after another."""

    one: _Pressed

    def __init__(self, _high: int, callers_max: int) -> None:
        high = 4 << 20
        super().__init__(high, callers_max)
        self.add("somebody", high + 1)
        self.pressing, self.most = self.bytes, 0
        self.added: list[int] = []
        _Pressed.one = self

    def add(self, caller: str, count: int) -> None:
        super().add(caller, count)
        if hasattr(self, "added"):
            self.most = max(self.most, self.bytes - self.pressing)
            self.added.append(count)


@contextlib.asynccontextmanager
async def pressed(data: Path, payload: Any, record_count: int, batches: int) -> AsyncIterator[Broker]:
    """A broker above its mark, with a queue group `g` of the topic `t`, which has these batches."""
    async with standalone(data) as broker:
        await broker.create_topic("t", durability="memory")
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", change=pb.QUEUE_DECLARE))
        async with broker.producing() as stream:
            for _ in range(batches):
                await stream.send("t", payload, record_count)
                assert not (await stream.result()).HasField("error")
        _Pressed.one.most, _Pressed.one.added = 0, []
        yield broker


async def messages(broker: Broker, by: str, end: int) -> list[int]:
    """The payload bytes of each message that has some, until all records have been told of."""
    call = await _asked(broker, by, end)
    sizes, found = [], 0
    async with asyncio.timeout(DEADLINE_S):
        while found < end:
            data = await call.read()
            assert data is not aio.EOF, "the stream ended"  # type: ignore[attr-defined]
            if by == "Work":
                worked = decode(data, pb.WorkHeader)
                lent = [from_gaps(said.lease.ranges, end) for said in worked.header.sessions]
                found += sum(behind - first for runs in lent for first, behind in runs)
                sizes.append(len(worked.payload))
            else:
                read = decode(data, pb.BatchesHeader)
                found += sum(each.record_count for each in read.header.batches)
                sizes.append(len(read.payload))
    call.cancel()
    return [size for size in sizes if size]


async def _asked(broker: Broker, by: str, end: int) -> Any:
    if by == "Fetch":
        method: Any = broker.channel.unary_stream(path("Fetch"), None, None)
        return method(pb.FetchRequest(topic="t", end_offset=end).SerializeToString())
    method = broker.channel.stream_stream(path(by), None, None)
    call = method()
    if by == "Subscribe":
        opened = pb.SubscribeOpen(partitions=[pb.SubscribePartition(topic="t", earliest=True)])
        request: Any = pb.SubscribeRequest(open=opened, credit=pb.SubscribeCredit(bytes=1 << 30))
    else:
        work = pb.WorkOpen(topic="t", group="g", member="m", member_key=bytes(range(16)))
        session = pb.SessionRequest(session=1, open=work, terms=pb.WorkTerms(lease_ms=600_000))
        session.credit.records, session.credit.bytes = end, 1 << 30
        request = pb.WorkRequest(sessions=[session])
    await call.write(request.SerializeToString())
    return call


@pytest.mark.parametrize("by", ["Fetch", "Subscribe", "Work"])
def test_above_the_mark_a_message_has_few_records_though_many_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(server, "Held", _Pressed)
    assert len(PAYLOAD) < PRESSED_BYTES < BATCHES * len(PAYLOAD)

    async def scenario() -> None:
        async with pressed(tmp_path, PAYLOAD, ROWS, BATCHES) as broker:
            sizes = await messages(broker, by, BATCHES * ROWS)
            assert max(sizes, default=0) <= PRESSED_BYTES
            assert _Pressed.one.most <= WHILE_IT_IS_TAKEN * (PRESSED_BYTES + ROOM_OF_HEADERS)

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["Fetch", "Subscribe"])
def test_above_the_mark_a_batch_that_is_larger_than_a_small_message_goes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(server, "Held", _Pressed)
    assert len(LARGE) > 4 * PRESSED_BYTES

    async def scenario() -> None:
        async with pressed(tmp_path, LARGE, LARGE_ROWS, 3) as broker:
            sizes = await messages(broker, by, 3 * LARGE_ROWS)
            assert sizes == 3 * [len(LARGE)]
            whole = [count for count in _Pressed.one.added if count >= COPIES_SENT * len(LARGE)]
            assert len(whole) == 2 * len(sizes), "before it is read, and when it has been"
            assert COPIES_SENT * len(LARGE) <= _Pressed.one.most <= WHILE_IT_IS_TAKEN * (len(LARGE) + ROOM_OF_HEADERS)

    asyncio.run(scenario())
