"""A broker whose disk is full: refuses clearly, goes on serving what it has, and takes more when there is room
again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_client import Admin, DiskFull, Producer, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster


ATTEMPTS_MAX = 5


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """A file system of 8 MiB. Skipped where mounting one is not permitted: the storage's own tests inject the fault."""
    path.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as path:
        yield path


@pytest.fixture
def root(zookeeper: str) -> str:
    """In the ZooKeeper of all tests."""
    return f"{zookeeper}/{uuid.uuid4().hex}"


def readable(bootstrap: str) -> list[int]:
    with Admin(bootstrap) as admin, Reader(bootstrap) as reader:
        start, end = admin.offsets("t")[0]
        return [int(v[:8]) for batch in reader.read("t", 0, start, end) for v in batch.column("value").to_pylist()]


def published(producer: Producer, number: int) -> BaseException | None:
    """None once it is acknowledged, else why it is surely not in the log. Where the disk was not what it failed for, or
    the time was over while an attempt was under way, it is asked for again, with the same UUID."""
    name = uuid.uuid4()
    refused: BaseException | None = None
    for _ in range(ATTEMPTS_MAX):
        refused = producer.publish("t", b"%08d" % number + bytes(200_000), partition=0, uuid=name).exception(30)
        if refused is None or isinstance(refused, DiskFull):
            break
    return refused


def test_a_full_disk_is_told_and_loses_nothing(small_disk: Path) -> None:
    cluster = Cluster(small_disk / "cluster", 1)
    cluster.start()
    try:
        cluster.admin.create_topic("t", partitions=1, replicas=1)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(2 << 20))
        acknowledged: list[int] = []
        refused: BaseException | None = None
        with Producer(cluster.bootstrap, timeout_ms=4_000) as producer:
            for number in range(100):
                refused = published(producer, number)
                if refused is not None:
                    break
                acknowledged.append(number)
        assert isinstance(refused, DiskFull), refused
        assert "free some space" in str(refused) or "free space" in str(refused), refused
        assert refused.definite
        assert len(acknowledged) > 5
        assert readable(cluster.bootstrap) == acknowledged, "what was acknowledged can be read while the disk is full"

        filler.unlink()
        with Producer(cluster.bootstrap, timeout_ms=20_000) as producer:
            producer.publish("t", b"%08d" % 1_000, partition=0).result(30)
        wait_until(lambda: readable(cluster.bootstrap) == [*acknowledged, 1_000], "writing goes on once there is room")
    finally:
        cluster.stop()


def test_a_broker_starts_on_a_full_disk_serves_what_it_has_and_can_make_room(tmp_path: Path, root: str) -> None:
    cluster = Cluster(tmp_path / "cluster", 1, zookeeper=root)  # a directory that coordinates is written at each start
    with mounted(cluster.brokers[1].data_dir) as disk:
        try:
            cluster.start()
            for topic in ("t", "to-delete"):
                cluster.admin.create_topic(topic, partitions=1, replicas=1)
            with Producer(cluster.bootstrap, timeout_ms=20_000) as producer:
                for number in range(3):
                    producer.publish("t", b"%08d" % number + bytes(200_000), partition=0).result(30)
                    producer.publish("to-delete", bytes(200_000), partition=0).result(30)
            cluster.kill(1)
            not_a_page_is_left(disk)
            cluster.restart(1)
            wait_until(lambda: readable(cluster.bootstrap) == [0, 1, 2], "it serves what it has")
            with Producer(cluster.bootstrap, timeout_ms=4_000) as producer:
                refused = published(producer, 3)
                assert isinstance(refused, DiskFull), refused
            cluster.admin.delete_topic("to-delete")
            with Producer(cluster.bootstrap, timeout_ms=20_000) as producer:
                producer.publish("t", b"%08d" % 4, partition=0).result(30)
            wait_until(lambda: readable(cluster.bootstrap) == [0, 1, 2, 4], "it has made room")
        finally:
            cluster.stop()


def not_a_page_is_left(disk: Path) -> None:
    """The file system becomes as small as what is on it."""
    stat = os.statvfs(disk)
    size = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def first_and_last_of(cluster: Cluster, broker: int) -> str:
    """A topic of three partitions in which the broker is the first replica of one, and the last of another. Where the
    placing of a topic begins is random."""
    for topic in map(str, range(50)):
        cluster.admin.create_topic(topic, partitions=3, replicas=3)
        partitions = cluster.admin.describe_topic(topic).partitions
        if {partition.replicas.index(broker) for partition in partitions} >= {0, 2}:
            return topic
        cluster.admin.delete_topic(topic)
    raise AssertionError("50 topics were placed alike")


def test_a_leader_whose_disk_is_full_gives_way_whatever_its_rank(tmp_path: Path, root: str) -> None:
    """The first replica is preferred as leader, and would claim first again."""
    cluster = Cluster(tmp_path / "cluster", 3, zookeeper=root)
    with mounted(cluster.brokers[1].data_dir) as disk:
        try:
            cluster.start()
            topic = first_and_last_of(cluster, 1)
            cluster.wait_for_isr(topic, 3)
            cluster.hand_over(topic, 1)
            not_a_page_is_left(disk)
            with Producer(cluster.bootstrap, timeout_ms=60_000) as producer:
                sent = [producer.publish(topic, bytes(200_000), partition=number) for number in range(3)]
                for future in sent:
                    future.result(90)
            cluster.wait_for_leaders(topic, other_than=1)
        finally:
            cluster.stop()
