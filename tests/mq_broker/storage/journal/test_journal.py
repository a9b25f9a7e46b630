"""The journal, as the broker meets it: one suite for every durability, then what only a disk can do."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from pathlib import Path

import pytest

from mq_broker.storage.interface import Frame, Journal
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import Bed, Heard, frames_of, joined, on_a_bed, random_frame

EVERY = ["fsync", "os", "memory"]
ON_DISK = ["fsync", "os"]
ALL = 1 << 40


# ------------------------------------------------------------------ every durability


@pytest.mark.parametrize("durability", EVERY)
@pytest.mark.parametrize("cache_bytes_max", [0, 1500, 1 << 20])
@real_time
async def test_reads_give_whole_frames_one_at_least_and_no_more_than_fit(
    tmp_path: Path, durability: str, cache_bytes_max: int
) -> None:
    async with Bed(tmp_path, durability, cache_bytes_max=cache_bytes_max, segment_bytes_max=350) as bed:
        journal, heard, _ = bed.open()
        frames = frames_of(1, 9)
        journal.append(frames)
        await heard.until_flushed(9)
        for first in range(1, 10):
            for last in range(first, 12):
                for room in (0, 99, 100, 250, 300, 10_000):
                    got = journal.read(first, last, room)
                    count = min(max(1, room // 100), min(last, 9) + 1 - first)
                    assert [frame.entry.index for frame in got] == list(range(first, first + count))
                    assert joined(got) == joined(frames[first - 1 : first - 1 + count])
        assert journal.read(10, 12, ALL) == []
        assert [bytes(journal.payload(index)) for index in (1, 9)] == [bytes([1]) * 40, bytes([9]) * 40]
        await journal.close()


@pytest.mark.parametrize("durability", EVERY)
@real_time
async def test_flushed_is_not_reported_for_entries_that_were_cut(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 8))
        # Written; the outcome is on its way to the loop, which is busy here and has not heard it
        if durability != "memory":
            deadline = time.monotonic() + 10
            while journal._files._written < 8 and time.monotonic() < deadline:  # type: ignore[attr-defined]
                pass
        journal.truncate(3)
        bed.hold()
        journal.append(frames_of(4, 8, epoch=2))
        if durability != "memory":
            await heard.until(lambda: bool(heard.calls))
            assert heard.calls == [("flushed", 3, 1)]
        bed.let_go()
        await heard.until_flushed(8)
        assert heard.calls[-1] == ("flushed", 8, 2)
        await journal.close()


@pytest.mark.parametrize("durability", EVERY)
def test_a_random_life_equals_a_model(tmp_path: Path, durability: str) -> None:
    async def test(bed: Bed) -> None:
        rng = random.Random(20)
        model: list[Frame] = []
        epoch = 1
        journal, heard, _ = bed.open()
        for step in range(250):
            action = rng.random()
            if action < 0.6:
                frames = [random_frame(rng, len(model) + 1 + n, epoch) for n in range(rng.randrange(1, 8))]
                journal.append(frames)
                model += frames
            elif action < 0.75:
                keep = rng.randrange(max(0, len(model) - 12), len(model) + 1)
                journal.truncate(keep)
                del model[keep:]
                epoch += 1
            elif action < 0.8:
                await asyncio.sleep(0)
            elif action < 0.85 and model:
                await flushed(journal, heard)
            elif action < 0.9 and durability != "memory":
                await journal.close()
                journal, heard, opened = bed.open()
                assert opened.recovered.entries == tuple(frame.entry for frame in model), f"step {step}"
            elif model:
                first = rng.randrange(1, len(model) + 1)
                got = journal.read(first, len(model), rng.choice([0, 500, 5000, ALL]))
                assert joined(got) == joined(model[first - 1 : first - 1 + len(got)]), f"step {step}"
                assert got
            assert journal.last_index == len(model)
            assert journal.bytes_stored == sum(frame.size for frame in model)
        assert joined(journal.read(1, len(model), ALL)) == joined(model)
        await journal.close()

    async def flushed(journal: Journal, heard: Heard) -> None:
        await heard.until(lambda: journal._reported == journal.last_index)  # type: ignore[attr-defined]

    on_a_bed(test, tmp_path, durability, segment_bytes_max=9000, cache_bytes_max=4000)


# ------------------------------------------------------------------ on disk


@real_time
async def test_a_truncation_is_synced_before_anything_is_written_after_it(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync") as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 8))
        await heard.until_flushed(8)
        bed.files.events.clear()
        journal.truncate(3)
        journal.append(frames_of(4, 4, epoch=2))
        await heard.until_flushed(4)
        # the mark lowered and synced, the file cut and synced, then the entry written and synced, then the mark raised
        assert bed.files.events == ["mark", "sync", "truncate", "sync", "write", "sync", "mark"]
        await journal.close()


@pytest.mark.parametrize("durability", ON_DISK)
@real_time
async def test_entries_not_yet_written_are_read_and_are_not_evicted(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability, cache_bytes_max=0, segment_bytes_max=500) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 3))
        await heard.until_flushed(3)
        bed.hold()
        bed.files.one_at_a_time = True
        frames = frames_of(4, 40)
        journal.append(frames[:1])
        assert await asyncio.to_thread(bed.files.waiting.wait, 10)
        for frame in frames[1:]:
            journal.append([frame])
        assert joined(journal.read(4, 40, ALL)) == joined(frames)
        assert [frame.entry.index for frame in journal.read(2, 6, ALL)] == [2, 3, 4, 5, 6]
        bed.files.go_on.set()
        await heard.until_flushed(4)
        assert joined(journal.read(4, 40, ALL)) == joined(frames)
        bed.let_go()
        await heard.until_flushed(40)
        assert journal._recent == {}  # type: ignore[attr-defined]
        assert joined(journal.read(4, 40, ALL)) == joined(frames)
        await journal.close()


@real_time
async def test_damage_is_never_served_and_gives_the_log_a_new_id(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync", cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 5))
        await heard.until_flushed(5)
        name = journal.log_id
        flip(bed.segments[0], 250)
        assert bytes(journal.payload(2)) == bytes([2]) * 40
        for _ in range(3):
            with pytest.raises(StorageFailed, match=r"0{19}1\.log is damaged at byte 200"):
                journal.payload(3)
            await heard.until_heard("replaced")
        with pytest.raises(StorageFailed, match="at byte 200"):
            journal.read(1, 5, ALL)
        journal.append(frames_of(6, 6))
        await heard.until_flushed(6)
        assert heard.of("replaced") == [journal.log_id]
        assert journal.log_id != name
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert "damaged at byte 200" in opened.damaged
        assert joined(again.read(1, 9, ALL)) == joined(frames_of(1, 2))
        await again.close()


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


@real_time
async def test_a_lack_of_descriptors_is_not_taken_for_damage(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync", cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 5))
        await heard.until_flushed(5)
        name = journal.log_id
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(StorageFailed, match="Too many open files"):
                journal.read(1, 5, ALL)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert joined(journal.read(1, 5, ALL)) == joined(frames_of(1, 5))
        await bed.crash(journal)
        (bed.path / "flushed").unlink()  # so that its opening syncs the directory
        bed.files.sync_directory = lambda path: os.close(os.open("/nowhere/at/all", os.O_RDONLY))  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="cannot be opened"):
            bed.open()
        del bed.files.sync_directory  # type: ignore[attr-defined]
        again, heard, _ = bed.open()
        assert (again.log_id, journal.log_id, heard.calls) == (name, name, [])
        await again.close()


# ------------------------------------------------------------------ names of logs


@pytest.mark.parametrize(
    ("durability", "reboot", "stop", "same"),
    [
        ("fsync", True, "crash", True),
        ("fsync", False, "crash", True),
        ("os", False, "crash", True),
        ("os", True, "close", True),
        ("os", True, "crash", False),
    ],
)
@real_time
async def test_a_log_keeps_its_id_exactly_if_it_has_all_that_it_acknowledged(
    tmp_path: Path, durability: str, reboot: bool, stop: str, same: bool
) -> None:
    async with Bed(tmp_path, durability) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 3))
        await heard.until_flushed(3)
        if stop == "crash":
            await bed.crash(journal)
        else:
            await journal.close()
        if reboot:
            bed.boot = "boot-2"
        again, heard, opened = bed.open()
        assert (again.log_id == journal.log_id) is same
        assert len(opened.recovered.entries) == 3
        if reboot and stop == "close":  # the mark was for the former boot: it goes with the first write
            again.append(frames_of(4, 4))
            await heard.until_flushed(4)
            await bed.crash(again)
            bed.boot = "boot-3"
            third, _, _ = bed.open()
            assert third.log_id != again.log_id
            again = third
        await again.close()


@real_time
async def test_the_clean_mark_goes_before_the_first_write(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, _, _ = bed.open()
        journal.append(frames_of(1, 3))
        await journal.close()
        assert '"clean": true' in (bed.path / "log.json").read_text()
        again, _, _ = bed.open()
        assert '"clean": true' in (bed.path / "log.json").read_text()
        bed.files.events.clear()
        bed.hold()
        again.append(frames_of(4, 4))
        assert await asyncio.to_thread(bed.files.waiting.wait, 10)
        assert '"clean": false' in (bed.path / "log.json").read_text()
        assert bed.files.events[0] == "replace"
        assert "write" not in bed.files.events
        bed.let_go()
        await again.close()


@real_time
async def test_a_change_from_os_to_fsync_is_believed_only_once_all_is_synced(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync") as bed:
        journal, heard, _ = bed.open("os")
        journal.append(frames_of(1, 3))
        await heard.until_flushed(3)
        await bed.crash(journal)
        bed.boot = "boot-2"
        again, _, _ = bed.open("fsync")
        assert again.log_id != journal.log_id
        await bed.crash(again)
        bed.boot = "boot-3"
        third, _, _ = bed.open("fsync")
        assert third.log_id == again.log_id
        await third.close()


@real_time
async def test_a_log_of_another_partition_is_not_opened(tmp_path: Path) -> None:
    async with Bed(tmp_path, "fsync") as bed:
        journal, _, _ = bed.open()
        await journal.close()
        text = (bed.path / "log.json").read_text()
        for old, new, match in [
            ('"partition": 3', '"partition": 4', "holds partition 4"),
            ('"format": ', '"format": 9', "is of format 91, and this version reads format 1"),
        ]:
            (bed.path / "log.json").write_text(text.replace(old, new))
            with pytest.raises(StorageFailed, match=match):
                bed.open()
