"""Sealed segments: what an encrypting broker writes in place of plain frames. Below frames: what brokers exchange,
keep in memory and serve is the frame that it always was (frame.py).

A sealed segment is a block of 8,192 bytes, then units, one for each entry:

    slot | slot                                        the block: 2 x 4,096 bytes
    header 60 bytes | AES-256-GCM(frame) | tag 16      a unit: 76 bytes more than its frame

Slots and units have the header of a frame of format 2, with the checksum by the rule of all frames: it covers the
sealed bytes, so a torn tail, damage and the flushed mark are judged without any key.

   crc32c u32 | magic u16 | kind u8 | zero u8 | index u64 | nonce 12 bytes | zero 16 bytes | zero u32 | zero u32
   | payload_bytes u32 | zero u32

A slot's index is 0 and it has no nonce. Its payload is JSON, filled up with zeros: which key wraps the segment's data
key, and the wrapped data key. Of two slots the one of the higher generation counts. So a data key is wrapped anew by
writing the other slot, and a crash on the way leaves one that is whole.

The associated data of a unit are its place, the first index of its segment, and its header without the checksum and the
nonce. So a unit opens where it was written, and nowhere else. Nonces are random: a position must never be one, since a
cut tail is written again at the same place under the same key.

A snapshot is sealed as one unit (`seal_snapshot`), behind a slot of its own.

Nothing here knows files or where keys are from (keyring.py).
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from mq_broker.storage.codec.frame import HEADER_BYTES, MAGIC, NewerFrame, Place, checksum, decode_frame, unpack_header
from mq_broker.storage.codec.snapshot import NewerSnapshot
from mq_broker.storage.interface import Frame
from mq_protocol.errors import CorruptBatch, StorageFailed
from mq_protocol.wire.envelope import Buffer

FORMAT: Final = 2
SLOT_BYTES: Final = 4_096
BLOCK_BYTES: Final = 2 * SLOT_BYTES
TAG_BYTES: Final = 16
NONCE_BYTES: Final = 12
OVERHEAD_BYTES: Final = HEADER_BYTES + TAG_BYTES
"""What a unit has more than its frame."""

DATA_KEY_BYTES: Final = 32
KEY_ID_BYTES_MAX: Final = 200
WRAPPED_BYTES_MAX: Final = 1_024

_MAGIC: Final = int.from_bytes(bytes((MAGIC[0], FORMAT)), "little")
_KEY: Final = 1
_ENTRY: Final = 2
_HEADER: Final = struct.Struct("<IHBBQ12s16sIIII")
_NO_NONCE: Final = bytes(NONCE_BYTES)
_ZEROS: Final = bytes(16)
_SLOT_JSON_MAX: Final = SLOT_BYTES - HEADER_BYTES
_JOIN_BYTES_MAX: Final = 16 << 10
"""Up to this a frame's parts are joined, which costs less than to encrypt each by itself."""

_SNAPSHOT: Final = struct.Struct("<I3sBQ")
_SNAPSHOT_MAGIC: Final = b"TSn"
_SNAPSHOT_VERSION: Final = 2
"""Of sealed ones (codec/snapshot.py has the others)."""


class SealedAway(StorageFailed):
    """What is sealed cannot be opened here. Nothing is wrong with the disk: nothing may be put aside, and no new log id
    be made for it. `key_id` names the key that is asked for."""

    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class KeyAbsent(SealedAway):
    """The key that wraps the data key is not to be had here, or not now."""


class WrongKey(SealedAway):
    """The key that is called so does not open it."""


class Altered(SealedAway):
    """The checksum holds and the seal does not: somebody wrote it who had not the key."""


class Cipher(Protocol):
    """AES-256-GCM with one key (aes_gcm.py)."""

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes: ...

    def encrypt_into(self, nonce: bytes, data: Buffer, associated_data: bytes | None, buf: memoryview) -> int:
        """`buf` has exactly the bytes of `data` and of the tag, and is other memory than `data`."""

    def encrypt_parts_into(
        self, nonce: bytes, parts: Iterable[Buffer], associated_data: bytes | None, buf: memoryview
    ) -> int:
        """As `encrypt_into` of the parts joined."""

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None) -> bytes:
        """Raises if the tag does not hold."""


# ------------------------------------------------------------------ the block


@dataclass(frozen=True, slots=True)
class Slot:
    """A data key as it lies on the disk: wrapped by the key `key_id`. Of a block the higher `generation` counts."""

    key_id: str
    wrapped: bytes
    generation: int = 0


def encode_slot(place: Place, slot: Slot) -> bytes:
    """4,096 bytes. Raises `StorageFailed` for a key id or a wrapped key that is too long."""
    if len(slot.key_id.encode()) > KEY_ID_BYTES_MAX or len(slot.wrapped) > WRAPPED_BYTES_MAX:
        raise StorageFailed(
            f"key {slot.key_id[:40]!r}: a key id has up to {KEY_ID_BYTES_MAX} bytes and a wrapped key up to "
            f"{WRAPPED_BYTES_MAX}; use another key provider"
        )
    content = {"generation": slot.generation, "key": slot.key_id, "wrapped": base64.b64encode(slot.wrapped).decode()}
    payload = json.dumps(content, sort_keys=True).encode().ljust(_SLOT_JSON_MAX, b"\0")
    checked = _HEADER.pack(0, _MAGIC, _KEY, 0, 0, _NO_NONCE, _ZEROS, 0, 0, len(payload), 0)[4:] + payload
    return checksum(place.seed, checked).to_bytes(4, "little") + checked


def decode_slot(place: Place, data: memoryview) -> Slot:
    """The slot that `data` begins with. Raises `CorruptBatch`, and `NewerFrame` for one of a newer version."""
    header = _checked_header(place, data, 0)
    if header.format < FORMAT or (header.format == FORMAT and header.kind != _KEY):
        raise CorruptBatch("no sealed segment begins here")
    if header.format > FORMAT:
        raise NewerFrame(f"it is of format {header.format}, and this version reads up to {FORMAT}")
    text = bytes(data[HEADER_BYTES : header.frame_bytes]).rstrip(b"\0")
    try:
        content: Any = json.loads(text)
        slot = Slot(content["key"], base64.b64decode(content["wrapped"], validate=True), content["generation"])
        if type(slot.key_id) is not str or type(slot.generation) is not int or header.frame_bytes != SLOT_BYTES:
            raise TypeError("its values are of other types")
        if encode_slot(place, slot) != bytes(data[:SLOT_BYTES]):
            raise ValueError("it is written in another way")
    except (ValueError, KeyError, TypeError, RecursionError, StorageFailed) as error:
        raise NewerFrame(f"a key of {place} is whole, and says what this version does not know ({error!r})") from error
    return slot


def read_block(place: Place, head: memoryview) -> Slot | None:
    """Of a segment that begins with these bytes, up to `BLOCK_BYTES` of them; None for a plain one, or none that can
    be told for sealed. Raises `NewerFrame`."""
    if len(head) >= HEADER_BYTES and head[4:6] == MAGIC:
        return None
    found = [slot for _, slot in slots_of(place, head) if slot is not None]
    return max(found, key=lambda slot: slot.generation, default=None)


def slots_of(place: Place, head: memoryview) -> list[tuple[int, Slot | None]]:
    """Where each slot of a block lies, and what it says; None for one that is not whole. Raises `NewerFrame`."""
    slots: list[tuple[int, Slot | None]] = []
    for at in (0, SLOT_BYTES):
        try:
            slots.append((at, decode_slot(place, head[at : at + SLOT_BYTES])))
        except CorruptBatch as error:
            if isinstance(error, NewerFrame):
                raise
            slots.append((at, None))
    return slots


def file_end(frames_bytes: int, entries: int, *, sealed: bool) -> int:
    """Where in a segment's file so many entries end, whose frames have so many bytes. A sealed segment without an entry
    has no block either."""
    return unit_start(frames_bytes, entries, sealed=sealed) if entries else 0


def unit_start(frames_bytes: int, entries: int, *, sealed: bool) -> int:
    """Where the entry after those begins."""
    return BLOCK_BYTES + frames_bytes + entries * OVERHEAD_BYTES if sealed else frames_bytes


# ------------------------------------------------------------------ units


class DataKey:
    """The key of a segment, open: what seals its entries and opens them. Of one partition. Immutable, for any thread.

    `slot`: as it lies on the disk.
    """

    __slots__ = ("_cipher", "_place_bytes", "block", "place", "slot")

    def __init__(self, place: Place, slot: Slot, cipher: Cipher) -> None:
        self.place = place
        self.slot = slot
        self.block = encode_slot(place, slot) * 2
        self._cipher = cipher
        self._place_bytes = _place_bytes(place)

    def seal(self, first: int, frame: Frame, unit: memoryview) -> None:
        """Write the unit of an entry in the segment that begins with entry `first` to `unit`, which has
        `OVERHEAD_BYTES` more than the frame. Each call gives other bytes."""
        nonce = os.urandom(NONCE_BYTES)
        checked = _HEADER.pack(0, _MAGIC, _ENTRY, 0, frame.entry.index, nonce, _ZEROS, 0, 0, frame.size + TAG_BYTES, 0)[
            4:
        ]
        unit[4:HEADER_BYTES] = checked
        sealed, associated, parts = unit[HEADER_BYTES:], self._associated(first, checked), frame.parts
        if len(parts) == 1 or frame.size <= _JOIN_BYTES_MAX:
            plain = parts[0] if len(parts) == 1 else b"".join(parts)
            self._cipher.encrypt_into(nonce, plain, associated, sealed)
        else:
            self._cipher.encrypt_parts_into(nonce, parts, associated, sealed)
        unit[:4] = checksum(self.place.seed, unit[4:]).to_bytes(4, "little")

    def open(self, first: int, data: memoryview, at: int = 0) -> tuple[Frame, int]:
        """The frame of the unit that begins at `at`, and where the unit ends.

        Raises `CorruptBatch` if the unit is damaged or cut off, `Altered` if it is not the one that was sealed there,
        and `NewerFrame` for one of a newer version.
        """
        header = _checked_header(self.place, data, at)
        end = at + header.frame_bytes
        if header.format < FORMAT:
            raise self._altered(header.entry_index, "a plain entry lies in a sealed segment")
        if header.format > FORMAT or header.kind != _ENTRY:
            raise NewerFrame(
                f"entry {header.entry_index} of {self.place} is of a newer format: start the TritonMQ version that "
                "wrote it, or a newer one"
            )
        checked, body = bytes(data[at + 4 : at + HEADER_BYTES]), data[at + HEADER_BYTES : end]
        try:
            plain = self._cipher.decrypt(checked[12:24], body, self._associated(first, checked))
        except Exception as error:  # of `cryptography`, which is not imported here
            raise self._altered(header.entry_index, "its seal does not hold") from error
        frame = decode_frame(self.place, memoryview(plain))
        if frame.entry.index != header.entry_index:
            raise CorruptBatch(f"entry {frame.entry.index} was sealed as {header.entry_index}")
        return frame, end

    def seal_snapshot(self, data: bytes) -> bytes:
        """A snapshot file, of an encoded snapshot. Each call gives other bytes."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, data, self._place_bytes + b"snapshot")
        return _snapshot_file(self.place, encode_slot(self.place, self.slot) + nonce + sealed)

    def open_snapshot(self, data: bytes) -> bytes:
        """The encoded snapshot of a sealed file whose checksum holds. Raises `Altered`."""
        at = _SNAPSHOT.size + SLOT_BYTES
        try:
            return self._cipher.decrypt(
                data[at : at + NONCE_BYTES], memoryview(data)[at + NONCE_BYTES :], self._place_bytes + b"snapshot"
            )
        except Exception as error:
            raise self._altered(None, "its seal does not hold") from error

    def _associated(self, first: int, checked: bytes) -> bytes:
        """`checked`: the header after its checksum."""
        return self._place_bytes + first.to_bytes(8, "little") + checked[:12] + checked[24:]

    def _altered(self, index: int | None, why: str) -> Altered:
        what = "the snapshot" if index is None else f"entry {index}"
        return Altered(
            f"{what} of partition {self.place.partition} of topic id {self.place.topic_id} was altered, although its "
            f"checksum holds: {why}, under key {self.slot.key_id!r}. The partition stays closed on this broker, and "
            "nothing of it was changed. Find out who wrote there; then move its directory away, to have it copied from "
            "another replica",
            self.slot.key_id,
        )


def walk_unit(place: Place, data: memoryview) -> tuple[int, int]:
    """Without a key: the index of the whole unit that `data` begins with, and where it ends. Raises `CorruptBatch`."""
    header = _checked_header(place, data, 0)
    return header.entry_index, header.frame_bytes


def _checked_header(place: Place, data: memoryview, at: int) -> Any:
    header = unpack_header(data, at)
    end = at + header.frame_bytes
    if end > len(data):
        raise CorruptBatch(f"a sealed entry of {header.frame_bytes} bytes is cut off after {len(data) - at}")
    if checksum(place.seed, data[at + 4 : end]) != header.crc:
        raise CorruptBatch(f"checksum does not hold for sealed entry {header.entry_index} of {place}: damaged")
    return header


def _place_bytes(place: Place) -> bytes:
    return place.topic_id.encode() + b"\0" + place.partition.to_bytes(4, "little")


def context_of(place: Place) -> bytes:
    """What a data key is wrapped with, so that it is unwrapped for no other partition."""
    return b"tritonmq data key\0" + _place_bytes(place)


# ------------------------------------------------------------------ snapshots


def _snapshot_file(place: Place, body: bytes) -> bytes:
    checked = _SNAPSHOT.pack(0, _SNAPSHOT_MAGIC, _SNAPSHOT_VERSION, len(body))[4:] + body
    return checksum(place.seed, checked).to_bytes(4, "little") + checked


def snapshot_slot(place: Place, data: bytes) -> Slot | None:
    """Of a snapshot file that is sealed; None for a plain one, or bytes that are none. Raises `CorruptBatch` if its
    checksum does not hold, `NewerSnapshot` for one of a newer version."""
    if len(data) < _SNAPSHOT.size:
        return None
    crc, magic, version, size = _SNAPSHOT.unpack_from(data)
    if magic != _SNAPSHOT_MAGIC or version != _SNAPSHOT_VERSION:
        return None
    view = memoryview(data)
    if size != len(data) - _SNAPSHOT.size or checksum(place.seed, view[4:]) != crc:
        raise CorruptBatch(f"the checksum of a sealed snapshot of {place} does not hold: damaged")
    if size < SLOT_BYTES + NONCE_BYTES + TAG_BYTES:
        raise _newer(place, "it is too short")
    try:
        return decode_slot(place, view[_SNAPSHOT.size : _SNAPSHOT.size + SLOT_BYTES])
    except CorruptBatch as error:  # the whole of it is as it was written
        raise _newer(place, str(error)) from error


def _newer(place: Place, why: str) -> NewerSnapshot:
    return NewerSnapshot(f"a sealed snapshot of {place} cannot be read ({why}): start the newest version")


def rewrapped_snapshot(place: Place, data: bytes, slot: Slot) -> bytes:
    """The same sealed snapshot with its data key wrapped otherwise."""
    return _snapshot_file(place, encode_slot(place, slot) + data[_SNAPSHOT.size + SLOT_BYTES :])


def plain_snapshot(place: Place, data: bytes, key_of: Callable[[Slot], DataKey]) -> bytes:
    """The encoded snapshot that a snapshot file holds, sealed or not. Raises `CorruptBatch`, `SealedAway`."""
    slot = snapshot_slot(place, data)
    return data if slot is None else key_of(slot).open_snapshot(data)


def rewrapped(slot: Slot, key_id: str, wrapped: bytes) -> Slot:
    """The same data key, wrapped by another key: it counts before the former one."""
    return replace(slot, key_id=key_id, wrapped=wrapped, generation=slot.generation + 1)
