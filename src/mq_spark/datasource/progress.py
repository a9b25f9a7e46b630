"""Tells the brokers how far a query has read, so that its lag can be seen there. The checkpoint stays the truth.

Never in the way of the query: positions are handed over and sent by a thread of their own, the newest only, at most
twice a second. What cannot be sent is sent again for a while: after a query's last micro-batch no other report follows
that would say more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from mq_protocol.errors import TritonMQError

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 30.0
"""A reporter with nothing to say ends its thread after this; the next report starts another."""

TRIED_SECONDS: Final = 60.0
"""Positions that could not be sent for so long are dropped."""

Place: TypeAlias = tuple[str, int]
"""`(topic, partition)`."""


class Reporter:
    """Owns the newest position of each group in each partition, and the thread that sends it.

    `send(group, {(topic, partition): offset})` may block and may raise `TritonMQError`.
    """

    def __init__(self, send: Callable[[str, Mapping[Place, int]], None], interval_s: float = INTERVAL_SECONDS) -> None:
        self._send = send
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting: dict[str, dict[Place, int]] = {}
        self._told: dict[str, dict[Place, int]] = {}
        self._refused: set[str] = set()
        self._thread: threading.Thread | None = None
        self._sending = False
        self._hurry = False
        self._failing_since_s: float | None = None

    def report(self, group: str, positions: Iterable[tuple[str, int, int]]) -> None:
        """Hand over `(topic, partition, offset)`, the next offset that the group wants. Returns at once."""
        with self._lock:
            told = self._told.setdefault(group, {})
            news = {(topic, p): offset for topic, p, offset in positions if told.get((topic, p)) != offset}
            if not news:
                return
            told |= news
            self._waiting.setdefault(group, {}).update(news)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tritonmq-progress", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until what was handed over is sent or dropped, at most so long: for a process that is about to be
        ended."""
        with self._lock:
            self._hurry = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: not (self._waiting or self._sending), timeout_s)
            self._hurry = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wake.wait_for(lambda: bool(self._waiting), IDLE_SECONDS):
                    self._thread = None
                    return
                waiting, self._waiting = self._waiting, {}
                self._sending = True
            for group, positions in waiting.items():
                self._tell(group, positions)
            with self._lock:
                self._sending = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._hurry and self._failing_since_s is None, self._interval_s)

    def _tell(self, group: str, positions: Mapping[Place, int]) -> None:
        try:
            self._send(group, positions)
        except TritonMQError as error:
            told_before = error.retriable or group in self._refused
            log.log(
                logging.DEBUG if told_before else logging.WARNING,
                "progress of group %s was not reported: %s",
                group,
                error,
            )
            if not error.retriable:
                self._refused.add(group)
            with self._lock:
                self._failed(group, positions, again=error.retriable)
        else:
            self._failing_since_s = None

    def _failed(self, group: str, positions: Mapping[Place, int], *, again: bool) -> None:
        """Have the positions wait again, those that no newer report has replaced; or forget them, so that they may come
        again."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        again = again and now_s - self._failing_since_s < TRIED_SECONDS
        told = self._told[group]
        for place, offset in positions.items():
            if told.get(place) == offset:
                if again:
                    self._waiting.setdefault(group, {})[place] = offset
                else:
                    del told[place]
        if not again:
            self._failing_since_s = None
