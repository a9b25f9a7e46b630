"""How much may be on its way to a broker of messages that are not read yet: counted from their first byte, by account.

An account (a user, or a host where nobody has a name) may have one large message on its way whatever readers hold, as
long as all accounts together have not half as much again as the mark. More at a time have room up to the mark of all
that is held, and up to half of it for one account. So who begins messages and does not end them stops itself, and who
reads nothing stops nobody who sends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from mq_broker.broker.runtime.memory import Held


class _Waiting(NamedTuple):
    nbytes: int
    woken: asyncio.Future[None]


class Arrivals:
    """Owns the counts, which are part of what `held` counts. Used on one loop."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.bytes = 0
        self._of: dict[str, int] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}  # whose turn is next comes first

    def add_at_once(self, caller: str, count: int) -> bool:
        """Counts them if there is room and nobody of the account waits for it; else nothing."""
        if caller in self._waiting or not self._has_room(caller, count):
            return False
        self.bytes += count
        self._of[caller] = self._of.get(caller, 0) + count
        self._held.add(caller, count)
        return True

    async def receive(self, caller: str, count: int) -> None:
        """Counts them once there is room."""
        waiting = _Waiting(count, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(caller, deque()).append(waiting)
        self._wake()
        try:
            await waiting.woken
        except asyncio.CancelledError:
            if waiting.woken.done() and not waiting.woken.cancelled():
                self.free(caller, count)
            else:
                self._leave(caller, waiting)
            raise

    def free(self, caller: str, count: int) -> None:
        self.bytes -= count
        self._of[caller] -= count
        if not self._of[caller]:
            del self._of[caller]
        self._held.free(caller, count)
        self._wake()

    def _has_room(self, account: str, count: int) -> bool:
        high = self._held.high
        has = self._of.get(account, 0)
        if not has:
            return self.bytes <= high + high // 2
        return self._held.bytes <= high and has + count <= high // 2

    def _wake(self) -> None:
        """Those at the head of their account's row for whom there is room, whose turn is next first."""
        for account in list(self._waiting):
            row = self._waiting[account]
            while row and self._has_room(account, row[0].nbytes):
                waiting = row.popleft()
                del self._waiting[account]  # behind the others, and else it would not be let in
                if not waiting.woken.done():
                    self.add_at_once(account, waiting.nbytes)
                    waiting.woken.set_result(None)
                if row:
                    self._waiting[account] = row

    def _leave(self, account: str, waiting: _Waiting) -> None:
        row = self._waiting.get(account)
        if row is not None and waiting in row:  # else it was passed over, since it was being cancelled
            row.remove(waiting)
            if not row:
                del self._waiting[account]
            self._wake()
