"""One client process of a chaos run: does its work until standard input ends, and records all that it does and sees.

    python -m tests.chaos.client ROLE --name NAME --bootstrap ADDRESSES --history FILE --state FILE --topics t:3,u:2

Roles: `producer` publishes records and batches, by partition, by key and to one partition alone; `reader` reads by
offset and is pushed the same; `member` is one of a group; `transactor` stages and decides, and gives some up; `worker`
is lent records of work queues. May be killed at any moment: what it was about has an unknown outcome then. Ends with 3
if it could not finish its work in time once it was told to.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mq_client import Consumer, ConsumerRecord, OffsetOutOfRange, Producer, Reader, TritonMQError
from mq_client.transactions import TransactionClient
from tests.chaos.jobs import work_off
from tests.history.recording import Recorder

GROUP: Final = "chaos"
FINISH_S: Final = 60.0
BATCH: Final = 5
POLL_S: Final = 0.1
LAG_S: Final = 8.0
"""How far a reader lags, so that retention overtakes it."""

OTHER_TIMEOUT_MS: Final = 4_000
TRANSACTION_ROWS: Final = 6

Topics = dict[str, int]


class Work:
    """What every role has: who it is, where it records, when to end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.name: str = arguments.name
        self.bootstrap: str = arguments.bootstrap
        self.rate: float = arguments.rate
        self.state: Path = arguments.state
        self.topics: Topics = {name: int(count) for name, count in (t.split(":") for t in arguments.topics.split(","))}
        self.path: Path = arguments.history
        self.chance = random.Random(self.name)
        self.end = threading.Event()
        self.unfinished = False

    @contextmanager
    def recorder(self, suffix: str) -> Iterator[Recorder]:
        """A process of the history: this one may be several."""
        with Recorder(self.path.with_name(f"{self.path.name}{suffix}"), f"{self.name}{suffix}") as recorder:
            yield recorder

    def wait_for_end(self) -> None:
        """Standard input is a pipe that the parent holds: it ends when the parent says so, or is gone."""
        sys.stdin.buffer.read()
        self.end.set()


def outcome(error: BaseException) -> tuple[str, str]:
    """What an error means for what was attempted, and its words."""
    definite = isinstance(error, TritonMQError) and error.definite
    return ("fail" if definite else "unknown"), f"{type(error).__name__}: {error}"[:300]


# ---------------------------------------------------------------------- producer


def produce(work: Work) -> None:
    """Three in one process: patient ones keep trying for long, an impatient one gives up and goes on."""
    jobs = [(_by_partition, "p", 30_000), (_to_one_partition, "o", OTHER_TIMEOUT_MS), (_by_key, "k", 30_000)]
    threads = [threading.Thread(target=_publish, args=(work, *job)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_partition(work: Work, at: int) -> tuple[str, int | None]:
    places = [(topic, number) for topic, count in work.topics.items() for number in range(count)]
    return places[at % len(places)]


def _to_one_partition(work: Work, at: int) -> tuple[str, int | None]:
    topic = sorted(work.topics)[0]
    return topic, sum(work.name.encode()) % work.topics[topic]


def _by_key(work: Work, at: int) -> tuple[str, int | None]:
    return sorted(work.topics)[at % len(work.topics)], None


def _publish(work: Work, where: Callable[[Work, int], tuple[str, int | None]], suffix: str, timeout_ms: int) -> None:
    chance = random.Random(f"{work.name}{suffix}")
    with work.recorder(suffix) as recorder:
        producer = Producer(work.bootstrap, timeout_ms=timeout_ms, linger_ms=2)
        for at in itertools.count():
            if work.end.wait(chance.uniform(0.5, 1.5) / work.rate):
                break
            topic, partition = where(work, at)
            many = partition is not None and chance.random() < 0.1
            values = [f"{recorder.process}-{at}.{part}" for part in range(BATCH if many else 1)]
            number = recorder.invoke(topic, partition, values)
            try:
                if many:
                    table = pa.table({"value": pa.array([value.encode() for value in values], pa.binary())})
                    whole = producer.publish_batch(topic, table, partition=partition)
                    whole.add_done_callback(lambda done, number=number: _settled(recorder, number, done))  # type: ignore[misc]
                else:
                    key = None if partition is not None else f"k{at % 40}"
                    single = producer.publish(topic, values[0], key=key, partition=partition)
                    single.add_done_callback(lambda done, number=number: _settled(recorder, number, done))  # type: ignore[misc]
            except TritonMQError as error:
                state, words = outcome(error)
                recorder.write("send", state=state, id=number, error=words)
        try:
            producer.close()
        except TritonMQError as error:  # of records whose futures have told it already
            recorder.write("note", what="closed", error=str(error))


def _settled(recorder: Recorder, number: int, done: Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        state, words = outcome(error)
        recorder.write("send", state=state, id=number, error=words)
        return
    told = done.result()
    if hasattr(told, "places"):
        offsets = [
            offset
            for place in told.places
            for offset in range(place.base_offset, place.base_offset + place.record_count)
        ]
    else:
        offsets = [told.offset]
    recorder.write("send", state="ok", id=number, partition=told.partition, offsets=offsets)


# ---------------------------------------------------------------------- readers


def read(work: Work) -> None:
    """One by offset, one that lags, one pushed; all read each record of each partition once, from the first to the
    last."""
    threads = [
        threading.Thread(target=_follow, args=(work, suffix, pause_s))
        for suffix, pause_s in (("r", POLL_S), ("l", LAG_S))
    ]
    threads.append(threading.Thread(target=_listen, args=(work,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _follow(work: Work, suffix: str, pause_s: float) -> None:
    positions = {(topic, number): 0 for topic, count in work.topics.items() for number in range(count)}
    with work.recorder(suffix) as recorder, Reader(work.bootstrap, timeout_ms=OTHER_TIMEOUT_MS) as reader:
        deadline = None
        while True:
            ending = work.end.wait(pause_s)
            if ending and deadline is None:
                deadline = time.monotonic() + FINISH_S
            complete = True
            for topic in work.topics:
                try:
                    ends = reader.offsets(topic)
                    for number, (_, end) in ends.items():
                        complete &= _read_on(recorder, reader, positions, (topic, number), end)
                except TritonMQError as error:
                    complete = False
                    recorder.write("note", what="reading", error=outcome(error)[1])
            if ending and complete:
                return
            if deadline is not None and time.monotonic() > deadline:
                recorder.write("note", what="unfinished", positions=str(positions))
                work.unfinished = True
                return


def _read_on(
    recorder: Recorder, reader: Reader, positions: dict[tuple[str, int], int], place: tuple[str, int], end: int
) -> bool:
    """Whether it has come to `end`; what retention has taken before it could be read is written down."""
    topic, partition = place
    if positions[place] >= end:
        return True
    try:
        for piece in reader.read_stored(topic, partition, positions[place], end):
            values = [value.decode() for value in piece.batch.column("value").to_pylist()]
            offsets = list(range(piece.base_offset, piece.base_offset + len(values)))
            recorder.write("poll", topic=topic, partition=partition, offsets=offsets, values=values)
            positions[place] = offsets[-1] + 1
    except OffsetOutOfRange as error:
        if error.next_offset <= positions[place]:
            raise
        recorder.write("trimmed", topic=topic, partition=partition, offset=error.next_offset)
        positions[place] = error.next_offset
    return positions[place] >= end


class _Warnings(logging.Handler):
    """Counts how often a consumer's log says of a partition that it goes on elsewhere: all that a consumer says of
    it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.of[record.getMessage().partition(":")[0]] += 1


def _listen(work: Work) -> None:
    with work.recorder("c") as recorder:
        warnings = _Warnings()
        logging.getLogger("mq_client.consuming.subscription").addHandler(warnings)
        consumer = _started(work, recorder, None)
        if consumer is None:
            return
        positions: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] | None = None
        deadline = None
        while True:
            for record in _taken(consumer):
                key = record.topic, record.partition
                name = f"{record.topic}-{record.partition}"
                if record.offset > positions.get(key, 0) and warnings.of[name]:
                    warnings.of[name] -= 1  # one warning excuses one gap; without any it is a skip
                    recorder.write("trimmed", topic=key[0], partition=key[1], offset=record.offset)
                positions[key] = record.offset + 1
                value = record.value.decode()
                recorder.write("poll", topic=key[0], partition=key[1], offsets=[record.offset], values=[value])
            if not work.end.is_set():
                continue
            deadline = deadline or time.monotonic() + FINISH_S
            ends = ends or _ends(work)
            if ends is not None and all(positions.get(place, 0) >= end for place, end in ends.items()):
                break
            if time.monotonic() > deadline:
                recorder.write("note", what="unfinished", positions=str(positions), ends=str(ends))
                work.unfinished = True
                break
        consumer.stop()


def _ends(work: Work) -> dict[tuple[str, int], int] | None:
    try:
        with Reader(work.bootstrap, timeout_ms=OTHER_TIMEOUT_MS) as reader:
            return {(t, number): end for t in work.topics for number, (_, end) in reader.offsets(t).items()}
    except TritonMQError:
        return None


def _taken(consumer: Consumer) -> Iterator[ConsumerRecord]:
    """What is there, for a while at most."""
    until = time.monotonic() + POLL_S
    while time.monotonic() < until:
        record = consumer.take(timeout_ms=20)
        if record is not None:
            yield record


def _started(work: Work, recorder: Recorder, group: str | None) -> Consumer | None:
    """A consumer of all topics, from their beginnings; None if told to end before it could begin."""
    while not work.end.is_set():
        consumer = Consumer(work.bootstrap, group=group, start="earliest", settle_ms=50)
        try:
            consumer.subscribe(work.topics)
            consumer.start()
            return consumer
        except TritonMQError as error:
            recorder.write("note", what="subscribing", error=outcome(error)[1])
            consumer.stop()
            work.end.wait(POLL_S)
    return None


def join(work: Work) -> None:
    """A member of the group. Each record is written down before the next is asked for, which says that it is done
    with."""
    with work.recorder("") as recorder:
        consumer = _started(work, recorder, GROUP)
        if consumer is None:
            return
        while not work.end.is_set():
            for record in _taken(consumer):
                deliver(recorder, record)
        consumer.stop()


def deliver(recorder: Recorder, record: ConsumerRecord) -> None:
    value = record.value.decode()
    recorder.write(
        "deliver", group=GROUP, topic=record.topic, partition=record.partition, offsets=[record.offset], values=[value]
    )


# ---------------------------------------------------------------------- transactor


def transact(work: Work) -> None:
    """Micro-batches as Spark's sink has them: the same again after a crash, until it is decided; some are given up
    undecided."""
    query, life = work.name.rpartition(".")[::2]
    [(topic, partitions)] = work.topics.items()
    key = (query, topic)
    batch = int(work.state.read_text()) if work.state.exists() else 0
    with work.recorder("") as recorder, TransactionClient(work.bootstrap, timeout_ms=10_000) as client:
        for attempt in itertools.count():
            if work.end.wait(work.chance.uniform(0.5, 1.5) * 4 / work.rate):
                return
            given_up = work.chance.random() < 0.2
            name = f"{query}/{batch}" + (f"-{life}.{attempt}" if given_up else "")
            values = [f"{name}-{row}" for row in range(TRANSACTION_ROWS)]
            recorder.write("txn", state="invoke", id=name, topic=topic, values=values)
            try:
                stage = client.open_stage(key, batch, work.name)
                for number in range(partitions):
                    rows = pa.array([value.encode() for value in values[number::partitions]], pa.binary())
                    stage.add(topic, number, pa.table({"value": rows}))
                manifest = stage.finish()
            except TritonMQError as error:
                recorder.write("txn", state="fail", id=name, error=outcome(error)[1])  # nobody will decide on it
                continue
            if given_up:
                recorder.write("txn", state="fail", id=name)
                continue
            try:
                client.decide(key, batch, work.name, manifest)
            except TritonMQError as error:
                state, words = outcome(error)
                recorder.write("txn", state=state, id=name, error=words)
                continue
            recorder.write("txn", state="ok", id=name)
            batch += 1
            work.state.write_text(str(batch))


ROLES: Final[dict[str, Callable[[Work], None]]] = {
    "producer": produce,
    "reader": read,
    "member": join,
    "transactor": transact,
    "worker": work_off,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.client", description=__doc__)
    parser.add_argument("role", choices=ROLES)
    for name in ("--name", "--bootstrap", "--topics"):
        parser.add_argument(name, required=True)
    for name in ("--history", "--state"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--rate", type=float, default=20.0, help="operations a second, of each thread that writes")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    work = Work(arguments)
    threading.Thread(target=work.wait_for_end, daemon=True).start()
    ROLES[arguments.role](work)
    return 3 if work.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
