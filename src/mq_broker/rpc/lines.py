"""Lines to other brokers' peer ports: a channel to each address, with a count of the calls that go by it.

A channel cannot be given another certificate. So each renewed certificate takes a new channel, and the former one is
closed once the last call that goes by it has ended: a channel that is closed before that ends its calls as if their
callers had cancelled them. A broker may come back at another address, too, so a line that nobody used for long is
closed when another one is made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from grpc import aio

from mq_broker.rpc.dialling import Dialling, Way

UNUSED_S: Final = 600.0
"""A line that was not used for so long is to an address at which there is nobody any more, or it can be made again."""


class Line:
    """A channel to another broker, how many calls go by it, and when the last one ended."""

    __slots__ = ("_unary", "address", "calls", "channel", "used_s", "way")

    def __init__(self, address: str, way: Way, channel: aio.Channel) -> None:
        self.address, self.way, self.channel = address, way, channel
        self.calls = 0
        self.used_s = 0.0
        self._unary: dict[str, Any] = {}

    def unary(self, path: str) -> Any:
        """What calls that method with bytes, and answers bytes."""
        call = self._unary.get(path)
        if call is None:
            call = self._unary[path] = self.channel.unary_unary(path, None, None)
        return call


class Lines:
    """Owns the channels to other brokers: one for each address, and former ones for as long as calls go by them. Used
    on one loop."""

    def __init__(self, dialling: Dialling) -> None:
        self._dialling = dialling
        self._lines: dict[str, Line] = {}

    @contextlib.asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[Line]:
        """Around a call to the broker at that address."""
        line, given_up = self._line(address)
        line.calls += 1
        try:
            for former in given_up:
                await former.channel.close(None)
            yield line
        finally:
            line.calls -= 1
            line.used_s = asyncio.get_running_loop().time()
            if not line.calls and self._lines.get(address) is not line:
                await line.channel.close(None)

    def _line(self, address: str) -> tuple[Line, list[Line]]:
        """The line to that address, and those by which no call goes any more."""
        way = self._dialling.way(address)
        former = self._lines.get(address)
        if former is not None and former.way == way:
            return former, []
        unused_since = asyncio.get_running_loop().time() - UNUSED_S
        over = [
            each for each in self._lines.values() if not each.calls and (each is former or each.used_s <= unused_since)
        ]
        for each in over:
            del self._lines[each.address]
        line = self._lines[address] = Line(address, way, self._dialling.dial(address))
        return line, over

    async def close(self) -> None:
        """End what is under way."""
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            await line.channel.close(None)
