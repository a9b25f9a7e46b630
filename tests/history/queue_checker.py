"""What members of queue groups did and saw, judged: nothing lost, one dead letter or output each, keys in order.

All records have values of their own, so a letter and an output name their record. A job whose outcome was told with
`ok` had its lease when it said so, but for an ack without an output: that of a record which is settled by then is
told with `ok` too, whoever settled it, and where there is no order one is welcome that is late.

What it cannot tell: whether a lease that nobody began was charged with a cause, or because a broker died; and whether a
record that was acknowledged with `ok` and begun again was lent before that or after. When a record was lent, and to
whom, is not in the history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

from tests.history.recording import HistoryError, Line

Place: TypeAlias = tuple[int, int]
"""Partition and offset."""

ACKS: Final = ("ack", "output")
MISSING: Final = ("job-lost", "letter-missing", "output-missing")
WORDS: Final = (*ACKS, "fail", "reject", "release")

LATE_NS: Final = 15 * 10**9
"""An outcome without an answer for so long may have come to a leader after the lease had run out there, and be told as
done. A lease that a new leader finds runs for ten seconds at least, so no member takes so long for the death of one
broker alone."""

Add = Callable[[str, str], None]


@dataclass(slots=True)
class Job:
    """A member's work on one record. `state`: of what it said, which it was told at `told`: empty while nothing is
    known."""

    process: str
    place: Place
    value: Any
    key: Any
    deliveries: int
    failures: int
    began: int
    said: int = 0
    word: str = ""
    state: str = ""
    told: int = 0

    @property
    def may_count(self) -> bool:
        """What it said may have been done."""
        return bool(self.word) and self.state != "lost"

    def may_have_failed(self, by: int) -> bool:
        """Whether the lease may have ended with a failure by then."""
        answered = self.state == "ok" and self.told <= by and self.told - self.said <= LATE_NS
        return self.word == "fail" or not answered

    def __str__(self) -> str:
        word, state = self.word or "nothing said", self.state or "no answer"
        return f"{self.process}: {self.value!r} at {self.place}, {word}, {state}"


@dataclass(slots=True)
class Worked:
    """One group. `totals`: what brokers said of it when all was over; None if it was not given the time that it
    needed."""

    topic: str = ""
    jobs: dict[Place, list[Job]] = field(default_factory=lambda: defaultdict(list))
    letters: Counter[Any] = field(default_factory=Counter)
    outputs: Counter[Any] = field(default_factory=Counter)
    totals: Line | None = None


class QueueJudge:
    """Owns all that is known of the queue groups of one history."""

    def __init__(self) -> None:
        self.groups: dict[str, Worked] = defaultdict(Worked)
        self._open: dict[tuple[str, int], Job] = {}

    def take(self, line: Line) -> None:
        match line["op"], line.get("state"):
            case "job", "begin":
                job = Job(
                    line["process"],
                    (line["partition"], line["offset"]),
                    line["value"],
                    line["key"],
                    line["deliveries"],
                    line["failures"],
                    line["at"],
                )
                group = self.groups[line["group"]]
                group.topic = line["topic"]
                group.jobs[job.place].append(job)
                self._open[line["process"], line["id"]] = job
            case "job", state:
                self._goes_on(self._job(line), state, line)
            case "letter", _:
                self.groups[line["group"]].letters[line["value"]] += 1
            case "output", _:
                self.groups[line["group"]].outputs[line["value"]] += 1
            case "worked", _:
                self.groups[line["group"]].totals = line

    def _job(self, line: Line) -> Job:
        try:
            return self._open[line["process"], line["id"]]
        except KeyError:
            raise HistoryError(f"job {line['id']} of {line['process']} goes on and never began") from None

    @staticmethod
    def _goes_on(job: Job, state: str | None, line: Line) -> None:
        if state == "say" and line["word"] in WORDS:
            job.word, job.said = line["word"], line["at"]
        elif state in ("ok", "lost", "unknown"):
            job.state, job.told = state, line["at"]
        else:
            raise HistoryError(f"a job cannot go on with {state!r} {line.get('word', '')!r}")

    def judge(self, records: Callable[[str], Mapping[Place, Any]], add: Add) -> None:
        """`records`: what a topic has in the end. Of a group that was not given its time nothing is missing yet, and
        whether it is in order is not known."""
        for name, group in self.groups.items():
            there = records(group.topic)
            at_rest = group.totals is not None
            for place, value in there.items():
                for kind, what in _of_record(group, group.jobs.get(place, []), value):
                    if at_rest or kind not in MISSING:
                        add(kind, f"{name} {place} {value!r}: {what}")
            for kind, what in (*_strays(group, there), *(_of_totals(group, len(there)) if at_rest else ())):
                add(kind, f"{name}: {what}")
            if group.totals is not None and group.totals["order"]:
                for kind, what in _of_keys(group):
                    add(kind, f"{name}: {what}")


def _of_record(group: Worked, jobs: list[Job], value: Any) -> Iterator[tuple[str, str]]:
    letters, outputs = group.letters[value], group.outputs[value]
    acked = any(job.word in ACKS and job.may_count for job in jobs)
    made = [job for job in jobs if job.word == "output"]
    if any(job.value != value for job in jobs):
        yield "job-other", "another record was lent under its offset"
    if not acked and not letters:
        yield "job-lost", "it is settled, nobody acknowledged it, and there is no dead letter"
    if letters > 1:
        yield "letter-twice", f"{letters} dead letters"
    if letters and all(job.state == "ok" and job.word not in ("fail", "reject") for job in jobs):
        yield "letter-unexpected", "a dead letter, and nobody failed at it"
    if not letters and not acked and any(job.word == "reject" and job.state == "ok" for job in jobs):
        yield "letter-missing", "it was rejected, and there is no dead letter"
    if outputs > 1:
        yield "output-twice", f"{outputs} outputs"
    if outputs and not any(job.may_count for job in made):
        yield "output-unexpected", "an output, and no ack with one that counts"
    if any(job.state == "ok" for job in made):
        if not outputs:
            yield "output-missing", "it was acknowledged with an output, and there is none"
        if letters:
            yield "settled-twice", "it was acknowledged with an output, and there is a dead letter"
    yield from _charges(jobs)


def _charges(jobs: list[Job]) -> Iterator[tuple[str, str]]:
    """A failure is one that somebody said, or a lease that ended without an outcome: the outcome of a member that
    slept, or that found no leader for long, may come after that, and be told as done. Of leases whose records nobody
    began only their number is known."""
    begun = sorted(jobs, key=lambda job: job.began)
    for at, job in enumerate(begun):
        before = begun[:at]
        reasons = sum(other.may_have_failed(job.began) for other in before)
        unbegun = max(job.deliveries - 1 - len(before), 0)
        if job.failures > reasons + unbegun:
            yield "charged", f"{job.failures} failures, and no more than {reasons + unbegun} have a cause ({job})"


def _strays(group: Worked, there: Mapping[Place, Any]) -> Iterator[tuple[str, str]]:
    known = set(there.values())
    for kind, found in (("letter-unexpected", group.letters), ("output-unexpected", group.outputs)):
        for value in found.keys() - known:
            yield kind, f"{value!r} is of no record"


def _of_totals(group: Worked, records: int) -> Iterator[tuple[str, str]]:
    assert group.totals is not None
    accepted, dead = group.totals["accepted"], group.totals["dead"]
    if accepted + dead != records:
        yield "totals", f"{accepted} accepted and {dead} dead of {records} records"
    if dead != group.letters.total():
        yield "totals", f"{dead} dead, and {group.letters.total()} dead letters"


def _of_keys(group: Worked) -> Iterator[tuple[str, str]]:
    """Of one key and partition nobody begins a record before the one before it was acknowledged, nor while somebody
    works on one whose outcome counted. A member goes on when it has said its ack, before that is answered: if its
    lease had run out, so had that of what it went on with, and neither counts."""
    keys: dict[tuple[int, Any], list[Job]] = defaultdict(list)
    for (partition, _), jobs in group.jobs.items():
        for job in jobs:
            if job.key is not None:
                keys[partition, job.key].append(job)
    for jobs in keys.values():
        jobs.sort(key=lambda job: job.began)
        yield from _begun_early(jobs)
        for job in jobs:
            if job.state != "ok" or _was_settled(job, jobs):
                continue
            for other in jobs:
                # Who slept may begin what was given to another meanwhile. He had lost it before that one was given it
                slept = other.place == job.place and other.deliveries < job.deliveries
                if job.began < other.began < job.said and not slept:
                    yield "key-overlap", f"{other} was begun within {job}"


def _begun_early(jobs: list[Job]) -> Iterator[tuple[str, str]]:
    """Of one key, in the order in which they were begun."""
    first_said: dict[Place, int] = {}
    by_member: dict[tuple[Place, str], int] = {}
    for job in jobs:
        if job.word in ACKS:
            own = job.place, job.process
            by_member[own] = min(job.said, by_member.get(own, job.said))
            if job.may_count:
                first_said[job.place] = min(job.said, first_said.get(job.place, job.said))
    before = {later: earlier for earlier, later in pairwise(sorted({job.place for job in jobs}))}
    for job in jobs:
        earlier = before.get(job.place)
        if earlier is None or first_said.get(earlier, job.began) < job.began:
            continue
        if job.state != "lost" or by_member.get((earlier, job.process), job.began) >= job.began:
            yield "key-order", f"{job} was begun before {earlier} was acknowledged"


def _was_settled(job: Job, jobs: list[Job]) -> bool:
    """Whether somebody else may have settled its record before its ack arrived, so that it need not have had it."""
    others = (other for other in jobs if other is not job and other.place == job.place)
    return job.word == "ack" and any(
        other.word in ACKS and other.may_count and other.said < job.told for other in others
    )
