"""What a broker says about offsets: how far it can serve, how large a span is, and which ends have changed for a
watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.data.fetch import Reading
from mq_broker.broker.runtime.memory import Held
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    NotLeader,
    NotYetWritten,
    OffsetOutOfRange,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.limits import YIELD_EVERY
from mq_protocol.wire.envelope import decode
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.channel import Call
from tests.mq_broker.broker.cluster import Broker, standalone
from tests.mq_broker.broker.queues.partitions import EPOCH, Around, Led
from tests.mq_broker.broker.test_three_brokers import three


@asynccontextmanager
async def with_batches(data: Path, *sizes: int) -> AsyncIterator[Broker]:
    """A broker with topic `t`, and a batch of each size: so many records, one a second."""
    async with standalone(data) as broker:
        await broker.create_topic("t")
        first = 0
        for size in sizes:
            await broker.produce("t", *range(first, first + size))
            first += size
            await asyncio.sleep(1)
        yield broker


async def purge(broker: Broker, offset: int, partition: int = 0) -> None:
    position = pb.CursorPosition(topic="t", partition=partition, offset=offset)
    await broker.ask("Purge", pb.PurgeRequest(positions=[position]))


async def refused(broker: Broker, start: int, end: int, **fields: Any) -> TritonMQError:
    with pytest.raises(TritonMQError) as told:
        await broker.fetch("t", start, end, **fields)
    return told.value


# ---------------------------------------------------------------- how far it can serve


@virtual_time
async def test_what_is_committed_is_served_and_no_more(tmp_path: Path) -> None:
    async with with_batches(tmp_path, 4, 6) as broker:
        for start, end, batches in ((0, 10, [0, 4]), (9, 10, [4]), (0, 4, [0]), (0, 5, [0, 4]), (4, 4, [])):
            assert [each.base_offset for each, _ in await broker.fetch("t", start, end)] == batches
        error = await refused(broker, 10, 11)
        assert (type(error), "ends at offset 10" in str(error)) == (NotYetWritten, True)
        error = await refused(broker, 11, 12)
        assert (type(error), "the next record gets 10" in str(error)) == (OffsetOutOfRange, True)
        for start, end in ((-1, 3), (4, 3)):
            error = await refused(broker, start, end)
            assert (type(error), "give 0 <= start <= end" in str(error)) == (InvalidRequest, True)


@virtual_time
async def test_a_fetch_goes_on_where_the_batches_that_were_sent_end_and_each_answer_names_the_epoch(
    tmp_path: Path,
) -> None:
    async with with_batches(tmp_path, 2, 2, 2) as broker:
        request = pb.FetchRequest(topic="t", start_offset=1, end_offset=6, chunk_bytes_max=1)
        answers = [
            decode(data, pb.BatchesHeader).header
            async for data in broker.channel.answers("Fetch", request.SerializeToString())
        ]
        assert [[batch.base_offset for batch in header.batches] for header in answers] == [[0], [2], [4]]
        assert {header.leader_epoch for header in answers} == {1}


@virtual_time
async def test_a_replica_that_does_not_lead_serves_what_it_knows_and_sends_who_wants_more_to_its_leader(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", replicas=3)
        leader = await cluster.leader("t", at=1)
        follower = cluster[1 + leader % 3]
        follower.asks_again = False
        await cluster[leader].produce("t", *range(10))
        await asyncio.sleep(60)
        assert [each.base_offset for each, _ in await follower.fetch("t", 9, 10)] == [0]
        epoch = (await cluster[leader].metadata("t")).topics[0].partitions[0].leader_epoch
        for at in (10, 11):
            error = await refused(follower, at, 20)
            assert isinstance(error, NotLeader), "never that it is out of range"
            assert (error.leader, error.leader_epoch) == (leader, epoch)
        assert await follower.fetch("t", 0, 10, leader_epoch=epoch)
        assert isinstance(await refused(follower, 0, 10, leader_epoch=epoch + 1), NotLeader)
        for broker, lower_bound in ((cluster[leader], False), (follower, True)):
            request = pb.ListOffsetsRequest(topic="t", any_replica=True)
            [told] = (await broker.ask("ListOffsets", request)).partitions
            assert (told.log_end_offset, told.lower_bound) == (10, lower_bound)
        [told] = (await follower.ask("ListOffsets", pb.ListOffsetsRequest(topic="t"))).partitions
        assert isinstance(from_wire(told.error), NotLeader)
        for broker in cluster.brokers.values():
            await broker.abandon()
        await follower.start()
        await asyncio.sleep(60)
        [told] = (await follower.ask("ListOffsets", request)).partitions
        assert isinstance(from_wire(told.error), NotLeader), "its end would pass for the log's"


# ---------------------------------------------------------------- spans


async def listed(broker: Broker, *spans: tuple[int, int, int], **fields: Any) -> pb.PartitionOffsets:
    """`spans`: where each starts and ends, and how many bytes are enough."""
    named = [pb.OffsetSpan(partition=0, start_offset=a, end_offset=b, bytes_max=most) for a, b, most in spans]
    [answer] = (await broker.ask("ListOffsets", pb.ListOffsetsRequest(topic="t", spans=named, **fields))).partitions
    return answer


@virtual_time
async def test_a_span_ends_at_the_furthest_offset_for_which_its_bytes_are_enough(tmp_path: Path) -> None:
    async with with_batches(tmp_path, 1, 4, 2, 3) as broker:
        await purge(broker, 1)
        size = {
            (start, end): (await listed(broker, (start, end, 0))).span.bytes
            for start in range(1, 11)
            for end in range(start, 12)
        }
        stored = [len(payload) for _, payload in await broker.fetch("t", 1, 10)]
        assert [size[1, 5], size[5, 7], size[1, 10], size[1, 11]] == [*stored[:2], sum(stored), sum(stored)]
        for (start, end), whole in size.items():
            for enough in {0, 1, stored[0] // 4 - 1, stored[0] // 4, stored[0], whole - 1, whole}:
                told = (await listed(broker, (start, end, max(enough, 0)))).span
                ends = [at for at in range(start, min(end, 10) + 1) if at == start or size[start, at] <= enough]
                assert (told.end_offset, told.bytes) == (ends[-1], whole), (start, end, enough)
                assert told.first_bytes == size[start, min(start + 1, end)]


@virtual_time
async def test_a_time_and_a_span_are_answered_only_where_they_were_asked_for(tmp_path: Path) -> None:
    async with with_batches(tmp_path, 2, 2, 2) as broker:
        await purge(broker, 2)
        [(_, _), (last, _)] = await broker.fetch("t", 2, 6)
        told = await listed(broker, (2, 5, 1 << 20), timestamp_us=last.timestamp_us)
        assert (told.offset_at_timestamp, told.span.end_offset) == (4, 5)
        told = await listed(broker)
        assert (told.HasField("span"), told.offset_at_timestamp) == (False, 0)
        for start, end in ((3, 1), (-1, 3)):
            told = await listed(broker, (start, end, 1))
            assert (type(from_wire(told.error)), told.partition) == (InvalidRequest, 0)


# ---------------------------------------------------------------- ends, watched


class Watching:
    """A watcher's stream. Collects what it is told, in a task of its own."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._told: list[pb.WatchOffsetsResponse] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (data := await self._call.read()) is not None:
            self._told.append(pb.WatchOffsetsResponse.FromString(data))

    async def told(self) -> list[pb.WatchOffsetsResponse]:
        """Since it was asked last, and a while longer."""
        await asyncio.sleep(30)
        assert not self._reading.done(), self._reading.exception()
        told, self._told = self._told, []
        return told

    async def ends(self) -> list[tuple[int, int]]:
        """Partitions, and their ends."""
        offsets = [each.offsets for answer in await self.told() for each in answer.offsets]
        return [(each.partition, each.log_end_offset) for each in offsets]

    def close(self) -> None:
        self._reading.cancel()
        self._call.cancel()


@asynccontextmanager
async def watching(broker: Broker, *partitions: int, topic: str = "t") -> AsyncIterator[Watching]:
    call = broker.channel.call("WatchOffsets")
    places = [pb.TopicPartition(topic=topic, partition=number) for number in partitions]
    await call.write(pb.WatchOffsetsRequest(partitions=places).SerializeToString())
    await call.end()
    watch = Watching(call)
    try:
        yield watch
    finally:
        watch.close()


@virtual_time
async def test_each_end_is_told_once_until_it_moves(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=2)
        async with watching(broker, 0, 1) as watch:
            assert await watch.ends() == [(0, 0), (1, 0)]
            assert await watch.told() == []
            await broker.produce("t", 1, 2, partition=1)
            assert await watch.ends() == [(1, 2)]
            await purge(broker, 1, partition=1)
            assert await watch.told() == [], "it has changed, but not its end"


@virtual_time
async def test_of_many_partitions_that_change_at_once_those_are_told_that_have_another_end_or_epoch() -> None:
    leds = [Led(1, number=number) for number in range(2 * YIELD_EVERY)]
    around: Any = Around(leds[0].topic)
    around.leds = leds
    told: list[tuple[int, int, int]] = []

    async def send(answer: pb.WatchOffsetsResponse) -> None:
        ends = [each.offsets for each in answer.offsets]
        told.extend((each.partition, each.log_end_offset, each.leader_epoch) for each in ends)

    places = [pb.TopicPartition(topic="t", partition=led.number) for led in leds]
    reading = Reading(around, around, Held(1 << 20))
    watching = asyncio.create_task(reading.watch_offsets(pb.WatchOffsetsRequest(partitions=places), send))
    await asyncio.sleep(1)
    assert told == [(led.number, 1, EPOCH) for led in leds]
    told.clear()
    for led in leds:
        led.tell()
    leds[-2].append(1)
    leds[-1].replica.leader_epoch += 1
    leds[-1].tell()
    await asyncio.sleep(1)
    assert told == [(leds[-2].number, 2, EPOCH), (leds[-1].number, 1, EPOCH + 1)]
    watching.cancel()
    await asyncio.wait({watching})
    assert not any(led.observers for led in leds)


@virtual_time
async def test_what_cannot_be_watched_is_told_once_and_many_partitions_in_parts(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", partitions=YIELD_EVERY + 1, durability="memory")
        async with watching(broker, *range(YIELD_EVERY + 2)) as watch:
            told = await watch.told()
            known = [each.offsets for answer in told for each in answer.offsets]
            [error] = [from_wire(each.error) for each in known if each.HasField("error")]
            assert isinstance(error, UnknownPartition)
            assert sorted(each.partition for each in known) == list(range(YIELD_EVERY + 2))
            assert max(len(answer.offsets) for answer in told) <= YIELD_EVERY + 1
            assert await watch.told() == []
        async with watching(broker, 7, topic="none") as watch:
            [[told_of]] = [answer.offsets for answer in await watch.told()]
            assert (told_of.topic, type(from_wire(told_of.offsets.error))) == ("none", UnknownTopic)


@virtual_time
async def test_a_partition_that_is_led_here_no_more_is_told_once_and_watched_no_more(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", partitions=3, replicas=3)
        first, second = await cluster.leader("t", 0, at=1), await cluster.leader("t", 1, at=1)
        async with watching(cluster[first], 0) as watch, watching(cluster[second], 0, 1) as other:
            assert await watch.ends() == [(0, 0)]
            [[refused_at_once, ends]] = [answer.offsets for answer in await other.told()]
            assert from_wire(refused_at_once.offsets.error).leader == first
            assert ends.offsets.partition == 1
            before = ends.offsets.leader_epoch
            await cluster[first].produce("t", 1, partition=0)
            assert (await watch.ends(), await other.told()) == ([(0, 1)], [])
            await cluster[second].abandon()
            await asyncio.sleep(60)
            assert await watch.told() == []
            third = await cluster.leader("t", 1, at=first, not_=second)
            async with watching(cluster[third], 1) as later:
                [[ends]] = [answer.offsets for answer in await later.told()]
                assert ends.offsets.leader_epoch > before
                await cluster[third].ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
                [[gone]] = [answer.offsets for answer in await later.told()]
                assert isinstance(from_wire(gone.offsets.error), TritonMQError)
                assert (gone.topic, gone.offsets.partition) == ("t", 1)
                assert await later.told() == []
