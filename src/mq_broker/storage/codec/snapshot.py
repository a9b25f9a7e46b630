"""A snapshot as bytes: what stands before a journal that does not begin with entry 1, on disk and on its way to a
follower.

    crc32c u32 | magic 3 bytes, version u8 | body_bytes u64     16 bytes, little-endian; then the body

The checksum starts from the place, as a frame's does (frame.py), and covers all after itself: a snapshot in another
partition's directory fails as a damaged one does.

The body of version 1 is parts, each a u32 (its size in bytes) and a protobuf message: first a `SnapshotState`, then as
many `WorkPart` as it says, then `PlacedUuids` of up to 1,024 UUIDs each, the oldest first. UUIDs are written by columns
and as steps from one to the next: about 23 bytes each, 16 of which are the UUID. Version 2 is one that is sealed, in
the data directory alone (sealed.py).

Both directions run in a thread. They go part by part, and let other threads run between two: the event loop of a broker
then waits for the time of one part, not for that of 100,000 UUIDs.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from mq_broker.core.entries import TransactionKey
from mq_broker.core.machine.state import Cursor, MachineState, Snapshot, StagedBatch, TransactionState
from mq_broker.core.machine.window import Columns, Placed, SeenUuids
from mq_broker.core.work.state import FrozenGroups
from mq_broker.storage.codec.frame import Place, attributes_from_wire, attributes_to_wire
from mq_broker.storage.codec.work import LaterWork, groups_from_wire, groups_to_wire
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.manifest_lines import line_from_wire, line_to_wire
from mq_protocol.wire.envelope import Buffer

FILE_NAME: Final = "snapshot"

_MAGIC: Final = b"TSn"
_VERSION: Final = 1
_PART: Final = struct.Struct("<I")
_CRC_SLICE_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.0002
_PART_BYTES: Final = 1 << 10  # of parts between two pauses: 256 empty ones, about 0.3 ms
_AT_A_TIME: Final = 128  # UUIDs put into a window between two pauses: about a millisecond
_HEADER: Final = struct.Struct("<I3sBQ")
_CRC_BYTES: Final = 4
_UUID_BYTES: Final = 16


class NewerSnapshot(StorageFailed):
    """It is whole, and of a version that this program does not know: nothing is wrong with the disk."""


def encode_snapshot(place: Place, snapshot: Snapshot) -> bytes:
    """The bytes, about 2.3 MB for 100,000 UUIDs. Takes some 0.1 s for those: do it in a thread."""
    state = snapshot.state
    work = list(groups_to_wire(state.work))
    message = pb.SnapshotState(
        last_index=snapshot.last_index,
        last_epoch=snapshot.last_epoch,
        timestamp_us=snapshot.timestamp_us,
        next_offset=state.next_offset,
        log_start_offset=state.log_start_offset,
        staged=[_staged_to_wire(batch) for batch in state.staged],
        published=[pb.PublishedState(key=_key_to_wire(key), batch_id=batch_id) for key, batch_id in state.published],
        cursors=[
            pb.CursorState(group=group, offset=c.offset, kind=c.kind, moved_us=c.moved_us, owner=c.owner)
            for group, c in state.cursors
        ],
        transactions=[_transaction_to_wire(key, transaction) for key, transaction in state.transactions],
        fenced=[_key_to_wire(key) for key in state.fenced],
        work_parts=len(work),
    )
    body = bytearray()
    for part in chain((message,), work, map(_uuids_to_wire, state.uuids.columns())):
        written = part.SerializeToString()
        body += _PART.pack(len(written))
        body += written
        _let_others_run()
    header = _HEADER.pack(0, _MAGIC, _VERSION, len(body))[_CRC_BYTES:]
    crc = checksum_of(place, (header, body))
    return b"".join((crc.to_bytes(_CRC_BYTES, "little"), header, body))


def decode_snapshot(place: Place, data: Buffer) -> Snapshot:
    """The snapshot that `data` is.

    Raises `CorruptBatch` if it is damaged, cut off, or of another partition; `NewerSnapshot` if it is of a newer
    version.
    """
    data = memoryview(data)
    if len(data) < _HEADER.size:
        raise CorruptBatch(f"a snapshot is cut off after {len(data)} bytes: it is to be sent or written again")
    crc, magic, version, body_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEADER.size + body_bytes or checksum_of(place, (data[_CRC_BYTES:],)) != crc:
        raise CorruptBatch(f"the checksum of a snapshot of {place} does not hold: damaged, or of another partition")
    if version != _VERSION:
        raise NewerSnapshot(
            f"a snapshot of {place} is of format {version}, not {_VERSION}: bring every broker to the newest version"
        )
    try:
        parts = _parts(data[_HEADER.size :])
        message = pb.SnapshotState.FromString(bytes(next(parts)))
        work = groups_from_wire(map(pb.WorkPart.FromString, map(bytes, islice(parts, message.work_parts))))
        windows = map(pb.PlacedUuids.FromString, map(bytes, parts))
        return _from_wire(
            message, SeenUuids.of(_unhurried(pair for window in windows for pair in _uuids_from_wire(window))), work
        )
    except LaterWork as error:
        raise NewerSnapshot(f"a snapshot of {place} cannot be read ({error}): start the newest version") from error
    except (DecodeError, ValueError, OverflowError) as error:
        raise CorruptBatch(
            f"a snapshot of {place} cannot be read ({error}): it is to be sent or written again"
        ) from error


def read_snapshot_file(directory: Path) -> bytes | None:
    """The bytes of the snapshot kept in a partition's directory; None if there is none. Raises `OSError`."""
    try:
        return (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None


def checksum_of(place: Place, pieces: Iterable[Buffer]) -> int:
    """Of the pieces one after another. Lets other threads run in between."""
    crc = place.seed
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), _CRC_SLICE_BYTES):
            crc = int(google_crc32c.extend(crc, bytes(view[at : at + _CRC_SLICE_BYTES])))
            _let_others_run()
    return crc


def _parts(body: memoryview) -> Iterator[memoryview]:
    """Raises `ValueError` where a part runs past the end, and if there is none. Pauses go by bytes, not by parts: a
    neighbour that means harm sends millions of empty ones."""
    at = paused = 0
    while at < len(body) or not at:
        if at + _PART.size > len(body):
            raise ValueError("it ends within a part")
        (size,) = _PART.unpack_from(body, at)
        at += _PART.size + size
        if at > len(body):
            raise ValueError("a part runs past its end")
        yield body[at - size : at]
        if at - paused >= _PART_BYTES:
            _let_others_run()
            paused = at


def _unhurried(pairs: Iterable[tuple[bytes, Placed]]) -> Iterator[tuple[bytes, Placed]]:
    for number, pair in enumerate(pairs, 1):
        yield pair
        if number % _AT_A_TIME == 0:
            _let_others_run()


def _let_others_run() -> None:
    """A thread that computes gives way to the event loop only every 5 ms, unless it sleeps."""
    time.sleep(_PAUSE_S)


# ------------------------------------------------------------------ to the wire


def _uuids_to_wire(columns: Columns) -> pb.PlacedUuids:
    return pb.PlacedUuids(
        uuids=columns.uuids,
        index_step=_steps(columns.indexes),
        base_offset_step=_steps(columns.base_offsets),
        timestamp_us_step=_steps(columns.timestamps_us),
    )


def _steps(values: Iterable[int]) -> Iterator[int]:
    return (after - before for before, after in pairwise(chain((0,), values)))


def _key_to_wire(key: TransactionKey) -> pb.TransactionKey:
    return pb.TransactionKey(query_id=key.query_id, sink=key.sink)


def _staged_to_wire(batch: StagedBatch) -> pb.StagedBatchState:
    return pb.StagedBatchState(
        uuid=batch.uuid,
        key=_key_to_wire(batch.key),
        batch_id=batch.batch_id,
        run_id=batch.run_id,
        row_count=batch.row_count,
        index=batch.index,
        timestamp_us=batch.timestamp_us,
        payload_bytes=batch.payload_bytes,
        decoded_bytes=batch.decoded_bytes,
        due_us=batch.due_us,
        attributes=attributes_to_wire(batch.attributes),
        owner=batch.owner,
    )


def _transaction_to_wire(key: TransactionKey, transaction: TransactionState) -> pb.TransactionStateMeta:
    return pb.TransactionStateMeta(
        key=_key_to_wire(key),
        batch_id=transaction.batch_id,
        run_id=transaction.run_id,
        row_count=transaction.row_count,
        manifest=[line_to_wire(line) for line in transaction.manifest],
        finished=transaction.finished,
        superseded=transaction.superseded,
        once=transaction.once,
        aborted=transaction.aborted,
        changed_us=transaction.changed_us,
        owner=transaction.owner,
    )


# ------------------------------------------------------------------ from the wire


def _from_wire(message: pb.SnapshotState, uuids: SeenUuids, work: FrozenGroups) -> Snapshot:
    return Snapshot(
        message.last_index,
        message.last_epoch,
        message.timestamp_us,
        MachineState(
            message.next_offset,
            message.log_start_offset,
            uuids,
            tuple(_staged_from_wire(batch) for batch in message.staged),
            tuple((_key(line.key), line.batch_id) for line in message.published),
            tuple((line.group, Cursor(line.offset, line.kind, line.moved_us, line.owner)) for line in message.cursors),
            tuple((_key(line.key), _transaction_from_wire(line)) for line in message.transactions),
            tuple(_key(key) for key in message.fenced),
            work,
        ),
    )


def _uuids_from_wire(message: pb.PlacedUuids) -> Iterator[tuple[bytes, Placed]]:
    """Raises `ValueError` if the columns are not of one length."""
    joined = message.uuids  # each access copies
    uuids = [joined[at : at + _UUID_BYTES] for at in range(0, len(joined), _UUID_BYTES)]
    columns = (message.index_step, message.base_offset_step, message.timestamp_us_step)
    placed = map(Placed, *(accumulate(column) for column in columns))
    if any(len(column) != len(uuids) for column in columns):
        raise ValueError("its columns of UUIDs are not of one length")
    return zip(uuids, placed, strict=True)


def _staged_from_wire(batch: pb.StagedBatchState) -> StagedBatch:
    return StagedBatch(
        batch.uuid,
        _key(batch.key),
        batch.batch_id,
        batch.run_id,
        batch.row_count,
        batch.index,
        batch.timestamp_us,
        batch.payload_bytes,
        batch.decoded_bytes,
        batch.due_us,
        attributes_from_wire(batch.attributes),
        batch.owner,
    )


def _transaction_from_wire(line: pb.TransactionStateMeta) -> TransactionState:
    return TransactionState(
        line.batch_id,
        line.run_id,
        line.row_count,
        tuple(line_from_wire(staged) for staged in line.manifest),
        line.finished,
        tuple(line.superseded),
        once=line.once,
        aborted=line.aborted,
        changed_us=line.changed_us,
        owner=line.owner,
    )


def _key(key: pb.TransactionKey) -> TransactionKey:
    return TransactionKey(key.query_id, key.sink)
