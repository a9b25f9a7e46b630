"""Histories written by hand, for tests of the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.history.checker import Verdict, judge
from tests.history.recording import Line


class History:
    """Owns the lines of a history as it is written down, one nanosecond apart."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._id = 0

    def add(self, op: str, **fields: Any) -> None:
        self.lines.append({"at": len(self.lines), "op": op, **fields})

    def begin(self, process: str, *values: Any, partition: int | None = 0) -> Callable[..., None]:
        """A send; what is given back writes its outcome down."""
        self._id += 1
        number = self._id
        self.add(
            "send", state="invoke", process=process, id=number, topic="t", partition=partition, values=list(values)
        )
        return lambda state, **more: self.add("send", state=state, process=process, id=number, **more)

    def ok(self, process: str, *values: Any, at: list[int] | None = None, partition: int = 0) -> None:
        self.begin(process, *values, partition=partition)("ok", offsets=at)

    def txn(self, name: str, values: list[Any], state: str | None = None) -> None:
        self.add("txn", state="invoke", process="s", id=name, topic="t", values=values)
        if state is not None:
            self.add("txn", state=state, process="s", id=name)

    def poll(
        self, process: str, start: int, *values: Any, partition: int = 0, offsets: list[int] | None = None
    ) -> None:
        offsets = list(range(start, start + len(values))) if offsets is None else offsets
        self.add("poll", process=process, topic="t", partition=partition, offsets=offsets, values=list(values))

    def deliver(self, start: int, *values: Any, process: str = "c") -> None:
        offsets = list(range(start, start + len(values)))
        self.add("deliver", group="g", process=process, topic="t", partition=0, offsets=offsets, values=list(values))

    def final(self, *values: Any, start: int = 0, partition: int = 0, end: int | None = None, **more: Any) -> None:
        """`None` among the values: nothing is at that offset."""
        here = [(start + at, value) for at, value in enumerate(values) if value is not None]
        self.add(
            "final",
            process="final",
            topic="t",
            partition=partition,
            start=start,
            end=start + len(values) if end is None else end,
            offsets=[offset for offset, _ in here],
            values=[value for _, value in here],
            **more,
        )

    def judged(self) -> Verdict:
        return judge(self.lines)
