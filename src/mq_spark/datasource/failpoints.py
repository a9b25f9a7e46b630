"""Places at which a test can hold a process still, to kill it there, or have it fail. Without the variable they do
nothing.

`TRITONMQ_FAILPOINTS=directory`: a file in it whose name is a point's arms the point for whoever comes by first, in any
process that sees the directory. That one renames the file to `<point>.reached`, with its process id in it, and waits
until it is killed or the file is removed. A file that holds the word `fail` has it raise `OutcomeUnknown` instead: an
answer lost on its way.

The points of a task are `before_stage`, `during_stage` and `after_stage`; of a commit on the driver `before_decide` and
`after_decide`. A file named `<point>@<N>` arms the point for micro-batch N alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from mq_protocol.errors import OutcomeUnknown

VARIABLE: Final = "TRITONMQ_FAILPOINTS"
WAIT_SECONDS: Final = 120
FAIL: Final = "fail"


def reached(point: str, batch_id: int) -> None:
    """Do nothing, unless a test has armed this point. Raises `OutcomeUnknown` if the test wants that, `TimeoutError` if
    nobody comes to kill the process or to let it go on.
    """
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    for name in (point, f"{point}@{batch_id}"):
        mark = claim(Path(directory), name)
        if mark is not None:
            hold(mark)


def claim(directory: Path, name: str) -> Path | None:
    """The mark that says who has reached the armed point, which is then armed no more; None if it was not. One process
    gets it."""
    mine = directory / f"{name}.claimed-{os.getpid()}"
    try:
        (directory / name).rename(mine)
    except FileNotFoundError:
        return None
    if mine.read_text() == FAIL:
        mine.rename(directory / f"{name}.reached")
        raise OutcomeUnknown(f"{VARIABLE} drops the answer at {name}: ask again")
    mine.write_text(str(os.getpid()))
    return mine.rename(directory / f"{name}.reached")


def hold(mark: Path) -> None:
    """Wait here to be killed, or until the mark is removed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while mark.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{mark} held this process for {WAIT_SECONDS} s and nobody ended it: unset {VARIABLE}")
        time.sleep(0.02)
