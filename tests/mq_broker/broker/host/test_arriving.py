"""What one link can have a broker keep of snapshots that are on their way."""

from __future__ import annotations

import pytest

from mq_broker.broker.host.arriving import ArrivingSnapshots, bytes_max
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_PART_BYTES, SNAPSHOT_UUID_BYTES

SIZE_MAX = 3 * SNAPSHOT_PART_BYTES


def part(number: int, parts: int = 3, size: int = 10, leader: int = 2, **fields: int) -> pb.SnapshotPart:
    return pb.SnapshotPart(topic_id="id", leader=leader, part=number, parts=parts, data=b"x" * size, **fields)


def test_a_snapshot_may_be_as_large_as_the_uuids_that_its_partition_remembers() -> None:
    assert bytes_max(0) == SNAPSHOT_BYTES_MAX
    assert bytes_max(100) == SNAPSHOT_BYTES_MAX + 100 * SNAPSHOT_UUID_BYTES


def test_the_parts_of_a_sending_in_their_order_are_a_snapshot() -> None:
    arriving = ArrivingSnapshots()
    assert arriving.take(part(0), SIZE_MAX) == []
    assert arriving.take(part(1), SIZE_MAX) == []
    assert arriving.bytes_kept == 20
    whole = arriving.take(part(2), SIZE_MAX)
    assert [each.part for each in whole] == [0, 1, 2]
    assert arriving.bytes_kept == 30, "until they were read"
    arriving.done(whole)
    assert arriving.bytes_kept == 0
    assert len(arriving.take(part(0, parts=1), SIZE_MAX)) == 1


@pytest.mark.parametrize(
    ("nonsense", "size_max"),
    [
        (part(3), SIZE_MAX),
        (part(0, size=0), SIZE_MAX),
        (part(0, size=SNAPSHOT_PART_BYTES + 1), SIZE_MAX),
        (part(0, parts=5), SIZE_MAX),
        (part(0, parts=3), 2 * SNAPSHOT_PART_BYTES - 1),
    ],
)
def test_parts_that_no_broker_sends_are_refused(nonsense: pb.SnapshotPart, size_max: int) -> None:
    with pytest.raises(PeerRefused):
        ArrivingSnapshots().take(nonsense, size_max)


def test_as_much_as_is_allowed_is_taken() -> None:
    arriving = ArrivingSnapshots()
    assert arriving.take(part(0, parts=4, size=SNAPSHOT_PART_BYTES), SIZE_MAX) == []
    assert arriving.bytes_kept == SNAPSHOT_PART_BYTES


@pytest.mark.parametrize(
    "strange", [part(2), part(1, sequence=9), part(1, leader_epoch=9), part(1, partition=1), part(1, parts=4)]
)
def test_a_part_that_does_not_follow_takes_what_came_before_it_along(strange: pb.SnapshotPart) -> None:
    arriving = ArrivingSnapshots()
    arriving.take(part(0), SIZE_MAX)
    assert arriving.take(strange, SIZE_MAX) == []
    assert arriving.bytes_kept == 0
    arriving.take(part(0), SIZE_MAX)
    arriving.take(part(1), SIZE_MAX)
    assert len(arriving.take(part(2), SIZE_MAX)) == 3


def test_a_first_part_begins_anew_whatever_came_before_it() -> None:
    arriving = ArrivingSnapshots()
    arriving.take(part(0), SIZE_MAX)
    arriving.take(part(1), SIZE_MAX)
    assert arriving.take(part(0, sequence=2), SIZE_MAX) == []
    assert arriving.bytes_kept == 10


def test_what_finds_no_room_beside_one_that_is_being_read_is_sent_again() -> None:
    arriving, room = ArrivingSnapshots(), SNAPSHOT_PART_BYTES
    reading = arriving.take(part(0, parts=1, size=room - 80), room)
    arriving.take(part(0, parts=2, size=50), room)
    assert arriving.take(part(1, parts=2, size=31), room) == []
    assert arriving.bytes_kept == room - 80, "what had come of it is not kept"
    arriving.take(part(0, parts=2, size=50), room)
    assert len(arriving.take(part(1, parts=2, size=30), room)) == 2
    arriving.done(reading)
    assert arriving.bytes_kept == 80


def test_links_do_not_mix_and_one_that_ends_leaves_nothing() -> None:
    arriving = ArrivingSnapshots()
    arriving.take(part(0, parts=2), SIZE_MAX)
    arriving.take(part(0, parts=2, leader=3), SIZE_MAX)
    arriving.forget(2)
    arriving.forget(9)
    assert arriving.bytes_kept == 10
    assert [each.leader for each in arriving.take(part(1, parts=2, leader=3), SIZE_MAX)] == [3, 3]
    assert arriving.take(part(1, parts=2), SIZE_MAX) == []
