"""The part of a stored batch that a read wants, cut out of what a broker sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mq_client.cluster.connection import TopicView
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch


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


def cut(stored: pb.StoredBatch, payload: memoryview, position: int, end: int, wanted: Wanted) -> StoredSlice | None:
    """The part of a stored batch within `position .. end - 1`; None if it is not what its description says."""
    base, upto = stored.base_offset, min(stored.base_offset + stored.record_count, end)
    skip, take = position - base, upto - position
    if skip < 0:
        return None
    if not stored.HasField("kept"):
        batch = decode_batch(payload, wanted.schema, wanted.kept)
        if batch.num_rows != stored.record_count:
            return None
        share = stored.payload_bytes * max(0, take) // stored.record_count
        rows = batch.slice(skip, max(0, take)) if take < batch.num_rows else batch
        return StoredSlice(position, upto, stored.timestamp_us, rows, sent_bytes=share)
    kept = np.unpackbits(np.frombuffer(stored.kept, dtype=np.uint8), bitorder="little")
    offsets = base + np.flatnonzero(kept).astype(np.int64)
    if len(offsets):
        batch = decode_batch(payload, wanted.schema, wanted.kept)
    else:
        batch = pa.RecordBatch.from_pylist([], schema=wanted.schema).select(wanted.kept or wanted.schema.names)
    if batch.num_rows != len(offsets) or (len(offsets) and not position <= offsets[0] <= offsets[-1] < upto):
        return None
    return StoredSlice(position, upto, stored.timestamp_us, batch, offsets, stored.payload_bytes)


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
