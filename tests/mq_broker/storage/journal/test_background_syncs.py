"""`durability=os`: what is synced while the writer writes on, and what waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mq_broker.storage.identity import load_identity
from mq_broker.storage.journal.recovered import read_mark
from mq_broker.storage.opening.opening import open_disk_journal
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import PLACE, Bed, Heard, eventually, frames_of, joined, open_files_under


@real_time
async def test_entries_are_flushed_while_a_background_sync_is_under_way(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        other_heard = Heard()
        other = open_disk_journal(tmp_path / "other", PLACE, "os", other_heard, bed.writer).journal
        await bed.append_and_hold_sync(journal, frames_of(1, 3))
        journal.append(frames_of(4, 5))
        other.append(frames_of(1, 1))
        await heard.until_flushed(5)
        await other_heard.until_flushed(1)
        assert read_mark(bed.path, PLACE) == 0, "the disk has not said so yet"
        bed.let_go()
        await eventually(lambda: read_mark(bed.path, PLACE) == 5)
        await eventually(lambda: read_mark(tmp_path / "other", PLACE) == 1)
        await other.close()
        await journal.close()


@real_time
async def test_a_background_sync_marks_no_more_than_was_written_before_it(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        await bed.append_and_hold_sync(journal, frames_of(1, 3))
        journal.append(frames_of(4, 5))
        await heard.until_flushed(5)
        bed.writer.syncs._next_turn += 3600
        bed.let_go()
        await eventually(lambda: read_mark(bed.path, PLACE) == 3)
        await journal.close()
        assert read_mark(bed.path, PLACE) == 5


@real_time
async def test_a_background_sync_that_fails_has_all_that_it_missed_written_again(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        name = journal.log_id
        bed.files.failing_syncs = 1
        await bed.append_and_hold_sync(journal, frames_of(1, 3))
        journal.append(frames_of(4, 5))
        await heard.until_flushed(5)
        writes = bed.files.writes
        bed.let_go()
        await heard.until_heard("replaced")
        assert journal.log_id != name
        assert bed.files.writes == writes + 1
        await eventually(lambda: read_mark(bed.path, PLACE) == 5)
        assert bed.segments[0].read_bytes() == joined(frames_of(1, 5))
        await journal.close()


@pytest.mark.parametrize("failing", [0, 1])
@real_time
async def test_a_truncation_waits_for_the_background_sync_and_is_what_counts(tmp_path: Path, failing: int) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        bed.files.failing_syncs = failing
        await bed.append_and_hold_sync(journal, frames_of(1, 5))
        journal.truncate(2)
        journal.append(frames_of(3, 3, epoch=2))
        await bed.until_waiting_for_sync(journal)
        assert "truncate" not in bed.files.events
        bed.let_go()
        await heard.until(lambda: ("flushed", 3, 2) in heard.calls)
        assert len(heard.of("replaced")) == failing
        await eventually(lambda: read_mark(bed.path, PLACE) == 3)
        await bed.crash(journal)
        again, _, opened = bed.open()
        assert (opened.damaged, [entry.leader_epoch for entry in opened.recovered.entries]) == ("", [1, 1, 2])
        await again.close()


@real_time
async def test_a_new_segment_waits_for_the_background_sync_of_the_one_before(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os", segment_bytes_max=290) as bed:
        journal, heard, _ = bed.open()
        await bed.append_and_hold_sync(journal, frames_of(1, 2))
        journal.append(frames_of(3, 3))
        await bed.until_waiting_for_sync(journal)
        assert len(bed.segments) == 1
        bed.let_go()
        await heard.until_flushed(3)
        assert len(bed.segments) == 2
        await journal.close()


@real_time
async def test_a_journal_that_is_closed_while_it_is_synced_is_whole_and_clean(tmp_path: Path) -> None:
    async with Bed(tmp_path, "os") as bed:
        journal, heard, _ = bed.open()
        await bed.append_and_hold_sync(journal, frames_of(1, 2))
        journal.append(frames_of(3, 3))
        await heard.until_flushed(3)
        closing = asyncio.create_task(journal.close())
        await bed.until_waiting_for_sync(journal)
        assert not closing.done()
        bed.let_go()
        await closing
        identity = load_identity(bed.path, PLACE)
        assert identity is not None
        assert identity.clean
        assert open_files_under(tmp_path) == []


@real_time
async def test_a_background_sync_that_breaks_is_heard_of(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "os")
    await bed.__aenter__()
    journal, _, _ = bed.open()
    bed.files.sync = lambda fd: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    journal.append(frames_of(1, 1))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bed.writer.died, 10)
