"""Snapshots as bytes: what goes in comes out, small, and nothing that was touched comes out."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from mq_broker.core.entries import TransactionKey
from mq_broker.core.machine.state import Cursor, MachineState, Snapshot, StagedBatch, TransactionState
from mq_broker.core.machine.window import Placed, SeenUuids, WindowBounds
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.codec.snapshot import NewerSnapshot, decode_snapshot, encode_snapshot
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CorruptBatch
from mq_protocol.manifest import StagedPart
from tests.mq_broker.storage.bed import KEY, PLACE, random_frame, state_of, uuid_of

FULL = Snapshot(
    last_index=2**40,
    last_epoch=2**31,
    timestamp_us=1_700_000_000_000_000,
    state=MachineState(
        next_offset=2**50,
        log_start_offset=2**49,
        uuids=SeenUuids.of(
            (
                (uuid_of(3), Placed(7, -1, 1_700_000_000_000_000)),
                (uuid_of(1), Placed(5, 2**50, 0)),
                (uuid_of(2), Placed(2**40, 0, 1_700_000_000_000_001)),
            )
        ),
        staged=(StagedBatch(uuid_of(3), KEY, 12, "run-1", 500, 7, 9, 1 << 26, 1 << 28),),
        published=((KEY, 11), (TransactionKey("", "sink/é"), -1)),
        cursors=(("audit", Cursor(77, "spark", 5)), ("b", Cursor(0, "consumer", 6))),
        transactions=(
            (
                KEY,
                TransactionState(
                    12,
                    "run-2",
                    500,
                    (StagedPart("t", 2, (uuid_of(4), uuid_of(5)), 500, "t-id"),),
                    False,
                    ("run-1", "run-0"),
                ),
            ),
            (TransactionKey("q", "s"), TransactionState(3, "r", 0, (), True, (), once=True, changed_us=17)),
            (
                TransactionKey("q2", ""),
                TransactionState(-1, "", 0, (), True, (), aborted=True, changed_us=1_700_000_000_000_002),
            ),
        ),
        fenced=(KEY, TransactionKey("q2", "")),
    ),
)


@pytest.mark.parametrize("snapshot", [FULL, Snapshot(0, 0, 0, MachineState())], ids=["full", "empty"])
def test_every_field_survives_the_round_trip(snapshot: Snapshot) -> None:
    data = encode_snapshot(PLACE, snapshot)
    assert decode_snapshot(PLACE, data) == snapshot
    assert decode_snapshot(PLACE, memoryview(data)) == snapshot


@pytest.mark.parametrize(
    "owned",
    [
        {"staged": (replace(FULL.state.staged[0], owner="User:etl"),)},
        {"transactions": ((KEY, replace(FULL.state.transactions[0][1], owner="User:etl")),)},
        {"cursors": (("audit", Cursor(77, "spark", 5, "User:etl")),)},
    ],
    ids=["staged", "decided", "a cursor"],
)
def test_owners_survive_the_round_trip(owned: dict[str, Any]) -> None:
    snapshot = replace(FULL, state=replace(FULL.state, **owned))
    assert decode_snapshot(PLACE, encode_snapshot(PLACE, snapshot)) == snapshot


def test_the_states_of_random_journals_survive_the_round_trip() -> None:
    rng = random.Random(4)
    for count in (1, 30, 400):
        frames = [random_frame(rng, index, 1) for index in range(1, count + 1)]
        snapshot = Snapshot(count, 1, 5, state_of(frames, WindowBounds(50)))
        assert decode_snapshot(PLACE, encode_snapshot(PLACE, snapshot)) == snapshot


def test_a_byte_flipped_cut_or_added_anywhere_is_detected() -> None:
    data = encode_snapshot(PLACE, FULL)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 8
        for bad in (bytes(damaged), data[:at]):
            with pytest.raises(CorruptBatch):
                decode_snapshot(PLACE, bad)
    with pytest.raises(CorruptBatch):
        decode_snapshot(PLACE, data + b"\0")


def test_a_snapshot_of_another_partition_is_not_taken() -> None:
    for place in (Place(PLACE.topic_id, 4), Place("other", PLACE.partition)):
        with pytest.raises(CorruptBatch, match="of another partition"):
            decode_snapshot(place, encode_snapshot(PLACE, FULL))
    assert not issubclass(NewerSnapshot, CorruptBatch)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_very_many_uuids_take_24_bytes_each(count: int) -> None:
    rng = random.Random(1)
    index, offset, now = 1 << 30, 1 << 40, 1_700_000_000_000_000
    uuids: list[tuple[bytes, Placed]] = []
    for _ in range(count):
        index, offset, now = index + rng.randrange(1, 3), offset + rng.randrange(1, 2000), now + rng.randrange(20_000)
        uuids.append((rng.randbytes(16), Placed(index, offset, now)))
    snapshot = Snapshot(index, 1, now, MachineState(offset, 0, SeenUuids.of(uuids)))
    data = encode_snapshot(PLACE, snapshot)
    assert len(data) < 24 * count
    assert decode_snapshot(PLACE, data) == snapshot


def _resealed(body: bytes) -> bytes:
    """A snapshot of that body with a checksum that holds."""
    checked = struct.pack("<3sBQ", b"TSn", 1, len(body)) + body
    return struct.pack("<I", google_crc32c.extend(PLACE.seed, checked)) + checked


def test_parts_that_do_not_fit_together_are_refused_whatever_the_checksum_says() -> None:
    state = pb.SnapshotState(last_index=5).SerializeToString()
    first = struct.pack("<I", len(state)) + state
    assert decode_snapshot(PLACE, _resealed(first)).last_index == 5

    def part(**columns: object) -> bytes:
        written = pb.PlacedUuids(**columns).SerializeToString()  # type: ignore[arg-type]
        return first + struct.pack("<I", len(written)) + written

    whole = part(uuids=uuid_of(1), index_step=[1], base_offset_step=[1], timestamp_us_step=[1])
    assert len(decode_snapshot(PLACE, _resealed(whole)).state.uuids) == 1
    for body in (
        b"",
        first[:2],
        first[:-1],
        first + b"\1",
        # a part that ends after the body
        whole[: len(first)] + struct.pack("<I", len(whole)) + whole[len(first) + 4 :],
        part(uuids=uuid_of(1)),
        part(uuids=uuid_of(1), index_step=[1, 1], base_offset_step=[1], timestamp_us_step=[1]),
        part(uuids=uuid_of(1), index_step=[1], base_offset_step=[1, 1], timestamp_us_step=[1]),
        part(uuids=uuid_of(1), index_step=[1], base_offset_step=[1], timestamp_us_step=[1, 1]),
        part(uuids=b"short", index_step=[1], base_offset_step=[1], timestamp_us_step=[1]),
        part(uuids=uuid_of(1), index_step=[-1], base_offset_step=[1], timestamp_us_step=[1]),
        part(
            uuids=uuid_of(1) + uuid_of(2),
            index_step=[1, 1],
            base_offset_step=[(1 << 63) - 1] * 2,
            timestamp_us_step=[1, 1],
        ),
    ):
        with pytest.raises(CorruptBatch):
            decode_snapshot(PLACE, _resealed(body))
