"""A real cluster that tests can hurt: `mq_dev.local_cluster` with faults, and with questions about who leads.

Nothing here knows pytest. Every wait has a deadline and says what it waited for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mq_client import Admin, TritonMQError
from mq_dev.local_cluster import LocalCluster

WAIT_S = 30.0
_LOOK_S = 0.05


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = WAIT_S) -> Any:
    """The first true answer. Errors of the cluster count as not yet. Raises `AssertionError` naming `what` at the
    deadline."""
    deadline = time.monotonic() + deadline_s
    last: object = None
    while True:
        try:
            if last := condition():
                return last
        except TritonMQError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last seen: {last!r})")
        time.sleep(_LOOK_S)


class Cluster(LocalCluster):
    """Owns what `LocalCluster` owns, and an `Admin`. Three brokers and a ZooKeeper unless told otherwise."""

    def __init__(self, directory: Path, brokers: int = 3, **options: Any) -> None:
        super().__init__(directory, brokers, **options)
        self._admin: Admin | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.bootstrap, security=self.security)
        return self._admin

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.send_if_running(signal.SIGCONT)
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        super().stop()

    # ---------------------------------------------------------------- faults

    def kill_all(self) -> None:
        """kill -9 of every broker, all before any is waited for."""
        for broker in self.brokers.values():
            broker.send_if_running(signal.SIGKILL)
        for broker in self.brokers.values():
            broker.kill()

    def restart_all(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        self.wait_until_serving()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the process neither answers nor ends."""
        self.brokers[broker].send_if_running(signal.SIGSTOP)

    def resume(self, broker: int) -> None:
        self.brokers[broker].send_if_running(signal.SIGCONT)

    def stop_zookeeper(self, *, cleanly: bool = False) -> None:
        assert self.zookeeper is not None, "this cluster has no ZooKeeper"
        if cleanly:
            self.zookeeper.stop()
        else:
            self.zookeeper.kill()

    def start_zookeeper(self) -> None:
        assert self.zookeeper is not None, "this cluster has no ZooKeeper"
        self.zookeeper.start()

    # ---------------------------------------------------------------- questions

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition to broker id; 0 where nobody leads."""
        return {partition.partition: partition.leader for partition in self.admin.describe_topic(topic).partitions}

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads, waiting until somebody does."""
        found: int = wait_until(lambda: self.leaders(topic)[partition], f"a leader of {topic}-{partition}")
        return found

    def wait_for_leaders(self, topic: str, *, other_than: int = 0, deadline_s: float = WAIT_S) -> dict[int, int]:
        """Until every partition is led, and none by `other_than`."""

        def all_led() -> dict[int, int] | None:
            leaders = self.leaders(topic)
            return leaders if all(leader not in (0, other_than) for leader in leaders.values()) else None

        found: dict[int, int] = wait_until(
            all_led, f"every partition of {topic} has a leader other than {other_than}", deadline_s
        )
        return found

    def hand_over(self, topic: str, to: int) -> None:
        """Until that broker leads every partition. Who was not ready is asked again, and so is who has taken over since
        from a leader that stood still."""

        def leads_all() -> bool:
            for partition, leader in self.leaders(topic).items():
                if leader != to:
                    self.admin.transfer_leadership(topic, partition, to)
            return set(self.leaders(topic).values()) == {to}

        wait_until(leads_all, f"broker {to} leads {topic}")

    def wait_for_isr(self, topic: str, size: int, deadline_s: float = WAIT_S) -> None:
        """Until every partition has that many in-sync replicas."""
        wait_until(
            lambda: all(len(partition.isr) == size for partition in self.admin.describe_topic(topic).partitions),
            f"{size} in-sync replicas of every partition of {topic}",
            deadline_s,
        )
