"""A broker of the golden scripts' world (world.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.entries import Entry
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import WriteNode
from mq_broker.core.replication.replica import Replica
from tests.mq_broker.core.words import name_of


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


class Views:
    """What scripts can ask about hosts."""

    hosts: dict[int, Host]
    out: list[str]

    def say(self, host: Host, text: str) -> None:
        self.out.append(f"{host.broker} {text}")

    def do_recall(self, *brokers: str) -> None:
        """What brokers know of UUIDs, times, groups and offsets."""
        for broker in brokers:
            host = self.hosts[int(broker)]
            machine = host.replica.machine
            self.say(host, "remembers " + (" ".join(name_of(name) for name, _ in machine.uuids.frozen()) or "nothing"))
            self.say(host, "timestamps " + " ".join(str(entry.timestamp_us) for entry in host.disk))
            cursors = (
                f"{group}={cursor.offset}" + (f" of {cursor.owner}" if cursor.owner else "")
                for group, cursor in machine.cursors.items()
            )
            self.say(host, "cursors " + (" ".join(cursors) or "none"))
            self.say(host, f"no offset at or above {host.replica.next_offset_at_most}")

    def do_keys(self, broker: str) -> None:
        """What that broker knows as a coordinator, and as a partition."""
        host = self.hosts[int(broker)]
        machine = host.replica.machine
        for key, known in machine.transactions.items():
            words = [word for word in ("finished", "once", "aborted") if getattr(known, word)]
            words += [f"of {known.owner}"] if known.owner else []
            self.say(host, f"{key.query_id} decided {known.batch_id} {' '.join(words)}".rstrip())
        self.say(host, "fenced " + (" ".join(key.query_id for key in machine.fenced) or "nothing"))
        self.say(host, "staged " + (" ".join(name_of(name) for name in machine.staged) or "nothing"))
