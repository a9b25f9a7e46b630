"""What a micro-batch in lease mode is: the leases that were made for it, as Spark keeps them in its checkpoint.

Pure. A lease is written down with its records, and with how often each was lent and failed. So a micro-batch that is
planned again after a crash has the same rows, and nobody is asked which they were.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from mq_protocol.errors import InvalidRequest
from mq_spark.planning.offsets import OffsetRange, plan

GAP_MAX: Final = 256
"""Records that are fetched and left out rather than asked for separately."""


class LeaseKey(NamedTuple):
    """What tells a lease from all others, also of a topic that was deleted and made again. Ascends as leases are made
    in a partition."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    entry: int
    step: int


class Run(NamedTuple):
    """Records `first .. end - 1` of a partition, lent `deliveries` times (this time included), failed `failures`
    times."""

    first: int
    end: int
    deliveries: int
    failures: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Records of one partition that were lent at once; `runs` ascend."""

    key: LeaseKey
    runs: tuple[Run, ...]

    @property
    def records(self) -> int:
        return sum(run.end - run.first for run in self.runs)

    def without(self, lost: Collection[int]) -> Lease:
        """The same without these offsets."""
        if not lost:
            return self
        gone = sorted(lost)
        left: list[Run] = []
        for run in self.runs:
            at = run.first
            for offset in gone[bisect_left(gone, run.first) : bisect_left(gone, run.end)]:
                if at < offset:
                    left.append(run._replace(first=at, end=offset))
                at = offset + 1
            if at < run.end:
                left.append(run._replace(first=at))
        return Lease(self.key, tuple(left))


@dataclass(frozen=True, slots=True)
class WorkRange:
    """What a task reads at once: rows of one partition whose counts are the same."""

    topic: str
    partition: int
    run: Run


# ------------------------------------------------------------------ form


def to_json(group: str, member: str, leases: Iterable[Lease]) -> dict[str, Any]:
    """The form that Spark writes into its checkpoint."""
    return {
        "group": group,
        "member": member,
        "leases": [
            {
                "topic": lease.key.topic,
                "topic_id": lease.key.topic_id,
                "partition": lease.key.partition,
                "lease": [lease.key.leader_epoch, lease.key.entry, lease.key.step],
                "runs": [list(run) for run in lease.runs],
            }
            for lease in sorted(leases, key=lambda lease: lease.key)
        ],
    }


def from_json(found: Any, group: str, member: str) -> list[Lease]:
    """The leases that a checkpoint holds, of that group and member. Raises `InvalidRequest` for anything else."""
    try:
        of = found["group"], found["member"]
        leases = [_lease(each) for each in found["leases"]]
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest(
            f"the checkpoint holds offsets that are not of a source with lease.group: {str(found)[:200]}; give the "
            "query a checkpointLocation of its own"
        ) from None
    for option, was, now in (("lease.group", of[0], group), ("lease.member", of[1], member)):
        if was != now:
            raise InvalidRequest(
                f"the checkpoint holds leases of {option}={str(was)[:100]!r}, and now {now!r} is given: restore the "
                "option, or give the query a checkpointLocation of its own"
            )
    return leases


def _lease(found: Mapping[str, Any]) -> Lease:
    """Raises `KeyError`, `TypeError` or `ValueError` for what is no lease."""
    epoch, entry, step = found["lease"]
    runs = tuple(Run(*run) for run in found["runs"])
    numbers = [found["partition"], epoch, entry, step, *(number for run in runs for number in run)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a number is missing")
    if not all(run.first < run.end for run in runs) or any(b.first < a.end for a, b in pairwise(runs)):
        raise ValueError("runs do not ascend")
    topic, topic_id = found["topic"], found["topic_id"]
    if not (isinstance(topic, str) and isinstance(topic_id, str)):
        raise TypeError("a name is missing")
    return Lease(LeaseKey(topic, topic_id, found["partition"], epoch, entry, step), runs)


# ------------------------------------------------------------------ planning


def new_leases(start: Iterable[Lease], end: Iterable[Lease]) -> list[Lease]:
    """Those that the micro-batch between these offsets works on."""
    before = {lease.key for lease in start}
    return [lease for lease in end if lease.key not in before]


def shares(rows_max: int, partitions: Sequence[tuple[str, int]], turn: int) -> dict[tuple[str, int], int]:
    """How many rows each partition is asked for: about the same, `rows_max` in all, the remainder in turn. A partition
    without a share is left out."""
    each, rest = divmod(rows_max, len(partitions))
    first = turn % len(partitions)
    in_turn = [*partitions[first:], *partitions[:first]]
    dealt = {place: each + (number < rest) for number, place in enumerate(in_turn)}
    return {place: share for place, share in dealt.items() if share}


def planned_work(
    leases: Iterable[Lease], *, cores: int, tasks_min: int | None, rows_max: int | None
) -> list[tuple[WorkRange, ...]]:
    """The records of these leases cut into tasks, by the same rules as offset ranges."""
    runs: dict[tuple[str, int], list[Run]] = {}
    for lease in leases:
        runs.setdefault((lease.key.topic, lease.key.partition), []).extend(lease.runs)
    for of_partition in runs.values():
        of_partition.sort()
    parts = [
        OffsetRange(topic, partition, run.first, run.end)
        for (topic, partition), of_partition in sorted(runs.items())
        for run in of_partition
    ]
    tasks = plan(parts, cores=cores, tasks_min=tasks_min, rows_max=rows_max)
    return [tuple(_of(part, runs[part.topic, part.partition]) for part in task) for task in tasks]


def _of(part: OffsetRange, runs: Sequence[Run]) -> WorkRange:
    """A part of a run, with its counts."""
    run = runs[bisect_right(runs, part.start, key=lambda run: run.first) - 1]
    return WorkRange(part.topic, part.partition, run._replace(first=part.start, end=part.end))


def spans(work: Iterable[WorkRange]) -> list[tuple[str, int, list[Run]]]:
    """What is fetched at once: `(topic, partition, runs)`, runs of one partition with small gaps between them."""
    found: list[tuple[str, int, list[Run]]] = []
    for each in work:
        if found:
            topic, partition, runs = found[-1]
            if (topic, partition) == (each.topic, each.partition) and each.run.first - runs[-1].end <= GAP_MAX:
                runs.append(each.run)
                continue
        found.append((each.topic, each.partition, [each.run]))
    return found
