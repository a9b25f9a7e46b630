"""Who is told of changes, in the order in which they began to observe."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class Observers:
    """A set with an order. That of a `set` of functions depends on their addresses, so no run is like another."""

    def __init__(self) -> None:
        self._observers: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        return len(self._observers)

    def __iter__(self) -> Iterator[Callable[[], None]]:
        return iter(self._observers)

    def add(self, observer: Callable[[], None]) -> None:
        """Behind the others, unless it is there."""
        self._observers[observer] = None

    def discard(self, observer: Callable[[], None]) -> None:
        """It need not be there."""
        self._observers.pop(observer, None)
