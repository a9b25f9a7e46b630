"""The client processes of a run: started, killed, started again, told to finish."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
FINISH_S = 150.0
"""A patient producer gives a record up after half a minute; readers take a minute to say that they cannot reach the
end."""


class ClientProcess:
    """Owns one process of a role, in all its lives. Each life has a name of its own in the history.

    `arguments` of `python -m` for a life of that name.
    """

    def __init__(self, role: str, name: str, log: Path, arguments: Callable[[str], list[str]]) -> None:
        self.role = role
        self.name = name
        self._arguments = arguments
        self._log = log
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._lives += 1
        command = [sys.executable, "-m", *self._arguments(f"{self.name}.{self._lives}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def kill(self) -> None:
        """kill -9, of it and of all that it has started (a driver has a JVM, and that has workers)."""
        if self._process is not None and self._process.poll() is None:
            family = psutil.Process(self._process.pid)
            for process in [family, *family.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._wait(FINISH_S)

    def send(self, number: signal.Signals) -> None:
        """A signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

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
            return (
                f"{self.name} ended with {process.returncode}; its log {self._log} ends with: "
                f"{self._log.read_text()[-1500:]}"
            )
        return ""

    def _wait(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.finish()
        return True


def finish_all(clients: list[ClientProcess], seconds: float = FINISH_S) -> list[str]:
    """Tell all at once, wait for each; what was wrong."""
    for client in clients:
        client.finish()
    deadline = time.monotonic() + seconds
    return [wrong for client in clients if (wrong := client.join(deadline))]
