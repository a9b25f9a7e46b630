"""Lease mode as Spark calls it, on a real broker and without Spark: what is lent, run again, settled and lost."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from mq_client import Admin, Producer, Queue
from mq_dev.local_cluster import LocalCluster
from mq_protocol.errors import InvalidSetting, LeaseLost, SchemaMismatch
from mq_spark.datasource.lease_readers import LeaseReader, read_work
from mq_spark.datasource.securing import with_environment
from mq_spark.datasource.source import TritonMQSource
from mq_spark.planning.options import parse_source
from tests.mq_spark.datasource.calls import counts

WANTED = StructType().add("deliveries", IntegerType()).add("value", BinaryType()).add("failures", IntegerType())
WITHIN_S = 30.0


@pytest.fixture
def topic(admin: Admin) -> str:
    """Of two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=2)
    return name


def publish(bootstrap: str, topic: str, *values: str) -> None:
    with Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.publish(topic, value.encode(), partition=number % 2)


class Run:
    """One run of a query: owns its reader, and the offset that Spark would have written down last."""

    def __init__(self, bootstrap: str, topic: str, at: dict[str, Any] | None = None, **options: Any) -> None:
        given = {"bootstrap.servers": bootstrap, "subscribe": topic, "lease.group": "g", "lease.member": "m"}
        given |= {name.replace("_", "."): str(value) for name, value in options.items()}
        self.options = parse_source(with_environment(given), streaming=True)
        assert self.options.lease is not None
        self.reader = LeaseReader(self.options, self.options.lease, WANTED)
        self.at = self.reader.initialOffset() if at is None else at

    def lent(self) -> dict[str, Any]:
        """The end of the next micro-batch; waits until there is one."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            end = self.asked()
            if end != self.at:
                return end
            time.sleep(0.02)
        raise AssertionError("nothing was lent")

    def asked(self) -> dict[str, Any]:
        end = self.reader.latestOffset(json.loads(json.dumps(self.at)), self.reader.getDefaultReadLimit())
        return json.loads(json.dumps(end))

    def rows(self, end: dict[str, Any]) -> list[tuple[str, int, int]]:
        """Value, deliveries and failures of the micro-batch up to `end`."""
        work = self.reader.partitions(self.at, end)
        batches = [batch for each in work for batch in read_work(self.options, WANTED, each)]
        assert all(batch.schema.names == WANTED.names for batch in batches)
        table = pa.Table.from_batches(batches).to_pylist() if batches else []
        return sorted((row["value"].decode(), row["deliveries"], row["failures"]) for row in table)

    def die(self) -> None:
        """Without a word to the brokers."""
        self.reader.stop()


def test_a_micro_batch_is_lent_and_settled_when_spark_has_committed_it(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    publish(bootstrap, topic, "a", "b", "c")
    run = Run(bootstrap, topic)
    end = run.lent()
    assert run.rows(end) == [("a", 1, 0), ("b", 1, 0), ("c", 1, 0)]
    assert counts(admin, topic) == (0, 3, 0)
    run.at = end
    assert run.asked() == end
    assert counts(admin, topic) == (0, 0, 3)
    run.reader.commit(end)  # said again, it changes nothing
    assert counts(admin, topic) == (0, 0, 3)
    run.die()


def test_a_micro_batch_that_was_not_committed_comes_again_with_the_same_rows(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    publish(bootstrap, topic, *"abcdef")
    former = Run(bootstrap, topic, maxOffsetsPerTrigger=4)
    end = former.lent()
    rows = former.rows(end)
    assert len(rows) == 4
    former.die()
    run = Run(bootstrap, topic, at=former.at)
    assert run.rows(end) == rows
    run.at = end
    assert [row[1:] for row in run.rows(run.lent())] == [(1, 0), (1, 0)]
    assert counts(admin, topic) == (0, 2, 4)
    run.die()


def test_the_last_micro_batch_is_settled_when_the_query_starts_again(bootstrap: str, admin: Admin, topic: str) -> None:
    publish(bootstrap, topic, "a", "b")
    former = Run(bootstrap, topic)
    end = former.lent()
    former.die()
    assert counts(admin, topic) == (0, 2, 0)
    run = Run(bootstrap, topic, at=end)
    assert run.asked() == end
    assert counts(admin, topic) == (0, 0, 2)
    run.die()


def test_records_that_others_were_lent_meanwhile_stop_the_query_or_are_left_out(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    publish(bootstrap, topic, "a", "b", "c")
    former = Run(bootstrap, topic, lease_ms=1000)
    end = former.lent()
    former.die()
    with Queue(bootstrap, topic, "g", in_flight_max=1) as other:
        taken = other.take(timeout_ms=WITHIN_S * 1000)
        assert taken is not None
        run = Run(bootstrap, topic, at=former.at)
        with pytest.raises(LeaseLost, match=rf"partition {taken.partition} offset .*Set leaseLost=skip"):
            run.reader.partitions(former.at, end)
        run.die()
        run = Run(bootstrap, topic, at=former.at, leaseLost="skip")
        assert taken.value.decode() not in [row[0] for row in run.rows(end)]
        taken.ack()
        run.die()


def test_leases_are_extended_while_spark_works(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.declare_queue(topic, "g", retry_ms=0)
    publish(bootstrap, topic, "a")
    run = Run(bootstrap, topic, lease_ms=12_000)  # two thirds of it outlast a stall
    end = run.lent()
    with Queue(bootstrap, topic, "g") as other:
        assert other.take(timeout_ms=16_000) is None
    run.reader.commit(end)
    assert sum(part.returned for part in admin.describe_queue(topic, "g").partitions) == 0
    assert counts(admin, topic) == (0, 0, 1)
    run.die()


def test_a_query_keeps_its_leases_though_their_leader_is_killed(tmp_path: Path) -> None:
    """The next one keeps leases for ten seconds, unless their member names them."""
    with LocalCluster(tmp_path) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=2)
        publish(cluster.bootstrap, "t", "a", "b", "c")
        run = Run(cluster.bootstrap, "t")
        end = run.lent()
        cluster.kill(1)
        cluster.restart(1)
        with Queue(cluster.bootstrap, "t", "g") as other:
            assert other.take(timeout_ms=13_000) is None
        run.reader.commit(end)
        assert counts(admin, "t") == (0, 0, 3)
        run.die()


def test_failed_records_come_again_and_say_how_often_they_failed(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.declare_queue(topic, "g", retry_ms=0)
    publish(bootstrap, topic, "a", "b", "c")
    with Queue(bootstrap, topic, "g", in_flight_max=1) as other:
        taken = other.take(timeout_ms=WITHIN_S * 1000)
        assert taken is not None
        taken.fail("no").result(timeout=WITHIN_S)
    run = Run(bootstrap, topic)
    rows = {value: (deliveries, failures) for value, deliveries, failures in run.rows(run.lent())}
    deliveries, failures = rows.pop(taken.value.decode())
    assert (failures, deliveries in (2, 3)) == (1, True), (
        "it may have been lent to the other once more before that ended"
    )
    assert [failures for _, failures in rows.values()] == [0, 0]
    run.die()


def test_a_query_that_ends_by_itself_works_off_what_was_ready_when_it_began(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    publish(bootstrap, topic, *"abcde")
    former = Run(bootstrap, topic, maxOffsetsPerTrigger=2)
    former.lent()
    former.die()
    run = Run(bootstrap, topic, at=former.at, maxOffsetsPerTrigger=2)
    run.reader.prepareForTriggerAvailableNow()
    seen: list[str] = []
    while (end := run.asked()) != run.at:
        if not seen:
            publish(bootstrap, topic, "later")
        seen += [row[0] for row in run.rows(end)]
        run.at = end
    assert (len(seen), counts(admin, topic)) == (5, (1, 0, 5))
    run.die()


def test_partitions_that_are_added_are_worked_off_by_a_running_query(bootstrap: str, admin: Admin, topic: str) -> None:
    run = Run(bootstrap, topic)
    assert run.asked() == run.at
    admin.alter_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        producer.publish(topic, b"new", partition=2)
    assert run.rows(run.lent()) == [("new", 1, 0)]
    run.die()


def test_a_queue_that_keeps_an_order_is_refused(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.declare_queue(topic, "g", order="key")
    with pytest.raises(InvalidSetting, match="order=key, which the parallel tasks of Spark cannot keep"):
        Run(bootstrap, topic)


def test_counts_are_columns_of_records_and_with_metadata_of_typed_topics(
    bootstrap: str, admin: Admin, topic: str
) -> None:
    given = {"bootstrap.servers": bootstrap, "lease.group": "g", "lease.member": "m"}
    assert TritonMQSource({**given, "subscribe": topic}).schema().names[-2:] == ["deliveries", "failures"]
    typed = f"{topic}.typed"
    admin.create_topic(typed, partitions=1, schema=pa.schema([("_failures", pa.string())]))
    assert TritonMQSource({**given, "subscribe": typed}).schema().names == ["_failures"]
    with pytest.raises(SchemaMismatch, match="adds the column _failures"):
        TritonMQSource({**given, "subscribe": typed, "includeMetadata": "true"}).schema()
    options = parse_source(with_environment({**given, "subscribe": topic}), streaming=True)
    assert options.lease is not None
    with pytest.raises(SchemaMismatch, match="'failures' is int"):
        LeaseReader(options, options.lease, StructType().add("failures", LongType())).initialOffset()
