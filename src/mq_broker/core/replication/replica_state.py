"""What a replica knows whatever its role: its log, its applied state, the state node, who lives; and the outbox of
effects.

Roles (leader.py, follower.py) are given this and hold only what is their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.entries import Entry, EpochStart
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.messages import (
    Audit,
    Effect,
    Identity,
    LeaderName,
    NodeState,
    ReadNode,
    RecoveredLog,
    RecoveryAdopted,
    ReplicaSettings,
    SoFar,
    WriteNode,
)
from mq_broker.core.replication.log import Log


@dataclass(frozen=True, slots=True)
class Node:
    """The state node as last read or written, with its version."""

    version: int
    state: NodeState


class Shared:
    """Owns everything of one replica that outlives a role.

    `epoch` is the highest leader epoch seen, from the node or from another replica's message; it never falls.
    `high_watermark` is the last index known to be committed (after a restart that of the checkpoint, else where the
    journal begins, 0 if that is whole: rule 2).
    `recovery` is the highest that this log was found to go on under (rule 15).
    """

    def __init__(
        self, topic: str, partition: int, me: Identity, settings: ReplicaSettings, log: RecoveredLog, now_ms: int
    ) -> None:
        self.name = f"{topic}-{partition}"
        self.me = me
        self.settings = settings
        self.log = Log(log.entries, log.snapshot, log.checkpoint)
        begins = log.checkpoint.snapshot if log.checkpoint is not None else log.snapshot
        self.machine = PartitionMachine(settings.window, begins.state if begins is not None else None)
        # What the disk was to remember may be lost; an epoch start in the log says it too
        starts = (entry.operation for entry in log.entries if isinstance(entry.operation, EpochStart))
        self.recovery = max((me.recovery, *(start.recovery for start in starts)))
        self.now_ms = now_ms
        self.epoch = self.log.last_epoch
        self.high_watermark = self.log.applied
        self.node: Node | None = None
        self.restored = False  # the node is older than what was seen
        self.promised = (
            False  # nobody is known to lead `epoch`: a candidate has asked under it, and lower ones are over
        )
        self.proved = (0, 0)  # an epoch, and the last index that a message of it proved to be its leader's too
        self.live: dict[int, int] = {}
        self.incarnations: dict[int, int] = {}
        self.effects: list[Effect] = []
        if self.recovery > me.recovery:  # before the epoch start that says it is behind a checkpoint
            self.emit(RecoveryAdopted(self.recovery))
        self.reading_since_ms: int | None = None
        self.next_read_ms = now_ms
        self._tokens = 0

    def take_node(self, node: Node) -> None:
        """The node as it is."""
        self.node, self.restored = node, False
        self.epoch = max(self.epoch, node.state.leader_epoch)

    def put_back(self, node: Node) -> None:
        """The node as it is since the coordination service was put back to an older copy. Leaders who have not seen
        that are over, once others are told of the next epoch."""
        self.epoch += not self.restored
        self.node, self.restored = node, True

    # -- effects

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def audit(self, text: str, *, alarm: bool = False) -> None:
        self.effects.append(Audit(f"{self.name}: {text}", alarm))

    def read_node(self) -> None:
        """Ask for the node unless an answer is on its way. A read that never answers is asked again after
        `silence_ms`."""
        if self.reading:
            return
        self.reading_since_ms = self.now_ms
        self.next_read_ms = self.now_ms + self.settings.read_node_ms
        self.emit(ReadNode())

    def prove(self, index: int) -> None:
        """A message of this epoch proved that its leader has what is here up to `index`."""
        epoch, before = self.proved
        self.proved = self.epoch, max(index, before) if epoch == self.epoch else index

    @property
    def reading(self) -> bool:
        return self.reading_since_ms is not None and self.now_ms - self.reading_since_ms < self.settings.silence_ms

    def next_token(self) -> str:
        """A name for one write, unique over all lives of all brokers."""
        self._tokens += 1
        return f"{self.me.broker}.{self.me.incarnation}.{self._tokens}"

    def write_node(self, expected_version: int, state: NodeState) -> None:
        self.emit(WriteNode(expected_version, state))

    def so_far(self, question: str, *, asks: bool, committed: bool = False) -> SoFar:
        """How far this log is on its disk, or how far it is known here to be committed."""
        index = self.high_watermark if committed else self.log.flushed
        me = self.me
        return SoFar(
            me.broker, me.incarnation, me.log_id, self.epoch, index, self.log.epoch_at(index), question, asks=asks
        )

    # -- who is who

    @property
    def my_name(self) -> LeaderName:
        return LeaderName(self.me.broker, self.me.incarnation)

    @property
    def my_member(self) -> tuple[int, str]:
        return (self.me.broker, self.me.log_id)

    @property
    def assigned(self) -> bool:
        """This broker is one of the partition's replicas. One that is not any more leads only until one that is can
        (trap 19)."""
        return self.me.broker in self.settings.replicas

    @property
    def registered(self) -> bool:
        return self.live.get(self.me.broker) == self.me.incarnation

    def is_registered(self, name: LeaderName) -> bool:
        return self.live.get(name.broker) == name.incarnation

    def sender_is_current(self, broker: int, incarnation: int) -> bool:
        """Refuse any life of a broker older than one seen (rule 1)."""
        seen = self.incarnations.get(broker, 0)
        if incarnation < seen:
            return False
        self.incarnations[broker] = incarnation
        return True

    # -- the high watermark

    def commit_to(self, index: int) -> list[tuple[Entry, int]]:
        """Move the high watermark and apply up to it. Returns each applied entry with the next offset before it."""
        assert index <= self.log.last_index, f"{self.name}: commit {index} past the end {self.log.last_index}"
        applied: list[tuple[Entry, int]] = []
        self.high_watermark = max(self.high_watermark, index)
        while self.log.applied < self.high_watermark:
            entry = self.log.take_applied()
            before = self.machine.next_offset
            self.effects.extend(self.machine.apply(entry))
            applied.append((entry, before))
        return applied


def without(isr: tuple[tuple[int, str], ...], broker: int) -> tuple[tuple[int, str], ...]:
    return tuple(member for member in isr if member[0] != broker)


def with_member(isr: tuple[tuple[int, str], ...], broker: int, log_id: str) -> tuple[tuple[int, str], ...]:
    """The set with that broker named by that log id alone, sorted by broker."""
    return tuple(sorted((*without(isr, broker), (broker, log_id))))
