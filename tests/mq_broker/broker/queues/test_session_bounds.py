"""What members of a queue group that mean harm may have a broker keep for their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.queues import presence, session, sessions
from mq_broker.broker.queues.presence import Presence
from mq_broker.broker.runtime.memory import COPIES_SENT, Held
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.error_messages import from_wire, to_wire
from mq_protocol.errors import InvalidRequest, Overloaded
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.queues.members import of, queue, ranges
from tests.mq_broker.broker.queues.spoken import speaking
from tests.mq_broker.broker.queues.test_sessions import described

NOBODYS = pb.LeaseId(leader_epoch=1, entry=1)


class Reader:
    """Holds up what is sent to the first stream, until it `reads`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = asyncio.Event()
        work, streams = sessions.Sessions.work, list[object]()

        async def held_up(own: Any, requests: AsyncIterator[pb.WorkRequest], send: Any) -> None:
            async def late(message: object) -> None:
                await self.reads.wait()
                await send(message)

            streams.append(send)
            await work(own, requests, late if len(streams) == 1 else send)

        monkeypatch.setattr(sessions.Sessions, "work", held_up)


async def is_leased(broker: Broker, records: int) -> bool:
    return (await described(broker)).leased == records


def test_a_session_that_does_not_read_is_lent_no_more_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "UNREAD_MAX", 4)

    async def scenario() -> None:
        reader = Reader(monkeypatch)
        async with queue(tmp_path, records=0) as broker, speaking(broker) as stream:
            await stream.open(records=1 << 31, accept=True)
            for n in range(20):
                await broker.produce("t", n)
            accepted = (await described(broker)).accepted
            assert accepted < 10, "what it has not read takes memory"
            reader.reads.set()
            lent = 0
            while lent < 20:
                lent += sum(ranges(await stream.lease())[1::2])

    asyncio.run(scenario())


def test_what_waits_for_an_answer_counts_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One settle may name 8,000, and each takes memory while entries before it are written."""
    monkeypatch.setattr(session, "UNANSWERED_MAX", 30)

    async def scenario() -> None:
        async with queue(tmp_path, records=50) as broker, speaking(broker) as stream:
            await stream.open()
            wide = pb.SettleOne(lease=NOBODYS, ranges=[1, 1] * 20)
            await stream.settle(wide, wide)
            told = await stream.hear(lambda said: said.answers)
            assert all(isinstance(from_wire(each.answer.error), Overloaded) for each in told.answers)
            await stream.settle(wide)
            told = await stream.hear(lambda said: said.answers)
            assert len(told.answers[0].answer.lost) == 40, "the others are not counted any more"

    asyncio.run(scenario())


def test_a_stream_is_heard_no_more_once_the_ranges_of_its_answers_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "UNTOLD_MAX", 100)
    streams: list[sessions._Stream] = []

    class Stream(sessions._Stream):
        def __init__(self, own: sessions.Sessions) -> None:
            super().__init__(own)
            streams.append(self)

    monkeypatch.setattr(sessions, "_Stream", Stream)

    async def scenario() -> None:
        reader = Reader(monkeypatch)
        async with queue(tmp_path, records=100) as broker, speaking(broker) as stream:
            await stream.open()
            wide = pb.SettleOne(lease=NOBODYS, ranges=[1, 1] * 50)
            for _ in range(6):
                await stream.settle(wide)
            await until(of(lambda: any(each._untold > sessions.UNTOLD_MAX for each in streams[:1])))
            await stream.open(2, "other", records=1)
            for _ in range(5):  # each comes to the broker after what was said before, by the same connection
                assert await is_leased(broker, 0), "what it says waits in TCP"
            reader.reads.set()
            assert ranges(await stream.lease(2)) == [0, 1]

    asyncio.run(scenario())


def test_answers_without_bytes_of_their_own_do_not_all_go_into_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the time of some hundred bytes, and others wait meanwhile."""
    monkeypatch.setattr(sessions, "FETCH_CHUNK_BYTES", 10 * sessions.ANSWER_BYTES)

    async def scenario() -> None:
        async with queue(tmp_path) as broker, speaking(broker) as stream:
            await stream.open()
            await stream.settle(*[pb.SettleOne(lease=NOBODYS)] * 100)
            told: list[int] = []
            while sum(told) < 100:
                told.append(sum(len(said.answers) for said in await stream.heard()))
            assert max(told) <= 10

    asyncio.run(scenario())


def test_leases_that_wait_to_be_compared_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEASES_HELD_MAX", 50)

    async def scenario() -> None:
        async with queue(tmp_path) as broker, speaking(broker) as stream:
            await stream.open()
            leases = [pb.LeaseId(leader_epoch=1, entry=entry) for entry in range(1, 61)]
            await stream.say(pb.SessionRequest(session=1, check=leases))
            assert isinstance(await stream.error(), Overloaded)

    asyncio.run(scenario())


def test_a_message_is_counted_with_its_rows_and_its_header_until_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header may be as large: it has the answers. What is not counted is held above the mark."""
    header = pb.WorkHeader(sessions=[pb.SessionResponse(session=1, error=to_wire(InvalidRequest("e" * 70_000)))])
    message = Envelope(header, (b"r" * 50_000, b"r" * 5_000))
    monkeypatch.setattr(sessions._Stream, "_gather", lambda *_: message)

    async def scenario() -> None:
        nobody: Any = None
        held = Held(1 << 30)
        stream = sessions._Stream(sessions.Sessions(nobody, nobody, held))
        counted: list[int] = []

        async def send(_message: object) -> None:
            counted.append(held.bytes)
            stream._over.set()

        stream._refuse(1, InvalidRequest("it has something to tell"))
        async with asyncio.timeout(30):
            await stream.write(send)
        assert counted == [COPIES_SENT * (55_000 + header.ByteSize())]
        assert held.bytes == 0

    asyncio.run(scenario())


class Gone:
    """A session's name and key."""

    key, priority = b"", 0

    def __init__(self, member: str) -> None:
        self.member = member

    def end(self, _error: object) -> None:
        raise AssertionError("no other one takes its place")


@pytest.mark.parametrize("until_ms", [None, 5], ids=["closed", "broken"])
def test_members_that_are_gone_are_bounded_while_no_entry_can_be_written(
    until_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BROKEN_MAX", 5)
    monkeypatch.setattr(presence, "OVER_MAX", 10)
    known = Presence()
    for number in range(100):
        gone = Gone(f"m{number}")
        known.come(gone, "g", replaced_before=False)
        known.leave(gone, until_ms)
    assert len(known._over) + len(known._broken) <= 15
    assert known.due(0), "those that are kept still give back what they have"
