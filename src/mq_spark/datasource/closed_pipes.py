"""Keeps one traceback of pyspark's off standard error: the one that a worker prints when Spark has had enough of its
rows.

For `limit`, `show` and `first`, and when a query is stopped, Spark closes the socket of a worker that still has rows to
send. The worker notices when it flushes that socket for the last time, and pyspark's daemon prints a traceback of
`BrokenPipeError` before it ends the process as it should. Nothing is wrong and nothing is lost, but it stands beside
the rows of a read that was good.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any, Final

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
