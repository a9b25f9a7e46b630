"""A function in a process of its own, with a pipe to it: the other end of a ceiling, a consumer.

Spawned, not forked: gRPC's threads do not survive a fork. It ends when told, or when the pipe closes because we are
gone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final

SAID_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 10.0


class Helper:
    """Owns one child process running `target(pipe, *arguments)`; `target` is a function of an importable module."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self, timeout_s: float = SAID_TIMEOUT_S) -> Any:
        """What it says next. Raises `TimeoutError` when it says nothing, `EOFError` when it has ended."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"the helper process said nothing for {timeout_s:g} s")
        return self._pipe.recv()

    def say(self, what: Any) -> None:
        self._pipe.send(what)

    def close(self) -> None:
        self._pipe.close()
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Helper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_for_end(pipe: Connection) -> None:
    """In the child: return when the parent has closed its end."""
    try:
        pipe.recv()
    except EOFError:
        return
