"""The UUIDs that a partition has seen lately, and where each batch ended: what deduplication is made of.

The UUIDs stand in a queue, the oldest first, in chunks of fixed-size columns. A hash table over the queue finds them.
The whole takes less than 48 bytes a UUID, where an `OrderedDict` takes 356.

**Finding.** Each bucket of the table names the newest UUID in it, and each UUID names the one before it in its bucket.
So a chain runs from new to old. A UUID that the queue has dropped needs no deletion: a chain ends where it reaches one
that is older than the oldest. The table grows by one bucket at a time (linear hashing), so that no single entry pays
for a table that doubles.

**Chosen UUIDs.** Strangers choose UUIDs, and could choose many that fall into one bucket. The bucket comes from
Python's own hash of bytes, SipHash with a key that each process draws anew. What is remembered, and for how long, does
not depend on that key: it follows from the journal alone, and is the same on every replica.

**Snapshots.** `frozen` takes no copy: the chunks are shared from then on, and the window copies a chunk before it next
changes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

_CHUNK_BITS: Final = 10
_CHUNK: Final = 1 << _CHUNK_BITS
_IN_CHUNK: Final = _CHUNK - 1
_UUID_BYTES: Final = 16
_RECORD_BYTES: Final = _UUID_BYTES + 3 * 8 + 4
_HEAD_BYTES: Final = 4
_WRAP: Final = (1 << 32) - 1

FORGOTTEN_AT_ONCE_MAX: Final = 64
"""UUIDs that one entry drops for their age, at most, beside as many as it brings: after a quiet hour the first entry
does not pay for all of them."""

TURNOVER_US: Final = 60_000_000
"""A UUID that is pushed out at a younger age than this had no time to be recognised: its producer may still send it
again."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a UUID ended. `base_offset` is -1 while the batch is staged (or was discarded)."""

    index: int
    base_offset: int
    timestamp_us: int


class WindowBounds(NamedTuple):
    """How far a window goes back: so many UUIDs, and none that is older than so many milliseconds (None: of any
    age)."""

    uuids_max: int
    age_ms_max: int | None = None


class Columns(NamedTuple):
    """Some UUIDs in a row, by columns of one length: 16 bytes each of `uuids`, one element each of the others."""

    uuids: bytes
    indexes: array[int]
    base_offsets: array[int]
    timestamps_us: array[int]


class _Chunk:
    """Up to `_CHUNK` UUIDs in a row. `steps`: how far back the one before is in the same bucket; 0 if there is none."""

    __slots__ = ("base_offsets", "indexes", "steps", "timestamps_us", "uuids")

    def __init__(self, uuids: bytearray, columns: tuple[array[int], array[int], array[int], array[int]]) -> None:
        self.uuids = uuids
        self.indexes, self.base_offsets, self.timestamps_us, self.steps = columns

    @staticmethod
    def empty() -> _Chunk:
        return _Chunk(bytearray(), (array("Q"), array("q"), array("q"), array("I")))

    def copy(self) -> _Chunk:
        """Takes no more memory than it needs."""
        columns = (self.indexes[:], self.base_offsets[:], self.timestamps_us[:], self.steps[:])
        return _Chunk(bytearray(self.uuids), columns)

    def uuid(self, slot: int) -> bytes:
        return bytes(self.uuids[slot * _UUID_BYTES : (slot + 1) * _UUID_BYTES])

    def placed(self, slot: int) -> Placed:
        return Placed(self.indexes[slot], self.base_offsets[slot], self.timestamps_us[slot])


class SeenUuids:
    """A window as it was at one moment: the UUIDs and their places, the oldest first. It never changes."""

    __slots__ = ("_chunks", "_first", "_heads", "_next")

    def __init__(self, chunks: tuple[_Chunk, ...], heads: array[int], first: int, following: int) -> None:
        self._chunks = chunks
        self._heads = heads
        self._first = first
        self._next = following

    @staticmethod
    def of(pairs: Iterable[tuple[bytes, Placed]]) -> SeenUuids:
        """These, the oldest first. Raises `ValueError` for a UUID that is not 16 bytes long."""
        window = UuidWindow(WindowBounds(1 << 62))
        for uuid, placed in pairs:
            if len(uuid) != _UUID_BYTES:
                raise ValueError(f"a UUID has {_UUID_BYTES} bytes, not {len(uuid)}")
            window.remember(uuid, placed)
        return window.frozen()

    def __len__(self) -> int:
        return self._next - self._first

    def __iter__(self) -> Iterator[tuple[bytes, Placed]]:
        for uuids, *columns in self.columns():
            for slot, numbers in enumerate(zip(*columns, strict=True)):
                yield uuids[slot * _UUID_BYTES : (slot + 1) * _UUID_BYTES], Placed(*numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeenUuids):
            return NotImplemented
        return len(self) == len(other) and (not len(self) or self._joined() == other._joined())

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"SeenUuids({[(uuid.hex(), placed) for uuid, placed in self]})"

    def columns(self) -> Iterator[Columns]:
        """All of it in pieces of at most 1,024 UUIDs, so that whoever writes them down can pause between two."""
        skipped = self._first & _IN_CHUNK
        for chunk in self._chunks:
            yield Columns(
                bytes(chunk.uuids[skipped * _UUID_BYTES :]),
                chunk.indexes[skipped:],
                chunk.base_offsets[skipped:],
                chunk.timestamps_us[skipped:],
            )
            skipped = 0

    def _joined(self) -> tuple[bytes, ...]:
        pieces = list(self.columns())
        return tuple(b"".join(bytes(column) for column in columns) for columns in zip(*pieces, strict=True))


NO_UUIDS: Final = SeenUuids((), array("I", (0,)), _CHUNK, _CHUNK)


class UuidWindow:
    """Owns the UUIDs of one partition, and bounds them in number and in age.

    UUIDs are numbered in the order in which they came. Invariants:
    - numbers `_first .. _next - 1` are remembered; chunk i holds the numbers `(_base + i) * 1024` to the next multiple
      of 1024;
    - `_heads[b]` is the newest number in bucket b, modulo 2**32; numbers begin at 1024, so 0 stands for none;
    - a chunk whose number is in `_shared`, and `_heads` while `_heads_shared`, belong to a `SeenUuids` too: copied
      before a change.

    `pushed_out_young_us`: the time of the last entry that pushed a UUID out, for lack of room, within `TURNOVER_US` of
    its coming; 0 if none has. It is for whoever watches, and no part of the state.
    """

    def __init__(self, bounds: WindowBounds, seen: SeenUuids = NO_UUIDS) -> None:
        self._bounds = bounds
        self._chunks = list(seen._chunks)  # noqa: SLF001 - two sides of one thing
        self._heads = seen._heads  # noqa: SLF001
        self._first = seen._first  # noqa: SLF001
        self._next = seen._next  # noqa: SLF001
        self._base = self._first >> _CHUNK_BITS
        self._mask = _mask_of(len(self._heads))
        self.pushed_out_young_us = 0
        self._share()

    def __len__(self) -> int:
        return self._next - self._first

    def __contains__(self, uuid: bytes) -> bool:
        return self._find(uuid) >= 0

    @property
    def memory_bytes(self) -> int:
        """What it takes, up to a per cent or two."""
        return (self._next - (self._base << _CHUNK_BITS)) * _RECORD_BYTES + len(self._heads) * _HEAD_BYTES

    def get(self, uuid: bytes) -> Placed | None:
        number = self._find(uuid)
        return self._chunk(number).placed(number & _IN_CHUNK) if number >= 0 else None

    def remember(self, uuid: bytes, placed: Placed) -> None:
        """The newest; the oldest is forgotten for it where they are too many. One that is here already keeps its
        turn."""
        if not self.place(uuid, placed):
            self._append(uuid, placed)
            if len(self) > self._bounds.uuids_max:
                oldest_us = self._chunk(self._first).timestamps_us[self._first & _IN_CHUNK]
                if placed.timestamp_us - oldest_us < TURNOVER_US:
                    self.pushed_out_young_us = placed.timestamp_us
                self._forget(1)

    def place(self, uuid: bytes, placed: Placed) -> bool:
        """It ended there. False, and nothing changes, if it is not remembered."""
        number = self._find(uuid)
        if number < 0:
            return False
        chunk, slot = self._own(number), number & _IN_CHUNK
        chunk.indexes[slot] = placed.index
        chunk.base_offsets[slot] = placed.base_offset
        chunk.timestamps_us[slot] = placed.timestamp_us
        return True

    def forget_aged(self, now_us: int, added: int = 0) -> None:
        """Drop those that are older than the window goes back, the oldest first, up to one that is not.

        `now_us` is the time of a journal's entry: never a clock's, or replicas would part. `added`: how many UUIDs the
        records of that entry brought. It drops more than that, or the window would only grow.
        """
        if self._bounds.age_ms_max is None:
            return
        oldest_us, gone, count = now_us - self._bounds.age_ms_max * 1000, 0, len(self)
        while gone < min(count, FORGOTTEN_AT_ONCE_MAX + added):
            number = self._first + gone
            if self._chunk(number).timestamps_us[number & _IN_CHUNK] >= oldest_us:
                break
            gone += 1
        if gone:
            self._forget(gone)

    def frozen(self) -> SeenUuids:
        """As it is now. Takes microseconds; the window copies what it shares before it changes that."""
        self._share()
        return SeenUuids(tuple(self._chunks), self._heads, self._first, self._next)

    # ------------------------------------------------------------------ the queue

    def _chunk(self, number: int) -> _Chunk:
        return self._chunks[(number >> _CHUNK_BITS) - self._base]

    def _share(self) -> None:
        self._shared = set(range(self._base, self._base + len(self._chunks)))
        self._heads_shared = True

    def _own(self, number: int) -> _Chunk:
        """The chunk of that number, to be changed."""
        chunk_number = number >> _CHUNK_BITS
        if chunk_number in self._shared:
            self._shared.discard(chunk_number)
            self._chunks[chunk_number - self._base] = self._chunks[chunk_number - self._base].copy()
        return self._chunks[chunk_number - self._base]

    def _append(self, uuid: bytes, placed: Placed) -> None:
        assert len(uuid) == _UUID_BYTES, f"a UUID of {len(uuid)} bytes"
        number = self._next
        if number & _IN_CHUNK == 0:
            self._chunks.append(_Chunk.empty())
        if self._heads_shared:
            self._heads, self._heads_shared = self._heads[:], False
        bucket = self._bucket(uuid)
        step = (number - self._heads[bucket]) & _WRAP
        self._heads[bucket] = number & _WRAP
        chunk = self._own(number)
        chunk.uuids += uuid
        chunk.indexes.append(placed.index)
        chunk.base_offsets.append(placed.base_offset)
        chunk.timestamps_us.append(placed.timestamp_us)
        chunk.steps.append(step if step <= number - self._first else 0)
        self._next = number + 1
        if number & _IN_CHUNK == _IN_CHUNK:
            self._chunks[-1] = chunk.copy()  # it grows no more
        if 2 * len(self) > 3 * len(self._heads):
            self._add_bucket()

    def _forget(self, count: int) -> None:
        self._first += count
        while self._chunks and self._base < self._first >> _CHUNK_BITS:
            self._shared.discard(self._base)
            del self._chunks[0]
            self._base += 1

    # ------------------------------------------------------------------ the hash table

    def _bucket(self, uuid: bytes) -> int:
        bucket = hash(uuid) & self._mask
        return bucket if bucket < len(self._heads) else bucket & (self._mask >> 1)

    def _newest(self, bucket: int) -> int:
        return self._next - ((self._next - self._heads[bucket]) & _WRAP)

    def _find(self, uuid: bytes) -> int:
        """Its number; -1 if it is not remembered."""
        number = self._newest(self._bucket(uuid))
        while number >= self._first:
            chunk, slot = self._chunk(number), number & _IN_CHUNK
            if chunk.uuids[slot * _UUID_BYTES : (slot + 1) * _UUID_BYTES] == uuid:
                return number
            step = chunk.steps[slot]
            if not step:
                break
            number -= step
        return -1

    def _add_bucket(self) -> None:
        """One more, for what belongs to it of the one bucket that it was part of."""
        added = len(self._heads)
        top = 1 << (added.bit_length() - 1)
        former = added ^ top
        stay: list[int] = []
        go: list[int] = []
        number = self._newest(former)
        while number >= self._first:
            chunk, slot = self._chunk(number), number & _IN_CHUNK
            hashed = hash(chunk.uuid(slot))
            if hashed & (top - 1) != former:  # a bucket so long unused that its number has come round again
                break
            (go if hashed & top else stay).append(number)
            if not chunk.steps[slot]:
                break
            number -= chunk.steps[slot]
        self._heads[former] = self._chain(stay)
        self._heads.append(self._chain(go))
        self._mask = _mask_of(added + 1)

    def _chain(self, numbers: list[int]) -> int:
        """Link them, the newest first; returns what the bucket's head is then."""
        for number, before in pairwise((*numbers, 0)):
            step = number - before if before else 0
            if self._chunk(number).steps[number & _IN_CHUNK] != step:
                self._own(number).steps[number & _IN_CHUNK] = step
        return numbers[0] & _WRAP if numbers else 0


def _mask_of(buckets: int) -> int:
    return (1 << (buckets - 1).bit_length()) - 1
