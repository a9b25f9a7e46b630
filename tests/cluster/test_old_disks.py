"""A data directory that was put back to an older copy of itself, and files that say which log is which, damaged: one of
three is mended from the others by itself, and where there is no other nothing is lost without a word."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from mq_client import Producer, Reader
from mq_dev.local_cluster import STOP_TIMEOUT_S
from tests.cluster.harness import Cluster, wait_until
from tests.switch import plain_text

pytestmark = pytest.mark.cluster

StartCluster = Callable[..., Cluster]


def stop(cluster: Cluster, *brokers: int) -> None:
    """Cleanly, all at once."""
    for broker in brokers:
        cluster.brokers[broker].terminate()
    for broker in brokers:
        assert cluster.brokers[broker].wait(STOP_TIMEOUT_S), cluster.brokers[broker].last_words()


def publish(cluster: Cluster, numbers: range) -> None:
    with Producer(cluster.bootstrap, security=cluster.security) as producer:
        done = [producer.publish("t", b"%d" % number, partition=0) for number in numbers]
        for each in done:
            each.result(60)


def read(cluster: Cluster, end: int = 0) -> list[int]:
    """What all records say, up to an offset if one is given."""
    with Reader(cluster.bootstrap, security=cluster.security) as reader:
        end = end or cluster.admin.offsets("t")[0][1]
        return [int(value) for batch in reader.read("t", 0, 0, end) for value in batch.column("value").to_pylist()]


def log_json(cluster: Cluster, broker: int) -> Path:
    topic_id = cluster.admin.describe_topic("t").topic_id
    return cluster.brokers[broker].data_dir / "partitions" / f"{topic_id}-0" / "log.json"


def log_of(cluster: Cluster, broker: int) -> str:
    return cluster.brokers[broker].log_path.read_text()


def copy_if_there(source: str, to: str) -> None:
    """A broker that runs gives its files other names, and deletes some."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, to)


def test_one_of_three_directories_goes_back_and_starts_first(start_cluster: StartCluster) -> None:
    """The copy is taken while the broker runs."""
    cluster = start_cluster()
    cluster.admin.create_topic("t", partitions=1, replicas=3, min_insync_replicas=2)
    publish(cluster, range(20))
    old = cluster.leader("t")
    data = cluster.brokers[old].data_dir
    shutil.copytree(data, cluster.directory / "copy", copy_function=copy_if_there)
    publish(cluster, range(20, 60))
    stop(cluster, *cluster.brokers)
    shutil.rmtree(data)
    (cluster.directory / "copy").rename(data)
    cluster.restart(old)
    cluster.restart_all()
    cluster.wait_for_isr("t", 3)
    assert read(cluster) == list(range(60))
    assert log_of(cluster, old).count("is an older copy of itself") == 1


def test_damaged_names_of_one_replica_are_mended_by_the_others(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    cluster.admin.create_topic("t", partitions=1, replicas=3, min_insync_replicas=2)
    publish(cluster, range(20))
    leader = cluster.leader("t")
    spoilt = [
        (leader, log_json(cluster, leader)),
        (leader % 3 + 1, cluster.brokers[leader % 3 + 1].data_dir / "broker.json"),
    ]
    for broker, path in spoilt:
        stop(cluster, broker)
        path.write_bytes(b'{"broken')
        cluster.restart(broker)
        cluster.wait_for_isr("t", 3)
        told = [line for line in log_of(cluster, broker).splitlines() if f"{path} is damaged" in line]
        assert len(told) == 1, told
        assert "Traceback" not in log_of(cluster, broker)
    publish(cluster, range(20, 30))
    assert read(cluster) == list(range(30))


def test_the_only_replica_waits_for_a_person_and_keeps_what_it_has(start_cluster: StartCluster) -> None:
    """Of a broker that stands alone: there is nobody to say what its log lacks."""
    cluster = start_cluster(1, zookeeper=False)
    cluster.admin.create_topic("t", partitions=1, replicas=1)
    publish(cluster, range(20))
    path = log_json(cluster, 1)
    stop(cluster, 1)
    path.write_bytes(b'{"broken')
    cluster.restart(1)
    told = wait_until(lambda: "log.json is damaged" in log_of(cluster, 1) and log_of(cluster, 1), "the damage is told")
    assert "nobody leads until `tritonmq partition recover`" in told
    assert "Traceback" not in told

    wait_until(lambda: cluster.leaders("t") == {0: 0}, "nobody leads")
    recovery = wait_until(lambda: cluster.admin.recover_partition("t", 0), "the broker knows of its replica")
    assert recovery.next_offset == 20
    cluster.leader("t")
    assert read(cluster, end=20) == list(range(20))


@plain_text("a stranger deletes a node, and with the switch they are the brokers' alone")
def test_no_start_has_the_number_of_another_one_though_zookeeper_forgets(start_cluster: StartCluster) -> None:
    cluster = start_cluster(1)
    stop(cluster, 1)
    client = KazooClient(cluster.hosts)
    client.start()
    client.delete("/tritonmq/brokers/lives/1")
    client.stop()
    client.close()
    cluster.restart(1)
    assert log_of(cluster, 1).count("start 1 of this data directory") == 1
    assert log_of(cluster, 1).count("start 2 of this data directory") == 1
