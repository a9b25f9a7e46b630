"""What a broker's gRPC port for other brokers takes of strangers who reach it, by real sockets: so many connections,
streams and so much silence. Brokers that are connected go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

from mq_broker.rpc.calls import Calls
from mq_broker.rpc.links import Links
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.peer_service import peer_handlers
from mq_broker.rpc.refusals import Refusals
from mq_broker.rpc.server import listen, peer_options
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, Unreachable
from mq_protocol.limits import CONNECTION_IDLE_MS, PEER_CONNECTIONS_MAX

DEADLINE_S = 30.0
SECRET = bytes(range(32))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
MAX_CONCURRENT_STREAMS = 3

Options = Iterable[tuple[str, int]]


async def fence(_request: pb.FenceRequest, _deadline: float) -> pb.FenceResponse:
    return pb.FenceResponse()


@contextlib.asynccontextmanager
async def served(options: Options) -> AsyncIterator[int]:
    """The peer port of broker 1."""
    server, port = listen("127.0.0.1:0", "--peer-listen", options)
    me = PeerProof(1, 1, "cluster", SECRET)
    nobody: Any = SimpleNamespace()
    links = Links(me, nobody, lambda work, name: asyncio.create_task(work, name=name))
    server.add_generic_rpc_handlers((peer_handlers(Everything(), links, me, Refusals()),))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


class Everything:
    """A service that answers one method, and has the others."""

    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return fence


class Peer:
    """Another broker, with a channel of its own."""

    def __init__(self, broker: int, port: int) -> None:
        self.calls = Calls(PeerProof(broker, 1, "cluster", SECRET))
        self._address = f"127.0.0.1:{port}"

    async def ask(self, within_s: float = DEADLINE_S) -> None:
        deadline = asyncio.get_running_loop().time() + within_s
        await self.calls.ask(self._address, "Fence", pb.FenceRequest(), pb.FenceResponse, deadline)


class Stranger:
    """A connection that speaks HTTP/2, and asks nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Stranger:
        stranger = cls(*await asyncio.open_connection("127.0.0.1", port))
        stranger._writer.write(PREFACE + SETTINGS + SETTINGS_ACK)
        return stranger

    async def settings(self) -> dict[int, int]:
        """What the server says first. Empty if it has closed the connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await self._reader.readexactly(9)
            assert head[3] == 4, "a frame of settings"
            body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            return {
                int.from_bytes(body[at : at + 2], "big"): int.from_bytes(body[at + 2 : at + 6], "big")
                for at in range(0, len(body), 6)
            }
        return {}

    async def until_disconnected(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1_000):
                pass
        self._writer.close()

    def close(self) -> None:
        self._writer.close()


def run(scenario: Callable[[], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario()

    asyncio.run(main())


def test_strangers_have_so_many_connections_and_a_broker_that_is_connected_goes_on() -> None:
    async def scenario() -> None:
        async with served(peer_options(connections_max=3)) as port:
            connected, late = Peer(2, port), Peer(3, port)
            await connected.ask()
            strangers = [await Stranger.connect(port) for _ in range(2)]
            for stranger in strangers:
                assert await stranger.settings()
            third = await Stranger.connect(port)
            assert await third.settings() == {}, "it is one too many"
            third.close()
            await connected.ask()
            for stranger in strangers:
                stranger.close()
            await until_answered(late)
            for peer in (connected, late):
                await peer.calls.close()

    assert dict(peer_options())["grpc.max_allowed_incoming_connections"] == PEER_CONNECTIONS_MAX
    run(scenario)


def test_a_stranger_that_asks_nothing_is_disconnected_and_gives_its_place_to_a_broker() -> None:
    usual = dict(peer_options(connections_max=1))
    assert usual["grpc.max_connection_idle_ms"] == CONNECTION_IDLE_MS

    async def scenario() -> None:
        async with served([*(usual | {"grpc.max_connection_idle_ms": 300}).items()]) as port:
            stranger = await Stranger.connect(port)
            assert await stranger.settings()
            broker = Peer(2, port)
            await stranger.until_disconnected()
            await until_answered(broker)
            await broker.calls.close()

    run(scenario)


async def until_answered(broker: Peer) -> None:
    """gRPC waits between its attempts to connect."""
    while True:
        with contextlib.suppress(Unreachable, OutcomeUnknown):
            await broker.ask(within_s=2.0)
            return
