"""How many bytes of requests a proxy holds while their partitions have no leader, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Final

from mq_broker.rpc.callers import principal
from mq_broker.security.names import ANONYMOUS

REQUEST_BYTES: Final = 4 << 10
"""What a request takes beside its own bytes: its task, and the call."""

LOOK_AGAIN_S: Final = 0.1
TELL_S: Final = 0.25
"""So long before the client gives up it is refused, so that it hears of it."""


class Holding:
    """Owns the counts: of all, and of each user. A user who has a name may take half of the room."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._of: Counter[str] = Counter()

    def take(self, size: int) -> str | None:
        """Room for so many bytes of whoever asks what this task answers: whose they are. None if there is none."""
        who = principal()
        mine_max = self._bytes_max if who == ANONYMOUS else self._bytes_max // 2
        if self.bytes + size > self._bytes_max or self._of[str(who)] + size > mine_max:
            return None
        self.bytes += size
        self._of[str(who)] += size
        return str(who)

    def give_back(self, who: str, size: int) -> None:
        """What was taken."""
        self.bytes -= size
        self._of[who] -= size
        if not self._of[who]:
            del self._of[who]


class Turn:
    """One request of `size` bytes, until it has been answered. It is counted while it waits."""

    def __init__(self, holding: Holding, size: int, deadline: float) -> None:
        self._holding = holding
        self._size = size + REQUEST_BYTES
        self._deadline = deadline
        self._who: str | None = None

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sent()

    def sent(self) -> None:
        """To a broker: it is not held any more."""
        if self._who is not None:
            self._holding.give_back(self._who, self._size)
            self._who = None

    async def wait(self) -> bool:
        """A moment. False, at once, if it may not be held any longer."""
        if self._deadline - asyncio.get_running_loop().time() <= LOOK_AGAIN_S + TELL_S:
            return False
        if self._who is None:
            self._who = self._holding.take(self._size)
        if self._who is None:
            return False
        await asyncio.sleep(LOOK_AGAIN_S)
        return True
