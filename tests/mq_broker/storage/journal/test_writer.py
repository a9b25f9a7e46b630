"""The writer thread: what it groups, what it reports, and what a failing disk makes of it."""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from pathlib import Path

import pytest

import mq_broker.storage.journal.writer as writer_module
from mq_broker.storage.opening.opening import open_disk_journal
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import (
    DEADLINE_S,
    PLACE,
    Bed,
    Heard,
    eventually,
    frame_of,
    frames_of,
    joined,
    open_files_under,
)

ALL = 1 << 40


# ------------------------------------------------------------------ grouping


@real_time
async def test_what_gathers_during_a_sync_shares_the_next_one(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        bed.hold()
        journal.append(frames_of(1, 1))
        assert await asyncio.to_thread(bed.files.waiting.wait, 10)
        for index in range(2, 202):
            journal.append(frames_of(index, index))
        bed.let_go()
        await heard.until_flushed(201)
        assert (bed.files.writes, bed.files.syncs) == (2, 2)
        assert heard.of("flushed") == [1, 201]
        await journal.close()


@real_time
async def test_os_is_flushed_once_written_and_synced_in_the_background(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        bed.writer.syncs.interval_s = 3600
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 3))
        await heard.until_flushed(3)
        assert bed.files.syncs == 0
        await journal.close()
        assert bed.files.syncs > 0
        bed.writer.syncs.interval_s = 0.01
        journal, heard, _ = bed.open()
        bed.files.syncs = 0
        journal.append(frames_of(4, 4))
        await heard.until_flushed(4)
        await eventually(lambda: bed.files.syncs > 0)
        await journal.close()


@real_time
async def test_a_new_segment_is_in_its_directory_durably_and_after_the_one_before(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=200) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        bed.files.events.clear()
        journal.append(frames_of(3, 5))
        await heard.until_flushed(5)
        assert [event for event in bed.files.events if event != "mark"] == [
            "sync_directory",
            "write",
            "sync",
            "sync_directory",
            "write",
            "sync",
        ]
        await journal.close()


@real_time
async def test_more_parts_than_one_write_takes(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        frames = frames_of(1, 1500, size=17_000)
        journal.append(frames)
        await heard.until_flushed(1500)
        assert bed.segments[0].read_bytes() == joined(frames)
        await journal.close()


# ------------------------------------------------------------------ a full disk


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("room", [0, 99, 100, 299])
@real_time
async def test_a_full_disk_refuses_what_does_not_fit_and_takes_more_when_there_is_room(
    tmp_path: Path, durability: str, room: int
) -> None:
    async with Bed(tmp_path, durability) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        name = journal.log_id
        bed.files.room = room
        journal.append(frames_of(3, 5))
        journal.append(frames_of(6, 6))
        await heard.until_heard("refused")
        fitting = 2 + room // 100
        assert heard.of("refused") == [fitting + 1]
        assert heard.of("flushed")[-1] == fitting
        assert "free space" in str(heard.calls[-1][2])
        assert journal.last_index == fitting
        assert joined(journal.read(1, 9, ALL)) == joined(frames_of(1, fitting))
        assert bed.segments[0].stat().st_size == fitting * 100
        journal.append(frames_of(fitting + 1, fitting + 1))
        await heard.until(lambda: len(heard.of("refused")) == 2)
        bed.files.room = None
        other = frames_of(fitting + 1, 8, epoch=2, size=50)
        journal.append(other)
        await heard.until_flushed(8)
        assert journal.log_id == name
        await bed.crash(journal)
        again, _, _ = bed.open()
        assert joined(again.read(1, 9, ALL)) == joined(frames_of(1, fitting) + other)
        await again.close()


@pytest.mark.parametrize("failing", ["sync_directory", "open"])
@real_time
async def test_no_room_for_a_new_segment_is_a_refusal(tmp_path: Path, failing: str) -> None:
    async with Bed(tmp_path, segment_bytes_max=290) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        real = getattr(bed.files, failing)

        def fail(path: Path) -> int:
            if path.suffix == ".log" or path == bed.path:
                raise OSError(28, "No space left on device")
            return int(real(path))

        setattr(bed.files, failing, fail)
        journal.append(frames_of(3, 3))
        await heard.until_heard("refused")
        setattr(bed.files, failing, real)
        journal.append(frames_of(3, 3, size=10))
        journal.append(frames_of(4, 4))
        await heard.until_flushed(4)
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert len(opened.recovered.entries) == 4
        await again.close()


@real_time
async def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 3, size=9000))
        await heard.until_flushed(3)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        try:
            journal.append(frames_of(4, 9, size=9000))
            await heard.until_heard("refused")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert heard.of("refused") == [5]
        journal.append(frames_of(5, 6, size=9000))
        await heard.until_flushed(6)
        assert bed.segments[0].read_bytes() == joined(frames_of(1, 6, size=9000))
        await journal.close()


@real_time
async def test_a_queue_that_is_full_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WRITER_PENDING_BYTES_MAX", 300)
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        bed.hold()
        journal.append(frames_of(1, 3))
        assert not bed.writer.has_room
        journal.append(frames_of(4, 4))
        journal.append(frames_of(5, 6))
        assert [frame.entry.index for frame in journal.read(1, 6, ALL)] == [1, 2, 3, 4, 5, 6]
        await heard.until_heard("refused")
        assert heard.of("refused") == [4]
        assert journal.last_index == 3
        waiting = asyncio.gather(*(bed.writer.room() for _ in range(100)))
        await asyncio.sleep(0)
        assert not waiting.done()
        bed.let_go()
        await heard.until_flushed(3)
        await asyncio.wait_for(waiting, DEADLINE_S)
        journal.append(frames_of(4, 5))
        await heard.until_flushed(5)
        assert (bed.writer.pending_bytes, bed.writer.pending_orders) == (0, 0)
        await journal.close()


# ------------------------------------------------------------------ a failing disk


@real_time
async def test_a_failed_fsync_is_never_acknowledged_and_gives_the_log_a_new_id(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        name = journal.log_id
        bed.files.failing_syncs = 1
        journal.append(frames_of(3, 5))
        await heard.until_heard("refused")
        assert [call[0] for call in heard.calls] == ["flushed", "replaced", "refused"]
        assert heard.of("refused") == [3]
        assert heard.of("replaced") == [journal.log_id] != [name]
        assert journal.log_id in (bed.path / "log.json").read_text()
        assert joined(journal.read(1, 9, ALL)) == joined(frames_of(1, 2))
        assert bed.segments[0].stat().st_size == 200
        journal.append(frames_of(3, 4, epoch=2))  # written anew, synced anew
        await heard.until_flushed(4)
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert again.log_id == journal.log_id
        assert len(opened.recovered.entries) == 4
        await again.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
@real_time
async def test_a_disk_that_takes_no_new_log_id_takes_nothing_any_more(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        await eventually(lambda: journal._files._synced == 2)  # type: ignore[attr-defined]
        bed.files.failing_syncs = 1 << 30
        bed.files.failing_replaces = 1 << 30
        journal.append(frames_of(3, 3))
        await heard.until_heard("replaced")
        for _ in range(2):
            before = len(heard.of("refused"))
            journal.append(frames_of(journal.last_index + 1, journal.last_index + 1))
            await heard.until(lambda before=before: len(heard.of("refused")) > before)  # type: ignore[misc]
        assert "restart this broker" in str(heard.calls[-1][2])
        assert joined(journal.read(1, 2, ALL)) == joined(frames_of(1, 2))
        assert max(int(index) for index in heard.of("flushed")) == (2 if durability == "fsync" else 3)
        await journal.close()
        assert '"clean": false' in (bed.path / "log.json").read_text()


@real_time
async def test_a_writer_that_breaks_is_heard_of(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    await bed.__aenter__()
    journal, _, _ = bed.open()
    bed.files.sync = lambda fd: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    journal.append(frames_of(1, 1))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bed.writer.died, 10)
    with pytest.raises(StorageFailed, match="did not close"):
        await journal.close()


@real_time
async def test_the_writer_needs_no_descriptors_for_journals_that_are_closed(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300, cache_bytes_max=0) as bed:
        for _ in range(5):
            journal, _, _ = bed.open()
            journal.append(frames_of(journal.last_index + 1, journal.last_index + 9))
            journal.read(1, 1, ALL)
            await journal.close()
        assert open_files_under(tmp_path) == []


@real_time
async def test_many_idle_journals_hold_few_files_open_and_take_entries_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "OPEN_LOGS_MAX", 4)

    def open_logs() -> int:
        names = open_files_under(tmp_path)
        return len({Path(name).parent for name in names if name.endswith((".log", "flushed"))})

    async with Bed(tmp_path) as bed:
        places = [bed.path / str(n) for n in range(20)]
        heards = [Heard() for _ in places]
        durabilities = ["fsync", "os"] * 10
        journals = [
            open_disk_journal(path, PLACE, durability, heard, bed.writer).journal
            for path, durability, heard in zip(places, durabilities, heards, strict=True)
        ]
        for index in (1, 2):
            for journal, heard in zip(journals, heards, strict=True):
                journal.append(frames_of(index, index))
                await heard.until_flushed(index)
            await eventually(lambda: open_logs() <= 4)
        for journal in journals:
            await journal.close()
        for path, durability in zip(places, durabilities, strict=True):
            again = open_disk_journal(path, PLACE, durability, Heard(), bed.writer)
            assert again.journal.last_index == 2
            assert not again.damaged
            await again.journal.close()


@real_time
async def test_a_truncation_that_stays_owed_leaves_no_clean_mark(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 5))
        await heard.until_flushed(5)
        bed.files.failing_truncates = 1 << 30
        journal.truncate(2)
        await journal.close()
        again, _, opened = bed.open()
        assert [entry.index for entry in opened.recovered.entries] == [1, 2, 3, 4, 5]  # its leader will cut them again
        await again.close()


@real_time
async def test_a_refusal_that_crosses_a_truncation_says_nothing_about_what_came_after(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        bed.files.room = 0
        journal.append(frames_of(3, 4))
        deadline = time.monotonic() + 10
        while journal._files._refused is None and time.monotonic() < deadline:  # type: ignore[attr-defined]
            pass  # the outcome is on its way to the loop, which is busy here and has not heard it
        bed.files.room = None
        journal.truncate(1)
        journal.append(frames_of(2, 4, epoch=2))
        await heard.until(lambda: ("flushed", 4, 2) in heard.calls)
        assert heard.of("refused") == []
        assert joined(journal.read(1, 9, ALL)) == joined([*frames_of(1, 1), *frames_of(2, 4, epoch=2)])
        await journal.close()


@real_time
async def test_short_writes_are_continued(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        real = bed.files.write
        bed.files.write = lambda fd, parts, position: real(fd, (b"".join(parts)[:777],), position)  # type: ignore[method-assign]
        journal, heard, _ = bed.open()
        frames = [frame_of(n, 1, bytes([n]) * size) for n, size in enumerate([10, 20_000, 5, 40_000, 3000], 1)]
        journal.append(frames)
        await heard.until_flushed(5)
        assert bed.segments[0].read_bytes() == joined(frames)
        await journal.close()
