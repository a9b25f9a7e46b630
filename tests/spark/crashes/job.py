"""One query under test: its input, its outputs, its checkpoint and its driver, and whether what came out is what went
in."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mq_client import Producer, Reader
from mq_spark.datasource.failpoints import FAIL
from tests.cluster.harness import wait_until
from tests.spark.crashes.brokers import FailingBrokers
from tests.spark.crashes.driver import Specification
from tests.spark.crashes.judging import Verdict, compare, disorder, micro_batches_of, places_of_files
from tests.spark.crashes.spark_processes import Driver

PORTION_ROWS = 40
REPEATED_EVERY = 10
"""Each tenth row goes in twice: what comes out is compared as a multiset."""

INPUT_PARTITIONS, OUTPUT_PARTITIONS = 2, 3
QUIET_S = 300.0
"""For machines that have much else to do."""


class Doubled(AssertionError):
    """More has come out than went in."""


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where a query runs: Spark's master, settings, home, and the JVMs' options. `options`: the query's own."""

    master: str
    settings: dict[str, str]
    home: Path
    jvm: str
    options: Mapping[str, str] = field(default_factory=dict)


class Points:
    """Owns the directory in which failpoints are armed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def arm(self, name: str, *, fail: bool = False) -> None:
        waiting = self.directory / f"{name}.new"
        waiting.write_text(FAIL if fail else "")
        waiting.rename(self.directory / name)

    def wait(self, name: str) -> int:
        """The id of the process that has reached the point and is held there; 0 for one that was told to fail."""
        mark = self.directory / f"{name}.reached"
        wait_until(mark.exists, f"somebody reaches {name}", QUIET_S)
        text = mark.read_text()
        return 0 if text == FAIL else int(text)

    def release(self) -> None:
        """Nothing is armed any more, and whoever is held goes on."""
        for path in self.directory.iterdir():
            path.unlink(missing_ok=True)


class Job:
    """Owns a driver and a producer. Rows are numbers; with two outputs the even ones belong into the first."""

    def __init__(
        self,
        brokers: FailingBrokers,
        kind: str,
        scratch: Path,
        spark: SparkPlace,
        *,
        forgetful: bool = False,
    ) -> None:
        """`forgetful`: before each start of a driver the checkpoint is given another query id. Exactness must be lost
        with it."""
        self.brokers = brokers
        self.kind = kind
        self.scratch = scratch
        self.checkpoint = scratch / "checkpoint"
        self.from_files = kind.startswith("repartition")
        self.input = str(scratch / "input") if self.from_files else f"{scratch.name}.in"
        self.outputs = [f"{scratch.name}.{name}" for name in (("even", "odd") if kind.endswith("route") else ("out",))]
        self.expected: Counter[tuple[str, str]] = Counter()
        self._forgetful = forgetful
        self._places: list[tuple[str, int, int]] = []
        self._portions: dict[str, int] = {}
        self._number = 0
        scratch.mkdir(parents=True)
        specification = Specification(
            spark.master,
            brokers.bootstrap,
            self.input,
            self.from_files,
            self.outputs,
            str(self.checkpoint),
            spark.settings,
            spark.jvm,
            dict(spark.options),
        )
        self.driver = Driver(specification, scratch, spark.home)
        self._producer = Producer(brokers.bootstrap, timeout_ms=60_000)

    # ------------------------------------------------------------------ its life

    def begin(self) -> None:
        """Make the topics, let the first rows in, start the driver, and wait until they have come out."""
        for topic in self.outputs:
            self._create(topic, OUTPUT_PARTITIONS)
        if self.from_files:
            Path(self.input).mkdir()
        else:
            self._create(self.input, INPUT_PARTITIONS)
        self.publish()
        self.start_driver()
        self.until_quiet()

    def _create(self, topic: str, partitions: int) -> None:
        self.brokers.admin.create_topic(topic, partitions=partitions, replicas=self.brokers.replicas, durability="os")

    def start_driver(self) -> None:
        metadata = self.checkpoint / "metadata"
        if self._forgetful and metadata.exists():
            metadata.write_text(json.dumps({"id": f"00000000-0000-0000-0000-{time.time_ns() % 10**12:012d}"}))
            (self.checkpoint / ".metadata.crc").unlink(missing_ok=True)
        self.driver.start()

    def end(self) -> None:
        self.driver.kill()
        self._producer.close()

    @property
    def topics(self) -> list[str]:
        return self.outputs if self.from_files else [*self.outputs, self.input]

    @property
    def key(self) -> tuple[str, str]:
        """The query's with the coordinator."""
        query_id: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return query_id, self.outputs[0] if len(self.outputs) == 1 else ""

    # ------------------------------------------------------------------ in

    def publish(self) -> None:
        """Let the next rows in: a file, or records in every partition of the input topic."""
        values = [str(self._number + place) for place in range(PORTION_ROWS)]
        values += values[::REPEATED_EVERY]
        self._number += PORTION_ROWS
        portion = len(set(self._portions.values()))
        if self.from_files:
            waiting = self.scratch / "waiting.txt"
            waiting.write_text("\n".join(values) + "\n")
            waiting.rename(Path(self.input) / _file_name(portion))
        else:
            sent = [
                (value, self._producer.publish(self.input, value.encode(), key=value[-1:].encode())) for value in values
            ]
            placed = [(value, future.result(60)) for value, future in sent]
            self._places += [(value, where.partition, where.offset) for value, where in placed]
        self._portions.update(dict.fromkeys(values, portion))
        self.expected.update((self.outputs[int(value) % len(self.outputs)], value) for value in values)

    # ------------------------------------------------------------------ out

    def visible(self, topic: str | None = None) -> int:
        """How many rows readers see in an output, or in all."""
        topics = self.outputs if topic is None else [topic]
        return sum(end - start for each in topics for start, end in self.brokers.admin.offsets(each).values())

    def until_quiet(self) -> None:
        """Wait until all rows are out and Spark has committed its last micro-batch. Raises `Doubled`, and
        `AssertionError` when it takes too long."""

        def quiet() -> bool:
            if not self.driver.runs:
                raise AssertionError(f"the driver has ended:\n{self.driver.log.read_text()[-3_000:]}")
            total = self.visible()
            if total > self.expected.total():
                raise Doubled(f"{total} rows came out, {self.expected.total()} went in")
            return total == self.expected.total() and self.last("commits") == self.last("offsets") >= 0

        wait_until(quiet, f"{self.expected.total()} rows are out and their micro-batch committed", QUIET_S)

    def last(self, log: str) -> int:
        """The newest micro-batch in one of the checkpoint's logs; -1 if there is none."""
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def forget(self, log: str, batch: int) -> None:
        """Remove a file of the checkpoint, as if the driver had died before it was there."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / log / name).unlink(missing_ok=True)

    def verdict(self) -> Verdict:
        logs = self._read()
        found = Counter((name.rpartition("-")[0], value) for name, values in logs.items() for value in values)
        compared = compare(self.expected, found)
        return Verdict(compared.duplicates, compared.losses, disorder(logs, self._micro_batches()))

    def _read(self) -> dict[str, list[str]]:
        """Every output partition's values, by `topic-partition`."""
        logs: dict[str, list[str]] = {}
        with contextlib.closing(Reader(self.brokers.bootstrap)) as reader:
            for topic in self.outputs:
                for partition, (start, end) in self.brokers.admin.offsets(topic).items():
                    batches = reader.read(topic, partition, start, end)
                    values = [value.decode() for batch in batches for value in batch.column("value").to_pylist()]
                    logs[f"{topic}-{partition}"] = values
        return logs

    def _micro_batches(self) -> dict[str, int]:
        ends: dict[int, dict[int, int]] = {}
        for path in (self.checkpoint / "offsets").glob("[0-9]*"):
            offsets: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])
            end = {0: offsets["logOffset"] + 1} if self.from_files else offsets[self.input]
            ends[int(path.name)] = {int(partition): int(offset) for partition, offset in end.items()}
        return micro_batches_of(self._file_places() if self.from_files else self._places, ends)

    def _file_places(self) -> list[tuple[str, int, int]]:
        logs = (self.checkpoint / "sources" / "0").glob("[0-9]*")
        return places_of_files(
            {value: _file_name(portion) for value, portion in self._portions.items()},
            (line for log in logs for line in log.read_text().splitlines()),
        )

    def any_leader(self, topic: str, chance: random.Random) -> int:
        return self.brokers.leader(topic, chance.randrange(len(self.brokers.leaders(topic))))


def _file_name(portion: int) -> str:
    return f"{portion:04d}.txt"
