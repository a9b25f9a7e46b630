"""Who is told of signals. Ctrl-C while the `tritonmq` command is still being loaded ends it without a word, where
Python would show a traceback.

The first module of the package that is loaded: the next ones take a tenth of a second and more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

_SCRIPTS = ("tritonmq", "tritonmq.exe")

_quiet = False


def quiet_while_loading() -> None:
    """Let Ctrl-C end the process at once, if it is the command's own: not one that imports this package for something
    else."""
    global _quiet
    is_ours = os.path.basename(sys.argv[0]) in _SCRIPTS and threading.current_thread() is threading.main_thread()
    # Else it is ignored on purpose, as by nohup
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _quiet = True


def heard_from_now_on() -> None:
    """Ctrl-C is Python's KeyboardInterrupt again, which commands handle."""
    global _quiet
    if _quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _quiet = False


@contextmanager
def handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """As long as the block, these are told of the signals; afterwards those of before are."""
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
