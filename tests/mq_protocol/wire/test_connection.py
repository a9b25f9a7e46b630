"""A connection to a broker on an event loop, by real sockets. The test is the broker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion, NotLeader, TritonMQError, Unreachable
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.wire import connection as module
from mq_protocol.wire.call import PING_S, PREAMBLE, SILENCE_S, CallMachine, Kind, NotBegun, Said, Side, parsed, say
from mq_protocol.wire.connection import UNREAD_BYTES, Connection, connect
from mq_protocol.wire.framing import STREAM, preamble

HOST = "127.0.0.1"
DEADLINE_S = 30.0
NAME = "broker-1.elsewhere:7400"
"""As the broker is called in errors: another one than is dialled."""


class Far:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.machine = CallMachine(Side.BROKER, MESSAGE_BYTES_MAX, 0.0)

    async def hear(self) -> Said | None:
        """The next message; None at the end."""
        while (message := self.machine.next()) is None:
            data = await self.reader.read(len(self.machine.buffer()))
            if not data:
                return None
            self.machine.buffer()[: len(data)] = data
            self.machine.received(len(data), 0.0)
        return message

    async def hear_call(self) -> tuple[pb.CallOpen, list[bytes]] | None:
        """All that a client says in a call; None at the end of the connection."""
        message = await self.hear()
        if message is None:
            return None
        opened, said = parsed(message.body, pb.CallOpen), list[bytes]()
        while (message := await self.hear()) is not None and message.kind is not Kind.END:
            said.append(message.body)
        return opened, said

    def say(self, *pieces: Any) -> None:
        self.writer.write(b"".join(b"".join(each) for each in pieces))


Answer = Callable[[Far], Awaitable[None]]


class Port:
    def __init__(self, port: int, connections: list[Far]) -> None:
        self.port, self.connections = port, connections

    async def dial(self) -> Connection:
        return await connect(f"{HOST}:{self.port}", NAME, DEADLINE_S)


@contextlib.asynccontextmanager
async def port(answer: Answer, greeting: bytes = PREAMBLE) -> AsyncIterator[Port]:
    """`answer` has each connection, which ends with it."""
    connections: list[Far] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = Far(reader, writer)
        connections.append(far)
        writer.write(greeting)
        with contextlib.suppress(ConnectionError):
            await answer(far)
        writer.close()

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield Port(server.sockets[0].getsockname()[1], connections)
    finally:
        server.close()
        for far in connections:
            far.writer.transport.abort()
        await server.wait_closed()


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test on a loop, within a time."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(2 * DEADLINE_S):
                await test(*given, **named)

        asyncio.run(main())

    return run


async def echo(far: Far) -> None:
    """Answers a call with what is said in it, and refuses one of the method `No`."""
    while (call := await far.hear_call()) is not None:
        opened, said = call
        if opened.method == "No":
            far.say(far.machine.fail(NotLeader("ask broker 3", 3, 17)))
        else:
            far.say(*(far.machine.say(Kind.MESSAGE, body) for body in said), far.machine.say(Kind.END))


async def silence(far: Far) -> None:
    while await far.hear() is not None:
        pass


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - of what is looked at nothing tells
        await asyncio.sleep(0.01)


def a(method: str, timeout_ms: int = 0) -> pb.CallOpen:
    return pb.CallOpen(method=method, timeout_ms=timeout_ms)


# ---------------------------------------------------------------- one call after another


@scenario
async def test_calls_follow_each_other_on_a_connection_also_after_one_that_is_refused() -> None:
    async with port(echo) as there:
        connection = await there.dial()
        for number in range(3):
            assert connection.is_free
            answer = await connection.ask(a("Metadata"), b"%d" % number)
            assert answer.body == b"%d" % number
            with pytest.raises(NotLeader) as refused:
                await connection.ask(a("No"), b"")
            assert (refused.value.leader, refused.value.leader_epoch) == (3, 17)
        assert connection.is_free
        assert len(there.connections) == 1
        connection.close()


@scenario
async def test_a_call_that_is_under_way_leaves_no_room_for_another() -> None:
    async with port(echo) as there:
        connection = await there.dial()
        connection.open(a("Produce"))
        await connection.write(b"first")
        assert not connection.is_free
        with pytest.raises(ValueError, match="OPEN cannot be said now"):
            connection.open(a("Produce"))
        await connection.write(b"", [b"payload"])
        connection.end()
        assert not connection.is_free
        heard = [await connection.read(), await connection.read()]
        assert not connection.is_free, "its end was not read"
        assert [each.body for each in heard if each is not None] == [b"first", b""]
        assert await connection.read() is None
        assert connection.is_free
        connection.close()


@pytest.mark.parametrize("answers", [0, 2])
@scenario
async def test_who_asks_once_is_answered_once(answers: int) -> None:
    async def otherwise(far: Far) -> None:
        await far.hear_call()
        far.say(*(far.machine.say(Kind.MESSAGE, b"") for _ in range(answers)), far.machine.say(Kind.END))

    async with port(otherwise) as there:
        connection = await there.dial()
        with pytest.raises(Unreachable, match="otherwise than once"):
            await connection.ask(a("Metadata"), b"")
        connection.close()


# ---------------------------------------------------------------- how it ends


async def closes(far: Far) -> None:
    await far.hear_call()
    far.say(far.machine.close(NotLeader("ask broker 3", 3, 17)))


async def closes_without_a_word(far: Far) -> None:
    await far.hear_call()
    far.say(far.machine.close(None))


async def hangs_up(far: Far) -> None:
    await far.hear_call()


async def resets(far: Far) -> None:
    await far.hear_call()
    far.writer.transport.abort()


async def talks_nonsense(far: Far) -> None:
    await far.hear_call()
    far.writer.write(b"\0\0\0\1\0\0\0\0\xff")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (closes, NotLeader),
        (closes_without_a_word, NotBegun),
        (hangs_up, Unreachable),
        (resets, Unreachable),
        (talks_nonsense, Unreachable),
    ],
)
@scenario
async def test_a_connection_that_ends_tells_why_and_is_of_no_more_use(
    answer: Answer, error: type[TritonMQError]
) -> None:
    async with port(answer) as there:
        connection = await there.dial()
        with pytest.raises(error) as ended:
            await connection.ask(a("Metadata"), b"")
        assert type(ended.value) is error
        assert not connection.is_free
        with pytest.raises(TritonMQError):
            await connection.read()
        connection.close()


@scenario
async def test_a_connection_that_was_ended_between_two_calls_is_not_free() -> None:
    async def once(far: Far) -> None:
        await far.hear_call()
        far.say(far.machine.say(Kind.MESSAGE), far.machine.say(Kind.END))
        await over.wait()
        far.say(far.machine.close(Unreachable("the connection has become too old")))

    over = asyncio.Event()

    async with port(once) as there:
        connection = await there.dial()
        await connection.ask(a("Metadata"), b"")
        assert connection.is_free
        over.set()
        await until(lambda: not connection.is_free)
        connection.close()


@scenario
async def test_whoever_reads_or_writes_is_told_that_it_was_closed_here() -> None:
    async def deaf(far: Far) -> None:
        await never.wait()

    never, begun = asyncio.Event(), asyncio.Event()

    async with port(deaf) as there:
        connection = await there.dial()
        connection.open(a("Produce"))
        reading = asyncio.create_task(connection.read())

        async def writes() -> None:
            while not reading.done():
                begun.set()
                await connection.write(bytes(1 << 20))
                await asyncio.sleep(0)

        writing = asyncio.create_task(writes())
        await begun.wait()
        connection.close()
        with pytest.raises(Unreachable, match="ended here"):
            await reading
        await writing, "which shows where it is read"
        assert not connection.is_free


@scenario
async def test_a_call_ends_by_the_callers_deadline_and_the_connection_with_it() -> None:
    async with port(silence) as there:
        connection = await there.dial()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.ask(a("Metadata", 50), b"")
        assert not connection.is_free
        connection.close()


# ---------------------------------------------------------------- how it begins


@pytest.mark.parametrize(
    ("greeting", "error"),
    [
        (preamble(), Unreachable),
        (preamble(9, 8, spoken=STREAM), IncompatibleVersion),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Unreachable),
        (b"", Unreachable),
    ],
    ids=["a link", "of the future", "HTTP", "nothing"],
)
@scenario
async def test_who_does_not_begin_as_a_broker_is_none(greeting: bytes, error: type[TritonMQError]) -> None:
    async def ends(far: Far) -> None:
        if greeting:
            await silence(far)

    async with port(ends, greeting) as there:
        with pytest.raises(error) as refused:
            await there.dial()
        assert type(refused.value) is error


@scenario
async def test_who_is_not_there_or_does_not_answer_is_named_as_the_broker_that_is_meant() -> None:
    async with port(silence, b"") as there:
        with pytest.raises(Unreachable, match=f"{NAME} cannot be reached: no answer"):
            await connect(f"{HOST}:{there.port}", NAME, 0.05)
    for dialled in (f"{HOST}:{there.port}", f"{'x' * 70}.invalid:1"):
        with pytest.raises(Unreachable, match=f"{NAME} cannot be reached"):
            await connect(dialled, NAME, DEADLINE_S)


# ---------------------------------------------------------------- what is in memory, and who lives


@scenario
async def test_what_nobody_reads_waits_in_tcp_and_comes_in_its_order() -> None:
    size, count = 100_000, 300

    async def pushes(far: Far) -> None:
        await far.hear()
        for number in range(count):
            far.say(far.machine.say(Kind.MESSAGE, b"%d" % number, [bytes(size)]))
            await far.writer.drain()
            sent.append(number)
        await far.hear()
        far.say(far.machine.say(Kind.END))
        await silence(far)

    sent: list[int] = []

    async with port(pushes) as there:
        connection = await there.dial()
        connection.open(a("Subscribe"))
        last = -1
        while len(sent) > last or not sent:  # until nothing more goes
            last = len(sent)
            await asyncio.sleep(0.2)
        assert last * size < 25 * UNREAD_BYTES
        for number in range(count):
            message = await connection.read()
            assert message is not None
            assert (message.body, len(message.payload)) == (b"%d" % number, size)
        connection.end()
        assert await connection.read() is None
        assert connection.is_free
        connection.close()


class Clock:
    """The loop's, which a test sets ahead."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ahead_s = 0.0
        real = loop.time
        loop.time = lambda: real() + self.ahead_s  # type: ignore[method-assign]


def is_asked(far: Far) -> bool:
    """Whether it lives, since it was looked at last."""
    return bool(far.machine.answer())


@scenario
async def test_a_broker_that_is_silent_is_asked_and_then_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)

    async with port(silence) as there:
        clock = Clock()
        connection = await there.dial()
        connection.open(a("Subscribe"))
        await until(lambda: bool(there.connections) and there.connections[0].machine.state.name == "OPEN")
        [far] = there.connections
        clock.ahead_s += PING_S
        await until(lambda: is_asked(far))
        far.say(say(Kind.PONG), far.machine.say(Kind.MESSAGE))  # it lives: it has the same time again
        await connection.read()
        clock.ahead_s += PING_S
        await until(lambda: is_asked(far))
        clock.ahead_s += SILENCE_S - PING_S
        with pytest.raises(Unreachable, match="said nothing for 15 s"):
            await connection.read()
        assert not connection.is_free


@scenario
async def test_a_connection_that_has_rested_for_long_is_not_taken_for_dead_when_it_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)

    async def late(far: Far) -> None:
        await far.hear_call()
        far.say(far.machine.say(Kind.MESSAGE), far.machine.say(Kind.END))
        await far.hear_call()
        await asyncio.sleep(0.2)  # ten looks
        far.say(far.machine.say(Kind.MESSAGE, b"late"), far.machine.say(Kind.END))
        await silence(far)

    async with port(late) as there:
        clock = Clock()
        connection = await there.dial()
        await connection.ask(a("Metadata"), b"")
        clock.ahead_s += 2 * SILENCE_S
        assert (await connection.ask(a("Metadata"), b"")).body == b"late"
        connection.close()
