"""Snapshots as bytes: what goes in comes out, small, and nothing that was touched comes out."""

from __future__ import annotations

import random

import pytest

from mq_broker.core.entries import StagedBatches, TransactionKey
from mq_broker.core.state import Cursor, MachineState, Placed, Snapshot, StagedBatch, TransactionState
from mq_broker.storage.frame import Place
from mq_broker.storage.snapshot import NewerSnapshot, decode_snapshot, encode_snapshot
from mq_protocol.errors import CorruptBatch

from .bed import KEY, PLACE, random_frame, state_of, uuid_of

FULL = Snapshot(
    last_index=2**40,
    last_epoch=2**31,
    timestamp_us=1_700_000_000_000_000,
    state=MachineState(
        next_offset=2**50,
        log_start_offset=2**49,
        uuids=(
            (uuid_of(3), Placed(7, -1, 1_700_000_000_000_000)),
            (uuid_of(1), Placed(5, 2**50, 0)),
            (uuid_of(2), Placed(2**40, 0, 1_700_000_000_000_001)),
        ),
        staged=(StagedBatch(uuid_of(3), KEY, 12, "run-1", 500, 7, 9, 1 << 26, 1 << 28),),
        published=((KEY, 11), (TransactionKey("", "sink/é"), -1)),
        cursors=(("audit", Cursor(77, "spark", 5)), ("b", Cursor(0, "consumer", 6))),
        transactions=(
            (
                KEY,
                TransactionState(
                    12, "run-2", 500, (StagedBatches("t", 2, (uuid_of(4), uuid_of(5)), 500, "t-id"),), False, ("run-1", "run-0")
                ),
            ),
            (TransactionKey("q", "s"), TransactionState(3, "r", 0, (), True, (), once=True, changed_us=17)),
            (TransactionKey("q2", ""), TransactionState(-1, "", 0, (), True, (), aborted=True, changed_us=1_700_000_000_000_002)),
        ),
        fenced=(KEY, TransactionKey("q2", "")),
    ),
)


@pytest.mark.parametrize("snapshot", [FULL, Snapshot(0, 0, 0, MachineState())], ids=["full", "empty"])
def test_every_field_survives_the_round_trip(snapshot: Snapshot) -> None:
    data = encode_snapshot(PLACE, snapshot)
    assert decode_snapshot(PLACE, data) == snapshot
    assert decode_snapshot(PLACE, memoryview(data)) == snapshot


def test_the_states_of_random_journals_survive_the_round_trip() -> None:
    rng = random.Random(4)
    for count in (1, 30, 400):
        frames = [random_frame(rng, index, 1) for index in range(1, count + 1)]
        snapshot = Snapshot(count, 1, 5, state_of(frames, 50))
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


def test_a_hundred_thousand_uuids_take_24_bytes_each() -> None:
    rng = random.Random(1)
    index, offset, now = 1 << 30, 1 << 40, 1_700_000_000_000_000
    uuids: list[tuple[bytes, Placed]] = []
    for _ in range(100_000):
        index, offset, now = index + rng.randrange(1, 3), offset + rng.randrange(1, 2000), now + rng.randrange(20_000)
        uuids.append((rng.randbytes(16), Placed(index, offset, now)))
    snapshot = Snapshot(index, 1, now, MachineState(offset, 0, tuple(uuids)))
    data = encode_snapshot(PLACE, snapshot)
    assert len(data) < 24 * 100_000
    assert decode_snapshot(PLACE, data) == snapshot
