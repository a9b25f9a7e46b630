"""What opening a journal's files comes to, and the small readings that recovery and checkpoints share."""

from __future__ import annotations

import errno
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.entries import Entry
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import Checkpoint
from mq_broker.storage.codec.frame import NewerFrame, Place
from mq_broker.storage.files import Files
from mq_broker.storage.journal.segments import MARK_FILE_NAME, Tail, unpack_mark
from mq_broker.storage.keyring import Keyring, opened_with
from mq_broker.storage.offset_index import FrozenIndex
from mq_broker.storage.sealed import BLOCK_BYTES, DataKey, file_end, read_block
from mq_protocol.errors import StorageFailed


@dataclass(slots=True)
class Recovered:
    """What was kept: `snapshot`, also as the bytes `snapshot_data`, and the entries after it. `ends[i]` is where entry
    `base_index + i` ends in the journal as one stream of frames; without a checkpoint `ends[0]` is 0. `segments` are
    (first index, where it begins in that stream). `keys`: of those segments that are sealed, by their first index.

    With a `checkpoint` the entries up to it were not read, and `entries` are those after it. `index`: of the offsets
    that it knows."""

    snapshot: Snapshot | None = None
    snapshot_data: bytes = b""
    entries: list[Entry] = field(default_factory=list)
    ends: array[int] = field(default_factory=lambda: array("Q", [0]))
    segments: list[tuple[int, int]] = field(default_factory=list)
    keys: dict[int, DataKey] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    index: FrozenIndex | None = None

    @property
    def base_index(self) -> int:
        """What the snapshot stands for: every entry up to this one."""
        return self.snapshot.last_index if self.snapshot is not None else 0

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.ends) - 1

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].leader_epoch
        if self.checkpoint is not None:
            return self.checkpoint.snapshot.last_epoch
        return self.snapshot.last_epoch if self.snapshot is not None else 0

    @property
    def tail(self) -> Tail:
        if not self.segments:
            return Tail(0, 0, self.last_index)
        first, _ = self.segments[-1]
        return Tail(first, self.end_in_last(self.last_index), self.last_index)

    def end_in_last(self, index: int) -> int:
        """Where entry `index` ends in the file of the last segment; the one before it ends where it begins."""
        first, base = self.segments[-1]
        return file_end(self.ends[index - self.base_index] - base, index + 1 - first, sealed=first in self.keys)


def read_mark(directory: Path, place: Place) -> int | None:
    """The flushed mark; None if it is missing or cannot be believed."""
    try:
        return unpack_mark(place, (directory / MARK_FILE_NAME).read_bytes())
    except FileNotFoundError:
        return None


def segment_key(files: Files, fd: int, place: Place, keys: Keyring | None) -> DataKey | None:
    """What opens a segment; None for a plain one. Raises `KeyAbsent`, `WrongKey`, `OSError`, and `StorageFailed` for
    one of a newer version. A disk that cannot read it is left to who reads on."""
    try:
        slot = read_block(place, memoryview(files.read(fd, BLOCK_BYTES, 0)))
    except NewerFrame as error:
        raise newer_journal(place, error) from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    return None if slot is None else opened_with(keys, place, slot)


def newer_journal(place: Place, error: NewerFrame) -> StorageFailed:
    return StorageFailed(f"the journal of {place} was written by a newer version, and is left as it is: {error}")
