"""Percentiles of any number of durations, of which it keeps a bounded number. Pure."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

SAMPLES_MAX: Final = 1 << 20
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Samples:
    """Keeps every duration, in seconds; of more than `SAMPLES_MAX` every second one, then every fourth, and so on. The
    longest is never left out."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples_max = samples_max
        self._kept = array("d")
        self._every = 1
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        if self.count % self._every == 0:
            if len(self._kept) == self._samples_max:
                self._kept = self._kept[::2]
                self._every *= 2
            if self.count % self._every == 0:
                self._kept.append(seconds)
        self.count += 1
        self.longest = max(self.longest, seconds)

    def milliseconds(self) -> dict[str, float]:
        """`p50`, `p90`, `p99`, `p99.9` and `max`, in milliseconds; empty without a sample."""
        if not self.count:
            return {}
        found = np.percentile(np.asarray(self._kept), PERCENTILES) * 1000
        named = {f"p{each:g}": round(float(value), 3) for each, value in zip(PERCENTILES, found, strict=True)}
        return {**named, "max": round(self.longest * 1000, 3)}
