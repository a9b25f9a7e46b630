"""Locks, at a broker that stands alone: one holder, in order, with a token that only grows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mq_client.lock as lock_module
from mq_client import InvalidRequest, InvalidSetting, Lock, LockLost, LockNotAcquired, Unreachable
from mq_dev.local_cluster import LocalCluster

WAIT_S = 30.0

HOLDER = """
import sys, time
from mq_client import Lock
lock = Lock(sys.argv[1], sys.argv[2])
print(lock.acquire(), flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Client(threading.Thread):
    """Waits for the lock on a thread of its own, and has it until it is told to release it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(daemon=True)
        self.lock = Lock(bootstrap, name, timeout_ms=WAIT_S * 1000)
        self.token = 0
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        with self.lock as lock:
            self.token = lock.token
            self._done.wait(WAIT_S)

    def finish(self) -> None:
        self._done.set()
        self.join(WAIT_S)
        assert not self.is_alive()


def test_clients_have_the_lock_one_at_a_time_in_the_order_in_which_they_came(bootstrap: str, topic: str) -> None:
    clients: list[Client] = []
    for _ in range(3):
        clients.append(Client(bootstrap, topic))
        if len(clients) == 1:
            eventually(lambda: clients[0].token)
        else:  # its place is taken once its broker has answered for the first time
            eventually(lambda: clients[-1].lock.waiting)
    for n, client in enumerate(clients):
        eventually(lambda client=client: client.token)  # type: ignore[misc]
        assert [bool(other.token) for other in clients] == [True] * (n + 1) + [False] * (2 - n)
        client.finish()
    tokens = [client.token for client in clients]
    assert tokens == sorted(set(tokens))


def test_what_makes_no_sense_is_refused_before_anything_is_asked(bootstrap: str, topic: str) -> None:
    for name in ("", "a/b", "..", "x" * 256):
        with pytest.raises(InvalidRequest, match="lock name"):
            Lock("127.0.0.1:1", name)
    for timeout_ms in (-1, float("nan")):
        with pytest.raises(InvalidSetting, match="timeout_ms"):
            Lock("127.0.0.1:1", topic, timeout_ms=timeout_ms)
    lock = Lock(bootstrap, topic)
    for use in (lock.release, lambda: lock.token):
        with pytest.raises(InvalidRequest, match="acquire it first"):
            use()
    with lock, pytest.raises(InvalidRequest, match="release it first"):
        lock.acquire()


def test_a_lock_whose_brokers_do_not_answer_says_so_in_time(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_ANSWER_MS", 500.0)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        Lock("127.0.0.1:1", topic, timeout_ms=0).acquire()


def test_a_holder_that_is_killed_frees_the_lock(bootstrap: str, topic: str) -> None:
    command = [sys.executable, "-c", HOLDER, bootstrap, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            token = int(holder.stdout.readline())
            with pytest.raises(LockNotAcquired):
                Lock(bootstrap, topic, timeout_ms=0).acquire()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    with Lock(bootstrap, topic) as lock:
        assert lock.token > token


def test_a_holder_whose_broker_is_killed_loses_the_lock_and_the_token_grows_over_the_restart(
    tmp_path: Path, topic: str
) -> None:
    heard: list[Lock] = []
    with LocalCluster(tmp_path) as cluster:
        lock = Lock(cluster.bootstrap, topic, on_lost=heard.append)
        token = lock.acquire()
        cluster.brokers[1].kill()
        eventually(lambda: lock.lost)
        assert not lock.held
        with pytest.raises(LockLost, match="acquire it again"):
            _ = lock.token
        eventually(lambda: heard == [lock])
        with pytest.raises(LockLost):
            lock.release()
        cluster.brokers[1].start()
        cluster.wait_until_serving()
        assert lock.acquire() > token
        lock.release()


def test_a_block_that_lost_its_lock_does_not_end_as_if_it_had_not(tmp_path: Path, topic: str) -> None:
    with LocalCluster(tmp_path) as cluster:

        def lose_it(go_on: Callable[[], object]) -> None:
            with Lock(cluster.bootstrap, topic) as lock:
                cluster.brokers[1].kill()
                eventually(lambda: lock.lost)
                go_on()

        with pytest.raises(LockLost):
            lose_it(lambda: None)
        cluster.brokers[1].start()
        cluster.wait_until_serving()
        with pytest.raises(ZeroDivisionError):  # what went wrong inside says more
            lose_it(lambda: 1 / 0)
