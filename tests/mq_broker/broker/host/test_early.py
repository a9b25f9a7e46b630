"""What leaders say to replicas that are not open yet is kept for a moment, and told to them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mq_broker.broker.host.peer_messages import EARLY_BYTES_MAX, EARLY_MAX, EARLY_MS, EarlyEntries
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused


class Replica:
    """One that has been opened. `heard`: sequence numbers, with the frames."""

    def __init__(self, error: PeerRefused | None = None) -> None:
        self.heard: list[tuple[int, list[bytes]]] = []
        self._error = error

    def hear_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None:
        self.heard.append((message.sequence, [bytes(frame) for frame in frames]))
        if self._error is not None:
            raise self._error


class Bed:
    """`refused`: brokers whose link is to end."""

    def __init__(self) -> None:
        self.now_ms = 50_000
        self.refused: list[int] = []
        self.early = EarlyEntries(lambda: self.now_ms)

    def say(self, sequence: int, frames: Sequence[bytes] = (b"entry",), *, leader: int = 2, topic: str = "t") -> None:
        message = pb.AppendEntries(
            topic_id=topic, partition=1, leader=leader, sequence=sequence, frame_bytes=map(len, frames)
        )
        self.early.hear_entries(message, [memoryview(frame) for frame in frames])

    def opened(self, topic: str = "t", error: PeerRefused | None = None) -> list[tuple[int, list[bytes]]]:
        replica: Any = Replica(error)
        self.early.tell(topic, 1, replica, lambda broker, _error: self.refused.append(broker))
        heard: list[tuple[int, list[bytes]]] = replica.heard
        return heard


def test_the_last_entries_are_told_once() -> None:
    bed = Bed()
    bed.say(1)
    bed.say(2, [b"one", b"two"])
    bed.say(3, topic="other")
    assert bed.opened() == [(2, [b"one", b"two"])]
    assert bed.opened() == []
    assert bed.opened("other") == [(3, [b"entry"])]


def test_what_the_link_delivers_into_the_same_memory_afterwards_changes_nothing() -> None:
    bed = Bed()
    memory, message = bytearray(b"entry"), pb.AppendEntries(topic_id="t", partition=1, sequence=1, frame_bytes=[5])
    bed.early.hear_entries(message, [memoryview(memory)])
    memory[:] = b"other"
    message.sequence = 2
    assert bed.opened() == [(1, [b"entry"])]


def test_what_its_leader_sends_again_by_then_is_not_told() -> None:
    bed = Bed()
    bed.say(1)
    bed.now_ms += EARLY_MS
    assert bed.opened() == []
    bed.say(2)
    bed.now_ms += EARLY_MS - 1
    assert bed.opened() == [(2, [b"entry"])]


@pytest.mark.parametrize("frames", [[], [bytes(EARLY_BYTES_MAX)]], ids=["a heartbeat", "large entries"])
def test_a_message_that_is_not_kept_takes_the_place_of_the_one_before(frames: list[bytes]) -> None:
    bed = Bed()
    bed.say(1)
    bed.say(2, frames)
    assert bed.opened() == []


def test_a_leader_that_may_lead_no_more_is_not_heard() -> None:
    bed = Bed()
    bed.say(1)
    bed.early.hear_ack(pb.AppendAck(topic_id="t", partition=1, follower=3))
    bed.early.hear_ack(pb.AppendAck(topic_id="t", partition=0, follower=2))
    assert len(bed.early) == 1, "they are others"
    bed.early.hear_ack(pb.AppendAck(topic_id="t", partition=1, follower=2))
    assert bed.opened() == []


def test_what_came_on_a_link_goes_with_it() -> None:
    bed = Bed()
    bed.say(1, leader=2)
    bed.say(1, leader=3, topic="other")
    bed.early.forget(2)
    assert bed.opened() == []
    assert bed.opened("other") == [(1, [b"entry"])]


def test_a_snapshot_is_not_kept() -> None:
    bed = Bed()
    bed.early.hear_snapshot(pb.SnapshotPart(topic_id="t", partition=1, parts=1, data=b"x"))
    assert len(bed.early) == 0


def test_of_too_many_the_oldest_are_forgotten() -> None:
    bed = Bed()
    for topic in ("a", "b", *map(str, range(EARLY_MAX - 2)), "a", "c"):
        bed.say(1, topic=topic)
    assert len(bed.early) == EARLY_MAX
    assert (bed.opened("b"), len(bed.opened("a")), len(bed.opened("c"))) == ([], 1, 1)


def test_a_broker_that_has_said_what_no_broker_says_loses_its_link() -> None:
    bed = Bed()
    bed.say(1)
    bed.opened(error=PeerRefused("nonsense"))
    assert bed.refused == [2]
