"""Members of a queue group as processes of their own. Each function runs in a child (`Helper`), says when it is ready,
begins when told, and tells what it received and settled, and when.

Times are of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import numpy as np

from benchmarks.queues.tally import Ids, id_of, ids_of
from mq_client import LeasedBatch, Queue

IDLE_MS: Final = 2_500.0
"""After so long without a record a member takes it that there are no more. Not counted as time of the row."""

POISON_EVERY: Final = 1_000
FAILS_EVERY: Final = 10
TIMED_EVERY: Final = 20
"""Of records that are settled one by one: those that come together are committed together."""

Work = Literal["ack", "reject", "some fail"]


@dataclass(slots=True)
class Told:
    """What a member tells at its end. An id is in `settled` once for each outcome that was committed. `first`, `last`:
    when the first record came, and when the last outcome was committed."""

    received: Ids
    settled: Ids
    first: float
    last: float
    latencies_ms: list[float] = field(default_factory=list)


class _Log:
    """What one member saw; its outcomes are counted when their futures end. Raises the first error of one."""

    def __init__(self) -> None:
        self._received: list[Any] = []
        self._waiting: list[tuple[Any, Future[None]]] = []
        self._lock = threading.Lock()
        self._first = 0.0
        self._last = 0.0

    def note(self, received: Any) -> None:
        if not self._received:
            self._first = time.monotonic()
        self._received.append(received)

    def outcome(self, ids: Any, future: Future[None], *, timed: bool = True) -> None:
        """`timed`: note when it was committed. A future that is asked something costs more than one that is not."""
        if timed:
            future.add_done_callback(self._done)
        self._waiting.append((ids, future))

    def _done(self, _future: Future[None]) -> None:
        self._last = time.monotonic()

    def wait(self, timeout_s: float = 120.0) -> None:
        for _ids, future in self._waiting:
            future.result(timeout_s)

    def told(self) -> Told:
        self.wait(0)
        received, settled = _flat(self._received), _flat([ids for ids, _ in self._waiting])
        return Told(received, settled, self._first, self._last)


def _flat(parts: list[Any]) -> Ids:
    return np.concatenate([np.atleast_1d(np.asarray(part, dtype=np.int64)) for part in parts] or [np.empty(0, "i8")])


def _begin(pipe: Connection) -> None:
    pipe.send("ready")
    pipe.recv()


def batches(pipe: Connection, where: tuple[str, str, str], rows: int, work: Work) -> None:
    """Rows of up to `rows` at a time, settled together."""
    _begin(pipe)
    log = _Log()
    with Queue(*where, in_flight_max=4 * rows, idle_ms=IDLE_MS) as queue:
        for batch in queue.batches(rows):
            ids = ids_of(batch.rows.column("value"))
            log.note(ids)
            if work == "some fail":
                _settle_some(log, batch, ids)
            elif work == "reject":
                log.outcome(ids, batch.reject(None, "not wanted"))
            else:
                log.outcome(ids, batch.ack())
    pipe.send(log.told())


def _settle_some(log: _Log, batch: LeasedBatch, ids: Ids) -> None:
    """Poison fails each time, one of ten others the first time."""
    poison = ids % POISON_EVERY == POISON_EVERY - 1
    fails = poison | ((ids % FAILS_EVERY == 0) & (batch.failures == 0))
    if fails.any():
        # The future tells of these rows' outcome. They are not settled, so that they are not counted.
        log.outcome([], batch.fail(fails, "not this time"))
    if not fails.all():
        log.outcome(ids[~fails], batch.ack(~fails))


def one_by_one(pipe: Connection, where: tuple[str, str, str], prefetch: int, stamped: bool) -> None:
    """Each record by itself. `stamped`: its value says after the id when it was due, by `time.time_ns`."""
    _begin(pipe)
    log = _Log()
    latencies: list[float] = []
    with Queue(*where, in_flight_max=prefetch, idle_ms=IDLE_MS) as queue:
        for number, record in enumerate(queue):
            ident = id_of(record.value)
            log.note(ident)
            future = record.ack()
            if stamped:
                future.add_done_callback(_lateness(int.from_bytes(record.value[8:16], "little"), latencies))
            log.outcome(ident, future, timed=number % TIMED_EVERY == 0)
    told = log.told()
    told.latencies_ms = latencies
    pipe.send(told)


def _lateness(due_ns: int, latencies: list[float]) -> Callable[[Future[None]], None]:
    return lambda _future: latencies.append((time.time_ns() - due_ns) / 1e6)


def workers(pipe: Connection, where: tuple[str, str, str], count: int) -> None:
    """So many members in one process, each holding one record at a time. A latency is of one job: from asking for a
    record until its outcome is committed."""
    logs = [_Log() for _ in range(count)]
    latencies: list[float] = []
    queues = [Queue(*where, in_flight_max=1, idle_ms=IDLE_MS) for _ in range(count)]

    def work(queue: Queue, log: _Log) -> None:
        with queue:
            while True:
                began = time.monotonic()
                if (record := queue.take(IDLE_MS)) is None:
                    return
                ident = id_of(record.value)
                log.note(ident)
                future = record.ack()
                log.outcome(ident, future)
                future.result(IDLE_MS * 10 / 1_000)
                latencies.append((time.monotonic() - began) * 1_000)

    _begin(pipe)
    pipe.send(_together(work, queues, logs, latencies))


def _together(
    work: Callable[[Queue, _Log], None], queues: list[Queue], logs: list[_Log], latencies: list[float]
) -> Told:
    """Each queue in a thread. Raises the first error of one."""
    errors: list[Exception] = []

    def run(queue: Queue, log: _Log) -> None:
        try:
            work(queue, log)
        except Exception as error:  # noqa: BLE001 - it is raised below, in the thread that is waited for
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in zip(queues, logs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    found = [told for told in (log.told() for log in logs) if len(told.received)]
    received, settled = (np.concatenate([getattr(told, name) for told in found]) for name in ("received", "settled"))
    first, last = min(told.first for told in found), max(told.last for told in found)
    return Told(received, settled, first, last, latencies)


def holding(pipe: Connection, where: tuple[str, str, str], count: int, pieces: int) -> None:
    """Take `count` records and say so. Settle as many as is then said, in a random order, `pieces` together; say when
    the first outcome was committed. The rest is given back."""
    _begin(pipe)
    log = _Log()
    held: list[tuple[LeasedBatch, Ids]] = []
    with Queue(*where, in_flight_max=count, in_flight_bytes_max=256 << 20, idle_ms=20_000) as queue:
        found = queue.batches(count)
        while sum(len(batch) for batch, _ in held) < count and (batch := next(found, None)) is not None:
            ids = ids_of(batch.rows.column("value"))
            log.note(ids)
            held.append((batch, ids))
        pipe.send(sum(len(batch) for batch, _ in held))
        settle: int = pipe.recv()
        order = np.random.default_rng(0).permutation(count)[:settle]
        starts = np.cumsum([0, *(len(batch) for batch, _ in held)])
        for begin in range(0, settle, pieces):
            piece = np.sort(order[begin : begin + pieces])
            for at, (batch, ids) in enumerate(held):
                mask = np.zeros(len(batch), dtype=np.bool_)
                mask[piece[(piece >= starts[at]) & (piece < starts[at + 1])] - starts[at]] = True
                if mask.any():
                    log.outcome(ids[mask], batch.ack(mask))
            if not begin:
                log.wait()
                pipe.send(time.monotonic())
        log.wait()
    pipe.send(log.told())


def arrivals(pipe: Connection, where: tuple[str, str, str], due_us: list[int], per_batch: int, idle_s: float) -> None:
    """Record number n is due at `due_us[n // per_batch]`. A latency is from then until the member has it."""
    _begin(pipe)
    log, late = _Log(), []
    due = np.array(due_us, dtype=np.int64)
    with Queue(*where, in_flight_max=10_000, idle_ms=idle_s * 1_000) as queue:
        for batch in queue.batches(1_000):
            now_us = time.time_ns() // 1_000
            ids = ids_of(batch.rows.column("value"))
            log.note(ids)
            late.append((now_us - due[ids // per_batch]) / 1_000)
            log.outcome(ids, batch.ack())
    told = log.told()
    told.latencies_ms = np.concatenate(late).tolist()
    pipe.send(told)


def in_order(pipe: Connection, where: tuple[str, str, str], count: int, rows: int) -> None:
    """So many members in one process, each of which settles up to `rows` together."""
    logs = [_Log() for _ in range(count)]
    queues = [Queue(*where, in_flight_max=rows, idle_ms=IDLE_MS) for _ in range(count)]

    def work(queue: Queue, log: _Log) -> None:
        with queue:
            for batch in queue.batches(rows):
                ids = ids_of(batch.rows.column("value"))
                log.note(ids)
                log.outcome(ids, batch.ack())

    _begin(pipe)
    pipe.send(_together(work, queues, logs, []))


def with_outputs(pipe: Connection, where: tuple[str, str, str], rows: int, target: str) -> None:
    """Rows of up to `rows` at a time, settled with as many records published to `target`."""
    _begin(pipe)
    log = _Log()
    with Queue(*where, in_flight_max=4 * rows, idle_ms=IDLE_MS) as queue:
        for number, batch in enumerate(queue.batches(rows)):
            ids = ids_of(batch.rows.column("value"))
            log.note(ids)
            outputs = queue.outputs()
            outputs.publish_batch(target, batch.rows.select(["value"]), partition=number % 6)
            log.outcome(ids, batch.ack(outputs=outputs))
    pipe.send(log.told())
