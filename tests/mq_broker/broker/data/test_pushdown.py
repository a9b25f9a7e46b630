"""What a fetch leaves out: columns and rows, batch by batch, compressed as they were stored."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_broker.broker.data.pushdown import TURN_DECODED_BYTES_MAX, TURN_S, Pushdown
from mq_broker.core.messages import Published
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch, encode_batch
from mq_protocol.errors import InvalidRequest, InvalidSetting, SchemaMismatch
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.wire.ipc_message import read_record_batch_message

SCHEMA = parse_schema("n long, text string, many array<int>")
ROWS = pa.RecordBatch.from_pylist([{"n": n, "text": f"{n:0100}", "many": [n] * 5} for n in range(10)], schema=SCHEMA)


def pushed(start: int = 0, end: int = 1_000, codec: str | None = None, **wanted: Any) -> tuple[pb.StoredBatch, bytes]:
    """What becomes of `ROWS`, stored from offset 100 on."""
    request = pb.FetchRequest(topic="t", start_offset=start, end_offset=end, **wanted)
    payload = memoryview(encode_batch(ROWS, codec))
    stored = Published(
        index=7, base_offset=100, record_count=10, timestamp_us=5, payload_bytes=len(payload), decoded_bytes=0
    )
    ((described, sent),) = Pushdown(SCHEMA, request, typed=True).apply([(stored, payload)])
    assert described.payload_bytes == len(sent)
    assert (described.base_offset, described.record_count, described.timestamp_us) == (100, 10, 5)
    return described, bytes(sent)


def offsets(described: pb.StoredBatch) -> list[int]:
    bits = np.unpackbits(np.frombuffer(described.kept, dtype=np.uint8), bitorder="little")
    return [int(100 + at) for at in np.flatnonzero(bits)]


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_a_projection_has_the_columns_asked_for_in_that_order_and_the_stored_compression(codec: str | None) -> None:
    described, sent = pushed(codec=codec, columns=["many", "n"], project=True)
    assert not described.HasField("kept")
    schema = pa.schema([SCHEMA.field("many"), SCHEMA.field("n")])
    assert decode_batch(sent, schema).to_pylist() == [{"many": [n] * 5, "n": n} for n in range(10)]
    assert read_record_batch_message(memoryview(sent)).codec == codec
    assert len(sent) < len(encode_batch(ROWS, codec))


def test_a_filter_keeps_rows_within_the_offsets_asked_for_and_says_which() -> None:
    described, sent = pushed(start=103, end=108, filter="n != 5", columns=["n"], project=True)
    assert offsets(described) == [103, 104, 106, 107]
    assert decode_batch(sent, pa.schema([SCHEMA.field("n")])).column("n").to_pylist() == [3, 4, 6, 7]


def test_a_batch_of_which_nothing_is_kept_costs_its_description_alone() -> None:
    described, sent = pushed(filter="n > 100")
    assert described.HasField("kept")
    assert (offsets(described), sent) == ([], b"")


def test_no_columns_leave_the_number_of_rows() -> None:
    described, sent = pushed(project=True)
    assert decode_batch(sent, pa.schema([])).num_rows == described.record_count


@pytest.mark.parametrize(
    ("wanted", "typed", "error", "words"),
    [
        ({"columns": ["m"], "project": True}, True, SchemaMismatch, "topic t has no column 'm'"),
        ({"columns": ["n", "n"], "project": True}, True, InvalidRequest, "name each once"),
        ({"filter": "m = 1"}, True, InvalidSetting, "filter names column 'm'"),
        ({"filter": "n = 1"}, False, InvalidRequest, "filter needs a topic with columns of its own"),
    ],
)
def test_what_cannot_be_is_refused_before_a_batch_is_read(
    wanted: dict[str, Any], typed: bool, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Pushdown(SCHEMA, pb.FetchRequest(topic="t", **wanted), typed=typed)


@pytest.mark.parametrize(
    ("decoded_bytes", "each_s", "count"),
    [
        (TURN_DECODED_BYTES_MAX // 5, TURN_S / 5, 5),
        (TURN_DECODED_BYTES_MAX // 4, 0.0, 4),
        (TURN_DECODED_BYTES_MAX + 1, 0.0, 1),
        (100, TURN_S + 0.1, 1),
    ],
    ids=["all", "as many bytes as it may", "one, however large", "one, however long it took"],
)
def test_a_turn_ends_after_so_many_bytes_and_after_so_long(decoded_bytes: int, each_s: float, count: int) -> None:
    times = itertools.count(5.0, each_s)
    payload = memoryview(encode_batch(ROWS))
    stored = Published(
        index=7, base_offset=0, record_count=10, timestamp_us=5, payload_bytes=len(payload), decoded_bytes=decoded_bytes
    )
    request = pb.FetchRequest(topic="t", filter="n > 1")
    reading = Pushdown(SCHEMA, request, typed=True, clock=lambda: next(times))
    assert len(reading.apply([(stored, payload)] * 5)) == count


def test_a_schema_that_lacks_columns_of_one_batch_does_not_know_them_all() -> None:
    old = parse_schema("n long")
    narrow = memoryview(encode_batch(pa.RecordBatch.from_pylist([{"n": 1}], schema=old)))
    wide = memoryview(encode_batch(ROWS))
    stored: Any = None
    request = pb.FetchRequest(topic="t", columns=["n"], project=True)
    for schema, knows in ((old, False), (SCHEMA, True)):
        assert Pushdown(schema, request, typed=True).knows([(stored, narrow), (stored, wide)]) is knows
