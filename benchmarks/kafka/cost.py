"""What records in cost the brokers in processor time: the figure that other work on the machine disturbs least.

The same runs as in produce.py, `os` beside Kafka as it ships, with the three brokers' processor time taken around each.
What they use while nothing is sent is measured before each run and taken off. Kafka's controller and ZooKeeper are not
counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from benchmarks.bench.measure import Contestant, Readings
from benchmarks.bench.produce import SIZES
from benchmarks.kafka.arena import Arena
from benchmarks.kafka.compare import Compared, Comparison
from benchmarks.kafka.produce import BYTES, publish, publish_batch, run_perf, run_python


class Running(Protocol):
    """A broker's process, of either kind."""

    @property
    def pid(self) -> int | None: ...


Brokers: TypeAlias = Mapping[int, Running]

DURABILITY: Final = "os"
_IDLE_S: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_UTIME: Final = 11
"""Where user time stands in /proc/PID/stat, counted from behind the name; the system's is next."""

_ONE: Final = "publish"
_TABLES: Final = "publish_batch"
_JAVA: Final = "Java perf, 1 MB batches"
_CONFLUENT: Final = "confluent-kafka"


def measure(arena: Arena) -> list[Compared]:
    arena.start_both()
    compared: list[Compared] = []
    for label, size in reversed(SIZES.items()):
        group = f"processor time of the three brokers for records in, {label}, os / Kafka as it ships"
        megabytes = arena.scale.of(BYTES[label]) / 1e6
        ours, theirs = arena.cluster.brokers, arena.kafka.brokers
        runs: list[tuple[str, Brokers, Callable[[], Readings], float]] = [
            (_ONE, ours, partial(publish, arena, label, size, DURABILITY), megabytes),
            (_TABLES, ours, partial(publish_batch, arena, label, size, DURABILITY), megabytes),
            # Warming records too
            (_JAVA, theirs, partial(run_perf, arena, label, size, DURABILITY, _JAVA), 2 * megabytes),
            (_CONFLUENT, theirs, partial(run_python, arena, label, size, DURABILITY, _CONFLUENT), megabytes),
        ]
        contestants = [Contestant(name, partial(_metered, brokers, run, sent)) for name, brokers, run, sent in runs]
        asked = [
            Comparison(group, mine, other, "ms/MB", "ms/MB", "lower")
            for mine, other in ((_TABLES, _JAVA), (_ONE, _JAVA), (_ONE, _CONFLUENT))
        ]
        compared += arena.compare(contestants, asked)
    return compared


def _metered(brokers: Brokers, run: Callable[[], Readings], megabytes: float) -> Readings:
    pids = [broker.pid for broker in brokers.values() if broker.pid is not None]
    began, before = time.monotonic(), processor_s(pids)
    time.sleep(_IDLE_S)
    idle_rate = (processor_s(pids) - before) / (time.monotonic() - began)
    began, before = time.monotonic(), processor_s(pids)
    run()
    spent = processor_s(pids) - before - idle_rate * (time.monotonic() - began)
    return {"ms/MB": max(spent, 1 / _TICKS) * 1_000 / megabytes}


def processor_s(pids: Iterable[int]) -> float:
    """What these processes have used so far, user and system, all threads."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(each[_UTIME]) + int(each[_UTIME + 1]) for each in fields) / _TICKS
