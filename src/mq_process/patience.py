"""Waiting where people look: what is waited for is told every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LONG_S: Final = 300.0
"""For so long whatever starts is waited for: on a slow or busy machine minutes pass."""

TELL_S: Final = 5.0


class Patience:
    """Owns when it was told last. `tell` is given a line every `TELL_S` seconds of waiting at most."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._due_at = time.monotonic() + TELL_S

    def waits_for(self, what: str) -> None:
        """It goes on: `what` is still missing."""
        if time.monotonic() >= self._due_at:
            self._tell(f"waiting: {what}")
            self._due_at = time.monotonic() + TELL_S
