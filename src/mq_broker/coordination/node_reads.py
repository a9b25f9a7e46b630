"""Readings of nodes gathered into few questions: brokers that start, and many idle partitions, read thousands of them.

A lone reading goes out at once. While `BATCHES_IN_FLIGHT_MAX` questions are unanswered, or many were asked just now
(pace.py), what comes waits and leaves together. Each question goes out behind a sync, both once all of its readings
have been asked for, so none is older than its asking. Kazoo has no request for several readings; ZooKeeper has since
3.6, and an older server is asked singly.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoAuthError, NoNodeError, UnimplementedError, ZookeeperError
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, stat_struct

from mq_broker.coordination.kazoo_session import KazooSession
from mq_broker.coordination.pace import Pace
from mq_protocol.errors import CoordinationUnavailable

_log = logging.getLogger(__name__)

Found: TypeAlias = tuple[bytes, Any] | None
"""(data, stat) of a node; None if there is none."""

_Ask: TypeAlias = Callable[[Callable[[KazooClient], Any], float], Awaitable[Any]]
"""Of a session: with a sync or without."""

BATCH_READS_MAX = 100
"""A topic of many partitions has tens of kilobytes: so many answers are some megabytes at worst."""

BATCHES_IN_FLIGHT_MAX = 2

_ERROR = -1


@dataclass(frozen=True, slots=True)
class _MultiRead:
    """ZooKeeper's `multiRead` of data, as a request of kazoo's. Its answer: for each path what `GetData` answers, or
    the error."""

    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        asked = bytearray()
        for path in self.paths:
            asked += MultiHeader(GetData.type, False, -1).serialize()
            asked += GetData(path, None).serialize()
        asked += MultiHeader(-1, True, -1).serialize()
        return asked

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[tuple[bytes, Any] | Exception]:
        found: list[tuple[bytes, Any] | Exception] = []
        header, offset = MultiHeader.deserialize(answer, offset)
        while not header.done:
            if header.type == _ERROR:
                found.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            else:
                data, stat = GetData.deserialize(answer, offset)
                data = data or b""  # None is what somebody made without any
                found.append((data, stat))
                offset += int_struct.size + len(data) + stat_struct.size
            header, offset = MultiHeader.deserialize(answer, offset)
        return found


@dataclass(slots=True)
class _Read:
    path: str
    found: asyncio.Future[Found]


class NodeReads:
    """Owns the readings that wait and the questions in flight. Every reading ends by its deadline."""

    def __init__(self, session: KazooSession) -> None:
        self._session = session
        self._waiting: deque[_Read] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._pace = Pace()
        self._paused = False
        self._several_at_once = True

    async def read(self, path: str, deadline: float) -> Found:
        """The node as it is now, after a sync. Raises `CoordinationUnavailable`, and kazoo's other errors as they
        are."""
        read = _Read(path, asyncio.get_running_loop().create_future())
        self._waiting.append(read)
        self._send()
        try:
            async with asyncio.timeout_at(deadline):
                return await read.found
        except TimeoutError:
            raise CoordinationUnavailable(
                f"no answer from ZooKeeper at {self._session.hosts} in time: check that ZooKeeper is running and "
                "reachable"
            ) from None

    async def read_many(self, paths: Sequence[str], deadline: float) -> list[tuple[str, bytes]]:
        """Those that are there, without a sync. One that went meanwhile is left out: the watch on the list will
        tell."""
        found: list[tuple[str, bytes]] = []
        for first in range(0, len(paths), BATCH_READS_MAX):
            some = paths[first : first + BATCH_READS_MAX]
            for path, node in zip(some, await self._ask(some, deadline, self._session.ask_again), strict=True):
                if isinstance(node, Exception):
                    raise node
                if node is not None:
                    found.append((path, node[0]))
        return found

    def _send(self) -> None:
        if self._paused and len(self._waiting) < BATCH_READS_MAX:
            return
        if self._waiting and len(self._batches) < BATCHES_IN_FLIGHT_MAX:
            loop = asyncio.get_running_loop()
            delay_s = self._pace.delay_s(loop.time()) if len(self._waiting) < BATCH_READS_MAX else 0.0
            if delay_s:
                self._paused = True
                loop.call_later(delay_s, self._go_on)
                return
            task = asyncio.create_task(self._carry_out(), name="node reads")
            self._batches.add(task)
            task.add_done_callback(self._next)

    def _go_on(self) -> None:
        self._paused = False
        self._send()

    def _next(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        if not task.cancelled():
            task.result()  # nothing is expected here; what comes is our own mistake and must be seen
        self._send()

    def _take(self) -> Iterator[_Read]:
        while self._waiting:
            read = self._waiting.popleft()
            if not read.found.done():  # else its caller has stopped waiting
                yield read

    async def _carry_out(self) -> None:
        batch = list(itertools.islice(self._take(), BATCH_READS_MAX))  # all that came in this turn of the loop
        if not batch:
            return
        self._send()
        deadline = self._session.deadline()
        try:
            nodes = await self._ask([read.path for read in batch], deadline, self._session.ask_synced)
        except (CoordinationUnavailable, ZookeeperError) as error:
            nodes = [error] * len(batch)
        except BaseException:
            for read in batch:
                read.found.cancel()
            raise
        for read, node in zip(batch, nodes, strict=True):
            if read.found.done():
                continue
            if isinstance(node, Exception):
                read.found.set_exception(node)
            else:
                read.found.set_result(node)

    async def _ask(self, paths: Sequence[str], deadline: float, ask: _Ask) -> list[Found | Exception]:
        """What there is at each path, or why that cannot be said. Raises `CoordinationUnavailable`."""
        if self._several_at_once and len(paths) > 1:
            try:
                found: list[Any] = await ask(lambda client: _multi_read(client, paths), deadline)
            except UnimplementedError:
                _log.info("ZooKeeper at %s is older than 3.6: nodes are read one by one", self._session.hosts)
                self._several_at_once = False
            else:
                return [self._found(node) for node in found]
        return list(await asyncio.gather(*(self._ask_one(path, deadline, ask) for path in paths)))

    def _found(self, node: Any) -> Found | Exception:
        if isinstance(node, NoAuthError):
            return CoordinationUnavailable(str(self._session.denied()))
        return None if isinstance(node, NoNodeError) else node

    async def _ask_one(self, path: str, deadline: float, ask: _Ask) -> Found | Exception:
        try:
            data, stat = await ask(lambda client: client.get_async(path), deadline)
        except NoNodeError:
            return None
        except ZookeeperError as error:
            refused: Exception = error
            return refused
        return data or b"", stat


def _multi_read(client: KazooClient, paths: Sequence[str]) -> Any:
    answer = client.handler.async_result()
    client._call(_MultiRead(paths), answer)  # noqa: SLF001 - as its own requests do: kazoo has no other way in for one of ours
    return answer
