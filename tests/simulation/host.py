"""One replica in one life of its process: the core around it, what it has made readable, and when its journal may begin
later.

Its part of the shell; whose turn it is and where its effects go is the broker's (broker.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mq_broker.broker.host.quiescence import Rest, RestTimes
from mq_broker.core.entries import Entry
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    DiskRefused,
    Flushed,
    JournalBegins,
    LogReplaced,
    OffsetsSkipped,
    Propose,
    Published,
    Result,
)
from mq_broker.core.replication.replica import Replica
from tests.simulation.journal import Journal

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

SOON = RestTimes(calm_ms=200, follower_calm_ms=100)
"""Much sooner than in earnest, so that records come to replicas at rest, and faults befall them."""

REST_TICK_MS = 1_000
AUDIT_TICKS = 30
"""Later than all must be well again: whatever is, is so without the audit."""

CHECKPOINT_ENTRIES = 6
"""A checkpoint is due so many applied entries after the one before."""

OnReply: TypeAlias = Callable[[Result], None]


class Kept(NamedTuple):
    """What is derived beside the core's state, and kept in a checkpoint."""

    readable: tuple[tuple[int, int, int], ...]
    first_readable: int
    skipped: tuple[OffsetsSkipped, ...]


@dataclass(eq=False)
class Host:
    """One replica in one life: its core, what it has made readable, and who waits for its answers. Its journal's
    listener."""

    broker: Broker
    partition: int
    replica: Replica
    journal: Journal
    life: int
    waiting: dict[int, tuple[Propose, OnReply]] = field(default_factory=dict)
    readable: list[tuple[int, int, int]] = field(default_factory=list)
    """(base offset, record count, index of the entry that holds the payload), in order of offsets, and nothing that is
    trimmed."""
    first_readable: int = 0
    """Records below it are not here: retention took them, whether or not the entry that says so is applied yet."""
    skipped: list[OffsetsSkipped] = field(default_factory=list)
    reading_node: bool = False
    touched: bool = False
    rest: Rest = field(default_factory=lambda: Rest(SOON))
    next_tick_ms: int = 0
    """While it is at rest: when it is next looked at."""
    looks: int = 0
    """While it is at rest: how often it has been looked at."""
    led: bool = False
    closed: bool = False
    handed_over: bool = False
    # what the oracle has seen of it
    epoch: int = 0
    high_watermark: int = 0
    next_offset: int = 0
    acknowledged_epoch: int = 0
    led_epoch: int = -1
    was_leading: bool = False
    heard: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By follower: the newest of what it said, as (incarnation, message that it answered, log)."""
    refused_entries: tuple[Entry, ...] = ()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        if self.life == self.broker.life:
            self.broker.arrive("disk", call, *args)

    def begins(self, first_index: int) -> None:
        self.broker.feed(self, JournalBegins(first_index))

    def flushed(self, index: int, leader_epoch: int) -> None:
        self.broker.feed(self, Flushed(index, leader_epoch))
        if not self.closed and self.replica.applied_index >= self.journal.kept_index + CHECKPOINT_ENTRIES:
            beside = Kept(tuple(self.readable), self.first_readable, tuple(self.skipped))
            self.journal.keep(self.replica.applied_state(), beside)

    def goes_on_from(self, kept: Kept, state: MachineState) -> None:
        """A checkpoint."""
        self.readable, self.skipped = list(kept.readable), list(kept.skipped)
        self.next_offset = state.next_offset
        self.trimmed(max(self.first_readable, kept.first_readable))

    def refused(self, first_index: int, reason: str, entries: tuple[Entry, ...]) -> None:
        self.refused_entries = entries
        self.broker.feed(self, DiskRefused(first_index, reason))

    def replaced(self, log_id: str, reason: str) -> None:
        self.broker.feed(self, LogReplaced(log_id, reason))

    @property
    def leading(self) -> bool:
        return self.replica.leading

    @property
    def led_by(self) -> tuple[int, int]:
        return self.replica.leader, self.replica.leader_epoch

    @property
    def contact_ms(self) -> int | None:
        return self.broker.contacts.since(self.replica.leader)

    @property
    def at_rest(self) -> bool:
        return not self.waiting and self.replica.at_rest

    # -- what readers see

    def published(self, batch: Published) -> None:
        if batch.index > self.journal.base:
            self.readable.append((batch.base_offset, batch.record_count, batch.index))
        else:  # its payload is gone already, and so is the record, by an entry that follows
            self.trimmed(batch.base_offset + batch.record_count)

    def trimmed(self, log_start_offset: int) -> None:
        self.first_readable = max(self.first_readable, log_start_offset)
        while self.readable and self.readable[0][0] + self.readable[0][1] <= self.first_readable:
            del self.readable[0]

    # -- where the journal may begin

    def first_needed(self) -> int:
        """The first entry whose payload may yet be read, or given offsets; the first not yet applied if there is none
        (rule 13)."""
        replica = self.replica
        staged = replica.machine.oldest_staged_index()
        needed = [index for base, count, index in self.readable if base + count > replica.machine.log_start_offset]
        return min([replica.applied_index + 1, *needed, *([] if staged is None else [staged])])

    def shorten(self, *, wholly: bool) -> None:
        """Let the journal begin as late as it may, or somewhere before that (files go as a whole)."""
        last = self.first_needed() - 1
        if not wholly and last > self.journal.base:
            last = self.broker.loop.random.randint(self.journal.base + 1, last)
        if last > self.journal.base:
            snapshot = self.snapshot_at(last)
            self.broker.cluster.oracle.check_snapshot(self, snapshot)
            self.journal.shorten(snapshot)

    def snapshot_at(self, last_index: int) -> Snapshot:
        """What the entries up to there come to, from the snapshot before them on."""
        journal = self.journal
        before = journal.snapshot or Snapshot(0, 0, 0, MachineState())
        machine = PartitionMachine(self.broker.cluster.plan.settings.window, before.state)
        entries = journal.span(journal.base + 1, last_index)
        for entry in entries:
            machine.apply(entry)
        latest = max(before.timestamp_us, *(entry.timestamp_us for entry in entries))
        return Snapshot(last_index, entries[-1].leader_epoch, latest, machine.state())
