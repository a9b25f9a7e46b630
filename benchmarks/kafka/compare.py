"""What is asked of the readings: ours against theirs, how many times as fast, and whether that is what was aimed at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bench.measure import Better, Readings, Spread, spread


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whose readings of a metric are put beside whose. `aim`: how many times as fast TritonMQ is to be, None if nobody
    said."""

    group: str
    ours: str
    theirs: str
    metric: str
    unit: str
    better: Better
    aim: float | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of the table. `times`: how many times as fast we are, taken within each round; above 1 is always in our
    favour."""

    asked: Comparison
    ours: Spread
    theirs: Spread
    times: Spread

    @property
    def reached(self) -> bool | None:
        """Whether the median is what was aimed at; None if nothing was."""
        return None if self.asked.aim is None else self.times.median >= self.asked.aim


def compare(asked: Comparison, readings: Mapping[str, Sequence[Readings]]) -> Compared:
    ours = [each[asked.metric] for each in readings[asked.ours]]
    theirs = [each[asked.metric] for each in readings[asked.theirs]]
    pairs = list(zip(ours, theirs, strict=True))
    times = [mine / other if asked.better == "higher" else other / mine for mine, other in pairs]
    return Compared(asked, spread(ours), spread(theirs), spread(times))
