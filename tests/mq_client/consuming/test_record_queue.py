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
from mq_client.errors import UnknownTopic
from mq_client.producing.batches import records_to_batch
from mq_protocol.arrow import RECORD_SCHEMA, encode_batch
from mq_protocol.sql.ddl import parse_schema


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
            self.queue.put(Chunk(place, base, count, 9, payload, RECORD_SCHEMA, False, row, self._release))
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
    assert pushed.queue.get(timeout=5).offset == 7
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


def test_a_subscription_that_ended_raises_once_its_records_are_taken() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    pushed.push(place, 0, 1)
    pushed.queue.error = UnknownTopic("deleted")
    assert pushed.queue.get_nowait().offset == 0
    with pytest.raises(UnknownTopic):
        pushed.queue.get(timeout=5)


def test_a_closed_queue_does_not_wait() -> None:
    pushed = Pushed()
    pushed.queue.close()
    with pytest.raises(queue.Empty):
        pushed.queue.get()


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


def test_a_typed_record_is_a_row() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": "x"}], parse_schema("a long, b string"))
    [record] = batch_to_records(batch, "t", 0, 5, 77, typed=True)
    assert record == ConsumerRecord("t", 0, 5, None, {"a": 1, "b": "x"}, (), 77)


def test_a_wait_that_is_no_number_has_passed_and_one_without_end_is_one() -> None:
    pushed, place = Pushed(), PartitionPlace("t", 0)
    with pytest.raises(queue.Empty):
        pushed.queue.get(timeout=math.nan)
    threading.Timer(0.02, pushed.push, (place, 7, 1)).start()
    assert pushed.queue.get(timeout=math.inf).offset == 7
