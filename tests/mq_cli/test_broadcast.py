"""Broadcast: topics that keep nothing, and groups whose present members are given everything, from Python and from a
shell, against a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_cli.main import MISUSED
from mq_client import Admin, Consumer, Producer, Skipped
from mq_dev.local_cluster import LocalCluster
from tests.cluster.harness import wait_until
from tests.mq_cli.processes import tritonmq


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broadcast")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[LocalCluster]:
    with LocalCluster(directory) as started:
        yield started


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A new one that keeps nothing, made from the command line."""
    name = f"news-{uuid.uuid4().hex[:8]}"
    made = tritonmq("topic", "create", name, "--broadcast", "--bootstrap", cluster.bootstrap)
    assert made.returncode == 0, made.stderr
    return name


def member(cluster: LocalCluster, topic: str, priority: int = 0, **options: int) -> Consumer:
    consumer = Consumer(cluster.bootstrap, broadcast="desks", priority=priority, **options)  # type: ignore[arg-type]
    consumer.subscribe(topic)
    consumer.start()
    return consumer


def publish(cluster: LocalCluster, topic: str, *values: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.publish(topic, value).result(30)


def taken(consumer: Consumer, count: int) -> list[str]:
    """So many values, and no more."""
    records = [consumer.take(10_000) for _ in range(count)]
    assert consumer.take(200) is None
    return [record.value.decode() for record in records if record is not None]


def test_present_members_of_the_highest_priority_are_given_all_and_nothing_is_kept(
    cluster: LocalCluster, topic: str, directory: Path
) -> None:
    admin = Admin(cluster.bootstrap)
    described = admin.describe_topic(topic)
    assert described.settings == {"durability": "memory", "retention_ms": "1s"}
    assert [len(partition.replicas) for partition in described.partitions] == [1]
    admin.alter_topic(topic, retention_ms="1m")  # nothing is dropped before it is given
    publish(cluster, topic, "before anybody came")
    first, second, lower = member(cluster, topic, 1), member(cluster, topic, 1), member(cluster, topic)
    publish(cluster, topic, "a", "b")
    late = member(cluster, topic, 1)
    publish(cluster, topic, "c")
    assert taken(first, 3) == taken(second, 3) == ["a", "b", "c"]
    assert taken(late, 1) == ["c"]
    for consumer in (first, second, late):
        consumer.stop()
    publish(cluster, topic, "d")
    assert taken(lower, 1) == ["d"]
    assert lower.skipped == Skipped(0, 0)
    lower.stop()
    assert "desks" not in admin.list_groups()
    admin.alter_topic(topic, retention_ms="1s")
    wait_until(lambda: admin.offsets(topic) == {0: (5, 5)}, "retention has dropped everything")
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"before anybody came" in path.read_bytes()], "nothing was on a disk"


def test_a_member_that_reads_too_slowly_misses_what_is_dropped_and_is_told_how_much(
    cluster: LocalCluster, topic: str
) -> None:
    admin = Admin(cluster.bootstrap)
    slow = member(cluster, topic, buffer_bytes_max=1)
    admin.alter_topic(topic, retention_ms="1m")  # the first record is given before it is dropped
    publish(cluster, topic, *"abcd")
    admin.alter_topic(topic, retention_ms="1s")
    wait_until(lambda: admin.offsets(topic) == {0: (4, 4)}, "retention has dropped everything")
    admin.alter_topic(topic, retention_ms="1m")
    publish(cluster, topic, "e")
    assert taken(slow, 2) == ["a", "e"]
    assert slow.skipped == Skipped(3, 1)
    slow.stop()


def test_after_the_broker_was_killed_a_member_goes_on_with_what_comes(cluster: LocalCluster, topic: str) -> None:
    consumer = member(cluster, topic)
    publish(cluster, topic, "a")
    assert taken(consumer, 1) == ["a"]
    cluster.kill(1)
    cluster.restart(1)
    values: set[str] = set()

    def heard() -> bool:
        publish(cluster, topic, "b")
        record = consumer.take(200)
        values.update([record.value.decode()] if record is not None else [])
        return bool(values)

    wait_until(heard, "it was given something")
    assert values == {"b"}
    assert consumer.skipped.gaps == 1, "what was in the log that was lost has no number"
    consumer.stop()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("topic", "create", "t", "--broadcast", "--replicas", "3"), b"--replicas 3"),
        (("topic", "create", "t", "--broadcast", "--set", "durability=fsync"), b"durability=fsync is given"),
        (("topic", "create", "t", "--broadcast", "--set", "retention_ms=1h"), b"retention_ms=1h is given"),
        (("consume", "t", "--broadcast", "g", "--group", "g"), b"leave out --group"),
        (("consume", "t", "--broadcast", "g", "--from", "earliest"), b"leave out --from"),
        (("consume", "t", "--broadcast", "g", "--tail", "3"), b"leave out --tail"),
        (("consume", "t", "--broadcast", "g", "--exit-at-end"), b"leave out --exit-at-end"),
        (("consume", "t", "--priority", "3"), b"give --broadcast GROUP too"),
    ],
)
def test_what_contradicts_it_is_refused_by_name(arguments: tuple[str, ...], why: bytes) -> None:
    done = tritonmq(*arguments, "--bootstrap", "127.0.0.1:1")
    assert (done.returncode, why in done.stderr) == (MISUSED, True), done.stderr
