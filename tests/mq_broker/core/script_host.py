"""A broker of the golden scripts' world (world.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.entries import Entry
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import WriteNode
from mq_broker.core.replication.replica import Replica


@dataclass
class Host:
    """One broker: its replica, its disk (the snapshot it begins with, entries, how many are synced), incarnation, log
    id."""

    broker: int
    replica: Replica
    incarnation: int
    log_id: str
    disk: list[Entry] = field(default_factory=list)
    synced: int = 0
    writes: list[WriteNode] = field(default_factory=list)
    reading: bool = False
    deaf: bool = False
    up: bool = True
    snapshot: Snapshot | None = None
    recovery: int = 0

    @property
    def base(self) -> int:
        return self.snapshot.last_index if self.snapshot is not None else 0
