"""Whether a consumer's program says that it can work: asked once a second, in a thread of its own, since the answer may
take its time."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from mq_client.errors import InvalidSetting

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
LATE_S: Final = 5.0
"""Who has not answered for so long is asked in vain: what it looks at hangs."""


class Health:
    """Owns the thread that asks, and what was answered last. `told`: called in that thread when the answer has changed.
    Until the first answer has come it is yes."""

    def __init__(self, ask: Callable[[], object], told: Callable[[], object]) -> None:
        if not callable(ask) or inspect.iscoroutinefunction(ask):
            raise InvalidSetting(f"healthy={ask!r}: give a function without arguments that answers True or False")
        self._ask = ask
        self._told = told
        self._stopping = threading.Event()
        self._asked_at: float | None = None
        self._no_since: float | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="tritonmq-healthy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It is asked no more. An answer that is under way is not waited for."""
        self._stopping.set()

    def no_for_s(self) -> float | None:
        """For how long it has said no; None if the last word was yes."""
        now, no_since, asked_at = time.monotonic(), self._no_since, self._asked_at
        if no_since is None and asked_at is not None and now - asked_at > LATE_S:
            no_since = asked_at + LATE_S
        return None if no_since is None else max(0.0, now - no_since)

    def log_answer(self, *, yes: bool) -> None:
        """Of whoever acts on it, when it is another one than before. What hangs gives none itself."""
        if yes:
            log.info("healthy() says yes again")
        else:
            said = "says no" if self._no_since is not None else f"has not answered for {LATE_S:.0f} s"
            log.warning("healthy() %s: this consumer takes no more records until it says yes", said)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._asked_at = time.monotonic()
            yes = self._says_yes()
            # The time first: between the two lines a yes that came late must not look like no answer
            now, self._asked_at = time.monotonic(), None
            if yes != (self._no_since is None):
                self._no_since = None if yes else now
                self._told()
            self._stopping.wait(EVERY_S)

    def _says_yes(self) -> bool:
        try:
            yes = bool(self._ask())
        except Exception as error:  # noqa: BLE001 - the function is not ours: whatever it raises counts as no
            if not self._failed:
                log.warning("healthy() failed, which counts as no: %s: %s", type(error).__name__, error)
            self._failed = True
            return False
        self._failed = False
        return yes
