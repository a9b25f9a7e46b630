"""Frames: what goes in comes out, and nothing that was touched comes out."""

from __future__ import annotations

import random
import struct

import google_crc32c
import pytest

from mq_broker.core.entries import Append, Entry, EntryKind
from mq_broker.storage.codec.frame import (
    HEADER_BYTES,
    MAGIC,
    NewerFrame,
    Place,
    decode,
    decode_frame,
    encode,
    unpinned,
)
from mq_protocol.errors import CorruptBatch
from tests.mq_broker.storage.bed import (
    PLACE,
    frame_of,
    frames_of,
    joined,
    one_of_each_operation,
    operations_with_attributes,
    operations_with_owners,
    uuid_of,
)

OPERATIONS = [*one_of_each_operation(), *operations_with_attributes(), *operations_with_owners()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_every_operation_survives_the_round_trip(operation: object) -> None:
    entry = Entry(2**40, 2**31, 1_700_000_000_000_000, operation, uuid_of(9), 10, 11, 12)  # type: ignore[arg-type]
    frame = encode(PLACE, entry, (b"hello", bytearray(b" "), memoryview(b"world")))
    data = joined([frame])
    assert len(data) == frame.size
    decoded, payload, end = decode(PLACE, b"xx" + data + b"yy", 2)
    assert decoded == entry
    assert payload == b"hello world"
    assert end == 2 + len(data)


def test_there_is_an_operation_for_every_kind() -> None:
    kinds = {joined([frame_of(1, operation=operation)])[6] for operation in OPERATIONS}
    assert kinds == {kind.value for kind in EntryKind}


def test_a_whole_frame_of_an_unknown_kind_is_not_taken_for_a_damaged_one() -> None:
    data = bytearray(joined([frame_of(1)]))
    data[6] = 99
    with pytest.raises(CorruptBatch) as damaged:
        decode(PLACE, data, 0)
    assert not isinstance(damaged.value, NewerFrame)
    data[:4] = google_crc32c.extend(PLACE.seed, bytes(data[4:])).to_bytes(4, "little")
    with pytest.raises(NewerFrame, match="kind 99"):
        decode(PLACE, data, 0)


def test_a_batch_that_has_not_a_uuid_for_each_of_its_records_is_damaged() -> None:
    records = uuid_of(1) + uuid_of(2)
    assert decode(PLACE, joined([encode(PLACE, Entry(7, 3, 0, Append(records), uuid_of(3), 2))]))[
        0
    ].operation == Append(records)
    for wrong in (records[:16], records[:-1]):
        with pytest.raises(CorruptBatch, match="not a UUID for each record"):
            decode(PLACE, joined([encode(PLACE, Entry(7, 3, 0, Append(wrong), uuid_of(3), 2))]))


def test_the_layout_is_the_one_that_is_promised() -> None:
    entry = Entry(7, 3, -5, Append(), uuid_of(1), 2, 4, 8)
    data = joined([encode(PLACE, entry, (b"body",))])
    fields = struct.unpack("<I2sBBQIq16sIIII", data[:HEADER_BYTES])
    assert fields[1:] == (MAGIC, 2, 0, 7, 3, -5, uuid_of(1), 2, 0, 4, 8)
    seed = google_crc32c.extend(0, PLACE.topic_id.encode() + b"\0" + struct.pack("<I", PLACE.partition))
    assert fields[0] == google_crc32c.extend(seed, data[4:])
    assert data[HEADER_BYTES:] == b"body"


def test_a_flipped_bit_anywhere_is_detected() -> None:
    for operation in OPERATIONS:
        data = joined([frame_of(5, 2, b"payload", operation)])
        for at in range(len(data)):
            for bit in (1, 128):
                damaged = bytearray(data)
                damaged[at] ^= bit
                with pytest.raises(CorruptBatch):
                    decode(PLACE, damaged, 0)


def test_a_frame_cut_anywhere_is_detected() -> None:
    data = joined([frame_of(5, 2, b"payload")])
    for length in range(len(data)):
        with pytest.raises(CorruptBatch):
            decode(PLACE, data[:length], 0)


@pytest.mark.parametrize("place", [Place("0c9a7e52", 4), Place("0c9a7e53", 3), Place("", 3)])
def test_a_frame_in_the_wrong_partition_is_detected(place: Place) -> None:
    with pytest.raises(CorruptBatch, match="another partition"):
        decode(place, joined([frame_of(1)]), 0)


def test_a_frame_of_a_message_comes_out_as_views_of_it() -> None:
    frames = frames_of(1, 3, size=100)
    message = joined(frames)
    size = frames[0].size
    decoded = decode_frame(PLACE, memoryview(message)[size : 2 * size])
    assert decoded.entry == frames[1].entry
    assert joined([decoded]) == message[size : 2 * size]
    assert b"".join(decoded.payload_parts) == bytes([2]) * 100
    assert all(isinstance(part, memoryview) and part.obj is message for part in decoded.parts)


@pytest.mark.parametrize("length", [0, 99, 101, 200])
def test_a_length_that_does_not_fit_the_frame_is_refused(length: int) -> None:
    message = joined(frames_of(1, 2, size=40))
    assert len(message) == 200
    with pytest.raises(CorruptBatch):
        decode_frame(PLACE, memoryview(message)[:length])


def test_large_payloads_are_checked_whole() -> None:
    payload = random.Random(1).randbytes(300_000)
    whole = encode(PLACE, Entry(1, 1, 1, Append(), payload_bytes=300_000), (payload,))
    pieces = encode(
        PLACE,
        Entry(1, 1, 1, Append(), payload_bytes=300_000),
        (payload[:7], memoryview(payload)[7:200_000], payload[200_000:]),
    )
    assert joined([whole]) == joined([pieces])
    data = bytearray(joined([whole]))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        decode(PLACE, data, 0)


def test_a_small_view_does_not_keep_a_large_message_alive() -> None:
    message = joined(frames_of(1, 1000, size=100))
    frame = decode_frame(PLACE, memoryview(message)[:160])
    kept = unpinned(frame)
    assert joined([kept]) == joined([frame])
    assert all(isinstance(part, bytes) for part in kept.parts)
    whole = decode_frame(PLACE, memoryview(joined(frames_of(1, 1, size=9000))))
    assert unpinned(whole) is whole or len(whole.parts[0]) < 100
