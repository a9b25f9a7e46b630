"""The Go client through `tritonmq proxy`: the brokers' names mean something to the tunnel alone, so it reaches nobody
past that. `make go` runs these."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mq_client import Admin, Producer, Reader
from mq_dev.local_cluster import HOST, LocalCluster
from tests.clients.conftest import BUILD_S
from tests.clients.test_go_groups import running
from tests.cluster.harness import wait_until
from tests.hidden import Proxy, hidden_bootstrap, hidden_cluster, name_of
from tests.securing import Certs

ASK_S = 120
RECORDS = 20_000

pytestmark = [
    pytest.mark.go,
    pytest.mark.skipif(not os.environ.get("TRITONMQ_TEST_GO"), reason="needs Go: make go"),
    pytest.mark.timeout(BUILD_S + 300),
]


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three brokers over TLS, with certificates for names that only the tunnel can resolve."""
    certs = Certs(tmp_path / "certs", 1, 2, 3, hosts=(HOST, *(name_of(number) for number in (1, 2, 3))))
    certs.user("admin")
    with hidden_cluster(tmp_path / "hidden", 3, certs=certs.path) as cluster:
        monkeypatch.setenv("TRITONMQ_CERTS", str(certs.path))
        monkeypatch.setenv("TRITONMQ_USER", "admin")
        yield cluster


def test_go_programs_publish_read_and_work_off_through_a_tunnel_that_is_killed_meanwhile(
    hidden: LocalCluster, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = hidden_bootstrap(hidden)
    with Proxy(hidden.bootstrap) as proxy:
        with Admin(bootstrap, via=proxy.via) as admin:
            admin.create_topic("numbers", partitions=2, replicas=3)
            admin.create_topic("copies", partitions=2, replicas=3)
            admin.create_topic("jobs", partitions=2, replicas=3)
            admin.declare_queue("jobs", "workers")
        refused = subprocess.run(
            [programs / "tritonmq-count", bootstrap, "numbers", "1", "1"],
            env={**os.environ, "TRITONMQ_VIA": "direct"},
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
        )
        assert refused.returncode == 1
        assert "no such host" in refused.stderr or "lookup" in refused.stderr, refused.stderr

        monkeypatch.setenv("TRITONMQ_VIA", proxy.via)
        _count_while_the_tunnel_is_killed(proxy, [programs / "tritonmq-count", bootstrap, "numbers", "1", str(RECORDS)])
        with Reader(bootstrap) as reader:
            values = [value for batch in reader.read("numbers", 1) for value in batch.column("value").to_pylist()]
        assert values == [b"%d" % n for n in range(RECORDS)]

        name = "00000000-0000-4000-8000-000000000001"
        copy: list[str | Path] = [programs / "tritonmq-copy", bootstrap, "numbers", "copies", "1", name]
        copied = subprocess.run(copy, capture_output=True, text=True, timeout=ASK_S, check=False)
        assert copied.returncode == 0, copied.stderr

        with Producer(bootstrap) as producer:
            for number in range(100):
                producer.publish("jobs", b"%d" % number, partition=number % 2)
        done: list[str] = []
        with running(done.append, programs / "tritonmq-work", bootstrap, "jobs", "workers") as program:
            wait_until(lambda: len(done) == 100, "the Go worker is done", ASK_S)
            assert program.finish() == ""
        assert sorted(done) == sorted(f"ack {number}" for number in range(100))

        heard: list[str] = []
        with running(heard.append, programs / "tritonmq-group", bootstrap, "numbers", "g") as program:
            wait_until(_has_heard(heard), "the Go member has been given every record", ASK_S)
            assert program.finish() == ""


def _count_while_the_tunnel_is_killed(proxy: Proxy, command: list[str | Path]) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as counting:
        assert counting.stdout is not None
        assert counting.stderr is not None
        told = 0
        for line in counting.stdout:
            told = int(line)
            if told == RECORDS // 5:
                proxy.kill()
                proxy.start()
        assert (counting.wait(ASK_S), counting.stderr.read()) == (0, "")
    assert told == RECORDS


def _has_heard(lines: list[str]) -> Callable[[], bool]:
    return lambda: sum(line.count(" ") == 2 and not line.startswith("committed") for line in lines) >= RECORDS
