"""Which keys a data directory is sealed with, and wrapping its data keys anew, while no broker uses it.

Entries are not touched: of a segment the slots of its block are written, of a snapshot the file is replaced by one with
another slot. What was put aside counts too.

A data key is there once: if no slot of a segment can be opened, its records are lost. So what opens it now is
overwritten only after what is to open it then lies on the disk, was read back from there, and was unwrapped. And a key
is used (`uses`) as long as one slot says so, the one that does not count as well: it does if the other one is damaged,
or was written by a rewrap that ended before it was synced. Before a key is removed all of it is synced (`settle`).
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_broker.storage.codec.checkpoint import FILE_NAME as CHECKPOINT_FILE_NAME
from mq_broker.storage.codec.frame import NewerFrame, Place
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.files import Files
from mq_broker.storage.journal.segments import SEGMENT_SUFFIX
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import (
    BLOCK_BYTES,
    SLOT_BYTES,
    Slot,
    WrongKey,
    encode_slot,
    rewrapped,
    rewrapped_snapshot,
    slots_of,
    snapshot_slot,
)
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.names import quoted

_PARTITION: Final = re.compile(r"([0-9A-Za-z_-]{1,117})-([0-9]{1,10})")
_GOOD_SUFFIX: Final = ".good"  # of a segment that a repair is putting in place


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A segment or a snapshot. `slots`: those of it that are whole, the one that counts first."""

    path: Path
    place: Place
    slots: tuple[Slot, ...]
    is_snapshot: bool

    @property
    def slot(self) -> Slot:
        return self.slots[0]

    def is_wrapped_by(self, key_id: str) -> bool:
        """By that key alone, with nothing damaged."""
        return len(self.slots) == 2 - self.is_snapshot and {slot.key_id for slot in self.slots} == {key_id}


def uses(data: Path) -> Counter[str]:
    """How many files of a data directory each key may be needed for. Raises as `sealed_files`."""
    return Counter(key_id for found in sealed_files(data) for key_id in {slot.key_id for slot in found.slots})


def sealed_files(data: Path) -> Iterator[SealedFile]:
    """All of them in a data directory, what was put aside included, as they are on the disk. Raises `StorageFailed` for
    one that cannot be read, or is of a newer version: nobody knows then which keys are needed."""
    for place, path in _files(data):
        yield from _sealed_file(path, place)


def settle(data: Path, files: Files) -> None:
    """What a rewrap that ended early has written comes onto the disk. Raises `OSError`."""
    for folder in sorted({path.parent for _, path in _files(data)}):
        files.sync_directory(folder)
    for _, path in _files(data):
        if _is_segment(path) or _is_snapshot(path):
            fd = files.open(path)
            try:
                files.sync(fd)
            finally:
                files.close(fd)


def _files(data: Path) -> Iterator[tuple[Place, Path]]:
    for directory in sorted((data / "partitions").iterdir()):
        match = _PARTITION.fullmatch(directory.name.removesuffix(".deleted"))
        if match is None or not directory.is_dir():
            continue
        place = Place(match[1], int(match[2]))
        for path in sorted(directory.rglob("*")):
            if path.is_file():  # by a symbolic link too: brokers read through it
                yield place, path


def _is_segment(path: Path) -> bool:
    return path.suffix in (SEGMENT_SUFFIX, _GOOD_SUFFIX)


def _is_snapshot(path: Path) -> bool:
    """Or a checkpoint, which is sealed as one."""
    return path.name.removesuffix(".new") in (SNAPSHOT_FILE_NAME, CHECKPOINT_FILE_NAME)


def _sealed_file(path: Path, place: Place) -> Iterator[SealedFile]:
    try:
        if _is_segment(path):
            slots = [slot for _, slot in slots_of(place, memoryview(_read(path, BLOCK_BYTES))) if slot is not None]
            if slots:
                ordered = sorted(slots, key=lambda slot: slot.generation, reverse=True)
                yield SealedFile(path, place, tuple(ordered), is_snapshot=False)
        elif _is_snapshot(path):
            slot_of_snapshot = snapshot_slot(place, _read(path, path.stat().st_size))
            if slot_of_snapshot is not None:
                yield SealedFile(path, place, (slot_of_snapshot,), is_snapshot=True)
    except NewerFrame as error:
        raise StorageFailed(f"{path} cannot be told ({error}): use the newest version") from error
    except CorruptBatch:
        return  # damaged: no key opens it
    except OSError as error:
        raise StorageFailed(f"{path} cannot be read ({error}): check that disk and its rights") from error


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        _forget(file.fileno(), size)
        return file.read(size)


def _forget(fd: int, size: int) -> None:
    """What is read next comes from the disk, as far as the system does it: after a failed sync the kernel has what the
    disk has not (trap 16)."""
    os.posix_fadvise(fd, 0, size, os.POSIX_FADV_DONTNEED)


# ------------------------------------------------------------------ another key


def rewrap(found: SealedFile, keys: Keyring, key_id: str, files: Files) -> None:
    """Wrap its data key by that key, durably. Raises `SealedAway` if the key that wraps it now is not to be had,
    `StorageFailed` if the new one does not unwrap what it wraps, and `OSError`; whenever it ends, what it was wrapped
    by or the new key opens the file."""
    data_key = keys.unwrap(found.place, found.slot)
    slot = rewrapped(found.slot, key_id, keys.wrap(found.place, key_id, data_key))
    try:
        opens = keys.unwrap(found.place, slot) == data_key
    except WrongKey:
        opens = False
    if not opens:
        raise StorageFailed(
            f"key {quoted(key_id)} of {keys.reference} does not unwrap what it has just wrapped: {found.path} was left "
            "as it is; check that key service"
        )
    if found.is_snapshot:
        _replace_snapshot(found, slot, files)
    else:
        _write_slots(found, slot, files)


def _write_slots(found: SealedFile, slot: Slot, files: Files) -> None:
    """The one that counts last, once the other one is on the disk."""
    fd = files.open(found.path)
    try:
        before = slots_of(found.place, memoryview(files.read(fd, BLOCK_BYTES, 0)))
        if found.slot not in [each for _, each in before]:
            raise _changed(found)
        data = encode_slot(found.place, slot)
        for at, _ in sorted(before, key=lambda each: -1 if each[1] is None else each[1].generation):
            taken = files.write(fd, (data,), at)
            if taken != SLOT_BYTES:
                raise OSError(errno.ENOSPC, f"it took {taken} of {SLOT_BYTES} bytes")
            files.sync(fd)
            _forget(fd, BLOCK_BYTES)
            if files.read(fd, SLOT_BYTES, at) != data:
                raise _not_kept()
    finally:
        files.close(fd)


def _replace_snapshot(found: SealedFile, slot: Slot, files: Files) -> None:
    before = found.path.read_bytes()
    if snapshot_slot(found.place, before) != found.slot:
        raise _changed(found)
    after = rewrapped_snapshot(found.place, before, slot)
    new = found.path.with_name(found.path.name + ".new")
    try:
        _write_whole(new, after, files)
        files.move(new, found.path)
    except OSError:
        new.unlink(missing_ok=True)  # it takes room, on a disk that may be full
        raise
    files.sync_directory(found.path.parent)


def _write_whole(path: Path, data: bytes, files: Files) -> None:
    """A new file, on the disk."""
    path.unlink(missing_ok=True)
    fd = files.open(path)
    try:
        at = 0
        while at < len(data):
            taken = files.write(fd, (memoryview(data)[at:],), at)
            if not taken:
                raise OSError(errno.ENOSPC, f"it took {at} of {len(data)} bytes")
            at += taken
        files.sync(fd)
        _forget(fd, 0)
        if files.read(fd, len(data) + 1, 0) != data:
            raise _not_kept()
    finally:
        files.close(fd)


def _changed(found: SealedFile) -> StorageFailed:
    return StorageFailed(f"{found.path} was changed meanwhile: end what uses it, then do it again")


def _not_kept() -> OSError:
    return OSError(errno.EIO, "the disk gives back other bytes than it was given")
