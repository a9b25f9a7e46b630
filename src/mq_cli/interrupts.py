"""Ctrl-C while the `tritonmq` command is still being loaded ends it without a word, where Python would show a
traceback.

The first module of the package that is loaded: the next ones take a tenth of a second and more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

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
