"""Which keys a data directory is sealed with, and wrapping its data keys anew, while no broker uses it.

Entries are not touched: of a segment one slot of its block is written, of a snapshot the file is replaced by one with
another slot. What was put aside counts too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mq_broker.storage.codec.frame import NewerFrame, Place
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.files import Files
from mq_broker.storage.journal.segments import SEGMENT_SUFFIX
from mq_broker.storage.keyring import Keyring
from mq_broker.storage.sealed import (
    BLOCK_BYTES,
    SLOT_BYTES,
    Slot,
    encode_slot,
    rewrapped,
    rewrapped_snapshot,
    slots_of,
    snapshot_slot,
)
from mq_protocol.errors import CorruptBatch, StorageFailed

_PARTITION: Final = re.compile(r"([0-9A-Za-z_-]{1,117})-([0-9]{1,10})")
_GOOD_SUFFIX: Final = ".good"  # of a segment that a repair is putting in place


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A segment or a snapshot, and what it is sealed with; `whole`: how many of its slots say so."""

    path: Path
    place: Place
    slot: Slot
    is_snapshot: bool
    whole: int = 1


def sealed_files(data: Path) -> Iterator[SealedFile]:
    """All of them in a data directory, what was put aside included. Raises `StorageFailed` for one that cannot be
    read, or is of a newer version: nobody knows then which keys are needed."""
    for directory in sorted((data / "partitions").iterdir()):
        match = _PARTITION.fullmatch(directory.name.removesuffix(".deleted"))
        if match is None or not directory.is_dir():
            continue
        place = Place(match[1], int(match[2]))
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield from _sealed_file(path, place)


def _sealed_file(path: Path, place: Place) -> Iterator[SealedFile]:
    try:
        if path.suffix in (SEGMENT_SUFFIX, _GOOD_SUFFIX):
            with path.open("rb") as file:
                head = file.read(BLOCK_BYTES)
            found = [slot for _, slot in slots_of(place, memoryview(head)) if slot is not None]
            if found:
                slot = max(found, key=lambda each: each.generation)
                yield SealedFile(path, place, slot, is_snapshot=False, whole=found.count(slot))
        elif path.name.removesuffix(".new") == SNAPSHOT_FILE_NAME:
            slot_of_snapshot = snapshot_slot(place, path.read_bytes())
            if slot_of_snapshot is not None:
                yield SealedFile(path, place, slot_of_snapshot, is_snapshot=True)
    except NewerFrame as error:
        raise StorageFailed(f"{path} cannot be told ({error}): use the newest version") from error
    except CorruptBatch:
        return  # damaged: no key opens it
    except OSError as error:
        raise StorageFailed(f"{path} cannot be read ({error}): check that disk and its rights") from error


def rewrap(found: SealedFile, keys: Keyring, key_id: str, files: Files) -> None:
    """Wrap its data key by that key, durably. Raises `SealedAway` if the key that wraps it now is not to be had, and
    `OSError`."""
    data_key = keys.unwrap(found.place, found.slot)
    slot = rewrapped(found.slot, key_id, keys.wrap(found.place, key_id, data_key))
    if found.is_snapshot:
        files.replace(found.path, rewrapped_snapshot(found.place, found.path.read_bytes(), slot))
        return
    fd = files.open(found.path)
    try:
        slots = slots_of(found.place, memoryview(files.read(fd, BLOCK_BYTES, 0)))
        # The one that does not count, so that a crash leaves the one that does; then the other one too.
        order = sorted(slots, key=lambda each: each[1] is not None and each[1].generation)
        for at, _ in order:
            data = encode_slot(found.place, slot)
            taken = files.write(fd, (data,), at)
            if taken != SLOT_BYTES:
                raise OSError(28, f"{found.path} took {taken} of {SLOT_BYTES} bytes")
            files.sync(fd)
    finally:
        files.close(fd)
