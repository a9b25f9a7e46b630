"""Journals that begin later: the snapshot and what follows it always come to the same state as the whole journal
would."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.core.entries import EpochStart, MoveCursor, Publish, Stage
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_broker.storage.interface import Frame, Journal
from mq_broker.storage.journal.memory import open_memory_journal
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import (
    DEADLINE_S,
    KEY,
    PLACE,
    Bed,
    Heard,
    Killed,
    MortalFiles,
    Saved,
    eventually,
    frame_of,
    frames_of,
    joined,
    random_frame,
    snapshot_of,
    state_of,
    uuid_of,
)

EVERY = ["fsync", "os", "memory"]
ON_DISK = ["fsync", "os"]
ALL = 1 << 40
DEDUP = WindowBounds(25, 20)


def state_at_end(journal: Journal, last_index: int) -> MachineState:
    """What the journal comes to, snapshot and entries."""
    snapshot = snapshot_of(journal)
    assert (snapshot is None) is (journal.first_index == 1)
    assert snapshot is None or snapshot.last_index == journal.first_index - 1
    machine = PartitionMachine(DEDUP, snapshot.state if snapshot is not None else None)
    for frame in journal.read(journal.first_index, last_index, ALL):
        machine.apply(frame.entry)
    return machine.state()


# ------------------------------------------------------------------ every durability


@pytest.mark.parametrize("durability", EVERY)
@real_time
async def test_what_is_dropped_becomes_a_snapshot(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability, segment_bytes_max=420, cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        assert (journal.first_index, journal.snapshot_data) == (1, b"")
        operations = [EpochStart(1), Stage(KEY, 1, "r"), None, MoveCursor("g", 1, "consumer"), Stage(KEY, 2, "r")]
        frames = [frame_of(n, 1, b"x" * 40, operation) for n, operation in enumerate(operations, 1)]
        frames += frames_of(6, 12, epoch=3)
        frames.append(frame_of(13, 3, b"", Publish(KEY, 1, (uuid_of(2),))))
        journal.append(frames)
        await heard.until_flushed(13)
        size = journal.bytes_stored
        first = await journal.shorten_to(10, DEDUP)
        assert first == journal.first_index == (10 if durability == "memory" else 7)
        snapshot = Snapshot(first - 1, 3, 1_000_000 + first - 1, state_of(frames[: first - 1], DEDUP))
        assert (snapshot_of(journal), journal.snapshot_data) == (snapshot, encode_snapshot(PLACE, snapshot))
        assert (journal.last_index, journal.bytes_stored) == (
            13,
            size - sum(frame.size for frame in frames[: first - 1]),
        )
        assert joined(journal.read(first, 20, ALL)) == joined(frames[first - 1 :])
        assert bytes(journal.payload(first)) == bytes([first]) * 40
        for index in (1, first - 1):
            with pytest.raises(
                StorageFailed, match=f"entry {index} is not kept any more: the journal begins at {first}"
            ):
                journal.read(index, 20, ALL)
            with pytest.raises(StorageFailed, match=f"the journal begins at {first}"):
                journal.payload(index)
        journal.append(frames_of(14, 14, epoch=3))
        await heard.until_flushed(14)
        assert state_at_end(journal, 13) == state_of(frames, DEDUP)
        assert await journal.shorten_to(first, DEDUP) == first
        assert await journal.shorten_to(2, DEDUP) == first
        await journal.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("durability", EVERY)
@real_time
async def test_a_random_life_with_shortenings_equals_a_model(tmp_path: Path, durability: str, seed: int) -> None:
    async with Bed(tmp_path, durability, segment_bytes_max=5000, cache_bytes_max=9000) as bed:
        rng = random.Random(seed)
        model: list[Frame] = []
        applied, epoch, first, shortened = 0, 1, 1, 0
        journal, _, _ = bed.open()
        for step in range(160):
            action = rng.random()
            if action < 0.45:
                frames = [random_frame(rng, len(model) + 1 + n, epoch) for n in range(rng.randrange(1, 8))]
                journal.append(frames)
                model += frames
            elif action < 0.6:
                keep = rng.randrange(max(applied, len(model) - 12), len(model) + 1)
                journal.truncate(keep)
                del model[keep:]
                epoch += 1
            elif action < 0.7 and model:
                await all_flushed(journal)
                applied = rng.randrange(applied, len(model) + 1)
            elif action < 0.8:
                asked = rng.randrange(1, applied + 2)
                shortening = asyncio.create_task(journal.shorten_to(asked, DEDUP))
                if rng.random() < 0.7:  # something else happens meanwhile
                    await asyncio.sleep(0)
                    keep = rng.randrange(max(applied, len(model) - 3), len(model) + 1)
                    journal.truncate(keep)
                    del model[keep:]
                    epoch += 1
                    frames = [random_frame(rng, len(model) + 1, epoch)]
                    journal.append(frames)
                    model += frames
                began = await shortening
                assert began == journal.first_index >= first, f"step {step}"
                assert began == first or began <= asked
                shortened += began != first
                first = began
            elif action < 0.9 and durability != "memory":
                if rng.random() < 0.5:
                    await journal.close()
                else:
                    await all_flushed(journal)
                    await bed.crash(journal)
                journal, _, opened = bed.open()
                assert opened.damaged == ""
                assert opened.recovered.entries == tuple(frame.entry for frame in model[first - 1 :]), f"step {step}"
                assert opened.recovered.snapshot == snapshot_of(journal)
            elif len(model) >= first:
                start = rng.randrange(first, len(model) + 1)
                got = journal.read(start, len(model), rng.choice([0, 500, 5000, ALL]))
                assert joined(got) == joined(model[start - 1 : start - 1 + len(got)]), f"step {step}"
                assert got
            assert (journal.first_index, journal.last_index) == (first, len(model)), f"step {step}"
            assert journal.bytes_stored == sum(frame.size for frame in model[first - 1 :])
        assert state_at_end(journal, len(model)) == state_of(model, DEDUP)
        assert shortened >= 2
        await journal.close()


async def all_flushed(journal: Journal) -> None:
    """Everything is reported, and every truncation carried out."""
    await eventually(lambda: journal._reported == journal.last_index and not getattr(journal, "_cuts", ()))  # type: ignore[attr-defined]


@real_time
async def test_a_journal_that_is_closed_while_its_snapshot_is_stored_leaves_nothing_in_the_brokers_caches(
    tmp_path: Path,
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 20))
        await heard.until_flushed(20)
        caches = bed.writer.caches
        assert caches.bytes > 0
        at_it, go_on, replace = threading.Event(), threading.Event(), bed.files.replace

        def slow(path: Path, data: bytes) -> None:
            if path.name == "snapshot":
                at_it.set()
                assert go_on.wait(DEADLINE_S)
            replace(path, data)

        bed.files.replace = slow  # type: ignore[method-assign]
        shortening = asyncio.create_task(journal.shorten_to(16, DEDUP))
        assert await asyncio.to_thread(at_it.wait, DEADLINE_S)
        closing = asyncio.create_task(journal.close())
        await eventually(lambda: journal._closed is not None and journal._closed.done())  # type: ignore[attr-defined]
        go_on.set()
        await closing
        assert await shortening == journal.first_index == 16
        assert (caches.bytes, caches._sizes) == (0, {})


@pytest.mark.parametrize("durability", EVERY)
@real_time
async def test_a_shortening_goes_on_though_nobody_waits_for_it_any_more(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 20))
        await heard.until_flushed(20)
        asking = asyncio.create_task(journal.shorten_to(16, DEDUP))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await eventually(lambda: journal.first_index == 16)
        assert await journal.shorten_to(10, DEDUP) == 16
        await journal.close()


@real_time
async def test_a_journal_in_memory_begins_with_the_snapshot_that_it_is_given() -> None:
    snapshot = Snapshot(40, 3, 7, state_of(frames_of(1, 40), DEDUP))
    heard = Heard()
    journal, recovered, recovery, *_ = open_memory_journal(heard, PLACE, snapshot=snapshot, recovery=3)
    assert (recovered.entries, recovered.snapshot, recovery, snapshot_of(journal)) == ((), snapshot, 3, snapshot)
    assert (journal.first_index, journal.last_index) == (41, 40)
    journal.append(frames_of(41, 45, epoch=3))
    await heard.until_flushed(45)
    journal.truncate(40)
    with pytest.raises(AssertionError, match="epoch 2 falls"):
        journal.append(frames_of(41, 41, epoch=2))
    journal.append(frames_of(41, 45, epoch=4))
    await heard.until(lambda: ("flushed", 45, 4) in heard.calls)
    assert await journal.shorten_to(44, DEDUP) == 44
    assert state_at_end(journal, 45) == state_of([*frames_of(1, 40), *frames_of(41, 45, epoch=4)], DEDUP)
    with pytest.raises(AssertionError, match="is applied"):
        journal.truncate(42)
    await journal.adopt(9)
    await journal.close()


# ------------------------------------------------------------------ on disk


@real_time
async def test_only_whole_segments_go_and_never_the_last(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        assert await journal.shorten_to(1, DEDUP) == 1
        journal.append(frames_of(1, 8))  # 1-3, 4-6, 7-8
        await heard.until_flushed(8)
        for asked, begins in [(3, 1), (4, 4), (6, 4), (9, 7), (9, 7)]:
            assert await journal.shorten_to(asked, DEDUP) == begins
            assert bed.segments[0].name == f"{begins:020d}.log"
            assert (bed.path / "snapshot").exists() is (begins > 1)
        with pytest.raises(AssertionError, match="begin at 10, the last entry is 8"):
            await journal.shorten_to(10, DEDUP)
        await journal.close()


@pytest.mark.parametrize("durability", ON_DISK)
@real_time
async def test_a_truncation_down_to_the_new_start_leaves_the_journal_empty_and_usable(
    tmp_path: Path, durability: str
) -> None:
    async with Bed(tmp_path, durability, segment_bytes_max=300, cache_bytes_max=0) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 11))
        await heard.until_flushed(11)
        stored, go_on = threading.Event(), threading.Event()
        replace = bed.files.replace

        def slow(path: Path, data: bytes) -> None:
            if path.name == "snapshot":
                stored.set()
                assert go_on.wait(DEADLINE_S)
            replace(path, data)

        bed.files.replace = slow  # type: ignore[method-assign]
        shortening = asyncio.create_task(journal.shorten_to(7, DEDUP))
        assert await asyncio.to_thread(stored.wait, DEADLINE_S)
        assert journal.first_index == 1  # not before the snapshot is durable
        assert joined(journal.read(1, 3, ALL)) == joined(frames_of(1, 3))
        with pytest.raises(AssertionError, match="what is up to 6 is applied"):
            journal.truncate(5)
        journal.truncate(6)
        await eventually(lambda: (bed.path / f"{7:020d}.log").stat().st_size == 0)
        other = frames_of(7, 8, epoch=2)
        journal.append(other[:1])
        go_on.set()
        assert await shortening == 7
        journal.append(other[1:])
        await heard.until(lambda: ("flushed", 8, 2) in heard.calls)
        journal.truncate(6)
        journal.append(other)
        await heard.until(lambda: journal._reported == 8)  # type: ignore[attr-defined]
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert (again.log_id, again.first_index, opened.damaged) == (journal.log_id, 7, "")
        assert joined(again.read(7, 11, ALL)) == joined(other)
        again.truncate(6)
        await again.close()
        third, _, opened = bed.open()
        assert (third.first_index, third.last_index, opened.recovered.entries, opened.damaged) == (7, 6, (), "")
        await third.close()


@pytest.mark.parametrize("durability", ON_DISK)
@real_time
async def test_a_shortening_that_is_killed_at_any_step_costs_nothing(tmp_path: Path, durability: str) -> None:
    async with Bed(tmp_path, durability, segment_bytes_max=300) as bed:
        frames = frames_of(1, 20)
        journal, heard, _ = bed.open()
        journal.append(frames)
        await heard.until_flushed(20)
        assert await journal.shorten_to(4, DEDUP) == 4
        await journal.close()
        saved = Saved(bed.path)
        begins: list[int] = []
        for step in range(100):
            saved.put_back()
            files = bed.files = bed.writer.files = MortalFiles()
            journal, _, _ = bed.open()
            files.steps_left = step
            done = False
            with contextlib.suppress(Killed):
                done = await journal.shorten_to(16, DEDUP) == 16
            files.steps_left = 1 << 30
            await bed.crash(journal)
            again, _, opened = bed.open()
            assert (again.log_id, again.last_index, opened.damaged) == (journal.log_id, 20, ""), f"step {step}"
            begins.append(again.first_index)
            assert bed.segments[0].name == f"{again.first_index:020d}.log"
            assert joined(again.read(again.first_index, 20, ALL)) == joined(frames[again.first_index - 1 :])
            assert state_at_end(again, 20) == state_of(frames, DEDUP)
            await again.close()
            if done:
                break
        assert done
        assert set(begins) == {4, 16}
        assert begins == sorted(begins)
        assert len(begins) > 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@real_time
async def test_a_disk_that_takes_no_snapshot_keeps_everything(tmp_path: Path, code: int) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 9))
        await heard.until_flushed(9)

        def fail(path: Path, data: bytes) -> None:
            raise OSError(code, os.strerror(code))

        bed.files.replace = fail  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="takes no snapshot"):
            await journal.shorten_to(7, DEDUP)
        assert (journal.first_index, journal.snapshot_data) == (1, b"")
        assert joined(journal.read(1, 9, ALL)) == joined(frames_of(1, 9))
        del bed.files.replace  # type: ignore[attr-defined]
        assert await journal.shorten_to(7, DEDUP) == 7
        await journal.close()


@real_time
async def test_segments_that_could_not_be_removed_go_the_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 11))
        await heard.until_flushed(11)

        def fail(path: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        bed.files.remove = fail  # type: ignore[method-assign]
        assert await journal.shorten_to(4, DEDUP) == 4
        assert "are not removed yet" in caplog.text
        assert len(bed.segments) == 4
        del bed.files.remove  # type: ignore[attr-defined]
        assert await journal.shorten_to(7, DEDUP) == 7
        assert len(bed.segments) == 2
        await journal.close()


@pytest.mark.parametrize("at", [20, 85, 299], ids=["header", "payload", "last byte"])
@real_time
async def test_damage_in_what_is_dropped_is_told_and_goes_into_no_snapshot(tmp_path: Path, at: int) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 9))
        await heard.until_flushed(9)
        name = journal.log_id
        data = bytearray(bed.segments[1].read_bytes())
        data[at] ^= 1
        bed.segments[1].write_bytes(data)
        with pytest.raises(StorageFailed, match=rf"0004\.log is damaged at byte {at // 100 * 100}: checksum"):
            await journal.shorten_to(7, DEDUP)
        await heard.until_heard("replaced")
        assert journal.log_id != name
        assert (journal.first_index, (bed.path / "snapshot").exists()) == (1, False)
        await journal.close()
        again, _, opened = bed.open()
        assert opened.damaged
        assert again.last_index == 3 + at // 100
        await again.close()


# ------------------------------------------------------------------ recoveries


@pytest.mark.parametrize("durability", ON_DISK)
@real_time
async def test_a_recovery_is_remembered_with_the_log(
    tmp_path: Path, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bed(tmp_path, durability) as bed:
        journal, heard, opened = bed.open()
        assert opened.recovery == 0
        await asyncio.gather(journal.adopt(2), journal.adopt(3))
        journal.append(frames_of(1, 2))
        await heard.until_flushed(2)
        await bed.crash(journal)
        again, heard, opened = bed.open()
        assert (again.log_id, opened.recovery) == (journal.log_id, 3)
        bed.files.failing_replaces = 1
        await again.adopt(4)
        assert "did not take recovery 4" in caplog.text
        again.append(frames_of(3, 3))
        await heard.until_flushed(3)
        await again.close()
        _, _, opened = bed.open()
        assert opened.recovery == 3


@real_time
async def test_what_is_not_written_yet_is_not_dropped(tmp_path: Path) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 4))
        await heard.until_flushed(4)
        bed.hold()
        journal.append(frames_of(5, 12))
        assert await journal.shorten_to(12, DEDUP) == 4
        bed.let_go()
        await heard.until_flushed(12)
        assert await journal.shorten_to(12, DEDUP) == 10
        await journal.close()


@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:200])], ids=["gone", "cut off"]
)
@real_time
async def test_a_segment_that_is_not_what_was_written_goes_into_no_snapshot(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async with Bed(tmp_path, segment_bytes_max=300) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 9))
        await heard.until_flushed(9)
        harm(bed.segments[1])
        with pytest.raises(StorageFailed, match=r"0004\.log is damaged"):
            await journal.shorten_to(7, DEDUP)
        await heard.until_heard("replaced")
        assert journal.first_index == 1
        await journal.close()
