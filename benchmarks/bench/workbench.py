"""What figures are measured on: three brokers and a ZooKeeper, the ceilings' processes, a Spark session; each started
on first use.

`Scale` says how much is measured; a figure's module says what.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from benchmarks.bench.ceilings import GrpcCeiling
from benchmarks.bench.measure import Contestant, Figure, Question, Readings, figure, interleave
from mq_client import Admin
from mq_dev.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS: Final = 3
PARTITIONS: Final = 6
REPLICAS: Final = 3
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: `rounds` that count after `warm_ups` that do not. `work`: of records and bytes; `seconds`:
    of load."""

    warm_ups: int
    rounds: int
    work: float
    seconds: float

    def of(self, count: int) -> int:
        return max(1, round(count * self.work))


FULL: Final = Scale(warm_ups=1, rounds=4, work=1.0, seconds=2.0)
QUICK: Final = Scale(warm_ups=0, rounds=2, work=0.3, seconds=1.0)


class Workbench:
    """Owns all that was started for the run, and the directory's content. `watch` is told what is going on."""

    def __init__(
        self,
        directory: Path,
        scale: Scale,
        watch: Callable[[str], None] = lambda _what: None,
        spark_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._spark_settings = spark_settings or {}
        self.scale = scale
        self.watch = watch
        self.readings: dict[str, list[Readings]] = {}
        self._opened = ExitStack()
        self._numbers = itertools.count(1)

    @cached_property
    def cluster(self) -> LocalCluster:
        self.watch(f"starting {BROKERS} brokers and a ZooKeeper")
        return self._opened.enter_context(LocalCluster(self.directory / "cluster", BROKERS))

    @cached_property
    def admin(self) -> Admin:
        return self._opened.enter_context(Admin(self.cluster.bootstrap))

    @cached_property
    def grpc(self) -> GrpcCeiling:
        ceiling = GrpcCeiling()
        self._opened.callback(ceiling.close)
        return ceiling

    @cached_property
    def spark(self) -> SparkSession:
        """Ask for it before the cluster: pyspark forks to start Java, and a fork with gRPC's threads running may die of
        it."""
        assert not {"cluster", "grpc"} & self.__dict__.keys(), (
            "Spark has to be started before anything speaks gRPC in this process"
        )
        self.watch("starting Spark")
        from pyspark.sql import SparkSession

        from mq_spark import configure

        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Spark's Python workers import the in-memory source from here.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        builder = (
            SparkSession.builder.master("local[2]")
            .appName("tritonmq-bench")
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(self.directory / "warehouse"))
            .config("spark.local.dir", str(self.directory / "spark"))
        )
        for name, value in self._spark_settings.items():
            builder = builder.config(name, value)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of a pandas that is not used
            session = configure(builder).getOrCreate()
        self._opened.callback(session.stop)
        return session

    def new_topic(self, durability: str, *, schema: str | None = None, replicas: int = REPLICAS) -> str:
        """A topic of its own for a run: what another has left is not in its way."""
        name = f"bench-{next(self._numbers)}"
        self.admin.create_topic(name, partitions=PARTITIONS, replicas=replicas, schema=schema, durability=durability)
        return name

    def scratch(self) -> Path:
        """A path that nothing is at."""
        return self.directory / f"scratch-{next(self._numbers)}"

    def answer(self, contestants: Sequence[Contestant], questions: Sequence[Question]) -> list[Figure]:
        """Run them in turn and answer the questions; every reading is kept in `readings`."""
        found = interleave(contestants, self.scale.rounds, warm_ups=self.scale.warm_ups, watch=self.watch)
        self.readings |= found
        return [figure(question, found) for question in questions]

    def __enter__(self) -> Workbench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()
