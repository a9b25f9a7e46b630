"""Python's collector of circles of garbage, so that it does not hold up the loop.

A full pass walks over all objects that refer to others, and nothing else runs meanwhile. Those of 10,000 partitions are
more than a million, and live as long as the broker. So whatever a pass that took long has found alive is put out of the
collector's sight (`gc.freeze`, which takes no time). The next pass walks over what has come since: its length depends
on `THRESHOLDS`, and no more on how much a broker holds.

What is out of sight is free as ever once nobody refers to it. Only a circle that dies there stays in memory. So when
the process has grown by half, and more, one pass is made over everything, which takes as long as each did before.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mq_broker.measured import COLLECTION

THRESHOLDS: Final = (700, 10, 3)
"""The last is 10 in Python: a full pass comes after about 30,000 new objects, not 80,000. That many are walked over in
2 to 3 ms."""

LONG_S: Final = 0.001
GROWN_SHARE: Final = 0.5
GROWN_BYTES: Final = 256 << 20
LOOK_S: Final = 1.0
_FULL: Final = 2
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process, in memory; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Garbage:
    """Owns what is out of the collector's sight in this process, from its making on. `spent_s`: the processor time of
    the thread that calls it, in seconds. `resident`: bytes of this process in memory."""

    def __init__(
        self, spent_s: Callable[[], float] = time.thread_time, resident: Callable[[], int] = resident_bytes
    ) -> None:
        self._spent_s = spent_s
        self._resident = resident
        self._began_s = 0.0
        self._put_away()
        self._resident_before = resident()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._passed)

    def look(self) -> None:
        """Whether memory has grown by so much that everything is to be looked at. To be called about once in
        `LOOK_S`."""
        resident = self._resident()
        if resident <= self._resident_before * (1 + GROWN_SHARE) + GROWN_BYTES:
            return
        gc.unfreeze()
        self._put_away()
        # Not what it is now: or whoever has it rise and fall brings about such a pass each time
        self._resident_before = resident

    def _put_away(self) -> None:
        """All that lives."""
        gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: Python makes the next full pass once a quarter has come to what this one found

    def _passed(self, phase: str, about: dict[str, Any]) -> None:
        """Called by the collector, in whichever thread made the last object, before and after each pass."""
        if phase == "start":
            self._began_s = self._spent_s()
            return
        took_s, generation = self._spent_s() - self._began_s, about["generation"]
        COLLECTION.add(took_s, str(generation))
        if generation == _FULL and took_s > LONG_S:
            gc.freeze()
