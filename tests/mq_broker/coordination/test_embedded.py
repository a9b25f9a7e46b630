"""The server that comes with pyspark: found, started, killed, brought back; and what is said when it cannot be."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import psutil
import pytest

from mq_broker.coordination.embedded import EmbeddedZooKeeper, free_port
from mq_protocol.errors import CoordinationUnavailable


def test_it_starts_is_killed_and_starts_again_on_the_same_port(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    assert server.pid is None
    server.start()
    first, hosts = server.pid, server.hosts
    server.start()  # it runs: nothing to do
    assert server.pid == first
    server.kill()
    assert server.pid is None
    server.start()
    assert server.pid not in (None, first)
    assert server.hosts == hosts
    second = server.pid
    server.stop()
    server.stop()
    assert server.pid is None
    assert second is not None
    assert not psutil.pid_exists(second)


def test_it_listens_on_a_loopback_address_only(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    try:
        listening = [c.laddr.ip for c in psutil.Process(server.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
        assert len(listening) == 1  # no admin server, no JMX
    finally:
        server.stop()


def test_no_port_is_given_twice_before_whoever_has_it_listens() -> None:
    """One of 3,000 clusters of three had two processes with the same port, and one that did not start."""
    given = [free_port() for _ in range(1_000)]  # by chance alone, one of 17,000 each: the same twice, all but surely
    assert len(set(given)) == len(given)


def test_a_port_that_is_taken_is_said_with_the_servers_own_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = EmbeddedZooKeeper(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(CoordinationUnavailable, match="Address already in use"):
            server.start()
        assert server.pid is None


def test_a_zookeeper_on_that_port_is_offered_instead(tmp_path: Path, zookeeper: str) -> None:
    server = EmbeddedZooKeeper(tmp_path, port=int(zookeeper.rpartition(":")[2]))
    with pytest.raises(CoordinationUnavailable, match=f"--zookeeper {zookeeper}"):
        server.start()


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CoordinationUnavailable, match=r"install Java 17.*--zookeeper HOST:PORT"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


def test_without_pyspark_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(CoordinationUnavailable, match=r"tritonmq\[spark\].*--zookeeper HOST:PORT"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinationUnavailable, match="--data"):
        EmbeddedZooKeeper(tmp_path / "file" / "zk").start()
