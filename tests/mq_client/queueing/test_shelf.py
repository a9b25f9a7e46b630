"""Rows that wait to be worked on."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from mq_client.queueing.leases import LOST, HeldLease, LeaseId
from mq_client.queueing.shelf import Rows, Shelf, rows_of

SCHEMA = pa.schema([("n", pa.int64())])


def held(*ranges: tuple[int, int], number: int = 0) -> HeldLease:
    return HeldLease(0, LeaseId(1, number, 0), ranges, [1] * len(ranges), [0] * len(ranges), 30.0, 0.0)


def rows(lease: HeldLease, base: int, count: int) -> Rows:
    batch = pa.RecordBatch.from_pydict({"n": list(range(base, base + count))}, schema=SCHEMA)
    first, mine = rows_of(lease, base, batch)
    return Rows(lease, first, mine, 7, "t", True)


def taken(shelf: Shelf) -> list[tuple[int, int]]:
    found = []
    while (each := shelf.take()) is not None:
        lease, index, record = each
        assert record.offset == lease.offsets[index]
        lease.begin(index)
        found.append((record.offset, record.value["n"]))
    return found


def test_only_the_rows_of_the_lease_are_handed_out_in_their_order() -> None:
    lease, shelf = held((2, 4), (7, 9), (600, 900)), Shelf()
    shelf.put(rows(lease, 0, 8))
    shelf.put(rows(lease, 8, 900))
    assert taken(shelf) == [(n, n) for n in (2, 3, 7, 8, *range(600, 900))]
    assert not shelf


@pytest.mark.parametrize("losses", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(10))
def test_each_row_that_is_not_lost_is_handed_out_once_and_in_order(seed: int, losses: float) -> None:
    """A walk, beside a list of all that waits."""
    chance = random.Random(seed)
    shelf = Shelf()
    waits: list[tuple[HeldLease, int]] = []
    for number in range(60):
        match chance.choice(["put", "lose", "take", "rows", "rows"]):
            case "put":
                lease = held((10 * number, 10 * number + 10), number=number)
                cut = chance.randint(0, 10)
                shelf.put(rows(lease, 10 * number, cut))
                shelf.put(rows(lease, 10 * number + cut, 10 - cut))
                waits += [(lease, index) for index in range(10)]
            case "lose":
                for lease, index in [each for each in waits if chance.random() < losses]:
                    lease.end(np.array([index]), LOST)
                    waits.remove((lease, index))
            case "take":
                found = shelf.take()
                assert (found[:2] if found is not None else None) == (waits.pop(0) if waits else None)
                if found is not None:
                    assert found[2].value["n"] == found[2].offset == found[0].offsets[found[1]]
                    found[0].begin(found[1])
            case "rows":
                rows_max = chance.randint(1, 12)
                wanted = [each for each in waits[:rows_max] if each[0] is waits[0][0]]
                del waits[: len(wanted)]
                lent = shelf.take_rows(rows_max)
                if lent is None:
                    assert not wanted
                    continue
                assert [(lent.lease, index) for index in lent.indexes.tolist()] == wanted
                assert lent.rows.column("n").to_pylist() == lent.lease.offsets[lent.indexes].tolist()
                lent.lease.begin_all(lent.indexes)
        assert shelf or not waits
        assert bool(waits) or not shelf or losses, "what was handed out does not look as if something were left"
    while waits:
        assert shelf.take() is not None
        waits.pop(0)
    assert shelf.take_rows(5) is None
    assert not shelf
