"""What a reader does not want, left out before it is sent: columns, and rows that a filter does not keep.

A projection copies the wanted columns' buffers from one Arrow message into another and decodes no row (a compressed
batch is decompressed, those columns alone, and compressed again). A filter decodes its own columns and the wanted ones.
Synchronous: fetch.py calls it in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from mq_broker.core.messages import Published
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch, schema_nodes
from mq_protocol.errors import InvalidRequest, SchemaMismatch
from mq_protocol.limits import NAME_CHARACTERS_MAX
from mq_protocol.names import did_you_mean, quoted
from mq_protocol.sql.row_filter import parse_filter
from mq_protocol.wire.envelope import Buffer
from mq_protocol.wire.ipc_message import codec_of, node_count

TURN_S: Final = 1.0
TURN_DECODED_BYTES_MAX: Final = 256 << 20
"""After so much a fetch that wants columns or rows sends what it has, and others who want them have their turn."""


def stored(batch: Published) -> pb.StoredBatch:
    """How a batch is described beside its payload."""
    return pb.StoredBatch(
        base_offset=batch.base_offset,
        record_count=batch.record_count,
        timestamp_us=batch.timestamp_us,
        payload_bytes=batch.payload_bytes,
    )


class Pushdown:
    """Owns what one Fetch asked for, checked once. Raises `SchemaMismatch`, `InvalidSetting` or `InvalidRequest`.
    `clock`: seconds that only go forward.

    Of a batch of a former version of the schema, columns that it lacks are null, for the filter too.
    """

    def __init__(
        self, schema: pa.Schema, request: pb.FetchRequest, *, typed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if request.filter and not typed:
            raise InvalidRequest(
                f"filter needs a topic with columns of its own, and {request.topic} holds records: "
                "leave it out, and use .filter(...) on the DataFrame"
            )
        self._schema, self._clock = schema, clock
        self._nodes = schema_nodes(schema)
        self._columns = _columns(schema, request) if request.project else list(schema.names)
        self._filter = parse_filter(request.filter, schema) if request.filter else None
        self._start, self._end = request.start_offset, request.end_offset

    def knows(self, batches: Sequence[tuple[Published, memoryview]]) -> bool:
        """Whether the schema has all columns of these batches: one that was read before columns were added has not."""
        return all(node_count(payload) <= self._nodes for _, payload in batches)

    def apply(self, batches: Sequence[tuple[Published, memoryview]]) -> list[tuple[pb.StoredBatch, Buffer]]:
        """What is sent of the first of these batches, at least of one, and how each is described: as many as `TURN_S`
        and `TURN_DECODED_BYTES_MAX` allow. A small batch may become a thousand times as large when it is
        decompressed."""
        applied: list[tuple[pb.StoredBatch, Buffer]] = []
        began, decoded = self._clock(), 0
        for batch, payload in batches:
            decoded += batch.decoded_bytes
            if applied and (decoded > TURN_DECODED_BYTES_MAX or self._clock() - began > TURN_S):
                break
            applied.append(self._apply(batch, payload))
        return applied

    def _apply(self, batch: Published, payload: memoryview) -> tuple[pb.StoredBatch, Buffer]:
        described = stored(batch)
        codec = codec_of(payload)
        if self._filter is None:
            sent: Buffer = memoryview(encode_batch(decode_batch(payload, self._schema, self._columns), codec))
        else:
            kept = self._kept(batch, decode_batch(payload, self._schema, self._filter.columns))
            described.kept = np.packbits(kept, bitorder="little").tobytes()
            sent = b""
            if kept.any():
                rows = decode_batch(payload, self._schema, self._columns)
                sent = memoryview(encode_batch(rows.filter(pa.array(kept)), codec))
        described.payload_bytes = len(sent)
        return described, sent

    def _kept(self, batch: Published, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        assert self._filter is not None
        kept = np.array(self._filter.mask(rows).to_numpy(zero_copy_only=False), dtype=np.bool_)
        kept[: max(0, self._start - batch.base_offset)] = False
        kept[max(0, self._end - batch.base_offset) :] = False
        return kept


def _columns(schema: pa.Schema, request: pb.FetchRequest) -> list[str]:
    columns, known = list(request.columns), set(schema.names)
    for name in columns:
        if name not in known:
            near = did_you_mean(name, known) if len(name) <= NAME_CHARACTERS_MAX else ""
            raise SchemaMismatch(f"topic {request.topic} has no column {quoted(name)}{near}")
    if len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns name one of {', '.join(columns[:10])} twice: name each once")
    return columns
