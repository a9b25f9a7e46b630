"""What little is written on the event loop, and what is left to the writer's thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import mq_broker.storage.journal.writer as writer_module
from mq_broker.storage.interface import Journal
from mq_broker.storage.journal.journal import DiskJournal
from mq_broker.storage.journal.segments import Outcome
from mq_protocol.wire.envelope import Buffer
from tests.cluster.harness import wait_until
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import Bed, Heard, eventually, frames_of, joined


@pytest.fixture(autouse=True)
def no_write_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(writer_module, "LOOP_SLOW_S", 3600.0)


async def with_one_entry(bed: Bed) -> tuple[Journal, Heard]:
    """A journal whose file the writer's thread has opened. The thread has nothing to do, and no sync is due."""
    bed.writer.syncs.interval_s = 3600
    journal, heard, _ = bed.open()
    journal.append(frames_of(1, 1))
    await heard.until_flushed(1)
    await eventually(lambda: not bed.writer._files_in_use.locked())
    return journal, heard


async def written_by(bed: Bed, journal: Journal, index: int, size: int = 100) -> str:
    """The thread that writes that entry, once the writer's has nothing to do."""
    await eventually(lambda: not bed.writer._files_in_use.locked())
    real, threads = bed.files.write, []

    def write(fd: int, parts: Sequence[Buffer], position: int) -> int:
        if sum(memoryview(part).nbytes for part in parts) >= size:  # not the flushed mark
            threads.append(threading.current_thread().name)
        return real(fd, parts, position)

    bed.files.write = write  # type: ignore[method-assign]
    journal.append(frames_of(index, index, size=size))
    await eventually(lambda: bool(threads))
    bed.files.write = real  # type: ignore[method-assign]
    return threads[0]


LOOP = threading.current_thread().name


@real_time
async def test_little_is_written_on_the_loop_once_the_thread_has_opened_the_file(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        bed.writer.syncs.interval_s = 3600
        journal, heard, _ = bed.open()
        assert await written_by(bed, journal, 1) == "journal-writer"
        await heard.until_flushed(1)
        assert await written_by(bed, journal, 2) == LOOP
        assert heard.of("flushed") == [1], "told within the call that appended"
        await heard.until_flushed(2)
        assert await written_by(bed, journal, 3, writer_module.LOOP_BYTES_MAX + 1) == "journal-writer"
        await heard.until_flushed(3)
        assert await written_by(bed, journal, 4) == LOOP
        await heard.until_flushed(4)
        assert (bed.writer.pending_bytes, bed.writer.pending_orders) == (0, 0)
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert len(opened.recovered.entries) == 4
        await again.close()


@real_time
async def test_what_must_be_synced_is_not_written_on_the_loop(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync") as bed:
        journal, heard, _ = bed.open()
        for index in (1, 2):
            assert await written_by(bed, journal, index) == "journal-writer"
            await heard.until_flushed(index)
        await journal.close()


@real_time
async def test_entries_stay_in_order_behind_what_the_thread_has(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard = await with_one_entry(bed)
        large = frames_of(2, 2, size=writer_module.LOOP_BYTES_MAX + 1)
        journal.append(large)
        journal.append(frames_of(3, 3))
        await heard.until_flushed(3)
        await bed.crash(journal)
        again, _, _ = bed.open()
        assert joined(again.read(1, 3, 1 << 40)) == joined([*frames_of(1, 1), *large, *frames_of(3, 3)])
        await again.close()


@real_time
async def test_nothing_is_written_on_the_loop_while_the_disk_syncs(tmp_path: Path) -> None:
    """So a disk that hangs holds up the thread, and not the loop."""
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        await bed.append_and_hold_sync(journal, frames_of(1, 1))
        await heard.until_flushed(1)
        assert await written_by(bed, journal, 2) == "journal-writer"
        await heard.until_flushed(2)
        bed.let_go()
        await journal.close()


@real_time
async def test_what_the_loop_has_written_is_synced_in_the_background(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        bed.writer.syncs.interval_s = 0.01
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 1))
        await heard.until_flushed(1)
        await eventually(lambda: bed.writer.syncs.is_empty)
        bed.files.syncs = 0
        assert await written_by(bed, journal, 2) == LOOP
        await eventually(lambda: bed.files.syncs > 0)
        await eventually(lambda: bed.writer.syncs.is_empty)
        await journal.close()


@real_time
async def test_a_full_disk_is_told_of_what_the_loop_writes_too(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard = await with_one_entry(bed)
        bed.files.room = 0
        bed.files.events.clear()
        journal.append(frames_of(2, 2))
        assert "write" in bed.files.events, "the loop has not tried to write it"
        await heard.until_heard("refused")
        assert (heard.of("refused"), journal.last_index) == ([2], 1)
        bed.files.room = None
        journal.append(frames_of(2, 2, epoch=2))
        await heard.until_flushed(2)
        await bed.crash(journal)
        again, _, _ = bed.open()
        assert joined(again.read(1, 9, 1 << 40)) == joined([*frames_of(1, 1), *frames_of(2, 2, epoch=2)])
        await again.close()


@real_time
async def test_what_a_failed_background_sync_came_to_is_heard_before_what_is_written_after_it(tmp_path: Path) -> None:
    """Or the journal would take itself back to where it stood before."""
    async with Bed(tmp_path, "os") as bed:
        journal, heard = await with_one_entry(bed)
        assert isinstance(journal, DiskJournal)
        real, stood = journal.settle, []

        def settle(outcome: Outcome) -> None:
            stood.append((outcome.written, outcome.replaced is not None))
            real(outcome)

        journal.settle = settle  # type: ignore[method-assign]
        former = journal.log_id
        journal.append(frames_of(2, 2))  # on the loop, which is not free to hear of it
        bed.files.failing_syncs = 1
        bed.writer.syncs._next_turn = 0.0
        bed.writer._queue.put(writer_module._Woken())
        wait_until(
            lambda: journal._files.identity.log_id != former and not bed.writer._files_in_use.locked(),
            "the sync has failed",
        )
        journal.append(frames_of(3, 3))
        await heard.until_flushed(3)
        assert stood == [(2, False), (2, True), (3, False)]
        assert await written_by(bed, journal, 4) == LOOP, "once it has heard of it"
        await heard.until_flushed(4)
        await journal.close()
