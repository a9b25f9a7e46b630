"""The partition's state machine: what the committed journal means.

Every replica applies the same entries in the same order and so has the same state: the next offset, the UUIDs already seen, what is
staged, where each group is, and, on partitions of the coordinator's topic, what is decided. Pure and total: an entry that changes
nothing (a discard of what is gone) is fine, since the leader checked it against the state of its time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from mq_broker.core.entries import (
    Append,
    Decide,
    Discard,
    Entry,
    EpochStart,
    Finish,
    MoveCursor,
    Publish,
    Stage,
    StagedBatches,
    TransactionKey,
)
from mq_broker.core.messages import Published

PUBLISHED_KEYS_MAX = 100_000
"""Keys whose last published micro-batch a partition remembers. A publish is retried for seconds, not for 100,000 other queries."""

SUPERSEDED_RUNS_MAX = 100
"""Former runs of one query that are still refused by name."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a UUID ended. `base_offset` is -1 while the batch is staged (or was discarded)."""

    index: int
    base_offset: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class StagedBatch:
    uuid: bytes
    key: TransactionKey
    batch_id: int
    run_id: str
    row_count: int
    index: int
    timestamp_us: int
    payload_bytes: int
    decoded_bytes: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A group's next offset. `moved_us`: when it was last moved, leader's wall clock."""

    offset: int
    kind: str
    moved_us: int


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The last decided micro-batch of a key. `manifest` is emptied once everything is published (`finished`)."""

    batch_id: int
    run_id: str
    row_count: int
    manifest: tuple[StagedBatches, ...]
    finished: bool
    superseded: tuple[str, ...]


class PartitionMachine:
    """Owns the applied state of one partition."""

    def __init__(self, dedup_uuids_max: int) -> None:
        self._dedup_uuids_max = dedup_uuids_max
        self.next_offset = 0
        self.uuids: OrderedDict[bytes, Placed] = OrderedDict()
        self.staged: dict[bytes, StagedBatch] = {}
        self.published: OrderedDict[TransactionKey, int] = OrderedDict()
        self.cursors: dict[str, Cursor] = {}
        self.transactions: dict[TransactionKey, TransactionState] = {}

    def apply(self, entry: Entry) -> list[Published]:
        """Take in one committed entry; returns the batches that became readable by it."""
        match entry.operation:
            case Append():
                published = self._give_offsets(entry.index, entry.record_count, entry.timestamp_us, entry)
                self._remember(entry.uuid, Placed(entry.index, published.base_offset, entry.timestamp_us))
                return [published]
            case Stage() as stage:
                self._stage(entry, stage)
            case Publish() as publish:
                return self._publish(entry, publish)
            case Discard(uuids=uuids):
                for uuid in uuids:
                    self.staged.pop(uuid, None)
            case MoveCursor(group=group, offset=offset, kind=kind):
                self.cursors[group] = Cursor(offset, kind, entry.timestamp_us)
            case Decide() as decide:
                self._decide(decide)
            case Finish(key=key, batch_id=batch_id):
                known = self.transactions.get(key)
                if known is not None and known.batch_id == batch_id:
                    self.transactions[key] = replace(known, finished=True, manifest=())
            case EpochStart():
                pass
        return []

    def _give_offsets(self, index: int, record_count: int, timestamp_us: int, sized: Entry | StagedBatch) -> Published:
        published = Published(self.next_offset, record_count, index, timestamp_us, sized.payload_bytes, sized.decoded_bytes)
        self.next_offset += record_count
        return published

    def _remember(self, uuid: bytes, placed: Placed) -> None:
        self.uuids[uuid] = placed
        if len(self.uuids) > self._dedup_uuids_max:
            self.uuids.popitem(last=False)

    def _stage(self, entry: Entry, stage: Stage) -> None:
        self.staged[entry.uuid] = StagedBatch(
            entry.uuid,
            stage.key,
            stage.batch_id,
            stage.run_id,
            entry.record_count,
            entry.index,
            entry.timestamp_us,
            entry.payload_bytes,
            entry.decoded_bytes,
        )
        self._remember(entry.uuid, Placed(entry.index, -1, entry.timestamp_us))

    def _publish(self, entry: Entry, publish: Publish) -> list[Published]:
        readable: list[Published] = []
        for uuid in publish.uuids:
            batch = self.staged.pop(uuid, None)
            if batch is None:
                continue
            published = self._give_offsets(batch.index, batch.row_count, entry.timestamp_us, batch)
            readable.append(published)
            if uuid in self.uuids:
                self.uuids[uuid] = Placed(batch.index, published.base_offset, entry.timestamp_us)
        self.published[publish.key] = max(publish.batch_id, self.published.get(publish.key, -1))
        self.published.move_to_end(publish.key)
        if len(self.published) > PUBLISHED_KEYS_MAX:
            self.published.popitem(last=False)
        return readable

    def _decide(self, decide: Decide) -> None:
        known = self.transactions.get(decide.key)
        superseded = known.superseded if known is not None else ()
        if known is not None and known.run_id != decide.run_id:
            superseded = (*superseded, known.run_id)[-SUPERSEDED_RUNS_MAX:]
        if known is not None and decide.batch_id == known.batch_id:  # asked again by another run: only the run is news
            self.transactions[decide.key] = replace(known, run_id=decide.run_id, superseded=superseded)
            return
        finished = not decide.manifest
        self.transactions[decide.key] = TransactionState(
            decide.batch_id, decide.run_id, decide.row_count, decide.manifest, finished, superseded
        )
