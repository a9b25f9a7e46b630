"""A checkpoint on disk: written beside the journal, and gone on from at the next opening if it fits what lies there.

It is derived, and believed only as far as the journal itself bears it out. It is used if all of this holds, and passed
over without a change of anything otherwise; the whole journal is read then, as if there were none.

1. Its checksum holds, and it is of this version (storage/codec/checkpoint.py). Of a broker with keys it is sealed.
2. It is of this log: a log id stands for one unbroken life of a log. Whatever takes entries out of a log that are below
   a checkpoint (damage, a snapshot that is installed, a recovery) gives the log a new id first.
3. The flushed mark is at or above its last entry. It is written only once all that it covers is synced, and the mark
   after that; a truncation lowers the mark first.
4. The segments up to its last entry are there, each of the size that it had, and each begins and ends with the frame
   that it had. So a release that knows nothing of checkpoints may have appended, shortened or cut meanwhile.
5. Its last frame is whole, payload and all.

The frames before are not read. Each is verified when it is read, as ever, and by a scrub in the background
(keeping.py).

What is damaged above a checkpoint is judged by a reading of all, since the log has to be cut where it is damaged first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mq_broker.core.messages import Checkpoint
from mq_broker.storage.codec.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    FILE_NAME,
    KnownSegment,
    StoredCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from mq_broker.storage.codec.frame import HEADER_BYTES, MAGIC_POSITION, Place, checksum, unpack_header
from mq_broker.storage.files import Files
from mq_broker.storage.interface import Derived
from mq_broker.storage.journal.recovered import Recovered, read_mark, segment_key
from mq_broker.storage.journal.segments import MARK_FILE_NAME, segment_path
from mq_broker.storage.keyring import Keyring, opened_with
from mq_broker.storage.sealed import DataKey, file_end, plain_snapshot, snapshot_slot, unit_start
from mq_protocol.errors import CorruptBatch, StorageFailed

_logger = logging.getLogger(__name__)


class Layout(NamedTuple):
    """Where a journal's entries lie, as the event loop knows it. `ends[i]` is where the frame of entry `base + i` ends,
    counted over all segments; `segments` are (first index, where it begins); `epochs` are (first index, epoch). `keys`
    opens those segments that are sealed."""

    base: int
    ends: array[int]
    segments: Sequence[tuple[int, int]]
    keys: Mapping[int, DataKey]
    epochs: Sequence[tuple[int, int]]

    def up_to(self, last_index: int) -> Layout:
        """A copy that nobody changes, of the entries up to that one, which are not all after `base`."""
        within = bisect_right(self.segments, last_index, key=lambda segment: segment[0])
        return Layout(
            self.base,
            self.ends[: last_index - self.base + 1],
            tuple(self.segments[:within]),
            dict(self.keys),
            epochs_of(self.epochs, self.base, last_index),
        )


def epochs_of(epochs: Sequence[tuple[int, int]], base: int, last_index: int) -> tuple[tuple[int, int], ...]:
    """Of the entries `base + 1 .. last_index` alone, each epoch with its first."""
    begun = [(max(first, base + 1), epoch) for first, epoch in epochs if first <= last_index]
    following = [first for first, _ in begun[1:]] + [last_index + 1]
    return tuple(run for run, after in zip(begun, following, strict=True) if run[0] < after)


# ------------------------------------------------------------------ writing


class TooLarge(StorageFailed):
    """It is not written: its opening would take too much memory."""


def store_checkpoint(
    directory: Path, place: Place, files: Files, log_id: str, layout: Layout, derived: Derived, key: DataKey | None
) -> int:
    """In place of the present one, durably; sealed if there is a key. `layout` is that up to the entry of `derived`,
    which is applied, committed and synced. Returns the bytes, 0 if nothing was written. Blocks.

    Raises `TooLarge`; `OSError` and `CorruptBatch` if the journal's files are not as the loop knows them.
    """
    last_index = derived.snapshot.last_index
    mark_fd = files.open(directory / MARK_FILE_NAME)
    try:
        files.sync(mark_fd)  # else a loss of power leaves an older one, and the checkpoint is passed over
    finally:
        files.close(mark_fd)
    mark = read_mark(directory, place)
    if mark is None or mark < last_index:
        return 0
    known = _known_segments(directory, files, layout, last_index)
    data = encode_checkpoint(
        place,
        StoredCheckpoint(
            log_id, layout.base, derived.snapshot, tuple(layout.epochs), layout.ends, known, derived.offsets
        ),
    )
    if key is not None:
        data = key.seal_snapshot(data)
    if len(data) > CHECKPOINT_BYTES_MAX:
        raise TooLarge(f"it has {len(data)} bytes")
    try:
        if _room(directory) < 2 * len(data):  # or messages that come meanwhile would be refused for it
            raise OSError(errno.ENOSPC, f"{len(data)} bytes would leave less room than they take")
        files.replace(directory / FILE_NAME, data)
    except OSError:
        remove_unfinished(directory, files)  # a full disk needs the room
        raise
    return len(data)


def _room(directory: Path) -> int:
    """Bytes that the disk has for this user."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def remove_unfinished(directory: Path, files: Files) -> None:
    """What a writing that did not come to its end has left: nobody reads it, and another might be long in coming."""
    path = directory / f"{FILE_NAME}.new"
    if path.exists():
        with contextlib.suppress(OSError):
            files.remove(path)


def _known_segments(directory: Path, files: Files, layout: Layout, last_index: int) -> tuple[KnownSegment, ...]:
    known: list[KnownSegment] = []
    for (first, start), (after, _) in pairwise((*layout.segments, (last_index + 1, 0))):
        sealed = first in layout.keys
        fd = os.open(segment_path(directory, first), os.O_RDONLY | os.O_CLOEXEC)
        try:
            head, tail = _outer_frames(layout, first, start, after - 1, sealed=sealed)
            first_crc = _crc_at(files, fd, head, first)
            last_crc = _crc_at(files, fd, tail, after - 1)
        finally:
            os.close(fd)
        size = file_end(layout.ends[after - 1 - layout.base] - start, after - first, sealed=sealed)
        known.append(KnownSegment(first, start, size, sealed, first_crc, last_crc))
    return tuple(known)


def _outer_frames(layout: Layout, first: int, start: int, last: int, *, sealed: bool) -> tuple[int, int]:
    """Where the frames of the first and the last entry of a segment begin in its file."""
    before_last = layout.ends[last - 1 - layout.base] - start
    return unit_start(0, 0, sealed=sealed), unit_start(before_last, last - first, sealed=sealed)


def _crc_at(files: Files, fd: int, position: int, index: int) -> int:
    """The checksum in the header of the frame there. Raises `CorruptBatch` if it is not that of the entry."""
    header = unpack_header(memoryview(files.read(fd, HEADER_BYTES, position)), 0)
    if header.entry_index != index:
        raise CorruptBatch(f"entry {header.entry_index} lies where {index} belongs")
    return header.crc


# ------------------------------------------------------------------ going on from one


class _Misfit(Exception):
    """It is not of what lies here."""


def begin_with_checkpoint(
    directory: Path,
    place: Place,
    files: Files,
    before: Recovered,
    firsts: Sequence[int],
    mark: int | None,
    log_id: str,
    keys: Keyring | None,
) -> Recovered | None:
    """What a checkpoint says of the log `log_id`, if it fits: only what follows it is to be read then. `before` has the
    journal's snapshot, `firsts` are the segments after it.

    Raises what opening a segment raises: `SealedAway`, `StorageFailed` for one of a newer version, `OSError`.
    """
    path = directory / FILE_NAME
    try:
        found = _fitting(place, _read(path), before, mark, log_id, keys)
        opening = _check_files(directory, place, files, found, firsts, keys)
    except FileNotFoundError:
        return None
    except _Misfit as error:
        _logger.info("%s is passed over, and the journal is read: %s", path, error)
        return None
    sizes = np.diff(np.frombuffer(found.ends, np.uint64)).astype(np.uint32)
    return replace(
        before,
        entries=[],
        ends=found.ends,
        segments=[(each.first, each.start) for each in found.segments],
        keys=opening,
        checkpoint=Checkpoint(found.snapshot, found.epochs, array("I", sizes.tobytes())),
        index=found.index,
    )


def _read(path: Path) -> bytes:
    """Raises `FileNotFoundError`, and `_Misfit` for what cannot be read: a bad sector below it keeps nothing closed."""
    try:
        if path.stat().st_size > CHECKPOINT_BYTES_MAX:
            raise _Misfit("it is too large")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _Misfit(f"it cannot be read ({error})") from error


def _fitting(
    place: Place, data: bytes, before: Recovered, mark: int | None, log_id: str, keys: Keyring | None
) -> StoredCheckpoint:
    """What the file holds, without what the journal's snapshot stands for by now. Raises `_Misfit`."""
    try:
        if keys is not None and snapshot_slot(place, data) is None:
            raise _Misfit("it is plain, and this broker was given keys")
        data = plain_snapshot(place, data, lambda slot: opened_with(keys, place, slot))
        found = decode_checkpoint(place, data)
    except (CorruptBatch, StorageFailed) as error:
        raise _Misfit(str(error)) from error
    last_index, base = found.snapshot.last_index, before.base_index
    if found.log_id != log_id:
        raise _Misfit(f"it is of log {found.log_id}, not {log_id}")
    if mark is None or mark < last_index:
        raise _Misfit(f"it goes up to entry {last_index}, and the journal was flushed up to {mark}")
    if not found.base_index <= base < last_index:
        raise _Misfit(f"it is of entries {found.base_index + 1} to {last_index}, and the journal begins after {base}")
    if np.any(np.diff(np.frombuffer(found.ends, np.uint64).astype(np.int64)) < HEADER_BYTES):
        raise _Misfit("its entries have no bytes")
    return replace(
        found,
        base_index=base,
        ends=found.ends[base - found.base_index :],
        epochs=epochs_of(found.epochs, base, last_index),
        segments=tuple(each for each in found.segments if each.first > base),
    )


def _check_files(
    directory: Path, place: Place, files: Files, found: StoredCheckpoint, firsts: Sequence[int], keys: Keyring | None
) -> dict[int, DataKey]:
    """Whether the segments are those that it knows. Returns what opens those of them that are sealed. Raises
    `_Misfit`, and as `begin_with_checkpoint`."""
    last_index = found.snapshot.last_index
    known = [each.first for each in found.segments]
    if not known or known[0] != found.base_index + 1 or known != [first for first in firsts if first <= last_index]:
        raise _Misfit("the segments are others than those that it knows")
    layout = Layout(found.base_index, found.ends, (), {}, ())
    opening: dict[int, DataKey] = {}
    for segment, after in pairwise((*found.segments, None)):
        assert segment is not None, "the last one is None"
        last = last_index if after is None else after.first - 1
        path = segment_path(directory, segment.first)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            key = segment_key(files, fd, place, keys)
            if key is not None:
                opening[segment.first] = key
            size = os.fstat(fd).st_size
            if (
                (key is not None) != segment.sealed
                or size < segment.size
                or (size > segment.size and after is not None)
            ):
                raise _Misfit(f"{path} has {size} bytes, and had {segment.size}")
            head, tail = _outer_frames(layout, segment.first, segment.start, last, sealed=segment.sealed)
            if (_crc_at(files, fd, head, segment.first), _crc_at(files, fd, tail, last)) != segment[-2:]:
                raise _Misfit(f"{path} begins or ends with another entry")
            if after is None:
                _check_frame(files, fd, place, tail, segment.size)
        except CorruptBatch as error:
            raise _Misfit(f"{path}: {error}") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise _Misfit(f"{path} cannot be read ({error})") from error
        finally:
            os.close(fd)
    return opening


def _check_frame(files: Files, fd: int, place: Place, position: int, end: int) -> None:
    """Raises `CorruptBatch` if what lies there is not one whole frame, or sealed one."""
    data = memoryview(files.read(fd, end - position, position))
    header = unpack_header(data, 0)
    if header.frame_bytes != len(data) or checksum(place.seed, data[MAGIC_POSITION:]) != header.crc:
        raise CorruptBatch("the checksum of its last entry does not hold")
