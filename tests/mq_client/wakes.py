"""Whether somebody who waits is woken: without that a wait ends too, but only when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


class Wakes:
    """Counts how often a condition is notified."""

    def __init__(self, condition: threading.Condition, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        # notify_all calls notify with the number of those who wait
        self._notify: Callable[[int], None] = condition.notify
        monkeypatch.setattr(condition, "notify", self._noted)

    def _noted(self, n: int = 1) -> None:
        self._count += 1
        self._notify(n)

    def by(self, act: Callable[[], object]) -> bool:
        """Whether `act` wakes who waits."""
        before = self._count
        act()
        return self._count > before
