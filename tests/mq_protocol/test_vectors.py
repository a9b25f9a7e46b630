"""What clients in every language must agree on with this one is in files beside this test, which their tests read too.

`python -m tests.mq_protocol.test_vectors` writes the files anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_fingerprint, schema_to_bytes
from mq_protocol.partitioner import murmur2, partition_for_key
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.wire.error_messages import from_wire

VECTORS = Path(__file__).parent / "vectors"

KEYS = [b"", b"a", b"ab", b"abc", b"21", b"foobar", "käse".encode(), b"\xff" * 7, bytes(range(256))]

COLUMNS = [
    "n long",
    "n long not null, größe string",
    "a boolean, b byte, c short, d int, e long, f float, g double, h string, i binary, j date, k timestamp",
    "l timestamp_ntz, m decimal(10,2), n decimal(38,0)",
    "o array<int>, p array<struct<q:string,r:array<double>>>, s map<string,long>, t struct<u:int,v:map<int,date>>",
]


def murmur2_vectors() -> list[dict[str, Any]]:
    return [{"key": k.hex(), "murmur2": murmur2(k), "partitions": {"7": partition_for_key(k, 7)}} for k in KEYS]


def error_vectors() -> list[dict[str, Any]]:
    messages = [pb.Error(code=code, message=f"{name}: why") for name, code in pb.ErrorCode.items() if code]
    messages.append(pb.Error(code=pb.NOT_LEADER, message="é", leader=3, leader_epoch=7))
    messages.append(pb.Error(code=pb.OFFSET_OUT_OF_RANGE, next_offset=0))
    messages.append(pb.Error(code=pb.OVERLOADED, retry_after_ms=250))
    found = []
    for message in messages:
        error = from_wire(message)
        found.append(
            {
                "code": pb.ErrorCode.Name(message.code),
                "message": message.message,
                "wire": message.SerializeToString(deterministic=True).hex(),
                "retriable": error.retriable,
                "definite": error.definite,
                "leader": message.leader,
                "next_offset": message.next_offset if message.HasField("next_offset") else -1,
            }
        )
    return found


def fingerprint_vectors() -> list[dict[str, Any]]:
    schemas = {"": RECORD_SCHEMA, **{columns: parse_schema(columns) for columns in COLUMNS}}
    return [
        {
            "columns": columns,
            "schema": schema_to_bytes(schema).hex(),
            "fingerprint": f"{schema_fingerprint(schema):016x}",
        }
        for columns, schema in schemas.items()
    ]


MADE = {"murmur2": murmur2_vectors, "errors": error_vectors, "fingerprints": fingerprint_vectors}


@pytest.mark.parametrize("name", MADE)
def test_the_files_say_what_this_client_does(name: str) -> None:
    assert json.loads((VECTORS / f"{name}.json").read_text()) == MADE[name]()


if __name__ == "__main__":
    for name, made in MADE.items():
        (VECTORS / f"{name}.json").write_text(json.dumps(made(), indent=1, ensure_ascii=False) + "\n")
