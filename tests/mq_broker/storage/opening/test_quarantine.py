"""Taking entries out of a log: a crash at any step leaves the log as it was or another one, never a mixture of the
two."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_broker.storage.interface import Frame
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.opening.quarantine import ASIDES_MAX
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
    snapshot_of,
    state_of,
)

ALL = 1 << 40
FRAMES = frames_of(1, 9)
SNAPSHOT = Snapshot(40, 3, 1_000_040, state_of(frames_of(1, 40), WindowBounds(20)))


async def nine_entries(bed: Bed) -> str:
    """Nine flushed entries in three segments, closed. Returns the log id."""
    journal, _, _ = bed.open()
    journal.append(FRAMES)
    await journal.adopt(4)
    await journal.close()
    return journal.log_id


def killed_at_every_step(bed: Bed, act: Callable[[], object], check: Callable[[int, bool], object]) -> int:
    """Put the directory back, die before step 0, 1, 2, … of `act`, have `check` look (it is told whether it got to the
    end)."""
    saved = Saved(bed.path)
    for step in range(1000):
        saved.put_back()
        files = MortalFiles(step)
        bed.files = bed.writer.files = files
        try:
            act()
            done = True
        except Killed:
            done = False
        files.steps_left = 1 << 30
        check(step, done)
        if done:
            return step
    raise AssertionError("it never ended")


def data_directory(bed: Bed) -> DataDirectory:
    """One in which the bed's log is that of PLACE."""
    directory = DataDirectory.open(bed.path.parent / "data", 1, bed.files)
    directory.partition_path = lambda place: bed.path  # type: ignore[method-assign]
    return directory


def name_in(bed: Bed) -> str:
    return str(json.loads((bed.path / "log.json").read_text())["log_id"])


@real_time
async def test_a_snapshot_is_installed_or_the_log_is_empty_or_as_it_was(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        former = await nine_entries(bed)
        seen: list[str] = []

        def install() -> None:
            directory = data_directory(bed)
            try:
                directory._files = bed.files
                directory.install(PLACE, "fsync", "flights", SNAPSHOT, 6)
            finally:
                directory.close()

        def check(step: int, done: bool) -> None:
            journal, _, opened = bed.open()
            found = opened.recovered
            if journal.log_id == former:
                assert (len(found.entries), found.snapshot, opened.recovery) == (9, None, 4)
                seen.append("as it was")
            elif found.snapshot is None:
                assert not done
                assert (found.entries, found.snapshot, opened.recovery, journal.last_index) == ((), None, 6, 0), (
                    f"step {step}"
                )
                assert "is being installed" in opened.damaged
                seen.append("empty")
            else:
                assert (found.entries, found.snapshot, opened.recovery, opened.damaged) == ((), SNAPSHOT, 6, "")
                assert (journal.first_index, journal.last_index, journal.bytes_stored) == (41, 40, 0)
                assert list(bed.path.glob("aside-*")) == []
                seen.append("installed")
                with pytest.raises(AssertionError, match="epoch 2 after 3"):
                    journal.append(frames_of(41, 41, epoch=2))

        assert killed_at_every_step(bed, install, check) > 8
        assert set(seen) == {"as it was", "empty", "installed"}
        assert seen == sorted(seen)


@real_time
async def test_a_log_that_starts_over_is_kept_aside_whole_whenever_it_is_killed(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        former = await nine_entries(bed)
        kept = sorted((path.name, path.read_bytes()) for path in bed.segments)

        def start_over() -> None:
            directory = data_directory(bed)
            try:
                directory._files = bed.files
                assert directory.start_over(PLACE, "fsync", "flights", 6) == bed.path / "aside-1"
            finally:
                directory.close()

        def check(step: int, done: bool) -> None:
            journal, _, opened = bed.open()
            if journal.log_id == former:
                assert len(opened.recovered.entries) == 9
                assert not done
                return
            assert (opened.recovered.entries, opened.recovery, journal.last_index) == ((), 6, 0), f"step {step}"
            (aside,) = bed.path.glob("aside-*")
            assert sorted((path.name, path.read_bytes()) for path in aside.glob("*.log")) == kept
            assert "recovery 6" in (aside / "why.txt").read_text()
            _, _, again = bed.open()
            assert (again.journal.log_id, again.damaged) == (journal.log_id, "")

        killed_at_every_step(bed, start_over, check)


@pytest.mark.parametrize(("segment", "position", "good"), [(1, 100, 4), (1, 0, 3), (0, 200, 2), (2, 299, 8)])
@real_time
async def test_a_repair_that_is_killed_is_finished_at_the_next_start(
    tmp_path: Path, segment: int, position: int, good: int
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        former = await nine_entries(bed)
        data = bytearray(bed.segments[segment].read_bytes())
        data[position] ^= 1
        bed.segments[segment].write_bytes(data)
        bad = {path.name: path.read_bytes() for path in bed.segments[segment:]}
        told: list[bool] = []

        def check(step: int, done: bool) -> None:
            named = name_in(bed)
            journal, _, opened = bed.open()
            assert journal.log_id != former
            if named != former:
                assert journal.log_id == named, f"step {step}: a new id at every start"
            assert joined(journal.read(1, 9, ALL)) == joined(FRAMES[:good]), f"step {step}"
            assert (len(opened.recovered.entries), opened.recovery) == (good, 4)
            (aside,) = bed.path.glob("aside-*")
            assert {path.name: path.read_bytes() for path in aside.glob("*.log")} == bad, f"step {step}"
            told.append("is damaged at byte" in opened.damaged)
            assert list(bed.path.glob("*.good")) == []

        killed_at_every_step(bed, bed.open, check)
        assert told == sorted(told, reverse=True)  # once the repair is done it is told no more
        assert told[0]


@real_time
async def test_a_damaged_snapshot_takes_the_log_with_it(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        journal, _, _ = bed.open()
        assert await journal.shorten_to(7, WindowBounds(20)) == 7
        await journal.close()
        kept = joined(FRAMES[6:])
        saved = Saved(bed.path)
        data = (bed.path / "snapshot").read_bytes()
        for damaged in (data[:-1], b"", data[:30] + b"?" + data[31:], None):
            saved.put_back()
            if damaged is None:
                (bed.path / "snapshot").unlink()
            else:
                (bed.path / "snapshot").write_bytes(damaged)
            again, heard, opened = bed.open()
            assert opened.damaged
            assert again.log_id != journal.log_id
            assert (opened.recovered.entries, opened.recovered.snapshot, again.first_index, opened.recovery) == (
                (),
                None,
                1,
                4,
            )
            assert joined([]) == b"".join(path.read_bytes() for path in bed.segments)
            assert b"".join(path.read_bytes() for path in sorted((bed.path / "aside-1").glob("*.log"))) == kept
            again.append(frames_of(1, 2))
            await heard.until_flushed(2)
            await bed.crash(again)
            _, _, opened = bed.open()
            assert (len(opened.recovered.entries), opened.damaged) == (2, "")


@pytest.mark.parametrize(
    ("harmed", "kept"), [("first byte", 0), ("last byte", 2), ("segment gone", 0), ("tail gone", 2)]
)
@real_time
async def test_damage_after_a_snapshot_leaves_the_snapshot_and_what_is_good(
    tmp_path: Path, harmed: str, kept: int
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        journal, _, _ = bed.open()
        assert await journal.shorten_to(4, WindowBounds(20)) == 4
        await journal.close()
        first = bed.segments[0]
        data = first.read_bytes()
        match harmed:
            case "first byte":
                first.write_bytes(b"?" + data[1:])
            case "last byte":
                first.write_bytes(data[:-1] + b"?")
            case "segment gone":
                first.unlink()
            case "tail gone":
                first.write_bytes(data[:200])
        again, heard, opened = bed.open()
        assert opened.damaged
        assert again.log_id != journal.log_id
        assert (again.first_index, again.last_index, opened.recovery) == (4, 3 + kept, 4)
        assert opened.recovered.snapshot == snapshot_of(journal) is not None
        again.append(FRAMES[3 + kept :])
        await heard.until_flushed(9)
        await bed.crash(again)
        third, _, opened = bed.open()
        assert (third.log_id, opened.damaged, opened.recovered.snapshot) == (again.log_id, "", snapshot_of(journal))
        assert joined(third.read(4, 9, ALL)) == joined(FRAMES[3:])
        await third.close()


@real_time
async def test_a_snapshot_of_another_partition_is_damage_and_one_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        journal, _, _ = bed.open()
        await journal.shorten_to(7, WindowBounds(20))
        await journal.close()
        data = bytearray((bed.path / "snapshot").read_bytes())
        data[7] = 3
        data[:4] = int(google_crc32c.extend(PLACE.seed, bytes(data[4:]))).to_bytes(4, "little")
        (bed.path / "snapshot").write_bytes(data)
        with pytest.raises(StorageFailed, match="format 3, not 1: bring every broker"):
            bed.open()
        assert name_in(bed) == journal.log_id
        (bed.path / "snapshot").write_bytes(encode_snapshot(Place("another", 3), SNAPSHOT))
        _, _, opened = bed.open()
        assert "of another partition" in opened.damaged


def newer_frame(index: int, at: int, value: int) -> bytes:
    """A whole frame of a version that is not there yet: another kind (byte 6) or another format (byte 5)."""
    frame = bytearray(joined([frame_of(index, 1, b"payload")]))
    frame[at] = value
    frame[:4] = int(google_crc32c.extend(PLACE.seed, bytes(frame[4:]))).to_bytes(4, "little")
    return bytes(frame)


def files_in(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


NEWER = {
    "kind": (
        6,
        99,
        "an entry is of kind 99, which this version does not know: start the TritonMQ version that wrote it",
    ),
    "format": (
        5,
        2,
        "a frame is of format 2, and this version reads format 1: start the TritonMQ version that wrote it",
    ),
}


@pytest.mark.parametrize("what", NEWER)
@pytest.mark.parametrize("segment", [1, 2], ids=["in an earlier segment", "in the last segment"])
@real_time
async def test_a_journal_that_a_newer_version_wrote_is_refused_and_nothing_of_it_is_touched(
    tmp_path: Path, what: str, segment: int
) -> None:
    at, value, match = NEWER[what]
    async with Bed(tmp_path, "os", segment_bytes_max=300) as bed:
        await nine_entries(bed)
        whole = bed.segments[segment].read_bytes()
        bed.segments[segment].write_bytes(whole[:200] + newer_frame(3 * segment + 3, at, value) + b"torn")
        identity = json.loads((bed.path / "log.json").read_text())
        # As after a reboot without a clean stop: a journal of durability os would get a new id.
        (bed.path / "log.json").write_text(json.dumps({**identity, "clean": False, "boot_id": "another"}))
        before = files_in(bed.path)
        with pytest.raises(StorageFailed, match="written by a newer version, and is left as it is") as refused:
            bed.open()
        assert match in str(refused.value)
        assert files_in(bed.path) == before


@real_time
async def test_a_frame_of_a_newer_version_behind_damage_is_not_cut_as_a_torn_tail(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        (bed.path / "flushed").unlink()
        identity = json.loads((bed.path / "log.json").read_text())
        (bed.path / "log.json").write_text(json.dumps({**identity, "clean": False}))
        whole = bed.segments[2].read_bytes()
        kept = b"bad bytes" + newer_frame(9, 5, 2)
        bed.segments[2].write_bytes(whole[:200] + kept)
        _, _, opened = bed.open()
        assert "a good frame follows" in opened.damaged
        assert (bed.path / "aside-1" / bed.segments[2].name).read_bytes() == whole[:200] + kept


class UnreadableFiles(MortalFiles):
    """A disk that cannot read one byte of one file, wherever that file goes."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__()
        self._inode = path.stat().st_ino
        self._position = position

    def read(self, fd: int, size: int, position: int) -> bytes:
        self._check(fd, size, position)
        return super().read(fd, size, position)

    def read_into(self, fd: int, room: memoryview, position: int) -> int:
        self._check(fd, len(room), position)
        return super().read_into(fd, room, position)

    def _check(self, fd: int, size: int, position: int) -> None:
        if os.fstat(fd).st_ino == self._inode and position <= self._position < position + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@real_time
async def test_what_the_disk_cannot_read_is_put_aside(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        large: list[Frame] = [frame_of(n, 1, bytes([n]) * (1 << 20)) for n in range(1, 11)]
        journal, _, _ = bed.open()
        journal.append(large)
        await journal.close()
        whole = bed.segments[0].read_bytes()
        bed.files = bed.writer.files = UnreadableFiles(bed.segments[0], 6 << 20)
        again, heard, opened = bed.open()
        assert "the disk cannot read it" in opened.damaged
        kept = len(opened.recovered.entries)
        assert 3 <= kept <= 5  # a window is read at once
        assert again.log_id != journal.log_id
        assert joined(again.read(1, kept, ALL)) == joined(large[:kept])
        again.append(large[kept:])
        await heard.until_flushed(10)
        await again.close()
        assert (bed.path / "aside-1" / bed.segments[0].name).read_bytes() == whole
        third, _, opened = bed.open()
        assert (third.log_id, opened.damaged, len(opened.recovered.entries)) == (again.log_id, "", 10)
        await third.close()


@real_time
async def test_a_disk_without_room_for_the_repair_does_not_open_and_goes_on_once_there_is(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        data = bed.segments[1].read_bytes()
        bed.segments[1].write_bytes(data[:150] + b"?" + data[151:])
        bed.files.room = 0
        names = set()
        for _ in range(3):
            with pytest.raises(StorageFailed, match="No space left"):
                bed.open()
            names.add(name_in(bed))
        assert len(names) == 1
        bed.files.room = None
        journal, _, opened = bed.open()
        assert {journal.log_id} == names
        assert len(opened.recovered.entries) == 4
        assert "damaged at byte 100" in opened.damaged
        assert [path.name for path in bed.path.glob("aside-*")] == ["aside-1"]
        await journal.close()


@real_time
async def test_what_is_kept_aside_is_bounded_and_the_oldest_goes(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        for round_ in range(1, ASIDES_MAX + 4):
            journal, heard, _ = bed.open()
            journal.append([frame_of(1, round_)])
            await heard.until_flushed(1)
            await journal.close()
            with bed.segments[0].open("ab") as file:
                file.write(b"x")
            _, _, opened = bed.open()
            assert opened.damaged
            directory = data_directory(bed)
            directory.start_over(PLACE, "fsync", "flights", round_)
            directory.close()
        numbers = sorted(int(path.name.removeprefix("aside-")) for path in bed.path.glob("aside-*"))
        assert numbers == list(range(numbers[-1] - ASIDES_MAX + 1, 2 * (ASIDES_MAX + 3) + 1))


@real_time
async def test_starting_over_that_fails_can_be_repeated_and_fills_one_directory(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        await nine_entries(bed)
        directory = data_directory(bed)
        real, moved = bed.files.move, []

        def fail(source: Path, target: Path) -> None:
            if len(moved) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            moved.append(source)
            real(source, target)

        bed.files.move = fail  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="cannot be put aside"):
            directory.start_over(PLACE, "fsync", "flights", 6)
        bed.files.move = real  # type: ignore[method-assign]
        assert directory.start_over(PLACE, "fsync", "flights", 6) == bed.path / "aside-1"
        directory.close()
        assert b"".join(path.read_bytes() for path in sorted((bed.path / "aside-1").glob("*.log"))) == joined(FRAMES)
        journal, _, opened = bed.open()
        assert (journal.last_index, opened.recovery, opened.damaged) == (0, 6, "")
        await journal.close()
