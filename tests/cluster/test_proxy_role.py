"""Clients that reach a proxy alone (`tritonmq broker --role proxy`), while leaders are killed, and the proxy itself."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_client import Admin, Consumer, Producer, Queue
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST, BrokerProcess
from tests import switch
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.test_forwarding import PARTITIONS, numbers
from tests.cluster.traffic import WAIT_S, Taking, Traffic
from tests.hidden import hide
from tests.mq_cli.processes import Command, tritonmq_process

pytestmark = pytest.mark.cluster

ID = 9


class Proxied(Cluster):
    """Owns a cluster whose brokers no client reaches, and the proxy before it."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        arguments = ("--session-timeout-ms", "2000")
        super().__init__(directory, 3, zookeeper=zookeeper, arguments=arguments, http=True)
        hide(self)
        arguments = (*self.arguments, "--role", "proxy")
        self.proxy = BrokerProcess(ID, free_port(HOST), self.directory, arguments)

    def start_proxy(self) -> None:
        """Return once it answers."""
        self.proxy.start()

        def answers() -> bool:
            assert self.proxy.status is None, self.proxy.last_words()
            return bool(self.admin.describe_cluster().brokers)

        wait_until(answers, f"the proxy answers; {self.proxy.last_words()}", WAIT_S)

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.proxy.address, 60_000, forward=True)
        return self._admin

    def stop(self) -> None:
        self.proxy.terminate()
        if not self.proxy.wait(30):
            self.proxy.kill()
        super().stop()


@pytest.fixture
def proxied(tmp_path: Path, zookeeper: str) -> Iterator[Proxied]:
    cluster = Proxied(tmp_path / "cluster", f"{zookeeper}/{uuid.uuid4().hex}")
    with cluster:
        cluster.start_proxy()
        yield cluster


@pytest.mark.long
def test_each_record_is_there_once_while_leaders_and_the_proxy_are_killed(proxied: Proxied) -> None:
    address = proxied.proxy.address
    proxied.admin.create_topic("t", partitions=PARTITIONS, replicas=3, durability="os")
    proxied.admin.declare_queue("t", "workers")
    alone = [Consumer(address, start="earliest", forward=True) for _ in range(2)]
    member = Consumer(address, group="g", start="earliest", settle_ms=50, forward=True)
    for consumer in (*alone, member):
        consumer.subscribe("t")
    queue = Queue(address, "t", "workers", forward=True)
    taking = [Taking(consumer, consumer.stop) for consumer in (*alone, member)]
    taking.append(Taking(queue, queue.close, lambda record: record.ack()))
    traffic = Traffic(address, "t", PARTITIONS, forward=True)
    traffic.until_acknowledged()
    for killed in (2, 3):
        proxied.kill(killed)
        proxied.wait_for_leaders("t", other_than=killed, deadline_s=WAIT_S)
        traffic.until_acknowledged()
        proxied.proxy.kill()
        proxied.start_proxy()
        traffic.until_acknowledged()
        proxied.restart(killed)
        proxied.wait_for_isr("t", 3, WAIT_S)
        traffic.until_acknowledged()
    count = traffic.end()
    for partition in range(PARTITIONS):
        assert numbers(address, partition) == list(range(partition, count, PARTITIONS))
    for each in taking:
        wait_until(lambda each=each: set(each.numbers) >= set(range(count)), f"{each.client} has all", WAIT_S)  # type: ignore[misc]
        each.end()
    for partition in range(PARTITIONS):
        for each in taking[: len(alone)]:  # who is told everything is told it once, in order
            seen = [number for number in each.numbers if number % PARTITIONS == partition]
            assert seen == list(range(partition, count, PARTITIONS))


@pytest.mark.long
def test_its_presence_changes_nothing_of_the_cluster(proxied: Proxied) -> None:
    address = proxied.proxy.address
    proxied.admin.create_topic("t", partitions=12, replicas=3, min_insync_replicas="3")
    proxied.wait_for_isr("t", 3, WAIT_S)
    held = [partition.replicas for partition in proxied.admin.describe_topic("t").partitions]
    assert {broker for replicas in held for broker in replicas} == {1, 2, 3}
    status = tritonmq_process("cluster", "status", "--bootstrap", address, "--forward", "--json")
    assert status.returncode == 0, status.stderr
    assert sorted(broker["id"] for broker in json.loads(status.stdout)["brokers"]) == [1, 2, 3]
    checked = tritonmq_process("cluster", "status", "--bootstrap", address, "--forward", "--check")
    assert checked.returncode == 0, checked.stdout
    with Producer(address, forward=True) as producer:
        producer.publish("t", b"1", partition=0).result(WAIT_S)
    assert all(ID not in move.target for move in proxied.admin.plan_balance())
    kept = proxied.proxy.data_dir
    assert [each.name for each in kept.iterdir()] == ["audit.log"] if switch.is_on() else not kept.exists()


@pytest.mark.long
def test_subscribers_of_many_processes_take_from_the_leader_what_one_would(proxied: Proxied) -> None:
    address = proxied.proxy.address
    proxied.admin.create_topic("t", partitions=1, replicas=3)
    leader = proxied.brokers[proxied.leader("t")]

    def seen() -> tuple[float, ...]:
        """Records and bytes that came, bytes that were pushed, open streams: of one moment."""
        with switch.opened(leader.http, "/metrics", 30) as page:
            text = page.read().decode()
        rows = (
            'topic_records_in_total{topic="t"}',
            'topic_bytes_in_total{topic="t"}',
            'topic_bytes_out_total{topic="t",to="push"}',
            'streams{method="Subscribe"}',
        )
        found = (re.search(rf"^tritonmq_{re.escape(row)} (\S+)$", text, re.MULTILINE) for row in rows)
        return tuple(float(each[1]) if each else 0.0 for each in found)

    with contextlib.ExitStack() as undo, Producer(address, forward=True) as producer:
        consuming = [
            undo.enter_context(Command("consume", "t", "--bootstrap", address, "--forward", "--from", "earliest"))
            for _ in range(3)
        ]
        producer.publish("t", b"first", partition=0).result(WAIT_S)
        for command in consuming:
            assert "first" in command.line()
        before: list[tuple[float, ...]] = []

        def is_shared() -> bool:
            before[:] = [seen()]
            return before[0][0] == 1 and before[0][3] == 1

        wait_until(is_shared, "they share one subscription", WAIT_S)
        for number in range(100):
            producer.publish("t", f"record {number}".encode(), partition=0).result(WAIT_S)
        for command in consuming:
            for number in range(100):
                assert f"record {number}" in command.line()

        def is_pushed_once() -> bool:
            records, came, pushed, streams = (now - then for now, then in zip(seen(), before[0], strict=True))
            return (records, pushed, streams) == (100, came, 0)

        wait_until(is_pushed_once, "the leader has pushed each byte once", WAIT_S)
