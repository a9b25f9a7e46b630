"""One observation of a broker as values: what every rendering of it is made of. No metric is computed anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class PartitionRow(NamedTuple):
    """An open replica of this broker. `leads`: and knows the end of its log. `leader`: 0 if none is known here.
    `oldest_staged_us`: microseconds since 1970, 0 if nothing is staged. `unheard_ms`: while it leads, for how long it
    has heard nothing of each replica that is not in sync."""

    topic: str
    partition: int
    leads: bool
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    moving_to: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    staged_batches: int
    oldest_staged_us: int
    unheard_ms: dict[int, int]


@dataclass(slots=True)
class TopicRow:
    """Sums over the partitions of a topic that this broker leads: so many are `led`, it follows the others."""

    name: str
    led: int = 0
    records: int = 0
    bytes: int = 0
    staged_batches: int = 0
    oldest_staged_us: int = 0
    retention_ms: int | None = None

    def add(self, row: PartitionRow) -> None:
        """Count a partition in."""
        if not row.leads:
            return
        self.led += 1
        self.records += row.log_end_offset - row.log_start_offset
        self.bytes += row.size_bytes
        self._add_staged(row)

    def include(self, row: TopicRow) -> None:
        """Count a topic in, of which nothing is told by itself."""
        self.led += row.led
        self.records += row.records
        self.bytes += row.bytes
        self._add_staged(row)

    def _add_staged(self, row: PartitionRow | TopicRow) -> None:
        self.staged_batches += row.staged_batches
        if row.oldest_staged_us:
            self.oldest_staged_us = min(self.oldest_staged_us or row.oldest_staged_us, row.oldest_staged_us)


@dataclass(slots=True)
class GroupRow:
    """A group in a topic, of the partitions that this broker leads: how many members it has, how many records and
    stored bytes are behind its cursors, how old the oldest of them is, and when one of its cursors moved last.
    `label`: what people call the group."""

    group: str
    topic: str
    kind: str
    members: set[str] = field(default_factory=set)
    lag: int = 0
    lag_bytes: int = 0
    lag_us: int = 0
    moved_us: int = 0
    label: str = ""


@dataclass(slots=True)
class QueueRow:
    """A queue group, of the partitions that this broker leads: records by their state, since when the first of those
    that are ready has been there, and how many were settled since the group was made, by outcome. `stuck`: in so many
    partitions it stands still although it has work."""

    topic: str
    group: str
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    doomed: int = 0
    parked: int = 0
    oldest_ready_us: int = 0
    settled: dict[str, int] = field(default_factory=dict)
    stuck: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """`values`: numbers of the broker itself, by the names of their metrics. `links`: to each other registered broker,
    whether there is one. `left_out`: how many cursors were not looked at, since there are too many; of
    queue groups, how many runs of records. `partitions` and
    `topics` are in order of name, `groups` in no order."""

    broker: int
    incarnation: int
    cluster_id: str
    version: str
    rack: str
    now_us: int
    state: str
    coordination: str
    values: dict[str, float]
    links: dict[int, bool]
    topics: list[TopicRow]
    partitions: list[PartitionRow]
    groups: list[GroupRow]
    queues: list[QueueRow]
    left_out: int = 0
