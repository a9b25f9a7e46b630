"""Members of other brokers' queues, run by the Python that has their clients. Nothing of ours in it.

One JSON object a line, `{"do": function, "peer": name, "addresses": [...], ...}`, answered by what the function yields.
Each is used as its documentation says for speed. `names`: queues or streams, as many as our topic has partitions.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from benchmarks.bench.measure import Schedule

IDLE_S: Final = 2.5
TIMEOUT_S: Final = 120.0
MAKING_S: Final = 5.0
"""For one attempt: a cluster that has just come up may not answer at all."""

LEAD_S: Final = 1.0
RECORD_BYTES: Final = 100
UNANSWERED: Final = 1_000

Take = Callable[[bytes], None]


class Rabbit:
    """aio-pika, quorum queues of three members, publisher confirms."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel: Any = None

    async def open(self) -> None:
        self._channel = await self._connection.channel(publisher_confirms=True)

    async def make(self, names: list[str]) -> None:
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
        for name in names:
            await self._channel.declare_queue(name, durable=True, arguments=arguments)

    async def send(self, name: str, value: bytes) -> None:
        from aio_pika import DeliveryMode, Message  # type: ignore[import-not-found]

        message = Message(value, delivery_mode=DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, name, timeout=TIMEOUT_S)

    async def work(self, names: list[str], prefetch: int, take: Take) -> None:
        """The prefetch of a channel is each consumer's."""
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=max(1, prefetch // len(names)))
        for name in names:
            await (await channel.get_queue(name)).consume(_taker(take))

    async def left(self, names: list[str]) -> int:
        found = [await self._channel.declare_queue(name, passive=True) for name in names]
        return sum(queue.declaration_result.message_count for queue in found)


def _taker(take: Take) -> Callable[[Any], Awaitable[None]]:
    async def taken(message: Any) -> None:
        take(message.body)
        await message.ack()

    return taken


class JetStream:
    """nats-py, work-queue streams of three replicas in files, pull consumers with explicit acks."""

    def __init__(self, connection: Any) -> None:
        self._stream = connection.jetstream(timeout=TIMEOUT_S)
        self._making = connection.jetstream(timeout=MAKING_S)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        pass

    async def make(self, names: list[str]) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy  # type: ignore[import-not-found]

        for name in names:
            deadline = time.monotonic() + TIMEOUT_S
            while True:  # the cluster may not have chosen who leads it
                try:
                    await self._making.add_stream(
                        name=name, subjects=[name], num_replicas=3, retention=RetentionPolicy.WORK_QUEUE
                    )
                    break
                except Exception:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.2)
            config = ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=100_000)
            await self._making.add_consumer(name, config)

    async def send(self, name: str, value: bytes) -> None:
        await self._stream.publish(name, value, timeout=TIMEOUT_S)

    async def work(self, names: list[str], prefetch: int, take: Take) -> None:
        """Of work-queue streams each message is acknowledged by itself."""
        for name in names:
            pulled = await self._stream.pull_subscribe(name, durable="workers", stream=name)
            self._tasks.append(asyncio.create_task(self._pull(pulled, max(1, prefetch // len(names)), take)))

    async def _pull(self, pulled: Any, most: int, take: Take) -> None:
        while True:
            try:
                messages = await pulled.fetch(most, timeout=IDLE_S * 2)
            except TimeoutError:
                continue
            for message in messages:
                take(message.data)
                await (message.ack() if most > 1 else message.ack_sync())

    async def left(self, names: list[str]) -> int:
        return sum([(await self._stream.stream_info(name)).state.messages for name in names])


async def _connected(peer: str, address: str, opened: AsyncExitStack) -> Rabbit | JetStream:
    session: Rabbit | JetStream
    if peer == "NATS JetStream":
        import nats  # type: ignore[import-not-found]

        connection = await nats.connect(f"nats://{address}", max_reconnect_attempts=5)
        opened.push_async_callback(connection.close)
        session = JetStream(connection)
    else:
        import aio_pika

        session = Rabbit(await opened.enter_async_context(await aio_pika.connect(f"amqp://guest:guest@{address}/")))
    await session.open()
    return session


async def fill(session: Rabbit | JetStream, names: list[str], count: int) -> AsyncIterator[None]:
    """Make the queues, and send the ids from 0 on, in turn to each."""
    await session.make(names)
    await _send(session, names, ((0.0, ident.to_bytes(8, "little")) for ident in range(count)))
    yield None


async def publish(session: Rabbit | JetStream, names: list[str], per_second: float, count: int) -> AsyncIterator[None]:
    """On schedule; each carries when it was due."""
    schedule = Schedule(time.time_ns() + round(LEAD_S * 1e9), per_second, count)
    due = (schedule.due_ns(ident) for ident in range(count))
    each = ((at / 1e9, n.to_bytes(8, "little") + at.to_bytes(8, "little")) for n, at in enumerate(due))
    await _send(session, names, each)
    yield None


async def _send(session: Rabbit | JetStream, names: list[str], values: Any) -> None:
    room = asyncio.Semaphore(UNANSWERED)

    async def send(name: str, value: bytes) -> None:
        try:
            await session.send(name, value.ljust(RECORD_BYTES, b"\0"))
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for at, (due_s, value) in enumerate(values):
            await asyncio.sleep(max(0.0, due_s - time.time()))
            await room.acquire()
            tasks.create_task(send(names[at % len(names)], value))


async def left(session: Rabbit | JetStream, names: list[str]) -> AsyncIterator[int]:
    yield await session.left(names)


async def answer(asked: dict[str, Any]) -> None:
    functions: dict[str, Callable[..., AsyncIterator[Any]]] = {"fill": fill, "publish": publish, "left": left}
    function = asked.pop("do")
    async with AsyncExitStack() as opened:
        peer, addresses = asked.pop("peer"), asked.pop("addresses")
        if function == "work":
            await _work(peer, addresses, opened, **asked)
            return
        session = await _connected(peer, addresses[0], opened)
        async for said in functions[function](session, **asked):
            print(json.dumps(said), flush=True)


async def _work(
    peer: str,
    addresses: list[str],
    opened: AsyncExitStack,
    names: list[str],
    prefetch: int,
    members: int,
    stamped: bool,
) -> None:
    """Say "ready", begin after another line, and once nothing has come for `IDLE_S` tell the ids that came, when the
    last came, and how late each was. With several members each has a connection and one of the queues."""
    sessions = [await _connected(peer, addresses[at % len(addresses)], opened) for at in range(members)]
    print(json.dumps("ready"), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    came: list[int] = []
    late: list[float] = []
    last = time.monotonic()

    def take(value: bytes) -> None:
        nonlocal last
        last = time.monotonic()
        came.append(int.from_bytes(value[:8], "little"))
        if stamped:
            late.append((time.time_ns() - int.from_bytes(value[8:16], "little")) / 1e6)

    for at, session in enumerate(sessions):
        await session.work(names if members == 1 else [names[at % len(names)]], prefetch, take)
    async with asyncio.timeout(TIMEOUT_S):
        await _quiet(lambda: last if came else time.monotonic())
    print(json.dumps({"came": came, "last": last, "late_ms": late}), flush=True)


async def _quiet(last: Callable[[], float]) -> None:
    """Until nothing has come for `IDLE_S`."""
    wait_s = IDLE_S
    while wait_s > 0:
        await asyncio.sleep(wait_s)
        wait_s = last() + IDLE_S - time.monotonic()


def main() -> None:
    """Until standard input ends."""
    while line := sys.stdin.readline():
        asyncio.run(answer(json.loads(line)))


if __name__ == "__main__":
    main()
