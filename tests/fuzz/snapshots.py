"""Snapshots of a partition, altered, with a checksum that holds all the same. Either bytes or fields of their parts are
altered."""

from __future__ import annotations

import random
import struct
from typing import Any, Final

import google_crc32c

from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.storage.codec import snapshot as codec
from mq_broker.storage.codec.snapshot import NewerSnapshot, decode_snapshot, encode_snapshot
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from tests.fuzz.altering import altered, message
from tests.fuzz.telling import check_told
from tests.mq_broker.storage.bed import PLACE
from tests.mq_broker.storage.codec.test_snapshot import FULL
from tests.mq_broker.storage.codec.test_work import snapshot_of, walked

codec._let_others_run = lambda: None  # it sleeps; here nobody else wants to run

_HEADER: Final = struct.Struct("<I3sBQ")
_PART: Final = struct.Struct("<I")
_MAGIC: Final = b"TSn"
_WHOLE: Final = [
    encode_snapshot(PLACE, snapshot)
    for snapshot in (FULL, Snapshot(0, 0, 0, MachineState()), *(snapshot_of(walked(seed, 40)) for seed in range(3)))
]


def generate(chance: random.Random) -> bytes:
    """A version, and a body."""
    whole = chance.choice(_WHOLE)
    version, body = whole[7], whole[_HEADER.size :]
    match chance.randrange(5):
        case 0:
            return bytes([version]) + body
        case 1:
            return bytes([chance.choice((0, 1, 2, 255))]) + altered(body, chance)
        case 2:
            return b"\x01" + _made(chance)
        case _:
            parts = _parts(body)
            at = chance.randrange(len(parts))
            match chance.randrange(4):
                case 0:
                    parts[at] = altered(parts[at], chance, 3)
                case 1:
                    parts[at : at + 1] = [parts[at]] * chance.choice((0, 2))
                case 2:
                    chance.shuffle(parts)
                case _:
                    parts[at] += message(chance.choice((pb.SnapshotState, pb.WorkPart)), chance).SerializeToString()
            return bytes([version]) + _joined(parts)


def _made(chance: random.Random) -> bytes:
    """Parts of nothing that was whole before."""
    work = [message(pb.WorkPart, chance) for _ in range(chance.randrange(3))]
    head: Any = message(pb.SnapshotState, chance)
    head.work_parts = len(work)
    count = chance.randrange(4)
    columns = [chance.choices((0, 1, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)), k=count) for _ in range(3)]
    uuids = pb.PlacedUuids(
        uuids=chance.randbytes(16 * count),
        index_step=columns[0],
        base_offset_step=columns[1],
        timestamp_us_step=columns[2],
    )
    return _joined([part.SerializeToString() for part in (head, *work, uuids)])


def _parts(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        (size,) = _PART.unpack_from(body, at)
        found.append(body[at + _PART.size : at + _PART.size + size])
        at += _PART.size + size
    return found


def _joined(parts: list[bytes]) -> bytes:
    return b"".join(_PART.pack(len(part)) + part for part in parts)


def check(data: bytes) -> bool:
    if not data:
        return False
    checked = _HEADER.pack(0, _MAGIC, data[0], len(data) - 1)[4:] + data[1:]
    crc = google_crc32c.extend(PLACE.seed, checked)
    try:
        found = decode_snapshot(PLACE, struct.pack("<I", crc) + checked)
    except (CorruptBatch, NewerSnapshot) as error:
        check_told(error)
        return False
    assert decode_snapshot(PLACE, encode_snapshot(PLACE, found)) == found
    return True
