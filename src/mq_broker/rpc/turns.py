"""Long work on the event loop, in turns with others'."""

from __future__ import annotations

import asyncio
from typing import Final

UNRESTED_TURNS: Final = 4
REST_S: Final = 0.002
"""A record comes in, is written and is acknowledged in three or four turns of the loop. They fit in here, and those of
the next record too."""

RESTS_MAX: Final = 125
"""The largest manifest of a transaction has a million elements, and must be decided in time."""


class Turns:
    """Of the work on one request. What is long rests between two turns from the fifth on: so whoever names thousands of
    things waits, and not whoever sends a record meanwhile."""

    def __init__(self) -> None:
        self._taken = 0

    async def others(self) -> None:
        """Others have theirs."""
        self._taken += 1
        rests = UNRESTED_TURNS < self._taken <= UNRESTED_TURNS + RESTS_MAX
        await asyncio.sleep(REST_S if rests else 0)
