"""How things are measured: in turn, several rounds, medians with spreads, ratios within a round, open-loop schedules.

Pure but for `paced`, which sleeps. Nothing here knows what is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Readings: TypeAlias = Mapping[str, float]
"""What one run of something gives: a value per metric."""

Better: TypeAlias = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and how far the samples lay apart."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...]


def spread(samples: Sequence[float]) -> Spread:
    """Of at least one sample; of an even number the median is the mean of the two in the middle."""
    if not samples:
        raise ValueError("no samples: nothing was measured")
    ordered = sorted(samples)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Spread(median, ordered[0], ordered[-1], tuple(samples))


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` of them do not exceed (nearest rank): always one that was seen."""
    if not samples:
        raise ValueError("no samples: nothing was measured")
    if not 0 < percent <= 100:
        raise ValueError(f"percent={percent}: give more than 0 and at most 100")
    return sorted(samples)[math.ceil(len(samples) * percent / 100) - 1]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One thing that is run in turn with others. `run` does it once, timing only what counts."""

    name: str
    run: Callable[[], Readings]


def interleave(
    contestants: Sequence[Contestant],
    rounds: int,
    *,
    warm_ups: int = 1,
    watch: Callable[[str], None] = lambda _what: None,
) -> dict[str, list[Readings]]:
    """Every contestant's readings, one per round, in the order of rounds.

    Each round runs all of them and begins one further on than the one before, so that none always follows the same
    other. `warm_ups` rounds come first and are not counted.
    """
    readings: dict[str, list[Readings]] = {contestant.name: [] for contestant in contestants}
    if len(readings) != len(contestants):
        raise ValueError("two contestants have one name")
    for number in range(-warm_ups, rounds):
        for place in range(len(contestants)):
            contestant = contestants[(number + place) % len(contestants)]
            watch(f"{contestant.name}, " + (f"round {number + 1} of {rounds}" if number >= 0 else "warming up"))
            found = contestant.run()
            if number >= 0:
                readings[contestant.name].append(found)
    return readings


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: ours, its ceiling, and the ratio ours / ceiling taken within each round."""

    group: str
    name: str
    metric: str
    unit: str
    better: Better
    ours: Spread
    ceiling_name: str
    ceiling: Spread
    ratio: Spread


@dataclass(frozen=True, slots=True)
class Question:
    """Which readings make a figure: a contestant's, its ceiling's, and of which metric."""

    group: str
    contestant: str
    metric: str
    unit: str
    better: Better
    ceiling: str


def figure(question: Question, readings: Mapping[str, Sequence[Readings]]) -> Figure:
    """The figure that answers it. The ratio is taken round by round, because both drift together with the machine."""
    ours = [each[question.metric] for each in readings[question.contestant]]
    ceiling = [each[question.metric] for each in readings[question.ceiling]]
    return Figure(
        question.group,
        question.contestant,
        question.metric,
        question.unit,
        question.better,
        spread(ours),
        question.ceiling,
        spread(ceiling),
        spread([mine / limit for mine, limit in zip(ours, ceiling, strict=True)]),
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Open loop: what is due when, whatever has become of what came before. `start_ns` on the clock that the caller
    uses."""

    start_ns: int
    per_second: float
    count: int

    def due_ns(self, number: int) -> int:
        return self.start_ns + round(number * 1_000_000_000 / self.per_second)


def paced(
    schedule: Schedule, *, clock_ns: Callable[[], int] = time.time_ns, sleep: Callable[[float], None] = time.sleep
) -> Iterator[int]:
    """Each due time once it has come; at once when it is past.

    Whoever stamps records with the due time, not with the time of sending, counts the delay that a slow sender adds: no
    coordinated omission.
    """
    for number in range(schedule.count):
        due = schedule.due_ns(number)
        ahead = due - clock_ns()
        if ahead > 0:
            sleep(ahead / 1_000_000_000)
        yield due


@dataclass(slots=True)
class Stopwatch:
    """Owns one measured stretch: `with Stopwatch() as watch: ...`, then `watch.seconds`."""

    seconds: float = 0.0
    _started: float = field(default=0.0, repr=False)

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.seconds = time.perf_counter() - self._started
