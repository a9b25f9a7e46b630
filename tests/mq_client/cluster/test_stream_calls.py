"""A call at a stream port on an event loop: what is said and heard, what is no such port, brokers that stop, and when
gRPC has it instead. The test is the broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mq_client.cluster import stream_calls, streams
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.stream_calls import StreamCall, dial
from mq_client.cluster.streams import NoStreamPort
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol.framing import STREAM, Receiver, preamble
from mq_protocol.pem import context, files_of_broker, read
from mq_protocol.streams import PREAMBLE, Kind, said, say
from tests.securing import Certs

HOST = "127.0.0.1"
WAIT_S = 20.0


class Broker:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._receiver = Receiver(1 << 23, 1 << 27, spoken=STREAM)

    def say(self, *pieces: list[Any]) -> None:
        for each in pieces:
            self.writer.write(b"".join(each))

    async def hear(self) -> tuple[Kind, bytes]:
        while (message := self._receiver.next()) is None:
            data = await self.reader.read(len(self._receiver.buffer()))
            if not data:
                raise EOFError
            self._receiver.buffer()[: len(data)] = data
            self._receiver.received(len(data))
        kind, body, _ = said(message)
        return kind, body


class Port:
    """`brokers`: connections, as they are made."""

    def __init__(self, greeting: bytes) -> None:
        self.brokers: asyncio.Queue[Broker] = asyncio.Queue()
        self.address = ""
        self._greeting = greeting

    def met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._greeting)
        self.brokers.put_nowait(Broker(reader, writer))


@contextlib.asynccontextmanager
async def port(greeting: bytes = PREAMBLE, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    made = Port(greeting)
    server = await asyncio.start_server(made.met, HOST, 0, ssl=tls)
    made.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        while not made.brokers.empty():
            made.brokers.get_nowait().writer.transport.abort()


def run(scenario: Callable[[], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await scenario()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def called(at: Port, client: Client = NOBODY) -> AsyncIterator[tuple[StreamCall, Broker]]:
    call = await dial(at.address, "b:1", client)
    broker = await at.brokers.get()
    try:
        call.open("Subscribe")
        yield call, broker
    finally:
        call.cancel()
        broker.writer.transport.abort()


@pytest.fixture(autouse=True)
def _nothing_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_avoided", {})
    monkeypatch.setattr(streams, "CONNECT_S", WAIT_S)  # nobody dials again here
    monkeypatch.setattr(stream_calls, "GREETING_S", WAIT_S)
    monkeypatch.delenv(streams.VARIABLE, raising=False)


@pytest.mark.parametrize("secured", [False, True])
def test_messages_of_all_sizes_go_both_ways(tmp_path: Path, secured: bool) -> None:
    client, tls = NOBODY, None
    if secured:
        certs = Certs(tmp_path / "certs", 1)
        client, tls = Client((), certs.user("etl")), context(read(files_of_broker(certs.path, 1)), server=True)

    async def scenario() -> None:
        async with port(tls=tls) as at, called(at, client) as (call, broker):
            sizes = [0, 5, 40_000, 3 << 20]
            speaking = asyncio.create_task(speak(call, sizes))
            for size in sizes:
                broker.say(say(Kind.MESSAGE, b"header", [b"y" * size]))
            broker.say(say(Kind.END))
            assert (await broker.hear())[0] is Kind.OPEN
            assert [await broker.hear() for _ in sizes] == [(Kind.MESSAGE, b"x" * size) for size in sizes]
            assert (await broker.hear())[0] is Kind.END
            for size in sizes:
                message = await call.read()
                assert message is not None
                assert (message.body, len(message.payload)) == (b"header", size)
            assert await call.read() is None
            await speaking

    async def speak(call: StreamCall, sizes: list[int]) -> None:
        for size in sizes:
            await call.write(say(Kind.MESSAGE, b"x" * size))
        call.end()

    run(scenario)


def test_what_is_not_read_waits_in_tcp_and_is_not_lost() -> None:
    async def scenario() -> None:
        async with port() as at, called(at) as (call, broker):
            count = 400
            pushing = asyncio.create_task(push(broker, count))
            while call._reading:  # noqa: ASYNC110 - of what is looked at nothing tells
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0)
            assert call._unread_bytes < 2 * stream_calls.UNREAD_BYTES
            assert not pushing.done()
            for number in range(count):
                message = await call.read()
                assert message is not None
                assert message.body == str(number).encode()
            await pushing

    async def push(broker: Broker, count: int) -> None:
        for number in range(count):
            broker.say(say(Kind.MESSAGE, str(number).encode(), [bytes(100_000)]))
            await broker.writer.drain()

    run(scenario)


def test_a_broker_that_reads_nothing_is_waited_for() -> None:
    async def scenario() -> None:
        async with port() as at, called(at) as (call, broker):
            speaking = asyncio.create_task(speak(call))
            while call._room.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not speaking.done()
            heard = [await broker.hear() for _ in range(401)]
            assert [body for kind, body in heard if kind is Kind.MESSAGE] == [b"x" * 100_000] * 400
            await speaking

    async def speak(call: StreamCall) -> None:
        for _ in range(400):
            await call.write(say(Kind.MESSAGE, b"x" * 100_000))

    run(scenario)


@pytest.mark.parametrize(
    "said_", [b"", b"".join(say(Kind.MESSAGE, b"x" * 100))[:50], b"\xff" * 8, b"\0\0\0\1\0\0\0\0\x63"]
)
def test_a_connection_that_breaks_or_says_what_is_none_ends_the_call(said_: bytes) -> None:
    async def scenario() -> None:
        async with port() as at, called(at) as (call, broker):
            broker.writer.write(said_)
            broker.writer.close()
            with pytest.raises(TritonMQError):
                await call.read()
            with pytest.raises(TritonMQError):  # and so it stays
                await call.read()
            await call.write(say(Kind.MESSAGE, b"too late"))

    run(scenario)


def test_a_broker_that_has_stopped_is_noticed_and_one_that_answers_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_calls, "PING_S", 0.2)
    monkeypatch.setattr(stream_calls, "SILENCE_S", 60.0)
    monkeypatch.setattr(stream_calls, "LOOK_S", 0.1)

    async def scenario() -> None:
        async with port() as at, called(at) as (call, broker):
            reading = asyncio.create_task(call.read())
            assert (await broker.hear())[0] is Kind.OPEN
            broker.say(say(Kind.PING))
            asked = 0
            while asked < 3:
                kind, _ = await broker.hear()
                if kind is Kind.PING:
                    asked += 1
                    heard_at = call._heard_at
                    broker.say(say(Kind.PONG))
                    while call._heard_at == heard_at:  # noqa: ASYNC110 - the silence begins anew
                        await asyncio.sleep(0.01)
                else:
                    assert kind is Kind.PONG
            assert not reading.done()
            monkeypatch.setattr(stream_calls, "SILENCE_S", 0.5)
            with pytest.raises(Unreachable, match="said nothing"):
                await reading

    run(scenario)


def test_who_has_received_enough_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PING waits in TCP behind what is not read."""
    monkeypatch.setattr(stream_calls, "LOOK_S", 0.1)

    async def scenario() -> None:
        async with port() as at, called(at) as (call, broker):
            assert (await broker.hear())[0] is Kind.OPEN
            broker.say(say(Kind.MESSAGE, b"", [bytes(2 * stream_calls.UNREAD_BYTES)]))
            while call._reading:  # noqa: ASYNC110 - of what is looked at nothing tells
                await asyncio.sleep(0.01)
            assert [(await broker.hear())[0] for _ in range(2)] == [Kind.PONG] * 2

    run(scenario)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", preamble(), b"", b"\x93TMS"])
def test_what_does_not_answer_as_a_stream_port_does_is_none(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_calls, "GREETING_S", 0.3)

    async def scenario() -> None:
        async with port(greeting) as at:
            with pytest.raises(NoStreamPort):
                await dial(at.address, "b:1", NOBODY)

    run(scenario)


def test_a_port_that_refuses_and_one_that_speaks_no_tls_are_none(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)

    async def scenario() -> None:
        with socket.create_server((HOST, 0)) as taken:
            closed = f"{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(NoStreamPort):
            await dial(closed, "b:1", NOBODY)
        async with port() as at:
            with pytest.raises(NoStreamPort):
                await dial(at.address, "b:1", Client((), certs.user("etl")))

    run(scenario)


# ---------------------------------------------------------------- over a stream port, or by gRPC
