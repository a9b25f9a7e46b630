"""Which channels a broker has to others: one for each address, and none that nobody uses any more. Channels are
stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from mq_broker.rpc import lines
from mq_broker.rpc.calls import Calls
from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.lines import Lines
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.server import listen
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import PEER
from tests.securing import HOST

DEADLINE_S = 30.0


class Channel:
    def __init__(self, address: str) -> None:
        self.address, self.closed = address, 0

    async def close(self, grace: float | None) -> None:
        assert grace is None
        self.closed += 1

    def unary_unary(self, path: str, *_: object) -> Any:
        return [path]


class Renewing(Dialling):
    """Its certificate is renewed where the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 1
        self.made: list[Channel] = []

    def way(self, address: str) -> int:
        return self.generation

    def dial(self, address: str) -> Any:
        self.made.append(Channel(address))
        return self.made[-1]

    @property
    def open(self) -> list[bool]:
        return [not channel.closed for channel in self.made]


def run(scenario: Callable[[Lines, Renewing], Awaitable[None]]) -> None:
    async def main() -> None:
        dialling = Renewing()
        async with asyncio.timeout(DEADLINE_S):
            await scenario(Lines(dialling), dialling)

    asyncio.run(main())


async def use(ours: Lines, *addresses: str) -> None:
    for address in addresses:
        async with ours.to(address) as line:
            assert line.address == address


def test_each_renewed_certificate_leaves_one_channel_and_no_call_is_cut_off() -> None:
    async def scenario(ours: Lines, dialling: Renewing) -> None:
        for dialling.generation in range(1, 6):
            await use(ours, "b:1")
        assert dialling.open == [False] * 4 + [True]
        async with ours.to("b:1"):
            async with ours.to("b:1"):
                dialling.generation = 6
                await use(ours, "b:1")
                assert dialling.open[4:] == [True, True]
            assert dialling.open[4:] == [True, True], "one call still goes by it"
        assert dialling.open[4:] == [False, True]
        assert max(channel.closed for channel in dialling.made) == 1

    run(scenario)


def test_a_channel_to_where_nobody_is_any_more_is_closed_once_another_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker without a fixed port comes back at another one each time."""

    async def scenario(ours: Lines, dialling: Renewing) -> None:
        await use(ours, "b:1", "c:1")
        await use(ours, "d:1")
        assert dialling.open == [True] * 3, "they were used a moment ago"
        monkeypatch.setattr(lines, "UNUSED_S", 0.0)
        async with ours.to("c:1"):
            await use(ours, "b:1")  # it makes none, and closes none
            assert dialling.open == [True] * 3
            await use(ours, "b:2")
            assert dialling.open == [False, True, False, True], "a call goes by the second"
        await use(ours, "b:1")
        assert [channel.address for channel in dialling.made] == ["b:1", "c:1", "d:1", "b:2", "b:1"]

    run(scenario)


def test_calls_of_brokers_use_one_channel_after_each_renewed_certificate() -> None:
    """Each renewal left one open for ever."""

    class Real(Renewing):
        def dial(self, address: str) -> Any:
            self.made.append(Dialling.dial(self, address))  # type: ignore[arg-type]
            return self.made[-1]

        def states(self) -> list[bool]:
            channels: list[Any] = list(self.made)
            return [channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN for channel in channels]

    async def fence(data: bytes, _context: object) -> bytes:
        return pb.FenceResponse().SerializeToString()

    async def main() -> None:
        there, port = listen(f"{HOST}:0")
        method = grpc.unary_unary_rpc_method_handler(fence)
        there.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PEER.name, {"Fence": method}),))
        await there.start()
        dialling = Real()
        calls = Calls(PeerProof(1, 1, "c", bytes(32)), dialling)
        try:
            async with asyncio.timeout(DEADLINE_S):
                for dialling.generation in (1, 1, 2, 3):
                    deadline = asyncio.get_running_loop().time() + DEADLINE_S
                    await calls.ask(f"{HOST}:{port}", "Fence", pb.FenceRequest(), pb.FenceResponse, deadline)
                assert dialling.states() == [False, False, True]
        finally:
            await calls.close()
            await there.stop(0)
        assert not any(dialling.states())

    asyncio.run(main())


def test_a_call_that_fails_or_is_cancelled_does_not_keep_a_former_channel_open() -> None:
    async def scenario(ours: Lines, dialling: Renewing) -> None:
        async def fails() -> None:
            async with ours.to("b:1"):
                dialling.generation = 2
                await use(ours, "b:1")
                raise ValueError("it failed")

        with pytest.raises(ValueError, match="it failed"):
            await fails()
        assert dialling.open == [False, True]

        async def waits() -> None:
            async with ours.to("b:1"):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
        dialling.generation = 3
        await use(ours, "b:1")
        waiting.cancel()
        await asyncio.wait({waiting})
        assert dialling.open == [False, False, True]

    run(scenario)
