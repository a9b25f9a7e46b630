"""The work of beginning a journal later: what it dropped becomes a snapshot. Runs in a thread of its own, beside loop
and writer.

The steps, with what a crash between them leaves:

1. the entries before the new start are read from their segments and applied to a machine made from the present
   snapshot;
2. the snapshot of that machine replaces the present one, atomically and synced, whatever the durability: it is rare,
   and from here on it is all there is (a crash before: nothing has happened; after: opening removes the segments before
   it);
3. the segments before the new start are removed, first to last.

Frames are read whole and their checksums verified, payloads too, although the machine needs no payload: a checksum
covers header, meta and payload together, and what is wrong in an entry here would be in this replica's state for good,
with nothing left to compare it with. That costs one more sequential reading of what is then deleted.

The segments that are dropped have been written, synced and followed by another, and the loop cuts no more below the new
start: the writer has no business with them, so nothing here goes through its queue. What the loop knows of them it
forgets once the snapshot is durable, and before a file is removed, so that nobody reads what is going.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mq_broker.core.entries import Entry
from mq_broker.core.machine.machine import Change, PartitionMachine
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import FILE_NAME, decode_snapshot, encode_snapshot
from mq_broker.storage.files import Files
from mq_broker.storage.journal.recovery import LogDamaged, frames_in, segment_firsts
from mq_broker.storage.journal.segments import segment_path
from mq_broker.storage.sealed import DataKey
from mq_protocol.errors import CorruptBatch


class WholeSegment(NamedTuple):
    """A segment by its first index, with its file's size in bytes, and what opens it if it is sealed."""

    first: int
    size: int
    key: DataKey | None = None


class Replay:
    """Owns a machine while entries are applied to it that came after `before`."""

    def __init__(self, before: Snapshot | None, window: WindowBounds) -> None:
        self._machine = PartitionMachine(window, before.state if before is not None else None)
        self.last_index = before.last_index if before is not None else 0
        self._last_epoch = before.last_epoch if before is not None else 0
        self._timestamp_us = before.timestamp_us if before is not None else 0

    def take(self, entry: Entry) -> Sequence[Change]:
        """Returns what readers see of it."""
        assert entry.index == self.last_index + 1, f"entry {entry.index} after {self.last_index}"
        changes = self._machine.apply(entry)
        self.last_index = entry.index
        self._last_epoch = entry.leader_epoch
        self._timestamp_us = max(self._timestamp_us, entry.timestamp_us)
        return changes

    def snapshot(self) -> Snapshot:
        return Snapshot(self.last_index, self._last_epoch, self._timestamp_us, self._machine.state())


def summarize(
    place: Place, before: bytes, entries: Iterable[Entry], window: WindowBounds, stopping: threading.Event
) -> bytes | None:
    """The snapshot, encoded, of what `before` (encoded; empty: none) and `entries` come to. None once `stopping` is
    set."""
    replay = Replay(decode_snapshot(place, before) if before else None, window)
    for entry in entries:
        if stopping.is_set():
            return None
        replay.take(entry)
    return encode_snapshot(place, replay.snapshot())


def entries_of(directory: Path, place: Place, files: Files, segments: Sequence[WholeSegment]) -> Iterable[Entry]:
    """The entries of whole segments.

    Raises `LogDamaged` where they are not what was written, `Altered` where somebody without the key wrote them, and
    `OSError`.
    """
    for first, size, key in segments:
        path = segment_path(directory, first)
        index, at = first, 0
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for entry, end in frames_in(files, fd, size, place, first, key):
                    if entry.index != index:
                        raise LogDamaged(path, first, at, index - 1, f"entry {entry.index} lies where {index} belongs")
                    yield entry
                    index, at = index + 1, end
            finally:
                os.close(fd)
        except CorruptBatch as error:
            raise LogDamaged(path, first, at, index - 1, str(error)) from error
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOENT):
                raise LogDamaged(path, first, at, index - 1, str(error)) from error
            raise


def store_snapshot(directory: Path, data: bytes, files: Files, key: DataKey | None) -> None:
    """In place of the present one, durably; sealed if there is a key."""
    files.replace(directory / FILE_NAME, data if key is None else key.seal_snapshot(data))


def make_snapshot(
    directory: Path,
    place: Place,
    files: Files,
    before: bytes,
    dropped: Sequence[WholeSegment],
    window: WindowBounds,
    stopping: threading.Event,
    key: DataKey | None,
) -> bytes | None:
    """Summarize what these segments have, and store that. Raises as `entries_of` and `store_snapshot`."""
    data = summarize(place, before, entries_of(directory, place, files, dropped), window, stopping)
    if data is not None:
        store_snapshot(directory, data, files, key)
    return data


def drop_segments(directory: Path, first_index: int, files: Files) -> None:
    """Remove those that begin before `first_index`, first to last, what an earlier call could not remove among them."""
    for first in segment_firsts(directory):
        if first < first_index:
            files.remove(segment_path(directory, first))
    files.sync_directory(directory)
