"""What comes from other brokers as bytes becomes words for the core, whole or not at all, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from mq_broker.broker import peer_messages
from mq_broker.broker.peer_messages import Bodies, PeerMessages
from mq_broker.core.messages import Event, InstallSnapshot
from mq_broker.core.state import MachineState, Snapshot
from mq_broker.rpc.links import Links
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.storage.frame import Place
from mq_broker.storage.memory import MemoryJournal
from mq_broker.storage.snapshot import decode_snapshot, encode_snapshot
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import DEADLINE_S

PLACE = Place("id", 0)
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
        links = Links(PeerProof(1, 1, "c", bytes(32)), Nobody(), self._spawn)
        self.messages = PeerMessages(PLACE, links, MemoryJournal(Nobody(), PLACE), self._feed, self._spawn)

    def _feed(self, event: Event, _bodies: Bodies) -> None:
        self.events.append(event)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    def hear(self, sequence: int, part: int, data: bytes, parts: int = 2) -> None:
        self.messages.hear_snapshot(
            pb.SnapshotPart(leader=2, incarnation=4, leader_epoch=3, sequence=sequence, part=part, parts=parts, data=data)
        )

    async def idle(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self.tasks)


def test_a_snapshot_is_put_together_from_its_parts_and_from_those_of_one_sending_only() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_snapshot_is_read_beside_the_loop_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def slowly(place: Place, data: bytes) -> Snapshot:
        assert let_go.wait(DEADLINE_S)
        return decode_snapshot(place, data)

    monkeypatch.setattr(peer_messages, "decode_snapshot", slowly)

    async def main() -> None:
        peers = Peers()
        peers.hear(1, 0, DATA, parts=1)
        await asyncio.sleep(0)
        peers.hear(2, 0, DATA, parts=1)
        assert (len(peers.tasks), peers.events) == (1, []), "the loop is here already"
        let_go.set()
        await peers.idle()
        assert peers.events == [InstallSnapshot(2, 4, 3, 1, SNAPSHOT)]

    asyncio.run(main())
