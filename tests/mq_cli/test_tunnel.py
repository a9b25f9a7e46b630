"""The tunnel of `tritonmq proxy`: whom it connects with whom, what strangers cannot do to it, and that no end is sent
more than it takes. The test is the brokers and the clients."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mq_cli import tunnel
from mq_cli.tunnel import HEAD_BYTES_MAX, Addresses, Bounds, Tunnel
from mq_client.cluster.connection import Connection
from mq_client.errors import Unreachable
from mq_protocol import mq_pb2 as pb

HOST = "127.0.0.1"
WAIT_S = 30.0
NOBODY = f"{HOST}:1"
"""In the bootstrap, and nobody listens."""

MANY = Bounds(1_000, 1_000)


class Cluster(Connection):
    """Has the addresses that it was given."""

    def __init__(self, *brokers: str, streams: str = "") -> None:
        super().__init__(NOBODY, via="", from_environment=False)
        self.brokers_are = list(brokers)
        self.streams_are = streams
        self.fails = False

    def metadata(self, *_args: Any, **_options: Any) -> pb.MetadataResponse:
        if self.fails:
            raise Unreachable("nobody answers")
        told = [pb.BrokerInfo(address=address, stream_address=self.streams_are) for address in self.brokers_are]
        return pb.MetadataResponse(brokers=told)


class Peer:
    """A client's connection to the tunnel, or a broker's end of one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), WAIT_S)

    async def hear(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), WAIT_S)

    async def hear_answer(self) -> str:
        """What the tunnel says of a request."""
        return status(await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S))

    def cut(self) -> None:
        """End the connection by a reset, as a process that is killed with words unread."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def hear_to_the_end(self) -> bytes:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), WAIT_S)
        return b""


class Bed:
    """A tunnel, brokers that listen, and clients."""

    def __init__(self, cluster: Cluster, bounds: Bounds) -> None:
        self.cluster = cluster
        self.tunnel = Tunnel(Addresses(cluster), bounds)
        self.port = 0
        self.came: asyncio.Queue[Peer] = asyncio.Queue()
        self._servers: list[asyncio.Server] = []
        self.peers: list[Peer] = []

    async def open(self) -> None:
        server = await asyncio.get_running_loop().create_server(self.tunnel.guest, HOST, 0)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]

    async def broker(self) -> str:
        """The address of a new one."""

        async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(reader, writer)
            self.peers.append(peer)
            self.came.put_nowait(peer)

        server = await asyncio.start_server(taken, HOST, 0, limit=1 << 10)
        self._servers.append(server)
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        self.cluster.brokers_are.append(address)
        return address

    async def client(self, source: str = HOST) -> Peer:
        peer = Peer(*await asyncio.open_connection(HOST, self.port, local_addr=(source, 0), limit=1 << 10))
        self.peers.append(peer)
        return peer

    async def joined(self, address: str, source: str = HOST) -> tuple[Peer, Peer]:
        """A client and the broker's end, with a tunnel between them."""
        client = await self.client(source)
        await client.say(request(address))
        assert await client.hear_answer() == "200 Connection established"
        return client, await asyncio.wait_for(self.came.get(), WAIT_S)

    async def refusal(self, address: str, source: str = HOST) -> str:
        client = await self.client(source)
        await client.say(request(address))
        return status(await client.hear_to_the_end())

    async def close(self) -> None:
        self.tunnel.end()
        for peer in self.peers:
            peer.writer.transport.abort()
        for server in self._servers:
            server.close()
        await until(lambda: self.tunnel.counts == (0, 0), "all are over")
        for _ in range(3):  # turns in which the loop closes sockets
            await asyncio.sleep(0)


def request(address: str) -> bytes:
    return f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: a test\r\n\r\n".encode()


def status(answer: bytes) -> str:
    return answer.partition(b"\r\n")[0].decode().removeprefix("HTTP/1.1 ")


@asynccontextmanager
async def bed(*brokers: str, bounds: Bounds = MANY, streams: str = "") -> AsyncIterator[Bed]:
    made = Bed(Cluster(*brokers, streams=streams), bounds)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * WAIT_S):
            await test()

    asyncio.run(limited())


# ------------------------------------------------------------------ whom it connects


def test_it_moves_bytes_both_ways_and_what_came_with_the_request_too() -> None:
    async def test() -> None:
        async with bed() as made:
            address = await made.broker()
            client = await made.client()
            await client.say(request(address) + b"early")
            assert await client.hear_answer() == "200 Connection established"
            broker = await made.came.get()
            assert await broker.hear(5) == b"early"
            for sender, receiver in ((client, broker), (broker, client)):
                data = bytes(range(256)) * 4_000  # more than one piece
                sending = asyncio.create_task(sender.say(data))
                assert await receiver.hear(len(data)) == data
                await sending

    run(test)


def test_one_direction_may_end_before_the_other() -> None:
    async def test() -> None:
        async with bed() as made:
            client, broker = await made.joined(await made.broker())
            client.writer.write_eof()
            assert await broker.hear_to_the_end() == b""
            await broker.say(b"last words")
            broker.writer.close()
            assert await client.hear_to_the_end() == b"last words"
            await until(lambda: made.tunnel.counts == (0, 0), "both are over")

    run(test)


@pytest.mark.parametrize("who", ["client", "broker"])
def test_an_end_that_is_cut_off_ends_the_other(who: str) -> None:
    async def test() -> None:
        async with bed() as made:
            client, broker = await made.joined(await made.broker())
            gone, left = (client, broker) if who == "client" else (broker, client)
            gone.cut()
            assert await left.hear_to_the_end() == b""
            await until(lambda: made.tunnel.counts == (0, 0), "both are over")

    run(test)


def test_only_addresses_of_the_cluster_and_of_the_bootstrap_are_connected() -> None:
    async def test() -> None:
        async with bed() as made:
            address = await made.broker()
            console = await made.broker()
            made.cluster.brokers_are.remove(console)
            made.cluster.streams_are = streams = await made.broker()  # told in a field of its own
            made.cluster.brokers_are.remove(streams)
            assert await made.refusal(console) == "403 Forbidden"
            await made.joined(address)
            await made.joined(streams)
            assert await made.refusal(NOBODY) == "502 Bad Gateway"  # allowed, and nobody listens
            host, port = address.split(":")
            assert await made.refusal(f"localhost:{port}") == "403 Forbidden"  # the very address, and not what it means
            assert made.came.empty()
            assert host == HOST

    run(test)


def test_a_broker_that_has_just_come_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "AGAIN_S", 0.0)

    async def test() -> None:
        async with bed() as made:
            first = await made.broker()
            await made.joined(first)
            second = await made.broker()
            await made.joined(second)
            made.cluster.fails = True
            await made.joined(first)  # remembered while nobody can be asked

    run(test)


def test_an_address_that_was_told_long_ago_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "AGAIN_S", 0.0)

    async def test() -> None:
        async with bed() as made:
            address = await made.broker()
            await made.joined(address)
            made.cluster.brokers_are.clear()
            await made.joined(address)
            monkeypatch.setattr(tunnel, "REMEMBER_S", 0.0)
            assert await made.refusal(address) == "403 Forbidden"

    run(test)


def test_a_broker_that_is_down_and_one_that_is_silent_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with bed() as made:
            with socket.create_server((HOST, 0)) as closed:
                down = f"{HOST}:{closed.getsockname()[1]}"
            with socket.create_server((HOST, 0), backlog=0) as full:
                silent = f"{HOST}:{full.getsockname()[1]}"
                waiting = []
                for _ in range(4):  # its queue is full then: further ones are not answered
                    waiting.append(socket.socket())
                    waiting[-1].setblocking(False)
                    waiting[-1].connect_ex(full.getsockname())
                made.cluster.brokers_are += [down, silent]
                assert await made.refusal(down) == "502 Bad Gateway"
                monkeypatch.setattr(tunnel, "CONNECT_S", 0.3)
                assert await made.refusal(silent) == "504 Gateway Timeout"
                for each in waiting:
                    each.close()

    run(test)


# ------------------------------------------------------------------ back pressure


@pytest.mark.parametrize("who", ["client", "broker"])
def test_an_end_that_takes_nothing_holds_the_other_one_up(who: str) -> None:
    async def test() -> None:
        async with bed() as made:
            client, broker = await made.joined(await made.broker())
            sender, silent = (client, broker) if who == "client" else (broker, client)
            piece = bytes(1 << 20)
            written = 0

            while sender.writer.transport.get_write_buffer_size() <= 2 << 20:
                sender.writer.write(piece)
                written += len(piece)
                assert written < 200 << 20, "it takes without end"
                await asyncio.sleep(0.01)
            assert sum(map(len, [await silent.hear(1 << 20) for _ in range(written >> 20)])) == written

    run(test)


# ------------------------------------------------------------------ strangers


def test_silent_strangers_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "UNSAID_MAX", 8)
    monkeypatch.setattr(tunnel, "HEAD_S", 4 * WAIT_S)

    async def test() -> None:
        async with bed() as made:
            address = await made.broker()
            honest = await made.client("127.0.0.2")  # it has said nothing yet, and is the oldest
            strangers = [await made.client("127.0.0.3") for _ in range(40)]
            await until(lambda: made.tunnel.counts == (8, 0), "no more than eight are kept")
            await honest.say(request(address))
            assert await honest.hear_answer() == "200 Connection established"
            await made.joined(address, "127.0.0.3")
            assert all([await each.hear_to_the_end() == b"" for each in strangers[:30]])

    run(test)


def test_a_request_that_does_not_arrive_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "HEAD_S", 0.2)

    async def test() -> None:
        async with bed() as made:
            silent, slow = await made.client(), await made.client()
            await slow.say(b"CONNECT b.example:1 HT")
            for client in (silent, slow):
                assert status(await client.hear_to_the_end()) == "408 Request Timeout"
            await until(lambda: made.tunnel.counts == (0, 0), "both are over")

    run(test)


def test_a_request_without_an_end_is_refused_at_its_bound() -> None:
    async def test() -> None:
        async with bed() as made:
            client = await made.client()
            await client.say(b"CONNECT b.example:1 HTTP/1.1\r\nX: " + bytes(b"x" * HEAD_BYTES_MAX))
            assert status(await client.hear_to_the_end()) == "431 Request Header Fields Too Large"

    run(test)


def test_tunnels_are_bounded_in_all_and_for_one_address() -> None:
    async def test() -> None:
        async with bed(bounds=Bounds(3, 2)) as made:
            address = await made.broker()
            first, _ = await made.joined(address, "127.0.0.2")
            await made.joined(address, "127.0.0.2")
            assert await made.refusal(address, "127.0.0.2") == "503 Service Unavailable"
            await made.joined(address, "127.0.0.3")
            assert await made.refusal(address, "127.0.0.4") == "503 Service Unavailable"
            first.cut()
            await until(lambda: made.tunnel.counts == (0, 2), "the first is over")
            await made.joined(address, "127.0.0.2")  # there is room in all, and for that address

    run(test)


def test_refusals_are_logged_together(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tunnel, "TELL_S", 0.05)

    async def test() -> None:
        async with bed("b.example:1") as made:
            for _ in range(50):
                await made.refusal("no.example:1")
            telling = asyncio.create_task(made.tunnel.tell())
            await until(lambda: bool(caplog.messages), "it is told")
            telling.cancel()

    run(test)
    assert len(caplog.messages) == 1
    assert "refused 50 connections" in caplog.messages[0]
    assert "to no.example:1" in caplog.messages[0]
