"""Brokers that have said after which time they want to be asked again: they are not asked before."""

from __future__ import annotations

import threading
import time

from mq_client.cluster.deadline import Deadline
from mq_client.errors import Overloaded


class HeldBack:
    """Owns who is not to be asked yet, by address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, tuple[float, Overloaded]] = {}

    def note(self, address: str, error: Overloaded) -> None:
        """The broker there has answered so."""
        if error.retry_after_ms:
            with self._lock:
                self._until[address] = time.monotonic() + error.retry_after_ms / 1000, error

    def is_now(self, address: str) -> bool:
        """Whether the broker there is not to be asked yet."""
        with self._lock:
            found = self._until.get(address)
        return found is not None and time.monotonic() < found[0]

    def wait(self, address: str, deadline: Deadline) -> None:
        """Until the broker there may be asked. Raises its `Overloaded` again if that is not before the deadline."""
        with self._lock:
            until, error = self._until.get(address, (0.0, None))
        if error is None:
            return
        seconds = until - time.monotonic()
        if seconds >= deadline.remaining_s:
            deadline.pause(seconds)
            raise error
        if seconds > 0:
            time.sleep(seconds)
        with self._lock:
            if self._until.get(address, (0.0, None))[1] is error:
                del self._until[address]
