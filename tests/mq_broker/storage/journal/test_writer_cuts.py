"""A writer that cannot cut: nothing is written or flushed behind what it still owes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.mq_broker.storage.bed import (
    DEADLINE_S,
    Bed,
    eventually,
    frames_of,
    joined,
    on_a_bed,
)

ALL = 1 << 40


@pytest.mark.parametrize("failing", ["truncate", "sync", "replace", "remove"])
def test_nothing_is_written_or_flushed_before_a_truncation_that_failed_is_made_good(
    tmp_path: Path, failing: str
) -> None:
    async def test(bed: Bed) -> None:
        journal, _, _ = bed.open()
        journal.append(frames_of(1, 5))
        await journal.close()
        journal, heard, _ = bed.open()
        real = getattr(bed.files, failing)

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        setattr(bed.files, failing, fail)
        journal.truncate(2)
        journal.append(frames_of(3, 4, epoch=2))
        await heard.until_heard("refused")
        journal.truncate(1)
        journal.append(frames_of(2, 4, epoch=3))
        await heard.until(lambda: len(heard.of("refused")) == 2)
        assert heard.of("flushed") == []
        assert heard.of("refused") == [3, 2]
        assert joined(journal.read(1, 9, ALL)) == joined(frames_of(1, 1))
        setattr(bed.files, failing, real)
        journal.append(frames_of(2, 4, epoch=3))
        await heard.until_flushed(4)
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert [entry.leader_epoch for entry in opened.recovered.entries] == [1, 3, 3, 3]
        await again.close()

    on_a_bed(test, tmp_path, segment_bytes_max=290)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_appended_before_a_truncation_that_failed_is_flushed_once_it_is_made_good(
    tmp_path: Path, durability: str
) -> None:
    async def test(bed: Bed) -> None:
        bed.writer.syncs.interval_s = 0.005
        bed.files.failing_truncates = 1 << 30
        journal, heard, _ = bed.open()
        bed.hold()
        journal.append(frames_of(1, 1))
        assert await asyncio.to_thread(bed.files.waiting.wait, DEADLINE_S)  # the next round has all that follows
        journal.append(frames_of(2, 5))
        journal.truncate(2)
        bed.let_go()
        await eventually(lambda: bed.files.events.count("truncate") > 5)
        assert heard.calls == [("flushed", 1, 1)]
        bed.files.failing_truncates = 0
        await heard.until_flushed(2)
        assert heard.calls == [("flushed", 1, 1), ("flushed", 2, 1)]
        assert bed.segments[0].stat().st_size == 200
        await journal.close()

    on_a_bed(test, tmp_path, durability)


def test_a_truncation_that_stays_owed_leaves_no_clean_mark(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 5))
        await heard.until_flushed(5)
        bed.files.failing_truncates = 1 << 30
        journal.truncate(2)
        await journal.close()
        again, _, opened = bed.open()
        assert [entry.index for entry in opened.recovered.entries] == [1, 2, 3, 4, 5]  # its leader will cut them again
        await again.close()

    on_a_bed(test, tmp_path)


def test_a_partial_write_that_cannot_be_cut_is_cut_before_the_next_one(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        journal, heard, _ = bed.open()
        bed.files.room = 195
        bed.files.failing_truncates = 1
        journal.append(frames_of(1, 2))
        await heard.until_heard("refused")
        assert bed.segments[0].stat().st_size == 195
        bed.files.room = None
        journal.append(frames_of(2, 2, size=10))
        await heard.until_flushed(2)
        assert bed.segments[0].read_bytes() == joined([*frames_of(1, 1), *frames_of(2, 2, size=10)])
        await journal.close()

    on_a_bed(test, tmp_path)
