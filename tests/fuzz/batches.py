"""Batches as a stranger sends them: Arrow's messages, plain and compressed, altered, first of all where lengths and
places are. What is accepted must be safe to use."""

from __future__ import annotations

import decimal
import random
import struct
from datetime import UTC, datetime

import pyarrow as pa

from mq_protocol.arrow import RECORD_SCHEMA, check_untrusted, decode_batch, decode_untrusted, encode_batch
from mq_protocol.errors import BatchTooLarge, CorruptBatch, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.wire.ipc_message import codec_of, node_count, read_record_batch_message
from tests.fuzz.altering import altered

TYPED = parse_schema(
    "a long, b string NOT NULL, c array<int>, d struct<x: double NOT NULL, y: string>, e map<string,array<string>>, "
    "f decimal(10,2), g timestamp, h boolean, i date"
)
MOMENT = datetime(2013, 1, 1, 5, 17, tzinfo=UTC)
ROWS = 20
BYTES_MAX = 1 << 20


def _whole() -> list[list[bytes]]:
    """By schema, for each codec."""
    records = [
        {
            "key": None if i % 3 else b"k%d" % i,
            "value": b"v" * i,
            "headers": [{"key": "h", "value": b"x"}] * (i % 3),
            "timestamp": MOMENT,
        }
        for i in range(ROWS)
    ]
    rows = [
        {
            "a": i,
            "b": "é" * i,
            "c": None if i % 5 == 0 else [i, None],
            "d": {"x": 1.5, "y": None} if i % 2 else None,
            "e": [("k", ["v", None])] if i % 4 else None,
            "f": decimal.Decimal("1.20"),
            "g": MOMENT,
            "h": bool(i % 2),
            "i": MOMENT.date(),
        }
        for i in range(ROWS)
    ]
    return [
        [bytes(encode_batch(pa.RecordBatch.from_pylist(data, schema), codec)) for codec in (None, "lz4", "zstd")]
        for data, schema in ((records, RECORD_SCHEMA), (rows, TYPED))
    ]


_WHOLE = _whole()


def generate(chance: random.Random) -> bytes:
    number = chance.randrange(2)
    payload = chance.choice(_WHOLE[number])
    metadata_bytes = 8 + struct.unpack_from("<i", payload, 4)[0]
    return bytes([number]) + altered(payload, chance, within=metadata_bytes)


def check(data: bytes) -> bool:
    """The first byte says of which schema it is to be."""
    if not data:
        return False
    schema, payload = (RECORD_SCHEMA, TYPED)[data[0] % 2], data[1:]
    try:
        count = read_record_batch_message(memoryview(payload)).record_count
    except CorruptBatch:
        count = ROWS
    try:
        check_untrusted(
            memoryview(payload), schema, batch_bytes_max=BYTES_MAX, decoded_bytes_max=BYTES_MAX, record_count=count
        )
    except (BatchTooLarge, CorruptBatch, SchemaMismatch):
        return False
    # Each value is read, copied and written. (No to_pylist: Python's dates end in 9999.)
    batch = decode_batch(payload, schema)
    batch.validate(full=True)  # Arrow's own check finds nothing that ours has passed over
    assert batch.num_rows == count
    assert decode_untrusted(memoryview(payload), schema, count).num_rows == count
    some = decode_untrusted(memoryview(payload), schema, count, schema.names[1:3])
    assert some.schema.names == schema.names[1:3]
    encode_batch(batch.take(pa.array(range(batch.num_rows))), "zstd")
    node_count(memoryview(payload))
    codec_of(memoryview(payload))
    return True
