"""What the two are measured on: our three brokers, Kafka's three, one Spark session that can speak to both; each
started on first use.

Both clusters are up for the whole run and only one is worked with at a time: an idle one costs a few percent of a core,
starting one anew for each reading would measure cold code.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from benchmarks.bench.measure import Contestant, interleave
from benchmarks.bench.workbench import PARTITIONS, REPLICAS, Scale, Workbench
from benchmarks.kafka.cluster import KafkaCluster
from benchmarks.kafka.compare import Compared, Comparison, compare
from benchmarks.kafka.fetch import ROOT, Fetched

MIN_INSYNC: Final = 2
DURABILITIES: Final = {"os": "os / Kafka as it ships", "fsync": "fsync / Kafka flush.messages=1"}
"""Ours, and how the two are called together: what each acknowledges as how durable."""

SAID_TIMEOUT_S: Final = 180.0
_END_TIMEOUT_S: Final = 10.0


class TheirProcess:
    """Owns one process of the Python that has clients of others' brokers, running a module that answers line by
    line."""

    def __init__(self, python: Path, log: Path, module: str = "benchmarks.kafka.client") -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", module],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def ask(self, do: str, **given: Any) -> Any:
        """Have a function run; its first answer."""
        self.tell(do, **given)
        return self.hear()

    def tell(self, do: str, **given: Any) -> None:
        """Have a function run; its answers are for `hear`."""
        self.say(json.dumps({"do": do, **given}))

    def say(self, what: str) -> None:
        """To a function that waits for a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(what.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float = SAID_TIMEOUT_S) -> Any:
        """What it says next. Raises `TimeoutError` when it says nothing, `RuntimeError` with its last words when it has
        ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        said = b""
        # Unbuffered, byte by byte of what is ready: a readline could take more than the line and hide it from select.
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the client process said nothing for {timeout_s:g} s")
            piece = os.read(self._process.stdout.fileno(), 1)
            if not piece:
                raise RuntimeError(f"the client process ended: {self._log.read_text(errors='replace')[-2_000:]}")
            said += piece
        return json.loads(said)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> TheirProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Arena(Workbench):
    """Owns both clusters and all that was started for the run."""

    def __init__(
        self, directory: Path, scale: Scale, fetched: Fetched, watch: Callable[[str], None] = lambda _what: None
    ) -> None:
        jars = ",".join(str(path) for path in sorted(fetched.connector_jars.glob("*.jar")))
        super().__init__(directory, scale, watch, spark_settings={"spark.jars": jars})
        self.fetched = fetched

    @cached_property
    def kafka(self) -> KafkaCluster:
        self.watch("starting Kafka: three brokers and a controller")
        return self._opened.enter_context(KafkaCluster(self.directory / "kafka", self.fetched.classpath))

    @cached_property
    def client(self) -> TheirProcess:
        """For what is done one thing after the other: topics, produce."""
        return self._opened.enter_context(self.another_client())

    def another_client(self) -> TheirProcess:
        return TheirProcess(self.fetched.python, self.directory / "kafka-clients.log")

    def start_both(self) -> None:
        """Spark has to be up by now if it is needed: see `Workbench.spark`."""
        assert self.cluster.bootstrap
        assert self.kafka.bootstrap

    def our_topic(
        self, durability: str, *, partitions: int = PARTITIONS, replicas: int = REPLICAS, schema: str | None = None
    ) -> str:
        name = f"bench-{next(self._numbers)}"
        insync = min(MIN_INSYNC, replicas)
        self.admin.create_topic(
            name,
            partitions=partitions,
            replicas=replicas,
            schema=schema,
            durability=durability,
            min_insync_replicas=insync,
        )
        return name

    def their_topic(self, durability: str, *, partitions: int = PARTITIONS, replicas: int = REPLICAS) -> str:
        """`durability`: by our names."""
        name = f"bench-{next(self._numbers)}"
        config = {"min.insync.replicas": str(min(MIN_INSYNC, replicas)), "file.delete.delay.ms": "1000"}
        if durability == "fsync":
            config["flush.messages"] = "1"
        given = {"names": [name], "partitions": partitions, "replicas": replicas, "config": config}
        self.client.ask("create_topics", bootstrap=self.kafka.bootstrap, **given)
        return name

    def drop_theirs(self, name: str) -> None:
        self.client.ask("delete_topic", bootstrap=self.kafka.bootstrap, name=name)

    def compare(
        self,
        contestants: Sequence[Contestant],
        asked: Sequence[Comparison],
        *,
        rounds: int | None = None,
        warm_ups: int | None = None,
    ) -> list[Compared]:
        """Run them in turn and compare, in one group; every reading is kept in `readings`. By the scale, unless said
        otherwise."""
        found = interleave(
            contestants,
            self.scale.rounds if rounds is None else rounds,
            warm_ups=self.scale.warm_ups if warm_ups is None else warm_ups,
            watch=self.watch,
        )
        self.readings |= {f"{asked[0].group}: {name}": each for name, each in found.items()}
        return [compare(each, found) for each in asked]
