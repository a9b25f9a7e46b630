"""The bound over the caches of all journals, on real journals."""

from __future__ import annotations

from pathlib import Path

from mq_broker.storage.journal.writer import FrameCaches
from mq_broker.storage.opening.opening import open_disk_journal
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import PLACE, Bed, Heard, eventually, frames_of


@real_time
async def test_journals_that_rest_give_back_first_and_are_read_from_their_files(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        bed.writer.caches = FrameCaches(60_000)
        heards = [Heard() for _ in range(10)]
        journals = [
            open_disk_journal(bed.path / str(n), PLACE, "fsync", heard, bed.writer).journal
            for n, heard in enumerate(heards)
        ]
        for journal, heard in zip(journals, heards, strict=True):
            journal.append(frames_of(1, 20, size=200))
            await heard.until_flushed(20)
        caches = bed.writer.caches
        assert 0 < caches.bytes <= 60_000
        reads, read = [], bed.files.read

        def counted(fd: int, size: int, position: int) -> bytes:
            reads.append(size)
            return read(fd, size, position)

        bed.files.read = counted  # type: ignore[method-assign]
        assert [frame.entry.index for frame in journals[-1].read(1, 20, 1 << 30)] == list(range(1, 21))
        assert not reads, "the one appended to last has all of it still"
        assert [frame.entry.index for frame in journals[0].read(1, 20, 1 << 30)] == list(range(1, 21))
        assert reads, "the one that rested longest has its files"
        for journal in journals:
            await journal.close()
        assert caches.bytes == 0


@real_time
async def test_what_is_not_in_the_files_yet_is_never_given_back(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        bed.writer.caches = FrameCaches(0)
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 1))
        await heard.until_flushed(1)
        assert bed.writer.caches.bytes == 0
        bed.hold()
        journal.append(frames_of(2, 50))
        bed.writer.caches.keep_within()
        assert bed.writer.caches.bytes > 0
        assert [frame.entry.index for frame in journal.read(2, 50, 1 << 30)] == list(range(2, 51))
        bed.let_go()
        await heard.until_flushed(50)
        await eventually(lambda: bed.writer.caches.bytes == 0)
        await journal.close()
