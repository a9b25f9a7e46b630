"""Rows that come with a lease."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from mq_client.cluster.connection import TopicView
from mq_client.queueing.shelf import rows_in, slices_in
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from tests.mq_client.queueing.played_keeper import Leaders
from tests.mq_client.queueing.test_shelf import SCHEMA, held


@pytest.fixture
def view() -> TopicView:
    found = Leaders(1).known_topic("t")
    assert found is not None
    return found


def answer(*batches: tuple[int, int, list[int] | None]) -> tuple[pb.LeaseResponse, list[memoryview]]:
    """Batches of a first offset, how many records they have, and which of these are there (None: all)."""
    response, payloads = pb.LeaseResponse(), []
    for base, count, kept in batches:
        places = list(range(count)) if kept is None else kept
        rows = pa.RecordBatch.from_pydict({"n": [base + place for place in places]}, schema=SCHEMA)
        payloads.append(memoryview(encode_batch(rows).to_pybytes()))
        stored = pb.StoredBatch(base_offset=base, record_count=count, timestamp_us=7, payload_bytes=len(payloads[-1]))
        if kept is not None:
            stored.kept = np.packbits(np.isin(np.arange(count), kept), bitorder="little").tobytes()
        response.batches.append(stored)
    return response, payloads


def test_rows_are_those_of_the_lease_whether_the_whole_batch_came_or_only_they(view: TopicView) -> None:
    lease = held((2, 4), (7, 8), (12, 14))
    slices = slices_in(*answer((0, 10, [2, 3, 7]), (10, 5, None)), view)
    found = rows_in(slices, lease, "t", typed=True)
    assert [(rows.first, rows.batch.column("n").to_pylist()) for rows in found] == [(0, [2, 3, 7]), (3, [12, 13])]
    assert [rows.timestamp_us for rows in found] == [7, 7]
    assert sum(piece.sent_bytes for piece in slices) > 0


@pytest.mark.parametrize(
    "batches",
    [
        [(0, 10, [2, 3])],  # one is missing
        [(0, 10, [2, 3, 8])],  # another one
        [(0, 10, [2, 3, 7, 8])],  # one too many
        [(0, 4, None)],
        [(7, 3, None)],
        [(7, 3, None), (0, 7, None)],  # not in order
        [],
    ],
)
def test_rows_that_are_not_all_of_the_lease_are_fetched(view: TopicView, batches: list[tuple[int, int, None]]) -> None:
    assert rows_in(slices_in(*answer(*batches), view), held((2, 4), (7, 8)), "t", typed=True) == []


def test_rows_that_cannot_be_read_here_are_fetched(view: TopicView) -> None:
    whole, payloads = answer((0, 4, None))
    assert len(slices_in(whole, payloads, view)) == 1
    assert slices_in(whole, payloads, None) == ()
    assert slices_in(*answer((0, 4, [])), view) == ()
    [payload] = payloads
    for damaged in ([payload[:-8]], [], [memoryview(b"")], [memoryview(bytes(len(payload)))]):
        assert slices_in(whole, damaged, view) == ()
    whole.batches[0].record_count = 5
    assert slices_in(whole, payloads, view) == ()


def test_rows_with_columns_that_are_not_known_here_yet_are_fetched(view: TopicView) -> None:
    wide = pa.RecordBatch.from_pydict({"n": [1], "m": [2]})
    encoded = encode_batch(wide).to_pybytes()
    stored = pb.StoredBatch(base_offset=0, record_count=1, timestamp_us=7, payload_bytes=len(encoded))
    response = pb.LeaseResponse(batches=[stored])
    assert slices_in(response, [memoryview(encoded)], replace(view, typed=True)) == ()
