"""Schemas as a stranger sends them: Arrow's own messages of schemas with every type, some of their bytes altered."""

from __future__ import annotations

import random

import pyarrow as pa

from mq_protocol.arrow import schema_fingerprint, schema_from_bytes, schema_nodes, schema_to_bytes
from mq_protocol.errors import CorruptBatch, InvalidRequest, SchemaMismatch
from mq_protocol.sql.ddl import check_column_names, check_schema, format_schema, parse_schema
from mq_protocol.sql.evolution import check_extension, versions

_STORABLE = parse_schema(
    "flag boolean, tiny byte, id int NOT NULL, big long, single float, price decimal(8,2), carrier string, raw binary, "
    "day date, at timestamp, plain timestamp_ntz, many array<int>, pairs map<string,decimal(5,1)>, inner struct<x: "
    "double, y: array<string>>"
)
_OTHER = (
    pa.uint64(),
    pa.float16(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(4),
    pa.timestamp("ns", tz="Europe/Berlin"),
    pa.time64("ns"),
    pa.duration("s"),
    pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.int8(), 3),
    pa.large_list(pa.null()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    pa.decimal256(70, 3),
    pa.month_day_nano_interval(),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.fixed_shape_tensor(pa.int8(), [2, 2], dim_names=["a", "b"]),
    pa.opaque(pa.int8(), "name", "vendor"),
)
_INTERESTING = (0, 1, 2, 7, 8, 127, 128, 254, 255)
_METADATA = {b"ARROW:extension:name": b"arrow.fixed_shape_tensor", b"ARROW:extension:metadata": b'{"shape":[2,'}


def generate(chance: random.Random) -> bytes:
    fields = list(_STORABLE) if chance.random() < 0.6 else []
    for number in range(chance.randrange(3)):
        fields.append(pa.field(chance.choice(("a", "é", "x" * 300, "A", "")) + str(number), chance.choice(_OTHER)))
    deep: pa.DataType = pa.int8()
    for _ in range(chance.choice((0, 0, 0, 1, 31, 40, 63, 70))):
        deep = chance.choice(
            (pa.list_, lambda kind: pa.struct([pa.field("s", kind)]), lambda kind: pa.map_(pa.string(), kind))
        )(deep)
    fields.append(pa.field("deep", deep, metadata=_METADATA if chance.random() < 0.05 else None))
    data = bytearray(pa.schema(fields).serialize().to_pybytes())
    if chance.random() < 0.7:
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] ^= 1 << chance.randrange(8)
                case 1:
                    data[at] = chance.choice(_INTERESTING)
                case 2:
                    data[at : at + 4] = chance.choice((0, 1, -1, 2**31 - 1, -(2**31), len(data))).to_bytes(
                        4, "little", signed=True
                    )
                case _:
                    del data[at : at + chance.choice((1, 4, 8, len(data)))]
            if not data:
                break
    return bytes(data)


def check(data: bytes) -> bool:
    try:
        schema = schema_from_bytes(data)
        stored = check_schema(schema)
        check_column_names(stored)
    except (CorruptBatch, InvalidRequest, SchemaMismatch):
        return False
    again = schema_from_bytes(schema_to_bytes(stored))
    assert again == stored
    assert schema_fingerprint(again) == schema_fingerprint(stored)
    assert schema_nodes(stored) >= len(stored)
    assert parse_schema(format_schema(stored)) == stored
    check_extension("t", versions(stored, (1,))[-1], stored) if all(field.nullable for field in stored) else None
    return True
