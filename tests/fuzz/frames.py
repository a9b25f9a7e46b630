"""Frames of a journal, altered, with a checksum that holds all the same: of a broker that lies, or a disk that was
edited."""

from __future__ import annotations

import random
import struct

import google_crc32c
from google.protobuf.message import Message

from mq_broker.core.entries import EntryKind
from mq_broker.storage.codec.frame import HEADER_BYTES, decode_frame, encode
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from tests.fuzz.altering import altered, message
from tests.fuzz.telling import check_told
from tests.mq_broker.storage.bed import (
    PLACE,
    frame_of,
    one_of_each_operation,
    operations_with_attributes,
    operations_with_owners,
)

_OPERATIONS = [*one_of_each_operation(), *operations_with_attributes(), *operations_with_owners()]
_WHOLE = [b"".join(bytes(part) for part in frame_of(9, 4, b"", operation).parts) for operation in _OPERATIONS]
_CRC_BYTES = 4
_KIND_AT = 6
_SIZES_END = 56
_METAS: tuple[tuple[EntryKind, type[Message]], ...] = (
    (EntryKind.APPEND_ATTRIBUTED, pb.AppendMeta),
    (EntryKind.EPOCH_START, pb.EpochStartMeta),
    (EntryKind.STAGE, pb.StageMeta),
    (EntryKind.PUBLISH, pb.PublishMeta),
    (EntryKind.DISCARD, pb.DiscardMeta),
    (EntryKind.CURSOR, pb.CursorMeta),
    (EntryKind.DECIDE, pb.DecideMeta),
    (EntryKind.FINISH, pb.FinishMeta),
    (EntryKind.TRIM, pb.TrimMeta),
    (EntryKind.FENCE, pb.FenceMeta),
    (EntryKind.FORGET, pb.ForgetMeta),
    (EntryKind.WORK, pb.WorkMeta),
    (EntryKind.SCHEDULE, pb.ScheduleMeta),
)
_META_AT = 48
"""Where the header says how many bytes the operation has."""


def generate(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return _of_operation(*chance.choice(_METAS), chance)
    data = altered(chance.choice(_WHOLE), chance) if chance.random() < 0.8 else chance.choice(_WHOLE)
    if chance.random() < 0.7 and len(data) > HEADER_BYTES:  # the operation goes to the end
        data = data[:_META_AT] + struct.pack("<I", len(data) - HEADER_BYTES) + data[_META_AT + _CRC_BYTES :]
    return data


def _of_operation(kind: EntryKind, meta: type[Message], chance: random.Random) -> bytes:
    """An operation by the grammar, whose parts need not make sense together."""
    data = _WHOLE[0][:HEADER_BYTES]
    written: bytes = message(meta, chance).SerializeToString()
    return (
        data[:_KIND_AT] + bytes([kind]) + data[_KIND_AT + 1 : _META_AT] + _sizes(written) + data[_SIZES_END:] + written
    )


def _sizes(meta: bytes) -> bytes:
    return struct.pack("<II", len(meta), 0)


def sealed(data: bytes) -> bytes:
    """With the checksum that its bytes have."""
    return struct.pack("<I", google_crc32c.extend(PLACE.seed, data[_CRC_BYTES:])) + data[_CRC_BYTES:]


def check(data: bytes) -> bool:
    for given in (data, sealed(data)):
        try:
            frame = decode_frame(PLACE, memoryview(given))
        except CorruptBatch as error:
            check_told(error)
            continue
        assert frame.size == len(given)
        again = b"".join(encode(PLACE, frame.entry, frame.payload_parts).parts)
        assert decode_frame(PLACE, memoryview(again)).entry == frame.entry
        return True
    return False
