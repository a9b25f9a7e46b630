"""What lies sealed on the disk and is read by brokers and readers far behind: opened in threads, in order, with the
same three answers as on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.broker.host.peer_messages import PeerMessages
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import AppendEntries
from mq_broker.core.replication.peer_admission import Verdict
from mq_broker.storage.files import OsFiles
from mq_broker.storage.interface import Frame, Journal
from mq_broker.storage.journal.segments import segment_path
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import BLOCK_BYTES, Altered, DataKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import DEADLINE_S, PLACE, Bed, eventually, frame_of, joined
from tests.mq_broker.storage.journal.test_sealed_journals import forged

SIZE = 40_000
ALL = 1 << 40


def large(first: int, last: int, epoch: int = 1) -> list[Frame]:
    return [frame_of(index, epoch, bytes([index]) * SIZE) for index in range(first, last + 1)]


@pytest.fixture
def opened_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that opened an entry, one for each."""
    names: list[str] = []
    real = DataKey.open

    def noting(self: DataKey, first: int, data: memoryview, at: int = 0) -> tuple[Frame, int]:
        names.append(threading.current_thread().name)
        return real(self, first, data, at)

    monkeypatch.setattr(DataKey, "open", noting)
    return names


@asynccontextmanager
async def sealed(bed: Bed, plain: int, last: int) -> AsyncIterator[Journal]:
    """A journal whose first entries, up to `plain`, are not sealed, and the others are, up to entry `last`; all of it
    in files."""
    if plain:
        journal, _, _ = bed.open()
        journal.append(large(1, plain))
        await journal.close()
    bed.keys = Keyring("test:", bed.provider)
    journal, heard, _ = bed.open()
    journal.append(large(plain + 1, last))
    await heard.until_flushed(last)
    yield journal
    await journal.close()


def on_the_loop(names: list[str]) -> int:
    return sum(not name.startswith("unsealing") for name in names)


@real_time
async def test_entries_of_plain_and_sealed_segments_are_read_in_order_beside_the_loop(
    tmp_path: Path, opened_by: list[str]
) -> None:
    async with Bed(tmp_path, segment_bytes_max=130000, cache_bytes_max=0) as bed, sealed(bed, 4, 14) as journal:
        opened_by.clear()
        for first, last in ((1, 14), (3, 9), (5, 14), (6, 99)):
            assert joined(await journal.read_apart(first, last)) == joined(large(first, min(last, 14)))
        assert len(opened_by) == 10 + 5 + 10 + 9
        assert on_the_loop(opened_by) <= 8  # what is left over of a segment is little
        opened_by.clear()
        assert joined(await journal.read_apart(7, 7)) == joined(large(7, 7))  # so is this
        assert opened_by == [threading.current_thread().name]
        assert await journal.shorten_to(9, WindowBounds(100)) > 4
        with pytest.raises(StorageFailed, match="is not kept"):
            await journal.read_apart(4, 14)


@real_time
async def test_what_is_written_meanwhile_is_read_from_memory_behind_what_is_opened(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 5) as journal:
        bed.hold()
        journal.append(large(6, 7))
        assert joined(await journal.read_apart(1, 7)) == joined(large(1, 7))
        bed.let_go()


@real_time
async def test_the_answers_are_three_in_a_thread_too(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 5) as journal:
        segment = segment_path(bed.path, 1)
        whole = segment.read_bytes()
        unit = (len(whole) - BLOCK_BYTES) // 5
        third = BLOCK_BYTES + 2 * unit
        segment.write_bytes(forged(whole, third, third + 80))
        with pytest.raises(Altered, match=r"entry 3 .* was altered"):
            await journal.read_apart(1, 5)
        segment.write_bytes(whole[: third + 80] + bytes([whole[third + 80] ^ 1]) + whole[third + 81 :])
        with pytest.raises(StorageFailed, match=f"damaged at byte {third}"):
            await journal.read_apart(1, 5)
        segment.write_bytes(whole)
        assert joined(await journal.read_apart(1, 5)) == joined(large(1, 5))


class HeldFiles(OsFiles):
    """A read in a thread waits until it is let go."""

    def __init__(self) -> None:
        self.reading = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def read_into(self, fd: int, room: memoryview, position: int) -> int:
        if threading.current_thread().name.startswith("unsealing"):
            self.reading.release()
            assert self.go_on.acquire(timeout=DEADLINE_S)
        return super().read_into(fd, room, position)

    async def until_reading(self) -> None:
        assert await asyncio.to_thread(self.reading.acquire, timeout=DEADLINE_S)


@pytest.mark.parametrize("how", ["cut", "closed"])
@real_time
async def test_nothing_is_served_of_a_log_that_was_cut_or_closed_while_it_was_read(tmp_path: Path, how: str) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 5) as journal:
        files = bed.writer.files = HeldFiles()
        reading = asyncio.create_task(journal.read_apart(1, 5))
        await files.until_reading()
        if how == "cut":
            journal.truncate(3)
            journal.append(large(4, 5, epoch=2))
        else:
            await journal.close()
        files.go_on.release()
        assert await reading == []


@real_time
async def test_readers_are_opened_for_two_at_a_time_and_one_who_is_gone_takes_no_place(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 5) as journal:
        files = bed.writer.files = HeldFiles()
        reading = [asyncio.create_task(journal.read_apart(1, 5)) for _ in range(12)]
        await files.until_reading()
        await files.until_reading()
        await asyncio.sleep(0)
        assert not files.reading.acquire(blocking=False)
        for task in reading[2:11]:
            task.cancel()
        for _ in range(12):
            files.go_on.release()
        found = await asyncio.gather(*reading, return_exceptions=True)
        assert [joined(found[n]) == joined(large(1, 5)) for n in (0, 1, 11)] == [True] * 3  # type: ignore[arg-type]
        assert [type(each) for each in found[2:11]] == [asyncio.CancelledError] * 9


class Follower:
    """The link to a broker, and what arrives there."""

    def __init__(self, journal: Journal) -> None:
        self.arrived: list[tuple[int, list[bytes]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        never: Any = None
        self.messages = PeerMessages(
            PLACE,
            self,  # type: ignore[arg-type]
            journal,
            never,
            self._spawn,
            lambda _message: (Verdict.ADMITTED, ""),
            ArrivingSnapshots(),
            lambda: 1 << 20,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def send_entries(self, _to: int, message: pb.AppendEntries, parts: list[Any]) -> None:
        data = b"".join(bytes(part) for part in parts)
        assert sum(message.frame_bytes) == len(data)
        self.arrived.append((message.prev_index, [data]))

    def send(self, prev: int, last: int, sequence: int = 0) -> None:
        self.messages.send(3, AppendEntries(2, 1, 1, prev, 1, last, 0, sequence, (), 0, ()))

    @property
    def waiting(self) -> dict[int, Any]:
        return self.messages._waiting


@real_time
async def test_what_a_follower_that_lags_is_sent_is_opened_beside_the_loop_and_stays_in_order(
    tmp_path: Path, opened_by: list[str]
) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 12) as journal:
        opened_by.clear()
        follower = Follower(journal)
        for prev, last in ((0, 4), (4, 8), (8, 8), (8, 9), (9, 12), (12, 12)):
            follower.send(prev, last)
        assert follower.arrived == []
        await eventually(lambda: not follower.waiting)
        assert follower.arrived == [
            (prev, [joined(large(prev + 1, last))])
            for prev, last in ((0, 4), (4, 8), (8, 8), (8, 9), (9, 12), (12, 12))
        ]
        assert on_the_loop(opened_by) == 1  # entry 9 alone is little
        follower.send(12, 12)
        assert len(follower.arrived) == 7  # nothing waits: it is sent at once


@real_time
async def test_what_waits_for_a_log_that_is_cut_is_not_sent(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed, sealed(bed, 0, 6) as journal:
        files = bed.writer.files = HeldFiles()
        follower = Follower(journal)
        follower.send(0, 4)
        follower.send(4, 6)
        journal.truncate(5)  # in the same turn, before the thread has begun
        await eventually(lambda: not follower.waiting)
        follower.send(0, 4)
        follower.send(4, 5)
        await files.until_reading()
        journal.truncate(3)
        journal.append(large(4, 5, epoch=2))
        files.go_on.release()
        await eventually(lambda: not follower.waiting)
        assert follower.arrived == []
