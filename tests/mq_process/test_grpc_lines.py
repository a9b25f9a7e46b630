"""What gRPC's core may write: errors, in a program that uses clients; nothing, in the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import os; print(os.environ['GRPC_VERBOSITY'])"


@pytest.mark.parametrize(
    ("given", "code", "level"),
    [
        (None, "import mq_client", "ERROR"),
        (None, "import mq_client; from mq_process.grpc_lines import write_nothing; write_nothing()", "NONE"),
        ("ERROR", "from mq_process.grpc_lines import write_nothing; write_nothing()", "NONE"),
        ("DEBUG", "import mq_client; from mq_process.grpc_lines import write_nothing; write_nothing()", "DEBUG"),
    ],
)
def test_the_environment_has_the_last_word(given: str | None, code: str, level: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    if given is not None:
        environment["GRPC_VERBOSITY"] = given
    done = subprocess.run([sys.executable, "-c", f"{code}; {ASK}"], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == level, done.stderr
