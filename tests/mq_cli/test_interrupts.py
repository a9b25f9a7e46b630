"""Ctrl-C shows no traceback, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


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


@pytest.mark.parametrize("module", ["mq_client", "click"])
def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback(module: str) -> None:
    result = load("/somewhere/bin/tritonmq", module)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_handled_once_the_command_runs() -> None:
    result = load("/somewhere/bin/tritonmq", "mq_cli.topic")
    assert (result.returncode, result.stderr.strip()) == (130, "interrupted")


def test_a_program_that_imports_the_package_keeps_its_own_ctrl_c() -> None:
    result = load("/somewhere/program.py", "mq_client")
    assert "KeyboardInterrupt" in result.stderr
