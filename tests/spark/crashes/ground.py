"""Where the cases happen: brokers, the places where Spark can run, failpoints; kept up from case to case."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from mq_dev.local_cluster import ClusterFailed
from mq_protocol.errors import TritonMQError
from mq_spark.datasource.failpoints import VARIABLE
from tests.spark.crashes.brokers import FailingBrokers
from tests.spark.crashes.cases import Case
from tests.spark.crashes.injecting import Injection
from tests.spark.crashes.job import Job, Points, SparkPlace
from tests.spark.crashes.judging import Verdict
from tests.spark.crashes.spark_processes import StandaloneSpark
from tests.spark.quick_start import quick_spark

_ATTEMPTS = 8
_COMMON = {"spark.sql.shuffle.partitions": "2"}
_EXECUTORS = {"spark.executor.memory": "1g", "spark.task.maxFailures": str(_ATTEMPTS)}
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.task.duration.threshold": "2s",  # also where a stage has one task only
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case. `failure`: what else went wrong, empty if nothing."""

    case: Case
    seconds: float
    verdict: Verdict
    failure: str = ""

    @property
    def exact(self) -> bool:
        return self.verdict.exact and not self.failure


class Ground:
    """Owns the brokers, the standalone Spark if it is wanted, and the directory of the failpoints; a job while it
    lasts."""

    def __init__(self, scratch: Path, brokers: int = 3, *, forgetful: bool = False) -> None:
        """`forgetful`: see `Job`."""
        self.points = Points(scratch / "points")
        self.brokers = FailingBrokers(scratch / "brokers", brokers)
        self.lives = 0
        self._scratch = scratch
        self._forgetful = forgetful
        self._home, self._jvm = quick_spark(scratch)
        self._standalone: StandaloneSpark | None = None
        self._jobs = 0

    def __enter__(self) -> Ground:
        os.environ[VARIABLE] = str(self.points.directory)  # for brokers and drivers to inherit
        self.brokers.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.points.release()
        if self._standalone is not None:
            self._standalone.stop()
        self.brokers.stop()
        del os.environ[VARIABLE]

    def job(self, mode: str, kind: str, files: Iterable[Path] = (), **options: str) -> Job:
        """A new query of that kind, not begun. `files`: what Spark brings to its workers. `options`: of source and
        sink."""
        self._jobs += 1
        scratch = self._scratch / f"{mode}.{kind}.{self._jobs}"
        place = self._place(mode)
        brought = {"spark.files": ",".join(map(str, files))} if files else {}
        place = replace(place, settings={**place.settings, **brought}, options=options)
        return Job(self.brokers, kind, scratch, place, forgetful=self._forgetful)

    def _place(self, mode: str) -> SparkPlace:
        if mode == "local":
            return SparkPlace(f"local[2,{_ATTEMPTS}]", _COMMON, self._home, self._jvm)
        if mode == "local-cluster":
            return SparkPlace("local-cluster[2,1,1024]", _COMMON | _EXECUTORS, self._home, self._jvm)
        if self._standalone is None:
            self._standalone = StandaloneSpark(self._scratch / "spark", self._home)
            self._standalone.start()
        return SparkPlace(self._standalone.master, _COMMON | _EXECUTORS | _SPECULATION, self._home, self._jvm)

    @property
    def workers(self) -> list[int]:
        return [] if self._standalone is None else self._standalone.pids

    def inject(self, job: Job, case: Case, chance: random.Random) -> None:
        """Raises `AssertionError` for what should not be."""
        Injection(job, case, self.points, chance, self.workers).run()

    def run(self, cases: list[Case], seed: int, tell: Callable[[Result], None]) -> list[Result]:
        """Cases of one mode and kind, one after another on one query; after one that went wrong a new query goes on."""
        job: Job | None = None
        results = []
        try:
            for number, case in enumerate(cases):
                began = time.monotonic()
                failure = ""
                try:
                    if job is None:
                        job = self.job(case.mode, case.job)
                        job.begin()
                    self.inject(job, case, random.Random(f"{seed}/{number}/{case}"))
                except (AssertionError, TritonMQError, ClusterFailed) as error:
                    failure = f"{type(error).__name__}: {error}"
                assert job is not None
                result = Result(case, time.monotonic() - began, job.verdict(), failure)
                results.append(result)
                tell(result)
                if not result.exact:
                    self._end(job)
                    job = None
                    self.points.release()
                    self.brokers.until_whole([])
        finally:
            if job is not None:
                self._end(job)
        return results

    def _end(self, job: Job) -> None:
        self.lives += job.driver.lives
        job.end()


def totals(results: Iterable[Result]) -> tuple[int, int, int, int]:
    """Crashes, duplicates, losses, and cases with anything else wrong."""
    mine = list(results)
    return (
        sum(result.case.is_crash for result in mine),
        sum(result.verdict.duplicates for result in mine),
        sum(result.verdict.losses for result in mine),
        sum(bool(result.failure or result.verdict.disorder) for result in mine),
    )
