"""What is true of a partition, whoever knows it: what was committed, where it is readable, what retention took, what was lost.

A second, naive account of what the journal means, beside the state machine of the core that it is compared with.
"""

from __future__ import annotations

from mq_broker.core.entries import Append, Decide, Discard, Entry, EpochStart, Publish, Stage, TransactionKey, Trim
from mq_broker.core.messages import LeaderName
from mq_broker.core.state import MachineState, Snapshot


class Life:
    """A partition from its making, or from a recovery (rule 15), to the next recovery. Owns what was committed in it."""

    def __init__(self, recovery: int) -> None:
        self.recovery = recovery
        self.committed: list[Entry] = []
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
        """Entries whose payloads must be kept, with the offset after their last record; 1 << 62 while they are staged."""
        self.decided: dict[tuple[TransactionKey, int], Decide] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.states: dict[int, MachineState] = {}
        self._staged: dict[bytes, tuple[int, int]] = {}

    @property
    def end(self) -> int:
        return len(self.committed)

    def commit(self, entry: Entry) -> None:
        self.committed.append(entry)
        match entry.operation:
            case Append():
                self.uuid_at[entry.uuid] = entry.index
                self._give(entry.index, entry.record_count)
            case Stage():
                self.uuid_at[entry.uuid] = entry.index
                self._staged[entry.uuid] = (entry.index, entry.record_count)
                self.kept[entry.index] = 1 << 62
            case Publish(uuids=uuids):
                for uuid in uuids:
                    if uuid in self._staged:
                        self._give(*self._staged.pop(uuid))
            case Discard(uuids=uuids):
                for uuid in uuids:
                    index, _ = self._staged.pop(uuid, (0, 0))
                    self.kept.pop(index, None)
            case Trim(start):
                self.log_start_offset = max(self.log_start_offset, start)
                self.kept = {index: end for index, end in self.kept.items() if end > start}
            case EpochStart(offset_floor=floor):
                if floor > self.next_offset:
                    self.skipped[self.next_offset] = floor
                    self.next_offset = floor
            case Decide(key, batch_id) as decide:
                self.decided.setdefault((key, batch_id), decide)
            case _:
                pass

    def _give(self, index: int, record_count: int) -> None:
        self.readable[self.next_offset] = (index, record_count)
        self.placed[index] = self.next_offset
        self.next_offset += record_count
        self.kept[index] = self.next_offset

    def first_kept(self) -> int:
        """The first entry whose payload is needed: no journal may begin after it (rule 13)."""
        return min(self.kept, default=self.end + 1)


class PartitionTruth:
    """What is true of one partition. `present` is its present life."""

    def __init__(self) -> None:
        self.lives = [Life(0)]
        self.positions: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.withdrawn: dict[tuple[int, int], Entry] = {}
        self.leaders: dict[int, tuple[LeaderName, int]] = {}
        self.newest_named: dict[int, int] = {}
        self.never: set[bytes] = set()

    @property
    def present(self) -> Life:
        return self.lives[-1]
