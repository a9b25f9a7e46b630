"""How often ZooKeeper is asked: a few questions at once, then one in so many milliseconds, so that what comes meanwhile
shares one.

A question costs a broker about as much processor time for one node as for ten. A broker that opens thousands of
partitions reads and claims them one after another, and would ask for each alone.
"""

from __future__ import annotations

from typing import Final

PERIOD_S: Final = 0.025
AT_ONCE: Final = 8


class Pace:
    """Owns when the next question may go. Pure: the time is an argument, in seconds of any clock that does not go
    back."""

    def __init__(self, period_s: float = PERIOD_S, at_once: int = AT_ONCE) -> None:
        self._period_s = period_s
        self._ahead_s = period_s * (at_once - 1)
        self._free_at = float("-inf")

    def delay_s(self, now: float) -> float:
        """0 if a question may go now. It counts as gone then. Else how long to wait before asking here again."""
        free_at = max(self._free_at, now)
        if free_at - now > self._ahead_s:
            return free_at - now - self._ahead_s
        self._free_at = free_at + self._period_s
        return 0.0
