"""What figures were over the last half hour, in memory that is bounded. Thread-safe."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

POINTS: Final = 360
STEP_S: Final = 5
SERIES_MAX: Final = 2_000
"""With 360 points each these are 6 MB."""

Key = tuple[str, ...]
_NOTHING: Final = math.nan


class History:
    """Owns a ring of `points` values for each of at most `series_max` keys, one value for each `step_s` seconds.

    A key is kept from its first value above 0. Where there are too many keys, those that come first in a note win
    over those that have been 0 the longest.
    """

    def __init__(self, points: int = POINTS, step_s: int = STEP_S, series_max: int = SERIES_MAX) -> None:
        self._points = points
        self._step_s = step_s
        self._series_max = series_max
        self._series: dict[Key, array[float]] = {}
        self._above_0_at: dict[Key, int] = {}
        self._tick = -1
        self._lock = threading.Lock()

    def note(self, now_s: float, values: Mapping[Key, float]) -> None:
        """The values that hold since the note before. `now_s` must not go back."""
        with self._lock:
            last, self._tick = self._tick, max(self._tick, int(now_s // self._step_s))
            since = self._tick if last < 0 else min(last + 1, self._tick)
            idle = self._idle(values) if len(self._series) + len(values) > self._series_max else iter(())
            for key, value in values.items():
                if value > 0 and key not in self._series and not self._make(key, idle):
                    continue
                if key in self._series:
                    self._write(key, since, value)
            for key in self._series.keys() - values.keys():
                self._write(key, since, _NOTHING)

    def _idle(self, values: Mapping[Key, float]) -> Iterator[Key]:
        """Keys that may be forgotten, those that have been idle the longest first."""
        old = [key for key in self._series if not values.get(key)]
        return iter(sorted(old, key=lambda key: self._above_0_at[key]))

    def _make(self, key: Key, idle: Iterator[Key]) -> bool:
        if len(self._series) >= self._series_max:
            oldest = next(idle, None)
            if oldest is None:
                return False
            del self._series[oldest], self._above_0_at[oldest]
        self._series[key] = array("d", [_NOTHING] * self._points)
        self._above_0_at[key] = self._tick
        return True

    def _write(self, key: Key, since: int, value: float) -> None:
        ring = self._series[key]
        for tick in range(max(since, self._tick - self._points + 1), self._tick + 1):
            ring[tick % self._points] = value
        if value > 0:
            self._above_0_at[key] = self._tick

    def of(self, *key: str, points: int = POINTS) -> list[float | None]:
        """The last `points` values, the oldest first; None where nothing is known."""
        with self._lock:
            ring = self._series.get(key)
            if ring is None or self._tick < 0:
                return []
            first = self._tick + 1 - min(points, self._points)
            found = [ring[tick % self._points] for tick in range(max(0, first), self._tick + 1)]
        return [None if math.isnan(value) else value for value in found]
