"""Ctrl-C shows no traceback, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys


def load(script_name: str, module: str) -> subprocess.CompletedProcess[str]:
    """A process called `script_name` that loads the command, and is interrupted exactly when it begins to load
    `module`."""
    script = (
        "import signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"sys.argv[0] = {script_name!r}\n"
        "from mq_cli.main import main\n"
        "main(['topic', '--help'])\n"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback() -> None:
    result = load("/somewhere/bin/tritonmq", "click")
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_handled_once_the_command_runs() -> None:
    result = load("/somewhere/bin/tritonmq", "mq_cli.managing.topic")
    assert (result.returncode, result.stderr.strip()) == (130, "interrupted")
