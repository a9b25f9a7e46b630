"""Other work of an event loop, which counts the turns that it is left."""

from __future__ import annotations

import asyncio


class Others:
    """Owns a task that takes each turn of the loop. `turns`: how many it had while the context lasted."""

    def __init__(self) -> None:
        self.turns = 0

    async def __aenter__(self) -> Others:
        self._task = asyncio.create_task(self._take_turns())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _take_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)
