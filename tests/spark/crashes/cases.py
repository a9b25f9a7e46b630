"""What is hurt, where, in which kind of query, and which of it is done in a run. Pure: chance comes from the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mq_protocol.errors import TritonMQError


class UnknownCase(TritonMQError):
    """There is no such case; the message shows what cases are made of."""


MODES: Final = ("local", "local-cluster", "standalone")
"""Where Spark runs: threads of the driver; two executors that the driver starts; a master and two workers, with
speculation on."""

JOBS: Final = ("copy", "route", "repartition", "repartition-route")
"""`copy`: a topic into a topic. `route`: into two topics, by a column. `repartition`: from files, through a repartition
that deals the rows out differently each time."""

TASK_POINTS: Final = ("before_stage", "during_stage", "after_stage")
DECIDED_POINTS: Final = ("before_publish", "between_publishes", "before_answer")
"""Reached in the coordinator: decided; published in one of two topics; published in all, and the driver not told."""

POINTS: Final = (
    *TASK_POINTS,
    "before_decide",
    *DECIDED_POINTS,
    "after_decide",
    "before_commit_file",
    "before_offset_log",
)

_BROKERS = ("output leader", "input leader", "coordinator")
VICTIMS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(TASK_POINTS, ("driver", "Python worker", "executor", *_BROKERS)),
    "before_decide": ("driver", "commit process", "executor", *_BROKERS),
    **dict.fromkeys(DECIDED_POINTS, ("driver", "coordinator", "driver and coordinator", "output leader")),
    "after_decide": ("driver", "commit process", "answer", "executor", "coordinator"),
    "before_commit_file": ("driver",),
    "before_offset_log": ("driver",),
}
SPECULATED: Final = ("during_stage", "slow task")
"""A task that hangs until its speculative copy has won, and then goes on."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One thing to do to a query."""

    mode: str
    job: str
    point: str
    victim: str

    def __str__(self) -> str:
        return "/".join((self.mode, self.job, self.point, self.victim.replace(" ", "-")))

    @property
    def is_crash(self) -> bool:
        """Whether something is killed or lost; a slow task is not."""
        return (self.point, self.victim) != SPECULATED

    @property
    def starts_driver_anew(self) -> bool:
        return self.victim.startswith("driver")


def case_named(name: str) -> Case:
    """`mode/job/point/victim`. Raises `UnknownCase`."""
    for case in every_case():
        if str(case) == name:
            return case
    raise UnknownCase(f"no case {name!r}: one is {next(iter(every_case()))}; --list shows all")


def every_case() -> list[Case]:
    """All that make sense, in a fixed order."""
    found = []
    for mode, job, point in itertools.product(MODES, JOBS, POINTS):
        victims = VICTIMS[point] + ((SPECULATED[1],) if (mode, point) == ("standalone", SPECULATED[0]) else ())
        found += [Case(mode, job, point, victim) for victim in victims if _makes_sense(mode, job, point, victim)]
    return found


def _makes_sense(mode: str, job: str, point: str, victim: str) -> bool:
    if victim == "executor" and mode == "local":
        return False
    if victim == "input leader" and job.startswith("repartition"):
        return False  # its input is files
    return point != "between_publishes" or job.endswith("route")


def plan(crashes: int, seed: int) -> list[list[Case]]:
    """Cases with at least that many crashes, each list for one query and its checkpoint, modes by turns.

    Each point with each victim in each mode comes once, in kinds of query that take turns. What is wanted beyond that
    leaves out the drivers of clusters: they cost most.
    """
    chance = random.Random(seed)
    chosen: list[Case] = []
    while sum(case.is_crash for case in chosen) < crashes:
        chosen += _one_round(chance, crashes - sum(case.is_crash for case in chosen), chosen)
    queries = []
    for job, mode in itertools.product(JOBS, MODES):
        mine = [case for case in chosen if (case.mode, case.job) == (mode, job)]
        chance.shuffle(mine)
        if mine:
            queries.append(mine)
    return queries


def _one_round(chance: random.Random, crashes: int, before: Sequence[Case]) -> list[Case]:
    """Every (mode, point, victim) once, or as many as are wanted still, with the kind of query that has had fewest
    cases so far."""
    had: dict[str, int] = dict.fromkeys(JOBS, 0)
    for case in before:
        had[case.job] += 1
    by_place: dict[tuple[str, str, str], list[Case]] = {}
    for case in every_case():
        if not (before and case.starts_driver_anew and case.mode != "local"):
            by_place.setdefault((case.mode, case.point, case.victim), []).append(case)
    places = list(by_place)
    chance.shuffle(places)
    taken: list[Case] = []
    for place in places:
        if sum(case.is_crash for case in taken) >= crashes:
            break
        case = min(by_place[place], key=lambda each: (had[each.job], chance.random()))
        had[case.job] += 1
        taken.append(case)
    return taken
