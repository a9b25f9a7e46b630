"""A table whose columns say how urgent each row is, and when it is to be published."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mq_client.errors import InvalidRequest, InvalidSetting
from mq_client.producing import splitting
from mq_client.producing.lanes import NOT_SCHEDULED, USUAL, Attributes, Due
from mq_client.producing.splitting import Shipment, ways_of

PLAIN = Shipment(USUAL, NOT_SCHEDULED)
SOON_US = (time.time_ns() // 1000) + 60_000_000


def table(**columns: Any) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"value": pa.array([b"%d" % at for at in range(rows)]), **columns})


def told(ways: list[tuple[Shipment, pa.Table]]) -> list[tuple[int, int, list[bytes]]]:
    return [(way.attributes.priority, way.due.at_us, rows.column("value").to_pylist()) for way, rows in ways]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_timestamps_with_a_zone_too(unit: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    given = table(at=pa.array([at, None], pa.timestamp(unit, "Europe/Paris")))
    assert told(ways_of(given, PLAIN, None, "at", [])) == [
        (4, 0, [b"1"]),
        (4, round(at.timestamp() * 1e6), [b"0"]),
    ]


@pytest.mark.parametrize(
    ("columns", "error", "why"),
    [
        ({"p": [1.5]}, InvalidRequest, "whole numbers are needed"),
        ({"p": [True]}, InvalidRequest, "whole numbers are needed"),
        ({"p": [3, 32]}, InvalidSetting, "column 'p': priority=32"),
        ({"p": [-1, None]}, InvalidSetting, "from 0 to 31"),
        ({"q": [1]}, InvalidRequest, "priority_column='p' is no column"),
        ({"p": pa.array([1 << 63], pa.uint64())}, InvalidSetting, "from 0 to 31"),
    ],
)
def test_a_priority_that_there_is_not_names_the_column(columns: dict[str, Any], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        ways_of(table(**columns), PLAIN, "p", None, [])


@pytest.mark.parametrize(
    ("times", "error", "why"),
    [
        (["now"], InvalidRequest, "timestamps with a zone are needed"),
        (pa.array([0], pa.timestamp("us")), InvalidRequest, "timestamps with a zone are needed"),
        ([SOON_US // 1_000_000], InvalidSetting, "column 'at': .*looks like seconds"),
        ([SOON_US, -5], InvalidSetting, "before 1970"),
        ([SOON_US, SOON_US * 2], InvalidSetting, "more than a year ahead"),
    ],
)
def test_a_time_that_there_is_not_names_the_column(times: Any, error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        ways_of(table(at=times), PLAIN, None, "at", [])


def test_too_many_different_ones_are_refused_whole() -> None:
    most = splitting.WAYS_MAX
    times = [SOON_US + number * 1_000 for number in range(most + 1)]
    assert len(ways_of(table(at=[*times[:-1], times[0]]), PLAIN, None, "at", [])) == most
    with pytest.raises(
        InvalidRequest, match=f"{most + 1} different priorities and times, and one table may have {most}: round"
    ):
        ways_of(table(at=times), PLAIN, None, "at", [])


def test_where_all_are_null_or_there_are_no_rows_it_is_as_if_nothing_was_said() -> None:
    usual = Shipment(Attributes(9), Due(delay_ms=5))
    for values in ([None, None], []):
        given = table(p=pa.array(values, pa.int32()), at=pa.array(values, pa.int64()))
        [(way, rows)] = ways_of(given, usual, "p", "at", [])
        assert (way, rows.num_rows, rows.schema.names) == (usual, len(values), ["value"])


def test_every_row_goes_its_own_way_and_in_order() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        rows = rng.randrange(1, 60)
        priorities = [rng.choice((None, 0, 4, 31)) for _ in range(rows)]
        times = [rng.choice((None, SOON_US, SOON_US + 1)) for _ in range(rows)]
        given = table(p=pa.array(priorities, pa.int64()), at=pa.array(times, pa.int64()))
        seen = [b""] * rows
        for priority, at_us, values in told(ways_of(given, PLAIN, "p", "at", [])):
            assert values == sorted(values, key=int)
            for value in values:
                at = int(value)
                assert (priority, at_us) == (4 if priorities[at] is None else priorities[at], times[at] or 0)
                seen[at] = value
        assert seen == [b"%d" % at for at in range(rows)]
