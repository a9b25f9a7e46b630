"""What of the uncommitted tail matters to whoever is judged next (admission.py): which UUIDs, transaction keys, groups
and cursors its entries are about, and where they stand.
"""

from __future__ import annotations

from mq_broker.core.entries import (
    Abort,
    Append,
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
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.core.machine.state import SPARK


class Overlay:
    """Owns the leader's view of the uncommitted tail: where each UUID and the last operation on each key stand."""

    def __init__(self, tail: list[Entry]) -> None:
        self._uuids: dict[bytes, int] = {}
        self._keys: dict[TransactionKey, int] = {}
        self._fences: dict[TransactionKey, int] = {}
        self._cursors: dict[str, tuple[int, str | None]] = {}
        self.scheduled = 0  # batches that are on their way to wait until they are due
        self.appended = 0  # records that are on their way
        self.appended_bytes = 0
        self.trims = 0
        for entry in tail:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        for uuid in _uuids_of(entry):
            self._uuids[uuid] = entry.index
        for key in _keys_of(entry.operation):
            self._keys[key] = entry.index
        if isinstance(entry.operation, Fence):
            self._fences[entry.operation.key] = entry.index
        if isinstance(entry.operation, DeleteGroup):
            self._cursors[entry.operation.group] = entry.index, None
        if isinstance(entry.operation, MoveCursor) and entry.operation.kind == SPARK:
            self._cursors[entry.operation.group] = entry.index, entry.operation.owner
        if isinstance(entry.operation, Schedule):
            self.scheduled += 1
        if isinstance(entry.operation, Append):
            self.appended += entry.record_count
            self.appended_bytes += entry.payload_bytes
        self.trims += isinstance(entry.operation, Trim)

    def remove(self, entry: Entry) -> None:
        """The entry was applied: the state machine knows it now."""
        for uuid in _uuids_of(entry):
            if self._uuids.get(uuid) == entry.index:
                del self._uuids[uuid]
        for key in _keys_of(entry.operation):
            for known in (self._keys, self._fences):
                if known.get(key) == entry.index:
                    del known[key]
        if isinstance(entry.operation, MoveCursor | DeleteGroup):
            index, _ = self._cursors.get(entry.operation.group, (0, None))
            if index == entry.index:
                del self._cursors[entry.operation.group]
        if isinstance(entry.operation, Schedule):
            self.scheduled -= 1
        if isinstance(entry.operation, Append):
            self.appended -= entry.record_count
            self.appended_bytes -= entry.payload_bytes
        self.trims -= isinstance(entry.operation, Trim)

    def uuid_index(self, uuid: bytes) -> int | None:
        return self._uuids.get(uuid)

    def key_index(self, key: TransactionKey) -> int | None:
        return self._keys.get(key)

    def fence_index(self, key: TransactionKey) -> int | None:
        return self._fences.get(key)

    def cursor_index(self, move: MoveCursor) -> int | None:
        """Where the last entry is that may give the query's cursor to another owner. What consumers move is nobody's:
        they wait for no entry of each other, and for no end of their group."""
        index, owner = self._cursors.get(move.group, (None, move.owner))
        free = owner == move.owner or (owner is None and move.kind != SPARK)
        return None if free else index

    @property
    def key_count(self) -> int:
        """Keys that something in the tail is about: at least as many as it will add to those known."""
        return len(self._keys)


def _uuids_of(entry: Entry) -> tuple[bytes, ...]:
    """The UUIDs by which a retry of the batch, or of one of its records, is recognised."""
    if isinstance(entry.operation, Append):
        return (entry.uuid, *entry.operation.uuids())
    return (entry.uuid,) if isinstance(entry.operation, Stage | Schedule) else ()


def _keys_of(operation: Operation) -> tuple[TransactionKey, ...]:
    match operation:
        case Publish(key=key) | Discard(key=key) | Decide(key=key) | Finish(key=key):
            return (key,)
        case Give(key=key) | Abort(key=key) | Fence(key=key):
            return (key,)
        case Forget(keys=keys):
            return keys
        case Append() | Stage() | Schedule() | Carry() | EpochStart() | Trim() | MoveCursor() | DeleteGroup() | Work():
            return ()
