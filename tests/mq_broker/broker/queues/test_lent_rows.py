"""Rows that go with a lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.queues.lent_rows import BATCHES_MAX, RANGES_MAX, ROWS_BYTES_MAX, lent_rows
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.messages import Published
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.arrow import decode_batch, encode_batch, schema_to_bytes
from mq_protocol.errors import StorageFailed

SCHEMA = pa.schema([("n", pa.int64())])
FAR = 1 << 30


def topic_of(schema: pa.Schema) -> Topic:
    return Topic.of(TopicSpec("t", "0" * 32, ((1,),), schema_to_bytes(schema)))


class Partition:
    """Batches of so many rows, one after the other, with their offsets as values. `reads`: how many were read."""

    def __init__(self, *counts: int, decoded_bytes: int = 0, compression: str | None = None) -> None:
        self.closed = False
        self.reads = 0
        self.topic = topic_of(SCHEMA)
        self.index = OffsetIndex()
        self.payloads: list[memoryview] = []
        for number, (base, end) in enumerate(pairwise(np.cumsum([0, *counts]).tolist())):
            batch = pa.RecordBatch.from_pydict({"n": list(range(base, end))}, schema=SCHEMA)
            payload = memoryview(encode_batch(batch, compression))
            decoded = decoded_bytes or len(payload)
            self.index.append(Published(base, end - base, number + 1, 7, len(payload), decoded))
            self.payloads.append(payload)

    def read(self, start: int, end: int, bytes_max: int) -> list[tuple[Published, memoryview]]:
        batches = self.index.range(start, end, bytes_max)
        self.reads += len(batches)
        return [(batch, self.payloads[batch.index - 1]) for batch in batches]


def rows(partition: Any, *ranges: tuple[int, int], bytes_max: int = FAR) -> list[list[int]]:
    """The values of each batch that is sent."""
    found = []
    for stored, payload in lent_rows(partition, ranges, bytes_max):
        assert stored.payload_bytes == len(payload)
        values = decode_batch(payload, SCHEMA).column("n").to_pylist()
        if stored.HasField("kept"):
            kept = np.flatnonzero(np.unpackbits(np.frombuffer(stored.kept, np.uint8), bitorder="little"))
            assert values == [stored.base_offset + place for place in kept.tolist()]
            assert len(stored.kept) == (stored.record_count + 7) // 8
        else:
            assert values == list(range(stored.base_offset, stored.base_offset + stored.record_count))
        assert stored.timestamp_us == 7
        found.append(values)
    return found


KINDS = pa.RecordBatch.from_pydict(
    {
        "text": ["a", None, "ccc", ""] * 8,
        "flag": [True, None, False, True] * 8,
        "list": [[1, 2], None, [], [3]] * 8,
        "struct": [{"x": 1, "y": "p"}, None, {"x": 3, "y": "q"}, {"x": None, "y": None}] * 8,
        "map": pa.array([[("k", 1)], None, [], [("a", 2), ("b", 3)]] * 8, pa.map_(pa.string(), pa.int64())),
        "binary": [b"abcd", None, b"efgh", b"ijkl"] * 8,
    }
)


@pytest.mark.parametrize("places", [range(1, 4), range(7, 9), range(31, 32), (1, 3, 9)])
def test_rows_of_every_kind_of_column_are_those_that_were_lent(places: Sequence[int]) -> None:
    partition = Partition(KINDS.num_rows)
    partition.topic = topic_of(KINDS.schema)
    partition.payloads = [memoryview(encode_batch(KINDS))]
    [(_, payload)] = lent_rows(partition, [(place, place + 1) for place in places], FAR)  # type: ignore[arg-type]
    sent = decode_batch(payload, KINDS.schema)
    sent.validate(full=True)
    assert sent.to_pylist() == [KINDS.slice(place, 1).to_pylist()[0] for place in places]
    assert len(payload) < len(partition.payloads[0]) / 2


def test_rows_that_follow_one_another_are_a_batch_of_their_own_and_say_nothing_of_all_others() -> None:
    partition = Partition(3, 100_000)
    [(stored, payload)] = lent_rows(partition, [(50_000, 50_002)], FAR)  # type: ignore[arg-type]
    assert (stored.base_offset, stored.record_count, stored.HasField("kept")) == (50_000, 2, False)
    assert stored.ByteSize() + len(payload) < 500
    assert rows(partition, (50_000, 50_002), (50_003, 50_004)) == [[50_000, 50_001, 50_003]]


def test_nothing_goes_that_takes_more_than_is_wanted_or_than_a_turn_may_cost() -> None:
    partition = Partition(100, 100, decoded_bytes=10_000)
    whole = len(partition.payloads[0])
    assert len(rows(partition, (0, 100), bytes_max=whole)) == 1
    assert rows(partition, (0, 100), bytes_max=whole - 1) == []
    assert len(rows(partition, (5, 10), bytes_max=500)) == 1, "their share of what the batch decodes to"
    assert rows(partition, (5, 10), bytes_max=499) == []
    assert rows(partition, (5, 10), bytes_max=0) == []
    assert partition.reads == 2, "nothing was read in vain"
    assert rows(partition, (0, 1), bytes_max=0) == []
    assert partition.reads == 2, "nothing was looked up for who wants none"
    large = Partition(100, 100, decoded_bytes=ROWS_BYTES_MAX // 2)
    assert len(rows(large, (0, 1), (150, 151))) == 2
    large = Partition(100, 100, decoded_bytes=ROWS_BYTES_MAX // 2 + 1)
    assert rows(large, (0, 1), (150, 151)) == []
    assert len(rows(large, (0, 100), (150, 151))) == 2, "what goes whole is not decoded"
    assert rows(Partition(*[100_000] * 2), (0, 200_000)) == [], "however much the member wants"


def test_nothing_goes_of_too_many_ranges_or_batches() -> None:
    partition = Partition(*[2] * (BATCHES_MAX + 1))
    assert len(rows(partition, (0, 2 * BATCHES_MAX))) == BATCHES_MAX
    assert rows(partition, (0, 2 * BATCHES_MAX + 1)) == []
    scattered = [(2 * n, 2 * n + 1) for n in range(RANGES_MAX + 1)]
    partition = Partition(4 * RANGES_MAX)
    assert len(rows(partition, *scattered[:-1])) == 1
    assert rows(partition, *scattered) == []


def test_rows_that_cannot_be_read_are_left_for_the_member_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(10, 10)
    partition.index.trim(10)
    assert rows(partition, (3, 4)) == []
    partition.payloads[1] = partition.payloads[1][:40]
    assert rows(partition, (13, 14)) == []
    partition = Partition(10)
    partition.topic = topic_of(pa.schema([("n", pa.int64()), ("m", pa.int64())]))
    assert len(lent_rows(partition, [(3, 4)], FAR)) == 1  # type: ignore[arg-type]
    partition.topic = replace(partition.topic, schema=pa.schema([]))
    assert lent_rows(partition, [(3, 4)], FAR) == [], "columns that this broker has not heard of"  # type: ignore[arg-type]
    partition = Partition(10)
    partition.closed = True
    assert rows(partition, (3, 4)) == []
    partition.closed = False

    def damaged(*_: object) -> None:
        raise StorageFailed("damage")

    monkeypatch.setattr(partition, "read", damaged)
    assert rows(partition, (3, 4)) == []
