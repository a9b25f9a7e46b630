"""Records of a queue that is in order: one of a key is handed out at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mq_client.queueing.leases import DONE, LOST, HeldLease, LeaseId
from mq_client.queueing.ordered_shelf import OrderedShelf
from mq_client.queueing.shelf import Rows, Shelf
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


def test_the_next_record_of_a_key_comes_once_the_one_before_has_an_outcome() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "aab b")
    assert taken(shelf) == [0, 2, 3]
    assert not shelf, "nothing may be handed out"
    shelf.acknowledge(lease, [0])
    assert shelf
    assert taken(shelf) == [1]
    shelf.acknowledge(lease, [2, 1])
    assert taken(shelf) == [4]


def test_a_key_goes_on_in_a_later_lease() -> None:
    shelf = ordered()
    first = put(shelf, 0, "ab")
    put(shelf, 5, "ba", number=1)
    assert taken(shelf) == [0, 1]
    shelf.acknowledge(first, [1])
    assert taken(shelf) == [5]
    shelf.acknowledge(first, [0])
    assert taken(shelf) == [6]


def test_with_all_in_order_one_record_is_handed_out_at_a_time() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "abc", order=pb.ORDER_ALL)
    for offset in range(3):
        assert taken(shelf) == [offset]
        shelf.acknowledge(lease, [offset])


def test_what_is_lost_is_not_handed_out_and_does_not_hold_up_its_key() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "aaa")
    assert taken(shelf) == [0]
    lease.end(np.array([1]), LOST)
    shelf.acknowledge(lease, [0])
    assert taken(shelf) == [2]


def test_a_batch_has_rows_of_a_key_that_follow_one_another_and_keys_that_are_free() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "abab c")
    assert shelf.take() is not None  # the first a
    lent = shelf.take_rows(10)
    assert lent is not None
    assert lent.indexes.tolist() == [1, 3, 4, 5]
    assert lent.rows.column("k").to_pylist() == ["b", "b", None, "c"]
    assert shelf.take_rows(10) is None
    assert shelf.overtaken(lease, np.array([3])) == 1
    assert shelf.overtaken(lease, np.array([1, 3])) is None
    shelf.acknowledge(lease, [0])
    again = shelf.take_rows(10)
    assert again is not None
    assert again.indexes.tolist() == [2]


def test_a_batch_is_of_one_lease_and_of_no_more_rows_than_asked_for() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "aaa")
    put(shelf, 3, "ab", number=1)
    lent = shelf.take_rows(2)
    assert lent is not None
    assert lent.indexes.tolist() == [0, 1]
    other = shelf.take_rows(5)
    assert other is not None
    assert (other.lease is lease, other.indexes.tolist()) == (False, [1]), "b: a is in other hands"
    shelf.acknowledge(lease, [0])
    assert shelf.take_rows(5) is None
    shelf.acknowledge(lease, [1])
    third = shelf.take_rows(5)
    assert third is not None
    assert (third.lease is lease, third.indexes.tolist()) == (True, [2])


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


def test_an_answer_about_other_records_ends_no_doubt_that_was_not_asked_about_yet() -> None:
    shelf = ordered()
    first = put(shelf, 0, "aa")
    second = put(shelf, 2, "b", number=1)
    assert taken(shelf) == [0, 2]
    shelf.end(first, [0], doubt=True)
    shelf.checked(second, np.array([0]), 9.0)
    assert taken(shelf) == []
    [(lease, indexes)] = shelf.take_doubts(5.0)
    assert (lease is first, indexes.tolist()) == (True, [1])
    shelf.checked(first, np.array([1]), 5.0)
    assert taken(shelf) == [1]


def test_after_a_lost_record_that_waited_its_key_waits_and_others_go_on() -> None:
    shelf = ordered()
    first = put(shelf, 0, "aab")
    second = put(shelf, 3, "ab", number=1)
    assert taken(shelf) == [0, 2]
    shelf.end(first, [1], doubt=True)
    first.end(np.array([1]), LOST)
    shelf.acknowledge(first, [0, 2])
    assert taken(shelf) == [4], "the key of no lost record goes on"
    [(lease, indexes)] = shelf.take_doubts(5.0)
    assert (lease is second, indexes.tolist()) == (True, [0])
    assert taken(shelf) == []
    shelf.checked(second, np.array([0]), 5.0)
    assert taken(shelf) == [3]


def test_what_the_leader_was_asked_before_a_loss_is_no_answer_to_it() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "aaa")
    assert taken(shelf) == [0]
    shelf.end(lease, [0], doubt=True)
    shelf.take_doubts(5.0)
    shelf.checked(lease, np.array([1, 2]), 4.9)
    assert taken(shelf) == []
    shelf.end(lease, [1], doubt=True)  # heard while the question is on its way
    lease.end(np.array([1]), LOST)
    shelf.take_doubts(7.0)
    shelf.checked(lease, np.array([1, 2]), 5.0)
    assert taken(shelf) == []
    shelf.checked(lease, np.array([2]), 7.0)
    assert taken(shelf) == [2]


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


def test_a_doubt_about_nothing_that_waits_ends_at_once() -> None:
    shelf = ordered()
    lease = put(shelf, 0, "aa")
    assert taken(shelf) == [0]
    shelf.end(lease, [0], doubt=True)
    lease.end(np.array([1]), DONE)
    assert shelf.take_doubts(5.0) == []
    put(shelf, 9, "a", number=1)
    assert taken(shelf) == [9]


def test_nothing_is_remembered_of_a_lease_once_all_of_it_has_its_answer() -> None:
    shelf = ordered()
    for number in range(3):
        lease = put(shelf, 2 * number, "ab", number=number)
        assert len(taken(shelf)) == 2
        shelf.acknowledge(lease, [0])
        shelf.end(lease, [0], doubt=False)
        shelf.end(lease, [1], doubt=False)  # it went back
        assert (shelf._begun, shelf._acked, shelf._busy, shelf._kept) == ({}, {}, {}, {})


def test_nothing_is_remembered_of_what_was_lost_while_it_was_read() -> None:
    shelf = ordered()
    lease = HeldLease(0, LeaseId(1, 0, 0), [(0, 2)], [1], [0], 30.0, 0.0)
    lease.order, lease.order_by = pb.ORDER_KEY, "k"
    shelf.end(lease, [0, 1], doubt=True)
    lease.end(np.array([0, 1]), LOST)
    shelf.put(Rows(lease, 0, pa.RecordBatch.from_pydict({"k": ["a", None]}, schema=SCHEMA), 7, "t", True))
    assert taken(shelf) == []
    assert (shelf._kept, shelf._waiting, shelf._free) == ({}, {}, [])


def test_what_was_on_the_shelf_before_the_queue_was_in_order_is_in_none() -> None:
    before = Shelf()
    put(before, 0, "aaa", order=pb.ORDER_NONE)
    assert before.take() is not None
    assert taken(OrderedShelf(before)) == [1, 2]
