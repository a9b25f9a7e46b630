"""A cluster under load goes from the last release to this one and back, one broker at a time, until its level is
raised.

Brokers of the last release run from its commit, which CHANGELOG names. It has a command of its own, `make rolling`,
which sets TRITONMQ_ROLL: with `one` a single broker goes back and forth, with `all` every broker does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_client import Admin, Consumer, ConsumerRecord, IncompatibleVersion, InvalidRequest, Producer, Queue, Reader
from mq_client.producing.futures import RecordFuture
from mq_protocol.versions import LEVEL
from tests.cluster.harness import Cluster, wait_until

ROLL = os.environ.get("TRITONMQ_ROLL", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(ROLL not in ("one", "all"), reason="it takes a minute: `make rolling` runs it"),
]

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
TOPIC = "rolled"
PAUSE_S = 0.004
UNANSWERED_MAX = 400
"""So many records may be on their way. A machine that has much else to do takes fewer than are sent, and what waits
would be too late in the end."""

BATCH_TIMEOUT_MS = 60_000


def commit_of_last_release() -> str:
    """As CHANGELOG names it."""
    found = re.search(
        r"^## \d+\.\d+\.\d+ .*\n\nCommit ([0-9a-f]{7,40})\.$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert found is not None, "CHANGELOG names the commit below the heading of each release"
    return found[1]


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `src`. Skips where there is no history, as in a source distribution."""
    commit = commit_of_last_release()
    folder = tmp_path_factory.mktemp("last-release")
    archive = folder / "src.tar"
    try:
        with archive.open("wb") as file:
            subprocess.run(
                ["git", "-C", ROOT, "archive", commit, "src"], check=True, stdout=file, stderr=subprocess.PIPE
            )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"the last release, commit {commit}, is not here: this is no clone of the repository, or a shallow one "
            f"({error})"
        )
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


class Load:
    """Owns a producer of records with UUIDs, each sent twice, and a group that consumes them."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[RecordFuture] = []
        self.heard: Counter[bytes] = Counter()
        self._producer = Producer(bootstrap, timeout_ms=BATCH_TIMEOUT_MS, linger_ms=2)
        self._consumer = Consumer(bootstrap, group="rolling", start="earliest", timeout_ms=BATCH_TIMEOUT_MS)
        self._consumer.subscribe(TOPIC)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        number = 0
        while not self._stopping.wait(PAUSE_S):
            if len(self.sent) > UNANSWERED_MAX:
                self.sent[-UNANSWERED_MAX].exception(2 * BATCH_TIMEOUT_MS / 1000)  # `stop` raises it
            name = uuid.uuid4()
            for _ in range(2):  # the second one is answered with the first one's place
                self.sent.append(
                    self._producer.publish(TOPIC, b"%d" % number, partition=number % PARTITIONS, uuid=name)
                )
            number += 1

    def _consume(self) -> None:
        while not self._stopping.is_set():
            record: ConsumerRecord | None = self._consumer.take(timeout_ms=200)
            if record is not None:
                self.heard[record.value] += 1

    def until_acknowledged(self, more: int = 100) -> None:
        """Until so many records are acknowledged that were sent from now on."""
        last = len(self.sent) + more
        wait_until(lambda: len(self.sent) > last, "records are sent")
        self.sent[last].result(60)

    def stop(self) -> int:
        """How many different records were sent, all of them acknowledged."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        for future in self.sent:
            future.result(60)
        self._producer.close()
        while (record := self._consumer.take(timeout_ms=2_000)) is not None:
            self.heard[record.value] += 1
        self._consumer.stop()
        return len(self.sent) // 2


class Rolling:
    """Owns a cluster of which each broker runs one of two releases."""

    def __init__(self, cluster: Cluster, last_release: Path) -> None:
        self.cluster = cluster
        self.old = {**os.environ, "PYTHONPATH": str(last_release)}

    def restart(self, broker: int, *, old: bool, load: Load) -> None:
        """Stop it cleanly, start it with that release, and wait until it is in sync everywhere while the load goes
        on."""
        process = self.cluster.brokers[broker]
        process.terminate()
        assert process.wait(60), f"broker {broker} does not stop"
        process.environment = self.old if old else None
        self.cluster.restart(broker)
        self.cluster.wait_for_isr(TOPIC, 3, 60)
        load.until_acknowledged()

    def releases(self) -> dict[int, bool]:
        """Of each registered broker, whether it names its release, as those after 0.2.0 do."""
        return {broker.id: bool(broker.release) for broker in self.cluster.admin.describe_cluster().brokers}


def test_a_cluster_is_rolled_to_this_release_and_back_and_its_level_is_raised(
    start_cluster: Callable[..., Cluster], last_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(last_release))  # for the first start of each broker
    cluster = start_cluster(arguments=("--session-timeout-ms", "2000"))
    monkeypatch.delenv("PYTHONPATH")
    rolling = Rolling(cluster, last_release)
    cluster.admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, durability="os")
    cluster.wait_for_isr(TOPIC, 3)
    load = Load(cluster.bootstrap)
    load.until_acknowledged()
    back = (1, 2, 3) if ROLL == "all" else (2,)
    for broker in (1, 2, 3):
        rolling.restart(broker, old=False, load=load)
    wait_until(lambda: rolling.releases() == {1: True, 2: True, 3: True}, "all brokers run this release")
    assert cluster.admin.describe_cluster().level == 1
    _a_client_of_the_last_release_is_served(rolling)
    for broker in back:
        rolling.restart(broker, old=True, load=load)
    if ROLL == "all":
        with pytest.raises(InvalidRequest, match="runs another version"):
            cluster.admin.upgrade_cluster(plan=True)
    else:
        mixed = cluster.admin.upgrade_cluster(plan=True)
        assert (mixed.level, mixed.target) == (1, 1)
        assert cluster.admin.upgrade_cluster().level == 1
        with pytest.raises(IncompatibleVersion, match=r"upgrade broker 2 \(release 0\.2\.0 or older"):
            cluster.admin.declare_queue(TOPIC, "workers")
    for broker in back:
        rolling.restart(broker, old=False, load=load)

    assert cluster.admin.upgrade_cluster().level == LEVEL
    _a_queue_works(cluster)
    load.until_acknowledged()
    _an_old_broker_takes_no_part(rolling, load)
    rolling.restart(3, old=False, load=load)

    count = load.stop()
    with Reader(cluster.bootstrap) as reader:
        there = [value for number in range(PARTITIONS) for value in _whole(reader, cluster.admin, number)]
    assert Counter(there) == Counter(b"%d" % number for number in range(count)), (
        "nothing is lost, and nothing is there twice"
    )
    assert set(load.heard) == set(there)


def _a_queue_works(cluster: Cluster) -> None:
    """As soon as brokers have heard of the level. None is restarted for it."""

    def declared() -> bool:
        try:
            cluster.admin.declare_queue(TOPIC, "workers", start="earliest")
        except IncompatibleVersion:
            return False
        return True

    wait_until(declared, "every broker has heard of the level")
    with Queue(cluster.bootstrap, TOPIC, "workers", in_flight_max=10) as queue:
        record = queue.take(timeout_ms=30_000)
        assert record is not None
        record.ack().result(30)


def _a_client_of_the_last_release_is_served(rolling: Rolling) -> None:
    """Its command line makes a topic, writes a record and reads it, on brokers of this release."""

    def command(*arguments: str, given: str = "") -> str:
        line = [sys.executable, "-m", "mq_cli.main", *arguments, "--bootstrap", rolling.cluster.bootstrap]
        done = subprocess.run(
            line, input=given, capture_output=True, text=True, env=rolling.old, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command("topic", "create", "from-the-last-release", "--replicas", "3")
    command("produce", "from-the-last-release", given="a record\n")
    read = command("consume", "from-the-last-release", "--from", "earliest", "--max", "1")
    assert "a record" in read


def _an_old_broker_takes_no_part(rolling: Rolling, load: Load) -> None:
    """Once the level is raised the last release cannot come back."""
    cluster, process = rolling.cluster, rolling.cluster.brokers[3]
    process.terminate()
    assert process.wait(60)
    process.environment = rolling.old
    process.start()
    told = "takes no part. Start a newer release there"
    logs = [cluster.brokers[1].log_path, cluster.brokers[2].log_path]
    wait_until(
        lambda: all(told in path.read_text() for path in logs), "the other brokers say that it takes no part", 60
    )
    load.until_acknowledged()
    with Admin(f"{cluster.brokers[1].address},{cluster.brokers[2].address}") as admin:
        assert 3 not in {broker.id for broker in admin.describe_cluster().brokers}
        assert all(3 not in partition.isr for partition in admin.describe_topic(TOPIC).partitions)


def _whole(reader: Reader, admin: Admin, partition: int) -> list[bytes]:
    """Every value of the partition, in order."""
    _, end = admin.offsets(TOPIC)[partition]
    values: list[bytes] = []
    for batch in reader.read(TOPIC, partition, 0, end):
        values += batch.column("value").to_pylist()
    return values
