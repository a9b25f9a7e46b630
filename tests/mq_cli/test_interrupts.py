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


READING = """
import signal, threading
from mq_cli.records.produce import How

def hear():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    print("hears", flush=True)
    threading.Event().wait()

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
try:
    threading.Thread(target=hear, daemon=True).start()
    How().input().read1(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_reading_of_standard_input_though_no_system_call_is_interrupted() -> None:
    """Another thread is given the signal, as if it had come just before the main thread's call."""
    with subprocess.Popen([sys.executable, "-c", READING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"hears\n"
            reader.send_signal(signal.SIGINT)
            assert reader.wait(60) == 0
            assert reader.stdout.read() == b"interrupted\n"
        finally:
            reader.kill()
