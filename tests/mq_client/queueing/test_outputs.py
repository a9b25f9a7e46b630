"""What is published together with an ack, at a real broker."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa
import pytest

from mq_client import Admin, BatchTooLarge, InvalidRequest, LeaseLost, Overloaded, Producer, Queue, SchemaMismatch
from mq_client.administration.peek import peek
from mq_protocol.limits import OUTPUT_PARTITIONS_MAX
from tests.cluster.harness import wait_until

WAIT_MS = 30_000


def read(admin: Admin, topic: str) -> list[str]:
    return sorted(str(record.value) for record in peek(admin._connection, topic, {}, 100, WAIT_MS))


def test_outputs_are_seen_once_their_records_are_acknowledged(admin: Admin, bootstrap: str, topic: str) -> None:
    done = f"{topic}-done"
    admin.create_topic(topic)
    admin.create_topic(done, partitions=3)
    with Producer(bootstrap) as producer:
        for value in ("a", "b", "c"):
            producer.publish(topic, value)
    with Queue(bootstrap, topic, "g", idle_ms=WAIT_MS) as queue:
        for record in islice(queue, 4):  # c comes twice
            outputs = queue.outputs()
            assert record.value is not None
            outputs.publish(done, record.value.upper(), key=record.value, headers={"from": b"test"})
            if record.value == b"c":
                record.release() if record.deliveries == 1 else record.ack()
                continue
            record.ack(outputs=outputs).result(30)
            with pytest.raises(InvalidRequest, match="given to an ack before"):
                outputs.publish(done, "again")
    wait_until(lambda: read(admin, done) == ["b'A'", "b'B'"], "the outputs of a and b, and nothing of c")
    assert admin.describe_queue(topic, "g").ready == 0


def test_rows_are_acknowledged_together_with_a_table(admin: Admin, bootstrap: str, topic: str) -> None:
    sums = f"{topic}-sums"
    admin.create_topic(topic, schema="n long")
    admin.create_topic(sums, partitions=2, schema="n long, name string")
    with Producer(bootstrap) as producer:
        producer.publish_batch(topic, pa.table({"n": range(10)}))
    with Queue(bootstrap, topic, "g", idle_ms=WAIT_MS) as queue:
        batch = next(queue.batches())
        outputs = queue.outputs()
        outputs.publish_batch(sums, pa.table({"n": batch.rows.column("n"), "name": ["x"] * len(batch)}), partition=1)
        outputs.publish(sums, {"n": 45, "name": "sum"}, key="k")
        with pytest.raises(SchemaMismatch):
            outputs.publish(sums, {"n": 45, "nam": "sum"})
        batch.ack(outputs=outputs).result(30)
        assert admin.describe_queue(topic, "g").partitions[0].base == 10
    wait_until(lambda: len(read(admin, sums)) == 11, "all rows")


def test_what_one_ack_publishes_is_bounded(admin: Admin, bootstrap: str, topic: str) -> None:
    most, wide = OUTPUT_PARTITIONS_MAX, f"{topic}-wide"
    admin.create_topic(wide, partitions=most + 1, record_bytes_max="1000", durability="memory")
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, "a")
    with Queue(bootstrap, topic, "g") as queue:
        record = queue.take(WAIT_MS)
        outputs = queue.outputs()
        assert record is not None
        with pytest.raises(BatchTooLarge):
            outputs.publish(wide, b"x" * 2000)
        for partition in range(most):
            outputs.publish(wide, "b", partition=partition)
        with pytest.raises(Overloaded, match=f"{most} partitions"):
            outputs.publish(wide, "b", partition=most)
        large = queue.outputs()
        for _ in range(64):
            large.publish(topic, bytes(1_040_000))
        with pytest.raises(Overloaded, match="at most 64 MiB"):
            large.publish(topic, bytes(1_040_000))
        record.ack()
        with pytest.raises(InvalidRequest, match="has an outcome already"):
            record.ack(outputs=outputs)


def test_of_a_record_that_is_another_members_nothing_is_published(admin: Admin, bootstrap: str, topic: str) -> None:
    done = f"{topic}-done"
    admin.create_topic(topic)
    admin.create_topic(done)
    with Producer(bootstrap) as producer:
        producer.publish(topic, "job")
    with Queue(bootstrap, topic, "g", lease_ms=1_000) as slow:
        mine = slow.take(WAIT_MS)
        assert mine is not None
        late = slow.outputs()
        late.publish(done, "late")
        with Queue(bootstrap, topic, "g") as quick:  # had it asked before, it might have been lent the record first
            theirs = quick.take(WAIT_MS)
            assert theirs is not None
            assert theirs.offset == mine.offset
            outputs = quick.outputs()
            outputs.publish(done, "in time")
            theirs.ack(outputs=outputs).result(30)
        with pytest.raises(LeaseLost):
            mine.ack(outputs=late).result(30)
    wait_until(lambda: read(admin, done) == ["b'in time'"], "the output of the member that had it")
