"""A checkpoint as bytes: what a broker has made of a journal's entries up to one of them, so that it need not read them
at its next start.

    crc32c u32 | magic 3 bytes, version u8 | body_bytes u64     16 bytes, little-endian; then the body

The checksum starts from the place, as a frame's does (frame.py), and covers all after itself. The body is four parts,
each a u64 (its size in bytes) and its bytes: what the checkpoint is of, as JSON; the state, as a snapshot
(snapshot.py); where entries end, a u64 each; the records of the offset index.

A checkpoint is derived. So there is one version of it at a time, and what is not of it is as good as none: the journal
is read. `MEANING` is part of that. A release whose state machine makes another state of the same entries has another
number, or states of two meanings would be mixed.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from mq_broker.core.machine.state import Snapshot
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import checksum_of, decode_snapshot, encode_snapshot
from mq_broker.storage.offset_index import FrozenIndex
from mq_protocol.errors import CorruptBatch
from mq_protocol.wire.envelope import Buffer

FILE_NAME: Final = "checkpoint"
VERSION: Final = 1
MEANING: Final = 1

CHECKPOINT_BYTES_MAX: Final = 256 << 20
"""A larger one is neither written nor read: it is built in memory. It is of three million batches."""

_MAGIC: Final = b"TCk"
_HEADER: Final = struct.Struct("<I3sBQ")
_CRC_BYTES: Final = 4
_PART: Final = struct.Struct("<Q")
_PARTS: Final = 4
_RECORD_BYTES: Final = 64
_OF_THIS_MACHINE: Final = [VERSION, MEANING, sys.byteorder]


class KnownSegment(NamedTuple):
    """A segment as it was: where it begins in the journal as one stream of frames, the bytes of its file up to the last
    entry that is meant, and the checksums of its first frame and of that of this entry, as they lie in the file."""

    first: int
    start: int
    size: int
    sealed: bool
    first_crc: int
    last_crc: int


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """`log_id`: the log that it is of. The journal began after `base_index`; `ends[i]` is where entry `base_index + i`
    ends in the stream of frames, up to the entry of `snapshot`. `epochs`: of these entries, each with its first."""

    log_id: str
    base_index: int
    snapshot: Snapshot
    epochs: tuple[tuple[int, int], ...]
    ends: array[int]
    segments: tuple[KnownSegment, ...]
    index: FrozenIndex


def encode_checkpoint(place: Place, checkpoint: StoredCheckpoint) -> bytes:
    """The bytes. Takes as long as the snapshot's: do it in a thread."""
    index = checkpoint.index
    head = {
        "of": _OF_THIS_MACHINE,
        "log_id": checkpoint.log_id,
        "base_index": checkpoint.base_index,
        "last_index": checkpoint.snapshot.last_index,
        "epochs": checkpoint.epochs,
        "segments": checkpoint.segments,
        "index": index._replace(records=b"")[:-1],
    }
    parts = (
        json.dumps(head).encode(),
        encode_snapshot(place, checkpoint.snapshot),
        checkpoint.ends.tobytes(),
        index.records,
    )
    body = b"".join(piece for part in parts for piece in (_PART.pack(len(part)), part))
    header = _HEADER.pack(0, _MAGIC, VERSION, len(body))[_CRC_BYTES:]
    crc = checksum_of(place, (header, body))
    return b"".join((crc.to_bytes(_CRC_BYTES, "little"), header, body))


def decode_checkpoint(place: Place, data: Buffer) -> StoredCheckpoint:
    """The checkpoint that `data` is. Raises `CorruptBatch` for what is damaged, cut off, of another partition or of
    another version, and `StorageFailed` for a state that only a newer version knows."""
    data = memoryview(data)
    if len(data) < _HEADER.size:
        raise CorruptBatch(f"it ends after {len(data)} bytes")
    crc, magic, version, body_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise CorruptBatch("it is of another version")
    if len(data) != _HEADER.size + body_bytes or checksum_of(place, (data[_CRC_BYTES:],)) != crc:
        raise CorruptBatch("its checksum does not hold")
    try:
        head_part, state, ends_part, records = _parts(data[_HEADER.size :])
        head: Any = json.loads(bytes(head_part))
        if head["of"] != _OF_THIS_MACHINE:
            raise CorruptBatch("it is of another version")
        ends = array("Q")
        ends.frombytes(ends_part)
        numbers = head["index"]
        start, end, nbytes, newest_us, gaps, has_priorities, has_expiries = numbers
        checkpoint = StoredCheckpoint(
            head["log_id"],
            head["base_index"],
            decode_snapshot(place, state),
            tuple((first, epoch) for first, epoch in head["epochs"]),
            ends,
            tuple(KnownSegment(*segment) for segment in head["segments"]),
            FrozenIndex(
                start,
                end,
                nbytes,
                newest_us,
                tuple((first, following) for first, following in gaps),
                has_priorities,
                has_expiries,
                bytes(records),
            ),
        )
        _check(checkpoint, head["last_index"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptBatch(f"it cannot be read ({error!r})") from error
    return checkpoint


def _check(checkpoint: StoredCheckpoint, last_index: int) -> None:
    """Raises `ValueError` for parts that are not of one checkpoint."""
    base, ends, snapshot, index = checkpoint.base_index, checkpoint.ends, checkpoint.snapshot, checkpoint.index
    first_of_epochs = [first for first, _ in checkpoint.epochs]
    first_of_segments = [segment.first for segment in checkpoint.segments]
    entries = last_index - base
    if not (
        base >= 0
        and entries >= 1
        and snapshot.last_index == last_index
        and len(ends) == entries + 1
        and first_of_epochs[:1] == first_of_segments[:1] == [base + 1]
        and _rises(first_of_epochs, last_index)
        and _rises(first_of_segments, last_index)
        and _rises([epoch for _, epoch in checkpoint.epochs], snapshot.last_epoch)
        and checkpoint.epochs[-1][1] == snapshot.last_epoch
        and all(segment.start == ends[segment.first - 1 - base] for segment in checkpoint.segments)
        and index.log_start_offset <= index.log_end_offset == snapshot.state.next_offset
        and not len(index.records) % _RECORD_BYTES
    ):
        raise ValueError("its parts do not fit each other")


def _rises(numbers: list[int], most: int) -> bool:
    return numbers[-1] <= most and all(before < after for before, after in pairwise(numbers))


def _parts(body: memoryview) -> Iterator[memoryview]:
    at = 0
    for _ in range(_PARTS):
        if at + _PART.size > len(body):
            raise ValueError("it ends within a part")
        (size,) = _PART.unpack_from(body, at)
        at += _PART.size + size
        if at > len(body):
            raise ValueError("a part runs past its end")
        yield body[at - size : at]
    if at != len(body):
        raise ValueError("something follows its parts")
