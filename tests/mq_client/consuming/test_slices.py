"""What is cut out of stored batches: pure, without a broker."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mq_client.consuming.slices import StoredSlice, up_to_bytes


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
