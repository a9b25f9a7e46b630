"""A reader of a document who pastes each block of code into a shell or a Python interpreter, in order, and looks at
what it prints.

Everything is real: the reader's folder is empty at first, the commands are those of the present environment. One thing
is changed in what is pasted: the ports of a cluster and of what goes with it (`PORTS`), so that two readers, or a
cluster of the machine's owner, do not meet. `tritonmq dev` is told its port for the same reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from mq_dev.embedded_zookeeper import free_port, is_free
from tests.documents.blocks import BACKGROUND, ELSEWHERE, Block, agrees

STOP_S = 30.0
_END = "--- end of block ---"
_PYTHON = f"""
import sys, traceback
names = {{"__name__": "__main__"}}
for size in iter(sys.stdin.readline, ""):
    code = sys.stdin.read(int(size))
    try:
        exec(compile(code, "<block>", "exec"), names)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    sys.stderr.flush()
    print({_END!r}, flush=True)
"""


class Reader:
    """Owns a shell, an interpreter and what was started in the background; they end with it. `programs`: a directory
    that is searched for them too."""

    PORTS: tuple[int, ...] = (*range(7400, 7410), *range(7440, 7450))
    BLOCK_S: float = 150.0
    """So long one block may take: the first that uses Spark starts it."""

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        self._folder = folder
        self._ports: dict[str, str] = {}
        self._errors = (folder.parent / f"{folder.name}.stderr").open("w+")
        scripts = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join([scripts, *([str(programs)] if programs else []), os.environ["PATH"]]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TRITONMQ_BOOTSTRAP": "",
            "PYSPARK_SUBMIT_ARGS": (
                "--conf spark.ui.showConsoleProgress=false --conf spark.ui.enabled=false pyspark-shell"
            ),
        }
        del self._environment["TRITONMQ_BOOTSTRAP"]
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._background: list[subprocess.Popen[str]] = []

    def paste(self, block: Block) -> str:
        """Run it, and return what it printed to its standard output."""
        code = self._moved(block.code)
        if block.how == ELSEWHERE:
            return ""
        if block.how == BACKGROUND:
            code = code.replace("tritonmq dev", f"tritonmq dev --port {self._moved('7400')}")
            return self._start(code, self._moved(block.output or ""))
        if block.language == "shell":
            process = self._process("shell", ["bash"])
            return self._ask(process, f"{code}\necho; echo '{_END}'\n")
        process = self._process("python", [sys.executable, "-c", _PYTHON])
        return self._ask(process, f"{len(code)}\n{code}")

    def expected(self, block: Block) -> str:
        """What the document shows; a block without an output prints anything but a failure."""
        if block.output is None:
            return "…"
        return self._moved(block.output)

    def errors(self) -> str:
        """The end of what everything wrote to standard error."""
        self._errors.flush()
        return Path(self._errors.name).read_text()[-6_000:]

    def _moved(self, text: str) -> str:
        """The text with other ports."""

        def other(match: re.Match[str]) -> str:
            if match[0] not in self._ports:
                behind = [port - self.PORTS[0] for port in self.PORTS]
                first = _first_free_port(behind)
                self._ports.update({str(self.PORTS[0] + place): str(first + place) for place in behind})
            return self._ports[match[0]]

        return re.sub(rf"\b(?:{'|'.join(map(str, self.PORTS))})\b", other, text)

    def _process(self, name: str, command: list[str]) -> subprocess.Popen[str]:
        if name not in self._running:
            self._running[name] = self._popen(command)
        return self._running[name]

    def _popen(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def _ask(self, process: subprocess.Popen[str], said: str) -> str:
        assert process.stdin is not None
        process.stdin.write(said)
        process.stdin.flush()
        text = self._until(process, lambda text: _END in text)
        return text.partition(_END)[0]

    def _start(self, code: str, shown: str) -> str:
        process = self._popen(["bash", "-c", f"exec {code.strip()}"])
        self._background.append(process)
        return self._until(process, lambda text: bool(text.strip()) and agrees(shown, text))

    def _until(self, process: subprocess.Popen[str], enough: Callable[[str], bool]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + self.BLOCK_S
        read = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not enough(text := read.decode(errors="replace")):
                if time.monotonic() > deadline or not selector.select(deadline - time.monotonic()):
                    raise AssertionError(f"not within {self.BLOCK_S:g} s; printed so far:\n{text}\n{self.errors()}")
                some = os.read(process.stdout.fileno(), 1 << 16)
                if not some:
                    raise AssertionError(
                        f"it ended with status {process.wait(STOP_S)}; printed:\n{text}\n{self.errors()}"
                    )
                read += some
        return text

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        started = [*self._running.values(), *self._background]
        below = [child for process in started for child in _below(process.pid)]
        for process in started:
            os.killpg(process.pid, signal.SIGINT)
        for process in started:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for child in psutil.wait_procs(below, STOP_S)[1]:  # what a shell that is gone had begun
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._errors.close()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _first_free_port(behind: Sequence[int]) -> int:
    """A port that nobody listens on, nor on those so far behind it."""
    for _ in range(200):
        first = free_port()
        if all(is_free(first + place) for place in behind):
            return first
    raise AssertionError(f"no ports are free that are so far from each other: {behind}")
