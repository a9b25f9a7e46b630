"""What tests put in place of `subprocess.Popen` for processes of `tritonmq`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "mq_cli.main"]
STARTED_S = 60.0
"""What the first process waits for all imports, on a machine that does much besides."""


def started(
    command: Sequence[str], *, stdin: int, stdout: Any, stderr: int, env: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes] | Forked:
    """As `Popen`: a fork if it is our own command with our own modules."""
    if list(command[:3]) != COMMAND or env.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, **options)
    assert (stdin, stderr) == (subprocess.PIPE, subprocess.STDOUT)
    return Forked(command[3:], stdout.fileno(), stdout.fileno(), env)


def heard(arguments: Sequence[str], *, stdin: int) -> Forked:
    """One of our own commands, whose two outputs are read. `stdin`: as of `Popen`, `PIPE` or `DEVNULL`."""
    reading, writing = zip(*(os.pipe() for _ in range(2)), strict=True)
    process = Forked(arguments, *writing, os.environ)
    for each in writing:
        os.close(each)
    process.stdout, process.stderr = (os.fdopen(each, "rb") for each in reading)
    if stdin == subprocess.DEVNULL:
        process.stdin.close()  # it sees the end of it, as there
        process.stdin = None
    return process


class Forked:
    """A process, with what we use of `Popen`. Its standard input is a pipe."""

    stdin: io.FileIO | None
    stdout: io.BufferedReader | None = None
    stderr: io.BufferedReader | None = None

    def __init__(self, arguments: Sequence[str], output: int, errors: int, environment: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        start = {
            "arguments": ["tritonmq", *arguments],
            "environment": dict(environment),
            "directory": os.getcwd(),
        }
        self._told, telling = socket.socketpair()
        reading, writing = os.pipe()
        self.stdin = io.FileIO(writing, "wb")
        with telling:
            socket.send_fds(server(), [json.dumps(start).encode()], [reading, output, errors, telling.fileno()])
        os.close(reading)
        self._told.settimeout(STARTED_S)
        (self.pid,) = struct.unpack("!i", self._told.recv(4))
        self._told.setblocking(False)

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                said = self._told.recv(4)
            except BlockingIOError:
                return None
            self._told.close()
            # Without a word: who was to reap it has been killed, and it has lost its standard input
            self.returncode = struct.unpack("!i", said)[0] if said else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                raise subprocess.TimeoutExpired("tritonmq", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def server() -> socket.socket:
    """The process that others are forked from, started for the first of them. It ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking.server", str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
