"""Locks of three brokers: a broker that is killed or paused takes its clients' locks with it, and they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from mq_client import Lock, LockLost
from tests.cluster.harness import Cluster, wait_until

pytestmark = pytest.mark.cluster


class _At(Lock):
    """Queues at that broker and no other."""

    def _anywhere(self) -> list[str]:
        return list(self._connection.bootstrap)


class Client(threading.Thread):
    """Queues for the lock. `had_at`, `told_at`: when it had it, and heard of its loss, by the monotonic clock; 0: not
    yet."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.lock = _At(address, "nightly", timeout_ms=60_000, on_lost=self._told)
        self.token = 0
        self.had_at = self.told_at = 0.0
        self.start()

    def run(self) -> None:
        self.token = self.lock.acquire()
        self.had_at = time.monotonic()

    def _told(self, _: Lock) -> None:
        self.told_at = time.monotonic()


def test_a_holder_is_told_that_its_broker_is_killed_or_paused_before_the_next_one_has_the_lock(
    start_cluster: Callable[..., Cluster],
) -> None:
    cluster = start_cluster(3)
    clients: list[Client] = []
    for number in (1, 2, 3):
        clients.append(client := Client(cluster.brokers[number].address))
        wait_until(lambda client=client: client.lock.waiting or client.had_at, "a place in the queue")  # type: ignore[misc]
    for holder, following, stop in (
        (clients[0], clients[1], cluster.brokers[1].kill),
        (clients[1], clients[2], lambda: cluster.pause(2)),
    ):
        wait_until(lambda holder=holder: holder.had_at, "the lock")  # type: ignore[misc]
        assert not following.had_at
        stop()
        wait_until(lambda following=following: following.had_at, "the next one has the lock")  # type: ignore[misc]
        assert 0 < holder.told_at < following.had_at
        assert following.token > holder.token
        with pytest.raises(LockLost):
            holder.lock.release()
    cluster.resume(2)
    clients[2].lock.release()
    with Lock(cluster.bootstrap, "nightly", timeout_ms=60_000) as lock:
        assert lock.token > clients[2].token
