"""What causes each alert: real brokers, real faults. A cause is a context manager: entered, it does what causes the
alerts; left, it undoes it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from mq_client import OutcomeUnknown, Producer, Queue
from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import move_cursors
from mq_client.transactions import StagedPart, TransactionClient
from tests.alerts.world import Cause, World
from tests.deploy.prometheus import until

SHORT_RETENTION_MS: Final = 30_000
STOPPED_S, RUNNING_S = 0.6, 0.4
"""A broker is held still for so long, then it runs for so long."""

KILLS: Final = 3
NOBODY: Final = "127.0.0.1:9"
"""Where nobody listens."""


@contextlib.contextmanager
def nobody_reads(world: World) -> Iterator[None]:
    """Groups that have a place and do not move, a queue group without workers, and a transaction that is not
    decided."""
    bootstrap = world.cluster.bootstrap
    with world.admin() as admin, TransactionClient(bootstrap) as client:
        admin.create_topic("read", partitions=1, replicas=3)
        admin.create_topic("kept", partitions=1, replicas=3, retention_ms=SHORT_RETENTION_MS)
        admin.create_topic("jobs", partitions=1, replicas=3)
        admin.create_topic("staged", partitions=1, replicas=3, schema="n long")
        admin.declare_queue("jobs", "workers")
        with Producer(bootstrap) as producer:
            producer.publish("jobs", b"work").result(60)
        for topic in ("read", "kept"):
            move_cursors(Connection(bootstrap), "asleep", {topic: {0: 0}}, Deadline(60_000), kind="spark")
        client.stage("staged", 0, [pa.table({"n": pa.array([1], pa.int64())})], ("dead", "sink"), 0, "run")
        with world.publishing("read"), world.publishing("kept"):
            yield


@contextlib.contextmanager
def held_still_again_and_again(world: World) -> Iterator[None]:
    ending = threading.Event()
    broker = world.cluster.brokers[2]

    def hold() -> None:
        while not ending.wait(RUNNING_S):
            broker.send_if_running(signal.SIGSTOP)
            ending.wait(STOPPED_S)
            broker.send_if_running(signal.SIGCONT)

    thread = threading.Thread(target=hold, name="hold still")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextlib.contextmanager
def started_again_and_again(world: World) -> Iterator[None]:
    for count in range(1, KILLS + 1):
        world.cluster.kill(3)
        world.cluster.restart(3)
        # A life that was never scraped is none that Prometheus can count
        seen = f"changes(process_start_time_seconds[5m]) >= {count}"
        until(lambda asked=seen: world.prometheus.ask("query", query=asked)["result"], "a start is not seen")  # type: ignore[misc]
    yield


@contextlib.contextmanager
def damaged(world: World) -> Iterator[None]:
    """The middle of every journal of a broker is overwritten while it is down."""
    with Producer(world.cluster.bootstrap) as producer:
        for _ in range(200):
            producer.publish("two", os.urandom(1_000))
        producer.flush()
    world.cluster.kill(3)
    for path in world.cluster.brokers[3].data_dir.rglob("*.log"):
        size = path.stat().st_size
        if size > 10_000:
            with path.open("r+b") as journal:
                journal.seek(size // 2)
                journal.write(bytes(100))
    world.cluster.restart(3)
    yield


@contextlib.contextmanager
def without_zookeeper(world: World) -> Iterator[None]:
    assert world.cluster.zookeeper is not None
    world.cluster.zookeeper.stop()
    yield
    world.cluster.zookeeper.start()


@contextlib.contextmanager
def one_killed(world: World) -> Iterator[None]:
    world.cluster.kill(3)
    yield
    world.cluster.restart(3)


@contextlib.contextmanager
def advertised_wrongly(world: World) -> Iterator[None]:
    """Clients reach the broker, and other brokers are told addresses at which nobody listens."""
    broker = world.cluster.brokers[3]
    before = list(broker.arguments)
    world.cluster.kill(3)
    broker.arguments += ["--peer-advertise", NOBODY, "--link-advertise", NOBODY]
    world.cluster.restart(3)
    yield
    world.cluster.kill(3)
    broker.arguments = before
    world.cluster.restart(3)


@contextlib.contextmanager
def two_killed(world: World) -> Iterator[None]:
    """One of them leads a partition. After other causes the broker that is left may lead them all, and go on."""
    with world.admin() as admin, world.publishing("two"):
        until(lambda: len(admin.describe_topic("two").partitions[0].isr) == 3, "not all are in sync")
        if world.leader("two", 0) != 3:
            admin.transfer_leadership("two", 0, 3)
        until(lambda: world.leader("two", 0) == 3, "broker 3 does not lead")
        world.cluster.kill(3)
        world.cluster.kill(2)
        yield
        world.cluster.restart(2, wait=False)
        world.cluster.restart(3, wait=False)
        world.cluster.wait_until_serving()


@contextlib.contextmanager
def filled(world: World) -> Iterator[None]:
    with world.admin(world.small) as admin:
        admin.create_topic("small", partitions=1, replicas=1)
    with world.publishing("small", size=100_000, every_s=0.1, cluster=world.small):
        yield


@contextlib.contextmanager
def slowed(world: World) -> Iterator[None]:
    with world.admin(world.slow) as admin:
        admin.create_topic("slow", partitions=16, replicas=1)
    with world.publishing("slow", size=200_000, every_s=0.01, cluster=world.slow, linger_ms=100):
        yield


@contextlib.contextmanager
def one_too_few(world: World) -> Iterator[None]:
    """A broker dies, and two topics need all three. One is a query's: what it staged before is decided, and cannot be
    published. The other takes dead letters: the one that a worker rejects cannot be sent, and its key waits for it."""
    bootstrap = world.cluster.bootstrap
    with world.admin() as admin, TransactionClient(bootstrap, 60_000) as client:
        admin.create_topic("whole", partitions=1, replicas=3, min_insync_replicas=3, schema="n long")
        admin.create_topic("letters", partitions=1, replicas=3, min_insync_replicas=3)
        admin.create_topic("tasks", partitions=1, replicas=3)
        admin.declare_queue("tasks", "workers", order="key", dead_letter="letters")
        rows = pa.table({"n": pa.array([1], pa.int64())})
        uuids = client.stage("whole", 0, [rows], ("late", "sink"), 0, "run")
        topic_id = admin.describe_topic("whole").topic_id
        world.cluster.kill(3)
        until(lambda: len(admin.describe_cluster().brokers) == 2, "broker 3 counts as alive")
        with contextlib.suppress(OutcomeUnknown):  # it is decided; who asks is told that it is not published yet
            client.decide(
                ("late", "sink"), 0, "run", [StagedPart("whole", 0, tuple(uuids), 1, topic_id)], timeout_ms=5_000
            )
        with Producer(bootstrap) as producer:
            for _ in range(3):
                producer.publish("tasks", b"task", key="one").result(60)
        with _working(world, "tasks", "workers"):
            yield
        world.cluster.restart(3)


@contextlib.contextmanager
def _working(world: World, topic: str, group: str) -> Iterator[None]:
    """A worker rejects all that it is lent, and asks for more."""
    ending = threading.Event()

    def work() -> None:
        with Queue(world.cluster.bootstrap, topic, group) as queue:
            while not ending.is_set():
                record = queue.take(timeout_ms=500)
                if record is not None:
                    record.reject("no use")

    thread = threading.Thread(target=work, name="work")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class Act(NamedTuple):
    """One cause and the alerts that it has to raise."""

    cause: Cause
    alerts: tuple[str, ...]
    said: str


ACTS: Final = (
    Act(held_still_again_and_again, ("LoopLate",), "a broker is held still (SIGSTOP) for 0.6 s of each second"),
    Act(without_zookeeper, ("CoordinationLost",), "ZooKeeper is stopped"),
    Act(started_again_and_again, ("RestartLoop",), "a broker is killed (`kill -9`) and started again, three times"),
    Act(damaged, ("AnyAlarm",), "bytes of a broker's journals are overwritten while it is down"),
    Act(one_killed, ("BrokerDown", "UnderReplicated"), "`kill -9` of one broker of three"),
    Act(advertised_wrongly, ("LinkDown",), "a broker tells the others addresses at which nobody listens"),
    Act(
        two_killed,
        ("UnderMinIsr", "PartitionWithoutLeader", "RefusalRatio"),
        "`kill -9` of two brokers of three while records are published, `min_insync_replicas=2`",
    ),
    Act(filled, ("DiskFullInFourHours", "DiskRefuses"), "records are published to a broker with a disk of 48 MiB"),
    Act(
        slowed,
        ("FsyncSlow", "WriterQueueFull"),
        "a broker whose syncs take a second, with a queue of 8 MiB before its disk",
    ),
    Act(
        nobody_reads,
        ("GroupWillLoseRecords", "GroupStandsStill", "GroupFallsBehind", "QueueWaitsLong", "StagedOld"),
        "records are published, and neither groups nor workers read them; a query stages rows and does not decide",
    ),
    Act(
        one_too_few,
        ("SinkUnpublished", "QueueStuck"),
        "`kill -9` of one broker, and two topics with `min_insync_replicas=3`: one in which a query has staged rows "
        "that it then decides, one for the dead letters of a worker that rejects a record of an ordered queue",
    ),
)


def prepared(world: World) -> None:
    """The topic that the kills are about: each broker leads one of its partitions."""
    with world.admin() as admin, Producer(world.cluster.bootstrap) as producer:
        admin.create_topic("two", partitions=3, replicas=3, min_insync_replicas=2)
        producer.publish("two", b"first").result(60)
