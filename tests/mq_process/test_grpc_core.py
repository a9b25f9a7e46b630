"""What brokers ask of gRPC's core: to wait for sockets itself, which is seen by what it traces in processes of their
own, and to write nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mq_process import grpc_core

CONNECT = """
import sys
from mq_process.grpc_core import wait_without_event_engine
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
    clean = {name: value for name, value in os.environ.items() if name != grpc_core.EXPERIMENTS}
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60, env=clean | environment)
    return done.stdout.strip(), done.stderr


def test_grpc_waits_for_sockets_itself() -> None:
    chosen, traced = connect("never", **TRACED)
    assert chosen == "False"
    assert "posix_endpoint" in traced, "as gRPC comes, so that this test can tell"
    chosen, traced = connect("early", **TRACED)
    assert chosen == "True"
    assert "posix_endpoint" not in traced
    assert connect("early") == ("True", ""), "it does not complain"


def test_what_the_environment_says_and_what_was_imported_before_are_left_alone() -> None:
    assert connect("early", **{grpc_core.EXPERIMENTS: ""})[0] == "False"
    assert connect("late")[0] == "False"


def test_the_grpc_that_is_installed_is_one_that_was_looked_at() -> None:
    # Once it is not: see whether it still has the choice (above, without a complaint) and what it gains, or delete all
    # this.
    assert grpc_core.FIRST_VERSION <= grpc_core._installed_version() <= grpc_core.LAST_VERSION


@pytest.mark.parametrize(("given", "level"), [(None, "NONE"), ("ERROR", "ERROR"), ("DEBUG", "DEBUG")])
def test_the_environment_has_the_last_word(given: str | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {} if given is None else {grpc_core.VERBOSITY: given}
    monkeypatch.setattr("os.environ", environment)
    grpc_core.write_nothing()
    assert environment[grpc_core.VERBOSITY] == level
