"""Leaders that a test plays by itself, question by question, for the keeper of a queue's leases. Rows come from
nowhere: a record's one column is its offset."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from mq_client.cluster.deadline import Deadline
from mq_client.consuming.slices import StoredSlice
from mq_client.errors import TritonMQError
from mq_client.queueing import reading
from mq_client.queueing.keeper import Keeper
from mq_client.queueing.places import Credit, Terms
from mq_client.queueing.reading import RowReader
from mq_client.queueing.records import LeasedBatch, LeasedRecord
from mq_protocol import mq_pb2 as pb
from tests.mq_client.cluster.scripted import Clock, Scripted, told, topic_info

SCHEMA = pa.schema([("n", pa.int64())])
WAIT_S = 30.0


class _Rows:
    """In the place of `Reader`."""

    def __init__(self, *_: object) -> None:
        pass

    def read_stored(self, _topic: str, _partition: int, start: int, end: int) -> Iterator[StoredSlice]:
        batch = pa.RecordBatch.from_pydict({"n": list(range(start, end))}, schema=SCHEMA)
        yield StoredSlice(start, end, 1, batch, None, 10 * (end - start))


@dataclass
class Asked:
    """A question that waits for its answer. `broken`: nobody waits for it any more."""

    address: str
    method: str
    request: Any
    heard: Callable[[Any], None]
    broken: bool = False

    def answer(self, answer: Message | TritonMQError) -> None:
        self.heard(answer)


class Leaders(Scripted):
    """A cluster whose questions about leases and outcomes wait in `questions`."""

    def __init__(self, *leaders: int) -> None:
        super().__init__(Clock())
        self.questions: queue.Queue[Asked] = queue.Queue()
        self.lead(*leaders)

    def lead(self, *leaders: int, epoch: int = 1) -> None:
        """The partitions have these leaders now, and everybody has heard of it."""
        answer = told(topic_info(*leaders, epoch=epoch, schema=SCHEMA))
        self.brokers_say = {f"b:{number}": answer for number in (1, 2, 3)}
        self._learn(answer)

    def ask_later(
        self,
        address: str,
        method: str,
        request: Message,
        response: type[Any],
        deadline: Deadline,
        heard: Callable[[Any], None],
    ) -> Callable[[], object]:
        asked = Asked(address, method, request, heard)
        self.questions.put(asked)

        def cancel() -> None:
            asked.broken = True

        return cancel

    def next(self, method: str, **fields: object) -> Asked:
        """The next question, which must be this one. Extensions are passed over unless they are asked for."""
        while True:
            asked = self.questions.get(timeout=WAIT_S)
            extends = method != "Extend" and asked.method == "Settle" and _extends(asked.request)
            if extends:
                asked.answer(done(asked))
                continue
            assert asked.method == ("Settle" if method == "Extend" else method), asked
            for name, value in fields.items():
                assert getattr(asked.request, name) == value, (name, asked.request)
            return asked

    def nothing_within(self, seconds: float) -> None:
        with pytest.raises(queue.Empty):
            raise AssertionError(self.questions.get(timeout=seconds))


class Member:
    """Owns a keeper, and takes records as `Queue` does."""

    def __init__(self, leaders: Leaders, monkeypatch: pytest.MonkeyPatch, in_flight_max: int = 10) -> None:
        monkeypatch.setattr(reading, "Reader", _Rows)
        terms = Terms("t", "g", "m", b"k" * 16, Credit(in_flight_max, 1_000_000), 1, 0, False)
        self.keeper = Keeper(leaders, terms)
        rows = RowReader(self.keeper)
        with self.keeper.lock:
            self.keeper.ensure_started("x")
            rows.ensure_started()

    def take(self) -> LeasedRecord:
        with self.keeper.lock:
            while True:
                found = self.keeper.holdings.shelf.take()
                if found is not None:
                    held, index, record = found
                    held.begin(index)
                    self.keeper.note_taken()
                    return LeasedRecord.of(record, self.keeper, held, index)
                assert self.keeper.changed.wait(WAIT_S), "nothing came"

    def take_batch(self, rows_max: int) -> LeasedBatch:
        with self.keeper.lock:
            while True:
                lent = self.keeper.holdings.shelf.take_rows(rows_max)
                if lent is not None:
                    lent.lease.begin_all(lent.indexes)
                    return LeasedBatch(self.keeper, lent.lease, lent.indexes, lent.rows)
                assert self.keeper.changed.wait(WAIT_S), "nothing came"

    def close(self, timeout_ms: float = 10_000) -> None:
        self.keeper.close_soon(Deadline(timeout_ms))


def lent(
    entry: int,
    first: int,
    count: int,
    *,
    lease_ms: int = 30_000,
    ready: bool = False,
    order: pb.QueueOrder.ValueType = pb.ORDER_NONE,
) -> pb.LeaseResponse:
    return pb.LeaseResponse(
        lease=pb.LeaseId(leader_epoch=1, entry=entry),
        ranges=[first, count],
        deliveries=[1],
        failures=[0],
        lease_ms=lease_ms,
        ready=ready,
        order=order,
    )


def done(asked: Asked, *lost: int) -> pb.SettleResponse:
    """All of it is committed, and these gaps and lengths of the first line are lost."""
    answers = [pb.SettleAnswer() for _ in asked.request.settles]
    if lost:
        answers[0].lost.extend(lost)
    return pb.SettleResponse(answers=answers)


def said(asked: Asked) -> list[tuple[int, list[int]]]:
    return [(one.outcome, list(one.ranges)) for one in asked.request.settles]


def _extends(request: pb.SettleRequest) -> bool:
    return all(one.outcome == pb.OUTCOME_EXTEND for one in request.settles)
