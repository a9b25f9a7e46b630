"""Three brokers that seal what they write: leaders killed, keys rotated, rewrapped and retired under load."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.storage.opening.rewrapping import sealed_files, uses
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.key_commands import KeyCommands, of
from tests.cluster.test_secure_cluster import BROKERS, TOPIC, check_each_is_there_once
from tests.cluster.traffic import Traffic

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MARKER = "THIS-IS-A-PAYLOAD "
STOP_S = 30.0
IN_SYNC_S = 90.0


class Encrypted:
    """A cluster whose brokers have one file of keys, and what operators do to it."""

    def __init__(self, start_cluster: Callable[..., Cluster], path: Path) -> None:
        self.keys = KeyCommands(path / "keys")
        self.cluster = start_cluster(arguments=("--encrypt", self.keys.reference))
        self.cluster.admin.create_topic(
            TOPIC, partitions=3, replicas=3, min_insync_replicas=2, segment_bytes_max=64 << 10
        )

    def data(self, broker: int) -> Path:
        return self.cluster.brokers[broker].data_dir

    def stop(self, broker: int) -> None:
        self.cluster.brokers[broker].terminate()
        assert self.cluster.brokers[broker].wait(STOP_S)

    def kill_a_rewrap(self, broker: int) -> None:
        """kill -9 once the first head has the newest key, or it has done all."""
        running = self.keys.start("rewrap", *of(self.data(broker)))
        wait_until(
            lambda: uses(self.data(broker))[self.keys.newest] or running.poll() is not None,
            "a head is rewrapped",
            IN_SYNC_S,
        )
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=60)

    def rewrapped_in_turn(self) -> None:
        """Each broker stopped, its keys wrapped anew, with the command killed on the way, and started again."""
        for broker in BROKERS:
            self.stop(broker)
            self.kill_a_rewrap(broker)
            self.keys.run("rewrap", *of(self.data(broker)))
            assert all(found.is_wrapped_by(self.keys.newest) for found in sealed_files(self.data(broker)))
            self.cluster.restart(broker)
            self.cluster.wait_for_isr(TOPIC, 3, IN_SYNC_S)

    def check_nothing_is_readable(self) -> None:
        for broker in BROKERS:
            for path in self.data(broker).rglob("*"):
                if path.is_file():
                    assert MARKER.strip().encode() not in path.read_bytes(), path


@pytest.mark.long
def test_keys_are_replaced_while_leaders_are_killed_and_every_record_is_there_once(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    encrypted = Encrypted(start_cluster, tmp_path)
    cluster, first = encrypted.cluster, encrypted.keys.newest
    with Traffic(cluster.bootstrap, TOPIC, 3, before=MARKER * 40, security=cluster.security) as at_work:
        at_work.until_acknowledged()
        victim = cluster.leader(TOPIC)
        cluster.kill(victim)
        at_work.until_acknowledged()
        encrypted.keys.run("rotate")
        second = encrypted.keys.newest
        at_work.until_acknowledged()
        cluster.restart(victim)  # it lacks what was written meanwhile
        cluster.wait_for_isr(TOPIC, 3, IN_SYNC_S)
        encrypted.rewrapped_in_turn()
        at_work.until_acknowledged()
        cluster.kill(cluster.leader(TOPIC, 1))
        at_work.until_acknowledged()
        count = at_work.end()
    cluster.kill_all()
    assert f"{first} is gone" in encrypted.keys.run("retire", first, *of(*map(encrypted.data, BROKERS)))
    assert {key for broker in BROKERS for key in uses(encrypted.data(broker))} == {second}
    cluster.restart_all()
    cluster.wait_for_isr(TOPIC, 3, IN_SYNC_S)
    assert count > 500
    check_each_is_there_once(cluster.bootstrap, cluster.security, count)
    cluster.kill_all()  # so that no file goes away while it is read
    encrypted.check_nothing_is_readable()
