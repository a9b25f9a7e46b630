"""A member of a queue group: the real keeper of what it holds, on a simulated wire, and an application that works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mq_client.cluster.deadline import Deadline
from mq_client.errors import LeaseLost
from mq_client.queueing.holdings import Credit, Terms
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.settling import ACK, RELEASE, Word, failed, rejected
from mq_client.queueing.shelf import Rows
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_to_bytes
from tests.mq_client.cluster.scripted import Clock, Scripted, told
from tests.simulation.sessions.leaders import GROUP, TOPIC, TOPIC_ID, Log
from tests.simulation.sessions.wire import Wire

LOOK_S: Final = 0.3
OUTCOMES: Final = (ACK, failed("once more"), RELEASE, rejected("never"))


class _Told:
    """In the place of the condition on which an application's threads wait."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self._then = then
        self._event = asyncio.Event()

    def notify(self) -> None:
        self.notify_all()

    def notify_all(self) -> None:
        self._event.set()
        self._then()

    async def wait(self, seconds: float) -> None:
        self._event.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass


class _Refreshes:
    """In the place of the thread that asks who leads."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._asked = False

    def ask(self, _topic: str, _doubted: str = "") -> None:
        if not self._asked:
            self._asked = True
            self._member.wire.later(self._member.wire.delay_s() * 2, self._answer)

    def _answer(self) -> None:
        self._asked = False
        self._member.hear_who_leads()

    def refusal(self, _topic: str) -> None:
        return None

    def stop(self) -> None:
        pass


class Member:
    """`hands`: how many records, or batches of `batch` records, its application works on at a time. `work_s`: how long
    that takes. `received`: how many records it was lent in all, by
    `leases`. `waiting`: hands that have nothing to do."""

    def __init__(
        self,
        name: str,
        logs: list[Log],
        wire: Wire,
        credit: Credit,
        random: Random,
        *,
        hands: int,
        batch: int,
        lease_ms: int,
        accept: bool,
        work_s: Callable[[], float],
        fault: Callable[[], bool],
        on_change: Callable[[Member], None],
    ) -> None:
        self.name, self.wire, self.random = name, wire, random
        self.logs, self.batch, self.work_s, self.fault = logs, batch, work_s, fault
        self.credit_max, self.opened_at = credit, asyncio.get_running_loop().time()
        self.waiting = self.received = self.leases = 0
        self.connection = Scripted(Clock())
        self.hear_who_leads()
        terms = Terms(TOPIC, GROUP, name, random.randbytes(16), credit, max(hands, batch), lease_ms, accept)
        self.keeper = Keeper(self.connection, terms, asyncio.get_running_loop().time)
        stand_ins: Any = _Told(lambda: on_change(self)), _Told(self._read_soon), _Refreshes(self)
        self.keeper.changed, self.keeper.unread, self.keeper._refresher = stand_ins
        self._reading = False
        self._grant = self.keeper.holdings.grant
        self.keeper.holdings.grant = self._granted  # type: ignore[method-assign]
        with self.keeper.lock:
            loop: Any = wire
            self.keeper.ensure_started(TOPIC_ID, loop)
        self.hands = [wire.spawn(self._work()) for _ in range(hands)]

    @property
    def held(self) -> int:
        """Records that have no outcome."""
        return self.keeper.holdings.held - self.keeper.holdings.settling

    @property
    def idle(self) -> bool:
        """Whether its application waits for records, and there are none on the way to it."""
        return bool(self.waiting) and self.keeper.holdings.hungry and not self.keeper.closing

    def _granted(self, lease: HeldLease, **given: Any) -> None:
        self.received += lease.open
        self.leases += 1
        self._grant(lease, **given)

    def hear_who_leads(self) -> None:
        info = pb.TopicInfo(name=TOPIC, topic_id=TOPIC_ID, schema=schema_to_bytes(RECORD_SCHEMA))
        for log in self.logs:
            info.partitions.add(partition=log.number, leader=log.home, leader_epoch=log.epoch, replicas=[1, 2, 3])
        self.connection._learn(told(info))
        if hasattr(self, "keeper"):
            self.keeper._wake()

    # ------------------------------------------------------------------ rows that do not come with their lease

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self.wire.later(self.wire.delay_s() * 2, self._read)

    def _read(self) -> None:
        self._reading = False
        keeper, holdings = self.keeper, self.keeper.holdings
        with keeper.lock:
            while holdings.unread and not keeper.closing:
                lease, first = holdings.unread.popleft()
                log = self.logs[lease.partition]
                keys = [log.keys[offset] for offset in lease.offsets[first:].tolist()]
                rows = [{"key": key, "value": b"", "headers": [], "timestamp": None} for key in keys]
                holdings.put(
                    Rows(lease, first, pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA), 1, TOPIC, False)
                )
            keeper.wake()
            keeper.changed.notify_all()

    # ------------------------------------------------------------------ the application

    async def _work(self) -> None:
        keeper = self.keeper
        while not keeper.closing:
            with keeper.lock:
                found = self._take()
                if found is None:
                    keeper.wake()
            if found is None:
                self.waiting += 1
                changed: Any = keeper.changed
                await changed.wait(LOOK_S)
                self.waiting -= 1
                continue
            lease, indexes = found
            await asyncio.sleep(self.work_s())
            if not keeper.terms.accept and not keeper.closing:
                self._settle(lease, indexes)

    def _take(self) -> tuple[HeldLease, Any] | None:
        """As `Queue` does."""
        keeper, holdings = self.keeper, self.keeper.holdings
        if self.batch > 1:
            lent = holdings.shelf.take_rows(self.batch)
            if lent is None:
                return None
            if keeper.terms.accept:
                holdings.end(lent.lease, lent.indexes, 4)
            else:
                lent.lease.begin_all(lent.indexes)
            keeper.want_more()
            return lent.lease, lent.indexes
        found = holdings.shelf.take()
        if found is None:
            return None
        lease, index, _ = found
        if keeper.terms.accept:
            holdings.finish(lease, index)
        else:
            lease.begin(index)
        keeper.want_more()
        return lease, np.array([index], dtype=np.int64)

    def _settle(self, lease: HeldLease, indexes: Any) -> None:
        word: Word = self.random.choice(OUTCOMES[1:]) if self.fault() else ACK
        try:
            if len(indexes) == 1:
                self.keeper.settle_one(lease, int(indexes[0]), word)
            else:
                self.keeper.settle(lease, indexes, word)
        except LeaseLost:
            pass

    def configure(self, records: int) -> None:
        """It may hold so many from now on."""
        with self.keeper.lock:
            credit = replace(self.keeper.terms.credit, records=records)
            self.keeper.terms = replace(self.keeper.terms, credit=credit)
            self.keeper.wake()

    def close(self) -> None:
        self.keeper.close_soon(Deadline(60_000))

    def kill(self) -> None:
        """Its process is gone, and says nothing more."""
        for hand in self.hands:
            hand.cancel()
        self.keeper._turns.waits = True  # type: ignore[union-attr]
        self.keeper.over = self.keeper.closing = True
