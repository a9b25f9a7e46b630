"""What queues are measured on: three brokers, topics of 3 replicas, members in processes of their own, and the counting
that each row ends with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.bench.processes import Helper
from benchmarks.queues.members import Told
from benchmarks.queues.tally import Ids, accepted_is, ids_of, values_of
from mq_client import Admin, Producer, QueueDescription, Reader
from mq_dev.local_cluster import LocalCluster

BROKERS: Final = 3
PARTITIONS: Final = 6
REPLICAS: Final = 3
RECORD_BYTES: Final = 100
GROUP: Final = "workers"
HEAR_S: Final = 150.0
WAIT_S: Final = 60.0
_POLL_S: Final = 0.02
_TABLE_ROWS: Final = 10_000

Where = tuple[str, str, str]


class Ground:
    """Owns the brokers. `work`: how much of a full run's records. `watch` is told what is going on."""

    def __init__(self, directory: Path, work: float, watch: Callable[[str], None]) -> None:
        self.directory = directory
        self.work = work
        self.watch = watch
        self._numbers = itertools.count(1)
        self._opened = ExitStack()

    @cached_property
    def cluster(self) -> LocalCluster:
        self.watch(f"starting {BROKERS} brokers and a ZooKeeper")
        return self._opened.enter_context(LocalCluster(self.directory / "cluster", BROKERS))

    @cached_property
    def admin(self) -> Admin:
        return self._opened.enter_context(Admin(self.cluster.bootstrap))

    def of(self, count: int) -> int:
        """Whole thousands, one at least."""
        return max(1, round(count * self.work / 1_000)) * 1_000

    def topic(self, *, partitions: int = PARTITIONS, durability: str = "fsync") -> str:
        name = f"queue-{next(self._numbers)}"
        self.admin.create_topic(name, partitions=partitions, replicas=REPLICAS, durability=durability)
        return name

    @contextmanager
    def queue(
        self, count: int, *, partitions: int = PARTITIONS, durability: str = "fsync", **settings: Any
    ) -> Iterator[Where]:
        """A topic of its own with so many records, in runs of one partition after the other, and a queue group on it.
        Both are deleted afterwards."""
        topic = self.topic(partitions=partitions, durability=durability)
        self.admin.declare_queue(topic, GROUP, **settings)
        if count:
            self.fill(topic, count, partitions)
        yield (self.cluster.bootstrap, topic, GROUP)
        self.admin.delete_topic(topic)

    def fill(self, topic: str, count: int, partitions: int) -> None:
        with Producer(self.cluster.bootstrap) as producer:
            for number, ids in enumerate(pieces(count)):
                values = pa.record_batch({"value": values_of(ids, RECORD_BYTES)})
                producer.publish_batch(topic, values, partition=number % partitions)

    def described(self, where: Where) -> QueueDescription:
        return self.admin.describe_queue(where[1], where[2])

    def check_accepted(self, where: Where, count: int) -> None:
        """By the brokers' own totals. Raises `Miscounted`."""
        found = self.described(where)
        accepted_is(count, found.accepted, found.ready + found.leased + found.delayed + found.doomed + found.parked)

    def ids_in(self, topic: str) -> Ids:
        """Of all records of a topic."""
        partitions = self.admin.describe_topic(topic).partitions
        reader = Reader(self.cluster.bootstrap)
        parts = [
            ids_of(batch.column("value"))
            for partition in range(len(partitions))
            for batch in reader.read(topic, partition, columns=["value"])
        ]
        reader.close()
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def until(self, what: str, holds: Callable[[], bool], wait_s: float = WAIT_S) -> float:
        """When it holds, by `time.monotonic`. Raises `TimeoutError`."""
        deadline = time.monotonic() + wait_s
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {wait_s:g} s: {what}")
            time.sleep(_POLL_S)
        return time.monotonic()

    def run(self, members: Sequence[tuple[Any, ...]], meanwhile: Callable[[], None] = lambda: None) -> Work:
        """Functions of `members.py` with their arguments, all begun at once; what they tell."""
        with ExitStack() as opened:
            helpers = [opened.enter_context(Helper(*member)) for member in members]
            for helper in helpers:
                helper.hear(HEAR_S)
            began = time.monotonic()
            for helper in helpers:
                helper.say("go")
            meanwhile()
            return Work(began, [helper.hear(HEAR_S) for helper in helpers])

    def __enter__(self) -> Ground:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


class Work:
    """What members told. `seconds`: from the word to begin, connecting included, to the last outcome's commit."""

    def __init__(self, began: float, told: Sequence[Told]) -> None:
        self.began = began
        self.told = told
        self.received = [each.received for each in told]
        self.settled = [each.settled for each in told]
        self.seconds = max((each.last for each in told if each.last), default=began) - began
        self.latencies_ms = [one for each in told for one in each.latencies_ms]


def pieces(count: int) -> Iterator[Ids]:
    """The ids of each table that is published."""
    for begin in range(0, count, _TABLE_ROWS):
        yield np.arange(begin, min(count, begin + _TABLE_ROWS), dtype=np.int64)
