"""`tritonmq broker`: one process, its data, its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mq_dev.embedded_zookeeper import free_port
from tests.mq_cli.processes import Command, tritonmq, tritonmq_process

pytestmark = pytest.mark.cluster


def started(number: int, listen: str, data: Path) -> list[str]:
    return ["broker", "--id", str(number), "--listen", listen, "--data", str(data), "--standalone"]


@pytest.mark.processes
def test_a_signal_ends_it_cleanly(tmp_path: Path) -> None:
    """Meanwhile its data and its port are its own, and afterwards its data are no other broker's."""
    listen, data = f"127.0.0.1:{free_port()}", tmp_path / "data"
    with Command(*started(7, listen, data)) as broker:
        broker.remark_with("broker 7 serves")
        assert int((data / "broker.pid").read_text()) == broker.pid
        check_refused(started(7, "127.0.0.1:0", data), str(data))
        *log, _ = check_refused(started(2, listen, tmp_path / "b"), listen)
        # No line of gRPC's own: ours begin with their date.
        assert [line for line in log if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)] == []
        assert broker.end(signal.SIGINT) == 0
        assert broker.rest() == []
    check_refused(started(2, "127.0.0.1:0", data), str(data), "broker 7")


def check_refused(words: list[str], *told: str) -> list[str]:
    """All that it said."""
    result = tritonmq_process(*words)
    assert result.returncode == 1
    lines = result.stderr.decode().splitlines()
    assert lines[-1].startswith("Error: ")
    assert all(each in lines[-1] for each in told), lines[-1]
    assert "Traceback" not in result.stderr.decode()
    return lines


@pytest.mark.processes
def test_it_ends_with_whoever_holds_its_standard_input(tmp_path: Path) -> None:
    with Command(*started(1, "127.0.0.1:0", tmp_path), "--stop-at-eof", stdin=subprocess.PIPE) as broker:
        broker.remark_with("serves")
        assert broker.process.stdin is not None
        broker.process.stdin.close()
        assert broker.process.wait(60) == 0


def test_an_embedded_zookeeper_runs_as_long_as_the_broker(tmp_path: Path) -> None:
    zookeeper = f"embedded:{free_port()}"
    with Command(
        "broker", "--id", "1", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--zookeeper", zookeeper
    ) as broker:
        hosts = broker.remark_with("ZooKeeper runs on").partition("runs on ")[2].partition(",")[0]
        broker.remark_with("broker 1 serves")
        second = ["broker", "--id", "2", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "2"), "--zookeeper", hosts]
        with Command(*second) as other:
            other.remark_with("broker 2 serves")
            assert other.end() == 0
        assert broker.end() == 0


def test_a_broker_id_that_a_live_process_has_is_refused_and_that_process_goes_on(
    zookeeper: str, tmp_path: Path
) -> None:
    # What is asked of ZooKeeper has twice that time for its answer.
    common = [
        "broker",
        "--id",
        "3",
        "--listen",
        "127.0.0.1:0",
        "--zookeeper",
        f"{zookeeper}/taken",
        "--session-timeout-ms",
        "3000",
    ]
    with Command(*common, "--data", str(tmp_path / "a")) as broker:
        address = broker.remark_with("serves at ").partition("serves at ")[2].partition(",")[0]
        result = tritonmq_process(*common, "--data", str(tmp_path / "b"))
        assert result.returncode == 1
        last = result.stderr.decode().splitlines()[-1]
        assert last.startswith("Error: another process runs as broker 3")
        assert address in last
        assert broker.end() == 0


def test_the_collector_does_not_walk_over_what_lives_as_long_as_the_broker() -> None:
    """Counted, not timed: in a process of its own, as a broker's is."""
    counting = (
        "import gc; from mq_broker.broker.server import serve; from mq_broker.broker.runtime.garbage import Garbage; "
        "before = len(gc.get_objects()); Garbage(); print(before, len(gc.get_objects()))"
    )
    found = subprocess.run([sys.executable, "-c", counting], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, found.stdout.split())
    assert before > 20_000
    assert after < before / 20


@pytest.mark.parametrize("more", [("--standalone",), ("--zookeeper", "embedded"), ("--zookeeper", "embedded:2181")])
def test_a_proxy_without_a_cluster_is_refused(more: tuple[str, ...], tmp_path: Path) -> None:
    proxy = ["broker", "--role", "proxy", "--id", "9", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    result = tritonmq(*proxy, *more)
    assert result.returncode == 2
    assert b"--role proxy" in result.stderr
    assert not (tmp_path / "data").exists()
