"""Simulated connections end as those of TCP do, and the product's calls with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from mq_broker.rpc.calls import opening
from mq_protocol.errors import Unreachable
from mq_protocol.wire.call import PREAMBLE, Kind, say
from mq_protocol.wire.connection import connect
from tests.simulation.real.loop import Process, VirtualLoop
from tests.simulation.real.wires import Network


class Talker(asyncio.BufferedProtocol):
    """Begins as a broker does, and reads what comes. `says`: what it says besides."""

    def __init__(self, says: bytes = b"") -> None:
        self.says = says
        self._room = bytearray(1_000)
        self.transport: Any = None
        self.heard = b""
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(PREAMBLE + self.says)

    def get_buffer(self, sizehint: int) -> Any:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self._room[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Pair:
    """Clients, and the machine b1, which accepts one connection."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.network = Network(loop, lambda _: None)
        self.process = Process("b1#1")
        self.there = Talker()
        loop.spawn(self.process, self._accept(), "accept")

    async def _accept(self) -> None:
        loop: Any = asyncio.get_running_loop()
        listener, _ = self.network.bind("b1:9000", "")
        end, _ = await loop.sock_accept(listener)
        await loop.connect_accepted_socket(lambda: self.there, end)

    async def dial(self) -> Talker:
        await asyncio.sleep(0.1)
        _, here = await asyncio.get_running_loop().create_connection(Talker, "b1", 9000)
        await asyncio.sleep(0.1)
        return here


def run(scenario: Callable[[Pair], Awaitable[None]]) -> None:
    loop = VirtualLoop(Random(1))
    try:
        loop.run_until_complete(scenario(Pair(loop)))
    finally:
        loop.close()


def test_who_says_nothing_does_not_miss_a_machine_without_power() -> None:
    async def scenario(pair: Pair) -> None:
        here = await pair.dial()
        assert here.heard == pair.there.heard == PREAMBLE
        pair.process.power_lost = True
        pair.process.kill()
        await asyncio.sleep(3_600)
        assert not here.lost
        here.transport.write(b"is anybody there?")
        await asyncio.sleep(60)
        assert here.lost

    run(scenario)


def test_an_end_that_was_given_up_is_told_so_when_it_speaks() -> None:
    async def scenario(pair: Pair) -> None:
        here = await pair.dial()
        pair.network.cut("b1", "clients")
        here.transport.write(b"lost")
        await asyncio.sleep(60)
        pair.network.heal("b1", "clients")
        await asyncio.sleep(60)
        assert (here.lost, pair.there.lost, pair.there.heard) == (True, False, PREAMBLE)
        pair.there.transport.write(b"is anybody there?")
        await asyncio.sleep(1)
        assert pair.there.lost

    run(scenario)


def test_what_was_sent_arrives_once_the_network_is_mended() -> None:
    async def scenario(pair: Pair) -> None:
        here = await pair.dial()
        pair.network.cut("b1", "clients")
        here.transport.write(b"late")
        await asyncio.sleep(2)
        assert pair.there.heard == PREAMBLE
        pair.network.heal("b1", "clients")
        await asyncio.sleep(1)
        assert (here.lost, pair.there.heard) == (False, PREAMBLE + b"late")

    run(scenario)


def test_a_broker_that_ends_what_was_just_made_is_told_as_one_that_is_not_reached() -> None:
    async def scenario(pair: Pair) -> None:
        pair.there.says = b"".join(say(Kind.CLOSE))
        await asyncio.sleep(0.1)
        line = await connect("b1:9000", "b1:9000", 5.0)
        await asyncio.sleep(1)
        with pytest.raises(Unreachable, match="ended the connection"):
            await line.ask(opening("Metadata", 5.0), b"")

    run(scenario)


def test_a_client_that_waits_for_a_push_misses_a_broker_that_is_gone() -> None:
    async def scenario(pair: Pair) -> None:
        await asyncio.sleep(0.1)
        line = await connect("b1:9000", "b1:9000", 5.0)
        line.open(opening("Work", None))
        await asyncio.sleep(1)
        pair.process.power_lost = True
        pair.process.kill()
        with pytest.raises(Unreachable):
            async with asyncio.timeout(20):
                await line.read()

    run(scenario)
