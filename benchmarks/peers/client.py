"""The other brokers' side, run by the Python that has their clients: records in, and push latency. Nothing of ours in
it.

As benchmarks/kafka/client.py: one JSON object a line, `{"do": function, "peer": name, ...}`, answered by what the
function yields. Each client is used as its documentation says for speed: sends without waiting for each answer, a
bounded number unanswered. `names` are streams, queues or keys, as many as our topic has partitions; records go to them
in turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

from benchmarks.bench.measure import Schedule, Stopwatch

TIMEOUT_S: Final = 150.0
STAMP_BYTES: Final = 8
LEAD_S: Final = 0.05
DIFFERENT: Final = 1_000
UNANSWERED: Final = 1_000
"""Records sent and not yet acknowledged, at most."""

_REPLICAS: Final = 3
_OTHERS: Final = 2
_MS: Final = 1e6
_PIPELINED: Final = 500

Take = Callable[[bytes], None]


class Session(Protocol):
    """A connection to one of the brokers. `send` returns once the record is acknowledged."""

    async def make(self, names: list[str]) -> None: ...
    async def send(self, name: str, value: bytes) -> None: ...
    async def send_many(self, names: list[str], values: list[bytes]) -> None: ...
    async def take(self, names: list[str], heard: Take) -> None:
        """From now on, each record of those."""

    async def drop(self, names: list[str]) -> None: ...


async def _in_flight(session: Session, names: list[str], values: list[bytes]) -> None:
    """All of them, up to `UNANSWERED` at once."""
    room = asyncio.Semaphore(UNANSWERED)

    async def send(at: int) -> None:
        try:
            await session.send(names[at % len(names)], values[at])
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for at in range(len(values)):
            await room.acquire()
            tasks.create_task(send(at))


class JetStream:
    """nats-py. A stream of three replicas, stored in files, for each name."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=TIMEOUT_S)

    async def make(self, names: list[str]) -> None:
        for name in names:
            await _until_made(
                lambda name=name: self._stream.add_stream(name=name, subjects=[name], num_replicas=_REPLICAS)
            )  # type: ignore[misc]

    async def send(self, name: str, value: bytes) -> None:
        await self._stream.publish(name, value, timeout=TIMEOUT_S)

    async def send_many(self, names: list[str], values: list[bytes]) -> None:
        await _in_flight(self, names, values)

    async def take(self, names: list[str], heard: Take) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig  # type: ignore[import-not-found]

        async def take(message: Any) -> None:
            heard(message.data)

        for name in names:
            await self._stream.subscribe(name, stream=name, cb=take, config=ConsumerConfig(ack_policy=AckPolicy.NONE))

    async def drop(self, names: list[str]) -> None:
        for name in names:
            await self._stream.delete_stream(name)


class Rabbit:
    """aio-pika with publisher confirms. A quorum queue of three members for each name."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def make(self, names: list[str]) -> None:
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": _REPLICAS}
        for name in names:
            await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def send(self, name: str, value: bytes) -> None:
        from aio_pika import DeliveryMode, Message  # type: ignore[import-not-found]

        message = Message(value, delivery_mode=DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, name, timeout=TIMEOUT_S)

    async def send_many(self, names: list[str], values: list[bytes]) -> None:
        await _in_flight(self, names, values)

    async def take(self, names: list[str], heard: Take) -> None:
        async def take(message: Any) -> None:
            heard(message.body)

        for name in names:
            queue = await self._channel.get_queue(name)
            await queue.consume(take, no_ack=True)

    async def drop(self, names: list[str]) -> None:
        for name in names:
            await self._channel.queue_delete(name)


class RedisStreams:
    """redis-py. A stream for each name, XADD, and WAIT for both replicas: one for all that was pipelined."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._taking: list[asyncio.Task[None]] = []
        self._waiting: list[tuple[str, bytes, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def make(self, names: list[str]) -> None:
        await self._client.delete(*names)

    async def send(self, name: str, value: bytes) -> None:
        """What waits while a pipeline is on its way goes with the next one."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((name, value, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_waiting())
        await done

    async def _send_waiting(self) -> None:
        while self._waiting:
            sent, self._waiting = self._waiting[:_PIPELINED], self._waiting[_PIPELINED:]
            await self._pipeline([(name, value) for name, value, _ in sent])
            for _, _, done in sent:
                done.set_result(None)
        self._sending = None

    async def _pipeline(self, records: list[tuple[str, bytes]]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name, value in records:
            pipeline.xadd(name, {"v": value})
        pipeline.execute_command("WAIT", _OTHERS, round(TIMEOUT_S * 1_000))
        reached = (await pipeline.execute())[-1]
        if reached < _OTHERS:
            raise TimeoutError(f"{reached} of {_OTHERS} replicas have the records")

    async def send_many(self, names: list[str], values: list[bytes]) -> None:
        for begin in range(0, len(values), _PIPELINED):
            part = values[begin : begin + _PIPELINED]
            await self._pipeline([(names[(begin + at) % len(names)], value) for at, value in enumerate(part)])

    async def take(self, names: list[str], heard: Take) -> None:
        async def read() -> None:
            seen: dict[str, str | bytes] = dict.fromkeys(names, "0")
            while True:
                for name, entries in await self._client.xread(seen, count=1_000, block=1_000) or ():
                    for number, fields in entries:
                        heard(fields[b"v"])
                        seen[name.decode()] = number

        self._taking.append(asyncio.create_task(read()))

    async def drop(self, names: list[str]) -> None:
        await self._client.delete(*names)


async def _until_made(make: Callable[[], Awaitable[object]]) -> None:
    """A cluster that has just come up has no leader for some moments."""
    from nats.errors import Error  # type: ignore[import-not-found]

    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            await make()
        except Error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)
        else:
            return


@asynccontextmanager
async def connected(peer: str, addresses: list[str]) -> AsyncIterator[Session]:
    async with AsyncExitStack() as opened:
        session: Session
        if peer == "NATS JetStream":
            import nats  # type: ignore[import-not-found]

            connection = await nats.connect([f"nats://{address}" for address in addresses], pending_size=64 << 20)
            opened.push_async_callback(connection.close)
            session = JetStream(connection)
        elif peer == "RabbitMQ":
            import aio_pika

            link = await opened.enter_async_context(await aio_pika.connect(f"amqp://guest:guest@{addresses[0]}/"))
            session = Rabbit(await link.channel(publisher_confirms=True))
        else:
            from redis.asyncio import Redis  # type: ignore[import-not-found]

            host, _, port = addresses[0].partition(":")
            client = Redis(host=host, port=int(port), socket_timeout=TIMEOUT_S)
            opened.push_async_callback(client.aclose)
            session = RedisStreams(client)
        yield session


# ---------------------------------------------------------------- what is asked for


async def make(session: Session, names: list[str]) -> AsyncIterator[None]:
    await session.make(names)
    yield None


async def drop(session: Session, names: list[str]) -> AsyncIterator[None]:
    await session.drop(names)
    yield None


async def produce(session: Session, names: list[str], size: int, count: int, warming: int) -> AsyncIterator[float]:
    """Seconds for `count` records, to the last acknowledgement."""
    different = [os.urandom(size) for _ in range(DIFFERENT)]
    await session.send_many(names, [different[at % DIFFERENT] for at in range(warming)])
    values = [different[at % DIFFERENT] for at in range(count)]
    with Stopwatch() as watch:
        await session.send_many(names, values)
    yield watch.seconds


async def push(
    session: Session, names: list[str], per_second: float, count: int, size: int, warming: int
) -> AsyncIterator[str]:
    """Warm up, say so, and after another line on standard input send records that carry when they were due."""
    await session.send_many(names, [bytes(size)] * warming)
    yield "warm"
    await asyncio.to_thread(sys.stdin.readline)
    schedule = Schedule(time.time_ns() + round(LEAD_S * 1e9), per_second, count)
    padding = bytes(size - STAMP_BYTES)
    async with asyncio.TaskGroup() as tasks:
        for at in range(count):
            due = schedule.due_ns(at)
            await asyncio.sleep(max(0.0, (due - time.time_ns()) / 1e9))
            tasks.create_task(session.send(names[at % len(names)], due.to_bytes(STAMP_BYTES, "little") + padding))
    yield "sent"


async def consume(session: Session, names: list[str], warming: int, expected: int) -> AsyncIterator[str | list[float]]:
    """Say that it is there, take `warming` records and say so, then `expected` and say how late each was, in
    milliseconds."""
    arrived: asyncio.Queue[float] = asyncio.Queue()

    def heard(value: bytes) -> None:
        arrived.put_nowait((time.time_ns() - int.from_bytes(value[:STAMP_BYTES], "little")) / _MS)

    await session.take(names, heard)
    yield "there"
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(warming):
            await arrived.get()
        yield "warm"
        yield [await arrived.get() for _ in range(expected)]


async def answer(line: str) -> None:
    known: dict[str, Callable[..., AsyncIterator[Any]]] = {f.__name__: f for f in (make, drop, produce, push, consume)}
    asked = json.loads(line)
    function = known[asked.pop("do")]
    async with connected(asked.pop("peer"), asked.pop("addresses")) as session:
        async for said in function(session, **asked):
            print(json.dumps(said), flush=True)


def main() -> None:
    """Until standard input ends."""
    while line := sys.stdin.readline():
        asyncio.run(answer(line))


if __name__ == "__main__":
    main()
