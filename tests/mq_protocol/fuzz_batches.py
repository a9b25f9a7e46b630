"""Seeded mutations of valid payloads against `check_untrusted`. Run as `python fuzz_batches.py SEED CASES`, in a
process of its own: what it looks for is a crash.

Prints the number of cases accepted and refused; on anything but an accepted batch or one of the three errors, the seed
and case.
"""

from __future__ import annotations

import decimal
import faulthandler
import random
import struct
import sys
from datetime import UTC, datetime

import pyarrow as pa

from mq_protocol.arrow import RECORD_SCHEMA, check_untrusted, decode_batch, encode_batch
from mq_protocol.errors import BatchTooLarge, CorruptBatch, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema

TYPED = parse_schema(
    "a long, b string NOT NULL, c array<int>, d struct<x: double NOT NULL, y: string>, e map<string,array<string>>, "
    "f decimal(10,2), g timestamp, h boolean, i date"
)
MOMENT = datetime(2013, 1, 1, 5, 17, tzinfo=UTC)
INTERESTING = (
    0,
    1,
    -1,
    2,
    7,
    8,
    255,
    256,
    2**15,
    2**16,
    2**31 - 1,
    -(2**31),
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
    268_435_456,
)


def seeds() -> list[tuple[bytes, pa.Schema, int]]:
    records = [
        {
            "key": None if i % 3 else b"k%d" % i,
            "value": b"v" * i,
            "headers": [{"key": "h", "value": b"x"}] * (i % 3),
            "timestamp": MOMENT,
        }
        for i in range(20)
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
        for i in range(20)
    ]
    found = []
    for data, schema in ((records, RECORD_SCHEMA), (rows, TYPED)):
        batch = pa.RecordBatch.from_pylist(data, schema)
        found += [(bytes(encode_batch(batch, codec)), schema, len(data)) for codec in (None, "lz4", "zstd")]
    return found


def mutate(payload: bytes, random_: random.Random) -> bytes:
    data = bytearray(payload)
    metadata_bytes = 8 + struct.unpack_from("<i", payload, 4)[0]
    for _ in range(random_.choice((1, 1, 1, 1, 2, 8))):
        # Half of the mutations hit the metadata, where lengths and places are.
        at = random_.randrange(metadata_bytes if random_.random() < 0.5 else len(data)) if data else 0
        match random_.choice((0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5)):
            case 0:
                data[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                data[at : at + 1] = bytes([(data[at] if at < len(data) else 0) ^ 1 << random_.randrange(8)])
            case 2:
                width, code = random_.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
                at -= at % width
                data[at : at + width] = struct.pack(code, random_.choice(INTERESTING) & (1 << 8 * width) - 1)
            case 3:
                del data[at : at + random_.randrange(1, 64)]
            case 4:
                data[at:at] = random_.randbytes(random_.randrange(1, 64))
            case 5:
                there = random_.randrange(len(data) or 1)
                data[at : at + 16] = data[there : there + 16]
    return bytes(data)


def main(seed: int, cases: int) -> None:
    faulthandler.enable()
    random_ = random.Random(seed)
    valid = seeds()
    accepted = refused = 0
    for case in range(cases):
        payload, schema, count = random_.choice(valid)
        mutated = mutate(payload, random_)
        try:
            check_untrusted(
                memoryview(mutated), schema, batch_bytes_max=1 << 20, decoded_bytes_max=1 << 20, record_count=count
            )
        except (BatchTooLarge, CorruptBatch, SchemaMismatch):
            refused += 1
            continue
        except BaseException:
            print(f"fuzz_batches.py {seed}: case {case}", flush=True)
            raise
        # What was accepted must be safe to use: each value is read, copied and written. (No to_pylist: Python's dates
        # end in 9999.)
        batch = decode_batch(mutated, schema)
        encode_batch(batch.take(pa.array(range(batch.num_rows))), "zstd")
        accepted += 1
    print(f"accepted {accepted}, refused {refused}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
