"""The Go client where it reaches one address, of a broker that passes on. The brokers' names mean nothing on this
machine, so it reaches nobody past that. `make go` runs these."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import HOST, BrokerProcess
from tests.clients.conftest import BUILD_S, shared
from tests.clients.test_go_groups import running
from tests.cluster.harness import Cluster, wait_until
from tests.hidden import hide, name_of
from tests.securing import Certs

ASK_S = 120
RECORDS = 20_000
JOBS = 100
PARTITIONS = 3

pytestmark = [
    pytest.mark.go,
    pytest.mark.skipif(not os.environ.get("TRITONMQ_TEST_GO"), reason="needs Go: make go"),
    pytest.mark.timeout(BUILD_S + 300),
]


@pytest.fixture(scope="module")
def _hidden(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[Cluster]:
    """Three brokers over TLS, with certificates for the address at which they listen, and for their names."""
    directory = tmp_path_factory.mktemp("hidden")
    certs = Certs(directory / "certs", 1, 2, 3, hosts=(HOST, *(name_of(number) for number in (1, 2, 3))))
    root = f"{zookeeper}/{uuid.uuid4().hex}"
    options = {"zookeeper": root, "certs": certs.path, "closed": True, "arguments": ("--session-timeout-ms", "2000")}
    cluster = hide(Cluster(directory / "cluster", 3, grpc=True, **options))
    with cluster:
        cluster._admin = Admin(cluster.bootstrap, 60_000, security=cluster.security, forward=True)
        yield cluster


@pytest.fixture
def hidden(request: pytest.FixtureRequest, _hidden: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for broker in _hidden.brokers:
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(name_of(broker), None)
    assert _hidden.security is not None
    monkeypatch.setenv("TRITONMQ_CERTS", str(_hidden.certs))
    monkeypatch.setenv("TRITONMQ_USER", str(_hidden.security.user))
    yield from shared(request, _hidden)


def test_go_programs_publish_read_and_work_off_by_a_broker_that_passes_on_while_brokers_are_killed(
    hidden: Cluster, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "passed-on"
    _make_topics(hidden, topic)
    leaders = hidden.wait_for_leaders(topic)
    apart = next(partition for partition, leader in leaders.items() if leader != 1)
    one = (hidden.brokers[1],)
    monkeypatch.setenv("TRITONMQ_FORWARD", "1")
    _count(programs, one, topic, apart, lambda: hidden.kill(leaders[apart]))
    hidden.restart(leaders[apart])
    _copy_and_work_and_read(programs, one, topic, apart)

    hidden.wait_for_isr(topic, 3)
    other = next(number for number in (2, 3) if number != hidden.leader(topic, apart))
    both = (*one, hidden.brokers[other])
    _count(programs, both, topic, apart, lambda: hidden.kill(1), before=RECORDS)


def by_grpc(brokers: Sequence[BrokerProcess]) -> str:
    return ",".join(broker.grpc for broker in brokers)


def by_name(brokers: Sequence[BrokerProcess]) -> str:
    return ",".join(broker.address for broker in brokers)


def _make_topics(hidden: Cluster, topic: str) -> None:
    for name in (topic, f"{topic}-copies", f"{topic}-jobs"):
        hidden.admin.create_topic(name, partitions=PARTITIONS, replicas=3)
    hidden.admin.declare_queue(f"{topic}-jobs", "workers")


def _count(
    programs: Path,
    brokers: Sequence[BrokerProcess],
    topic: str,
    partition: int,
    meanwhile: Callable[[], object],
    before: int = 0,
) -> None:
    """Publish numbers, and see that each of them is there once and in order, behind what was there before."""
    command = [programs / "tritonmq-count", by_grpc(brokers), topic, str(partition), str(RECORDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as counting:
        assert counting.stdout is not None
        assert counting.stderr is not None
        told = 0
        for line in counting.stdout:
            told = int(line)
            if told == RECORDS // 5:
                assert counting.poll() is None
                meanwhile()
        assert (counting.wait(ASK_S), counting.stderr.read()) == (0, "")
    assert told == RECORDS
    with Reader(by_name(brokers)) as reader:
        values = [
            value for batch in reader.read(topic, partition, before) for value in batch.column("value").to_pylist()
        ]
    assert values == [b"%d" % n for n in range(RECORDS)]


def _copy_and_work_and_read(programs: Path, brokers: Sequence[BrokerProcess], topic: str, partition: int = 1) -> None:
    name = "00000000-0000-4000-8000-000000000001"
    to, copies = by_grpc(brokers), f"{topic}-copies"
    copy: list[str | Path] = [programs / "tritonmq-copy", to, topic, copies, str(partition), name]
    copied = subprocess.run(copy, capture_output=True, text=True, timeout=ASK_S, check=False)
    assert copied.returncode == 0, copied.stderr

    with Producer(by_name(brokers)) as producer:
        for number in range(JOBS):
            producer.publish(f"{topic}-jobs", b"%d" % number, partition=number % PARTITIONS)
    done: list[str] = []
    with running(done.append, programs / "tritonmq-work", by_grpc(brokers), f"{topic}-jobs", "workers") as program:
        wait_until(lambda: len(done) >= JOBS, "the Go worker is done", ASK_S)
        assert program.finish() == ""
    assert sorted(done) == sorted(f"ack {number}" for number in range(JOBS))

    heard: list[str] = []
    with running(heard.append, programs / "tritonmq-group", by_grpc(brokers), topic, f"{topic}-readers") as program:
        wait_until(lambda: _records(heard) >= RECORDS, "the Go member has been given every record", ASK_S)
        assert program.finish() == ""


def _records(lines: list[str]) -> int:
    return sum(line.count(" ") == 2 and not line.startswith("committed") for line in lines)
