"""The `tritonmq` script: Ctrl-C shows no traceback, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_ctrl_c_while_the_command_is_loaded_shows_no_traceback() -> None:
    # The signal comes exactly where the script begins to load the command.
    script = (
        "import signal, sys\n"
        "import mq_cli.entry\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mq_cli.main': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "mq_cli.entry.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_a_command_that_runs_can_still_handle_ctrl_c() -> None:
    script = (
        "import signal, mq_cli.entry, mq_cli.main\n"
        "mq_cli.main.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "mq_cli.entry.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "True"
