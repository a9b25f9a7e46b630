"""Histories written by hand, for tests of the checker: call by call, or as a script.

A script has steps with `;` between, of topic `t`, partition 0, each value a word:

    p: a b @0          process p sends a batch and is told its first offset; `@1,0` its offsets
    p: a ?             the outcome is not known; `!`: it is refused; without a sign there is none
    2 @0               the second send of the script is told its offset now
    txn q/1: a b ok    a transaction, and its outcome if it has one
    poll r 3: a b      a reader is given offsets from 3 on; `0,2`: these offsets
    deliver c 0: a     a member of group g is given them
    final 1: a _ c     what is there in the end, from offset 1 on; `_`: nothing is at that offset
    settle c 1; trimmed r 2; seek r; retention 1; drained
"""

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


def written(script: str) -> History:
    """The history of a script."""
    history = History()
    outcomes: list[Callable[..., None]] = []
    for step in filter(None, map(str.strip, script.split(";"))):
        said, colon, rest = step.partition(":")
        words, values = said.split(), rest.split()
        match words:
            case ["txn", name]:
                state = values.pop() if values[-1] in ("ok", "fail", "unknown") else None
                history.txn(name, values, state)
            case ["poll", process, at]:
                history.poll(process, 0, *values, offsets=_offsets(at, len(values)))
            case ["deliver", process, start]:
                history.deliver(int(start), *values, process=process)
            case ["final", *start]:
                there = [None if value == "_" else value for value in values]
                history.final(*there, start=int(start[0]) if start else 0)
            case [process] if colon:
                sign = values.pop()[0] if values[-1][0] in "?!@" else ""
                outcomes.append(history.begin(process, *values))
                if sign:
                    _outcome(outcomes[-1], step[step.rindex(sign) :], len(values))
            case [number, at] if number.isdecimal():
                _outcome(outcomes[int(number) - 1], at, 1)
            case ["settle" | "trimmed" as op, process, offset]:
                group = {"group": "g"} if op == "settle" else {}
                history.add(op, **group, process=process, topic="t", partition=0, offset=int(offset))
            case ["seek", process]:
                history.add("seek", process=process, topic="t", partition=0)
            case ["retention", records]:
                history.add("retention", topic="t", records=int(records))
            case ["drained"]:
                history.add("drained", group="g", topic="t")
            case _:
                raise ValueError(f"no step of a history: {step!r}")
    return history


def _outcome(outcome: Callable[..., None], sign: str, count: int) -> None:
    if sign.startswith("@"):
        outcome("ok", offsets=_offsets(sign[1:], count))
    else:
        outcome({"?": "unknown", "!": "fail"}[sign])


def _offsets(text: str, count: int) -> list[int]:
    """`3`: so many from there on; `0,2`: these."""
    given = [int(number) for number in text.split(",")]
    return given if len(given) > 1 else list(range(given[0], given[0] + count))
