"""What a stream reads next of a sealed journal is opened while the last chunk is sent: one chunk, within the room that
there is, and never of another log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.data.fetch import Reading
from mq_broker.broker.host.cold_reads import ColdReads
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.runtime.memory import Held
from mq_broker.core.messages import Published
from mq_broker.storage.interface import Journal
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import Bed, eventually, frame_of, joined
from tests.mq_broker.storage.journal.test_unsealing import ALL, SIZE, HeldFiles, large, sealed

LAST = 12
CHUNK = 3 * SIZE
WHO = "10.0.0.7"


class Stored:
    """A partition of which nothing but its sealed journal is real: entry n is the record of offset n - 1."""

    def __init__(self, journal: Journal, last: int = LAST) -> None:
        self.name, self.closed, self.serving = "t-0", False, True
        self.replica = SimpleNamespace(leader_epoch=1, leader=1)
        self.journal, self.index = journal, OffsetIndex()
        for number in range(last):
            self.index.append(Published(number, 1, number + 1, 1_000_000 + number, SIZE, SIZE))

    @property
    def next_offset(self) -> int:
        return self.index.log_end_offset

    def read(self, start: int, end: int, bytes_max: int, unsealed: Any) -> Any:
        stand_in: Any = self
        return Partition.read(stand_in, start, end, bytes_max, unsealed)


@asynccontextmanager
async def stored(bed: Bed) -> AsyncIterator[tuple[Any, HeldFiles]]:
    """Each read in a thread waits until the files let it go on."""
    async with sealed(bed, 0, LAST) as journal:
        files = bed.writer.files = HeldFiles()
        yield Stored(journal), files


def payloads(partition: Any, start: int, unsealed: Any, bytes_max: int = CHUNK) -> list[int]:
    """The indexes of the entries that are read from there on, as their payloads tell."""
    found = partition.read(start, LAST, bytes_max, unsealed)
    assert all(len(set(bytes(payload))) == 1 and len(payload) == SIZE for _, payload in found)
    return [payload[0] for _, payload in found]


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[tuple[Any, HeldFiles]]:
    async with Bed(path, cache_bytes_max=0) as bed, stored(bed) as (partition, files):
        yield partition, files


@real_time
async def test_a_fetch_has_the_next_chunk_opened_while_the_last_one_is_sent(tmp_path: Path) -> None:
    """The client that takes its time is not what the next read waits for, and no byte differs."""
    held = Held(1 << 30)

    async def meant(_name: str, _topic_id: str) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(name="t", schema=b""), schema=None)

    async with on_disk(tmp_path) as (partition, files):
        topics: Any = SimpleNamespace(meant=meant)
        shell: Any = SimpleNamespace(broker=1, partition=lambda _topic, _number: partition)
        received: list[bytes] = []

        async def send(message: Envelope[pb.BatchesHeader]) -> None:
            received.extend(bytes(part) for part in message.parts)
            if len(received) < LAST:
                await files.until_reading()  # it is being sent, and what follows is being read
                files.go_on.release()

        files.go_on.release()  # the first chunk
        ours = Reading(shell, topics, held)
        await ours.fetch(pb.FetchRequest(topic="t", end_offset=LAST, chunk_bytes_max=CHUNK), send)
        ours.close()
        assert b"".join(received) == b"".join(frame.payload for frame in large(1, LAST))
    assert held.bytes == 0, "no room is left taken"


@real_time
async def test_what_is_opened_ahead_has_its_room_and_gives_it_back_once_it_is_taken(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (partition, files):
        held = Held(1 << 30)
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        assert CHUNK < held.bytes < CHUNK + 1_000
        cold.open_ahead(partition, 6, LAST, CHUNK)  # one chunk a stream
        assert held.bytes < CHUNK + 1_000
        files.go_on.release()
        unsealed = await cold.opened(partition, 3, LAST, CHUNK)
        assert (sorted(unsealed.frames), held.bytes) == ([4, 5, 6], 0)
        assert payloads(partition, 3, unsealed) == [4, 5, 6]


@real_time
async def test_who_reads_elsewhere_than_was_opened_reads_what_is_there(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (partition, files):
        held = Held(1 << 30)
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        await files.until_reading()
        for _ in range(2):
            files.go_on.release()
        unsealed = await cold.opened(partition, 0, LAST, CHUNK)
        assert (payloads(partition, 0, unsealed), held.bytes) == ([1, 2, 3], 0)


@real_time
async def test_who_reads_another_partition_at_the_same_place_is_given_nothing_of_the_first(tmp_path: Path) -> None:
    async with on_disk(tmp_path / "first") as (partition, files):
        held = Held(1 << 30)
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        files.go_on.release()
        async with Bed(tmp_path / "other", cache_bytes_max=0) as bed, stored(bed) as (other, others_files):
            taking = asyncio.create_task(cold.opened(other, 3, LAST, CHUNK))
            await others_files.until_reading()
            others_files.go_on.release()
            assert (payloads(other, 3, await taking), held.bytes) == ([4, 5, 6], 0)


@pytest.mark.parametrize("reserved", [1 << 20, 0])
@real_time
async def test_nothing_is_opened_ahead_where_there_is_no_room_at_once(tmp_path: Path, reserved: int) -> None:
    """`reserved` by others; and where others wait for room."""
    async with on_disk(tmp_path) as (partition, files):
        held = Held(1 << 20)
        waiting = None
        if reserved:
            held.add("others", reserved)
        else:
            held.add("others", 3 << 20)
            waiting = asyncio.create_task(held.room("others"))
            await asyncio.sleep(0)
            held.bytes = 0  # as if there were room, and somebody were before us
        before = held.bytes
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        assert held.bytes == before
        if waiting is not None:
            waiting.cancel()
        files.go_on.release()
        assert payloads(partition, 3, await cold.opened(partition, 3, LAST, CHUNK)) == [4, 5, 6]


@real_time
async def test_a_stream_that_ends_gives_back_the_room_of_what_it_had_opened_ahead(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (partition, files):
        held = Held(1 << 30)
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        await files.until_reading()
        cold.close()
        cold.close()
        assert held.bytes == 0
        files.go_on.release()
        await eventually(lambda: not [task for task in asyncio.all_tasks() if "ahead" in task.get_name()])


@real_time
async def test_who_is_cancelled_while_it_waits_for_what_is_opened_ahead_leaves_nothing(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (partition, files):
        held = Held(1 << 30)
        cold = ColdReads(held, WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        taking = asyncio.create_task(cold.opened(partition, 3, LAST, CHUNK))
        await files.until_reading()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        files.go_on.release()
        assert held.bytes == 0
        await eventually(lambda: not [task for task in asyncio.all_tasks() if "ahead" in task.get_name()])


@pytest.mark.parametrize("when", ["while it is read", "once it is read"])
@real_time
async def test_nothing_that_was_opened_ahead_is_served_of_a_log_that_was_cut(tmp_path: Path, when: str) -> None:
    """As after a forced recovery: other entries lie there by then."""
    async with on_disk(tmp_path) as (partition, files):
        cold = ColdReads(Held(1 << 30), WHO)
        cold.open_ahead(partition, 3, LAST, CHUNK)
        await files.until_reading()
        if when == "once it is read":
            files.go_on.release()
            await eventually(lambda: cold._ahead is not None and cold._ahead.opening.done())
        partition.journal.truncate(3)
        others = [frame_of(index, 2, bytes([index + 100]) * SIZE) for index in range(4, LAST + 1)]
        partition.journal.append(others)
        files.go_on.release()
        unsealed = await cold.opened(partition, 3, LAST, CHUNK)
        assert payloads(partition, 3, unsealed) == [104, 105, 106]
        assert joined(partition.journal.read(4, LAST, ALL)) == joined(others)
