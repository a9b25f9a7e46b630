"""WatchOffsets: ends are pushed as they move, to those who watch them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mq_broker.rpc.service import parse, path
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import Broker, standalone


def _watch(broker: Broker, places: Sequence[tuple[str, int]]) -> Any:
    method: Any = broker.channel.unary_stream(path("WatchOffsets"), None, None)
    partitions = [pb.TopicPartition(topic=topic, partition=p) for topic, p in places]
    return method(pb.WatchOffsetsRequest(partitions=partitions).SerializeToString())


async def _read_until(call: Any, seen: dict[tuple[str, int], int], wanted: dict[tuple[str, int], int]) -> int:
    """Read answers until these ends have been seen; how many answers it took."""
    answers = 0
    async with asyncio.timeout(10):
        while any(seen.get(place) != end for place, end in wanted.items()):
            for watched in parse(await call.read(), pb.WatchOffsetsResponse).offsets:
                seen[watched.topic, watched.offsets.partition] = watched.offsets.log_end_offset
            answers += 1
    return answers


def test_ends_are_told_at_once_and_whenever_they_move(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2)
            await broker.produce("t", 1)
            call = _watch(broker, [("t", 0), ("t", 1)])
            seen: dict[tuple[str, int], int] = {}
            await _read_until(call, seen, {("t", 0): 1, ("t", 1): 0})
            await broker.produce("t", 1, 2, partition=1)
            await _read_until(call, seen, {("t", 0): 1, ("t", 1): 2})
            call.cancel()

    asyncio.run(scenario())


def test_what_cannot_be_watched_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            call = _watch(broker, [("t", 7), ("u", 0)])
            answer = parse(await call.read(), pb.WatchOffsetsResponse)
            assert [o.offsets.error.code for o in answer.offsets] == [pb.UNKNOWN_PARTITION, pb.UNKNOWN_TOPIC]
            call.cancel()

    asyncio.run(scenario())
