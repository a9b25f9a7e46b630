"""One stream for the sessions of a process. The test is the broker; the event loop is real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

from mq_client.cluster.client import NOBODY
from mq_client.errors import TritonMQError, Unreachable
from mq_client.queueing.work_streams import Told, WorkStreams
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import WORK_SESSIONS_AT_ONCE_MAX
from mq_protocol.wire.envelope import Envelope

LAST = None
WAIT_S = 30.0


class Call:
    """The broker's end of a stream. `room`: it reads."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Any] = asyncio.Queue()
        self.heard: asyncio.Queue[pb.WorkRequest] = asyncio.Queue()
        self.room = asyncio.Event()
        self.room.set()
        self.done = asyncio.Event()

    async def write(self, request: pb.WorkRequest) -> None:
        self.heard.put_nowait(request)
        await self.room.wait()

    async def read(self) -> Any:
        return await self.says.get()

    def end(self) -> None:
        self.done.set()


class Loop:
    """In the place of `EventLoop`. Owns the calls, one for each stream."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.streams = WorkStreams(self)  # type: ignore[arg-type]

    def spawn(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    @contextlib.asynccontextmanager
    async def opened(self, *_: object) -> AsyncIterator[Call]:
        self.calls.append(Call())
        yield self.calls[-1]

    def stream(self) -> Any:
        return self.streams.to("b:1", NOBODY)


def scenario(test: Callable[[Loop], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def within() -> None:
            async with asyncio.timeout(WAIT_S):
                await test(Loop())

        asyncio.run(within())

    del run.__wrapped__  # type: ignore[attr-defined]  # or its argument is taken for a fixture
    return run


async def heard(call: Call) -> list[int]:
    """The sessions of the next message."""
    return [said.session for said in (await call.heard.get()).sessions]


@scenario
async def test_a_stream_ends_once_its_last_session_is_given_up_and_the_next_one_has_another(loop: Loop) -> None:
    stream = loop.stream()
    numbers = [stream.open(lambda _: None) for _ in range(2)]
    for number in numbers:
        stream.say(pb.SessionRequest(session=number))
    await asyncio.sleep(0)
    assert await heard(loop.calls[0]) == numbers
    stream.forget(numbers[0])
    await asyncio.sleep(0)
    assert loop.stream() is stream
    stream.forget(numbers[1])  # without a word: it was the broker that ended it
    await loop.calls[0].done.wait()
    assert loop.stream() is not stream
    loop.calls[0].says.put_nowait(LAST)


@scenario
async def test_what_is_said_goes_in_its_order_and_a_message_has_each_session_once(loop: Loop) -> None:
    stream = loop.stream()
    one, two, three = (stream.open(lambda _: None) for _ in range(3))
    for number in (one, two, one, three, two):
        stream.say(pb.SessionRequest(session=number))
    await asyncio.sleep(0)
    call = loop.calls[0]
    assert [await heard(call), await heard(call)] == [[one, two], [one, three, two]]
    call.room.clear()
    many = [stream.open(lambda _: None) for _ in range(WORK_SESSIONS_AT_ONCE_MAX + 1)]
    stream.say(pb.SessionRequest(session=one))
    await heard(call)
    for number in many:
        stream.say(pb.SessionRequest(session=number))
    call.room.set()
    assert [await heard(call), await heard(call)] == [many[:-1], many[-1:]]


@scenario
async def test_each_session_is_told_its_own_with_its_payloads_and_all_are_told_how_the_stream_ended(
    loop: Loop,
) -> None:
    stream = loop.stream()
    told: dict[str, list[Told | TritonMQError]] = {"a": [], "b": [], "gone": []}
    numbers = {name: stream.open(news.append) for name, news in told.items()}
    stream.forget(numbers["gone"])
    await asyncio.sleep(0)
    sizes = {"a": (2, 1), "gone": (3,), "b": (1,)}
    header = pb.WorkHeader(
        sessions=[
            pb.SessionResponse(
                session=numbers[name],
                lease=pb.LeaseResponse(batches=[pb.StoredBatch(payload_bytes=size) for size in sizes[name]]),
            )
            for name in sizes
        ]
    )
    loop.calls[0].says.put_nowait(Envelope(header, (memoryview(b"aaAxxxb"),)))
    loop.calls[0].says.put_nowait(LAST)
    while not stream.broken:  # noqa: ASYNC110 - there is nothing to be waited for
        await asyncio.sleep(0)
    found = {name: [each for each in news if isinstance(each, Told)] for name, news in told.items()}
    assert {name: [list(map(bytes, each.payloads)) for each in news] for name, news in found.items()} == {
        "a": [[b"aa", b"A"]],
        "b": [[b"b"]],
        "gone": [],
    }
    assert [type(news[-1]) for news in (told["a"], told["b"])] == [Unreachable, Unreachable]
    assert told["gone"] == []
    assert loop.stream() is not stream
