"""Records of a queue that is in order: one of a key is handed out at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mq_client.queueing.leases import LOST, HeldLease, LeaseId
from mq_client.queueing.shelf import OrderedShelf, Rows, Shelf
from mq_protocol import mq_pb2 as pb

SCHEMA = pa.schema([("k", pa.string())])


def put(
    shelf: Shelf,
    first: int,
    keys: str,
    number: int = 0,
    order: pb.QueueOrder.ValueType = pb.ORDER_KEY,
    partition: int = 0,
) -> HeldLease:
    """A lease of so many records, each with a letter as its key; a blank is none."""
    lease = HeldLease(partition, LeaseId(1, number, 0), [(first, first + len(keys))], [1], [0], 30.0, 0.0)
    lease.order, lease.order_by = order, "k"
    batch = pa.RecordBatch.from_pydict({"k": [None if key == " " else key for key in keys]}, schema=SCHEMA)
    shelf.put(Rows(lease, 0, batch, 7, "t", True))
    return lease


def ordered() -> OrderedShelf:
    return OrderedShelf(Shelf())


def taken(shelf: Shelf) -> list[int]:
    """All that is handed out by now."""
    found = []
    while (each := shelf.take()) is not None:
        lease, index, record = each
        lease.begin(index)
        found.append(record.offset)
    return found


def test_after_a_lost_record_its_key_waits_until_the_leader_has_said_what_is_left() -> None:
    shelf = ordered()
    first = put(shelf, 0, "aab")
    second = put(shelf, 3, "aa", number=1)
    assert taken(shelf) == [0, 2]
    shelf.end(first, [0], doubt=True)
    assert taken(shelf) == []
    asked = shelf.take_doubts(5.0)
    assert [(lease is first, indexes.tolist()) for lease, indexes in asked] == [(True, [1]), (False, [0, 1])]
    assert shelf.take_doubts(5.0) == []
    first.end(np.array([1]), LOST)
    shelf.checked(first, np.array([1]), 5.0)
    assert taken(shelf) == []
    shelf.checked(second, np.array([0, 1]), 5.0)
    assert taken(shelf) == [3]


def test_if_the_key_of_a_lost_record_is_not_known_all_keys_of_its_partition_wait() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "ab ")
    put(shelf, 20, "ab", number=1, partition=1)
    unread = HeldLease(0, LeaseId(1, 7, 0), [(9, 10)], [1], [0], 30.0, 0.0)
    shelf.end(unread, [0], doubt=True)
    assert taken(shelf) == [2, 20, 21], "what has no key has no order, and partitions have none among them"
    [(asked, indexes)] = shelf.take_doubts(5.0)
    assert (asked is lease, indexes.tolist()) == (True, [0, 1])
    shelf.checked(lease, indexes, 5.0)
    assert taken(shelf) == [0, 1]


def test_rows_that_were_lent_before_a_loss_wait_until_the_leader_has_said_what_is_left() -> None:
    shelf = ordered()
    batch = pa.RecordBatch.from_pydict({"k": ["a", None]}, schema=SCHEMA)
    lease = HeldLease(0, LeaseId(1, 0, 0), [(0, 2)], [1], [0], 30.0, 0.0)
    lease.order, lease.order_by = pb.ORDER_KEY, "k"
    rows = Rows(lease, 0, batch, 7, "t", True)
    shelf.put(rows)
    shelf.doubt(rows)
    assert taken(shelf) == [1]
    assert [indexes.tolist() for _, indexes in shelf.take_doubts(5.0)] == [[0]]
    shelf.checked(lease, np.array([0]), 5.0)
    assert taken(shelf) == [0]


def test_what_was_on_the_shelf_before_the_queue_was_in_order_is_in_none() -> None:
    before = Shelf()
    put(before, 0, "aaa", order=pb.ORDER_NONE)
    assert before.take() is not None
    assert taken(OrderedShelf(before)) == [1, 2]
