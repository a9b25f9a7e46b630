"""What the `tritonmq` script imports. Ctrl-C ends the process without a traceback while the command is still being loaded."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it was ignored on purpose, as by nohup
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """The console script: from here on Ctrl-C is an interrupt that commands can handle."""
    from mq_cli import main as command

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()
