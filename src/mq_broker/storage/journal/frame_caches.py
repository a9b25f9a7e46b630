"""How much memory all journals of a broker may spend on recent frames together.

Each journal keeps its newest frames for followers and subscribers that keep up, within a bound of its own (journal.py).
A broker may have thousands of journals, so here is the bound over all of them: those that were appended to least
recently give back first. What they give back is read from their files.
"""

from __future__ import annotations

from typing import Protocol


class FrameCache(Protocol):
    """A journal, as seen from here."""

    def shed(self, bytes_wanted: int) -> None:
        """Give back so much, or as much as is in the files already. Reports it through `FrameCaches.changed`."""


class FrameCaches:
    """Owns the count. Loop only."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._sizes: dict[FrameCache, int] = {}  # least recently grown first

    def changed(self, cache: FrameCache, delta: int) -> None:
        """That journal's cache has grown, or shrunk."""
        self.bytes += delta
        size = self._sizes.get(cache, 0) + delta
        if delta > 0:
            self._sizes.pop(cache, None)
        self._sizes[cache] = size

    def forget(self, cache: FrameCache) -> None:
        """That journal is closed."""
        self.bytes -= self._sizes.pop(cache, 0)

    def keep_within(self) -> None:
        """Let journals give back until the bound holds, or nobody has anything in its files to give."""
        if self.bytes <= self._bytes_max:
            return
        for cache in list(self._sizes):
            cache.shed(self.bytes - self._bytes_max)
            if not self._sizes.get(cache):
                self._sizes.pop(cache, None)
            if self.bytes <= self._bytes_max:
                return
