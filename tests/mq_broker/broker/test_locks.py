"""The stream that is a place in the queue for a lock: what it takes, what it refuses, and how much of it one broker
keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq_broker.broker.locks import Locks, _say
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, LockLost, LockNotAcquired, Overloaded
from tests.coroutines import virtual_time

WAIT_S = 20.0


class Stream:
    """One client's stream: `answers` as they come; what it says goes on until `finish`."""

    def __init__(self, locks: Locks, *requests: pb.LockRequest) -> None:
        self.answers: asyncio.Queue[pb.LockResponse] = asyncio.Queue()
        self._said: asyncio.Queue[pb.LockRequest | None] = asyncio.Queue()
        for request in requests:
            self._said.put_nowait(request)
        self.task = asyncio.create_task(locks.lock(self._requests(), self._hear))

    async def _requests(self) -> AsyncIterator[pb.LockRequest]:
        while (request := await self._said.get()) is not None:
            yield request

    async def _hear(self, answer: pb.LockResponse) -> None:
        copy = pb.LockResponse()
        copy.CopyFrom(answer)
        self.answers.put_nowait(copy)

    async def token(self) -> int:
        async with asyncio.timeout(WAIT_S):
            while not (answer := await self.answers.get()).token:
                pass
        return answer.token

    async def finish(self) -> None:
        self._said.put_nowait(None)
        async with asyncio.timeout(WAIT_S):
            await self.task


def wanted(name: str = "nightly", wait_ms: int = 20_000) -> pb.LockRequest:
    return pb.LockRequest(name=name, wait_ms=wait_ms)


async def started(directory: Path) -> CoordinationService:
    coordination = CoordinationService(FileStore(directory))
    await coordination.start(lambda _event: None)
    return coordination


@virtual_time
async def test_a_place_ends_with_its_stream_however_that_ends(tmp_path: Path) -> None:
    coordination = await started(tmp_path)
    locks = Locks(coordination)
    streams = [Stream(locks, wanted()) for _ in range(3)]
    tokens = [await streams[0].token()]
    await streams[0].finish()
    tokens.append(await streams[1].token())
    streams[1].task.cancel()  # as gRPC does when the client is gone
    tokens.append(await streams[2].token())
    assert tokens == sorted(set(tokens))
    await coordination.stop()
    with pytest.raises(LockLost):
        await streams[2].task


@virtual_time
async def test_a_stream_speaks_while_its_place_stands_waiting_or_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoordinationService, "lock_silence_ms", 200)
    coordination = await started(tmp_path)
    locks = Locks(coordination)
    holder, waiter = Stream(locks, wanted()), Stream(locks, wanted())
    async with asyncio.timeout(WAIT_S):
        await holder.token()  # a busy machine may be told that it waits before
        held = [await holder.answers.get() for _ in range(3)]
        waiting = [await waiter.answers.get() for _ in range(4)]
    assert {answer.silence_ms for answer in held + waiting} == {200}
    assert [bool(answer.token) for answer in held] == [True] * 3
    assert [answer.token for answer in waiting] == [0] * 4
    await holder.finish()
    await waiter.token()
    await waiter.finish()
    await coordination.stop()


@virtual_time
async def test_what_names_no_lock_or_two_is_refused(tmp_path: Path) -> None:
    coordination = await started(tmp_path)
    locks = Locks(coordination)
    nameless = Stream(locks)
    with pytest.raises(InvalidRequest, match="named no lock"):
        await nameless.finish()
    for name in ("", "a/b", "..", "ä" * 128):
        with pytest.raises(InvalidRequest, match="lock name"):
            await Stream(locks, wanted(name)).task
    with pytest.raises(InvalidRequest, match="another stream"):
        await Stream(locks, wanted("a"), wanted("b")).task
    await Stream(locks, wanted("a", wait_ms=0)).finish()  # who was refused has left nothing
    await coordination.stop()


@virtual_time
async def test_a_broker_keeps_so_many_places_of_one_lock_and_of_all(tmp_path: Path) -> None:
    coordination = await started(tmp_path)
    locks = Locks(coordination, places_max=5, waiters_max=3)
    streams = [Stream(locks, wanted(name)) for name in ("a", "a", "a", "b", "c")]
    for n in (0, 3, 4):
        await streams[n].token()
    with pytest.raises(Overloaded, match="5 places"):
        await Stream(locks, wanted("d")).task
    await streams[4].finish()
    with pytest.raises(Overloaded, match="lock 'a'"):
        await Stream(locks, wanted("a")).task
    with pytest.raises(LockNotAcquired):
        await Stream(locks, wanted("b", wait_ms=0)).task
    await streams[0].finish()
    last = Stream(locks, wanted("a"))
    await streams[1].token()
    with pytest.raises(Overloaded, match="lock 'a'"):
        await Stream(locks, wanted("a")).task
    for stream in (*streams[1:4], last):
        await stream.finish()
    assert not locks._places, "or every name would leave something behind"
    await coordination.stop()


def test_a_client_that_reads_nothing_gives_its_lock_up() -> None:
    async def reads_nothing(_answer: pb.LockResponse) -> None:
        await asyncio.Event().wait()

    with pytest.raises(LockLost, match=r"the client has read nothing for 0\.01 s"):
        asyncio.run(_say(pb.LockResponse(), reads_nothing, 0.01))


@virtual_time
async def test_a_lock_whose_holder_reads_nothing_any_more_is_lost_and_says_so(tmp_path: Path) -> None:
    coordination = await started(tmp_path)

    async def reads_until_it_holds(answer: pb.LockResponse) -> None:
        if answer.token:
            raise LockLost("the client has read nothing")

    async def one_request() -> AsyncIterator[pb.LockRequest]:
        yield wanted()
        await asyncio.Event().wait()

    with pytest.raises(LockLost, match="has read nothing"):
        await asyncio.wait_for(Locks(coordination).lock(one_request(), reads_until_it_holds), WAIT_S)
    await coordination.stop()
