"""What the broker needs from storage. Two implementations, `journal.py` on disk and `memory.py`; one test suite for both.

A *frame* is an entry as it is on disk and between brokers: a 60-byte header, then `meta` (the operation, protobuf) and the payload.
The same bytes on every replica. `frame.py` encodes and decodes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mq_broker.core.entries import Entry
from mq_broker.core.messages import RecoveredLog
from mq_protocol.envelope import Buffer


class Frame(NamedTuple):
    """`parts` joined are the frame's `size` bytes. The first part is header and meta, the others the payload, untouched (no copy
    until the write). Made by `frame.encode` and `frame.decode_frames` only."""

    entry: Entry
    parts: tuple[Buffer, ...]
    size: int

    @property
    def payload_parts(self) -> tuple[Buffer, ...]:
        return self.parts[1:]


class JournalListener(Protocol):
    """Called on the event loop, never from another thread, never from within a call of the journal, in the order in which things
    happened."""

    def flushed(self, index: int, leader_epoch: int) -> None:
        """All up to `index` (whose entry is of `leader_epoch`) is as durable as this journal promises."""

    def refused(self, first_index: int, reason: str) -> None:
        """Entries from `first_index` on did not get onto the disk; they are gone from the journal, and so is all appended after
        them. None of them was ever reported as flushed. The journal stays readable, and takes appends again at `first_index`."""

    def replaced(self, log_id: str, reason: str) -> None:
        """A flush failed or damage was found: the log has a new id, already durable (traps 16, 26). In a journal of durability
        `fsync`, what the failed flush was to cover follows as `refused`: it can be written anew, never flushed again."""


class Journal(Protocol):
    """One partition's entries. Owned by the event loop; only the writer thread touches its files for writing."""

    @property
    def log_id(self) -> str: ...

    def append(self, frames: Sequence[Frame]) -> None:
        """At the end, indexes contiguous. Returns at once; readable at once; `flushed` follows."""

    def truncate(self, last_index: int) -> None:
        """Drop all above. Ordered with the appends around it; durable before any later `flushed`."""

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        """Whole frames from `first_index` on: at least one, then as many as fit. Entries not yet written are found too. Empty only
        if `first_index` is beyond the end. Raises `StorageFailed` if a checksum does not hold: damage is never served."""

    def payload(self, index: int) -> memoryview:
        """The payload of one entry. Raises `StorageFailed` if its checksum does not hold: damage is never served."""

    @property
    def last_index(self) -> int: ...

    @property
    def bytes_stored(self) -> int: ...

    async def close(self) -> None:
        """Flush what was appended, then close. Part of a clean stop."""


class OpenJournal(NamedTuple):
    journal: Journal
    recovered: RecoveredLog
