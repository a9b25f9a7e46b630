"""How a push stream ends: who is told, and that nothing of it goes on. The test is the broker; the event loop is
real."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import aio

from mq_client.cluster import streams
from mq_client.consuming import push_calls, push_streams
from mq_client.consuming.push_streams import EventLoop, PushStream
from mq_client.errors import Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope

WAIT_S = 30.0
LAST = aio.EOF  # type: ignore[attr-defined]


class Call:
    """The broker's end of a Subscribe stream."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Any] = asyncio.Queue()
        self.written: queue.Queue[pb.SubscribeRequest] = queue.Queue()
        self.done = threading.Event()
        self.cancelled = threading.Event()

    async def write(self, request: pb.SubscribeRequest) -> None:
        self.written.put(request)

    async def read(self) -> Any:
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return said

    async def done_writing(self) -> None:
        self.done.set()

    def cancel(self) -> None:
        self.cancelled.set()


class Listener:
    """Owns a stream, and what is heard on it."""

    def __init__(self, loop: EventLoop) -> None:
        self.heard: list[Any] = []
        self.overs: list[Any] = []
        self.stream = PushStream("b:1", self._heard, self.overs.append)

    async def _heard(self, message: Any) -> None:
        self.heard.append(message)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLoop]:
    made = EventLoop()
    monkeypatch.setattr(push_streams, "this_process", lambda: made)
    monkeypatch.setattr(made, "channel", lambda *whose: contextlib.nullcontext())
    yield made
    made.stop()
    made._loop.close()


@pytest.fixture(autouse=True)
def _any_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(streams.VARIABLE, raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    made = Call()
    monkeypatch.setattr(push_calls, "_stream_of", lambda *of: made)
    return made


def settled(loop: EventLoop) -> int:
    """How much still runs on the loop once all that can end has ended."""

    async def count() -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return len(loop._tasks)

    return asyncio.run_coroutine_threadsafe(count(), loop._loop).result(WAIT_S)


def request(count: int) -> pb.SubscribeRequest:
    return pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=count))


def test_words_go_out_and_come_in_in_their_order_until_the_last_of_each(loop: EventLoop, call: Call) -> None:
    listener = Listener(loop)
    for count in (1, 2):
        listener.stream.say(request(count))
    listener.stream.say_last()
    assert [call.written.get(timeout=WAIT_S).credit.bytes for _ in range(2)] == [1, 2]
    assert call.done.wait(WAIT_S)
    messages = [Envelope(pb.BatchesHeader()), Envelope(pb.BatchesHeader())]
    for said in (*messages, LAST):
        loop.call(call.says.put_nowait, said)
    assert listener.stream.wait_over(WAIT_S)
    assert [id(each) for each in listener.heard] == [id(each) for each in messages]
    assert listener.overs == [None]
    assert call.cancelled.is_set()


class Broken(grpc.RpcError):
    """A stream that broke, as gRPC says it."""

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"


@pytest.mark.parametrize("said", [LAST, Broken()])
def test_nothing_of_a_stream_that_ended_goes_on(loop: EventLoop, call: Call, said: Any) -> None:
    listener = Listener(loop)
    assert settled(loop) == 2
    loop.call(call.says.put_nowait, said)
    assert listener.stream.wait_over(WAIT_S)
    assert [type(over) for over in listener.overs] == [Unreachable if isinstance(said, Exception) else type(None)]
    assert settled(loop) == 0


def test_a_stream_that_is_cancelled_is_over_once(loop: EventLoop, call: Call) -> None:
    listener = Listener(loop)
    settled(loop)
    listener.stream.cancel()
    listener.stream.cancel()
    assert listener.stream.wait_over(WAIT_S)
    assert listener.overs == [None]
    assert call.cancelled.is_set()
    assert settled(loop) == 0


def test_a_stream_that_is_begun_while_the_process_ends_is_over_at_once(loop: EventLoop, call: Call) -> None:
    loop.closing = True
    listener = Listener(loop)
    assert listener.stream.wait_over(WAIT_S)
    assert listener.overs == [None]
    assert settled(loop) == 0


def test_a_connection_takes_so_many_streams_and_then_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_streams, "STREAMS_PER_CHANNEL", 2)
    made = EventLoop()
    try:

        async def opened() -> list[int]:
            with contextlib.ExitStack() as streams:
                several = [streams.enter_context(made.channel("127.0.0.1:1")) for _ in range(3)]
                other = streams.enter_context(made.channel("127.0.0.1:2"))
            again = [each.enter_context(made.channel("127.0.0.1:1")) for each in [contextlib.ExitStack()] * 2]
            found = [*several, other, *again]
            return [found.index(each) for each in found]

        assert asyncio.run_coroutine_threadsafe(opened(), made._loop).result(WAIT_S) == [0, 0, 2, 3, 0, 0]
    finally:
        made.stop()
        made._loop.close()
