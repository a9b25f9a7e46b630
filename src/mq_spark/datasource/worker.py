"""What is done once to a Python process that Spark keeps, so that each piece of work in it costs less.

Spark's daemon collects garbage after every task. A worker holds some 100,000 objects of pyspark's, pyarrow's and ours,
which live as long as it does, and to walk over them takes 25 ms: as much as to read 50,000 rows.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

from mq_process.allocator import keep_freed_memory
from mq_spark.datasource.closed_pipes import keep_quiet_about_closed_sockets

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
