"""What is counted where it happens: numbers of this process, kept without a lock.

Each row of an instrument has one writer, a thread or the event loop. Whoever reads takes a copy, which may miss the
last addition.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Final

BUCKETS_S: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper ends of the buckets of every duration, in seconds; what lasted longer has a bucket of its own."""


class Counts:
    """How often something happened, or how much of it, by the values of its labels. `labels`: their names."""

    __slots__ = ("_values", "labels", "name", "text")

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *values: str, n: float = 1) -> None:
        """`values`: of the labels, in their order."""
        self._values[values] = self._values.get(values, 0) + n

    def rows(self) -> dict[tuple[str, ...], float]:
        """A copy."""
        return dict(self._values)

    def keep(self, first: Container[str]) -> None:
        """Forget the rows whose first label is none of these: what they counted is gone, and may come back as
        another."""
        for values in [values for values in self._values if values[0] not in first]:
            del self._values[values]


class Row:
    """Durations with the same labels: how many fell into each bucket, and their sum in seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0


class Durations:
    """How long something took, in seconds, by the value of one label or none."""

    __slots__ = ("_rows", "labels", "name", "text")

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._rows: dict[str, Row] = {} if labels else {"": Row()}

    def add(self, seconds: float, value: str = "") -> None:
        """Something lasted so long. `value`: of the label."""
        row = self._rows.get(value)
        if row is None:
            row = self._rows[value] = Row()
        row.counts[bisect_left(BUCKETS_S, seconds)] += 1
        row.sum_s += seconds

    @contextmanager
    def measuring(self, value: str = "") -> Iterator[None]:
        """The block, however it ends. For what happens some times a second: where it is often, `add` costs less."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began, value)

    def rows(self) -> dict[str, Row]:
        """As they are: they go on counting."""
        return dict(self._rows)
