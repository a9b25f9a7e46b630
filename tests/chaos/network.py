"""A network that can be hurt: every connection to a broker, and of a broker to ZooKeeper, goes through here.

Brokers are told to advertise an address of this proxy, so whoever dials one comes here. Who dialled is found by the
other end of the connection: the process that owns that port. So each pair of brokers has its own rules, each way its
own, without any privilege.

A cut loses nothing that TCP had accepted: like a cut cable it only holds it, and mended, what was held goes on, late. A
reset ends the connections and refuses new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.sockets import inode_of, owner

HOST: Final = "127.0.0.1"
CLIENTS: Final = "clients"
ZOOKEEPER: Final = "zookeeper"
CHUNK_BYTES: Final = 64 << 10
_START_S: Final = 10.0
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""Lingering for no time: the connection ends with a reset, and what was on its way is gone."""

Way = tuple[str, str]
"""From one end to another: brokers by their number, `CLIENTS`, `ZOOKEEPER`."""


@dataclass(eq=False)
class _Rule:
    """What holds for one way. `open`: not cut. `delay_s`: before each chunk. `refused`: the pair has no connection."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    refused: bool = False


class Network:
    """Owns a thread with an event loop, the listening sockets, the connections and the rules. Methods are called from
    outside it.

    `owners`: the process of each broker now, None for one that does not run.
    """

    def __init__(self, owners: Callable[[], dict[str, int | None]]) -> None:
        self._owners = owners
        self._rules: dict[Way, _Rule] = {}
        self._connections: dict[Way, set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def listen(self, to: str, port: int, dialler: str | None = None) -> int:
        """A port at which `to`, which listens on `port`, is reached. `dialler`: who alone uses it; else it is found
        out."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A task of our own: one that asyncio makes of a coroutine complains aloud when it is cancelled.
            task = self._loop.create_task(self._connect(reader, writer, to, port, dialler))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        async def begin() -> int:
            server = await asyncio.start_server(accept, HOST, 0)
            self._servers.append(server)
            found: int = server.sockets[0].getsockname()[1]
            return found

        port_here: int = self._do(begin())
        return port_here

    # ------------------------------------------------------------------ rules

    def cut(self, a: str, b: str, *, both_ways: bool = True) -> None:
        """What `a` sends does not reach `b`, nor what `b` sends `a` if both ways. Connections stay open."""
        self._change([(a, b), (b, a)] if both_ways else [(a, b)], lambda rule: rule.open.clear())

    def slow(self, a: str, b: str, delay_s: float) -> None:
        """Each piece of up to 64 KiB takes so long, both ways."""
        self._change([(a, b), (b, a)], lambda rule: setattr(rule, "delay_s", delay_s))

    def reset(self, a: str, b: str) -> None:
        """End the connections between them, and refuse new ones."""
        self._change([(a, b), (b, a)], lambda rule: setattr(rule, "refused", True))

        async def end() -> None:
            for way in ((a, b), (b, a)):
                for writer in list(self._connections.get(way, ())):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    writer.transport.abort()

        self._do(end())

    def mend(self, a: str, b: str) -> None:
        """As it was before any rule."""

        def mended(rule: _Rule) -> None:
            rule.open.set()
            rule.delay_s, rule.refused = 0.0, False

        self._change([(a, b), (b, a)], mended)

    def mend_all(self) -> None:
        for a, b in list(self._rules):
            self.mend(a, b)

    def close(self) -> None:
        """End everything; the thread too."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    # ------------------------------------------------------------------ in the loop

    def _do(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(_START_S)

    def _change(self, ways: list[Way], change: Callable[[_Rule], object]) -> None:
        async def do() -> None:
            for way in ways:
                change(self._rule(way))

        self._do(do())

    def _rule(self, way: Way) -> _Rule:
        rule = self._rules.get(way)
        if rule is None:
            rule = self._rules[way] = _Rule()
            rule.open.set()
        return rule

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str, port: int, dialler: str | None
    ) -> None:
        if dialler is None:
            inode = inode_of(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
            dialler = owner(inode, self._owners()) or CLIENTS
        there, back = (dialler, to), (to, dialler)
        try:
            if self._rule(there).refused:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(HOST, port)
        except OSError:  # it does not run, or is not to be reached
            writer.transport.abort()
            return
        for way, end in ((there, far_writer), (back, writer)):
            self._connections.setdefault(way, set()).add(end)
        try:
            await asyncio.gather(self._pump(reader, far_writer, there), self._pump(far_reader, writer, back))
        except OSError:
            pass  # one end was killed, or the pair was reset
        finally:
            for way, end in ((there, far_writer), (back, writer)):
                self._connections[way].discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        rule = self._rule(way)
        while data := await reader.read(CHUNK_BYTES):
            if rule.delay_s:
                await asyncio.sleep(rule.delay_s)
            await rule.open.wait()
            writer.write(data)
            await writer.drain()
        await rule.open.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()
