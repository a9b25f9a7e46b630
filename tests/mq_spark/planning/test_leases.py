"""What a checkpoint holds in lease mode, and how leases are cut into tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mq_protocol.errors import InvalidRequest, InvalidSetting
from mq_spark.planning.leases import (
    Lease,
    LeaseKey,
    Run,
    WorkRange,
    from_json,
    planned_work,
    shares,
    spans,
    to_json,
)
from mq_spark.planning.options import SourceOptions, parse_source


def lease(entry: int, *runs: tuple[int, int], partition: int = 0, deliveries: int = 1) -> Lease:
    key = LeaseKey("jobs", "id", partition, 3, entry, 0)
    return Lease(key, tuple(Run(first, end, deliveries, 0) for first, end in runs))


def offsets(tasks: list[tuple[WorkRange, ...]]) -> list[list[int]]:
    return [[n for each in task for n in range(each.run.first, each.run.end)] for task in tasks]


def test_a_checkpoint_gives_back_the_leases_that_it_was_given() -> None:
    leases = [lease(7, (0, 4), (9, 10)), lease(8, (20, 21), partition=1, deliveries=3)]
    written = json.dumps(to_json("g", "spark-m", reversed(leases)))
    assert from_json(json.loads(written), "g", "spark-m") == leases
    assert json.dumps(to_json("g", "spark-m", leases)) == written


@pytest.mark.parametrize("change", ["group", "member"])
def test_a_checkpoint_of_another_group_or_member_is_refused(change: str) -> None:
    found = {**to_json("g", "spark-m", []), change: "other"}
    with pytest.raises(InvalidRequest, match=rf"lease\.{change}='other'.*restore the option"):
        from_json(found, "g", "spark-m")


@pytest.mark.parametrize(
    "found",
    [
        {"jobs": {"0": 23}},
        {"group": "g", "member": "spark-m", "leases": [{}]},
        {"group": "g", "member": "spark-m", "leases": 3},
        {**to_json("g", "spark-m", [lease(7, (4, 9), (5, 6))])},
        {**to_json("g", "spark-m", [lease(7, (9, 4))])},
        {**to_json("g", "spark-m", [lease(-1, (4, 9))])},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(found: Any) -> None:
    with pytest.raises(InvalidRequest, match="checkpointLocation of its own"):
        from_json(found, "g", "spark-m")


def test_lost_records_are_left_out_of_a_lease() -> None:
    assert lease(7, (0, 4), (9, 12)).without([0, 2, 9, 10, 11, 50]) == lease(7, (1, 2), (3, 4))


def test_rows_are_asked_of_partitions_in_equal_parts_and_the_rest_in_turn() -> None:
    places = [("jobs", 0), ("jobs", 1), ("jobs", 2)]
    assert shares(8, places, 0) == {("jobs", 0): 3, ("jobs", 1): 3, ("jobs", 2): 2}
    assert shares(1, places, 2) == {("jobs", 2): 1}


def test_tasks_have_each_record_once_with_its_counts() -> None:
    leases = [lease(7, (0, 30), (40, 41)), lease(8, (30, 36), deliveries=5), lease(9, (3, 5), partition=1)]
    tasks = planned_work(leases, cores=2, tasks_min=4, rows_max=None)
    assert len(tasks) == 4
    assert sorted(n for task in offsets(tasks) for n in task) == sorted([*range(36), 40, 3, 4])
    counts = {(each.partition, each.run.first): each.run.deliveries for task in tasks for each in task}
    assert counts[0, 30] == 5
    assert {number for place, number in counts.items() if place != (0, 30)} == {1}


def test_runs_with_small_gaps_are_fetched_at_once() -> None:
    work = [WorkRange("jobs", 0, Run(first, first + 2, 1, 0)) for first in (0, 100, 1000)]
    assert [(p, [run.first for run in runs]) for _, p, runs in spans(work)] == [(0, [0, 100]), (0, [1000])]


# ------------------------------------------------------------------ options


def parsed(streaming: bool | None = True, **given: str) -> SourceOptions:
    options = {"bootstrap.servers": "h:1", "subscribe": "jobs", "lease.group": "g", "lease.member": "m"}
    return parse_source(options | {name.replace("_", "."): value for name, value in given.items()}, streaming=streaming)


def test_lease_options_have_their_defaults() -> None:
    lease = parsed().lease
    assert lease is not None
    assert (lease.group, lease.member, lease.lease_ms, lease.skip_lost) == ("g", "spark-m", 3_600_000, False)


@pytest.mark.parametrize(
    ("streaming", "given", "told"),
    [
        (False, {}, r"lease\.member has no meaning in a batch read.*use readStream with trigger\(availableNow=True\)"),
        (True, {"lease.rows": "5"}, r"lease\.rows has no meaning in a stream: use maxOffsetsPerTrigger"),
        (None, {"lease.rows": "0"}, r"lease\.rows=0 is out of range"),
        (True, {"lease.ms": "10"}, r"lease\.ms=10 is out of range: give 1000 or more"),
        (True, {"lease.ms": "99999999999"}, "is too long: give at most 43200000"),
        (True, {"leaseLost": "skipp"}, "did you mean 'skip'"),
        (True, {"lease.member": "a/b"}, r"lease\.member: "),
        (True, {"lease.group": ""}, r"lease\.group: "),
        (True, {"startingOffsets": "earliest"}, "a queue begins where it was declared to"),
        (True, {"filter": "a > 1"}, "would count as done"),
        (True, {"kafka.group.id": "x"}, "names the group"),
    ],
)
def test_lease_options_that_cannot_be_kept_to_are_refused(streaming: bool, given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        parsed(streaming, **given)


def test_lease_options_need_each_other() -> None:
    options = {"bootstrap.servers": "h:1", "subscribe": "jobs"}
    with pytest.raises(InvalidSetting, match=r"lease\.member is missing: name this query"):
        parse_source({**options, "lease.group": "g"}, streaming=True)
    for streaming in (False, None):
        lease = parse_source({**options, "lease.group": "g", "lease.rows": "5"}, streaming=streaming).lease
        assert lease is not None
        assert (lease.member, lease.rows) == ("", 5)
    with pytest.raises(InvalidSetting, match=r"endingOffsets cannot be used with lease\.group: a queue lends what is"):
        parse_source({**options, "lease.group": "g", "endingOffsets": "latest"}, streaming=False)
    with pytest.raises(InvalidSetting, match=r"leaseLost has no meaning without lease\.group"):
        parse_source({**options, "leaseLost": "skip"}, streaming=True)
