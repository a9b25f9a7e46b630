"""Clients at work in threads while a test hurts the cluster: one publishes numbers, others take them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from mq_client import Producer, TritonMQError
from mq_client.producing.futures import RecordFuture
from tests.cluster.harness import wait_until

WAIT_S = 120.0
PAUSE_S = 0.002
"""Between two records: what is tested needs the processors too."""


class Traffic:
    """Owns a producer that publishes 0, 1, 2, …, each behind `before`, to the topic's partitions in turn, until it is
    told to stop."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1, *, before: str = "", **more: Any) -> None:
        """`more`: of the producer."""
        self.sent: list[RecordFuture] = []
        self._topic, self._partitions, self._before = topic, partitions, before
        self._producer = Producer(bootstrap, timeout_ms=90_000, linger_ms=1, **more)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            number = len(self.sent)
            value = f"{self._before}{number}".encode()
            self.sent.append(self._producer.publish(self._topic, value, partition=number % self._partitions))

    def until_acknowledged(self, more: int = 300) -> None:
        """Until the last of so many records that are published from now on is acknowledged."""
        last = len(self.sent) + more
        wait_until(lambda: len(self.sent) > last or not self._thread.is_alive(), "records are published", WAIT_S)
        self.sent[last].result(WAIT_S)

    def end(self) -> int:
        """Stop, and wait for every answer: how many. Raises if any record failed."""
        self._stop()
        for future in self.sent:
            future.result(WAIT_S)
        return len(self.sent)

    def _stop(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the producer hangs"
        self._producer.close()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """All is acknowledged, or the block's own error is the one to see."""
        if error is None:
            self.end()
        else:
            with contextlib.suppress(TritonMQError, AssertionError):
                self._stop()


class Taking:
    """Owns a client whose records are taken in a thread. `close`: what ends it."""

    def __init__(
        self, client: Any, close: Callable[[], object], settle: Callable[[Any], object] = lambda _record: None
    ) -> None:
        self.client, self._close, self._settle = client, close, settle
        self.records: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def numbers(self) -> list[int]:
        return [int(record.value) for record in list(self.records)]

    def _run(self) -> None:
        for record in self.client:
            self.records.append(record)
            self._settle(record)

    def end(self) -> None:
        self._close()
        self._thread.join(30)
