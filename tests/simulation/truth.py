"""What is true of a partition, whoever knows it: what was committed, where it is readable, what retention took, what
was lost.

A second, naive account of what the journal means, beside the state machine of the core that it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq_broker.core.entries import (
    Abort,
    Append,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Give,
    MoveCursor,
    Publish,
    Stage,
    TransactionKey,
    Trim,
)
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.machine.window import FORGOTTEN_AT_ONCE_MAX, WindowBounds
from mq_broker.core.messages import LeaderName, NodeState
from tests.simulation.journal import Journal

STATES_COMPARED_EVERY = 16
"""Entries, between two at which the states of replicas are held against one another and against what is known here."""


class Remembered:
    """The UUIDs that a journal's entries leave remembered, the oldest first: as plain a list as can be."""

    def __init__(self, bounds: WindowBounds) -> None:
        self._bounds = bounds
        self.uuids: list[bytes] = []
        self._timestamps_us: dict[bytes, int] = {}

    def came(self, uuid: bytes, timestamp_us: int) -> None:
        self.uuids.append(uuid)
        self._timestamps_us[uuid] = timestamp_us
        if len(self.uuids) > self._bounds.uuids_max:
            del self._timestamps_us[self.uuids.pop(0)]

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._timestamps_us

    def published(self, uuid: bytes, timestamp_us: int) -> None:
        if uuid in self._timestamps_us:
            self._timestamps_us[uuid] = timestamp_us

    def newer_half(self) -> list[bytes]:
        """Those that will be remembered for some time yet."""
        newer = self.uuids[len(self.uuids) // 2 :]
        if self._bounds.age_ms_max is None or not newer:
            return newer
        since_us = self._timestamps_us[newer[-1]] - 500 * self._bounds.age_ms_max
        return [uuid for uuid in newer if self._timestamps_us[uuid] >= since_us]

    def age(self, timestamp_us: int, added: int) -> None:
        for _ in range(FORGOTTEN_AT_ONCE_MAX + added):
            if self._bounds.age_ms_max is None or not self.uuids:
                return
            if timestamp_us - self._timestamps_us[self.uuids[0]] <= 1000 * self._bounds.age_ms_max:
                return
            del self._timestamps_us[self.uuids.pop(0)]


class Life:
    """A partition from its making, or from a recovery (rule 15), to the next recovery. Owns what was committed in it.

    `first_epoch` is the leader epoch that it began with.
    """

    def __init__(self, bounds: WindowBounds, recovery: int, first_epoch: int, gone: int = 0, dropped: int = 0) -> None:
        self.recovery = recovery
        self.first_epoch = first_epoch
        self.offset_floor = 0
        """New records get no offset below it."""
        self.committed: list[Entry] = []
        self.committed_in: list[int] = []
        """The leader epochs in which they were committed, which are those in which they were written, or later ones."""
        self.uuid_at: dict[bytes, int] = {}
        self.next_offset = 0
        self.log_start_offset = 0
        self.readable: dict[int, tuple[int, int]] = {}
        """By base offset: the entry that holds the payload, and how many records."""
        self.placed: dict[int, int] = {}
        """By entry: its base offset."""
        self.skipped: dict[int, int] = {}
        """Offsets that are nobody's: the first, and the one after the last."""
        self.kept: dict[int, int] = {}
        """Entries whose payloads must be kept, with the offset after their last record; 1 << 62 while they are
        staged."""
        self.decided: dict[tuple[TransactionKey, int], Decide] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.states: dict[int, MachineState] = {}
        self.aborted: set[TransactionKey] = set()
        """Under which nothing more is decided (of the coordinator's partition)."""
        self.owners: dict[TransactionKey, str] = {}
        """Who alone decides under a key."""
        self.fenced: set[TransactionKey] = set()
        """Under which nothing more is staged."""
        self.remembered: dict[int, tuple[bytes, ...]] = {}
        """By entry, every so many: the UUIDs remembered then."""
        self.window = Remembered(bounds)
        self.record_at: dict[bytes, int] = {}
        """The offset of each record with a UUID of its own; the last, of one that had been forgotten."""
        self.cursors: list[dict[str, int]] = [{}]
        """By entry: where the groups are once it is applied. The same object while nothing changes."""
        self._staged: dict[bytes, tuple[int, int]] = {}
        self._staged_by: dict[bytes, TransactionKey] = {}
        self._gone = gone
        """Payloads up to this entry went before the partition was recovered, whatever else is lost by that."""
        self.dropped = dropped
        """So did, perhaps, records below this offset: retention had taken them, and that it had may be what was
        lost."""

    @property
    def end(self) -> int:
        return len(self.committed)

    def remembers(self, uuid: bytes) -> bool:
        """A batch of that UUID must be recognised: the window has it, or it is staged still."""
        return uuid in self.window or uuid in self._staged

    def commit(self, entry: Entry, leader_epoch: int) -> None:
        self.committed.append(entry)
        self.committed_in.append(leader_epoch)
        self._remember(entry)
        self.cursors.append(self._moved(entry))
        match entry.operation:
            case Append() as append:
                self.uuid_at[entry.uuid] = entry.index
                self.record_at.update((uuid, offset) for offset, uuid in enumerate(append.uuids(), self.next_offset))
                self._give(entry.index, entry.record_count)
            case Stage(key):
                self.uuid_at[entry.uuid] = entry.index
                self._staged_by[entry.uuid] = key
                self._staged[entry.uuid] = (entry.index, entry.record_count)
                self.kept[entry.index] = 1 << 62
            case Publish(uuids=uuids):
                for uuid in uuids:
                    if uuid in self._staged:
                        self._give(*self._staged.pop(uuid))
            case Discard(uuids=uuids):
                self._drop(uuids)
            case Abort() | Fence() as end:
                self._end(end)
            case Give(key, owner):
                self.owners[key] = owner
            case Trim(start):
                self.trim(start)
            case EpochStart(offset_floor=floor):
                if floor > self.next_offset:
                    self.skipped[self.next_offset] = floor
                    if self.log_start_offset == self.next_offset:
                        self.trim(floor)
                    self.next_offset = floor
            case Decide(key, batch_id) as decide:
                self.decided.setdefault((key, batch_id), decide)
            case _:
                pass

    def _moved(self, entry: Entry) -> dict[str, int]:
        cursors = self.cursors[-1]
        match entry.operation:
            case MoveCursor(group, offset, forward=forward) if not (forward and cursors.get(group, -1) >= offset):
                return {**cursors, group: offset}
            case DeleteGroup(group) if group in cursors:
                return {known: offset for known, offset in cursors.items() if known != group}
            case _:
                return cursors

    def _remember(self, entry: Entry) -> None:
        added = 0
        match entry.operation:
            case Append() as append:
                records = list(append.uuids())
                for uuid in records:
                    self.window.came(uuid, entry.timestamp_us)
                added = len(records)
                self.window.came(entry.uuid, entry.timestamp_us)
            case Stage():
                self.window.came(entry.uuid, entry.timestamp_us)
            case Publish(uuids=uuids):
                for uuid in uuids:
                    if uuid in self._staged:
                        self.window.published(uuid, entry.timestamp_us)
            case _:
                pass
        self.window.age(entry.timestamp_us, added)
        if entry.index % STATES_COMPARED_EVERY == 0:
            self.remembered[entry.index] = tuple(self.window.uuids)

    def _end(self, end: Abort | Fence) -> None:
        if isinstance(end, Abort):
            self.aborted.add(end.key)
        else:
            self.fenced.add(end.key)
            self._drop(self.fenced_off(end))

    def _drop(self, uuids: Sequence[bytes]) -> None:
        for uuid in uuids:
            index, _ = self._staged.pop(uuid, (0, 0))
            self.kept.pop(index, None)

    def fenced_off(self, fence: Fence) -> list[bytes]:
        """Staged batches that this is to remove."""
        return [uuid for uuid in self._staged if self._staged_by[uuid] == fence.key and uuid not in fence.kept]

    def trim(self, log_start_offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        self.kept = {index: end for index, end in self.kept.items() if end > log_start_offset}

    def _give(self, index: int, record_count: int) -> None:
        self.readable[self.next_offset] = (index, record_count)
        self.placed[index] = self.next_offset
        self.next_offset += record_count
        self.kept[index] = self.next_offset

    def missing(self, index: int) -> bool:
        """The payload of that entry is nowhere, and nobody is to blame."""
        base = self.placed.get(index)
        return index <= self._gone or (base is not None and base + self.readable[base][1] <= self.dropped)

    def names_missing(self, publish: Publish) -> bool:
        return any(self.missing(self._staged[uuid][0]) for uuid in publish.uuids if uuid in self._staged)

    def has_between(self, first: int, next_offset: int) -> bool:
        """Is there a record, not trimmed, at any of these offsets?"""
        low = max(first, self.log_start_offset)
        return low < next_offset and any(
            base < next_offset and base + count > low and not self.missing(index)
            for base, (index, count) in self.readable.items()
        )

    def agrees_with(self, base: int, entries: Sequence[Entry]) -> int:
        """Up to which index a log that has these entries after `base` is this life's."""
        if base > self.end or (base and entries and self.committed[base - 1].leader_epoch > entries[0].leader_epoch):
            return 0
        index = base
        for entry, mine in zip(entries, self.committed[base:], strict=False):
            if entry is not mine and entry != mine:
                break
            index = entry.index
        return index

    def first_kept(self) -> int:
        """The first entry whose payload is needed: no journal may begin after it (rule 13)."""
        return min((index for index in self.kept if not self.missing(index)), default=self.end + 1)


class PartitionTruth:
    """What is true of one partition. `present` is its present life."""

    def __init__(self, bounds: WindowBounds) -> None:
        self._bounds = bounds
        self.lives = [Life(bounds, 0, 0)]
        self.lost: set[bytes] = set()
        """Batches that were committed, and only in logs that were lost."""
        self.positions: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.withdrawn: dict[tuple[int, int], Entry] = {}
        self.isr_size = 0
        self.put_back = self.goes_on_above = False
        self.node_epoch = 0
        """The node is older than what leaders did since: it names whomever it named then."""
        self.leaders: dict[int, tuple[LeaderName, int]] = {}
        self.newest_named: dict[int, int] = {}
        self.went_back_to: dict[int, str] = {}
        """The log that a broker has again since its directory went back, until it is named or another is begun."""
        self.unnamed: set[int] = set()
        """Brokers that a node which was put back names without a log: it is older than their logs."""
        self.never: set[bytes] = set()
        self.believed_in: dict[str, int] = {}
        """By log: in which life its replica last took something for committed. A checkpoint of it may say so later."""

    def still_put_back(self, state: NodeState) -> bool:
        """A node that was put back says nothing until somebody leads above all who led."""
        if self.put_back and state.leader_epoch > max(self.leaders, default=0):
            self.put_back, self.goes_on_above = False, True
        if self.goes_on_above and state.leader_epoch > self.node_epoch:
            self.isr_size = 0  # of who was heard those are named that are as far; perhaps again, until all are heard
        self.node_epoch = state.leader_epoch
        return self.put_back

    @property
    def present(self) -> Life:
        return self.lives[-1]

    def life_in(self, leader_epoch: int) -> Life:
        """The one that whoever is in that epoch knows of."""
        return next(life for life in reversed(self.lives) if life.first_epoch <= leader_epoch)

    def known(self, base: int, entries: Sequence[Entry]) -> tuple[Life, int]:
        """Up to which index a log has what was committed in some life, and in which."""
        return max(
            ((life, life.agrees_with(base, entries)) for life in self.lives),
            key=lambda found: (found[1], found[0].recovery),
        )

    def made_of(self, base: int, snapshot: Snapshot | None, life: Life) -> Life | None:
        """In which life this snapshot was made: in that one, or in a former one that goes on in it."""
        last = life.committed[-1:]
        going_on = [each for each in self.lives if each is life or each.committed[life.end - 1 : life.end] == last]
        return next((each for each in going_on if each.snapshots.get(base) == snapshot), None)

    def go_on(self, life: Life, journal: Journal, high_watermark: int, leader_epoch: int) -> None:
        """The log from which the partition was recovered had more of what was committed before than it was sure to
        keep, and has it still."""
        self.believed_in[journal.log_id] = life.recovery
        if high_watermark <= life.end:
            return
        former = self.made_of(journal.base, journal.snapshot, life) or life
        for index in range(life.end + 1, high_watermark + 1):
            entry = journal.entry(index) if index > journal.base else former.committed[index - 1]
            life.commit(entry, leader_epoch)
            self.lost.discard(entry.uuid)
        life.snapshots.update((at, snapshot) for at, snapshot in former.snapshots.items() if at <= high_watermark)

    def recover(self, recovery: int, first_epoch: int, base: int, entries: Sequence[Entry]) -> Life:
        """The partition goes on from the log that has these entries after `base`."""
        former, end = self.known(base, entries)
        dropped = max(max(life.dropped, life.log_start_offset) for life in self.lives)
        life = Life(self._bounds, recovery, first_epoch, base, dropped)  # what let the journal begin there may be lost
        for entry, leader_epoch in zip(former.committed[:end], former.committed_in, strict=False):
            life.commit(entry, leader_epoch)
        life.snapshots.update((index, snapshot) for index, snapshot in former.snapshots.items() if index <= end)
        life.states.update((index, state) for index, state in former.states.items() if index <= end)
        self.lost |= self.present.uuid_at.keys() - life.uuid_at.keys()
        self.lives.append(life)
        return life
