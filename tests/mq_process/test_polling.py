"""Brokers and Spark's workers have gRPC wait for sockets itself: seen by what gRPC traces, in processes of their
own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq_dev.local_cluster import LocalCluster
from mq_process import polling
from tests.cluster.harness import wait_until

CONNECT = """
import sys
from mq_process.polling import wait_without_event_engine
if sys.argv[1] == "late":
    import grpc
print(sys.argv[1] != "never" and wait_without_event_engine())
import grpc
from concurrent.futures import ThreadPoolExecutor

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    grpc.channel_ready_future(channel).result(30)
server.stop(None).wait(30)
"""

TRACED = {"GRPC_VERBOSITY": "info", "GRPC_TRACE": "event_engine_endpoint"}


def connect(how: str, **environment: str) -> tuple[str, str]:
    """Whether it said that it chose, and what gRPC wrote."""
    run = [sys.executable, "-c", CONNECT, how]
    clean = {name: value for name, value in os.environ.items() if name != polling.VARIABLE}
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60, env=clean | environment)
    return done.stdout.strip(), done.stderr


def test_grpc_waits_for_sockets_itself() -> None:
    chosen, traced = connect("never", **TRACED)
    assert chosen == "False"
    assert "posix_endpoint" in traced, "as gRPC comes, so that this test can tell"
    chosen, traced = connect("early", **TRACED)
    assert chosen == "True"
    assert "posix_endpoint" not in traced


ASK = """
import sys, time
from mq_process.polling import wait_without_event_engine
assert wait_without_event_engine()
from mq_client import Security, TritonMQError
from mq_client.cluster.channels import Client, call_unary
from mq_protocol import mq_pb2 as pb

told, client = None, Client((), Security(sys.argv[2], "admin"))
while True:
    try:
        call_unary(sys.argv[1], "Metadata", pb.MetadataRequest(), pb.MetadataResponse, 5, client)
        now = "answered"
    except TritonMQError:
        now = "away"
    if now != told:
        print(now, flush=True)
    told = now
    time.sleep(0.2)
"""


@pytest.mark.cluster
def test_a_client_whose_calls_fail_at_once_is_connected_again_over_tls(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    with LocalCluster(tmp_path / "c", certs=certs) as cluster:
        said = tmp_path / "said"
        clean = {
            name: value for name, value in os.environ.items() if name not in (polling.VARIABLE, polling.BETWEEN_CALLS)
        }
        with said.open("w") as out:
            asking = subprocess.Popen([sys.executable, "-c", ASK, cluster.bootstrap, str(certs)], stdout=out, env=clean)
        try:
            wait_until(lambda: said.read_text().split()[-1:] == ["answered"], "it is answered")
            cluster.kill(1)
            wait_until(lambda: said.read_text().split()[-1:] == ["away"], "the broker is missed")
            cluster.restart(1)
            wait_until(lambda: said.read_text().split()[-1:] == ["answered"], "it is answered again")
        finally:
            asking.kill()
            asking.wait(30)


def test_grpc_does_not_complain() -> None:
    assert connect("early") == ("True", "")


def test_what_the_environment_says_and_what_was_imported_before_are_left_alone() -> None:
    assert connect("early", **{polling.VARIABLE: ""})[0] == "False"
    assert connect("late")[0] == "False"


def test_the_grpc_that_is_installed_is_one_that_was_looked_at() -> None:
    # Once it is not: see whether it still has the choice (above, without a complaint) and what it gains, or delete all
    # this.
    assert polling.FIRST_VERSION <= polling._installed_version() <= polling.LAST_VERSION


@pytest.mark.parametrize("version", [(1, 79), (1, 86), (0, 0)])
def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]) -> None:
    monkeypatch.delenv(polling.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    monkeypatch.setattr(polling, "_installed_version", lambda: version)
    assert polling.wait_without_event_engine() is False
    assert polling.VARIABLE not in os.environ
