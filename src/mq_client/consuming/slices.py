"""What a broker sent of stored batches, checked, and the part of it that a read wants. Pure.

Nothing that a broker says is taken for true: a batch is decoded only here, and by `decode_untrusted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_client.cluster.connection import TopicView
from mq_client.errors import BatchTooLarge, CorruptBatch, InvalidRequest, SchemaMismatch
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_untrusted
from mq_protocol.wire.envelope import split


class StoredSlice(NamedTuple):
    """Rows of one stored batch, of the offsets `base_offset .. end_offset - 1`, in order. `timestamp_us`: the broker's
    clock when it was appended. `offsets`: of each row, if a filter has kept only some of them (perhaps none); None: all
    are there. `sent_bytes`: these rows' share of what the broker sent.
    """

    base_offset: int
    end_offset: int
    timestamp_us: int
    batch: pa.RecordBatch
    offsets: NDArray[np.int64] | None = None
    sent_bytes: int = 0


class Wanted(NamedTuple):
    """What the broker is asked to send of each row, and what is kept of that: None is everything. `schema`: of what
    comes."""

    columns: tuple[str, ...] | None
    filter: str
    schema: pa.Schema
    kept: tuple[str, ...] | None


def wanted_of(view: TopicView, columns: Sequence[str] | None, filter_text: str) -> Wanted:
    """A projection costs the broker a copy of what it sends: it is asked for one only if that leaves out something
    worth it, which a record's empty headers beside its value are not.
    """
    if columns is None:
        return Wanted(None, filter_text, view.schema, None)
    missing = [name for name in view.schema.names if name not in columns]
    if not missing or (not view.typed and "value" in columns):
        return Wanted(None, filter_text, view.schema, tuple(columns))
    return Wanted(tuple(columns), filter_text, pa.schema([view.schema.field(name) for name in columns]), None)


def payloads_of(batches: Iterable[pb.StoredBatch], payload: memoryview) -> list[memoryview]:
    """Each batch's part of the payload. Raises `CorruptBatch` if they are not exactly all of it."""
    try:
        return split(payload, (stored.payload_bytes for stored in batches))
    except InvalidRequest as error:
        raise CorruptBatch(f"a broker's message is not what it says: {error}") from error


def rows_sent(
    stored: pb.StoredBatch,
    payload: memoryview,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    count: int | None = None,
) -> pa.RecordBatch:
    """The rows that were sent of a stored batch; `count`: how many, if not all. Raises `CorruptBatch`."""
    try:
        return decode_untrusted(payload, schema, stored.record_count if count is None else count, columns)
    except (BatchTooLarge, CorruptBatch, SchemaMismatch) as error:
        raise CorruptBatch(
            f"what a broker sent of the batch at offset {stored.base_offset} is no use: {error}"
        ) from error


def cut(stored: pb.StoredBatch, payload: memoryview, position: int, end: int, wanted: Wanted) -> StoredSlice:
    """The part of a stored batch within `position .. end - 1`; `position` is one of its offsets. Raises `CorruptBatch`
    if it is not what its description says, or not what was asked for."""
    base, upto = stored.base_offset, min(stored.base_offset + stored.record_count, end)
    skip, take = position - base, upto - position
    if not 0 <= skip < stored.record_count <= limits.BATCH_RECORDS_MAX:
        raise CorruptBatch(
            f"a broker sent a batch of {stored.record_count} records at offset {base}, and {position} was asked for"
        )
    if not stored.HasField("kept"):
        batch = rows_sent(stored, payload, wanted.schema, wanted.kept)
        share = stored.payload_bytes * max(0, take) // stored.record_count
        rows = batch.slice(skip, max(0, take)) if take < batch.num_rows else batch
        return StoredSlice(position, upto, stored.timestamp_us, rows, sent_bytes=share)
    offsets = base + _places_kept(stored)
    if len(offsets):
        batch = rows_sent(stored, payload, wanted.schema, wanted.kept, len(offsets))
    else:
        batch = pa.RecordBatch.from_pylist([], schema=wanted.schema).select(wanted.kept or wanted.schema.names)
    if len(offsets) and not position <= offsets[0] <= offsets[-1] < upto:
        raise CorruptBatch(
            f"a broker sent the rows {offsets[0]} to {offsets[-1]}, and of {position} to {upto - 1} was asked"
        )
    return StoredSlice(position, upto, stored.timestamp_us, batch, offsets, stored.payload_bytes)


def _places_kept(stored: pb.StoredBatch) -> NDArray[np.int64]:
    """The places in the stored batch of the rows that a filter has kept."""
    if len(stored.kept) * 8 >= stored.record_count + 8:
        raise CorruptBatch(
            f"a broker tells of {len(stored.kept) * 8} rows what became of them, of a batch of {stored.record_count}"
        )
    kept = np.unpackbits(np.frombuffer(stored.kept, dtype=np.uint8), bitorder="little")
    return np.flatnonzero(kept).astype(np.int64)


def up_to_bytes(pieces: Iterator[StoredSlice], bytes_max: int) -> Iterator[StoredSlice]:
    """The first rows, as many as `bytes_max` of what is sent are enough for, but at least one. Ends the stream of
    pieces."""
    left, given = bytes_max, False
    for piece in pieces:
        rows = piece.batch.num_rows
        fit = rows if piece.sent_bytes <= left else left * rows // piece.sent_bytes
        if rows and not given:
            fit = max(1, fit)
        if fit < rows:
            if fit:
                yield _first_rows(piece, fit)
            return
        yield piece
        given = given or rows > 0
        left = max(0, left - piece.sent_bytes)  # the first record may be larger than all that is allowed


def _first_rows(piece: StoredSlice, rows: int) -> StoredSlice:
    kept = None if piece.offsets is None else piece.offsets[:rows]
    end = piece.base_offset + rows if kept is None else int(kept[-1]) + 1
    return piece._replace(end_offset=end, batch=piece.batch.slice(0, rows), offsets=kept)
