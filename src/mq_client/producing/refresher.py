"""Asks for topics anew, on a thread of its own, for whoever sends or asks for records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.errors import RefusedError, TritonMQError, Unreachable
from mq_protocol.names import quoted

log = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
_REFRESH_MS: Final = 5_000.0
SILENT_S: Final = 5.0
"""For so long no broker answers before that is logged."""


class Refresher:
    """Asks for metadata off the sending thread, so that one lost leader does not hold up the others' batches."""

    def __init__(
        self, connection: Connection, on_answer: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._on_answer = on_answer
        self._clock = clock
        self._changed = threading.Condition()
        self._asked: dict[str, set[str]] = {}
        self._refused: dict[str, RefusedError] = {}
        self._silent_since: float | None = None  # since then no broker has answered
        self._told = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def ask(self, topic: str, doubted: str = "") -> None:
        """Refresh that topic soon, of others than the broker at `doubted` if they answer. Asking again before that
        changes nothing else."""
        with self._changed:
            if topic in self._asked or self._stopping:
                self._asked.get(topic, set()).add(doubted)
                return
            self._asked[topic] = {doubted}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tritonmq-metadata", daemon=True)
                self._thread.start()
            self._changed.notify()

    def refusal(self, topic: str) -> RefusedError | None:
        """Why the topic cannot be written any more (it was deleted), if so; forgotten once told."""
        with self._changed:
            return self._refused.pop(topic, None)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._asked and not self._stopping:
                    self._changed.wait(_IDLE_S)
                if self._stopping:
                    return
                topic, doubted = next((topic, frozenset(doubted)) for topic, doubted in self._asked.items())
            refused = self._refresh(topic, doubted)
            with self._changed:
                self._asked.pop(topic, None)
                if refused is not None:
                    self._refused[topic] = refused
                # Not again at once: a cluster that is electing needs a moment.
                self._changed.wait(0.02)
            self._on_answer()

    def _refresh(self, topic: str, doubted: frozenset[str]) -> RefusedError | None:
        """Why it was refused, if it was."""
        refused: RefusedError | None = None
        asked_at = self._clock()
        try:
            self._connection.refresh(topic, Deadline(_REFRESH_MS), doubted)
        except Unreachable as error:
            self._note_silence(topic, asked_at, error)
            return None
        except TritonMQError as error:
            refused = error if isinstance(error, RefusedError) else None
        if self._told:
            log.info("topic %s: a broker answers again", quoted(topic))
        self._silent_since, self._told = None, False
        return refused

    def _note_silence(self, topic: str, asked_at: float, error: TritonMQError) -> None:
        """An operator is told, once, if it lasts: whoever waits for records sees nothing of it."""
        if self._silent_since is None:
            self._silent_since = asked_at
        silent_s = self._clock() - self._silent_since
        if silent_s >= SILENT_S and not self._told:
            self._told = True
            log.warning(
                "topic %s: no broker has answered for %.0f s, and each is asked again until one does: %s",
                quoted(topic),
                silent_s,
                error,
            )
