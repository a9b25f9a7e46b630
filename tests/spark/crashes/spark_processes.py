"""Spark's processes: a driver and what it started, and a master with two workers. Ends nothing that it did not
start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil

from mq_dev.embedded_zookeeper import free_port
from tests.cluster.harness import wait_until
from tests.spark.crashes.driver import Specification

_EXECUTOR = "CoarseGrainedExecutorBackend"
_END_S = 30.0
_UP_S = 180.0
"""For machines that have much else to do."""

_HERE = "127.0.0.1"
_WORKER_HOSTS = (_HERE, "127.0.0.2")
"""Two, because Spark runs a speculative copy only on another host."""


def environment(home: Path) -> dict[str, str]:
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HERE, "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **own}


def kill_family(pid: int) -> None:
    """SIGKILL of the process and of all that descends from it, the oldest first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, _END_S)


def kill_one(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def executor_of(pid: int) -> int | None:
    """The executor's JVM in which a Python worker works; None if that is the driver's."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return next((parent.pid for parent in psutil.Process(pid).parents() if _is_executor(parent)), None)
    return None


def executors_under(pids: list[int]) -> list[int]:
    """Executors' JVMs that descend from these processes."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True) if _is_executor(child)]
    return found


def _is_executor(process: psutil.Process) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    return any(_EXECUTOR in word for word in line) and "java" in Path(line[0]).name


class Driver:
    """Owns a driver's process and, through it, whatever that has started."""

    def __init__(self, specification: Specification, scratch: Path, home: Path) -> None:
        self._path = scratch / "specification.json"
        specification.save(self._path)
        self.log = scratch / "driver.log"
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, "the driver has not been started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tests.spark.crashes.driver", str(self._path)]
            self._process = subprocess.Popen(
                command,
                env=environment(self._home),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.lives += 1

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and all below: executors too, if the driver has started them."""
        if self._process is not None:
            kill_family(self._process.pid)
            self._process.wait(_END_S)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None


class StandaloneSpark:
    """Owns a master and two workers of one core each, on two loopback addresses. They outlive drivers."""

    def __init__(self, scratch: Path, home: Path) -> None:
        self._scratch = scratch
        self._home = home
        self._port = free_port(_HERE)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{_HERE}:{self._port}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._run(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            _HERE,
            "--port",
            str(self._port),
            "--webui-port",
            "0",
        )
        wait_until(lambda: self._said("master", "I have been elected leader"), "Spark's master serves", _UP_S)
        for host in _WORKER_HOSTS:
            work = ["--work-dir", str(self._scratch / host), "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            self._run(f"worker-{host}", "org.apache.spark.deploy.worker.Worker", "--host", host, *work, self.master)
        for host in _WORKER_HOSTS:
            wait_until(
                partial(self._said, "master", f"Registering worker {host}"),
                f"the worker on {host} is registered",
                _UP_S,
            )

    def stop(self) -> None:
        for process in self._processes:
            kill_family(process.pid)
            process.wait(_END_S)
        self._processes = []

    def _run(self, name: str, *arguments: str) -> None:
        with (self._scratch / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(self._home / "bin" / "spark-class"), *arguments],
                    env={**environment(self._home), "SPARK_LOCAL_IP": ""},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, words: str) -> bool:
        return words in (self._scratch / f"{name}.log").read_text(errors="replace")
