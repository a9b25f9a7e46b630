"""What is done once to a Python process that Spark keeps, so that each piece of work in it costs less.

Spark's daemon collects garbage after every task. A worker holds some 100,000 objects of pyspark's, pyarrow's and ours,
which live as long as it does, and to walk over them takes 25 ms: as much as to read 50,000 rows.

One traceback of pyspark's is kept off standard error. For `limit`, `show` and `first`, and when a query is stopped,
Spark closes the socket of a worker that still has rows to send. The worker notices when it flushes that socket for the
last time, and pyspark's daemon prints a traceback of `BrokenPipeError` before it ends the process as it should. Nothing
is wrong and nothing is lost, but it stands beside the rows of a read that was good.
"""

from __future__ import annotations

import gc
import sys
import traceback
from types import ModuleType
from typing import Any, Final

from mq_process.allocator import keep_freed_memory

_DAEMON: Final = "pyspark.daemon"


class _Worker:
    """Owns how often this process has begun to work for us. Forked with the process: a child that has not worked begins
    at 0."""

    def __init__(self) -> None:
        self._begun = 0

    def begins(self) -> None:
        """A piece of work begins: to read, to write, to plan, to commit.

        At the second one all modules are there, and the daemon has collected what the first one left: all objects of
        that moment are taken out of the collector's sight, for good. What becomes garbage later is collected as ever.
        """
        self._begun += 1
        if not _kept_by_spark():
            return
        if self._begun == 1:
            keep_freed_memory()
        elif self._begun == 2:
            gc.freeze()


def _kept_by_spark() -> bool:
    """Whether Spark's daemon forked this process: nothing is done to a process that is somebody else's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON


def prepare_process() -> None:
    """Once in each process, when the first of this package's modules is imported."""
    if _kept_by_spark():
        keep_quiet_about_closed_sockets(sys.modules["__main__"])


WORKER: Final = _Worker()


_PEER_IS_GONE: Final = (BrokenPipeError, ConnectionResetError)


class _Traceback:
    """Python's module `traceback`, but for `print_exc` of an error which only says that Spark has closed the socket."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def print_exc(*args: Any, **options: Any) -> None:
        if not isinstance(sys.exception(), _PEER_IS_GONE):
            traceback.print_exc(*args, **options)


def keep_quiet_about_closed_sockets(daemon: ModuleType) -> None:
    """`daemon`: the module `pyspark.daemon` of this process, which Spark's daemon has forked. No other module is
    touched: what a user's own code prints is printed as ever.
    """
    if getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _Traceback()  # type: ignore[attr-defined]
