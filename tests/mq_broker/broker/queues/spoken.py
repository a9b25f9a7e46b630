"""A stream of sessions of members of a queue group, spoken by hand to a broker in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import decode_batch
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.envelope import decode
from mq_protocol.wire.error_messages import from_wire
from tests.mq_broker.broker.cluster import DEADLINE_S, SCHEMA, Broker

KEY = b"k" * 16


class Spoken:
    """Owns the call. `told`: what was heard and is not asked for yet; `rows`: of leases, by session."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.call = broker.channel.call("Work")
        self.told: deque[pb.SessionResponse] = deque()
        self.rows: dict[int, list[int]] = {}

    async def say(self, *sessions: pb.SessionRequest) -> None:
        await self.call.write(pb.WorkRequest(sessions=sessions).SerializeToString())

    async def open(
        self,
        session: int = 1,
        member: str = "a",
        *,
        records: int = 0,
        held: tuple[pb.HeldLease, ...] = (),
        key: bytes = KEY,
        group: str = "g",
        watch: bool = True,
        **terms: Any,
    ) -> None:
        await self.say(
            pb.SessionRequest(
                session=session,
                open=pb.WorkOpen(topic="t", group=group, member=member, member_key=key, held=held),
                terms=pb.WorkTerms(**terms),
                credit=pb.WorkCredit(records=records, watch=watch),
            )
        )

    async def credit(
        self, records: int, session: int = 1, *, bytes_max: int = 0, watch: bool = True, recall: bool = False
    ) -> None:
        credit = pb.WorkCredit(records=records, bytes=bytes_max, watch=watch, recall=recall)
        await self.say(pb.SessionRequest(session=session, credit=credit))

    async def settle(self, *settles: pb.SettleOne, session: int = 1, records: int | None = None) -> None:
        request = pb.SessionRequest(session=session, settles=settles)
        if records is not None:
            request.credit.CopyFrom(pb.WorkCredit(records=records, watch=True))
        await self.say(request)

    async def hear(self, wanted: Callable[[pb.SessionResponse], Any], session: int = 1) -> pb.SessionResponse:
        """The next that a session is told which is wanted; what is told before is passed over. Raises the error with
        which the stream or the session ends."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for said in [each for each in self.told if each.session == session]:
                    self.told.remove(said)
                    if wanted(said):
                        return said
                    if said.HasField("error"):
                        raise from_wire(said.error)
                await self._read()

    async def lease(self, session: int = 1) -> pb.LeaseResponse:
        return (await self.hear(lambda said: said.HasField("lease"), session)).lease

    async def error(self, session: int = 1) -> TritonMQError:
        """With which a session ends."""
        return from_wire((await self.hear(lambda said: said.HasField("error"), session)).error)

    async def heard(self) -> list[pb.SessionResponse]:
        """All of the next message."""
        while not self.told:
            await self._read()
        found, self.told = list(self.told), deque()
        return found

    async def _read(self) -> None:
        data = await self.call.read()
        assert data is not None, "the broker has ended the stream"
        message = decode(data, pb.WorkHeader)
        at = 0
        for said in message.header.sessions:
            for stored in said.lease.batches:
                payload = message.payload[at : at + stored.payload_bytes]
                at += stored.payload_bytes
                self.rows.setdefault(said.session, []).extend(decode_batch(payload, SCHEMA).column("n").to_pylist())
        assert at == len(message.payload)
        self.told += message.header.sessions


@asynccontextmanager
async def speaking(broker: Broker) -> AsyncIterator[Spoken]:
    spoken = Spoken(broker)
    try:
        yield spoken
    finally:
        spoken.call.cancel()


def ack(lease: pb.LeaseId, *gaps: int) -> pb.SettleOne:
    return pb.SettleOne(lease=lease, ranges=gaps)


def failed(lease: pb.LeaseId, *gaps: int) -> pb.SettleOne:
    return pb.SettleOne(lease=lease, ranges=gaps, outcome=pb.OUTCOME_FAIL, delay_ms=0)


def released(lease: pb.LeaseId, *gaps: int) -> pb.SettleOne:
    return pb.SettleOne(lease=lease, ranges=gaps, outcome=pb.OUTCOME_RELEASE)
