"""Arithmetic on the offsets of many partitions: limits, sharing, and cutting a micro-batch into tasks.

Pure, and the same answer for the same input in every process: Spark plans a micro-batch again after a crash and rests
on getting the same rows in the same order. Offsets are exclusive ends and dense, so `end - start` is an exact count of
rows, unless offsets went on elsewhere after a loss: a range never reaches over that (`OffsetRange.is_rest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import OFFSETS_OF_A_LIFE, next_life

Offsets: TypeAlias = dict[str, dict[int, int]]
"""`{topic: {partition: offset}}`, topics by name and partitions by number: `canonical` makes it so."""

BESIDE: Final = "/"
"""In an offset of the checkpoint, beside the topics: no topic has this name."""

ROWS_PER_TASK_MIN = 20_000
"""Below this a task's fixed cost (20 to 55 ms) is more than its work."""

ROWS_PER_TASK = 250_000
"""With more rows than that for each core there are up to `TASKS_PER_CORE` tasks for it, so that one that is late holds
up less."""

TASKS_PER_CORE = 2

ROWS_PER_TASK_MAX = 1_000_000
"""Above it a larger cluster than the driver's machine would be left idle."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Rows `start .. end - 1` of a partition; never empty."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def is_rest(self) -> bool:
        """All that is kept from `start` on, however much that is: the partition's offsets go on at `end` after a loss
        (see `next_life`), and those between were given to rows that are lost, or to none."""
        return self.end % OFFSETS_OF_A_LIFE == 0

    def __len__(self) -> int:
        return 1 if self.is_rest else self.end - self.start

    def lives(self) -> list[OffsetRange]:
        """The same, cut where offsets went on after a loss."""
        cuts = [*range(next_life(self.start), self.end, OFFSETS_OF_A_LIFE), self.end]
        return [
            OffsetRange(self.topic, self.partition, start, end)
            for start, end in zip([self.start, *cuts], cuts, strict=False)
        ]


@dataclass(frozen=True, slots=True)
class Mark:
    """What Spark keeps of a micro-batch: where it ended.

    `topic_ids`: of the topics that were read, by name; of one that is not there it is not known. `begun`: where the
    micro-batch began in the topics whose start Spark does not keep: it keeps no offset from before the first one, nor
    any of a topic that was made again.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    begun: Offsets = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """It is where a new query begins: no micro-batch has ended yet."""
        return self.begun == self.offsets

    def starts(self, start: Mark) -> Offsets:
        """Where the micro-batch began that lies between `start` and this, which is its end."""
        return start.offsets if self == start else {**start.offsets, **self.begun}


# ------------------------------------------------------------------ form


def canonical(offsets: Mapping[str, Mapping[int, int]]) -> Offsets:
    """The same offsets with their keys in the stable order."""
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def to_json(mark: Mark) -> dict[str, Any]:
    """The form that Spark writes into its checkpoint: Kafka's, `{"topic": {"0": 23}}`, and what is not of it under
    `BESIDE`. Spark compares offsets as text, so the order of keys is part of it."""
    beside: dict[str, Any] = {}
    if mark.topic_ids:
        beside["ids"] = dict(sorted(mark.topic_ids.items()))
    if mark.begun:
        beside["from"] = _plain(mark.begun)
    return {**({BESIDE: beside} if beside else {}), **_plain(mark.offsets)}


def from_json(found: Any) -> Mark:
    """What a checkpoint holds. Raises `InvalidRequest` for anything else, as another source's checkpoint would have."""
    try:
        beside = found.get(BESIDE, {})
        ids = dict(beside.get("ids", {}))
        mark = Mark(
            _parsed({topic: inner for topic, inner in found.items() if topic != BESIDE}),
            ids,
            _parsed(beside.get("from", {})),
        )
    except (AttributeError, ValueError, TypeError):
        mark = None
    if mark is None or not all(isinstance(topic_id, str) for topic_id in ids.values()):
        raise InvalidRequest(
            f"the checkpoint holds offsets that are not of this source: {str(found)[:200]} "
            '(expected {"topic": {"0": 23}}); give the query a checkpointLocation of its own'
        )
    return mark


def _plain(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in inner.items()}
        for topic, inner in canonical(offsets).items()
    }


def _parsed(found: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Raises `ValueError` for what is no offset."""
    offsets = {topic: {int(number): offset for number, offset in inner.items()} for topic, inner in found.items()}
    if not all(type(offset) is int and offset >= 0 for inner in offsets.values() for offset in inner.values()):
        raise ValueError("an offset is a whole number from 0 on")
    return canonical(offsets)


# ------------------------------------------------------------------ counting and limiting


def ranges(start: Mapping[str, Mapping[int, int]], end: Mapping[str, Mapping[int, int]]) -> list[OffsetRange]:
    """What lies between, in the stable order.

    A partition that `start` does not know begins at its `end` (the first time that it is named is its start), and a
    start past its end is no rows.
    """
    return [
        OffsetRange(topic, partition, start[topic][partition], until)
        for topic, inner in canonical(end).items()
        for partition, until in inner.items()
        if start.get(topic, {}).get(partition, until) < until
    ]


def limited(
    start: Mapping[str, Mapping[int, int]], available: Mapping[str, Mapping[int, int]], rows_max: int
) -> Offsets:
    """The end of a micro-batch of at most `rows_max` rows, exactly that many if so many are there.

    Shares are proportional to each partition's backlog, with at least a row for each while there are rows enough to go
    round. When there are not, and for what is left over by rounding, partitions are served in turn: whose turn it is
    follows from `start` itself, which the rows given move on, so a replay gives the same answer and nobody waits for
    ever.
    """
    end = {topic: dict(inner) for topic, inner in canonical(available).items()}
    waiting = ranges(start, end)
    backlog = sum(map(len, waiting))
    if backlog <= rows_max:
        return end
    shares = _shares([len(each) for each in _in_turn(start, end, waiting)], rows_max)
    for each, share in zip(_in_turn(start, end, waiting), shares, strict=True):
        end[each.topic][each.partition] = each.end if share == len(each) else each.start + share
    return end


@dataclass(frozen=True, slots=True)
class Size:
    """Stored bytes of a range's rows, and of the first of them."""

    first: int
    all: int


def byte_shares(
    start: Mapping[str, Mapping[int, int]],
    end: Mapping[str, Mapping[int, int]],
    sizes: Mapping[tuple[str, int], Size],
    bytes_max: int,
) -> dict[tuple[str, int], int] | None:
    """How many stored bytes of each range between the offsets go into a micro-batch of `bytes_max`; None if all of them
    fit.

    `sizes` has every range's, by topic and partition. As with rows, shares are proportional to backlog, and a share is
    at least the range's first row. When the first rows alone are too many, ranges are served in turn and the others
    have no share; one row always comes, however large it is, or a query would stand still.
    """
    waiting = ranges(start, end)
    total = sum(sizes[each.topic, each.partition].all for each in waiting)
    if total <= bytes_max:
        return None
    firsts = sum(sizes[each.topic, each.partition].first for each in waiting)
    shares: dict[tuple[str, int], int] = {}
    left = bytes_max
    for each in _in_turn(start, canonical(end), waiting):
        place = each.topic, each.partition
        size = sizes[place]
        if firsts <= bytes_max:
            shares[place] = size.first + (bytes_max - firsts) * (size.all - size.first) // (total - firsts)
        elif not shares or left >= size.first:
            shares[place] = size.first
            left -= size.first
        else:
            break
    return shares


def cut_to_shares(
    start: Mapping[str, Mapping[int, int]],
    end: Mapping[str, Mapping[int, int]],
    sizes: Mapping[tuple[str, int], Size],
    shares: Mapping[tuple[str, int], int],
    reached: Mapping[tuple[str, int], int],
) -> Offsets:
    """The end of a micro-batch that has of each range the share that `byte_shares` gave; `reached`: how far those bytes
    go."""
    cut = {topic: dict(inner) for topic, inner in canonical(end).items()}
    for each in ranges(start, end):
        place = each.topic, each.partition
        if place not in shares:
            cut[each.topic][each.partition] = each.start
        elif shares[place] <= sizes[place].first:
            cut[each.topic][each.partition] = each.start + 1
        else:
            cut[each.topic][each.partition] = min(max(reached[place], each.start + 1), each.end)
    return cut


def _in_turn(start: Mapping[str, Mapping[int, int]], end: Offsets, waiting: Sequence[OffsetRange]) -> list[OffsetRange]:
    everyone = [(topic, partition) for topic, inner in end.items() for partition in inner]
    first = sum(offset for inner in start.values() for offset in inner.values()) % len(everyone)
    turn = {who: (place - first) % len(everyone) for place, who in enumerate(everyone)}
    return sorted(waiting, key=lambda each: turn[each.topic, each.partition])


def _shares(backlogs: list[int], rows_max: int) -> list[int]:
    """`rows_max` rows dealt out, no share above its backlog; `rows_max` is below the sum."""
    if rows_max <= len(backlogs):
        return [1] * rows_max + [0] * (len(backlogs) - rows_max)
    left, beyond = rows_max - len(backlogs), sum(backlogs) - len(backlogs)
    shares = [1 + left * (backlog - 1) // beyond for backlog in backlogs]
    rest = rows_max - sum(shares)
    for place, backlog in enumerate(backlogs):
        if rest and shares[place] < backlog:
            shares[place] += 1
            rest -= 1
    assert rest == 0, "rounding down loses less than one row a partition"
    return shares


# ------------------------------------------------------------------ cutting into tasks


def plan(
    parts: Sequence[OffsetRange], *, cores: int, tasks_min: int | None = None, rows_max: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges laid end to end and cut into tasks of about equal rows, in the same order.

    About `cores` tasks, fewer for few rows, more for many, and then a multiple of `cores`; at least `tasks_min` if so
    many rows are there; none of more than `rows_max` rows. A cut falls on a border between ranges when one is near,
    because two tasks that share a stored batch both fetch it, unless `rows_max` is to be kept.
    """
    rows = sum(map(len, parts))
    if not rows:
        return []
    tasks = max(_tasks(rows, cores), -(-rows // rows_max) if rows_max else 1, tasks_min or 1)
    tasks = min(tasks, rows)
    cuts = [rows * number // tasks for number in range(1, tasks)] + [rows]
    near = rows // tasks // 8 if rows_max is None else 0
    planned: list[tuple[OffsetRange, ...]] = []
    task: list[OffsetRange] = []
    done = 0
    for part in parts:
        start = part.start
        while start < part.end:
            cut = cuts[len(planned)]
            room, rest = cut - done, 1 if part.is_rest else part.end - start
            take = rest if rest <= room + near else max(room, 0)
            end = part.end if take == rest else start + take
            if take:
                task.append(OffsetRange(part.topic, part.partition, start, end))
            start = end
            done += take
            if done >= cut - near and len(planned) < tasks - 1 and task:
                planned.append(tuple(task))
                task = []
    return [*planned, tuple(task)] if task else planned


def _tasks(rows: int, cores: int) -> int:
    """How many tasks are best if nobody asks for more. A core's last task must not leave the others idle: whole rounds
    of them."""
    if rows <= cores * ROWS_PER_TASK:
        return min(cores, -(-rows // ROWS_PER_TASK_MIN))
    tasks = max(min(-(-rows // ROWS_PER_TASK), cores * TASKS_PER_CORE), -(-rows // ROWS_PER_TASK_MAX))
    return -(-tasks // cores) * cores
