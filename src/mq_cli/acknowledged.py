"""Which lines of the input have arrived: counted while more is read, so that a command that stops can say where."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mq_protocol.errors import OutcomeUnknown

if TYPE_CHECKING:
    from mq_client.producing.futures import RecordFuture, TableFuture


@dataclass(slots=True)
class _Run:
    """Messages that share one answer. `line`: of the first of them."""

    line: int
    future: Future[Any]
    count: int


class Ledger:
    """Owns the futures of what was sent, one for each batch of the producer, until they are answered.

    `line`: the one that is being read. `acknowledged`: messages whose answer was good. `failure`: the first line (as
    lines go) whose message did not arrive, as far as is known, and why.
    """

    def __init__(self) -> None:
        self.line = 0
        self.sent = 0
        self.acknowledged = 0
        self.failure: tuple[int, BaseException] | None = None
        self._open: dict[object, _Run] = {}

    def add(self, future: RecordFuture) -> None:
        """The message of the present line. Messages of one batch have one outcome."""
        self.sent += 1
        run = self._open.get(future.outcome)
        if run is None:
            self._open[future.outcome] = _Run(self.line, future, 1)
        else:
            run.count += 1

    def add_table(self, future: TableFuture, line: int, count: int) -> None:
        """A table of `count` messages, whose first is of that line."""
        self.sent += count
        self._open[future] = _Run(line, future, count)

    def look(self) -> None:
        """Count what has been answered by now. Raises the error of a message that did not arrive."""
        while self._open:
            key, run = next(iter(self._open.items()))
            if not run.future.done():
                return
            del self._open[key]
            self._count(run, 0)
            if self.failure is not None:
                raise self.failure[1]

    def settle(self, timeout_s: float) -> None:
        """Count everything, waiting so long for answers that are missing."""
        deadline = time.monotonic() + timeout_s
        for run in self._open.values():
            self._count(run, max(0.0, deadline - time.monotonic()))
        self._open.clear()

    def _count(self, run: _Run, timeout_s: float) -> None:
        try:
            error = run.future.exception(timeout_s)
        except TimeoutError:
            error = OutcomeUnknown("no answer came in time: it may be there or not")
        if error is None:
            self.acknowledged += run.count
        elif self.failure is None or run.line < self.failure[0]:
            self.failure = run.line, error
