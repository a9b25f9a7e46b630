"""Answers of the cluster that are kept for a moment, so that ten people who look at a page ask one question."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

ANSWERS_MAX: Final = 64


class Asked:
    """Owns at most `ANSWERS_MAX` answers. Thread-safe: who asks what is being asked waits for that answer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._asking: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, age_s: float, question: Callable[[], T]) -> T:
        """The answer to `question`, at most `age_s` old. Raises what it raises; that is not kept."""
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        try:
            with asking:
                with self._lock:
                    at, answer = self._answers.get(key, (-age_s, None))
                    if key in self._answers and self._clock() - at < age_s:
                        return cast("T", answer)
                answer = question()
                with self._lock:
                    self._answers[key] = self._clock(), answer
                    self._answers.move_to_end(key)
                    while len(self._answers) > ANSWERS_MAX:
                        self._answers.popitem(last=False)
                return answer
        finally:
            with self._lock:
                self._asking.pop(key, None)

    def forget(self) -> None:
        """After a change: ask everything anew."""
        with self._lock:
            self._answers.clear()
