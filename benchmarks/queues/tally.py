"""Counts what became of each record, so that a row cannot be fast by losing or doubling some.

Records have ids from 0 on, in the first eight bytes of their values. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ID_BYTES: Final = 8
Ids = npt.NDArray[np.int64]


class Miscounted(Exception):
    """Records are lost, were settled twice, or are not known. The message says how many, and names some."""


@dataclass(frozen=True, slots=True)
class Counted:
    """`again`: receipts beyond the first of each record."""

    records: int
    again: int


def judge(
    count: int, received: Iterable[Ids], settled: Iterable[Ids], *, again_max: int | None = None, what: str = "records"
) -> Counted:
    """Ids from 0 to `count` - 1 were each received, and settled exactly once. `again_max`: receipts beyond the first
    that the row explains itself; None: any number. Raises `Miscounted`."""
    return judge_those(np.arange(count), received, settled, again_max=again_max, what=what)


def judge_those(
    expected: Ids,
    received: Iterable[Ids],
    settled: Iterable[Ids],
    *,
    again_max: int | None = None,
    what: str = "records",
) -> Counted:
    """As `judge`, for those ids."""
    got, done = _joined(received), _joined(settled)
    known = np.unique(expected)
    for name, ids in (("received", got), ("settled", done)):
        _refuse(np.setdiff1d(known, ids), f"{what} were never {name}")
        _refuse(np.setdiff1d(ids, known), f"{what} were {name} that are not of this row")
    _refuse(_twice(done), f"{what} were settled twice")
    again = len(got) - len(known)
    if again_max is not None and again > again_max:
        _refuse(_twice(got), f"{what} came again: {again} receipts too many, of which the row explains {again_max}")
    return Counted(len(known), again)


def accepted_is(count: int, accepted: int, left: int) -> None:
    """What brokers say of it. Raises `Miscounted`."""
    if accepted != count or left:
        raise Miscounted(f"of {count:,} records the brokers accepted {accepted:,}, and {left:,} are left")


def ids_of(values: pa.Array | pa.ChunkedArray) -> Ids:
    """The ids of values of one size."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not len(values):
        return np.empty(0, dtype=np.int64)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(offsets)
    if (sizes != sizes[0]).any():
        raise Miscounted("values of other sizes than were published")
    data = np.frombuffer(values.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
    ids: Ids = data.reshape(len(values), sizes[0])[:, :ID_BYTES].copy().view("<i8").ravel()
    return ids


def id_of(value: bytes) -> int:
    return int.from_bytes(value[:ID_BYTES], "little")


def values_of(ids: Ids, size: int) -> pa.Array:
    """Values of `size` bytes: the id, then random bytes."""
    rows = np.empty((len(ids), size), dtype=np.uint8)
    rows[:, :ID_BYTES] = np.ascontiguousarray(ids, dtype="<i8").view(np.uint8).reshape(-1, ID_BYTES)
    rows[:, ID_BYTES:] = np.random.default_rng(len(ids)).integers(0, 256, (1, size - ID_BYTES), dtype=np.uint8)
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def _joined(parts: Iterable[Ids]) -> Ids:
    found = [np.asarray(part, dtype=np.int64) for part in parts]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _twice(ids: Ids) -> Ids:
    known, counts = np.unique(ids, return_counts=True)
    twice: Ids = known[counts > 1]
    return twice


def _refuse(ids: Ids, what: str) -> None:
    if len(ids):
        raise Miscounted(f"{len(ids):,} {what}, such as {ids[:5].tolist()}")
