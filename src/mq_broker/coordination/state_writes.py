"""Compare-and-sets gathered into transactions: what a lost broker makes necessary is thousands of them at once.

A lone write goes out at once. While `BATCHES_IN_FLIGHT_MAX` transactions are unanswered, or many were sent just now
(pace.py), what comes waits and leaves together. A transaction is all or nothing, and these writes have nothing to do
with each other: if one is refused, the others of its batch go out again singly. Measured on two cores with one server:
3,000 writes a second one a question, 20,000 gathered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError, ZookeeperError

from mq_broker.coordination.kazoo_session import AnswerLost, KazooSession
from mq_broker.coordination.pace import Pace
from mq_broker.core.messages import CasOutcome

_log = logging.getLogger(__name__)

Outcome = tuple[CasOutcome, int]

BATCH_WRITES_MAX = 100
BATCH_BYTES_MAX = 256 << 10
BATCHES_IN_FLIGHT_MAX = 4

_REFUSED: Outcome = (CasOutcome.REFUSED, -1)
_UNKNOWN: Outcome = (CasOutcome.UNKNOWN, -1)


@dataclass(slots=True)
class _Write:
    path: str
    data: bytes
    version: int
    outcome: asyncio.Future[Outcome]


class StateWrites:
    """Owns the writes that wait and those in flight. Every write is answered by its deadline, by UNKNOWN if need be."""

    def __init__(self, session: KazooSession) -> None:
        self._session = session
        self._waiting: deque[_Write] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._pace = Pace()
        self._paused = False

    async def write(self, path: str, data: bytes, version: int) -> Outcome:
        """(DONE, new version), (REFUSED, -1) or (UNKNOWN, -1)."""
        write = _Write(path, data, version, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._send()
        try:
            async with asyncio.timeout_at(self._session.deadline()):
                return await write.outcome
        except TimeoutError:
            return _UNKNOWN

    def _send(self) -> None:
        if self._paused and len(self._waiting) < BATCH_WRITES_MAX:
            return
        while self._waiting and len(self._batches) < BATCHES_IN_FLIGHT_MAX:
            loop = asyncio.get_running_loop()
            delay_s = self._pace.delay_s(loop.time()) if len(self._waiting) < BATCH_WRITES_MAX else 0.0
            if delay_s:
                self._paused = True
                loop.call_later(delay_s, self._go_on)
                return
            batch: list[_Write] = []
            size = 0
            while self._waiting and len(batch) < BATCH_WRITES_MAX and size < BATCH_BYTES_MAX:
                write = self._waiting.popleft()
                size += len(write.data)
                if not write.outcome.done():  # else its caller has stopped waiting, and it need not happen
                    batch.append(write)
            if batch:
                task = asyncio.create_task(self._carry_out(batch), name="state writes")
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

    async def _carry_out(self, batch: Sequence[_Write]) -> None:
        if len(batch) > 1 and await self._together(batch):
            return
        await asyncio.gather(*(self._singly(write) for write in batch if not write.outcome.done()))

    async def _together(self, batch: Sequence[_Write]) -> bool:
        """Whether all are answered. If not, none of those that are not has happened."""

        def build(transaction: TransactionRequest) -> None:
            for write in batch:
                transaction.set_data(write.path, write.data, write.version)

        try:
            stats = await self._session.commit(build, self._session.deadline())
        except (BadVersionError, NoNodeError):
            return False
        except (AnswerLost, ZookeeperError) as error:
            _log.warning("whether %d state nodes were written is unknown: %s", len(batch), error)
            for write in batch:
                _settle(write, _UNKNOWN)
            return True
        for write, stat in zip(batch, stats, strict=True):
            _settle(write, (CasOutcome.DONE, int(stat.version)))
        return True

    async def _singly(self, write: _Write) -> None:
        try:
            stat = await self._session.ask(
                lambda client: client.set_async(write.path, write.data, write.version), self._session.deadline()
            )
        except (BadVersionError, NoNodeError):
            _settle(write, _REFUSED)
        except (AnswerLost, ZookeeperError) as error:
            _log.warning("whether %s was written from version %d is unknown: %s", write.path, write.version, error)
            _settle(write, _UNKNOWN)
        else:
            _settle(write, (CasOutcome.DONE, int(stat.version)))


def _settle(write: _Write, outcome: Outcome) -> None:
    if not write.outcome.done():
        write.outcome.set_result(outcome)
