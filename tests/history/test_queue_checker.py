"""What the judge of work queues finds: each case is a short history with one thing wrong, and all others are right.

A history has steps with `;` between. Members of group `g` work on records of topic `t`, partition 0, each a letter:

    n: 0 ack x2 f1       member n (m if none is named) begins record 0, lent twice and failed once, and acks it; so
                         `fail`, `release`, `reject` and `output`; `lost` or `unknown` behind it is how that ends
    killed: 0 begins     and nothing else
    say 1 ack ok         who began first says a word now, and is answered; `-`: not yet
    end 1 ok             the answer
    wait 14              so many seconds
    letter a; output a   a dead letter, or an output, of that record
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest

from tests.history.checker import judge
from tests.history.recording import HistoryError, Line


class History:
    """Owns the lines of one. `order`: the records have a key, and the group keeps its order."""

    def __init__(self, values: str, script: str, *, order: bool = False) -> None:
        self.values, self.order = values, order
        self.lines: list[Line] = []
        self._at = itertools.count(1)
        self._begun: list[str] = []
        """By whom."""
        for number, value in enumerate(values):
            self.add("send", "p", state="invoke", id=number, topic="t", partition=0, values=[value])
            self.add("send", "p", state="ok", id=number, offsets=[number])
        for step in filter(None, map(str.strip, script.split(";"))):
            self._step(step)

    def _step(self, step: str) -> None:
        process, colon, said = step.partition(": ")
        match (said if colon else step).split():
            case ["letter" | "output" as op, value]:
                self.add(op, group="g", value=value)
            case ["wait", seconds]:
                self._at = itertools.count(next(self._at) + int(seconds) * 10**9)
            case ["say", number, word, state]:
                self._say(int(number), word, state)
            case ["end", number, state]:
                self.add("job", self._begun[int(number) - 1], state=state, id=int(number))
            case [offset, word, *more]:
                counts = {each[0]: int(each[1:]) for each in more if each[0] in "xf"}
                number = self._begin(process if colon else "m", int(offset), counts.get("x", 1), counts.get("f", 0))
                if word != "begins":
                    self._say(number, word, next((each for each in more if each in ("lost", "unknown")), "ok"))
            case _:
                raise ValueError(f"no step of a history: {step!r}")

    def _begin(self, process: str, offset: int, deliveries: int, failures: int) -> int:
        self._begun.append(process)
        place = {"group": "g", "topic": "t", "partition": 0, "offset": offset, "value": self.values[offset]}
        counts = {"key": "k" if self.order else None, "deliveries": deliveries, "failures": failures}
        self.add("job", process, state="begin", id=len(self._begun), **place, **counts)
        return len(self._begun)

    def _say(self, number: int, word: str, state: str) -> None:
        process = self._begun[number - 1]
        self.add("job", process, state="say", id=number, word=word)
        if state != "-":
            self.add("job", process, state=state, id=number)

    def add(self, op: str, process: str = "m", **fields: Any) -> None:
        self.lines.append({"at": next(self._at), "process": process, "op": op, **fields})

    def anomalies(self, accepted: int | None = None, dead: int = 0) -> dict[str, int]:
        end = len(self.values)
        self.add("worked", group="g", topic="t", accepted=end - dead if accepted is None else accepted, dead=dead,
                 order=self.order)  # fmt: skip
        self.add("final", topic="t", partition=0, start=0, end=end, offsets=list(range(end)), values=[*self.values])
        return dict(judge(self.lines).counts)


class Case(NamedTuple):
    """`accepted`, `dead`: what the group's totals say; of what is not dead all is accepted unless told otherwise."""

    values: str
    script: str
    found: dict[str, int]
    dead: int = 0
    accepted: int | None = None
    order: bool = False


CASES = {
    "acknowledged, released and failed": Case(
        "abc",
        "0 ack; 1 release; 1 fail x2; 1 ack x3 f1; killed: 2 begins; 2 ack lost x2 f1; 2 ack unknown x3 f2",
        {},
    ),
    "a record that nobody began": Case("abc", "0 ack; 1 ack", {"job-lost": 1}),
    "a record that was only begun": Case("abc", "0 ack; 1 ack; 2 begins", {"job-lost": 1}),
    "a record whose lease was lost": Case("abc", "0 ack; 1 ack; 2 ack lost", {"job-lost": 1}),
    "a record that failed": Case("abc", "0 ack; 1 ack; 2 fail", {"job-lost": 1}),
    "rejected, and no letter": Case("a", "0 reject", {"letter-missing": 1, "job-lost": 1}),
    "rejected, and one letter": Case("a", "0 reject; letter a", {}, dead=1),
    "rejected, and two letters": Case("a", "0 reject; letter a; letter a", {"letter-twice": 1}, dead=2),
    "a letter, though nobody failed": Case("a", "0 ack; letter a", {"letter-unexpected": 1}, dead=1),
    "a letter, since a lease ran out often enough": Case("a", "killed: 0 begins; letter a", {}, dead=1),
    "a letter of no record": Case("a", "0 ack; letter other", {"letter-unexpected": 1}, dead=1, accepted=0),
    "an output": Case("a", "0 output; output a", {}),
    "an output is missing": Case("a", "0 output", {"output-missing": 1}),
    "two outputs": Case("a", "0 output; output a; output a", {"output-twice": 1}),
    "an output whose outcome is unknown": Case("a", "0 output unknown; 0 ack x2 f1; output a", {}),
    "no output where the outcome is unknown": Case("a", "0 output unknown; 0 ack x2 f1", {}),
    "an output of a lost lease": Case("a", "0 output lost; 0 ack x2 f1; output a", {"output-unexpected": 1}),
    "an output and a letter": Case("a", "0 reject lost; 0 output x2; output a; letter a", {"settled-twice": 1}, dead=1),
    "released, and not charged": Case("a", "0 release; 0 ack x2", {}),
    "released, and charged": Case("a", "0 release; 0 ack x2 f1", {"charged": 1}),
    "charged once of three": Case("a", "0 release; 0 ack x3 f1", {}),
    "charged twice of three": Case("a", "0 release; 0 ack x3 f2", {"charged": 1}),
    "charged to who slept before its outcome was sent": Case(
        "a", "slept: 0 begins; say 1 ack -; 0 ack x2 f1; end 1 ok", {}
    ),
    "an outcome found no leader for a while": Case(
        "a", "0 begins; say 1 release -; wait 14; end 1 ok; 0 ack x2 f1", {"charged": 1}
    ),
    "an outcome found no leader for long": Case("a", "0 begins; say 1 release -; wait 16; end 1 ok; 0 ack x2 f1", {}),
    "more are accepted than there were": Case("a", "0 ack", {"totals": 1}, accepted=2),
    "one is dead that was accepted": Case("a", "0 ack", {"totals": 1}, accepted=0, dead=1),
    "in order": Case("abc", "0 fail; 0 ack x2 f1; killed: 1 begins; 1 ack x2 f1; 2 ack", {}, order=True),
    "begun before the one before it": Case("abc", "0 fail; 1 ack; 0 ack x2 f1; 2 ack", {"key-order": 1}, order=True),
    "an ack of a lost lease settles nothing": Case(
        "abc", "0 ack lost; 1 ack; 0 ack x2 f1; 2 ack", {"key-order": 1}, order=True
    ),
    "two work on one key at a time": Case(
        "a", "0 begins; n: 0 begins x2; say 1 ack ok; say 2 ack ok", {"key-overlap": 1}, order=True
    ),
    "two at a time, of whom one had lost it": Case(
        "a", "0 begins; n: 0 begins x2; say 1 ack lost; say 2 ack ok", {}, order=True
    ),
    "who slept is told that another has settled it": Case(
        "ab", "slept: 0 begins; n: 0 ack x2 f1; n: 1 ack; say 1 ack ok", {}, order=True
    ),
    "who slept fails what another has settled": Case(
        "ab", "slept: 0 begins; n: 0 ack x2 f1; n: 1 ack; say 1 fail ok", {"key-overlap": 2}, order=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_and_nothing_else(name: str) -> None:
    case = CASES[name]
    history = History(case.values, case.script, order=case.order)
    assert history.anomalies(case.accepted, case.dead) == case.found


def test_of_a_group_that_was_not_given_its_time_nothing_is_missing_and_the_rest_is_judged() -> None:
    history = History("abc", "0 begins; 1 reject; 2 output")
    final = {"start": 0, "end": 3, "offsets": [0, 1, 2], "values": ["a", "b", "c"]}
    assert not judge(
        [*history.lines, {"at": 99, "process": "f", "op": "final", "topic": "t", "partition": 0, **final}]
    ).counts
    for _ in range(2):
        history.add("letter", group="g", value="b")
        history.add("output", group="g", value="c")
    history.add("final", topic="t", partition=0, **final)
    assert judge(history.lines).counts == {"letter-twice": 1, "output-twice": 1}


def test_a_job_that_goes_on_as_none_can_is_refused() -> None:
    history = History("abc", "")
    history.add("job", state="ok", id=99)
    with pytest.raises(HistoryError, match="never began"):
        history.anomalies()
    with pytest.raises(HistoryError, match="cannot go on with 'say' 'forget'"):
        History("abc", "0 begins; say 1 forget -").anomalies()
