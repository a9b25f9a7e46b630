"""What comes from other brokers as bytes becomes words for the core, whole or not at all, and the loop goes on
meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from mq_broker.broker.host import peer_messages
from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.broker.host.peer_messages import PeerMessages
from mq_broker.core.entries import Entry, MoveCursor
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import Event, InstallSnapshot
from mq_broker.core.replication.peer_admission import Judgement, Verdict
from mq_broker.rpc.peer_proof import PeerProof, Refusals
from mq_broker.rpc.wire.links import Links
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.codec.snapshot import decode_snapshot, encode_snapshot
from mq_broker.storage.journal.memory import MemoryJournal
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.limits import SNAPSHOT_PART_BYTES
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import DEADLINE_S

PLACE = Place("id", 0)
ENTRY = Entry(1, 3, 77, MoveCursor("g", 5, "consumer"))
SNAPSHOT = Snapshot(9, 3, 77, MachineState(next_offset=5))
DATA = encode_snapshot(PLACE, SNAPSHOT)


class Nobody:
    """Hears nothing of links, nor of a journal."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")


class Peers:
    """The messages of one partition, and what they told its core."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.refusals = Refusals()
        self.judged: Judgement = (Verdict.ADMITTED, "")
        self.arriving = ArrivingSnapshots()
        links = Links(PeerProof(1, 1, "c", bytes(32)), Nobody(), self._spawn, refusals=self.refusals)
        self.messages = PeerMessages(
            PLACE,
            links,
            MemoryJournal(Nobody(), PLACE),
            self._feed,
            self._spawn,
            lambda message: self.judged,
            self.arriving,
            lambda: 2 * SNAPSHOT_PART_BYTES,
        )

    def _feed(self, event: Event) -> None:
        self.events.append(event)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    def hear(self, sequence: int, part: int, data: bytes, parts: int = 2) -> None:
        self.messages.hear_snapshot(
            pb.SnapshotPart(
                leader=2, incarnation=4, leader_epoch=3, sequence=sequence, part=part, parts=parts, data=data
            )
        )

    async def idle(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self.tasks)


@real_time
async def test_a_snapshot_is_put_together_from_its_parts_and_from_those_of_one_sending_only() -> None:
    peers = Peers()
    peers.hear(1, 0, DATA[:20])
    peers.hear(2, 1, DATA[20:])
    peers.hear(2, 0, DATA[:20])
    assert not peers.tasks
    peers.hear(2, 1, DATA[20:])
    await peers.idle()
    assert peers.events == [InstallSnapshot(2, 4, 3, 2, SNAPSHOT)]
    peers.hear(3, 0, DATA[:-1], parts=1)
    await peers.idle()
    assert len(peers.events) == 1, "a damaged one is dropped"
    peers.hear(4, 0, DATA, parts=1)
    await peers.idle()
    assert len(peers.events) == 2


@real_time
async def test_a_snapshot_is_read_beside_the_loop_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def slowly(place: Place, data: bytes) -> Snapshot:
        assert let_go.wait(DEADLINE_S)
        return decode_snapshot(place, data)

    monkeypatch.setattr(peer_messages, "decode_snapshot", slowly)

    peers = Peers()
    peers.hear(1, 0, DATA, parts=1)
    await asyncio.sleep(0)
    peers.hear(2, 0, DATA, parts=1)
    assert (len(peers.tasks), peers.events) == (1, []), "the loop is here already"
    let_go.set()
    await peers.idle()
    assert peers.events == [InstallSnapshot(2, 4, 3, 1, SNAPSHOT)]


def test_a_message_that_no_broker_sends_is_not_fed_and_ends_the_link() -> None:
    peers = Peers()
    peers.judged = Verdict.NONSENSE, "nobody says that"
    frames = [memoryview(b"".join(map(bytes, encode(PLACE, ENTRY).parts)))]
    with pytest.raises(PeerRefused, match="nobody says that") as error:
        peers.messages.hear_entries(pb.AppendEntries(leader=2, leader_epoch=3), frames)
    assert error.value.why == pb.PEER_NONSENSE
    with pytest.raises(PeerRefused):
        peers.messages.hear_ack(pb.AppendAck(follower=2))
    peers.judged = Verdict.NOT_REGISTERED, "not yet"
    peers.messages.hear_ack(pb.AppendAck(follower=2))
    assert peers.events == []


@real_time
async def test_a_snapshot_that_makes_no_sense_ends_the_link() -> None:
    peers = Peers()
    nonsense = encode_snapshot(PLACE, Snapshot(9, 3, 77, MachineState(next_offset=1 << 62)))
    peers.hear(1, 0, nonsense, parts=1)
    await peers.idle()
    assert (peers.events, peers.refusals.counts) == ([], {("PEER_NONSENSE", 2): 1})
    assert peers.arriving.bytes_kept == 0
