"""Real processes, killed and paused: what was acknowledged is there, once, and in order. One fault a test, each in
seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mq_client import Producer, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster

SHORT_SESSIONS = ("--session-timeout-ms", "1500")
TOPIC = "numbers"

StartCluster = Callable[..., Cluster]


class Load:
    """Owns a thread that publishes 0, 1, 2, … to one partition until told to stop, and remembers which were
    acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[int] = []
        self._bootstrap = bootstrap
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), "the producer hangs"
        if self._error is not None:
            raise self._error

    def more(self, count: int) -> None:
        """Until so many more have been acknowledged."""
        goal = len(self.acknowledged) + count
        wait_until(lambda: self._error is not None or len(self.acknowledged) >= goal, f"{count} more acknowledgements")

    def _run(self) -> None:
        try:
            with Producer(self._bootstrap, timeout_ms=60_000, linger_ms=1) as producer:
                for numbers in self._windows():
                    futures = [(number, producer.publish(TOPIC, str(number), partition=0)) for number in numbers]
                    for number, future in futures:
                        future.result(60)
                        self.acknowledged.append(number)
        except BaseException as error:  # noqa: BLE001 - raised again where the load is ended
            self._error = error

    def _windows(self) -> Iterator[range]:
        first = 0
        while not self._end.is_set():
            yield range(first, first + 20)
            first += 20


def stored(cluster: Cluster) -> list[int]:
    start, _ = cluster.admin.offsets(TOPIC)[0]
    with Reader(cluster.bootstrap) as reader:
        return [int(value) for batch in reader.read(TOPIC, 0, start) for value in batch.column("value").to_pylist()]


def expect_exactly_what_was_acknowledged(cluster: Cluster, load: Load) -> None:
    assert stored(cluster) == load.acknowledged == list(range(len(load.acknowledged)))


def test_a_killed_leader_loses_nothing_and_doubles_nothing(start_cluster: StartCluster) -> None:
    """Not even what it had in memory alone. With logs on disks it is one of the faults of test_client_failover.py."""
    cluster = start_cluster(arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3, durability="memory")
    with Load(cluster.bootstrap) as load:
        load.more(200)
        leader = cluster.leader(TOPIC)
        cluster.kill(leader)
        load.more(200)
        cluster.wait_for_leaders(TOPIC, other_than=leader)
        cluster.restart(leader)
        cluster.wait_for_isr(TOPIC, 3)
        load.more(200)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_all_brokers_killed_at_once_come_back_with_everything(start_cluster: StartCluster) -> None:
    cluster = start_cluster(arguments=SHORT_SESSIONS)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3, durability="os")
    with Load(cluster.bootstrap) as load:
        load.more(400)
        cluster.kill_all()
        cluster.restart_all()
        load.more(200)
    cluster.wait_for_isr(TOPIC, 3)
    expect_exactly_what_was_acknowledged(cluster, load)


def test_brokers_serve_while_zookeeper_is_away_and_elect_when_it_is_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster(arguments=SHORT_SESSIONS, zookeeper=True)
    cluster.admin.create_topic(TOPIC, partitions=1, replicas=3)
    with Load(cluster.bootstrap) as load:
        load.more(200)
        cluster.stop_zookeeper()
        wait_until(lambda: cluster.admin.describe_cluster().coordination == "suspended", "brokers that miss ZooKeeper")
        load.more(500)
        cluster.start_zookeeper()
        wait_until(
            lambda: cluster.admin.describe_cluster().coordination == "connected", "brokers that have ZooKeeper again"
        )
        leader = cluster.leader(TOPIC)  # another one, if sessions had ended meanwhile
        cluster.kill(leader)
        load.more(200)
        cluster.wait_for_leaders(TOPIC, other_than=leader)
    expect_exactly_what_was_acknowledged(cluster, load)
