"""The audit log: who was refused, and who changed something. One line of JSON each, in a file that is turned over.

A thread of its own writes. Whoever notes something never waits for it: when the queue is full the line is lost, and the
next one says how many were. Every text is escaped, so no name can forge a line.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mq_broker.security.authority import Asker

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 << 20
FILES_MAX: Final = 10
QUEUE_MAX: Final = 10_000
"""Lines that wait to be written."""

LINES_A_MINUTE_MAX: Final = 10
"""Of one principal, method and operation. What is more is counted, and told once the minute is over."""

MODE: Final = 0o640
STOP_TIMEOUT_S: Final = 5.0

_MINUTE_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
_AT_ONCE_MAX: Final = 1_000

Key = tuple[str, str, str, str]


class _Often:
    """Owns how many lines there were of each key in its present minute. For several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[Key, tuple[float, int]] = {}  # since when, and how many there were

    def passes(self, key: Key) -> bool:
        now = self._clock()
        with self._lock:
            since, count = self._counts.get(key, (now, 0))
            self._counts[key] = since, count + 1
            return count < LINES_A_MINUTE_MAX

    def over(self) -> list[tuple[Key, int]]:
        """Keys whose minute is over, and how many lines of each were left out. Their next minute is a new one."""
        before = self._clock() - _MINUTE_S
        with self._lock:
            ended = [(key, count) for key, (since, count) in self._counts.items() if since <= before]
            for key, _ in ended:
                del self._counts[key]
        return [(key, count - LINES_A_MINUTE_MAX) for key, count in ended if count > LINES_A_MINUTE_MAX]


class Audit:
    """Owns the file and the thread that writes it. `broker`: its id, which each line has. `reads`: streams of those who
    read are noted too. `clock`: seconds since 1970."""

    def __init__(
        self,
        path: Path,
        broker: int,
        *,
        reads: bool = False,
        file_bytes_max: int = FILE_BYTES_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.reads = reads
        self._dropped = 0  # by whoever notes, while the queue is full
        self._failed = 0  # by the thread, whose disk did not take them
        self._told = 0
        self._broker = broker
        self._file_bytes_max = file_bytes_max
        self._clock = clock
        self._number = 0
        self._often = _Often(clock)
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._told_failure = False

    def start(self) -> None:
        """Raises `OSError` if the file cannot be written."""
        os.close(self._open())
        self._thread.start()

    def stop(self) -> None:
        """What was noted before is written, if the disk takes it in time."""
        if self._thread.ident is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_TIMEOUT_S)
        self._thread.join(STOP_TIMEOUT_S)

    # ------------------------------------------------------------------ what is noted

    def denied(self, asker: Asker, method: str, operation: str, resource: str, reason: str) -> None:
        self._note("denied", asker.text, asker.address, method, operation, resource, reason, often=True)

    def allowed(self, asker: Asker, method: str, operation: str, resource: str, *, often: bool) -> None:
        """`often`: it changes nothing, and is left out where there is much of it."""
        reason = "superuser" if asker.superuser else ""
        self._note("allowed", asker.text, asker.address, method, operation, resource, reason, often=often)

    def stranger(self, address: str, method: str, reason: str) -> None:
        """Somebody whose name is not known was refused."""
        self._note("denied", "", address, method, "", "", reason, often=True)

    def event(self, what: str, reason: str) -> None:
        """Of the broker itself."""
        self._note("event", "", "", what, "", "", reason, often=False)

    def _note(
        self,
        verdict: str,
        principal: str,
        address: str,
        method: str,
        operation: str,
        resource: str,
        reason: str,
        *,
        often: bool,
    ) -> None:
        if often and not self._often.passes((verdict, principal, method, operation)):
            return
        self._number += 1
        self._put(
            {
                "time": self._now(),
                "broker": self._broker,
                "number": self._number,
                "verdict": verdict,
                "principal": principal,
                "address": address,
                "method": method,
                "operation": operation,
                "resource": resource,
                "reason": reason,
            }
        )

    def _put(self, line: dict[str, Any]) -> None:
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    @property
    def lost(self) -> int:
        """Lines that were not written, and of which the log does not tell yet."""
        return self._dropped + self._failed - self._told

    def _now(self) -> str:
        return datetime.datetime.fromtimestamp(self._clock(), datetime.UTC).isoformat(timespec="milliseconds")

    # ------------------------------------------------------------------ the thread that writes

    def _run(self) -> None:
        ended = False
        while not ended:
            lines: list[dict[str, Any]] = []
            with contextlib.suppress(queue.Empty):
                line = self._waiting.get(timeout=_LOOK_EVERY_S)
                while line is not None and len(lines) < _AT_ONCE_MAX:
                    lines.append(line)
                    line = self._waiting.get_nowait()
                if line is not None:
                    lines.append(line)
                else:
                    ended = True
            for (verdict, principal, method, operation), count in self._often.over():
                lines.append(self._of_many(verdict, principal, method, operation, count))
            if lines:
                self._write(lines)

    def _of_many(self, verdict: str, principal: str, method: str, operation: str, left_out: int) -> dict[str, Any]:
        return {
            "time": self._now(),
            "broker": self._broker,
            "verdict": verdict,
            "principal": principal,
            "method": method,
            "operation": operation,
            "left_out": left_out,
        }

    def _write(self, lines: list[dict[str, Any]]) -> None:
        lost = self.lost
        if lost:
            lines.append({"time": self._now(), "broker": self._broker, "verdict": "event", "lost": lost})
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        try:
            self._turn_over(len(data))
            handle = self._open()
            try:
                os.write(handle, data)
            finally:
                os.close(handle)
        except OSError as error:
            self._failed += len(lines) - (lost > 0)
            if not self._told_failure:
                self._told_failure = True
                log.error("%s cannot be written, what was to be noted is lost: %s", self.path, error)  # noqa: TRY400
            return
        self._told_failure = False
        self._told += lost

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)

    def _turn_over(self, size: int) -> None:
        """Before the file becomes too large it is put aside, the oldest is removed."""
        try:
            if self.path.stat().st_size + size <= self._file_bytes_max:
                return
        except FileNotFoundError:
            return
        for number in range(FILES_MAX - 1, 0, -1):
            older = self._aside(number)
            newer = self._aside(number - 1)
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path
