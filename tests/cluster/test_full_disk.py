"""A broker whose disk is full: refuses clearly, goes on serving what it has, and takes more when there is room
again."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_client import Admin, DiskFull, OutcomeUnknown, Producer, Reader
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster


ATTEMPTS_MAX = 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB. Skipped where mounting one is not permitted: the storage's own tests inject the fault."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def readable(bootstrap: str) -> list[int]:
    with Admin(bootstrap) as admin, Reader(bootstrap) as reader:
        start, end = admin.offsets("t")[0]
        return [int(v[:8]) for batch in reader.read("t", 0, start, end) for v in batch.column("value").to_pylist()]


def published(producer: Producer, number: int) -> BaseException | None:
    """None once it is acknowledged, else why it is surely not in the log. An attempt that is under way when the time is
    over leaves that open: it is asked for again, with the same UUID."""
    name = uuid.uuid4()
    refused: BaseException | None = None
    for _ in range(ATTEMPTS_MAX):
        refused = producer.publish("t", b"%08d" % number + bytes(200_000), partition=0, uuid=name).exception(30)
        if not isinstance(refused, OutcomeUnknown):
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
        with Producer(cluster.bootstrap, timeout_ms=1_500) as producer:
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
