"""What a partition's entries come to: offsets, what is staged, cursors; as a broker would know it after it opened the
journal, had every entry been committed.

The entries are applied to the core's own machine, up to the first bytes that are not good. Not to queue groups: their
steps are only counted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mq_broker.core.entries import Entry, Work
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Cursor, MachineState, Snapshot, StagedBatch
from mq_broker.core.machine.window import NO_UUIDS, WindowBounds
from mq_broker.core.messages import OffsetsSkipped, Published, Trimmed
from mq_broker.storage.codec.frame import decode
from mq_broker.storage.codec.snapshot import FILE_NAME as SNAPSHOT_FILE_NAME
from mq_broker.storage.codec.snapshot import decode_snapshot
from mq_broker.storage.inspecting.directory import PartitionFiles
from mq_broker.storage.inspecting.reading import opened, read_exactly, read_small
from mq_broker.storage.inspecting.walking import Bad, Frame, Sealed, sealed_with, walk
from mq_broker.storage.keyring import opened_with
from mq_broker.storage.sealed import plain_snapshot
from mq_protocol.errors import CorruptBatch, StorageFailed

SNAPSHOT_FILE_BYTES_MAX: Final = 256 << 20
STAGED_MAX: Final = 1_000_000
"""Staged batches that are followed, and cursors: more than any broker lets there be."""

_WINDOW: Final = WindowBounds(1024)
"""Which UUIDs a broker would recognise is not asked here."""


class Step(NamedTuple):
    """An entry with what it changed for readers."""

    frame: Frame
    changes: tuple[Published | Trimmed | OffsetsSkipped, ...]


@dataclass(slots=True)
class Contents:
    """What the entries come to as far as they are good. `kinds`: how many entries there are of each. `bad`: where the
    good ones end, if that is not the end of the last segment."""

    first_index: int = 1
    last_index: int = 0
    last_epoch: int = 0
    timestamp_us: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    entries: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    staged: tuple[StagedBatch, ...] = ()
    cursors: tuple[tuple[str, Cursor], ...] = ()
    snapshot: Snapshot | None = None
    bad: Bad | None = None


def read_snapshot(files: PartitionFiles) -> Snapshot | None:
    """The snapshot that the journal begins with; None without one. Raises `CorruptBatch` if its checksum does not hold,
    `StorageFailed` if it cannot be read, is of a newer version, or is sealed and does not open."""
    path = files.path / SNAPSHOT_FILE_NAME
    try:
        data = read_small(path, SNAPSHOT_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EIO:
            raise CorruptBatch(f"the disk cannot read it ({error.strerror})") from error
        raise StorageFailed(f"{path} cannot be read ({error})") from error
    data = plain_snapshot(files.place, data, lambda slot: opened_with(files.keys, files.place, slot))
    return decode_snapshot(files.place, data)


class Replay:
    """Owns the machine to which a partition's good entries are applied, one after another."""

    def __init__(self, files: PartitionFiles) -> None:
        """Raises `StorageFailed` if the partition has a snapshot that is needed and cannot be read."""
        self.contents = Contents()
        self._files = files
        self._segments = list(files.segments)
        snapshot = self._snapshot()
        state = MachineState()
        if snapshot is not None:
            state = replace(snapshot.state, work=(), uuids=NO_UUIDS)
            self.contents.last_index, self.contents.last_epoch = snapshot.last_index, snapshot.last_epoch
            self.contents.timestamp_us = snapshot.timestamp_us
            self._segments = [each for each in self._segments if each.first_index > snapshot.last_index]
        self.contents.snapshot = snapshot
        self.contents.first_index = self.contents.last_index + 1
        self._machine = PartitionMachine(_WINDOW, state)
        self._note()

    def steps(self) -> Iterator[Step]:
        """Each good entry, once it is applied. Raises `StorageFailed` for a file that cannot be opened, and where more
        is staged than can be."""
        for segment in self._segments:
            if segment.first_index != self.contents.last_index + 1:
                reason = (
                    f"it begins at entry {segment.first_index}, what is before it ends at {self.contents.last_index}"
                )
                self.contents.bad = Bad(segment.first_index, 0, segment.size, self.contents.last_index + 1, reason)
                return
            for piece in walk(segment, self._files.place, self.contents.last_epoch, self._files.keys):
                if isinstance(piece, Sealed):
                    slot = sealed_with(segment, self._files.place)
                    assert slot is not None, "a sealed entry lies in a sealed segment"
                    opened_with(None, self._files.place, slot)  # says which key is needed
                    return
                if isinstance(piece, Bad):
                    if piece.spare:
                        continue  # `verify` tells
                    self.contents.bad = piece
                    return
                yield Step(piece, self._apply(piece.entry))

    def run(self, progress: Callable[[int], None] = lambda _bytes: None) -> Contents:
        """All of them. `progress` is told the bytes that are done."""
        done = at = 0
        for step in self.steps():
            done += step.frame.end - step.frame.position
            if done - at >= 1 << 20:
                progress(done)
                at = done
        return self.finished()

    def finished(self) -> Contents:
        """With what is staged and where groups are, as of the entries so far."""
        self.contents.staged = tuple(self._machine.staged.values())
        self.contents.cursors = tuple(sorted(self._machine.cursors.items()))
        return self.contents

    def still_staged(self, indexes: Iterable[int]) -> set[int]:
        """Which of these entries have a payload that may yet be given offsets."""
        waiting = {batch.index for batch in self._machine.staged.values()}
        return waiting.intersection(indexes)

    def _snapshot(self) -> Snapshot | None:
        try:
            return read_snapshot(self._files)
        except CorruptBatch as error:
            if self._segments and self._segments[0].first_index == 1:
                return None  # the journal is whole, and does not need it
            raise StorageFailed(
                f"{self._files.path / SNAPSHOT_FILE_NAME} is damaged ({error}), and without it nothing behind it has "
                "offsets: see `tritonmq storage verify`"
            ) from error

    def _apply(self, entry: Entry) -> tuple[Published | Trimmed | OffsetsSkipped, ...]:
        contents = self.contents
        changes: tuple[Published | Trimmed | OffsetsSkipped, ...] = ()
        if not isinstance(entry.operation, Work):
            try:
                changes = tuple(self._machine.apply(entry))
            except (OverflowError, ValueError) as error:
                raise StorageFailed(
                    f"{self._files.path}: entry {entry.index} says what no broker writes ({error}): nothing behind it "
                    "can be followed"
                ) from error
        contents.entries += 1
        contents.last_index, contents.last_epoch, contents.timestamp_us = (
            entry.index,
            entry.leader_epoch,
            entry.timestamp_us,
        )
        kind = type(entry.operation).__name__
        contents.kinds[kind] = contents.kinds.get(kind, 0) + 1
        contents.batches += sum(isinstance(change, Published) for change in changes)
        if len(self._machine.staged) > STAGED_MAX or len(self._machine.cursors) > STAGED_MAX:
            raise StorageFailed(
                f"{self._files.path}: at entry {entry.index} more than {STAGED_MAX:,} batches are staged, or as many "
                "groups have cursors: no broker lets that happen, and it is not followed any further"
            )
        self._note()
        return changes

    def _note(self) -> None:
        self.contents.log_start_offset = self._machine.log_start_offset
        self.contents.log_end_offset = self._machine.next_offset


def read_payload(files: PartitionFiles, frame: Frame) -> memoryview:
    """The payload of a frame that was walked over. Its checksum is verified again: a disk that fails may give other
    bytes the second time. Raises `StorageFailed`."""
    segment = next(each for each in files.segments if each.first_index == frame.segment)
    path = segment.path
    try:
        slot = sealed_with(segment, files.place)
        with opened(path) as fd:
            data = memoryview(read_exactly(fd, frame.end - frame.position, frame.position))
        if slot is not None:
            parts = opened_with(files.keys, files.place, slot).open(frame.segment, data)[0].payload_parts
            return memoryview(b"".join(parts))
        return decode(files.place, data)[1]
    except (OSError, CorruptBatch) as error:
        raise StorageFailed(
            f"{path} cannot be read twice, at byte {frame.position} ({error}): check that disk"
        ) from error
