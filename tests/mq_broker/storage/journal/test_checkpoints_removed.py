"""A checkpoint keeps no journal closed, does not outlive what it is of, and leaves nothing on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mq_broker.storage.journal import checkpoints, keeping
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import BLOCK_BYTES, OVERHEAD_BYTES, Altered
from mq_protocol.errors import StorageFailed
from tests.coroutines import real_time
from tests.mq_broker.storage.bed import Bed, TrickFiles, frames_of
from tests.mq_broker.storage.journal.test_sealed_journals import forged

ALL = 1 << 40
UNIT = 100 + OVERHEAD_BYTES


async def written(bed: Bed) -> None:
    """Twenty entries that a kill left, with a checkpoint of fifteen."""
    journal, heard, _ = bed.open()
    journal.append(frames_of(1, 20))
    await heard.until_flushed(20)
    assert await bed.keep(journal, 15)
    await bed.crash(journal)


@real_time
async def test_a_checkpoint_that_the_disk_cannot_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "checkpoint":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    async with Bed(tmp_path) as bed:
        await written(bed)
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        name = (bed.path / "log.json").read_text()
        journal, _, opened = bed.open()
        assert (opened.recovered.checkpoint, opened.damaged, journal.last_index) == (None, "", 20)
        assert (bed.path / "log.json").read_text() == name
        await journal.close()


@pytest.mark.parametrize("how", ["read", "scrub"])
@real_time
async def test_what_is_found_altered_keeps_the_journal_closed_though_there_was_a_checkpoint(
    tmp_path: Path, how: str
) -> None:
    async with Bed(tmp_path) as bed:
        bed.keys = Keyring("test:", bed.provider)
        await written(bed)
        [segment] = bed.segments
        second = BLOCK_BYTES + UNIT
        segment.write_bytes(forged(segment.read_bytes(), second, second + 80))
        journal, heard, opened = bed.open()
        assert opened.recovered.checkpoint is not None
        assert journal.keeping is not None
        if how == "read":
            with pytest.raises(Altered):
                journal.read(1, 20, ALL)
        else:
            while await journal.keeping.scrub(300):
                pass
        await heard.until_heard("altered")
        await journal.close()
        with pytest.raises(Altered):
            bed.open()


@pytest.mark.parametrize("how", ["read", "scrub"])
@real_time
async def test_damage_is_found_again_by_the_next_opening_though_the_disk_took_no_new_id(
    tmp_path: Path, how: str
) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed)
        [segment] = bed.segments
        data = bytearray(segment.read_bytes())
        data[350] ^= 1
        segment.write_bytes(data)
        journal, heard, opened = bed.open()
        assert opened.recovered.checkpoint is not None
        assert journal.keeping is not None
        bed.files.failing_replaces = 1 << 30
        if how == "read":
            with pytest.raises(StorageFailed, match="is damaged at byte 300"):
                journal.read(1, 20, ALL)
        else:
            while await journal.keeping.scrub(300):
                pass
        await heard.until_heard("replaced")
        await journal.close()
        with pytest.raises(StorageFailed):
            bed.open()
        bed.files.failing_replaces = 0
        again, _, opened = bed.open()
        assert "is damaged at byte 300" in opened.damaged
        assert again.last_index == 3
        await again.close()


class _Full(TrickFiles):
    """A disk on which half of a checkpoint has room."""

    def replace(self, path: Path, data: bytes) -> None:
        if path.name == "checkpoint":
            path.with_name("checkpoint.new").write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace(path, data)


@pytest.mark.parametrize("how", ["full", "nearly full"])
@real_time
async def test_a_disk_without_room_for_a_checkpoint_keeps_the_one_before_and_takes_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nearly full: it would fit, and leave next to no room for messages."""
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 20))
        await heard.until_flushed(20)
        assert await bed.keep(journal, 10)
        before = (bed.path / "checkpoint").read_bytes()
        files = journal.keeping._files  # type: ignore[union-attr]
        if how == "full":
            journal.keeping._files = _Full()  # type: ignore[union-attr]
        else:
            monkeypatch.setattr(checkpoints, "_room", lambda path: 2 * len(before) - 1 if path == bed.path else 1 << 40)
        assert not await bed.keep(journal, 15)
        assert (bed.path / "checkpoint").read_bytes() == before
        assert not (bed.path / "checkpoint.new").exists()
        journal.append(frames_of(21, 22))
        await heard.until_flushed(22)
        await journal.close()
        again, _, opened = bed.open()
        assert opened.recovered.checkpoint is not None
        assert opened.recovered.checkpoint.snapshot.last_index == 10
        assert again.last_index == 22
        monkeypatch.undo()
        again.keeping._files = files  # type: ignore[union-attr]
        assert await bed.keep(again, 15)
        await again.close()


@real_time
async def test_what_a_kill_left_of_a_checkpoint_goes_at_the_next_opening(tmp_path: Path) -> None:
    async with Bed(tmp_path) as bed:
        await written(bed)
        (bed.path / "checkpoint.new").write_bytes(b"half of one")
        journal, _, opened = bed.open()
        assert opened.recovered.checkpoint is not None
        assert not (bed.path / "checkpoint.new").exists()
        await journal.close()


@real_time
async def test_what_is_found_while_a_checkpoint_is_being_stored_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bed(tmp_path) as bed:
        journal, heard, _ = bed.open()
        journal.append(frames_of(1, 20))
        await heard.until_flushed(20)
        store = keeping.store_checkpoint

        def late(*arguments: object) -> int:
            size = store(*arguments)  # type: ignore[arg-type]
            assert (bed.path / "checkpoint").exists()
            journal.keeping.end()  # type: ignore[union-attr]
            store(*arguments)  # type: ignore[arg-type]
            return size

        monkeypatch.setattr(keeping, "store_checkpoint", late)
        assert not await bed.keep(journal, 15)
        assert not (bed.path / "checkpoint").exists()
        await journal.close()
