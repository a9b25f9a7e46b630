"""`tritonmq dev`: says when it is ready, once; tells who has ended; ends everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cluster.harness import wait_until
from tests.mq_cli.processes import Command, tritonmq
from tests.switch import plain_text

pytestmark = [pytest.mark.cluster, plain_text("it shows `tritonmq dev` as it is; a test here shows its --secure")]


def children_of(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.pid).children(recursive=True)


def test_one_broker_is_ready_and_ctrl_c_ends_it_and_removes_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where no other test begins a `tritonmq dev`
    with Command("dev", "--port", "0") as dev:
        ready = dev.line()
        assert ready.startswith("ready bootstrap=127.0.0.1:")
        assert "," not in ready
        (data,) = tmp_path.glob("tritonmq-dev-*")
        console = dev.remark_with("console http://127.0.0.1:").removeprefix("console ")
        children = children_of(dev)
        pid = int((data / "broker-1" / "broker.pid").read_text())
        assert [each.pid for each in children if "console" not in each.cmdline()] == [pid]
        assert len(children) == 2

        def states() -> list[str]:
            told = httpx.get(f"{console}/api/v1/overview", trust_env=False, timeout=30).json()
            return [each["state"] for each in told["brokers"]]

        wait_until(lambda: states() == ["serving"], "the console shows the broker")
        assert dev.end(signal.SIGINT) == 0
        assert dev.rest() == []
        assert not any(child.is_running() for child in children)
        assert not data.exists()


def test_three_brokers_and_their_zookeeper_come_one_may_die_and_all_go_when_it_is_killed(tmp_path: Path) -> None:
    with Command("dev", "--brokers", "3", "--port", "0", "--no-console", "--data", str(tmp_path / "d")) as dev:
        bootstrap, grpc = (word.partition("=")[2] for word in dev.line().removeprefix("ready ").split())
        assert len(bootstrap.split(",")) == len(grpc.split(",")) == 3
        credential = tmp_path / "d" / "zookeeper.auth"
        assert credential.stat().st_mode & 0o777 == 0o600
        assert b", closed to all but the brokers" in tritonmq("cluster", "status", "--bootstrap", bootstrap).stdout
        children = [child for child in children_of(dev) if child.name() != "sh"]  # ZooKeeper's guard
        assert len(children) == 4
        victim = int((tmp_path / "d" / "broker-2" / "broker.pid").read_text())
        os.kill(victim, signal.SIGKILL)
        assert "SIGKILL" in dev.remark_with("the others go on")
        command = dev.remark_with("bring it back with: ").partition("with: ")[2]
        assert len([child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]) == 3
        # What it says brings the broker back.
        with Command(*command.split()[1:]) as again:
            again.remark_with("serves")
            assert int((tmp_path / "d" / "broker-2" / "broker.pid").read_text()) == again.pid
            assert again.end() == 0
        children = children_of(dev)
        assert any("java" in child.name() for child in children)
        dev.process.kill()
        _gone, alive = psutil.wait_procs(children, timeout=120)
        assert alive == []


def test_a_secure_one_has_a_user_with_rules_and_the_key_that_makes_others_and_takes_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "d"
    monkeypatch.setenv("TRITONMQ_TOKEN_FILE", "")
    words = ("dev", "--port", "0", "--no-console", "--data", str(data), "--secure", "--authorize")
    with Command(*words) as dev:
        bootstrap, _grpc, certs = (word.partition("=")[2] for word in dev.line().removeprefix("ready ").split())
        assert certs == str(data / "certs")
        monkeypatch.setenv("TRITONMQ_BOOTSTRAP", bootstrap)
        monkeypatch.setenv("TRITONMQ_CERTS", certs)
        monkeypatch.setenv("TRITONMQ_USER", "")  # what --user leaves there goes with the test
        command = dev.remark_with("another user: ").partition("another user: tritonmq ")[2]
        key = Path(command.rpartition(" ")[2])
        assert key.stat().st_mode & 0o777 == 0o600
        assert not key.is_relative_to(certs)
        assert tritonmq(*command.replace("NAME", "bob").split()).returncode == 0
        make = ("topic", "create", "--partitions", "1", "--replicas", "1")
        assert tritonmq(*make, "trial-1", "--user", "trial").returncode == 0
        refused = tritonmq(*make, "other", "--user", "trial")
        assert refused.returncode == 1
        assert b"User:trial has no right Create" in refused.stderr
        assert tritonmq(*make, "trial-2", "--user", "bob").returncode == 1
        assert b"User:trial" in tritonmq("acl", "list", "--user", "admin").stdout
        assert tritonmq("cert", "revoke", "User:trial", "--user", "admin").stdout == b"User:trial\n1 revoked\n"
        assert tritonmq("topic", "list", "--user", "trial").returncode == 1
        token = str(tmp_path / "etl.token")
        made = tritonmq("user", "create", "etl", "--out", token, "--user", "admin")
        assert (made.returncode, b"warning" in made.stderr) == (0, False), made.stderr
        assert b"User:etl has no right" in tritonmq(*make, "other", "--token-file", token).stderr
        assert dev.end() == 0


def test_rules_without_certificates_are_refused() -> None:
    refused = tritonmq("dev", "--authorize")
    assert refused.returncode == 2
    assert b"--secure" in refused.stderr


@pytest.mark.parametrize("by", ["Ctrl-C", "what it has to say"])
def test_when_nobody_reads_what_it_says_it_leaves_nothing_running(by: str, tmp_path: Path) -> None:
    """As in `tritonmq dev 2>&1 | tee log` and `| head`."""
    brokers = "1" if by == "Ctrl-C" else "2"
    words = ["dev", "--brokers", brokers, "--port", "0", "--no-console", "--data", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "mq_cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as dev:
        assert dev.stdout is not None
        while b"Ctrl-C ends it" not in dev.stdout.readline():
            assert dev.poll() is None
        children = psutil.Process(dev.pid).children(recursive=True)
        dev.stdout.close()
        if by == "Ctrl-C":
            dev.send_signal(signal.SIGINT)
        else:
            os.kill(int((tmp_path / "broker-2" / "broker.pid").read_text()), signal.SIGKILL)
        assert dev.wait(120) == 0
        assert [child for child in children if child.is_running()] == []


def test_a_port_that_is_taken_is_named_and_the_other_cluster_is_not_taken_for_ours(tmp_path: Path) -> None:
    with Command("dev", "--port", "0", "--no-console") as first:
        port = first.line().rpartition(":")[2]
        with Command("dev", "--port", port, "--no-console", "--data", str(tmp_path)) as second:
            assert second.process.wait(60) == 1
            assert second.rest() == []
            assert f"127.0.0.1:{port}" in second.remark_with("Error: ")


def test_a_zookeeper_that_starts_slowly_is_waited_for_and_told_of_and_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with Command("dev", "--brokers", "2", "--port", "0", "--no-console", "--data", str(tmp_path / "d")) as dev:
        for _ in range(2):
            assert str(tmp_path / "d") in dev.remark_with("waiting: ZooKeeper does not answer on 127.0.0.1:")
        children = children_of(dev)
        assert dev.end(signal.SIGINT) == 0
        assert [child for child in children if child.is_running()] == []
