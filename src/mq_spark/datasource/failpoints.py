"""Places at which a test can hold a process still, to kill it there. Without the environment variable they do nothing.

`TRITONMQ_FAILPOINT=name@N:path`: whoever reaches the point `name` in micro-batch N makes the file `path` and waits to be killed.
Only the driver of a sink has such points: `before_decide` and `after_decide`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "TRITONMQ_FAILPOINT"
WAIT_SECONDS: Final = 120


def reached(point: str, batch_id: int) -> None:
    """Do nothing, unless the variable names this point. Raises `TimeoutError` if nobody comes to kill the process."""
    name, _, path = os.environ.get(VARIABLE, "").partition(":")
    if name != f"{point}@{batch_id}":
        return
    Path(path).touch()
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.05)
    raise TimeoutError(f"{VARIABLE}={point} held this process for {WAIT_SECONDS} s and nobody ended it: unset the variable")
