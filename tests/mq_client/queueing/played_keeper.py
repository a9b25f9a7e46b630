"""The keeper of a queue's leases without its thread: the test takes its turns, sets its clock and plays the leaders."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mq_client.errors import TritonMQError
from mq_client.queueing import keeper as keeper_module
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.leases import HeldLease
from mq_client.queueing.places import Credit, Place, Terms
from mq_client.queueing.shelf import Rows
from tests.mq_client.cluster.scripted import Clock
from tests.mq_client.queueing.played_leaders import SCHEMA, Asked, Leaders, lent


class _Work:
    """In the place of the condition on which the thread waits. `woken`: how often somebody woke it."""

    def __init__(self) -> None:
        self.woken = 0
        self.waits: list[float] = []

    def notify(self) -> None:
        self.woken += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


class _Refreshes:
    """In the place of what asks who leads. `asked`: the addresses that were doubted, "" for a look."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refused: TritonMQError | None = None
        self.stopped = False

    def ask(self, topic: str, doubted: str = "") -> None:
        assert topic == "t"
        self.asked.append(doubted)

    def refusal(self, topic: str) -> TritonMQError | None:
        assert topic == "t"
        return self.refused

    def stop(self) -> None:
        self.stopped = True


class Played:
    """A keeper whose turns the test takes. Bytes: a record takes 10 once it was read."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *leaders: int,
        in_flight_max: int = 10,
        bytes_max: int = 1_000_000,
        accept: bool = False,
        lease_ms: int = 0,
        priority: int = 0,
        filter_text: str = "",
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr(keeper_module, "time", self.clock)
        self.leaders = Leaders(*(leaders or (1,)))
        credit = Credit(in_flight_max, bytes_max)
        terms = Terms("t", "g", "m", b"k" * 16, credit, 1, lease_ms, accept, priority, filter_text)
        self.keeper = Keeper(self.leaders, terms)
        self.work, self.refreshes = _Work(), _Refreshes()
        stand_ins: Any = self.work, self.refreshes
        self.keeper._work, self.keeper._refresher = stand_ins
        self.keeper.topic_id = "x"
        self.keeper._thread = threading.current_thread()
        self.ended = False

    @property
    def place(self) -> Place:
        return self.keeper.holdings.places[0]

    def rest(self) -> float:
        """Take turns until there is nothing to do. For how many seconds it would wait then; 0 at the end."""
        waited = len(self.work.waits)
        for _ in range(100):
            if not self.keeper._turn():
                self.ended = True
                return 0.0
            if len(self.work.waits) > waited:
                return self.work.waits[-1]
        raise AssertionError("it never comes to rest")

    def pass_s(self, seconds: float) -> float:
        self.clock.now += seconds
        return self.rest()

    def asked(self) -> list[Asked]:
        """The questions since the last call, after all turns that are due."""
        self.rest()
        found = []
        while True:
            try:
                found.append(self.leaders.questions.get_nowait())
            except queue.Empty:
                return found

    def one(self, method: str) -> Asked:
        [asked] = self.asked()
        assert asked.method == method, asked
        return asked

    def lend(self, count: int, entry: int = 5, first: int = 0, **fields: Any) -> HeldLease:
        """Partition 0 lends so many records, and their rows are read. What is asked then is left to the test."""
        [asked] = [each for each in self.asked() if each.method == "Lease" and each.request.partition == 0]
        asked.answer(lent(entry, first, count, **fields))
        with self.keeper.lock:
            while self.keeper._heard:
                self.keeper._heard.popleft()(self.clock.now)
        return self.read()

    def read(self) -> HeldLease:
        """As the reading thread does."""
        holdings = self.keeper.holdings
        lease, first = holdings.unread.popleft()
        with self.keeper.lock:
            self.keeper.note_size(lease, 10.0)
            offsets = lease.offsets[first:].tolist()
            batch = pa.RecordBatch.from_pydict({"n": offsets}, schema=SCHEMA)
            holdings.put(Rows(lease, first, batch, 1, "t", True))
        return lease

    def take(self) -> tuple[HeldLease, int]:
        """The application is given the next record."""
        with self.keeper.lock:
            found = self.keeper.holdings.shelf.take()
            assert found is not None
            lease, index, _ = found
            if self.keeper.terms.accept:
                self.keeper.holdings.finish(lease, index)
            else:
                lease.begin(index)
            self.keeper.note_taken()
        return lease, index


def places(*indexes: int) -> Any:
    return np.array(indexes, dtype=np.int64)
