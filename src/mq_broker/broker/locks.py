"""Locks for clients: one stream is one place in a queue, which this broker takes and keeps on the client's behalf.

The place ends with the stream, however that ends, and the stream with the place. While both last the broker speaks at
intervals, so that a client whose broker has stopped knows that before anybody else can have the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Final

from mq_broker.broker.runtime.streams import until_one_ends
from mq_broker.coordination.locks import LockPlace
from mq_broker.coordination.service import CoordinationService
from mq_broker.rpc.service import Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, LockLost, Overloaded
from mq_protocol.limits import LOCK_WAITERS_MAX, LOCKS_MAX
from mq_protocol.names import check_lock_name

_SPOKEN_IN_SILENCE: Final = 4
"""How often the broker speaks in the time after which its silence counts as the loss of the lock."""

_FIRST_WORD_S: Final = 10.0


class Locks:
    """Owns the number of places that this broker has taken for clients, by the lock's name."""

    def __init__(
        self, coordination: CoordinationService, places_max: int = LOCKS_MAX, waiters_max: int = LOCK_WAITERS_MAX
    ) -> None:
        self._coordination = coordination
        self._places_max = places_max
        self._waiters_max = waiters_max
        self._places: Counter[str] = Counter()

    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None:
        """One stream, until the client has said its last or goes, or the place is lost."""
        try:
            async with asyncio.timeout(_FIRST_WORD_S):
                request = await anext(requests, None)
        except TimeoutError:
            request = None
        if request is None:
            raise InvalidRequest("the stream named no lock: its first request does")
        check_lock_name(request.name)
        with self._room(request.name):
            place = await self._coordination.queue_for_lock(request.name)
            try:
                await until_one_ends(_said_last(requests), self._keep(place, request, send))
            finally:
                await place.leave()

    @contextlib.contextmanager
    def _room(self, name: str) -> Iterator[None]:
        if self._places.total() >= self._places_max:
            raise Overloaded(
                f"this broker keeps {self._places_max} places in queues for locks, as many as it takes: ask again"
            )
        if self._places[name] >= self._waiters_max:
            raise Overloaded(
                f"{self._waiters_max} clients of this broker have or want lock {name!r}, as many as it takes: ask again"
            )
        self._places[name] += 1
        try:
            yield
        finally:
            self._places[name] -= 1
            if not self._places[name]:
                del self._places[name]

    async def _keep(self, place: LockPlace, request: pb.LockRequest, send: Send[pb.LockResponse]) -> None:
        silence_ms = self._coordination.lock_silence_ms
        answer = pb.LockResponse(silence_ms=silence_ms)
        turn = asyncio.create_task(place.first(request.wait_ms / 1000))
        held: asyncio.Task[None] | None = None
        try:
            while True:
                await _say(answer, send, silence_ms / 1000)
                await asyncio.wait({held or turn}, timeout=silence_ms / 1000 / _SPOKEN_IN_SILENCE)
                if held is not None:
                    if held.done():
                        held.result()
                elif turn.done():
                    answer.token = turn.result()
                    held = asyncio.create_task(place.hold())
        finally:
            tasks = [task for task in (turn, held) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _say(answer: pb.LockResponse, send: Send[pb.LockResponse], silence_s: float) -> None:
    try:
        async with asyncio.timeout(silence_s):
            await send(answer)
    except TimeoutError:
        raise LockLost(f"the client has read nothing for {silence_s:g} s: the lock is given up") from None


async def _said_last(requests: AsyncIterator[pb.LockRequest]) -> None:
    async for _ in requests:
        raise InvalidRequest("a stream is for one lock, which its first request names: open another stream for another")
