"""Clients that reach one broker of three: the others have names that mean nothing here. The one that is reached passes
on what is meant for them, while they are killed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from mq_client import Admin, Consumer, Lock, Producer, Queue, Reader
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.offset_watch import OffsetWatch
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.traffic import WAIT_S, Taking, Traffic
from tests.hidden import hide
from tests.mq_cli.processes import tritonmq_process

pytestmark = pytest.mark.cluster

PARTITIONS = 3


@pytest.fixture
def hidden(tmp_path: Path, zookeeper: str) -> Iterator[Cluster]:
    root = f"{zookeeper}/{uuid.uuid4().hex}"
    cluster = hide(Cluster(tmp_path / "hidden", 3, zookeeper=root, arguments=("--session-timeout-ms", "2000")))
    with cluster:
        cluster._admin = Admin(cluster.brokers[1].address, 60_000, forward=True)
        yield cluster


def numbers(bootstrap: str, partition: int) -> list[int]:
    with Reader(bootstrap, 60_000, forward=True) as reader:
        batches = list(reader.read("t", partition))
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.long
def test_each_record_is_there_once_while_leaders_are_killed(hidden: Cluster) -> None:
    one = hidden.brokers[1].address
    hidden.admin.create_topic("t", partitions=PARTITIONS, replicas=3, durability="os")
    hidden.admin.declare_queue("t", "workers")
    # From the first record on: they open their partitions in threads, and the traffic does not wait for that
    alone = Consumer(one, start="earliest", forward=True)
    alone.subscribe("t")
    member = Consumer(one, group="g", start="earliest", settle_ms=50, forward=True)
    member.subscribe("t")
    queue = Queue(one, "t", "workers", forward=True)
    taking = [
        Taking(alone, alone.stop),
        Taking(member, member.stop),
        Taking(queue, queue.close, lambda record: record.ack()),
    ]
    watch = OffsetWatch(Connection(one, forward=True), ["t"])
    watch.wait_first(Deadline(60_000))
    traffic = Traffic(one, "t", PARTITIONS, forward=True)
    traffic.until_acknowledged()
    for killed in (2, 3):
        hidden.kill(killed)
        hidden.wait_for_leaders("t", other_than=killed, deadline_s=WAIT_S)
        traffic.until_acknowledged()
        hidden.restart(killed)
        hidden.wait_for_isr("t", 3, WAIT_S)
        traffic.until_acknowledged()
    count = traffic.end()
    for partition in range(PARTITIONS):
        assert numbers(one, partition) == list(range(partition, count, PARTITIONS))
    for each in taking:
        wait_until(lambda each=each: set(each.numbers) >= set(range(count)), f"{each.client} has all", WAIT_S)  # type: ignore[misc]
        each.end()
    for partition in range(PARTITIONS):  # who is told everything is told it in order
        seen = [number for number in taking[0].numbers if number % PARTITIONS == partition]
        assert seen[: len(range(partition, count, PARTITIONS))] == list(range(partition, count, PARTITIONS))
    ends = {partition: len(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)}
    wait_until(lambda: {p: end for p, (_, end) in watch.latest()["t"].items()} == ends, "the ends are watched", WAIT_S)
    watch.close()


def test_every_client_and_the_command_line_reach_every_broker(hidden: Cluster) -> None:
    one = hidden.brokers[1].address
    hidden.admin.create_topic("n", partitions=PARTITIONS, replicas=1, schema="n long")
    hidden.admin.declare_queue("n", "workers")
    hidden.wait_for_leaders("n", deadline_s=WAIT_S)
    with Producer(one, forward=True) as producer:
        for partition in range(PARTITIONS):
            rows = pa.RecordBatch.from_pydict({"n": range(1_000)}, schema=pa.schema([("n", pa.int64())]))
            producer.publish_batch("n", rows, partition=partition).result(WAIT_S)
    with Reader(one, forward=True) as reader:
        for partition in range(PARTITIONS):
            found = [n for rows in reader.read("n", partition) for n in rows.column("n").to_pylist()]
            assert found == list(range(1_000))
    with Consumer(one, group="g", start="earliest", idle_ms=60_000, forward=True) as consumer:
        consumer.subscribe("n")
        assert len(list(islice(consumer, 3_000))) == 3_000
    with Queue(one, "n", "workers", idle_ms=60_000, forward=True) as queue:
        next(iter(queue)).ack()
    with Lock(one, "lock", 60_000, forward=True) as lock:
        assert lock.token
    wait_until(
        lambda: sorted(broker.id for broker in hidden.admin.observe("broker").brokers) == [1, 2, 3],
        "each of them says itself that it is there",
    )
    status = ("cluster", "status", "--bootstrap", one, "--forward", "--check")
    wait_until(lambda: tritonmq_process(*status).returncode == 0, "the command finds all well")
    consumed = tritonmq_process("consume", "n", "--bootstrap", one, "--forward", "--from", "earliest", "--exit-at-end")
    assert len(consumed.stdout.splitlines()) == 3_000, consumed.stderr


def test_another_address_is_used_once_the_first_one_is_gone(hidden: Cluster) -> None:
    both = f"{hidden.brokers[1].address},{hidden.brokers[2].address}"
    hidden.admin.create_topic("t", partitions=PARTITIONS, replicas=3, durability="os")
    traffic = Traffic(both, "t", PARTITIONS, forward=True)
    traffic.until_acknowledged()
    hidden.admin.close()
    hidden._admin = Admin(hidden.brokers[2].address, 60_000, forward=True)
    hidden.kill(1)
    hidden.wait_for_leaders("t", other_than=1, deadline_s=WAIT_S)
    traffic.until_acknowledged()
    count = traffic.end()
    for partition in range(PARTITIONS):
        assert numbers(both, partition) == list(range(partition, count, PARTITIONS))
