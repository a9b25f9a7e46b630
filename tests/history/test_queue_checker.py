"""What the judge of work queues finds: each test is a short history with one thing wrong, and all others are right."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.history.checker import judge
from tests.history.recording import HistoryError, Line


class History:
    """Three records of topic `t`, partition 0, and what members of group `g` do with them."""

    def __init__(self, *, order: bool = False, values: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.order = order
        self.values = values
        self.lines: list[Line] = []
        self._at = itertools.count(1)
        self._ids = itertools.count(1)
        for number, value in enumerate(values):
            self.add("send", "p", state="invoke", id=number, topic="t", partition=0, values=[value])
            self.add("send", "p", state="ok", id=number, offsets=[number])

    def add(self, op: str, process: str = "m", **fields: Any) -> None:
        self.lines.append({"at": next(self._at), "process": process, "op": op, **fields})

    def wait(self, seconds: int) -> None:
        self._at = itertools.count(next(self._at) + seconds * 10**9)

    def begin(self, offset: int, process: str = "m", *, deliveries: int = 1, failures: int = 0, value: str = "") -> int:
        number = next(self._ids)
        self.add(
            "job",
            process,
            state="begin",
            id=number,
            group="g",
            topic="t",
            partition=0,
            offset=offset,
            value=value or self.values[offset],
            key="k" if self.order else None,
            deliveries=deliveries,
            failures=failures,
        )
        return number

    def say(self, number: int, word: str, state: str = "ok", process: str = "m") -> None:
        self.add("job", process, state="say", id=number, word=word)
        if state:
            self.add("job", process, state=state, id=number)

    def work(self, offset: int, word: str = "ack", state: str = "ok", process: str = "m", **fields: Any) -> None:
        self.say(self.begin(offset, process, **fields), word, state, process)

    def anomalies(self, accepted: int | None = None, dead: int = 0) -> dict[str, int]:
        end = len(self.values)
        self.add("worked", group="g", topic="t", accepted=end - dead if accepted is None else accepted, dead=dead,
                 order=self.order)  # fmt: skip
        self.add("final", topic="t", partition=0, start=0, end=end, offsets=list(range(end)), values=list(self.values))
        return dict(judge(self.lines).counts)


def test_records_that_are_acknowledged_released_and_failed_are_right() -> None:
    history = History()
    history.work(0)
    history.work(1, "release")
    history.work(1, "fail", deliveries=2)
    history.work(1, deliveries=3, failures=1)
    history.begin(2, "killed")
    history.work(2, "ack", "lost", deliveries=2, failures=1)
    history.work(2, "ack", "unknown", deliveries=3, failures=2)
    assert history.anomalies() == {}


def test_a_record_that_nobody_acknowledged_is_lost() -> None:
    for ending in ("never", "begun", "lost", "fail"):
        history = History()
        history.work(0)
        history.work(1)
        if ending == "begun":
            history.begin(2)
        elif ending == "lost":
            history.work(2, "ack", "lost")
        elif ending == "fail":
            history.work(2, "fail")
        assert history.anomalies() == {"job-lost": 1}, ending


def test_of_a_group_that_was_not_given_its_time_nothing_is_missing_and_the_rest_is_judged() -> None:
    history = History()
    history.begin(0)
    history.work(1, "reject")
    history.work(2, "output")
    final = {"start": 0, "end": 3, "offsets": [0, 1, 2], "values": ["a", "b", "c"]}
    assert not judge(
        [*history.lines, {"at": 99, "process": "f", "op": "final", "topic": "t", "partition": 0, **final}]
    ).counts
    for _ in range(2):
        history.add("letter", group="g", value="b")
        history.add("output", group="g", value="c")
    history.add("final", topic="t", partition=0, **final)
    assert judge(history.lines).counts == {"letter-twice": 1, "output-twice": 1}


@pytest.mark.parametrize(("letters", "found"), [(0, "letter-missing"), (1, ""), (2, "letter-twice")])
def test_a_record_that_was_rejected_is_one_letter(letters: int, found: str) -> None:
    history = History(values=("a",))
    history.work(0, "reject")
    for _ in range(letters):
        history.add("letter", group="g", value="a")
    wrong = {found: 1} if found else {}
    assert history.anomalies(dead=letters) == wrong | ({"job-lost": 1} if not letters else {})


def test_a_letter_of_a_record_at_which_nobody_failed_is_unexpected() -> None:
    history = History(values=("a",))
    history.work(0)
    history.add("letter", group="g", value="a")
    assert history.anomalies(dead=1) == {"letter-unexpected": 1}
    history = History(values=("a",))
    history.begin(0, "killed")  # a lease that runs out often enough
    history.add("letter", group="g", value="a")
    assert history.anomalies(dead=1) == {}
    history = History(values=("a",))
    history.work(0)
    history.add("letter", group="g", value="other")
    assert history.anomalies(accepted=0, dead=1) == {"letter-unexpected": 1}


@pytest.mark.parametrize(
    ("state", "outputs", "found"),
    [
        ("ok", 1, {}),
        ("ok", 0, {"output-missing": 1}),
        ("ok", 2, {"output-twice": 1}),
        ("unknown", 1, {}),
        ("unknown", 0, {}),
        ("lost", 1, {"output-unexpected": 1}),
    ],
)
def test_an_ack_with_an_output_that_counts_has_one(state: str, outputs: int, found: dict[str, int]) -> None:
    history = History(values=("a",))
    history.work(0, "output", state)
    if state != "ok":
        history.work(0, "ack", deliveries=2, failures=1)
    for _ in range(outputs):
        history.add("output", group="g", value="a")
    assert history.anomalies() == found


def test_a_record_with_an_output_and_a_letter_was_settled_twice() -> None:
    history = History(values=("a",))
    history.work(0, "reject", "lost")
    history.work(0, "output", deliveries=2)
    history.add("output", group="g", value="a")
    history.add("letter", group="g", value="a")
    assert history.anomalies(dead=1) == {"settled-twice": 1}


@pytest.mark.parametrize(("deliveries", "failures", "charged"), [(2, 0, 0), (2, 1, 1), (3, 1, 0), (3, 2, 1)])
def test_a_failure_without_a_cause_is_found(deliveries: int, failures: int, charged: int) -> None:
    history = History(values=("a",))
    history.work(0, "release")
    history.work(0, deliveries=deliveries, failures=failures)
    assert history.anomalies() == ({"charged": 1} if charged else {})


def test_a_member_that_slept_before_its_outcome_was_sent_is_a_cause() -> None:
    history = History(values=("a",))
    slept = history.begin(0, "slept")
    history.say(slept, "ack", "", "slept")
    history.work(0, deliveries=2, failures=1)
    history.add("job", "slept", state="ok", id=slept)
    assert history.anomalies() == {}


@pytest.mark.parametrize(("seconds", "charged"), [(14, 1), (16, 0)])
def test_an_outcome_that_found_no_leader_for_long_is_a_cause_and_a_brokers_death_alone_is_none(
    seconds: int, charged: int
) -> None:
    history = History(values=("a",))
    number = history.begin(0)
    history.say(number, "release", "")
    history.wait(seconds)
    history.add("job", state="ok", id=number)
    history.work(0, deliveries=2, failures=1)
    assert history.anomalies() == ({"charged": 1} if charged else {})


def test_totals_that_do_not_add_up_are_found() -> None:
    history = History(values=("a",))
    history.work(0)
    assert history.anomalies(accepted=2) == {"totals": 1}
    history = History(values=("a",))
    history.work(0)
    assert history.anomalies(accepted=0, dead=1) == {"totals": 1}


def test_a_record_begun_before_the_one_before_it_was_acknowledged_is_out_of_order() -> None:
    history = History(order=True)
    history.work(0, "fail")
    history.work(0, deliveries=2, failures=1)
    history.begin(1, "killed")
    history.work(1, deliveries=2, failures=1)
    history.work(2)
    assert history.anomalies() == {}
    history = History(order=True)
    history.work(0, "fail")
    history.work(1)
    history.work(0, deliveries=2, failures=1)
    history.work(2)
    assert history.anomalies() == {"key-order": 1}
    history = History(order=True)
    history.work(0, "ack", "lost")
    history.work(1)
    history.work(0, deliveries=2, failures=1)
    history.work(2)
    assert history.anomalies() == {"key-order": 1}, "an ack of a lost lease settles nothing"


def test_two_who_work_on_one_key_at_a_time_are_found_unless_one_of_them_had_lost_it() -> None:
    for state, found in (("ok", {"key-overlap": 1}), ("lost", {})):
        history = History(order=True, values=("a",))
        first = history.begin(0, "m")
        second = history.begin(0, "n", deliveries=2)
        history.say(first, "ack", state, "m")
        history.say(second, "ack", "ok", "n")
        assert history.anomalies() == found


def test_a_member_that_slept_is_told_that_another_has_settled_its_record() -> None:
    for late, overlaps in (("ack", 0), ("fail", 2)):
        history = History(order=True, values=("a", "b"))
        slept = history.begin(0, "slept")
        history.work(0, process="n", deliveries=2, failures=1)
        history.work(1, process="n")
        history.say(slept, late, "ok", "slept")
        assert history.anomalies() == ({"key-overlap": overlaps} if overlaps else {})


def test_a_job_that_goes_on_as_none_can_is_refused() -> None:
    history = History()
    history.add("job", state="ok", id=99)
    with pytest.raises(HistoryError, match="never began"):
        history.anomalies()
    history = History()
    number = history.begin(0)
    history.add("job", state="say", id=number, word="forget")
    with pytest.raises(HistoryError, match="cannot go on with 'say' 'forget'"):
        history.anomalies()
