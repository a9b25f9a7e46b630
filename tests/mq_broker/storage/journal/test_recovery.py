"""Opening after any stop: torn tails are cut, damage is put aside, and the two are never taken for one another."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from mq_broker.core.entries import Append
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.interface import Frame
from mq_broker.storage.journal.segments import pack_mark, unpack_mark
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import (
    PLACE,
    Bed,
    Killed,
    MortalFiles,
    Saved,
    frame_of,
    frames_of,
    joined,
    random_frame,
)

ALL = 1 << 40


async def written(bed: Bed, frames: list[Frame], mark: int | None = None) -> None:
    """Files as a crash leaves them, with exactly these frames in one run, flushed up to `mark`."""
    journal, heard, _ = bed.open()
    journal.append(frames)
    await heard.until_flushed(frames[-1].entry.index)
    await bed.crash(journal)
    if mark is not None:
        (bed.path / "flushed").write_bytes(pack_mark(PLACE, mark))


async def repaired(bed: Bed, reason: str, kept: int, aside: bytes | None = None) -> None:
    """Open: damage is told, the log is another, what is good is there, what is not is put aside; then nothing is wrong
    any more."""
    name = json.loads((bed.path / "log.json").read_text())["log_id"]
    asides = set(bed.path.glob("aside-*"))
    journal, _, opened = bed.open()
    assert re.search(reason, opened.damaged), opened.damaged
    assert journal.log_id != name
    assert [entry.index for entry in opened.recovered.entries] == list(range(1, kept + 1))
    assert joined(journal.read(1, kept, ALL)) == joined(frames_of(1, kept))
    new = sorted(set(bed.path.glob("aside-*")) - asides)
    if aside is None:
        assert new == []
    else:
        assert opened.damaged in (new[0] / "why.txt").read_text()
        assert b"".join(path.read_bytes() for path in sorted(new[0].glob("*.log"))) == aside
    await bed.crash(journal)
    again, _, opened = bed.open()
    assert (again.log_id, opened.damaged, len(opened.recovered.entries)) == (journal.log_id, "", kept)
    await again.close()


@real_time
async def test_a_tail_torn_at_any_byte_of_the_last_frame_is_cut(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        frames = frames_of(1, 3)
        await written(bed, frames, mark=2)
        segment = bed.segments[0]
        whole = segment.read_bytes()
        for length in (200, *range(201, 299, 7), 299):
            segment.write_bytes(whole[:length])
            journal, heard, opened = bed.open()
            assert len(opened.recovered.entries) == 2
            assert segment.stat().st_size == 200
            journal.append([frame_of(3, 2, b"other")])
            await heard.until_flushed(3)
            await bed.crash(journal)
            assert segment.read_bytes() == whole[:200] + joined([frame_of(3, 2, b"other")])
            (bed.path / "flushed").write_bytes(pack_mark(PLACE, 2))


@real_time
async def test_a_flipped_byte_anywhere_in_the_middle_is_damage_and_all_from_there_on_is_put_aside(
    tmp_path: Path,
) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 4), mark=0)  # not even the mark tells: the good frames that follow do
        saved = Saved(bed.path)
        whole = bed.segments[0].read_bytes()
        for at in range(100, 200, 9):
            saved.put_back()
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            bed.segments[0].write_bytes(damaged)
            await repaired(bed, r"0{19}1\.log is damaged at byte 100: .* a good frame follows", 1, bytes(damaged))


@real_time
async def test_a_bad_last_frame_is_damage_if_it_was_flushed(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 3))
        saved = Saved(bed.path)
        whole = bed.segments[0].read_bytes()
        for damaged, aside in ((whole[:-1] + b"?", True), (whole[:-1], True), (whole[:200], False)):
            saved.put_back()
            bed.segments[0].write_bytes(damaged)
            await repaired(bed, "flushed", 2, damaged if aside else None)
        for emptied in (True, False):
            saved.put_back()
            if emptied:
                bed.segments[0].write_bytes(b"")
            else:
                bed.segments[0].unlink()
            await repaired(bed, "had been flushed up to 3", 0)


@real_time
async def test_a_log_stopped_cleanly_has_no_torn_tail(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, _, _ = bed.open()
        journal.append(frames_of(1, 3))
        await journal.close()
        with bed.segments[0].open("ab") as file:
            file.write(b"x")
        await repaired(bed, "stopped cleanly", 3, joined(frames_of(1, 3)) + b"x")


@real_time
async def test_a_bad_frame_in_any_segment_but_the_last_is_damage(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=200) as bed:
        await written(bed, frames_of(1, 6), mark=0)
        saved = Saved(bed.path)
        first, second, third = bed.segments
        whole = [path.read_bytes() for path in bed.segments]
        first.write_bytes(whole[0][:-1])
        await repaired(bed, rf"{first.name} is damaged at byte 100", 1, whole[0][:-1] + whole[1] + whole[2])
        saved.put_back()
        second.write_bytes(whole[1][:-1])
        await repaired(bed, rf"{second.name} is damaged at byte 100", 3, whole[1][:-1] + whole[2])
        saved.put_back()
        third.write_bytes(whole[2][:-1])
        journal, _, opened = bed.open()
        assert (len(opened.recovered.entries), opened.damaged) == (5, "")
        await journal.close()


@pytest.mark.parametrize("missing", [0, 1])
@real_time
async def test_a_missing_segment_is_damage(tmp_path: Path, missing: int) -> None:
    async with Bed(tmp_path, segment_bytes_max=200) as bed:
        await written(bed, frames_of(1, 6), mark=0)
        bed.segments[missing].unlink()
        await repaired(bed, "it begins at entry", 2 * missing, joined(frames_of(2 * missing + 3, 6)))


@real_time
async def test_a_segment_under_a_foreign_name_is_refused(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 1))
        bed.segments[0].rename(bed.path / "1.log")
        with pytest.raises(StorageFailed, match="not a segment's name"):
            bed.open()


@real_time
async def test_frames_of_another_partition_are_damage(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 3))
        other = [frame_of(index, 1, bytes([index]) * 40, Append(), Place("another", 3)) for index in (1, 2, 3)]
        bed.segments[0].write_bytes(joined(other))
        await repaired(bed, "another partition", 0, joined(other))


@pytest.mark.parametrize("strange", [frame_of(5), frame_of(2), frame_of(3, 0)], ids=["jump", "again", "epoch falls"])
@real_time
async def test_entries_out_of_order_are_cut_above_the_mark_and_damage_below_it(tmp_path: Path, strange: Frame) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 2))
        with bed.segments[0].open("ab") as file:
            file.write(joined([strange]))
        saved = Saved(bed.path)
        whole = bed.segments[0].read_bytes()
        journal, _, opened = bed.open()
        assert (len(opened.recovered.entries), opened.damaged) == (2, "")
        await bed.crash(journal)
        for mark in (pack_mark(PLACE, 3), b"unreadable", None):
            saved.put_back()
            if mark is None:
                (bed.path / "flushed").unlink()
            else:
                (bed.path / "flushed").write_bytes(mark)
            await repaired(bed, "is damaged at byte 200", 2, whole)


@real_time
async def test_a_reboot_may_leave_holes_in_what_os_never_synced_but_not_below_the_mark(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        await written(bed, frames_of(1, 4), mark=1)
        whole = bed.segments[0].read_bytes()
        holed = whole[:100] + bytes(100) + whole[200:]
        bed.segments[0].write_bytes(holed)
        saved = Saved(bed.path)
        await repaired(bed, "a good frame follows", 1, holed)  # kill -9 leaves no holes
        saved.put_back()
        bed.boot = "boot-2"
        journal, _, opened = bed.open()
        assert (len(opened.recovered.entries), opened.damaged) == (1, "")
        await bed.crash(journal)
        saved.put_back()
        bed.boot = "boot-3"
        bed.segments[0].write_bytes(b"?" + whole[1:])
        await repaired(bed, "entries up to 1 had been flushed", 0, b"?" + whole[1:])


@real_time
async def test_a_new_log_is_named_durably_once_and_takes_its_first_entries_without_another_name(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        assert [event for event in bed.files.events if event != "mark"] == [
            "replace",
            "sync_directory",
            "sync_directory",
        ]
        assert [path.name for path in bed.segments] == [f"{1:020d}.log"], (
            "or the first append would have to sync its name"
        )
        bed.files.events.clear()
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        assert bed.files.events == ["write", "sync", "mark"]
        await journal.close()


@pytest.mark.parametrize("lost", ["", "flushed", "*.log", "*"])
@pytest.mark.parametrize("step", range(5))
@real_time
async def test_a_new_log_that_a_crash_interrupts_is_made_again(tmp_path: Path, step: int, lost: str) -> None:
    """`lost`: what did not reach the disk of what was not synced by name."""
    async with Bed(tmp_path) as bed:
        bed.files = bed.writer.files = files = MortalFiles(step)
        with contextlib.suppress(Killed):
            journal, _, _ = bed.open()
            await bed.crash(journal)
        files.steps_left = 1 << 30
        if step < 3 and lost:  # the third step is the directory's sync
            for path in bed.path.glob(lost):
                path.unlink()
        again, heard, opened = bed.open()
        assert (opened.damaged, opened.recovered.entries) == ("", ())
        again.append(frames_of(1, 2))
        await heard.until_flushed(2)
        await bed.crash(again)
        third, _, opened = bed.open()
        assert (third.log_id, opened.damaged, len(opened.recovered.entries)) == (again.log_id, "", 2)
        await third.close()


@real_time
async def test_recovered_files_are_synced_before_they_are_served(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed, frames_of(1, 2), mark=1)
        bed.files.events.clear()
        journal, _, _ = bed.open()
        # what the last sync may have failed for is written again, else the kernel would take it for clean
        assert bed.files.events == ["write", "sync", "sync_directory"]
        await bed.crash(journal)
        bed.boot = "boot-2"
        bed.files.events.clear()
        journal, _, _ = bed.open()
        assert bed.files.events == ["sync", "sync_directory"]
        await journal.close()


@real_time
async def test_what_the_mark_says_is_on_the_disk_is_not_synced_again(tmp_path: Path) -> None:
    """A broker with ten thousand idle partitions would wait for twenty thousand syncs."""
    async with Bed(tmp_path, segment_bytes_max=200) as bed:
        await written(bed, frames_of(1, 3))
        assert len(bed.segments) == 2
        for boot in ("boot-1", "boot-2"):
            bed.boot = boot
            bed.files.events.clear()
            journal, _, opened = bed.open()
            assert len(opened.recovered.entries) == 3
            assert bed.files.events == []
            await bed.crash(journal)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
@real_time
async def test_recovery_equals_a_model_under_random_cuts(tmp_path: Path, seed: int) -> None:
    """Cut the stream of segments anywhere above the mark: recovery gives the longest prefix of whole frames."""
    rng = random.Random(seed)
    async with Bed(tmp_path, segment_bytes_max=20000) as bed:
        epoch = 1
        frames: list[Frame] = []
        for index in range(1, 60):
            epoch += rng.random() < 0.1
            frames.append(random_frame(rng, index, epoch))
        await written(bed, frames, mark=0)
        shutil.copytree(bed.path, tmp_path / "whole")
        base = 0
        for segment in sorted((tmp_path / "whole").glob("*.log")):
            size = segment.stat().st_size
            for cut in sorted(rng.sample(range(size + 1), min(6, size))):
                shutil.rmtree(bed.path)
                shutil.copytree(tmp_path / "whole", bed.path)
                for other in bed.segments:
                    if other.name > segment.name:
                        other.unlink()
                garbage = rng.randbytes(rng.choice([0, 0, 7, 300]))
                (bed.path / segment.name).write_bytes(segment.read_bytes()[:cut] + garbage)
                ends, end = [], 0
                for frame in frames:
                    end += frame.size
                    ends.append(end)
                expected = [frame for frame, end in zip(frames, ends, strict=True) if end <= base + cut]
                journal, _, opened = bed.open()
                assert opened.recovered.entries == tuple(frame.entry for frame in expected), (
                    f"seed {seed} cut {segment.name} at {cut}"
                )
                if expected:
                    assert joined(journal.read(1, len(expected), ALL)) == joined(expected)
                await journal.close()
            base += size


@real_time
async def test_frames_larger_than_the_window_are_recovered(tmp_path: Path) -> None:
    async with Bed(tmp_path, cache_bytes_max=0) as bed:
        frames = [
            frame_of(1, 1, bytes(100)),
            frame_of(2, 1, random.Random(3).randbytes(9 << 20)),
            frame_of(3),
            frame_of(4, 1, b"x" * (4 << 20)),
        ]
        await written(bed, frames)
        journal, _, opened = bed.open()
        assert opened.recovered.entries == tuple(frame.entry for frame in frames)
        assert journal.payload(2) == frames[1].parts[1]
        await journal.close()


def test_the_mark_is_believed_only_whole_and_at_its_place() -> None:
    data = pack_mark(PLACE, 77)
    assert unpack_mark(PLACE, data) == 77
    assert unpack_mark(Place("other", 3), data) is None
    for at in range(len(data)):
        assert unpack_mark(PLACE, data[:at]) is None
        assert unpack_mark(PLACE, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None


@real_time
async def test_what_the_mark_does_not_speak_for_is_synced(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=200) as bed:
        await written(bed, frames_of(1, 3))
        with bed.segments[-1].open("ab") as file:
            file.write(b"torn")
        bed.files.events.clear()
        journal, _, _ = bed.open()
        assert bed.files.events == ["truncate", "sync", "sync_directory"], "what was cut may not come back"
        await bed.crash(journal)
        (bed.path / f"{4:020d}.log").touch()
        bed.files.events.clear()
        journal, _, _ = bed.open()
        assert bed.files.events == ["sync", "sync_directory"], (
            "a crash may have come before the name of an empty segment was synced"
        )
        await bed.crash(journal)
        (bed.path / "flushed").unlink()
        bed.files.events.clear()
        journal, _, _ = bed.open()
        assert "sync" in bed.files.events
        await journal.close()
