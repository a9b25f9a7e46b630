"""The rows by name, in the order of QUEUES.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from benchmarks.bench.measure import Readings
from benchmarks.queues import chosen_rows as chosen
from benchmarks.queues import rows
from benchmarks.queues.ground import Ground

ROWS: Final[Mapping[str, Callable[[Ground], Readings]]] = {
    "batched": rows.batched,
    "batched-os": partial(rows.batched, durability="os"),
    "one-by-one": rows.one_by_one,
    "one-by-one-os": partial(rows.one_by_one, durability="os"),
    "jobs": rows.jobs,
    "jobs-os": partial(rows.jobs, durability="os"),
    "published": rows.published,
    "published-os": partial(rows.published, durability="os"),
    "failing": rows.failing,
    "stuck": rows.stuck,
    "dead-letters": rows.dead_letters,
    "outputs": rows.outputs,
    "leader-killed": rows.leader_killed,
    "scattered": rows.scattered,
    "urgent": chosen.urgent,
    "scheduled": chosen.scheduled,
    "ordered": chosen.ordered,
}
"""By the name that `--rows` takes, in the order of the table."""

TITLES: Final[Mapping[str, str]] = {
    "batched": f"settled in batches of {rows.BATCH:,}, 2 members",
    "one-by-one": f"settled one by one, 1 member, prefetch {rows.PREFETCH:,}",
    "jobs": f"{rows.WORKERS} workers, prefetch 1",
    "published": f"publish to settled at {rows.PER_SECOND:,} records/s",
    "failing": "batches, 10 % fail once, 0.1 % are poison",
    "stuck": "batches, one record held at the head",
    "dead-letters": "rejected until published as dead letters",
    "outputs": f"batches of {rows.BATCH:,} acknowledged with as many outputs",
    "leader-killed": f"leader killed while {rows.HELD:,} records are held",
    "scattered": "acknowledged in random order, then all brokers killed",
    "urgent": f"a record of level 31 behind {chosen.BACKLOG:,} of 31 lower levels, until it is lent",
    "scheduled": f"{chosen.SCHEDULED:,} scheduled records over {chosen.OVER_S:.0f} s, how late they come",
    "ordered": f"{chosen.KEYS:,} keys, {chosen.ORDERED_MEMBERS} members, order=key",
}
