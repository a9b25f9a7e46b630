"""Whatever is done to a log's files is found, or is said to be covered by nothing; and what a broker would take for
damage is called damage, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path

import pytest

from mq_broker.storage.files import OsFiles
from mq_broker.storage.identity import boot_id, load_identity
from mq_broker.storage.inspecting.checking import Checked, check_partition, is_damage
from mq_broker.storage.inspecting.contents import Replay
from mq_broker.storage.inspecting.directory import PartitionFiles
from mq_broker.storage.inspecting.walking import _WINDOW_BYTES
from mq_broker.storage.journal.recovery import LogDamaged, recover
from mq_broker.storage.journal.segments import pack_mark
from mq_protocol.errors import StorageFailed
from tests.mq_broker.storage.bed import PLACE, frame_of, joined
from tests.mq_broker.storage.inspecting.logs import (
    again,
    cut,
    everything_under,
    flip,
    frame_positions,
    resealed,
    written,
)

COVERED = ("*.log", "snapshot", "flushed")
SEEDS = [pytest.param(seed, marks=[pytest.mark.long] if seed else []) for seed in range(3)]


def covered_files(files: PartitionFiles) -> list[Path]:
    return sorted(path for pattern in COVERED for path in files.path.glob(pattern))


def damaged(files: PartitionFiles) -> bool:
    return is_damage(check_partition(again(files)).findings)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shorten", [True, False])
def test_a_log_that_was_left_alone_is_whole(tmp_path: Path, clean: bool, shorten: bool) -> None:
    files = written(tmp_path, clean=clean, shorten=shorten)
    checked = check_partition(files)
    assert checked.findings == []
    assert checked.size == files.size
    assert checked.entries == Replay(files).run().entries > 5
    assert len(files.segments) > 2
    assert files.has_snapshot is shorten


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_in_any_covered_byte_is_found_where_it_is(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = written(tmp_path, shorten=True)
    for path in covered_files(files):
        before = path.read_bytes()
        positions = range(len(before)) if len(before) < 100 else sorted(rng.sample(range(len(before)), 60))
        for position in positions:
            flip(path, position, rng)
            found = [each for each in check_partition(again(files)).findings if each.kind == "damaged"]
            at = next(each for each in found if each.path == path)
            if path.suffix == ".log":
                assert at.position is not None
                assert at.end is not None
                assert at.position <= position < at.end
                assert at.entries is not None
                assert at.entries[0] >= int(path.stem)
            assert at.repair
            path.write_bytes(before)
    assert not damaged(files)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_file_of_a_clean_log_that_is_cut_anywhere_is_found(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = written(tmp_path, shorten=True)
    for path in covered_files(files):
        before = path.read_bytes()
        ends = set(frame_positions(path)) if path.suffix == ".log" else set()
        sizes = {0, 1, len(before) - 1, *ends, *rng.sample(range(len(before)), min(30, len(before)))} - {len(before)}
        for size in sorted(sizes):
            cut(path, size)
            assert damaged(files), f"{path.name} cut to {size} of {len(before)} bytes"
        path.unlink()
        assert damaged(files), f"{path.name} is gone"
        path.write_bytes(before)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_would_call_damage_what_is_called_damage_here(tmp_path: Path, seed: int) -> None:
    """The judge is the broker's own recovery, on a copy."""
    rng = random.Random(seed)
    told = {True: 0, False: 0}
    for number in range(4):
        files = written(
            tmp_path / str(number),
            clean=rng.random() < 0.3,
            shorten=rng.random() < 0.5,
            durability=rng.choice(["fsync", "os"]),
        )
        if rng.random() < 0.7:  # as after a kill: the mark lies behind
            mark = pack_mark(PLACE, rng.choice([0, files.segments[-1].first_index, files.segments[0].first_index]))
            (files.path / "flushed").write_bytes(mark)
        whole = tmp_path / f"whole-{number}"
        shutil.copytree(files.path, whole)
        for _ in range(15):
            harm(files, rng)
            checked = check_partition(again(files))
            verdict, last_index = judged_by_recovery(files)
            told[verdict] += 1
            segments = [each for each in checked.findings if each.path.suffix == ".log" or each.path == files.path]
            assert any(each.kind == "damaged" for each in segments) == verdict, f"{checked.findings}"
            assert Replay(again(files)).run().last_index == last_index
            shutil.rmtree(files.path)
            shutil.copytree(whole, files.path)
    assert told[True] > 5
    assert told[False] > 5


def harm(files: PartitionFiles, rng: random.Random) -> None:
    segment = rng.choice([files.segments[-1], rng.choice(files.segments)]).path
    size = segment.stat().st_size
    match rng.randrange(5):
        case 0 if size:
            flip(segment, rng.randrange(size), rng)
        case 1 if size:
            cut(segment, rng.randrange(size))
        case 2:
            cut(segment, rng.choice(frame_positions(segment)))
        case 3:
            segment.write_bytes(segment.read_bytes() + rng.randbytes(rng.choice([1, 59, 60, 61, 500])))
        case _:  # a frame that belongs elsewhere
            segment.write_bytes(segment.read_bytes() + joined([frame_of(rng.randrange(1, 60), rng.randrange(1, 4))]))


def judged_by_recovery(files: PartitionFiles) -> tuple[bool, int]:
    """Whether a broker would say that the log is damaged, and the last entry that it would keep."""
    copy = files.path.with_name("judged")
    shutil.copytree(files.path, copy)
    try:
        identity = load_identity(copy, PLACE)
        assert identity is not None
        rebooted = identity.boot_id != boot_id()  # the bed's boot is another
        lossy = identity.durability != "fsync" and rebooted and not identity.clean
        kept = recover(copy, PLACE, OsFiles(), clean=identity.clean, lossy=lossy, rebooted=rebooted)
    except LogDamaged as damage:
        return True, damage.last_index
    finally:
        shutil.rmtree(copy)
    return False, kept.last_index


def test_a_good_frame_far_behind_bad_bytes_is_found_wherever_the_search_reads(tmp_path: Path) -> None:
    """Also where a window of the search ends between the two bytes of its magic."""
    files = written(tmp_path)
    last = files.segments[-1].path
    before, index = last.read_bytes(), Replay(files).run().last_index + 1
    for size in (_WINDOW_BYTES, 2 * _WINDOW_BYTES, 2 * _WINDOW_BYTES + 77):
        last.write_bytes(before + bytes(size) + joined([frame_of(index + 3, 9)]))
        (finding,) = [each for each in check_partition(again(files)).findings if each.kind == "damaged"]
        assert (finding.position, finding.end) == (len(before), len(before) + size)
        assert finding.entries == (index, index + 2)


def test_a_snapshot_and_what_follows_come_to_what_the_whole_log_comes_to(tmp_path: Path) -> None:
    shortened = Replay(written(tmp_path / "a", shorten=True)).run()
    whole = Replay(written(tmp_path / "b")).run()
    assert shortened.snapshot is not None
    assert shortened.first_index == shortened.snapshot.last_index + 1 > whole.first_index == 1
    for name in ("last_index", "last_epoch", "log_start_offset", "log_end_offset", "staged", "cursors"):
        assert getattr(shortened, name) == getattr(whole, name)
    assert whole.staged
    assert whole.log_end_offset > 0


def test_a_flip_in_log_json_is_found_or_changes_what_nothing_covers(tmp_path: Path) -> None:
    files = written(tmp_path)
    path = files.path / "log.json"
    before = path.read_bytes()
    known = json.loads(before)
    rng = random.Random(7)
    missed: set[str] = set()
    for position in range(len(before)):
        flip(path, position, rng)
        if not check_partition(again(files)).findings:
            now = json.loads(path.read_bytes())
            missed |= {key for key in known if now.get(key) != known[key]}
            assert now.keys() == known.keys()
        path.write_bytes(before)
    assert missed <= {"log_id", "boot_id", "topic", "recovery", "format"}


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_frames_that_no_broker_wrote_end_in_a_finding_and_nothing_worse(tmp_path: Path, seed: int) -> None:
    """As an enemy makes them: the checksum holds, and the bytes say anything."""
    rng = random.Random(seed)
    files = written(tmp_path)
    path = files.segments[0].path
    before = path.read_bytes()
    positions = frame_positions(path)
    for _ in range(80):
        number = rng.randrange(len(positions) - 1)
        frame = bytearray(before[positions[number] : positions[number + 1]])
        for _ in range(rng.choice([1, 1, 2, 8])):
            frame[rng.randrange(len(frame))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        path.write_bytes(before[: positions[number]] + resealed(bytes(frame)) + before[positions[number + 1] :])
        check_partition(again(files))
        replayed(again(files))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_whole_snapshot_that_no_broker_wrote_ends_in_a_finding_and_nothing_worse(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = written(tmp_path, shorten=True)
    path = files.path / "snapshot"
    before = path.read_bytes()
    for _ in range(60):
        data = bytearray(before)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(16, len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        path.write_bytes(resealed(bytes(data)))
        check_partition(again(files))
        replayed(again(files))


def replayed(files: PartitionFiles) -> None:
    with contextlib.suppress(StorageFailed):
        Replay(files).run()


def test_a_length_that_no_broker_writes_is_not_read_into_memory(tmp_path: Path) -> None:
    files = written(tmp_path)
    path = files.segments[-1].path
    header = bytearray(path.read_bytes()[:60])
    header[52:56] = (300 << 20).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.write(header)
        file.truncate(400 << 20)
    tracemalloc.start()
    try:
        checked = check_partition(again(files))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert is_damage(checked.findings)
    assert peak < 32 << 20


def test_a_frame_of_a_newer_version_is_not_damage_and_cannot_be_vouched_for(tmp_path: Path) -> None:
    files = written(tmp_path)
    path = files.segments[0].path
    before, positions = path.read_bytes(), frame_positions(path)
    frame = bytearray(before[positions[2] : positions[3]])
    frame[5] = 2
    path.write_bytes(before[: positions[2]] + resealed(bytes(frame)) + before[positions[3] :])
    checked = check_partition(again(files))
    assert [(each.kind, each.position) for each in checked.findings] == [("unchecked", positions[2])]
    assert is_damage(checked.findings)


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    files = written(tmp_path)
    path = files.segments[-1].path
    path.unlink()
    os.mkfifo(path)
    assert damaged(files)
    (files.path / "snapshot").mkdir()
    assert damaged(files)


def test_checking_changes_nothing(tmp_path: Path) -> None:
    files = written(tmp_path, clean=False, shorten=True)
    for path in covered_files(files):
        flip(path, 20 % path.stat().st_size, random.Random(3))
    before = everything_under(tmp_path)
    checked: Checked = check_partition(again(files))
    replayed(again(files))
    assert is_damage(checked.findings)
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize("shorten", [True, False])
def test_an_epoch_that_falls_is_found_also_behind_a_snapshot(tmp_path: Path, shorten: bool) -> None:
    files = written(tmp_path, shorten=shorten)
    first = files.segments[0 if shorten else -1]
    positions = frame_positions(first.path)
    data = first.path.read_bytes()
    first.path.write_bytes(joined([frame_of(first.first_index, 0)]) + data[positions[1] :])
    finding = check_partition(again(files)).findings[0]
    assert (finding.kind, finding.path, finding.position) == ("damaged", first.path, 0)
    assert "is of epoch 0, after one of" in finding.what
