"""One observation of a broker as values: what every rendering of it is made of. No metric is computed anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_protocol import mq_pb2 as pb


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
    topics: list[pb.ObservedTopic]
    partitions: list[pb.ObservedPartition]
    groups: list[pb.ObservedGroup]
    queues: list[QueueRow]
    left_out: int = 0
