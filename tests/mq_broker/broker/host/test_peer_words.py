"""What one broker's core says arrives as the same words at another's: through the journal, the wire's messages, and
back."""

from __future__ import annotations

from typing import Any

import pytest

from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.broker.host.peer_messages import PeerMessages
from mq_broker.core.entries import Entry, MoveCursor
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import AppendAck, AppendEntries, Event, InstallSnapshot
from mq_broker.core.replication.peer_admission import Judgement, Verdict
from mq_broker.storage.codec.frame import Place, encode
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused, StorageFailed

PLACE = Place("id", 3)
ENTRIES = tuple(Entry(index, 5, 70 + index, MoveCursor("g", index, "consumer")) for index in (8, 9, 10))


class Wire:
    """Links, a journal that holds entries 8 to 10, and the broker at the other end."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.judged: Judgement = (Verdict.ADMITTED, "")
        self.sent: list[tuple[int, Any]] = []
        self.broken = False
        self.snapshot_data, self.first_index = b"a snapshot", 8
        wire: Any = self
        self.messages = PeerMessages(
            PLACE,
            wire,
            wire,
            self.heard.append,
            wire,
            lambda _message: self.judged,
            ArrivingSnapshots(),
            lambda: 1 << 20,
        )

    def is_dear(self, first: int, last: int) -> bool:
        return False

    def read(self, first: int, last: int, _bytes_max: int) -> list[Any]:
        if self.broken:
            raise StorageFailed("damaged")
        return [encode(PLACE, entry) for entry in ENTRIES if first <= entry.index <= last]

    def send_entries(self, to: int, message: pb.AppendEntries, parts: list[Any]) -> None:
        self.sent.append((to, message))
        data = memoryview(b"".join(bytes(part) for part in parts))
        views, at = [], 0
        for size in message.frame_bytes:
            views.append(data[at : at + size])
            at += size
        assert at == len(data)
        self.messages.hear_entries(message, views)

    def send_ack(self, to: int, message: pb.AppendAck) -> None:
        self.sent.append((to, message))
        self.messages.hear_ack(message)

    def send_snapshot(self, to: int, message: pb.SnapshotPart, data: bytes) -> None:
        self.sent.append((to, (message, data)))


def entries(prev: int, last: int, **fields: Any) -> AppendEntries:
    said = {
        "leader": 2,
        "incarnation": 4,
        "leader_epoch": 5,
        "prev_epoch": 3,
        "high_watermark": 6,
        "sequence": 11,
        **fields,
    }
    return AppendEntries(prev_index=prev, last_index=last, **said)


@pytest.mark.parametrize(("prev", "last"), [(7, 10), (8, 9), (9, 10)])
def test_entries_are_read_from_the_journal_and_heard_as_they_are(prev: int, last: int) -> None:
    wire = Wire()
    wire.messages.send(3, entries(prev, last))
    assert wire.heard == [entries(prev, last, entries=tuple(entry for entry in ENTRIES if prev < entry.index <= last))]
    assert [to for to, _ in wire.sent] == [3]


def test_a_heartbeat_reads_no_journal_and_may_name_a_successor() -> None:
    wire = Wire()
    wire.broken = True
    wire.messages.send(3, entries(10, 10, successor=7))
    assert wire.heard == [entries(10, 10, successor=7)]


def test_entries_that_cannot_be_read_are_not_sent() -> None:
    wire = Wire()
    wire.broken = True
    wire.messages.send(3, entries(7, 10))
    assert wire.sent == []


def test_a_frame_that_fails_its_checksum_drops_its_message() -> None:
    wire = Wire()
    frame = bytearray(b"".join(bytes(part) for part in encode(PLACE, ENTRIES[0]).parts))
    frame[-1] ^= 1
    wire.messages.hear_entries(pb.AppendEntries(leader=2), [memoryview(frame)])
    assert wire.heard == []


@pytest.mark.parametrize("conflict", [True, False])
def test_an_answer_is_heard_as_it_was_said(conflict: bool) -> None:
    wire = Wire()
    ack = AppendAck(3, 4, "log", 5, 8, 9, 11, conflict, 6, 2)
    wire.messages.send(2, ack)
    assert wire.heard == [ack]
    assert wire.sent[0][0] == 2


def test_what_the_core_does_not_admit_is_dropped_or_refused_and_never_heard() -> None:
    wire = Wire()
    wire.judged = Verdict.NOT_REGISTERED, "not yet"
    wire.messages.send(3, entries(10, 10))
    wire.judged = (
        next(verdict for verdict in Verdict if verdict not in (Verdict.ADMITTED, Verdict.NOT_REGISTERED)),
        "nonsense",
    )
    with pytest.raises(PeerRefused, match="nonsense"):
        wire.messages.send(3, entries(10, 10))
    assert wire.heard == []


def test_a_snapshot_is_the_journals_and_names_its_sending() -> None:
    wire = Wire()
    wire.messages.send(3, InstallSnapshot(2, 4, 5, 11, Snapshot(7, 5, 70, MachineState())))
    [(to, (message, data))] = wire.sent
    assert (to, data) == (3, b"a snapshot")
    expected = pb.SnapshotPart(topic_id="id", partition=3, leader_epoch=5, incarnation=4, leader=2, sequence=11)
    assert message == expected
