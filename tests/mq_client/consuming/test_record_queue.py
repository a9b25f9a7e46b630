"""What was pushed waits as batches, is taken as records, and gives its credit back exactly once."""

from __future__ import annotations

import math
import queue
import threading
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mq_client.consuming.record_queue import Chunk, ConsumerRecord, PartitionPlace, RecordQueue, batch_to_records
from mq_client.producing.batches import records_to_batch
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from tests.mq_client.consuming.played_subscription import shared_batch


class Pushed:
    """Owns a queue and the credit that came back."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.queue = RecordQueue("t", self.changed)
        self.given_back = 0
        self.pushed = 0

    def push(self, place: PartitionPlace, base: int, count: int, row: int = 0) -> None:
        values = [b"%d" % at for at in range(base, base + count)]
        payload = memoryview(encode_batch(records_to_batch([None] * count, values, [None] * count, [0] * count)))
        self.pushed += len(payload)
        with self.changed:
            batch = shared_batch(payload, base, count, partition=place.partition, timestamp_us=9)
            self.queue.put(Chunk(place, batch, RECORD_SCHEMA, 1, False, row, self._release))
            self.changed.notify_all()

    def _release(self, count: int) -> None:
        self.given_back += count


def test_records_come_in_order_and_credit_comes_back_with_the_last_of_a_batch() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 3)
    pushed.push(place, 10, 2)
    first = pushed.queue.get_nowait()
    assert (first.topic, first.partition, first.offset, first.value) == ("t", 3, 10, b"10")
    assert pushed.given_back == 0
    assert pushed.queue.qsize() == 1
    assert pushed.queue.get_nowait().offset == 11
    assert pushed.given_back == pushed.pushed
    assert pushed.queue.empty()
    with pytest.raises(queue.Empty):
        pushed.queue.get_nowait()


def test_a_record_is_done_with_when_the_next_is_asked_for_even_if_there_is_none() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    pushed.push(place, 0, 2)
    pushed.queue.get_nowait()
    assert (place.taken, place.processed) == (1, -1)
    pushed.queue.get_nowait()
    assert (place.taken, place.processed) == (2, 1)
    with pytest.raises(queue.Empty):
        pushed.queue.get(timeout=0.01)
    assert place.processed == 2


def test_get_waits_for_what_is_pushed() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    threading.Timer(0.05, pushed.push, (place, 7, 1)).start()
    assert pushed.queue.get(timeout=30).offset == 7
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        pushed.queue.get(timeout=0.05)
    assert time.monotonic() - began >= 0.05


def test_what_another_member_was_given_is_dropped_and_its_credit_comes_back() -> None:
    pushed, mine, other = Pushed(), PartitionPlace("t", 0), PartitionPlace("t", 1)
    pushed.push(mine, 0, 2)
    pushed.push(mine, 2, 3)
    pushed.push(other, 0, 1)
    size = pushed.queue.qsize()
    pushed.queue.drop(mine, below=3)
    assert pushed.queue.qsize() == size - 3
    assert [pushed.queue.get_nowait().offset for _ in range(2)] == [3, 4]
    pushed.queue.drop(other)
    assert pushed.queue.empty()
    assert pushed.given_back == pushed.pushed


def test_a_record_has_its_own_time_else_the_brokers() -> None:
    batch = records_to_batch([b"k", None], [b"v", None], [[("h", b"1")], None], [5, 2**62])
    first, second = batch_to_records(batch, "t", 1, 100, 77, typed=False)
    assert first == ConsumerRecord("t", 1, 100, b"k", b"v", (("h", b"1"),), 5)
    assert first.time == datetime(1970, 1, 1, 0, 0, 0, 5, UTC)
    assert second.timestamp == 2**62
    with pytest.raises(OverflowError):
        _ = second.time
    without = batch.set_column(3, RECORD_SCHEMA.field(3), pa.nulls(2, RECORD_SCHEMA.field(3).type))
    assert [record.timestamp for record in batch_to_records(without, "t", 1, 100, 77, typed=False)] == [77, 77]


def test_a_wait_that_is_no_number_has_passed_and_one_without_end_is_one() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    with pytest.raises(queue.Empty):
        pushed.queue.get(timeout=math.nan)
    threading.Timer(0.02, pushed.push, (place, 7, 1)).start()
    assert pushed.queue.get(timeout=math.inf).offset == 7


def test_a_batch_that_was_taken_in_part_before_goes_on_behind_that() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    pushed.push(place, 10, 3, row=1)
    assert pushed.queue.qsize() == 2
    assert not pushed.queue.at_batch_end
    assert [pushed.queue.get_nowait().offset for _ in range(2)] == [11, 12]
    assert pushed.queue.at_batch_end
    pushed.push(place, 13, 1)
    assert pushed.queue.at_batch_end


def test_what_is_dropped_below_an_offset_leaves_what_was_taken_already_taken() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    pushed.push(place, 0, 4)
    assert [pushed.queue.get_nowait().offset for _ in range(2)] == [0, 1]
    pushed.queue.drop(place, below=1)
    assert pushed.given_back == 0
    assert pushed.queue.get_nowait().offset == 2
    assert place.processed == 2
    pushed.queue.drop(place, below=4)
    assert pushed.given_back == pushed.pushed


def test_a_record_in_hand_is_not_done_with_once_another_member_has_its_partition() -> None:
    pushed, mine, other = Pushed(), PartitionPlace("t", 0), PartitionPlace("t", 1)
    pushed.push(mine, 0, 2)
    pushed.queue.get_nowait()
    pushed.queue.drop(other)
    pushed.queue.drop(mine, below=0)
    pushed.queue.done_with_last()
    assert mine.processed == 1
    pushed.queue.get_nowait()
    pushed.queue.drop(mine)
    pushed.queue.done_with_last()
    assert mine.processed == 1


def test_a_closed_queue_takes_nothing_more_and_hands_nothing_out() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    pushed.push(place, 0, 2)
    pushed.queue.close()
    pushed.push(place, 2, 2)
    assert pushed.queue.empty()
    with pytest.raises(queue.Empty):
        pushed.queue.get_nowait()
