"""What nothing of ours is in: grpcio between processes, and a file. The limits of what TritonMQ stands on.

Messages are `bytes` passed through untouched (no protobuf) on one bidirectional stream, an empty answer to each. Beside
the plain ceiling, two processes, there is one of the shape that three replicas need: a leader that answers once two
followers have.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
from grpc import aio

from benchmarks.bench.measure import Schedule, Stopwatch, paced
from benchmarks.bench.processes import Helper, wait_for_end

HOST: Final = "127.0.0.1"
STREAM_TIMEOUT_S: Final = 120.0
STAMP_BYTES: Final = 8

_EOF: Final[Any] = aio.EOF  # type: ignore[attr-defined]  # its stubs lack it
_SERVICE: Final = "bench.Ceiling"
_OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_receive_message_length", 128 << 20),
    ("grpc.max_send_message_length", 128 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

Messages: TypeAlias = Sequence[bytes]


class GrpcCeiling:
    """Owns three server processes, of which one relays to the other two, and the channel to that one."""

    def __init__(self) -> None:
        self._followers = [Helper(serve, ()), Helper(serve, ())]
        self._leader = Helper(serve, tuple(follower.hear() for follower in self._followers))
        self._channel = grpc.insecure_channel(f"{HOST}:{self._leader.hear()}", options=_OPTIONS)

    def move(self, messages: Messages, count: int) -> float:
        """Seconds to send `count` messages (these in turn) to another process and have each answered."""
        return self._answered("Ack", messages, count)

    def relay(self, messages: Messages, count: int) -> float:
        """The same, each answered once two more processes have answered: every message moves three times."""
        return self._answered("Relay", messages, count)

    def echo(self, schedule: Schedule, message_bytes: int, clock_ns: Callable[[], int]) -> list[float]:
        """Milliseconds from when each message was due until it was back, in order."""
        padding = bytes(message_bytes - STAMP_BYTES)
        requests = (due.to_bytes(STAMP_BYTES, "little") + padding for due in paced(schedule, clock_ns=clock_ns))
        echoes = self._open("Echo", requests)
        return [(clock_ns() - int.from_bytes(echo[:STAMP_BYTES], "little")) / 1e6 for echo in echoes]

    def _answered(self, method: str, messages: Messages, count: int) -> float:
        with Stopwatch() as watch:
            answers = sum(1 for _ in self._open(method, (messages[at % len(messages)] for at in range(count))))
        assert answers == count
        return watch.seconds

    def _open(self, method: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        call: Any = self._channel.stream_stream(f"/{_SERVICE}/{method}", None, None)(requests, timeout=STREAM_TIMEOUT_S)
        answers: Iterator[bytes] = call
        return answers

    def close(self) -> None:
        self._channel.close()
        for process in (self._leader, *self._followers):
            process.close()


def write_and_sync(path: Path, messages: Messages, count: int) -> float:
    """Seconds to append `count` messages (these in turn) to a new file, with one fdatasync after each."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with Stopwatch() as watch:
            for at in range(count):
                os.write(descriptor, messages[at % len(messages)])
                os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()
    return watch.seconds


# ------------------------------------------------------------------ the other process


def serve(pipe: Connection, followers: tuple[int, ...]) -> None:
    """In a child, until the pipe closes: answer on a free port, which the pipe is told; relay to the ports
    `followers`."""
    asyncio.run(_serve(pipe, followers))


async def _serve(pipe: Connection, followers: tuple[int, ...]) -> None:
    server = aio.server(options=_OPTIONS)
    behaviours: dict[str, Callable[..., Any]] = {"Ack": _ack, "Echo": _echo, "Relay": partial(_relay, followers)}
    handlers = {name: grpc.stream_stream_rpc_method_handler(behaviour) for name, behaviour in behaviours.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    pipe.send(port)
    await asyncio.get_running_loop().run_in_executor(None, wait_for_end, pipe)
    await server.stop(grace=None)


async def _ack(_requests: Any, context: Any) -> None:
    while await context.read() is not _EOF:
        await context.write(b"")


async def _echo(_requests: Any, context: Any) -> None:
    while (message := await context.read()) is not _EOF:
        await context.write(message)


async def _relay(followers: tuple[int, ...], _requests: Any, context: Any) -> None:
    async with AsyncExitStack() as open_channels:
        onward: list[Any] = []
        for port in followers:
            channel: Any = await open_channels.enter_async_context(
                aio.insecure_channel(f"{HOST}:{port}", options=_OPTIONS)
            )
            onward.append(channel.stream_stream(f"/{_SERVICE}/Ack")())

        async def answer() -> None:
            while True:
                answers = [await stream.read() for stream in onward]
                if any(each is _EOF for each in answers):
                    return
                await context.write(b"")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answer())
            while (message := await context.read()) is not _EOF:
                for stream in onward:
                    await stream.write(message)
            for stream in onward:
                await stream.done_writing()
