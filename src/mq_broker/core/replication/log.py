"""What the core knows of its journal: epochs, sizes, how far it is flushed, and the entries not yet applied.

Not the journal itself: payloads and frames are the storage's. Memory is a few bytes an entry for what is applied (its
size), an `Entry` for what is not.

The journal begins after `base_index`, for which and for all before it a snapshot stands (rule 13); 0 while it is whole.

Invariants
- indexes run from `base_index + 1` to `last_index` without gaps; epochs never fall along them
- `base_index <= applied <= last_index`, and `entry(i)` exists exactly for `applied < i <= last_index`
- `base_index <= flushed <= last_index`
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from mq_broker.core.entries import Entry, stored_bytes
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import Checkpoint


class Log:
    """Owns the metadata of one replica's journal."""

    __slots__ = (
        "_epoch_firsts",
        "_epochs",
        "_sizes",
        "_tail",
        "applied",
        "base_epoch",
        "base_index",
        "flushed",
        "last_timestamp_us",
        "tail_bytes",
    )

    def __init__(
        self, entries: tuple[Entry, ...], snapshot: Snapshot | None = None, checkpoint: Checkpoint | None = None
    ) -> None:
        self.base_index = snapshot.last_index if snapshot is not None else 0
        self.base_epoch = snapshot.last_epoch if snapshot is not None else 0
        self._epochs: list[int] = []
        self._epoch_firsts: list[int] = []
        self._sizes = array("I")
        self._tail: dict[int, Entry] = {}
        self.applied = self.base_index
        self.flushed = self.base_index
        self.tail_bytes = 0
        self.last_timestamp_us = snapshot.timestamp_us if snapshot is not None else 0
        if checkpoint is not None:
            self._epoch_firsts = [first for first, _ in checkpoint.epochs]
            self._epochs = [epoch for _, epoch in checkpoint.epochs]
            self._sizes = checkpoint.sizes[:]
            self.applied = self.flushed = self.last_index
            self.last_timestamp_us = max(self.last_timestamp_us, checkpoint.snapshot.timestamp_us)
            assert self.applied == checkpoint.snapshot.last_index, "a checkpoint of another log"
        for entry in entries:
            self.append(entry)
        self.flushed = self.last_index

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._sizes)

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else self.base_epoch

    @property
    def tail_count(self) -> int:
        return len(self._tail)

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, f"entry {entry.index} after {self.last_index}"
        assert entry.leader_epoch >= self.last_epoch, f"epoch {entry.leader_epoch} after {self.last_epoch}"
        if not self._epochs or entry.leader_epoch != self._epochs[-1]:
            self._epochs.append(entry.leader_epoch)
            self._epoch_firsts.append(entry.index)
        self._sizes.append(stored_bytes(entry))
        self._tail[entry.index] = entry
        self.tail_bytes += self._sizes[-1]
        self.last_timestamp_us = max(self.last_timestamp_us, entry.timestamp_us)

    def entry(self, index: int) -> Entry:
        return self._tail[index]

    def tail(self) -> list[Entry]:
        """The entries above `applied`, in order."""
        return [self._tail[index] for index in range(self.applied + 1, self.last_index + 1)]

    def take_applied(self) -> Entry:
        """The next entry to apply; from now on only its size is kept."""
        self.applied += 1
        entry = self._tail.pop(self.applied)
        self.tail_bytes -= self._size(self.applied)
        return entry

    def begin_after(self, base_index: int) -> None:
        """A snapshot stands for all up to `base_index` now, which must be applied."""
        assert self.base_index <= base_index <= self.applied, f"begin after {base_index}, applied {self.applied}"
        self.base_epoch = self.epoch_at(base_index)
        del self._sizes[: base_index - self.base_index]
        self.base_index = base_index
        gone = bisect_right(self._epoch_firsts, base_index + 1) - 1
        if not self._sizes:
            gone = len(self._epochs)
        if gone > 0:
            del self._epochs[:gone]
            del self._epoch_firsts[:gone]

    def truncate(self, last_index: int) -> None:
        """Drop all above `last_index`, which may not lie below what is applied."""
        assert last_index >= self.applied, f"cut to {last_index} below applied {self.applied}"
        for index in range(last_index + 1, self.last_index + 1):
            del self._tail[index]
            self.tail_bytes -= self._size(index)
        del self._sizes[last_index - self.base_index :]
        while self._epoch_firsts and self._epoch_firsts[-1] > last_index:
            self._epoch_firsts.pop()
            self._epochs.pop()
        self.flushed = min(self.flushed, last_index)

    def epoch_at(self, index: int) -> int:
        """The epoch of the entry at `index`; 0 before the first of all; -1 past the end, and where a snapshot hides
        it."""
        if index == self.base_index:
            return self.base_epoch
        if not self.base_index < index <= self.last_index:
            return -1
        return self._epochs[bisect_right(self._epoch_firsts, index) - 1]

    def last_index_up_to(self, epoch: int, index: int) -> int:
        """The highest index at or below `index` whose epoch is at most `epoch`: where logs may still agree (rule 2).
        Below `base_index` if the logs part, or one ends, before that: where is not known any more."""
        if epoch < self.base_epoch:
            return min(index, self.base_index - 1)
        at = bisect_right(self._epochs, epoch)
        end = self.last_index if at == len(self._epochs) else self._epoch_firsts[at] - 1
        return min(end, index)

    def range_end(self, first: int, entries_max: int, bytes_max: int) -> int:
        """The last index of a message that begins at `first`: at least one entry, then as many as fit."""
        last = min(self.last_index, first + entries_max - 1)
        total = 0
        for index in range(first, last + 1):
            total += self._size(index)
            if total > bytes_max and index > first:
                return index - 1
        return last

    def _size(self, index: int) -> int:
        return self._sizes[index - self.base_index - 1]
