"""The partition's state machine: what the committed journal means.

Every replica applies the same entries in the same order and so has the same state: the next offset, the UUIDs already
seen, what is staged, where each group is, and, on partitions of the coordinator's topic, what is decided. Pure and
total: an entry that changes nothing (a discard of what is gone) is fine, since the leader checked it against the state
of its time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from mq_broker.core.entries import (
    SCHEDULED,
    UUID_BYTES,
    Abort,
    Append,
    Attributes,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.core.machine.due_times import DueTimes
from mq_broker.core.machine.state import EPHEMERAL, Cursor, MachineState, StagedBatch, TransactionState
from mq_broker.core.machine.window import Placed, UuidWindow, WindowBounds
from mq_broker.core.messages import OffsetsSkipped, Published, Trimmed
from mq_broker.core.work.state import WorkGroups

Change: TypeAlias = Published | Trimmed | OffsetsSkipped
"""What readers see of an entry that was applied."""

PUBLISHED_KEYS_MAX = 100_000
"""Keys whose last published micro-batch a partition remembers. A publish is retried for seconds, not for 100,000 other
queries."""

FENCED_KEYS_MAX = 10_000
"""Aborted keys under which a partition refuses to stage. What is staged under one that it has forgotten cannot be
decided, since the coordinator forgets none; it is discarded as what lost is."""

SUPERSEDED_RUNS_MAX = 100
"""Former runs of one query that are still refused by name."""


class PartitionMachine:
    """Owns the applied state of one partition."""

    def __init__(self, window: WindowBounds, state: MachineState | None = None) -> None:
        state = state or MachineState()
        self.next_offset = state.next_offset
        self.log_start_offset = state.log_start_offset
        self.uuids = UuidWindow(window, state.uuids)
        self.staged: dict[bytes, StagedBatch] = {batch.uuid: batch for batch in state.staged}
        self.due_times = DueTimes(state.staged)
        self.published: OrderedDict[TransactionKey, int] = OrderedDict(state.published)
        self.cursors: dict[str, Cursor] = dict(state.cursors)
        self.ephemeral: set[str] = {group for group, cursor in state.cursors if cursor.kind == EPHEMERAL}
        self.transactions: dict[TransactionKey, TransactionState] = dict(state.transactions)
        self.fenced: OrderedDict[TransactionKey, None] = OrderedDict.fromkeys(state.fenced)
        self.work = WorkGroups.thawed(state.work)

    def state(self) -> MachineState:
        """All of it as one value, from which a machine like this one can be made."""
        return MachineState(
            self.next_offset,
            self.log_start_offset,
            self.uuids.frozen(),
            tuple(self.staged.values()),
            tuple(self.published.items()),
            tuple(self.cursors.items()),
            tuple(self.transactions.items()),
            tuple(self.fenced),
            self.work.frozen(),
        )

    def staged_rows(self, uuid: bytes) -> int:
        """Rows of a staged batch, 0 if none of that UUID is staged."""
        batch = self.staged.get(uuid)
        return 0 if batch is None else batch.row_count

    def oldest_staged_index(self) -> int | None:
        """The first entry whose payload may yet be given offsets: the journal may not begin after it (rule 13)."""
        return min((batch.index for batch in self.staged.values()), default=None)

    def has_passed(self, move: MoveCursor) -> bool:
        """Whether the group's cursor is where this would move it, or beyond, and may only go forward."""
        cursor = self.cursors.get(move.group)
        return move.forward and cursor is not None and move.offset <= cursor.offset

    def apply(self, entry: Entry) -> Sequence[Change]:
        """Take in one committed entry; returns what readers see of it."""
        changes = self._apply(entry)
        added = len(entry.operation.record_uuids) // UUID_BYTES if isinstance(entry.operation, Append) else 0
        self.uuids.forget_aged(entry.timestamp_us, added)
        return changes

    def _apply(self, entry: Entry) -> Sequence[Change]:
        match entry.operation:
            case Append() as append:
                published = self._give_offsets(
                    entry.index, entry.record_count, entry.timestamp_us, entry, append.attributes
                )
                for offset, uuid in enumerate(append.uuids(), published.base_offset):
                    self.uuids.remember(uuid, Placed(entry.index, offset, entry.timestamp_us))
                # Last, so that a retry is recognised however many UUIDs its records have.
                self.uuids.remember(entry.uuid, Placed(entry.index, published.base_offset, entry.timestamp_us))
                return [published]
            case Stage() | Schedule() | Carry() as stage:
                self._carry(entry) if isinstance(stage, Carry) else self._stage(entry, stage)
            case Publish() as publish:
                return self._publish(entry, publish)
            case Discard(uuids=uuids):
                for uuid in uuids:
                    self.staged.pop(uuid, None)
                    self.due_times.remove(uuid)
            case MoveCursor() | DeleteGroup() as change:
                self._change_group(change, entry.timestamp_us)
            case Fence() as fence:
                self._fence(fence)
            case Decide() | Finish() | Give() | Abort() | Forget() as operation:
                self._coordinate(operation, entry.timestamp_us)
            case Work(group, life, steps):
                log = self.log_start_offset, self.next_offset
                self.work.apply(group, life, steps, entry.leader_epoch, entry.index, log)
            case EpochStart(offset_floor=floor, recovery=recovery):
                self.work.recover(recovery, (entry.leader_epoch, entry.index))
                return self._skip_to(floor)
            case Trim(log_start_offset=offset):
                start = min(offset, self.next_offset)  # there is nothing beyond to drop
                if start > self.log_start_offset:
                    self.log_start_offset = start
                    self.work.pass_to(start)
                    return [Trimmed(start)]
        return []

    def _change_group(self, change: MoveCursor | DeleteGroup, timestamp_us: int) -> None:
        if isinstance(change, DeleteGroup):
            self.cursors.pop(change.group, None)
            self.ephemeral.discard(change.group)
        elif not self.has_passed(change):
            known = self.cursors.get(change.group)
            kept = known.owner if known is not None and known.has_same_readers(change.kind) else ""
            self.cursors[change.group] = Cursor(change.offset, change.kind, timestamp_us, kept or change.owner)
            (self.ephemeral.add if change.kind == EPHEMERAL else self.ephemeral.discard)(change.group)

    def _skip_to(self, floor: int) -> list[Change]:
        """After a recovery: offsets that the lost records may have had are not given to others (rule 15)."""
        if floor <= self.next_offset:
            return []
        first, self.next_offset = self.next_offset, floor
        self.work.skip(first, floor)
        if self.log_start_offset < first:
            return [OffsetsSkipped(first, floor)]
        self.log_start_offset = floor  # nothing is left before it: the log starts where it goes on
        return [OffsetsSkipped(first, floor), Trimmed(floor)]

    def _give_offsets(
        self, index: int, record_count: int, timestamp_us: int, sized: Entry | StagedBatch, attributes: Attributes
    ) -> Published:
        published = Published(
            self.next_offset,
            record_count,
            index,
            timestamp_us,
            sized.payload_bytes,
            sized.decoded_bytes,
            attributes.priority,
            timestamp_us + attributes.ttl_ms * 1_000 if attributes.ttl_ms else 0,
        )
        self.next_offset += record_count
        return published

    def _stage(self, entry: Entry, stage: Stage | Schedule) -> None:
        due_us = stage.due_us if isinstance(stage, Schedule) else 0
        key, batch_id, run_id = (
            (SCHEDULED, 0, "") if isinstance(stage, Schedule) else (stage.key, stage.batch_id, stage.run_id)
        )
        self.staged[entry.uuid] = StagedBatch(
            entry.uuid,
            key,
            batch_id,
            run_id,
            entry.record_count,
            entry.index,
            entry.timestamp_us,
            entry.payload_bytes,
            entry.decoded_bytes,
            due_us,
            stage.attributes,
            stage.owner if isinstance(stage, Stage) else "",
        )
        if due_us:
            self.due_times.add(entry.uuid, due_us)
        self.uuids.remember(entry.uuid, Placed(entry.index, -1, entry.timestamp_us))

    def _carry(self, entry: Entry) -> None:
        waiting = self.staged.get(entry.uuid)
        if waiting is not None and waiting.due_us:  # else it was published or cancelled meanwhile
            self.staged[entry.uuid] = replace(waiting, index=entry.index)

    def _publish(self, entry: Entry, publish: Publish) -> list[Published]:
        readable: list[Published] = []
        for uuid in publish.uuids:
            batch = self.staged.pop(uuid, None)
            if batch is None:
                continue
            published = self._give_offsets(batch.index, batch.row_count, entry.timestamp_us, batch, batch.attributes)
            readable.append(published)
            placed = Placed(batch.index, published.base_offset, entry.timestamp_us)
            if not self.uuids.place(uuid, placed) and batch.due_us:
                self.uuids.remember(uuid, placed)  # it may have waited longer than the window goes back
            self.due_times.remove(uuid)
        if publish.key == SCHEDULED:
            return readable
        self.published[publish.key] = max(publish.batch_id, self.published.get(publish.key, -1))
        self.published.move_to_end(publish.key)
        if len(self.published) > PUBLISHED_KEYS_MAX:
            self.published.popitem(last=False)
        return readable

    def undecided(self, fence: Fence) -> list[bytes]:
        """What is staged here under the key, and what it keeps does not name."""
        kept = set(fence.kept)
        return [uuid for uuid, batch in self.staged.items() if batch.key == fence.key and uuid not in kept]

    def _fence(self, fence: Fence) -> None:
        for uuid in self.undecided(fence):
            del self.staged[uuid]
        self.fenced[fence.key] = None
        if len(self.fenced) > FENCED_KEYS_MAX:
            self.fenced.popitem(last=False)

    def _coordinate(self, operation: Decide | Finish | Give | Abort | Forget, timestamp_us: int) -> None:
        """What coordinators alone have in their journals."""
        match operation:
            case Decide() as decide:
                self._decide(decide, timestamp_us)
            case Finish(key=key, batch_id=batch_id):
                known = self.transactions.get(key)
                if known is not None and known.batch_id == batch_id:
                    self.transactions[key] = replace(known, finished=True, manifest=(), changed_us=timestamp_us)
            case Give(key=key, owner=owner):
                known = self.transactions.get(key)
                if known is not None:
                    self.transactions[key] = replace(known, owner=owner, changed_us=timestamp_us)
            case Abort(key=key):
                known = self.transactions.get(key) or TransactionState(-1, "", 0, (), finished=True, superseded=())
                self.transactions[key] = replace(known, aborted=True, changed_us=timestamp_us)
            case Forget(keys=keys):
                for key in keys:
                    self.transactions.pop(key, None)

    def _decide(self, decide: Decide, timestamp_us: int) -> None:
        known = self.transactions.get(decide.key)
        superseded = known.superseded if known is not None else ()
        if known is not None and known.run_id != decide.run_id:
            superseded = (*superseded, known.run_id)[-SUPERSEDED_RUNS_MAX:]
        owner = (known.owner if known is not None else "") or decide.owner
        if known is not None and decide.batch_id == known.batch_id:  # asked again by another run: only the run is news
            self.transactions[decide.key] = replace(
                known, run_id=decide.run_id, superseded=superseded, changed_us=timestamp_us, owner=owner
            )
            return
        finished = not decide.manifest
        self.transactions[decide.key] = TransactionState(
            decide.batch_id,
            decide.run_id,
            decide.row_count,
            decide.manifest,
            finished,
            superseded,
            once=decide.once,
            changed_us=timestamp_us,
            owner=owner,
        )
