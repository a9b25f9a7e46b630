"""`tritonmq lock`: the command runs while it has the lock, and the lock ends with it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_cli.main import MISUSED, REFUSED
from mq_dev.local_cluster import LocalCluster
from tests.mq_cli.processes import WAIT_S, Command, tritonmq, tritonmq_process

HOLD = "import os, signal, sys; print(os.environ['TRITONMQ_LOCK_TOKEN'], flush=True); signal.pause()"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("lock")) as started:
        yield started


def held(cluster: LocalCluster, name: str, code: str = HOLD) -> Command:
    return Command("lock", name, "--bootstrap", cluster.bootstrap, "--", sys.executable, "-c", code)


def test_one_command_runs_at_a_time_and_a_signal_ends_it_and_frees_the_lock(cluster: LocalCluster) -> None:
    with held(cluster, "nightly") as first:
        token = int(first.line())
        refused = tritonmq("lock", "nightly", "--wait", "0", "--bootstrap", cluster.bootstrap, "--", "true")
        assert refused.returncode == REFUSED
        assert b"was not free" in refused.stderr
        with held(cluster, "nightly") as second:
            assert first.end(signal.SIGTERM) == 128 + signal.SIGTERM
            assert int(second.line()) > token
            # The command too; nothing has time to release: the broker sees that it is gone
            os.killpg(second.pid, signal.SIGKILL)
            done = tritonmq("lock", "nightly", "--wait", str(WAIT_S), "--bootstrap", cluster.bootstrap, "--", "true")
            assert done.returncode == 0


def test_the_exit_code_is_the_commands(cluster: LocalCluster) -> None:
    done = tritonmq_process("lock", "n", "--bootstrap", cluster.bootstrap, "--", "sh", "-c", "echo it ran; exit 7")
    assert (done.returncode, done.stdout) == (7, b"it ran\n")


def test_a_command_that_cannot_be_run_is_refused_before_the_lock_is_asked_for() -> None:
    for arguments, said in (
        (("n", "--", "no-such-command"), b"no-such-command"),
        (("a/b", "--", "true"), b"lock name"),
    ):
        outcome = tritonmq("lock", "--bootstrap", "127.0.0.1:1", *arguments)
        assert outcome.returncode == MISUSED
        assert said in outcome.stderr


def test_a_command_whose_lock_is_lost_is_told_to_end(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        ends_well = (
            "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(0)));"
            + HOLD
        )
        with held(cluster, "nightly", ends_well) as command:
            command.line()
            cluster.brokers[1].kill()
            assert command.line() == "told"
            assert "is lost" in command.remark_with("Error:")
            assert command.process.wait(WAIT_S) == REFUSED
