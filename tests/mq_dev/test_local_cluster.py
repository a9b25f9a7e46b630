"""A cluster of processes on this machine: it comes up whole, or says which part did not and why."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from pathlib import Path

import psutil
import pytest

from mq_client import Admin
from mq_dev.local_cluster import HOST, ClusterFailed, LocalCluster
from mq_protocol.errors import CoordinationUnavailable

pytestmark = pytest.mark.cluster


def test_it_serves_when_start_returns_and_nothing_is_left_when_stop_does(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, brokers=3) as cluster:
        with Admin(cluster.bootstrap) as admin:
            assert [broker.id for broker in admin.describe_cluster().brokers] == [1, 2, 3]
        assert cluster.zookeeper is not None
        processes = [
            psutil.Process(pid) for pid in (cluster.zookeeper.pid, *(broker.pid for broker in cluster.brokers.values()))
        ]
    assert not any(process.is_running() for process in processes)
    assert [broker.status for broker in cluster.brokers.values()] == [0, 0, 0]


def test_a_broker_is_killed_and_comes_back_on_its_port_with_its_data(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, brokers=1) as cluster, Admin(cluster.bootstrap) as admin:
        admin.create_topic("kept", partitions=1, replicas=1)
        pid = cluster.kill(1)
        assert (cluster.brokers[1].pid, cluster.brokers[1].status) == (None, -signal.SIGKILL)
        cluster.restart(1)
        assert cluster.brokers[1].pid not in (None, pid)
        assert admin.list_topics() == ["kept"]
        assert [broker.incarnation for broker in admin.describe_cluster().brokers] == [2]
        cluster.stop()
        cluster.start()
        assert admin.list_topics() == ["kept"]


def test_a_paused_broker_is_stopped_all_the_same(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, brokers=1) as cluster:
        pid = cluster.brokers[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert cluster.brokers[1].status == 0


def test_a_broker_that_cannot_start_is_named_with_its_last_words_and_nothing_is_left(
    tmp_path: Path, zookeeper: str
) -> None:
    (tmp_path / "broker-2").write_text("not a directory")
    cluster = LocalCluster(tmp_path, brokers=2, zookeeper=f"{zookeeper}/{uuid.uuid4().hex}")
    with pytest.raises(ClusterFailed, match=r"(?s)broker 2 ended.*broker-2"), cluster:
        pass
    assert all(broker.pid is None for broker in cluster.brokers.values())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClusterFailed, match=f"{HOST}:{port}"), LocalCluster(tmp_path, brokers=1, port=port):
            pass


def test_without_java_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster = LocalCluster(tmp_path / "c", brokers=2)
    with pytest.raises(CoordinationUnavailable, match="install Java"):
        cluster.start()
    assert all(broker.status is None for broker in cluster.brokers.values())


def test_settings_of_the_users_own_broker_are_not_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "tritonmq.toml"
    config.write_text('[broker]\nrack = "r1"\nzookeeper = "127.0.0.1:1"\n')
    monkeypatch.setenv("TRITONMQ_CONFIG", str(config))
    monkeypatch.setenv("TRITONMQ_BROKER_RACK", "r2")
    with LocalCluster(tmp_path / "cluster", brokers=1) as cluster, Admin(cluster.bootstrap) as admin:
        assert [broker.rack for broker in admin.describe_cluster().brokers] == [""]
