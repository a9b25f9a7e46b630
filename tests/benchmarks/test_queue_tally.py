"""The counting that each row of `make bench-queues` ends with notices a record that is lost, doubled or foreign."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.queues.ground import RECORD_BYTES, pieces
from benchmarks.queues.report import OURS, Measured, lines_of
from benchmarks.queues.tally import Miscounted, accepted_is, id_of, ids_of, judge, values_of

ALL = np.arange(10)


def test_each_record_once_is_right_in_any_order_and_by_any_member() -> None:
    counted = judge(10, [ALL[5:], ALL[:5]], [ALL[::-1]], again_max=0)
    assert (counted.records, counted.again) == (10, 0)


@pytest.mark.parametrize(
    ("received", "settled", "why"),
    [
        (ALL[:9], ALL, "1 records were never received"),
        (ALL, ALL[:9], "1 records were never settled"),
        (ALL, [*ALL, 3], r"1 records were settled twice, such as \[3\]"),
        (ALL, [*ALL[:9], 3], "1 records were never settled"),
        (ALL, [*ALL, 10], "1 records were settled that are not of this row"),
        ([*ALL, 3, 3], ALL, "came again: 2 receipts too many"),
        ([], [], "10 records were never received"),
    ],
)
def test_a_lost_a_doubled_and_a_foreign_record_are_noticed(received: list[int], settled: list[int], why: str) -> None:
    with pytest.raises(Miscounted, match=why):
        judge(10, [np.array(received, dtype=np.int64)], [np.array(settled, dtype=np.int64)], again_max=0)


def test_receipts_that_the_row_explains_are_counted() -> None:
    assert judge(10, [ALL, ALL[:2]], [ALL], again_max=2).again == 2


@pytest.mark.parametrize(("accepted", "left"), [(9, 0), (11, 0), (10, 1)])
def test_brokers_that_count_otherwise_are_noticed(accepted: int, left: int) -> None:
    accepted_is(10, 10, 0)
    with pytest.raises(Miscounted, match="accepted"):
        accepted_is(10, accepted, left)


def test_ids_survive_being_values_slices_and_chunks() -> None:
    values = values_of(ALL + 300, RECORD_BYTES)
    assert {len(value) for value in values.to_pylist()} == {RECORD_BYTES}
    assert ids_of(values.slice(3, 4)).tolist() == [303, 304, 305, 306]
    assert ids_of(pa.chunked_array([values[:2], values[5:7]])).tolist() == [300, 301, 305, 306]
    assert id_of(values[7].as_py()) == 307
    assert ids_of(values[:0]).tolist() == []


def test_the_tables_that_are_published_have_each_id_once() -> None:
    assert np.concatenate(list(pieces(25_001))).tolist() == list(range(25_001))


def test_an_aim_is_reached_by_the_median_and_a_ratio_above_one_says_that_we_are_faster() -> None:
    ours = [{"p50 ms": 4.0, "p99 ms": 30.0, "again": 0.0}]
    theirs = [{"p50 ms": 8.0, "p99 ms": 15.0, "again": 3.0}]
    mine, my_p99, other, other_p99 = lines_of(Measured("published", "", "", {OURS: ours, "another": theirs}, {}))
    assert (mine[4], my_p99[4]) == ("≤ 8: reached", "≤ 20: missed")
    assert (other[3], other[5], other_p99[3]) == ("2.00", "3", "0.50")
