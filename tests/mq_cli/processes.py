"""The `tritonmq` command as a process: started, heard line by line, ended by its id. It begins as a fork of one that
has its imports (tests/forking)."""

from __future__ import annotations

import io
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from mq_cli.main import run
from tests.forking.processes import heard

WAIT_S = 60.0


class Command:
    """Owns one running `tritonmq`. Its two outputs are read as they come, so that it never waits for us."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL, module: str = "") -> None:
        """`module`: in place of the command's, which takes a process of its own."""
        self.process: Any = heard(arguments, stdin=stdin) if not module else _alone(module, arguments, stdin)
        self.out: queue.Queue[bytes | None] = queue.Queue()
        self.err: queue.Queue[bytes | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=_read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(30)
        for reader in self._readers:
            reader.join(30)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line of standard output."""
        return _next(self.out, "standard output")

    def remark_with(self, text: str) -> str:
        """The next line of standard error that has `text`."""
        while text not in (line := _next(self.err, f"a line with {text!r} on standard error")):
            pass
        return line

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit code. One that does not end fails the test with what each of its threads does."""
        self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError(b"".join(iter(partial(self.err.get, timeout=WAIT_S), None)).decode()) from None

    def rest(self) -> list[str]:
        """What is left of standard output, once it has ended."""
        lines = []
        while (line := self.out.get(timeout=WAIT_S)) is not None:
            lines.append(line.decode())
        return lines


def _read(stream: object, lines: queue.Queue[bytes | None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line)
    lines.put(None)


def _next(lines: queue.Queue[bytes | None], what: str) -> str:
    line = lines.get(timeout=WAIT_S)
    assert line is not None, f"it ended before there was {what}"
    return line.decode().rstrip("\n")


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: bytes
    stderr: bytes


def tritonmq(*arguments: str, given: bytes = b"") -> Outcome:
    """Run it to its end, in this process: a new one would spend most of its time on imports."""
    standard_in = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    standard_out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    standard_error = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = standard_in, standard_out, standard_error
    try:
        code = run(arguments)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    written = []
    for stream in (standard_out, standard_error):
        stream.flush()
        written.append(stream.buffer.getvalue())  # type: ignore[attr-defined]
    return Outcome(code, *written)


def tritonmq_process(*arguments: str, given: bytes = b"") -> Outcome:
    """Run it to its end, in a process of its own."""
    with Command(*arguments, stdin=subprocess.PIPE) as command:
        assert command.process.stdin is not None
        with suppress(BrokenPipeError), io.BufferedWriter(command.process.stdin) as standard_in:
            standard_in.write(given)
        command.process.stdin = None
        code = command.process.wait(WAIT_S)
        return Outcome(code, b"".join(_all(command.out)), b"".join(_all(command.err)))


def _alone(module: str, arguments: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    command, pipe = [sys.executable, "-m", module, *arguments], subprocess.PIPE
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)


def _all(lines: queue.Queue[bytes | None]) -> Iterator[bytes]:
    while (line := lines.get(timeout=WAIT_S)) is not None:
        yield line
