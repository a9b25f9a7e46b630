"""Data keys wrapped anew, with the process killed, the power lost and the disk full at each of its steps: whatever was
written is still read, with no more keys than `retire` leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.files import OsFiles
from mq_broker.storage.journal.recovered import segment_key
from mq_broker.storage.journal.recovery import recover
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.opening import rewrapping
from mq_broker.storage.opening.rewrapping import rewrap, sealed_files, settle, uses
from mq_broker.storage.sealed import SLOT_BYTES, KeyAbsent
from mq_protocol.errors import StorageFailed
from mq_protocol.wire.envelope import Buffer
from tests.mq_broker.storage.bed import PLACE, Bed, Keys, Killed, MortalFiles, frames_of

FORMER, NEWER = "default-1", "default-2"
ENTRIES = 9
TORN = 120
"""In the middle of what a slot says."""


class PoweredFiles(MortalFiles):
    """Remembers what of its changes is not on the disk yet, to take it back when the power is lost. `torn`: of the
    write in which the process dies the first bytes are there."""

    def __init__(self, steps_left: int = 1 << 30, *, torn: int = 0) -> None:
        super().__init__(steps_left)
        self.torn = torn
        self._undo: list[tuple[Path, Path, Callable[[], object]]] = []  # (what is to be synced for it, where, how)

    def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        before = path.read_bytes()
        self._undo.append((path, path, lambda: path.write_bytes(before)))
        if self.steps_left <= 0 and self.torn:
            OsFiles().write(fd, (b"".join(parts)[: self.torn],), position)
        return super().write(fd, parts, position)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._synced(Path(os.readlink(f"/proc/self/fd/{fd}")))

    def move(self, source: Path, target: Path) -> None:
        before = target.read_bytes()

        def undo() -> None:
            target.replace(source)
            target.write_bytes(before)

        super().move(source, target)
        self._undo.append((target.parent, target, undo))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._synced(path)

    def lose_power(self) -> None:
        for _, _, undo in reversed(self._undo):
            undo()
        self._undo = []

    def _synced(self, path: Path) -> None:
        self._undo = [each for each in self._undo if each[0] != path]


class Sealed:
    """A data directory whose journal has a snapshot, segments, and one that was put aside; all under the former key."""

    def __init__(self, path: Path) -> None:
        self.data = path / "data"
        self.directory = self.data / "partitions" / f"{PLACE.topic_id}-{PLACE.partition}"
        self.provider = Keys()
        asyncio.run(self._written(path))
        self.provider.newest["default"] = 2
        self._copy = path / "as-written"
        shutil.copytree(self.data, self._copy)

    async def _written(self, path: Path) -> None:
        async with Bed(path, segment_bytes_max=290) as bed:
            bed.path = self.directory
            bed.path.parent.mkdir(parents=True)
            bed.keys = Keyring("test:", self.provider)
            journal, heard, _ = bed.open()
            journal.append(frames_of(1, ENTRIES))
            await heard.until_flushed(ENTRIES)
            assert await journal.shorten_to(4, WindowBounds(100)) > 1
            await journal.close()
        aside = self.directory / "aside-1"
        aside.mkdir()
        shutil.copy(max(self.directory.glob("*.log")), aside)

    def put_back(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self._copy, self.data)
        self.provider.gone = set()

    def ring(self) -> Keyring:
        """As another process has it: it knows no data key."""
        return Keyring("test:", self.provider)

    def rewrap(self, files: OsFiles, *, backwards: bool = False) -> None:
        ring = self.ring()
        for found in sorted(sealed_files(self.data), key=lambda found: found.path, reverse=backwards):
            if not found.is_wrapped_by(NEWER):
                rewrap(found, ring, NEWER, files)

    def retire(self, files: OsFiles) -> None:
        """The former key is removed, if that is allowed."""
        settle(self.data, files)
        if not uses(self.data)[FORMER]:
            self.provider.gone = {FORMER}

    def check(self) -> None:
        """Every entry is read, and what was put aside can be."""
        kept = recover(self.directory, PLACE, OsFiles(), clean=True, lossy=False, rebooted=False, keys=self.ring())
        assert kept.last_index == ENTRIES
        assert [entry.index for entry in kept.entries] == list(range(kept.base_index + 1, ENTRIES + 1))
        [aside] = self.directory.glob("aside-1/*.log")
        fd = os.open(aside, os.O_RDONLY)
        try:
            assert segment_key(OsFiles(), fd, PLACE, self.ring()) is not None
        finally:
            os.close(fd)

    def check_with_either_slot_damaged(self) -> None:
        for path in self.directory.rglob("*.log"):
            whole = path.read_bytes()
            for at in (0, SLOT_BYTES):
                path.write_bytes(whole[: at + 100] + bytes([whole[at + 100] ^ 1]) + whole[at + 101 :])
                self.check()
            path.write_bytes(whole)


OTHERS = ((0, False), (TORN, True))


def steps_of(sealed: Sealed) -> int:
    files = MortalFiles()
    before = files.steps_left
    sealed.rewrap(files)
    sealed.put_back()
    return before - files.steps_left


@pytest.mark.parametrize("backwards", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("torn", "power_lost"),
    [(0, True), (TORN, False), *(pytest.param(*each, marks=pytest.mark.long) for each in OTHERS)],
)
def test_every_entry_is_read_whenever_a_rewrap_is_killed_and_whatever_is_retired_then(
    tmp_path: Path, torn: int, power_lost: bool, backwards: bool
) -> None:
    sealed = Sealed(tmp_path)
    steps = steps_of(sealed)
    assert steps > 12
    for killed_at in range(steps):
        files = PoweredFiles(killed_at, torn=torn)
        with pytest.raises(Killed):
            sealed.rewrap(files, backwards=backwards)
        files.steps_left = 1 << 30
        if power_lost:
            files.lose_power()
        sealed.check()
        sealed.retire(files)
        files.lose_power()  # what a retired key opened must be on the disk
        sealed.check()
        if not torn:
            sealed.check_with_either_slot_damaged()
        sealed.rewrap(files)
        sealed.retire(files)
        assert sealed.provider.gone == {FORMER}
        files.lose_power()
        sealed.check()
        sealed.put_back()


@pytest.mark.parametrize("damaged", [0, pytest.param(SLOT_BYTES, marks=pytest.mark.long)])
def test_a_rewrap_that_is_killed_where_one_slot_was_damaged_before_leaves_one_that_opens(
    tmp_path: Path, damaged: int
) -> None:
    sealed = Sealed(tmp_path)
    for killed_at in range(steps_of(sealed)):
        for path in sealed.directory.rglob("*.log"):
            data = bytearray(path.read_bytes())
            data[damaged + 100] ^= 1
            path.write_bytes(data)
        with pytest.raises(Killed):
            sealed.rewrap(PoweredFiles(killed_at, torn=TORN))
        sealed.check()
        sealed.rewrap(OsFiles())
        sealed.check_with_either_slot_damaged()
        sealed.put_back()


@pytest.mark.parametrize(("backwards", "step"), [(True, 777), (False, 3_777)], ids=["snapshot first", "segments first"])
def test_a_full_disk_at_any_byte_leaves_every_entry_and_no_half_of_a_file(
    tmp_path: Path, backwards: bool, step: int
) -> None:
    sealed = Sealed(tmp_path)
    written = 4 * 2 * SLOT_BYTES if not backwards else 2 * SLOT_BYTES
    for room in range(0, written, step):
        files = PoweredFiles()
        files.room = room
        with pytest.raises(OSError, match=r"took|No space"):
            sealed.rewrap(files, backwards=backwards)
        assert list(sealed.data.rglob("*.new")) == []
        sealed.check()
        sealed.put_back()


def test_a_key_is_not_retired_on_the_word_of_a_write_whose_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a failed sync once, and takes what it could not write for written (trap 16)."""

    class Failing(PoweredFiles):
        told = False

        def sync(self, fd: int) -> None:
            if not self.told:
                self.told = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    sealed = Sealed(tmp_path)
    files = Failing()
    with pytest.raises(OSError, match="Input/output"):
        sealed.rewrap(files)
    monkeypatch.setattr(rewrapping, "_forget", lambda *_: files.lose_power())  # what is read is what the disk has
    sealed.retire(files)
    assert sealed.provider.gone == set()
    with pytest.raises(OSError, match="other bytes"):
        sealed.rewrap(files)
    sealed.check()


def test_a_key_that_does_not_unwrap_what_it_wraps_takes_the_place_of_none(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    before = {path: path.read_bytes() for path in sealed.data.rglob("*") if path.is_file()}
    real = sealed.provider.wrap

    def altered(*words: Any) -> bytes:
        wrapped = real(*words)
        return wrapped[:-1] + bytes([wrapped[-1] ^ 1])

    for wrong in (altered, lambda _id, key, context: real(FORMER, key, context)):
        sealed.provider.wrap = wrong  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="does not unwrap what it has just wrapped"):
            sealed.rewrap(OsFiles())
        assert {path: path.read_bytes() for path in sealed.data.rglob("*") if path.is_file()} == before


def test_a_key_that_only_the_slot_that_does_not_count_needs_is_used(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    with pytest.raises(Killed):
        sealed.rewrap(PoweredFiles(2))
    [half] = [found for found in sealed_files(sealed.data) if len({slot.key_id for slot in found.slots}) == 2]
    assert half.slot.key_id == NEWER
    total = uses(sealed.data)
    assert (total[NEWER], total[FORMER]) == (1, len(list(sealed_files(sealed.data))))
    sealed.provider.gone = {FORMER}
    with pytest.raises(KeyAbsent):
        sealed.check()


@pytest.mark.parametrize(
    "kind", ["a segment that a repair writes", "a snapshot that is written", "a deleted partition"]
)
def test_a_key_that_only_something_unfinished_needs_is_used_and_is_wrapped_anew(tmp_path: Path, kind: str) -> None:
    sealed = Sealed(tmp_path)
    total = uses(sealed.data)[FORMER]
    segment = max(sealed.directory.glob("*.log"))
    snapshot = sealed.directory / SNAPSHOT_FILE_NAME
    if kind == "a segment that a repair writes":
        shutil.copy(segment, segment.with_suffix(".good"))
        expected = total + 1
    elif kind == "a snapshot that is written":
        shutil.copy(snapshot, snapshot.with_name(snapshot.name + ".new"))
        expected = total + 1
    else:
        shutil.copytree(sealed.directory, sealed.directory.with_name(sealed.directory.name + ".deleted"))
        expected = 2 * total
    assert uses(sealed.data) == {FORMER: expected}
    for found in sealed_files(sealed.data):  # one after the other: what is written beside a snapshot goes with it
        rewrap(found, sealed.ring(), NEWER, OsFiles())
    assert uses(sealed.data)[FORMER] == 0
    sealed.check()


def test_a_file_that_was_changed_after_it_was_looked_at_is_left_as_it_is(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    seen = list(sealed_files(sealed.data))
    assert {found.is_snapshot for found in seen} == {False, True}
    sealed.rewrap(OsFiles())
    after = {found.path: found.path.read_bytes() for found in seen}
    for found in seen:
        with pytest.raises(StorageFailed, match="was changed meanwhile"):
            rewrap(found, sealed.ring(), NEWER, OsFiles())
    assert {path: path.read_bytes() for path in after} == after


def test_a_slot_is_on_the_disk_before_the_other_one_is_written(tmp_path: Path) -> None:
    """When the power is lost, any part of what was not synced may be on the disk: one slot at most, then."""

    class Ordered(OsFiles):
        writes = 0

        def __init__(self) -> None:
            self.unsynced: set[int] = set()

        def write(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
            assert fd not in self.unsynced
            self.unsynced.add(fd)
            self.writes += 1
            return super().write(fd, parts, position)

        def sync(self, fd: int) -> None:
            super().sync(fd)
            self.unsynced.discard(fd)

    sealed, files = Sealed(tmp_path), Ordered()
    segments = [found for found in sealed_files(sealed.data) if not found.is_snapshot]
    for found in segments:
        rewrap(found, sealed.ring(), NEWER, files)
    assert files.writes == 2 * len(segments)
    assert not files.unsynced
