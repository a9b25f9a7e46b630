"""Histories: what clients did and saw, as lines of JSON, written as it happens and read again to be judged.

Nothing here judges. Each process writes a file of its own, a line at a time, so that a killed one leaves all but what
it was about to write. `at` is the machine's monotonic clock in nanoseconds, which all processes of one machine share.

    op       state    says
    send     invoke   `process` is about to send `values` (never sent before) to `topic`; `id` is new in the process.
                      `partition` None: the cluster chooses, and the values may be spread
             ok       of that `id`: acknowledged, at `offsets` (left out: nobody said where), of `partition` if it was
                      not known
             fail     of that `id`: refused, it never happened
             unknown  of that `id`: it may have happened; so may one without any outcome
    txn      invoke   an attempt to write all of `values` to `topic`, or none, whatever their partitions; `id` names the
                      transaction and is the same in every attempt, of any process
             ok fail unknown   of that attempt; fail: it never happened
    seek              `process` goes on reading `topic`-`partition` somewhere else, or begins
    poll              `process` read `values` at `offsets` of `topic`-`partition`
    deliver           `group` was given `values` at `offsets` of `topic`-`partition`, through `process`
    settle            `group` is done with all below `offset` of `topic`-`partition`, and has been told so
    trimmed           `process` was told, and goes on reading there: below `offset` of `topic`-`partition` nothing is
                      kept
    retention         of each partition of `topic` the oldest may be dropped, and at least the newest `records` stay; a
                      topic of which nobody says so keeps everything
    drained           `group` was given all the time that it needed to be given the whole of `topic`
    final             when all was over: `values` at `offsets` of `topic`-`partition`, whose log is `start` .. `end` -
                      1. With `replica`: what that broker alone has
    job      begin    `group` lent the record `value` with `key` at `offset` of `topic`-`partition` to `process`, which
                      begins to work on it; `deliveries` and `failures` as it was told; `id` is new in the process
             say      of that `id`: what becomes of it is about to be said, `word`: ack, output (an ack with an output),
                      fail, reject or release
             ok       of that `id`: it was done · lost: the record was not its own any more · unknown: nobody knows
    letter            a dead letter of `group` has `value`
    output            an output of `group` was made of `value`
    worked            `group` was given all the time that it needed: what brokers say of it then, `accepted` and `dead`
                      of `topic`; `order`: whether records of a key are worked on in order
    note              anything else; not judged
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Line = dict[str, Any]


class HistoryError(Exception):
    """The history contradicts itself or cannot be read: nothing can be judged by it. The message says where and what to
    do."""


class Recorder:
    """Owns one process's file. Thread-safe; what was written survives the process."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._id = 0

    def write(self, op: str, **fields: Any) -> None:
        """One line, in one write: a kill comes before it or after it."""
        line = {"at": time.monotonic_ns(), "process": self.process, "op": op, **fields}
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._file.write(data)

    def invoke(self, topic: str, partition: int | None, values: list[Any]) -> int:
        """A send is about to begin; the id for its outcome."""
        with self._lock:
            self._id += 1
            number = self._id
        self.write("send", state="invoke", id=number, topic=topic, partition=partition, values=values)
        return number

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[Line]:
    """The lines of a file. A last one that was cut off (the process was killed, the disk was full) is left out.

    Raises `HistoryError` for any other that is no operation.
    """
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                try:
                    line = json.loads(data)
                    if "op" not in line:
                        raise HistoryError(f"{path}:{number} has no op: it is no line of a history")
                except (ValueError, TypeError) as error:
                    if not data.endswith(b"\n"):
                        return
                    raise HistoryError(f"{path}:{number} is no line of a history: {error}") from error
                yield line
    except OSError as error:
        raise HistoryError(f"cannot read {path}: {error.strerror}; give a file of JSON lines") from error


def merge(paths: Iterable[Path], into: Path) -> int:
    """Write the lines of all files into one, in order of time; how many there are."""
    lines = [line for path in paths for line in read(path)]
    lines.sort(key=lambda line: int(line["at"]))  # stable: what one process wrote stays in its order
    with into.open("w") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return len(lines)
