"""When a query in lease mode asks for more, and which of the rows that are fetched are its own, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from mq_protocol.arrow import RECORD_SCHEMA
from mq_spark.datasource import lease_reader
from mq_spark.datasource.lease_reader import LeaseReader, _OnDriver
from mq_spark.datasource.lease_rows import LeasedProjection, _lent
from mq_spark.datasource.schemas import StoredRows, Topic
from mq_spark.planning.leases import Lease, LeaseKey, Run
from mq_spark.planning.options import parse_source

WANTED = StructType().add("offset", LongType()).add("value", BinaryType()).add("deliveries", IntegerType())


class Member:
    """Lends one record whenever it is asked, as long as there are some (`left`)."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0
        self.settled: list[LeaseKey] = []

    def grow(self, _: Any) -> None: ...

    def lease(self, _: int | None) -> list[Lease]:
        self.asked += 1
        if not self.left:
            return []
        self.left -= 1
        return [Lease(LeaseKey("t", "id", 0, 1, self.asked, 0), (Run(self.asked, self.asked + 1, 1, 0),))]

    def settle(self, leases: Sequence[Lease]) -> dict[LeaseKey, list[int]]:
        self.settled += [lease.key for lease in leases]
        return {}


def test_a_query_asks_again_at_once_while_there_is_something_and_seldom_when_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(lease_reader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    given = {"bootstrap.servers": "h:1", "subscribe": "t", "lease.group": "g", "lease.member": "m"}
    options = parse_source(given, streaming=True)
    assert options.lease is not None
    reader = LeaseReader(options, options.lease, WANTED)
    member, ends = Member(3), {"t": {0: 10}}
    cluster: Any = None
    leasing: Any = member
    watch: Any = SimpleNamespace(bounds=lambda: {topic: dict(inner) for topic, inner in ends.items()})
    reader._opened = _OnDriver(cluster, leasing, watch, {"t": "id"})
    at = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert end != at
        at = end
    assert (member.asked, len(member.settled)) == (3, 2)
    for _ in range(5):
        assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    assert member.asked == 4, "nothing is new"
    now[0] += 1.5
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    assert member.asked == 5, "something may have come back"
    ends["t"][0] = 11
    member.left = 1
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) != at


def test_of_the_rows_that_are_fetched_those_that_were_lent_are_kept_with_their_counts() -> None:
    def rows(first: int, count: int, offsets: list[int] | None = None) -> StoredRows:
        values = [b"%d" % offset for offset in offsets or range(first, first + count)]
        batch = pa.RecordBatch.from_pydict({"value": values}, schema=pa.schema([("value", pa.binary())]))
        return StoredRows(batch, first, 0, None if offsets is None else np.array(offsets, dtype=np.int64))

    runs = [Run(1, 3, 1, 0), Run(7, 8, 2, 1), Run(9, 13, 3, 2)]
    found = list(_lent([rows(0, 4), rows(4, 2), rows(6, 4), rows(10, 3, [10, 12])], runs))
    assert [(each.offsets.tolist(), each.rows.column(0).to_pylist()) for each in found if each.offsets is not None] == [
        ([1, 2], [b"1", b"2"]),
        ([7, 9], [b"7", b"9"]),
        ([10, 12], [b"10", b"12"]),
    ]
    projection = LeasedProjection(Topic("t", "id", RECORD_SCHEMA, False, 1), WANTED)
    projection.runs = runs
    table = projection.convert(0, found).to_pydict()
    assert (table["offset"], table["deliveries"]) == ([1, 2, 7, 9, 10, 12], [1, 1, 2, 3, 3, 3])
