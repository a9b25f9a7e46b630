"""The client processes of a run: started, killed, started again, told to finish."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINISH_S = 150.0
"""A patient producer gives a record up after half a minute; readers take a minute to say that they cannot reach the end."""


class ClientProcess:
    """Owns one process of a role, in all its lives. Each life has a name of its own in the history."""

    def __init__(self, role: str, name: str, directory: Path, bootstrap: str, topics: dict[str, int], rate: float) -> None:
        self.role = role
        self.name = name
        self._directory = directory
        self._arguments = ["--bootstrap", bootstrap, "--topics", ",".join(f"{t}:{count}" for t, count in topics.items())]
        self._arguments += ["--rate", str(rate), "--state", str(directory / f"{name}.state")]
        self._log = directory / f"{name}.log"
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._lives += 1
        life = f"{self.name}.{self._lives}"
        command = [sys.executable, "-m", "tests.chaos.client", self.role, "--name", life, *self._arguments]
        command += ["--history", str(self._directory / f"{life}.jsonl")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._wait(FINISH_S)

    def finish(self) -> None:
        """Say that it shall end; `join` waits."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def join(self, deadline: float) -> str:
        """What was wrong with its end; empty if nothing. Killed at `deadline` (monotonic seconds)."""
        process = self._process
        if process is None:
            return ""
        if not self._wait(max(0.1, deadline - time.monotonic())):
            self.kill()
            return f"{self.name} hung and was killed; its log: {self._log}"
        if process.returncode:
            return f"{self.name} ended with {process.returncode}; its log {self._log} ends with: {self._log.read_text()[-1500:]}"
        return ""

    def _wait(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.finish()
        return True


def finish_all(clients: list[ClientProcess]) -> list[str]:
    """Tell all at once, wait for each; what was wrong."""
    for client in clients:
        client.finish()
    deadline = time.monotonic() + FINISH_S
    return [wrong for client in clients if (wrong := client.join(deadline))]
