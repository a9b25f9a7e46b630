"""Frames: a journal entry as bytes, the same on every disk and on every link between brokers.

   crc32c u32 | magic u16 | kind u8 | flags u8 | index u64 | leader_epoch u32 | timestamp_us i64 | uuid 16 bytes
   | record_count u32 | meta_bytes u32 | payload_bytes u32 | decoded_bytes u32

These are 60 bytes, little-endian. The meta follows, then the payload.

The checksum starts from the place (topic id and partition), then covers the header after itself, the meta and the
payload: a frame that is whole but in another partition's journal fails as a damaged one does. The index and the epoch
are in the header, so a frame cannot pass for its neighbour either.

The magic's first byte is T, its second one is the format: 1. Format 2 is what lies in sealed segments, on disk only
(sealed.py). Every later format keeps the header's size, the checksum's rule, and the places of the magic and of the
sizes of meta and payload. So a whole frame of a later format is known as such (`NewerFrame`), and is not taken for a
damaged one.

This module knows no files and no order among frames; whether indexes follow one another is for those who have more than
one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from mq_broker.core.entries import (
    PRIORITY_MAX,
    PRIORITY_USUAL,
    TTL_MS_MAX,
    USUAL,
    UUID_BYTES,
    Abort,
    Append,
    Attributes,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EntryKind,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.storage.codec.work import LaterWork, work_from_wire, work_to_wire
from mq_broker.storage.interface import Frame
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from mq_protocol.manifest_lines import line_from_wire, line_to_wire
from mq_protocol.wire.envelope import Buffer

HEADER_BYTES: Final = 60
FORMAT: Final = 1
MAGIC: Final = bytes((ord("T"), FORMAT))

MAGIC_POSITION: Final = 4
"""Within the header: what a search for frames in damaged bytes looks for."""

_HEADER: Final = struct.Struct("<IHBBQIq16sIIII")
_CHECKED: Final = struct.Struct("<HBBQIq16sIIII")  # the header after its checksum
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = int.from_bytes(MAGIC, "little")
# The checksum takes no views, but arrays over them. Small ones are copied, which takes less than to make an array
_CRC_COPIED_BYTES_MAX: Final = 16 << 10

_UPGRADE: Final = "start the TritonMQ version that wrote it, or a newer one"
_APPEND: Final = Append()


class NewerFrame(CorruptBatch):
    """The frame is whole, and of a format or a kind that this version does not know. Its bytes are all right."""


class Place:
    """Where a frame belongs: one partition of one life of a topic. `seed` is where its checksums start."""

    __slots__ = ("partition", "seed", "topic_id")

    def __init__(self, topic_id: str, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.seed: int = google_crc32c.extend(0, topic_id.encode() + b"\0" + _CRC.pack(partition))

    def __repr__(self) -> str:
        return f"Place({self.topic_id!r}, {self.partition})"

    def __str__(self) -> str:
        return f"partition {self.partition} of topic id {self.topic_id}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (other.topic_id, other.partition) == (self.topic_id, self.partition)

    def __hash__(self) -> int:
        return hash((self.topic_id, self.partition))


class Header(NamedTuple):
    """A frame's header as unpacked, nothing checked but its magic. Of a later format only the sizes mean something."""

    crc: int
    magic: int
    kind: int
    flags: int
    entry_index: int
    leader_epoch: int
    timestamp_us: int
    uuid: bytes
    record_count: int
    meta_bytes: int
    payload_bytes: int
    decoded_bytes: int

    @property
    def format(self) -> int:
        return self.magic >> 8

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.meta_bytes + self.payload_bytes


def encode(place: Place, entry: Entry, payload_parts: Sequence[Buffer] = ()) -> Frame:
    """The entry's frame. The payload's parts are neither copied nor joined; they must add up to
    `entry.payload_bytes`."""
    operation = entry.operation
    if type(operation) is Append and operation.attributes == USUAL:
        kind, meta = EntryKind.APPEND, operation.record_uuids
    else:
        kind, meta = _encode_operation(operation)
    checked = _CHECKED.pack(
        _MAGIC,
        kind,
        0,
        entry.index,
        entry.leader_epoch,
        entry.timestamp_us,
        entry.uuid,
        entry.record_count,
        len(meta),
        entry.payload_bytes,
        entry.decoded_bytes,
    )
    if meta:
        checked += meta
    crc = google_crc32c.extend(place.seed, checked)
    payload_bytes = 0
    for part in payload_parts:
        crc = checksum(crc, part)
        payload_bytes += len(part) if type(part) is bytes else memoryview(part).nbytes
    assert payload_bytes == entry.payload_bytes, (
        f"entry {entry.index} declares {entry.payload_bytes} bytes, has {payload_bytes}"
    )
    return Frame(entry, (_CRC.pack(crc) + checked, *payload_parts), len(checked) + 4 + payload_bytes)


def decode(place: Place, data: Buffer, at: int = 0) -> tuple[Entry, memoryview, int]:
    """The frame that begins at `at`: its entry, its payload (a view of `data`) and the position after it.

    Raises `CorruptBatch` if it is incomplete, damaged, or of another place.
    """
    view = data if type(data) is memoryview else memoryview(data)
    header = unpack_header(view, at)
    end = at + header.frame_bytes
    if end > len(view):
        raise CorruptBatch(
            f"a frame of {header.frame_bytes} bytes is cut off after {len(view) - at}: send or write it again"
        )
    if checksum(place.seed, view[at + MAGIC_POSITION : end]) != header.crc:
        raise CorruptBatch(
            f"checksum does not hold for entry {header.entry_index} of {place}: it is damaged, or of another partition"
        )
    if header.magic != _MAGIC:
        raise NewerFrame(f"a frame is of format {header.format}, and this version reads format {FORMAT}: {_UPGRADE}")
    meta_end = at + HEADER_BYTES + header.meta_bytes
    if header.kind == EntryKind.APPEND and not header.meta_bytes:
        operation: Operation = _APPEND
    else:
        operation = _decode_operation(header.kind, bytes(view[at + HEADER_BYTES : meta_end]))
        uuids_bytes = header.record_count * UUID_BYTES
        if type(operation) is Append and len(operation.record_uuids) not in (0, uuids_bytes):
            raise CorruptBatch(f"entry {header.entry_index} of {place} has not a UUID for each record: send it again")
    entry = Entry(
        header.entry_index,
        header.leader_epoch,
        header.timestamp_us,
        operation,
        header.uuid,
        header.record_count,
        header.payload_bytes,
        header.decoded_bytes,
    )
    return entry, view[meta_end:end], end


def unpack_header(view: memoryview, at: int) -> Header:
    """The header at `at`, of this format or a later one. Raises `CorruptBatch` if there are not enough bytes, or if
    they begin no frame."""
    if at + HEADER_BYTES > len(view):
        raise CorruptBatch(f"a frame's header is cut off after {len(view) - at} bytes: send or write it again")
    header = Header._make(_HEADER.unpack_from(view, at))
    if header.magic != _MAGIC and (header.magic & 0xFF != MAGIC[0] or header.format < FORMAT):
        raise CorruptBatch("no frame begins here: send or write it again")
    return header


def decode_frame(place: Place, data: memoryview) -> Frame:
    """The one frame that `data` is. Raises `CorruptBatch`, also if there is more than it."""
    entry, payload, end = decode(place, data, 0)
    if end != len(data):
        raise CorruptBatch(
            f"the frame of entry {entry.index} has {end} bytes, {len(data)} were announced: send it again"
        )
    head = data[: end - len(payload)]
    return Frame(entry, (head, payload) if len(payload) else (head,), end)


def unpinned(frame: Frame) -> Frame:
    """The frame, safe to keep: a small view would keep alive the whole message that it came in, so it is copied out of
    it."""
    for part in frame.parts:
        if type(part) is memoryview and memoryview(part.obj).nbytes > 2 * frame.size + 4096:
            return frame._replace(parts=tuple(bytes(p) if type(p) is memoryview else p for p in frame.parts))
    return frame


def checksum(crc: int, part: Buffer) -> int:
    """`crc`, of what is before, gone on with over `part`."""
    if type(part) is bytes:
        return int(google_crc32c.extend(crc, part))
    view = memoryview(part)
    if view.nbytes <= _CRC_COPIED_BYTES_MAX:
        return int(google_crc32c.extend(crc, bytes(view)))
    return int(google_crc32c.extend(crc, np.frombuffer(view, np.uint8)))


# ------------------------------------------------------------------ the meta: an operation as protobuf


def _key_to_wire(key: TransactionKey) -> pb.TransactionKey:
    return pb.TransactionKey(query_id=key.query_id, sink=key.sink)


def _encode_operation(operation: Operation) -> tuple[EntryKind, bytes]:
    match operation:
        case Append(record_uuids, attributes):
            append = pb.AppendMeta(record_uuids=record_uuids, attributes=attributes_to_wire(attributes))
            return EntryKind.APPEND_ATTRIBUTED, append.SerializeToString()
        case EpochStart(broker, offset_floor, recovery):
            start = pb.EpochStartMeta(broker=broker, offset_floor=offset_floor, recovery=recovery)
            return EntryKind.EPOCH_START, start.SerializeToString()
        case Trim(log_start_offset):
            return EntryKind.TRIM, pb.TrimMeta(log_start_offset=log_start_offset).SerializeToString()
        case Stage(key, batch_id, run_id, attributes, owner):
            stage = pb.StageMeta(
                key=_key_to_wire(key),
                batch_id=batch_id,
                run_id=run_id,
                attributes=attributes_to_wire(attributes),
                owner=owner,
            )
            return EntryKind.STAGE, stage.SerializeToString()
        case Publish(key, batch_id, uuids):
            return EntryKind.PUBLISH, pb.PublishMeta(
                key=_key_to_wire(key), batch_id=batch_id, uuids=uuids
            ).SerializeToString()
        case Discard(key, uuids):
            return EntryKind.DISCARD, pb.DiscardMeta(key=_key_to_wire(key), uuids=uuids).SerializeToString()
        case MoveCursor(group, offset, kind, forward, owner):
            cursor = pb.CursorMeta(group=group, offset=offset, kind=kind, forward=forward, owner=owner)
            return EntryKind.CURSOR, cursor.SerializeToString()
        case DeleteGroup(group):
            return EntryKind.DELETE_GROUP, pb.DeleteGroupMeta(group=group).SerializeToString()
        case Decide(key, batch_id, run_id, row_count, manifest, once, owner):
            meta = pb.DecideMeta(
                key=_key_to_wire(key),
                batch_id=batch_id,
                run_id=run_id,
                row_count=row_count,
                manifest=[line_to_wire(line) for line in manifest],
                once=once,
                owner=owner,
            )
            return EntryKind.DECIDE, meta.SerializeToString()
        case Give() | Abort() | Fence() | Forget() | Finish():
            return _encode_end(operation)
        case Work() as work:
            return EntryKind.WORK, work_to_wire(work)
        case Schedule(due_us, attributes):
            schedule = pb.ScheduleMeta(due_us=due_us, attributes=attributes_to_wire(attributes))
            return EntryKind.SCHEDULE, schedule.SerializeToString()
        case Carry():
            return EntryKind.CARRY, b""


def _encode_end(operation: Give | Abort | Fence | Forget | Finish) -> tuple[EntryKind, bytes]:
    """What ends a transaction, or its key, or who had it."""
    match operation:
        case Give(key, owner):
            return EntryKind.GIVE, pb.GiveMeta(key=_key_to_wire(key), owner=owner).SerializeToString()
        case Abort(key):
            return EntryKind.ABORT, pb.AbortMeta(key=_key_to_wire(key)).SerializeToString()
        case Fence(key, kept):
            return EntryKind.FENCE, pb.FenceMeta(key=_key_to_wire(key), kept=kept).SerializeToString()
        case Forget(keys):
            return EntryKind.FORGET, pb.ForgetMeta(keys=[_key_to_wire(key) for key in keys]).SerializeToString()
        case Finish(key, batch_id):
            return EntryKind.FINISH, pb.FinishMeta(key=_key_to_wire(key), batch_id=batch_id).SerializeToString()


def _key(key: pb.TransactionKey) -> TransactionKey:
    return TransactionKey(key.query_id, key.sink)


def _epoch_start(meta: bytes) -> Operation:
    m = pb.EpochStartMeta.FromString(meta)
    return EpochStart(m.broker, m.offset_floor, m.recovery)


def attributes_to_wire(attributes: Attributes) -> pb.BatchAttributes | None:
    """None for the usual ones, which take no bytes."""
    if attributes == USUAL:
        return None
    priority = None if attributes.priority == PRIORITY_USUAL else attributes.priority
    return pb.BatchAttributes(priority=priority, ttl_ms=attributes.ttl_ms)


def attributes_from_wire(told: pb.BatchAttributes) -> Attributes:
    """What `attributes_to_wire` made. Raises `ValueError`."""
    priority = told.priority if told.HasField("priority") else PRIORITY_USUAL
    if priority > PRIORITY_MAX:
        raise ValueError(f"priority {priority} is above {PRIORITY_MAX}")
    if told.ttl_ms > TTL_MS_MAX:
        raise ValueError(f"ttl_ms {told.ttl_ms} is above {TTL_MS_MAX}")
    return Attributes(priority, told.ttl_ms)


def _append(meta: bytes) -> Operation:
    m = pb.AppendMeta.FromString(meta)
    return Append(m.record_uuids, attributes_from_wire(m.attributes))


def _stage(meta: bytes) -> Operation:
    m = pb.StageMeta.FromString(meta)
    return Stage(_key(m.key), m.batch_id, m.run_id, attributes_from_wire(m.attributes), m.owner)


def _publish(meta: bytes) -> Operation:
    m = pb.PublishMeta.FromString(meta)
    return Publish(_key(m.key), m.batch_id, tuple(m.uuids))


def _discard(meta: bytes) -> Operation:
    m = pb.DiscardMeta.FromString(meta)
    return Discard(_key(m.key), tuple(m.uuids))


def _cursor(meta: bytes) -> Operation:
    m = pb.CursorMeta.FromString(meta)
    return MoveCursor(m.group, m.offset, m.kind, m.forward, m.owner)


def _delete_group(meta: bytes) -> Operation:
    return DeleteGroup(pb.DeleteGroupMeta.FromString(meta).group)


def _decide(meta: bytes) -> Operation:
    m = pb.DecideMeta.FromString(meta)
    manifest = tuple(line_from_wire(line) for line in m.manifest)
    return Decide(_key(m.key), m.batch_id, m.run_id, m.row_count, manifest, m.once, m.owner)


def _trim(meta: bytes) -> Operation:
    return Trim(pb.TrimMeta.FromString(meta).log_start_offset)


def _finish(meta: bytes) -> Operation:
    m = pb.FinishMeta.FromString(meta)
    return Finish(_key(m.key), m.batch_id)


def _give(meta: bytes) -> Operation:
    m = pb.GiveMeta.FromString(meta)
    return Give(_key(m.key), m.owner)


def _abort(meta: bytes) -> Operation:
    return Abort(_key(pb.AbortMeta.FromString(meta).key))


def _fence(meta: bytes) -> Operation:
    m = pb.FenceMeta.FromString(meta)
    return Fence(_key(m.key), tuple(m.kept))


def _forget(meta: bytes) -> Operation:
    return Forget(tuple(_key(key) for key in pb.ForgetMeta.FromString(meta).keys))


def _schedule(meta: bytes) -> Operation:
    m = pb.ScheduleMeta.FromString(meta)
    if m.due_us <= 0:
        raise ValueError("it is due at no time")
    return Schedule(m.due_us, attributes_from_wire(m.attributes))


def _carry(meta: bytes) -> Operation:
    if meta:
        raise LaterWork("it has fields that this version does not know")
    return Carry()


_DECODERS: Final[dict[int, Callable[[bytes], Operation]]] = {
    EntryKind.APPEND: Append,
    EntryKind.APPEND_ATTRIBUTED: _append,
    EntryKind.EPOCH_START: _epoch_start,
    EntryKind.STAGE: _stage,
    EntryKind.PUBLISH: _publish,
    EntryKind.DISCARD: _discard,
    EntryKind.CURSOR: _cursor,
    EntryKind.DECIDE: _decide,
    EntryKind.FINISH: _finish,
    EntryKind.TRIM: _trim,
    EntryKind.GIVE: _give,
    EntryKind.ABORT: _abort,
    EntryKind.FENCE: _fence,
    EntryKind.FORGET: _forget,
    EntryKind.DELETE_GROUP: _delete_group,
    EntryKind.WORK: work_from_wire,
    EntryKind.SCHEDULE: _schedule,
    EntryKind.CARRY: _carry,
}


def _decode_operation(kind: int, meta: bytes) -> Operation:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise NewerFrame(f"an entry is of kind {kind}, which this version does not know: {_UPGRADE}")
    try:
        return decoder(meta)
    except LaterWork as error:
        raise NewerFrame(f"an entry of kind {kind} cannot be read ({error}): {_UPGRADE}") from error
    except (DecodeError, ValueError) as error:
        raise CorruptBatch(f"an entry of kind {kind} cannot be read ({error}): send it again") from error
