"""What is cut out of stored batches: pure, without a broker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from mq_client import CorruptBatch
from mq_client.cluster.connection import TopicView
from mq_client.consuming.slices import StoredSlice, cut, up_to_bytes, wanted_of
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch, schema_fingerprint
from mq_protocol.names import parse_settings
from mq_protocol.sql.ddl import parse_schema


def piece(base_offset: int, rows: int, sent_bytes: int) -> StoredSlice:
    batch = pa.RecordBatch.from_pydict({"n": list(range(base_offset, base_offset + rows))})
    return StoredSlice(base_offset, base_offset + rows, 0, batch, sent_bytes=sent_bytes)


@pytest.mark.parametrize(
    ("bytes_max", "offsets"),
    [
        (1, [0]),
        (99, [0]),
        (100, [0]),
        (119, [0]),
        (120, [0, 1]),
        (199, [0, 1, 2, 3, 4]),
        (200, [0, 1, 2, 3, 4, 5]),
        (201, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_records_are_given_while_they_fit_and_the_first_one_always(bytes_max: int, offsets: list[int]) -> None:
    given = list(up_to_bytes(iter([piece(0, 1, 100), piece(1, 5, 100)]), bytes_max))
    assert all(each.batch.num_rows > 0 for each in given)
    assert [offset for each in given for offset in range(each.base_offset, each.end_offset)] == offsets
    assert [n for each in given for n in each.batch["n"].to_pylist()] == offsets


@pytest.mark.parametrize(("bytes_max", "offsets"), [(100, [3]), (200, [3, 8]), (1_000, [3, 8, 9])])
def test_of_filtered_rows_those_that_fit_keep_their_offsets(bytes_max: int, offsets: list[int]) -> None:
    kept = piece(0, 3, 300)._replace(offsets=np.array([3, 8, 9]), end_offset=20)
    [given] = up_to_bytes(iter([kept]), bytes_max)
    assert given.offsets is not None
    assert given.offsets.tolist() == offsets
    assert given.end_offset == (20 if len(offsets) == 3 else offsets[-1] + 1)
    assert given.batch.num_rows == len(offsets)


def test_pieces_without_rows_are_passed_on_and_do_not_count_as_the_first_record() -> None:
    empty = piece(0, 0, 50)._replace(end_offset=7)
    assert [each.end_offset for each in up_to_bytes(iter([empty, piece(7, 2, 100)]), 10)] == [7, 8]


def test_after_a_first_record_that_is_too_large_nothing_is_given() -> None:
    assert [each.end_offset for each in up_to_bytes(iter([piece(0, 1, 500), piece(1, 1, 100)]), 100)] == [1]


# ---------------------------------------------------------------- what is asked for


def topic(words: str | None) -> TopicView:
    schema = RECORD_SCHEMA if words is None else parse_schema(words)
    return TopicView(
        "t",
        "x",
        schema,
        schema_fingerprint(schema),
        words is not None,
        parse_settings({}, 1),
        (1,),
        (1,),
        pb.TopicInfo(),
    )


def test_a_broker_is_asked_for_fewer_columns_only_where_that_saves_something() -> None:
    typed, plain = topic("a long, b string, c long"), topic(None)
    assert wanted_of(typed, None, "a > 1") == (None, "a > 1", typed.schema, None)
    assert wanted_of(typed, ["c", "a"], "") == (("c", "a"), "", parse_schema("c long, a long"), None)
    assert wanted_of(typed, ["b", "c", "a"], "") == (None, "", typed.schema, ("b", "c", "a"))
    assert wanted_of(plain, ["value"], "") == (None, "", RECORD_SCHEMA, ("value",))
    assert wanted_of(plain, ["key"], "")[0] == ("key",)


# ---------------------------------------------------------------- what is cut out


WORDS = "n long"


def stored(
    base: int, numbers: list[int], *, count: int | None = None, kept: bytes | None = None
) -> tuple[pb.StoredBatch, memoryview]:
    payload = memoryview(encode_batch(pa.RecordBatch.from_pydict({"n": numbers}, schema=parse_schema(WORDS))))
    said = pb.StoredBatch(
        base_offset=base, record_count=len(numbers) if count is None else count, payload_bytes=1_000, timestamp_us=9
    )
    if kept is not None:
        said.kept = kept
    return said, payload


def cut_out(said: tuple[pb.StoredBatch, memoryview], position: int, end: int) -> StoredSlice:
    return cut(*said, position, end, wanted_of(topic(WORDS), None, ""))


@pytest.mark.parametrize(("count", "position"), [(2, 9), (2, 12), (3, 10), (0, 10), (1 << 31, 10)])
def test_a_batch_that_is_not_what_was_asked_for_or_of_another_size_is_refused(count: int, position: int) -> None:
    with pytest.raises(CorruptBatch):
        cut_out(stored(10, [0, 1], count=count), position, 99)


def test_a_filter_may_keep_nothing() -> None:
    said, _ = stored(10, [], count=20, kept=b"\0\0")
    found = cut_out((said, memoryview(b"")), 12, 25)
    assert (found.base_offset, found.end_offset, found.batch.num_rows) == (12, 25, 0)
    assert found.batch.schema == parse_schema(WORDS)


@pytest.mark.parametrize(
    ("kept", "position", "end"),
    [
        (bytes([0b111]), 10, 99),  # three rows named, two sent
        (bytes([0b11]), 11, 99),  # the first is before what is wanted
        (bytes([0b1001]), 10, 13),  # the last is behind it
        (bytes([0b1001, 0, 0, 0]), 10, 99),  # more rows than the batch has
    ],
)
def test_filtered_rows_that_are_not_those_wanted_are_refused(kept: bytes, position: int, end: int) -> None:
    assert cut_out(stored(10, [5, 6], count=20, kept=bytes([0b1001])), 10, 14).batch.num_rows == 2
    with pytest.raises(CorruptBatch):
        cut_out(stored(10, [5, 6], count=20, kept=kept), position, end)
