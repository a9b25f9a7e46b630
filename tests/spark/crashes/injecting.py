"""Carrying out one case: hold somebody at the point, look, hurt the victim, mend, and wait until all rows are out."""

from __future__ import annotations

import random

from tests.cluster.harness import wait_until
from tests.spark.crashes.cases import DECIDED_POINTS, SPECULATED, TASK_POINTS, Case
from tests.spark.crashes.job import Job, Points
from tests.spark.crashes.spark_processes import executor_of, executors_under, kill_family, kill_one


class Injection:
    """One case on a quiet job. `workers`: processes under which executors run that the driver did not start."""

    def __init__(self, job: Job, case: Case, points: Points, chance: random.Random, workers: list[int]) -> None:
        self._job = job
        self._case = case
        self._points = points
        self._chance = chance
        self._workers = workers
        self._dead: list[int] = []

    def run(self) -> None:
        """Returns when everything is mended and the job is quiet again. Raises `AssertionError` for what should not
        be."""
        try:
            match self._case.point:
                case "before_commit_file":
                    self._before_commit_file()
                case "before_offset_log":
                    self._before_offset_log()
                case _ if (self._case.point, self._case.victim) == SPECULATED:
                    self._slow_task()
                case point if point in DECIDED_POINTS:
                    self._after_the_decision()
                case _:
                    self._in_spark()
            if not self._job.driver.runs:
                self._job.start_driver()
            self._job.until_quiet()
        finally:
            self._points.release()
        self._job.brokers.until_whole(self._job.topics)

    # ------------------------------------------------------------------ where

    def _in_spark(self) -> None:
        """A task or a commit is held."""
        visible = self._job.visible()
        point, lost = self._case.point, self._case.victim == "answer"
        self._points.arm(point, fail=lost)
        self._job.publish()
        held = self._points.wait(point)
        if point in (*TASK_POINTS, "before_decide"):
            assert self._job.visible() == visible, "rows are visible before anything is decided"
        else:
            assert self._job.visible() > visible, "the decision is answered and nothing is visible"
        if not lost:
            self._hurt(held)

    def _after_the_decision(self) -> None:
        """The coordinator is held. Whatever becomes of the driver, brokers publish what is decided."""
        job, point = self._job, self._case.point
        before, last = job.visible(), job.last("commits")
        late = self._chance.choice(job.outputs)
        name = f"before_publish.{late}" if point == "between_publishes" else point
        visible = {topic: job.visible(topic) for topic in job.outputs}
        self._points.arm(name)
        job.publish()
        held = self._points.wait(name)
        if point == "before_publish":
            assert job.visible() == before, "rows are visible before anything is published"
        elif point == "between_publishes":
            (early,) = (topic for topic in job.outputs if topic != late)
            wait_until(lambda: job.visible(early) > visible[early], f"rows of {early} are visible")
            assert job.visible(late) == visible[late], f"rows of {late} are visible while its leader is not told"
        self._hurt(held)
        if self._case.starts_driver_anew:
            batch, rows = job.brokers.until_published(job.key, last)
            assert not job.driver.runs
            assert job.visible() == before + rows, (
                f"micro-batch {batch} has {rows} rows, {job.visible() - before} are visible"
            )

    def _before_commit_file(self) -> None:
        self._job.driver.kill()
        self._job.forget("commits", self._job.last("commits"))
        self._job.start_driver()
        self._job.until_quiet()
        self._job.publish()

    def _before_offset_log(self) -> None:
        """The micro-batch is planned anew, and wider: nothing had been decided."""
        self._points.arm("before_stage")
        self._job.publish()
        self._points.wait("before_stage")
        self._job.driver.kill()
        self._points.release()
        assert self._job.last("offsets") == self._job.last("commits") + 1
        self._job.forget("offsets", self._job.last("offsets"))
        self._job.publish()

    def _slow_task(self) -> None:
        """Spark runs a copy on the other executor, which wins; then the first attempt goes on."""
        last = self._job.last("commits")
        self._points.arm(SPECULATED[0])
        self._job.publish()
        self._points.wait(SPECULATED[0])
        self._job.brokers.until_published(self._job.key, last)
        self._points.release()

    # ------------------------------------------------------------------ whom

    def _hurt(self, held: int) -> None:
        """Kill the victim; then let go of who was held, if that lives."""
        job, brokers = self._job, self._job.brokers
        match self._case.victim:
            case "driver":
                job.driver.kill()
            case "Python worker" | "commit process":
                kill_one(held)
            case "executor":
                executor = executor_of(held) or self._chance.choice(self._executors())
                kill_family(executor)
            case "output leader":
                self._kill_broker(job.any_leader(self._chance.choice(job.outputs), self._chance))
            case "input leader":
                self._kill_broker(job.any_leader(job.input, self._chance))
            case "coordinator":
                self._kill_broker(brokers.coordinator(job.key))
            case "driver and coordinator":
                coordinator = brokers.coordinator(job.key)
                job.driver.kill()
                self._kill_broker(coordinator)
        self._points.release()

    def _executors(self) -> list[int]:
        found: list[int] = wait_until(
            lambda: executors_under([self._job.driver.pid, *self._workers]), "there is an executor"
        )
        return found

    def _kill_broker(self, broker: int) -> None:
        """It comes back at once, or when everything is through without it: by chance."""
        self._job.brokers.kill(broker)
        if self._job.brokers.replicas == 1 or self._chance.random() < 0.5:
            self._job.brokers.restart(broker, wait=False)
