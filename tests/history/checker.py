"""Judges a history: was what a queue of partitions promises kept? In the manner of Jepsen's workload for Kafka-like
systems.

What is known of a partition's log is put together from every acknowledgement and every reading. What cannot be
reconciled is an anomaly, reported with the records that show it:

    lost-write           acknowledged, and not in the log though the log goes on past its place
    unseen               acknowledged, and the log ends before its place
    vanished             read by somebody, never acknowledged, and not in the log at the end
    aborted-read         read, though its sending was refused (G1a)
    unexpected           read, though nobody ever sent it
    duplicate            one record at two places
    inconsistent-offsets two records at one place
    dropped              the log at the end starts later than retention allows; at all where there is none
    false-trim           a reader was told that retention took what is there at the end
    hole                 the log at the end has no record at an offset, and none is known to belong there (offsets are
                         dense)
    torn                 of what is written all together or not at all, a part is there
    poll-skip            a reader's next reading left out offsets that exist
    nonmonotonic-poll    a reader's next reading went back
    nonmonotonic-send    a process sent to a partition in one order, and they are there in another; sends whose outcome
                         is unknown count as well, once somebody has seen their records
    realtime-order       acknowledged before another's sending began, and behind it in the log
    int-…                the same within one operation
    queue-lost           in the log, and never given to the group
    queue-unexpected     given to the group, though nobody sent it or its sending was refused
    queue-duplicated     given to the group again after it was known to be done with it

Unknown outcomes may have happened or not: either is fine, but not both. One pass over the lines and one over the
records.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.history.queue_checker import QueueJudge
from tests.history.recording import HistoryError, Line

KEPT_MAX: Final = 1_000
"""Anomalies of one kind that are kept with their records; all are counted."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`what` is a sentence; `records` are those that show it: `(topic, partition, offset, value)` and the like."""

    kind: str
    what: str
    records: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Verdict:
    """What was found, by kind, and how much was looked at."""

    anomalies: dict[str, list[Anomaly]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return not self.counts

    def add(self, kind: str, what: str, *records: Any) -> None:
        self.counts[kind] += 1
        kept = self.anomalies.setdefault(kind, [])
        if len(kept) < KEPT_MAX:
            kept.append(Anomaly(kind, what, records))

    def story(self, each: int = 10) -> str:
        """For a person: each kind, how often, and the first of them."""
        if self.clean:
            return "no anomaly"
        parts = []
        for kind, count in sorted(self.counts.items()):
            parts.append(f"{kind}: {count}")
            parts.extend(f"    {anomaly.what}" for anomaly in self.anomalies[kind][:each])
        return "\n".join(parts)


@dataclass(slots=True)
class _Write:
    """A send, or all attempts of a transaction. `state` is the best known of them; `running`: attempts without an
    outcome."""

    name: str
    process: str
    topic: str
    partition: int | None
    values: list[Any]
    invoked: int
    state: str = "unknown"
    ended: int = 0
    offsets: list[int] | None = None
    attempts: int = 1
    failed: int = 0
    atomic: bool = True

    def settle(self, state: str, at: int) -> None:
        if state == "ok":
            self.state, self.ended = "ok", at
        elif state == "fail":
            self.failed += 1

    @property
    def never(self) -> bool:
        """It certainly did not happen."""
        return self.state != "ok" and self.failed == self.attempts


@dataclass(slots=True)
class _Final:
    """A partition as it was when all was over."""

    start: int = 0
    end: int = 0
    values: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """What a group was given. `given`: by topic, value to a place; `settled`: done with all below, by partition."""

    given: dict[str, dict[Any, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    settled: dict[Place, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)


class _Judge:
    """Owns all that is known of one history."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.writes: list[_Write] = []
        self.by_value: dict[str, dict[Any, _Write]] = defaultdict(dict)
        self.logs: dict[Place, dict[int, Any]] = defaultdict(dict)
        self.places: dict[str, dict[Any, tuple[int, int]]] = defaultdict(dict)
        self.read: dict[str, dict[Any, tuple[str, int, int]]] = defaultdict(dict)
        self.read_end: Counter[Place] = Counter()
        self.finals: dict[Place, _Final] = {}
        self.groups: dict[str, _Group] = defaultdict(_Group)
        self.queues = QueueJudge()
        self.kept: dict[str, int] = {}
        self.trimmed: dict[Place, tuple[int, str]] = {}
        self._open: dict[tuple[str, Any], _Write] = {}
        self._transactions: dict[Any, _Write] = {}
        self._positions: dict[tuple[str, str, int], int] = {}
        self._told: set[tuple[Any, ...]] = set()

    # ------------------------------------------------------------------ line by line

    def take(self, line: Line) -> None:
        op = line["op"]
        state = line.get("state")
        self.verdict.operations[op if state is None else f"{op} {state}"] += 1
        match op:
            case "send" if state == "invoke":
                self._invoke(line)
            case "send":
                self._outcome(line)
            case "txn":
                self._transaction(line)
            case "seek":
                self._positions.pop((line["process"], line["topic"], line["partition"]), None)
            case "trimmed":
                self._trimmed(line)
            case "retention":
                self.kept[line["topic"]] = line["records"]
            case "poll":
                self._poll(line)
            case "deliver":
                self._deliver(line)
            case "settle":
                place = line["topic"], line["partition"]
                settled = self.groups[line["group"]].settled
                settled[place] = max(settled.get(place, 0), line["offset"])
            case "drained":
                self.groups[line["group"]].drained.add(line["topic"])
            case "final":
                self._final(line)
            case "job" | "letter" | "output" | "worked":
                self.queues.take(line)
            case "note":
                pass
            case _:
                raise HistoryError(f"op {op!r} is not known: see tests/history/recording.py for those that are")

    def _claim(self, write: _Write) -> None:
        known = self.by_value[write.topic]
        for value in write.values:
            if known.setdefault(value, write) is not write:
                raise HistoryError(
                    f"{value!r} was sent to {write.topic} twice ({known[value].name} and {write.name}): "
                    "values must be unique, or nothing can be told by them"
                )

    def _invoke(self, line: Line) -> None:
        process, partition = line["process"], line.get("partition")
        write = _Write(
            f"{process}#{line['id']}",
            process,
            line["topic"],
            partition,
            line["values"],
            line["at"],
            atomic=partition is not None,
        )
        self.writes.append(write)
        self._open[process, line["id"]] = write
        self._claim(write)

    def _outcome(self, line: Line) -> None:
        write = self._open.pop((line["process"], line["id"]), None)
        if write is None:
            raise HistoryError(
                f"send {line['id']} of {line['process']} has an outcome and no beginning, or two outcomes"
            )
        write.settle(line["state"], line["at"])
        offsets = line.get("offsets")
        if line["state"] != "ok" or offsets is None:
            return
        if "partition" in line:
            write.partition = line["partition"]
        if write.partition is None or len(offsets) != len(write.values):
            raise HistoryError(
                f"{write.name} has {len(write.values)} values, and is ok at {offsets} of {write.partition}"
            )
        write.offsets = offsets
        self._see(write.topic, write.partition, offsets, write.values)
        for before, after in itertools.pairwise(offsets):
            if after <= before:
                self.verdict.add(
                    "int-nonmonotonic-send",
                    f"{write.name} sent to {write.topic}-{write.partition} in one order, and is at {offsets}",
                    (write.topic, write.partition, offsets, write.values),
                )

    def _transaction(self, line: Line) -> None:
        name = line["id"]
        write = self._transactions.get(name)
        if line["state"] == "invoke":
            if write is None:
                write = _Write(f"txn {name}", line["process"], line["topic"], None, line["values"], line["at"])
                self._transactions[name] = write
                self.writes.append(write)
                self._claim(write)
            elif write.values != line["values"]:
                raise HistoryError(f"transaction {name!r} was tried again with other values: name it otherwise")
            else:
                write.attempts += 1
        elif write is None:
            raise HistoryError(f"transaction {name!r} has an outcome and no beginning")
        else:
            write.settle(line["state"], line["at"])

    def _see(self, topic: str, partition: int, offsets: list[int], values: list[Any]) -> None:
        """Somebody says that these are there."""
        log, places = self.logs[topic, partition], self.places[topic]
        for offset, value in zip(offsets, values, strict=True):
            if log.setdefault(offset, value) != value and self._is_new(
                "inconsistent-offsets", topic, partition, offset, value
            ):
                self.verdict.add(
                    "inconsistent-offsets",
                    f"{topic}-{partition} has {log[offset]!r} and {value!r} at offset {offset}",
                    (topic, partition, offset, log[offset]),
                    (topic, partition, offset, value),
                )
            place = places.setdefault(value, (partition, offset))
            if place != (partition, offset) and self._is_new("duplicate", topic, partition, offset, value):
                self.verdict.add(
                    "duplicate",
                    f"{value!r} is at {topic}-{place[0]} offset {place[1]} and at {topic}-{partition} offset {offset}",
                    (topic, *place, value),
                    (topic, partition, offset, value),
                )

    def _is_new(self, *key: Any) -> bool:
        """Whether this contradiction is told for the first time: each reader sees it again."""
        if key in self._told:
            return False
        self._told.add(key)
        return True

    def _poll(self, line: Line) -> None:
        process, topic, partition, offsets, values = (
            line[k] for k in ("process", "topic", "partition", "offsets", "values")
        )
        self._see(topic, partition, offsets, values)
        if not offsets:
            return
        read = self.read[topic]
        for offset, value in zip(offsets, values, strict=True):
            read.setdefault(value, (process, partition, offset))
        self.read_end[topic, partition] = max(self.read_end[topic, partition], offsets[-1] + 1)
        key = process, topic, partition
        position, prefix = self._positions.get(key), ""
        for offset in offsets:
            if position is not None and offset != position:
                kind = "nonmonotonic-poll" if offset < position else "poll-skip"
                what = f"{process} read {topic}-{partition} up to {position - 1} and then {offset}"
                self.verdict.add(prefix + kind, what, (topic, partition, position - 1), (topic, partition, offset))
            position, prefix = offset + 1, "int-"
        self._positions[key] = offsets[-1] + 1

    def _trimmed(self, line: Line) -> None:
        """The reader goes on where it was told to: what it leaves out is no skip. Whether it was told the truth, the
        end shows."""
        process, topic, partition, offset = (line[k] for k in ("process", "topic", "partition", "offset"))
        key = process, topic, partition
        self._positions[key] = max(self._positions.get(key, 0), offset)
        place = topic, partition
        if offset > self.trimmed.get(place, (0, ""))[0]:
            self.trimmed[place] = offset, process

    def _deliver(self, line: Line) -> None:
        name, topic, partition = line["group"], line["topic"], line["partition"]
        offsets, values = line["offsets"], line["values"]
        group = self.groups[name]
        self._see(topic, partition, offsets, values)
        given, settled = group.given[topic], group.settled.get((topic, partition), 0)
        for offset, value in zip(offsets, values, strict=True):
            given.setdefault(value, (partition, offset))
            if offset < settled:
                self.verdict.add(
                    "queue-duplicated",
                    f"group {name} was given {value!r} ({topic}-{partition} offset {offset}) again, "
                    f"by {line['process']}, after it was done with all below {settled}",
                    (topic, partition, offset, value),
                )

    def _final(self, line: Line) -> None:
        topic, partition, offsets, values = (line[k] for k in ("topic", "partition", "offsets", "values"))
        self._see(topic, partition, offsets, values)
        read = self.read[topic]
        for offset, value in zip(offsets, values, strict=True):
            read.setdefault(value, ("final", partition, offset))
        if "replica" not in line:
            final = self.finals.setdefault((topic, partition), _Final())
            final.start, final.end = line["start"], line["end"]
            final.values.update(zip(offsets, values, strict=True))

    # ------------------------------------------------------------------ when all is known

    def conclude(self) -> Verdict:
        at_end: dict[str, dict[Any, None]] = {}
        for (topic, _), final in self.finals.items():
            at_end.setdefault(topic, {}).update(dict.fromkeys(final.values.values()))
        for write in self.writes:
            if write.never:
                self._judge_refused(write)
            elif write.state == "ok":
                self._judge_acknowledged(write, at_end.get(write.topic))
            else:
                self._judge_unknown(write, at_end.get(write.topic))
        self._judge_readings(at_end)
        self._judge_finals()
        self._judge_retention()
        self._judge_order()
        for name, group in self.groups.items():
            self._judge_group(name, group)
        self.queues.judge(self._records, self.verdict.add)
        return self.verdict

    def _records(self, topic: str) -> dict[tuple[int, int], Any]:
        finals = ((place[1], final) for place, final in self.finals.items() if place[0] == topic)
        return {(number, offset): value for number, final in finals for offset, value in final.values.items()}

    def _judge_refused(self, write: _Write) -> None:
        read = self.read[write.topic]
        for value in write.values:
            if value in read:
                process, partition, offset = read[value]
                self.verdict.add(
                    "aborted-read",
                    f"{value!r} was refused to {write.name}, and {process} read it at {write.topic}-{partition} offset "
                    f"{offset}",
                    (write.topic, partition, offset, value),
                )

    def _judge_acknowledged(self, write: _Write, at_end: dict[Any, None] | None) -> None:
        topic, partition = write.topic, write.partition
        known = self.read[topic] if at_end is None else at_end
        missing = [at for at, value in enumerate(write.values) if value not in known]
        for at in missing:
            value = write.values[at]
            if write.offsets is None or partition is None:
                if at_end is not None and value in self.read[topic] and self._shortened(topic):
                    continue
                kind, where = "lost-write", topic
            else:
                offset = write.offsets[at]
                final = self.finals.get((topic, partition))
                if final is not None and offset < final.start:
                    continue
                end = self.read_end[topic, partition] if final is None else final.end
                kind, where = (
                    "lost-write" if offset < end else "unseen",
                    f"{topic}-{partition} offset {offset} (the end is {end})",
                )
            seen = self.read[topic].get(value)
            so_far = f"; {seen[0]} had read it" if seen is not None else ""
            self.verdict.add(
                kind, f"{value!r} was acknowledged to {write.name} at {where}, and is not there{so_far}", write
            )

    def _shortened(self, topic: str) -> bool:
        """Whether some of it is no longer kept: then what is missing may have been."""
        return any(final.start > 0 for (name, _), final in self.finals.items() if name == topic)

    def _judge_unknown(self, write: _Write, at_end: dict[Any, None] | None) -> None:
        if len(write.values) < 2 or not write.atomic:
            return
        known = self.read[write.topic] if at_end is None else at_end
        missing = [value for value in write.values if value not in known]
        if 0 < len(missing) < len(write.values) and not self._shortened(write.topic):
            self.verdict.add(
                "torn",
                f"{write.name} is {len(write.values)} values, of which {len(missing)} are not in {write.topic}: "
                f"{', '.join(map(repr, missing[:5]))}",
                write,
            )

    def _judge_readings(self, at_end: dict[str, dict[Any, None]]) -> None:
        """Everything that was seen, against what was sent, and against what is there at the end."""
        sights = [(topic, value, *place) for topic, seen in self.read.items() for value, place in seen.items()]
        for name, group in self.groups.items():
            for topic, given in group.given.items():
                sights += [
                    (topic, value, f"group {name}", *place)
                    for value, place in given.items()
                    if value not in self.read[topic]
                ]
        for topic, value, process, partition, offset in sights:
            write = self.by_value[topic].get(value)
            record = topic, partition, offset, value
            if write is None:
                if value in self.read[topic]:
                    self.verdict.add(
                        "unexpected",
                        f"{process} read {value!r} at {topic}-{partition} offset {offset}: nobody sent it",
                        record,
                    )
                continue
            final = self.finals.get((topic, partition))
            if final is None or value in at_end[topic] or offset < final.start or offset in final.values:
                continue
            if write.state != "ok" and not write.never:
                self.verdict.add(
                    "vanished",
                    f"{process} read {value!r} at {topic}-{partition} offset {offset}, and it is gone",
                    record,
                )

    def _judge_finals(self) -> None:
        for (topic, partition), final in self.finals.items():
            if len(final.values) == final.end - final.start:
                continue
            acknowledged = {
                offset
                for write in self.writes
                if write.offsets is not None and (write.topic, write.partition) == (topic, partition)
                for offset in write.offsets
            }
            for offset in range(final.start, final.end):
                if offset not in final.values and offset not in acknowledged:
                    what = f"{topic}-{partition} has no record at offset {offset}, and its end is {final.end}"
                    self.verdict.add("hole", what, (topic, partition, offset))

    def _judge_retention(self) -> None:
        """What is missing below a log's start is excused: so the start itself is judged."""
        for (topic, partition), final in self.finals.items():
            records = self.kept.get(topic)
            latest = 0 if records is None else max(0, final.end - records)
            if final.start > latest:
                rule = "its topic drops nothing" if records is None else f"its newest {records} records are to be kept"
                what = f"{topic}-{partition} starts at {final.start}, and its end is {final.end}: {rule}"
                self.verdict.add("dropped", what, (topic, partition, final.start))
            told, process = self.trimmed.get((topic, partition), (0, ""))
            if told > final.start:
                what = (
                    f"{process} was told that {topic}-{partition} is kept from {told} on only, and it starts at "
                    f"{final.start}"
                )
                self.verdict.add("false-trim", what, (topic, partition, told))

    def _judge_order(self) -> None:
        """The order of sending, by each process and by the clock, against the order in the log."""
        last: dict[tuple[str, str, int], tuple[_Write, list[int]]] = {}
        by_place: dict[Place, list[tuple[int, int, int, _Write]]] = defaultdict(list)
        for write in self.writes:
            offsets = self._offsets_of(write)
            if not offsets or write.partition is None:
                continue
            key = write.process, write.topic, write.partition
            before, offsets_before = last.get(key, (write, []))
            if offsets_before and offsets[0] <= offsets_before[-1]:
                what = (
                    f"{write.name} was sent to {write.topic}-{write.partition} after {before.name}, and is at {offsets}"
                )
                self.verdict.add("nonmonotonic-send", f"{what}, the other at {offsets_before}", before, write)
            else:
                last[key] = write, offsets
            if write.state == "ok":
                by_place[write.topic, write.partition].append((offsets[0], write.invoked, write.ended, write))
        for (topic, partition), writes in by_place.items():
            writes.sort(key=lambda entry: entry[0])
            earliest: _Write | None = None  # acknowledged, of those that are further on
            for _, invoked, ended, write in reversed(writes):
                if earliest is not None and earliest.ended < invoked and earliest.process != write.process:
                    what = (
                        f"{earliest.name} was acknowledged before {write.name} was sent, and is behind it in "
                        f"{topic}-{partition}"
                    )
                    self.verdict.add(
                        "realtime-order", f"{what}: {earliest.offsets} and {write.offsets}", earliest, write
                    )
                if earliest is None or ended < earliest.ended:
                    earliest = write

    def _offsets_of(self, write: _Write) -> list[int]:
        """Where its records are: as its acknowledgement says or, where none came, as those say who have seen them."""
        if write.state == "ok" or write.never:
            return write.offsets or []
        places = (self.places[write.topic].get(value) for value in write.values)
        return [place[1] for place in places if place is not None and place[0] == write.partition]

    def _judge_group(self, name: str, group: _Group) -> None:
        for topic, given in group.given.items():
            for value, (partition, offset) in given.items():
                write = self.by_value[topic].get(value)
                if write is None or write.never:
                    why = "nobody sent it" if write is None else f"it was refused to {write.name}"
                    what = f"group {name} was given {value!r} ({topic}-{partition} offset {offset}): {why}"
                    self.verdict.add("queue-unexpected", what, (topic, partition, offset, value))
        for topic in sorted(group.drained):
            given = group.given[topic]
            finals = [(number, final) for (of, number), final in self.finals.items() if of == topic]
            for number, final in finals:
                for offset, value in final.values.items():
                    if value not in given:
                        what = f"group {name} was never given {value!r} ({topic}-{number} offset {offset})"
                        self.verdict.add("queue-lost", what, (topic, number, offset, value))
            if not finals:
                for write in self.writes:
                    for value in write.values if write.state == "ok" and write.topic == topic else ():
                        if value not in given:
                            self.verdict.add(
                                "queue-lost", f"group {name} was never given {value!r} of {write.name}", write
                            )


def judge(lines: Iterable[Line]) -> Verdict:
    """What the history shows. Raises `HistoryError` for one that contradicts itself before anything is said about the
    queue."""
    found = _Judge()
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            found.take(line)
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(f"operation {number} is not complete ({error!r}): {line}") from error
        except HistoryError as error:
            raise HistoryError(f"operation {number}: {error}") from error
    return found.conclude()
