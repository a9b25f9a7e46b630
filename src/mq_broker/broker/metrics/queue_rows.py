"""What there is to do for the queue groups of a partition, as far as it can be told without looking at each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.metrics.observation import QueueRow
from mq_broker.core.work.state import Mark, WorkState

LimitOf = Callable[[Partition, str], int | None]
"""The delivery limit of a queue group; None if it is not declared."""


def walk_queues(
    partition: Partition,
    rows: dict[tuple[str, str], QueueRow],
    limit_of: LimitOf,
    now_us: int,
    room: Callable[[], bool],
) -> Iterator[None]:
    """Add the partition's queue groups to their rows, one step a run. `room`: whether one more may be looked at."""
    topic = partition.topic.spec.name
    for group, state in list(partition.replica.machine.work.items()):
        limit = limit_of(partition, group)
        if limit is None or not partition.serving:
            continue
        row = rows.get((topic, group))
        if row is None:
            row = rows[topic, group] = QueueRow(topic, group)
        before = row.delayed + row.doomed + row.parked
        for kind, runs in (
            ("parked", state.parked()), ("doomed", state.doomed(limit)), ("delayed", state.delayed(now_us, limit))
        ):  # fmt: skip
            for count in _counts(runs):
                if not room():
                    return
                setattr(row, kind, getattr(row, kind) + count)
                yield
        _add_totals(row, partition, state, before)
        first = next(state.ready(now_us, limit, state.base, partition.next_offset), None)
        if first is not None:
            at = max(first[0], partition.index.log_start_offset)
            if at < partition.next_offset:
                since_us = partition.index.find(at).timestamp_us
                row.oldest_ready_us = min(row.oldest_ready_us or since_us, since_us)


def _counts(runs: Iterable[tuple[int, int, Mark]]) -> list[int]:
    """Taken before others have their turn: what they change must not be walked over."""
    return [end - first for first, end, _ in runs]


def _add_totals(row: QueueRow, partition: Partition, state: WorkState, before: int) -> None:
    held_back = row.delayed + row.doomed + row.parked - before
    row.leased += state.leased
    row.ready += max(0, state.unlent(partition.next_offset) - held_back)
    totals = state.totals
    for outcome, count in (("accepted", totals.accepted), ("dead", totals.dead)):
        row.settled[outcome] = row.settled.get(outcome, 0) + count
    for reason, count in totals.dropped:
        outcome = reason.name.lower()
        row.settled[outcome] = row.settled.get(outcome, 0) + count
