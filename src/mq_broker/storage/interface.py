"""What the broker needs from storage. Two implementations, `journal.py` on disk and `memory.py`; one test suite for
both.

A *frame* is an entry as it is on disk and between brokers: a 60-byte header, then `meta` (the operation, protobuf) and
the payload. The same bytes on every replica. `frame.py` encodes and decodes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from mq_broker.core.entries import Entry
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import RecoveredLog
from mq_broker.storage.offset_index import FrozenIndex
from mq_protocol.errors import StorageFailed
from mq_protocol.wire.envelope import Buffer


class Frame(NamedTuple):
    """`parts` joined are the frame's `size` bytes. The first part is header and meta, the others the payload, untouched
    (no copy until the write). Made by `frame.encode` and `frame.decode_frame` only."""

    entry: Entry
    parts: tuple[Buffer, ...]
    size: int

    @property
    def payload_parts(self) -> tuple[Buffer, ...]:
        return self.parts[1:]

    @property
    def payload(self) -> memoryview:
        """In one piece."""
        parts = self.payload_parts
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


class Unsealed(NamedTuple):
    """Frames of sealed entries, opened for one reader beside the event loop, by index. They are the journal's
    for as long as its generation is this one."""

    generation: int
    frames: Mapping[int, Frame]


NOTHING_UNSEALED: Final = Unsealed(-1, {})


class JournalListener(Protocol):
    """Called on the event loop, never from another thread, never from within a call of the journal, in the order in
    which things happened."""

    def flushed(self, index: int, leader_epoch: int) -> None:
        """All up to `index` (whose entry is of `leader_epoch`) is as durable as this journal promises."""

    def refused(self, first_index: int, reason: str) -> None:
        """Entries from `first_index` on did not get onto the disk; they are gone from the journal, and so is all
        appended after them. None of them was ever reported as flushed. The journal stays readable, and takes appends
        again at `first_index`."""

    def replaced(self, log_id: str, reason: str) -> None:
        """A flush failed or damage was found: the log has a new id, already durable (traps 16, 26). In a journal of
        durability `fsync`, what the failed flush was to cover follows as `refused`: it can be written anew, never
        flushed again."""

    def altered(self, reason: str) -> None:
        """An entry that was read has a checksum that holds and a seal that does not. The journal is to be closed: it
        does not open again before that is put right. Told once."""


class Derived(NamedTuple):
    """What came of a journal's entries up to that of `snapshot`, which is committed and applied: the state, and the
    index of offsets of the same moment."""

    snapshot: Snapshot
    offsets: FrozenIndex


class Keeping(Protocol):
    """Of a journal on disk: its checkpoints, and the verification of what opening did not read."""

    @property
    def due(self) -> float:
        """How near the next checkpoint is: 1 or more, it is due."""

    @property
    def gain(self) -> int:
        """What a checkpoint at a clean stop would spare the next start, as bytes that it reads; 0 if that is less than
        it takes."""

    async def keep(self, derived: Derived) -> bool:
        """Store it as a checkpoint, once all that it is of is synced. Also when the journal is closed. False if
        nothing was stored: the disk did not take it, the log is another by now, or it does not hold what is to be
        kept. Whatever comes of it, the journal is as good as before."""

    @property
    def unscrubbed_bytes(self) -> int:
        """Of entries that were not read since the journal was opened."""

    async def scrub(self, bytes_max: int) -> int:
        """Verify about so many more of them, at least one entry, in a thread. Returns how many bytes that were; 0 if
        none are left. What is bad is told to the listener, as it is when it is read. Raises `StorageFailed` if they
        cannot be read for now."""


class Journal(Protocol):
    """One partition's entries. Owned by the event loop; its files are changed by the writer thread, and shortened by
    another.

    A journal that was shortened, or that began with a snapshot from a leader, holds the entries `first_index ..
    last_index`; a snapshot stands for those before (rule 13).
    """

    @property
    def log_id(self) -> str: ...

    @property
    def first_index(self) -> int:
        """The first entry there is or will be; 1 while the journal is whole. May be `last_index + 1`."""

    @property
    def snapshot_data(self) -> bytes:
        """What stands for the entries before `first_index`, as `snapshot.encode_snapshot` writes it and as it is sent;
        empty while that is 1."""

    def append(self, frames: Sequence[Frame]) -> None:
        """At the end, indexes contiguous. Returns at once; readable at once; `flushed` follows."""

    def truncate(self, last_index: int) -> None:
        """Drop all above, which may not be below what `shorten_to` was asked for. Ordered with the appends around it;
        durable before any later `flushed`."""

    async def shorten_to(self, first_index: int, window: WindowBounds) -> int:
        """Replace what is before `first_index` by a snapshot. Returns the new `first_index`, durable by then.

        On disk it is the start of a segment, at or below what was asked for, and the last segment stays; so it may be
        what it was before. The caller answers for rule 13: everything before `first_index` is applied, and nothing
        there will be read again. `window` is that of the partition's machine. Reading, appending and truncating go on
        meanwhile; `close` waits, and ends it early. Raises `StorageFailed` if the disk takes no snapshot, or for
        damage, of which the listener hears too: the journal then begins where it did.
        """

    async def adopt(self, recovery: int) -> None:
        """Remember with the log, durably, that it goes on under this recovery number. A disk that does not take it is
        only logged, and a journal that is closed passes it over: what is lost then costs a copy of the log, never
        safety."""

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Frame]:
        """Whole frames from `first_index` on: at least one, then as many as fit. Entries not yet written are found too.
        Empty only if `first_index` is beyond the end. Raises `StorageFailed` below `self.first_index`, and if a
        checksum or a seal does not hold: neither damage nor what somebody altered is ever served."""

    def payload(self, index: int, unsealed: Unsealed = NOTHING_UNSEALED) -> memoryview:
        """The payload of one entry, from what was unsealed before if it is there. Raises `StorageFailed` if its
        checksum does not hold: damage is never served."""

    @property
    def keeping(self) -> Keeping | None:
        """None in memory."""

    @property
    def sealed(self) -> bool:
        """Some of it is sealed on the disk."""

    @property
    def generation(self) -> int:
        """Another number once the log was cut, or closed: an index may name another entry since."""

    def is_dear(self, first_index: int, last_index: int) -> bool:
        """Reading these entries would hold the event loop: more than a little lies on the disk, and may be sealed."""

    async def read_apart(self, first_index: int, last_index: int) -> list[Frame]:
        """As `read`, all of them, with what is sealed opened in a thread. Empty if the log was cut or closed meanwhile:
        other entries may be there then. Raises as `read`."""

    def bytes_apart(self, first_index: int, last_index: int) -> int:
        """How many bytes `open_apart` of the same would have opened now; 0 if it would have nothing opened."""

    async def open_apart(self, first_index: int, last_index: int) -> Unsealed:
        """The first of these entries, opened in a thread, if they lie sealed on the disk and are more than a little.
        Others are left to who reads, and what does not open as well: nothing relies on it. Raises nothing."""

    @property
    def last_index(self) -> int: ...

    @property
    def bytes_stored(self) -> int: ...

    async def close(self) -> None:
        """Flush what was appended, then close. Part of a clean stop."""


def not_kept(index: int, first_index: int) -> StorageFailed:
    """The error for reading an entry that a snapshot stands for."""
    return StorageFailed(f"entry {index} is not kept any more: the journal begins at {first_index}, read from there")


class OpenJournal(NamedTuple):
    """`recovery`: what the log was last told to `adopt`. `damaged`: why entries that were there are not in the journal
    any more, and its log id is new; empty if nothing is missing. `offsets`: the index of them
    that a checkpoint has, if there is one."""

    journal: Journal
    recovered: RecoveredLog
    recovery: int = 0
    damaged: str = ""
    offsets: FrozenIndex | None = None
