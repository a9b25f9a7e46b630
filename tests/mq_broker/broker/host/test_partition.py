"""One partition's door: whatever is asked of it is answered, also when it closes on the way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.data import produce
from mq_broker.broker.host.partition import Partition
from mq_broker.core.machine.window import WindowBounds
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import OffsetOutOfRange, UnknownTopic
from mq_protocol.limits import READ_BATCHES_MAX
from mq_protocol.wire.envelope import decode
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import DEADLINE_S, SCHEMA, numbers_in, rows, standalone
from tests.virtual.world import in_virtual_time


@real_time
async def test_a_batch_whose_topic_is_deleted_while_it_is_checked_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * produce.CHECK_INLINE_BYTES_MAX // 8
    large = pa.record_batch([pa.array(range(count), pa.int64()), pa.array([""] * count)], schema=SCHEMA)
    checking, deleted = threading.Event(), threading.Event()
    check = produce._check

    def held_check(*batch: object) -> None:
        checking.set()
        assert deleted.wait(DEADLINE_S)
        check(*batch)  # type: ignore[arg-type]

    monkeypatch.setattr(produce, "_check", held_check)

    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        async with broker.producing() as stream:
            await stream.send("t", encode_batch(large), count)
            assert await asyncio.to_thread(checking.wait, DEADLINE_S)
            await broker.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
            deleted.set()
            async with asyncio.timeout(DEADLINE_S):
                result = await stream.result()
            with pytest.raises(UnknownTopic, match="deleted"):
                raise from_wire(result.error)


def test_a_batch_that_is_small_only_while_it_is_compressed_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4
    even = pa.record_batch([range(count), ["even" * produce.CHECK_INLINE_DECODED_BYTES_MAX] * count], schema=SCHEMA)
    payload = encode_batch(even, "zstd")
    assert len(payload) < produce.CHECK_INLINE_BYTES_MAX
    decoding: list[str] = []
    check = produce.check_untrusted

    def watched(*batch: object, **bounds: object) -> int:
        decoded_bytes = check(*batch, **bounds)  # type: ignore[arg-type]
        decoding.append(threading.current_thread().name)
        return decoded_bytes

    monkeypatch.setattr(produce, "check_untrusted", watched)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            async with broker.producing() as stream:
                await stream.send("t", payload, count)
                await stream.send("t", encode_batch(rows(1)), 1)
                async with asyncio.timeout(DEADLINE_S):
                    results = [await stream.result() for _ in range(2)]
            assert [result.base_offset for result in results] == [0, count], "in the order in which they came"

    asyncio.run(scenario())
    assert sorted(name.startswith("check-batch") for name in decoding) == [False, True]


def test_a_batch_that_the_journal_holds_no_more_is_out_of_range_and_says_where_to_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the journal may begin later than the index of offsets, until the entry that says so is committed
    anew."""
    opened: list[Partition] = []
    build = Partition.__init__

    def noted(partition: Partition, *found: Any) -> None:
        opened.append(partition)
        build(partition, *found)

    monkeypatch.setattr(Partition, "__init__", noted)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", durability="memory")
            for number in range(3):
                await broker.produce("t", number)
            [partition] = [each for each in opened if each.topic.spec.name == "t"]
            assert await partition.journal.shorten_to(4, WindowBounds(100)) == 4
            with pytest.raises(OffsetOutOfRange, match="read on at 2"):
                await broker.fetch("t", 0, 3)
            [(_, payload)] = await broker.fetch("t", 2, 3)
            assert numbers_in(payload) == [2]

    in_virtual_time(scenario())


def test_one_answer_has_few_of_very_many_tiny_batches(tmp_path: Path) -> None:
    """Four megabytes of them were ten thousand in one answer, and took the loop a quarter of a second."""
    payload, count = encode_batch(rows(1)), 2 * READ_BATCHES_MAX + 1

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", durability="memory")
            async with broker.producing() as stream:
                for _ in range(count):
                    await stream.send("t", payload, 1)
                for _ in range(count):
                    await stream.result()
            request = pb.FetchRequest(topic="t", end_offset=count, chunk_bytes_max=4 << 20).SerializeToString()
            answers = broker.channel.answers("Fetch", request)
            sizes = [len(decode(data, pb.BatchesHeader).header.batches) async for data in answers]
            assert sizes == [READ_BATCHES_MAX, READ_BATCHES_MAX, 1]

    in_virtual_time(scenario())
