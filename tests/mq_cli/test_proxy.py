"""`tritonmq proxy` as a command, and what other commands say of a tunnel."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from mq_cli.settings_file import keys
from tests.mq_cli.processes import Command, tritonmq

NOWHERE = "127.0.0.1:1"


def test_other_machines_are_led_to_brokers_in_plain_text_only_if_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONMQ_CERTS", raising=False)
    refused = tritonmq("proxy", "--listen", "0.0.0.0:0", "--bootstrap", NOWHERE)
    assert refused.returncode == 2
    assert b"--insecure" in refused.stderr


def test_a_port_that_is_taken_and_an_address_that_is_none() -> None:
    assert tritonmq("proxy", "--listen", "7490").returncode == 2
    with Command(
        "proxy", "--listen", "127.0.0.1:0", "--bootstrap", NOWHERE, "--stop-at-eof", stdin=subprocess.PIPE
    ) as one:
        address = one.line().removeprefix("proxy ")
        taken = tritonmq("proxy", "--listen", address, "--bootstrap", NOWHERE)
        assert (taken.returncode, b"cannot listen on" in taken.stderr) == (1, True)
        assert one.process.stdin is not None
        one.process.stdin.close()
        one.process.stdin = None
        assert one.process.wait(30) == 0


@pytest.mark.processes
def test_it_serves_without_a_cluster_says_so_and_ctrl_c_ends_it() -> None:
    with Command("proxy", "--listen", "127.0.0.1:0", "--bootstrap", NOWHERE) as command:
        via = command.line().removeprefix("proxy ")
        command.remark_with("cannot be asked for its brokers")
        status = tritonmq("cluster", "status", "--bootstrap", "127.0.0.1:2", "--via", via)
        assert status.returncode == 1
        assert f"the tunnel at {via} does not reach the broker at 127.0.0.1:2".encode() in status.stderr
        assert "TRITONMQ_VIA" not in os.environ
        assert command.end(signal.SIGINT) == 0


def test_every_command_that_asks_brokers_names_a_dead_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONMQ_VIA", NOWHERE)
    told = f"the tunnel at {NOWHERE} cannot be reached: connection refused".encode()
    for words in (["topic", "list"], ["cluster", "status"], ["consume", "t"], ["doctor"], ["health", "b.hidden:1"]):
        outcome = tritonmq(*words)
        assert outcome.returncode == 1, words
        assert told in outcome.stderr + outcome.stdout, words
    assert tritonmq("topic", "list", "--via", "nonsense").returncode == 2


def test_it_is_a_setting() -> None:
    key = keys()["client"]["via"]
    assert (key.flag, key.environment) == ("--via", "TRITONMQ_VIA")
