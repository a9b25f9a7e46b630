"""Which connections a broker has to others: kept for the next call, and none that nobody can use any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq_broker.rpc.wire import lines
from mq_broker.rpc.wire.lines import Dialling, Lines
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, Unreachable
from mq_protocol.wire.connection import Connection, connect
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import DEADLINE_S, Served, until

METADATA = pb.CallOpen(method="Metadata", protocol=1, protocol_oldest=1)
HANGS = pb.CallOpen(method="Subscribe", protocol=1, protocol_oldest=1)


class Renewing(Dialling):
    """Its certificate is renewed where the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 1
        self.made: list[Connection] = []

    def way(self, address: str) -> int:
        return self.generation

    async def dial(self, address: str) -> Connection:
        self.made.append(await connect(address, address, DEADLINE_S))
        return self.made[-1]

    @property
    def open(self) -> list[bool]:
        return [connection.is_free for connection in self.made]


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Lines, Renewing, Served]]:
    there, dialling = Served(), Renewing()
    there.server.start()
    ours = Lines(dialling)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield ours, dialling, there
    finally:
        await ours.close()
        await there.server.stop()


async def use(ours: Lines, at: Served) -> None:
    async with ours.to(at.address) as line:
        assert line.is_free
        await line.ask(METADATA, b"")


@real_time
async def test_calls_one_after_another_share_a_connection_and_two_at_once_do_not() -> None:
    async with opened() as (ours, dialling, there):
        for _ in range(3):
            await use(ours, there)
        assert len(dialling.made) == 1
        async with ours.to(there.address), ours.to(there.address):
            assert len(dialling.made) == 2
        await use(ours, there)
        assert dialling.open == [True, True]
        async with ours.to(there.address) as line:
            with pytest.raises(InvalidRequest):
                await line.ask(METADATA, b"\xff\xff")
        assert dialling.open == [True, True], "a call that was refused leaves its connection"


@real_time
async def test_each_renewed_certificate_has_a_new_connection_and_no_call_is_cut_off() -> None:
    async with opened() as (ours, dialling, there):
        async with ours.to(there.address) as line:
            dialling.generation = 2
            await use(ours, there)
            await line.ask(METADATA, b"")
        assert dialling.open == [False, True]
        await use(ours, there)
        assert len(dialling.made) == 2


@real_time
async def test_a_call_that_fails_or_is_cancelled_before_its_end_takes_its_connection_along() -> None:
    async with opened() as (ours, dialling, there):

        async def hangs(error: Exception | None = None) -> None:
            async with ours.to(there.address) as line:
                line.open(HANGS)
                if error is not None:
                    raise error
                await line.read()

        waiting = asyncio.create_task(hangs())
        await there.service.begins()
        waiting.cancel()
        await asyncio.wait({waiting})
        await there.service.ended.wait()
        with pytest.raises(ValueError, match="it failed"):
            await hangs(ValueError("it failed"))
        await use(ours, there)
        assert dialling.open == [False, False, True]


@real_time
async def test_a_connection_that_rests_for_long_or_was_ended_meanwhile_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as (ours, dialling, there):
        await use(ours, there)
        monkeypatch.setattr(lines, "UNUSED_S", 0.0)
        await use(ours, there)
        assert len(dialling.made) == 2
        monkeypatch.undo()
        await use(ours, there)
        [*_, last] = dialling.made
        await there.server.stop()
        await until(lambda: not last.is_free)
        again = Served()
        again.server.start()
        await use(ours, again)
        await again.server.stop()


@real_time
async def test_of_connections_that_rest_few_are_kept() -> None:
    async with opened() as (ours, dialling, there):
        async with contextlib.AsyncExitStack() as used:
            for _ in range(lines.KEPT_MAX + 1):
                await used.enter_async_context(ours.to(there.address))
        assert sorted(dialling.open) == [False] + [True] * lines.KEPT_MAX


@real_time
async def test_who_closes_ends_what_is_under_way() -> None:
    async with opened() as (ours, dialling, there):

        async def hangs() -> None:
            async with ours.to(there.address) as line:
                line.open(HANGS)
                await line.read()

        await use(ours, there)
        waiting = [asyncio.create_task(hangs()) for _ in range(2)]
        await there.service.begins(2)
        await ours.close()
        for each in waiting:
            with pytest.raises(Unreachable):
                await each
        assert not any(dialling.open)
        assert not await ours.reaches("127.0.0.1:1")
