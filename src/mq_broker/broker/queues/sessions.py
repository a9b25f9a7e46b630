"""The method Work: streams of sessions, by which members are pushed their records.

One stream carries the sessions of all members of a process. What they say is heard in its order; what they are told is
gathered while the stream is busy, so that many answers and leases share a message. Rows are read when they are sent:
who does not read has nothing of them in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from mq_broker.broker.queues.asked import Asked, check_epochs, lease_of
from mq_broker.broker.queues.group.requests import Lent
from mq_broker.broker.queues.lent_rows import ROWS_BYTES_MAX, lent_rows
from mq_broker.broker.queues.letters.outputs import Outputs, last_number
from mq_broker.broker.queues.session import (
    Active,
    CreditHolds,
    Gone,
    Load,
    News,
    NumberedAnswer,
    Ready,
    Session,
    weight,
)
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.streams import in_turns, side_by_side
from mq_broker.core.work.ranges import Ranges, to_gaps
from mq_broker.core.work.settling import Answer
from mq_broker.core.work.steps import LeaseId
from mq_broker.rpc.callers import caller
from mq_broker.rpc.pacing import room_to_lend
from mq_broker.rpc.service import Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, Overloaded, TritonMQError
from mq_protocol.limits import (
    FETCH_CHUNK_BYTES,
    REQUEST_TIMEOUT_MS,
    WORK_SESSIONS_MAX,
    WORK_SESSIONS_PER_BROKER_MAX,
)
from mq_protocol.names import check_member_key
from mq_protocol.queues.settings import Order
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.error_messages import to_wire

UNTOLD_MAX: Final = 20_000
"""Ranges of answers and leases that wait to be told to a stream that does not read. What it asks past that waits in
TCP."""

ANSWER_BYTES: Final = 256
"""What an answer counts beside its own bytes: it may have none, and half a million of them would be one message."""

_ORDERS: Final = {Order.NONE: pb.ORDER_NONE, Order.KEY: pb.ORDER_KEY, Order.ALL: pb.ORDER_ALL}


class Sessions:
    """Owns how much they are at this broker."""

    def __init__(self, asked: Asked, working: Working, outputs: Outputs, held: Held) -> None:
        self.asked = asked
        self.working = working
        self.outputs = outputs
        self.held = held
        self.load = Load()

    async def work(self, requests: AsyncIterator[pb.WorkRequest], send: Send[Envelope[pb.WorkHeader]]) -> None:
        """One stream, until the client has said its last or goes."""
        stream = _Stream(self)
        try:
            await side_by_side(stream.read(requests), stream.write(send))
        finally:
            stream.close()


class _Stream:
    """Owns the sessions of one stream, and which of them have something to tell (`_news`)."""

    def __init__(self, sessions: Sessions) -> None:
        self._all = sessions
        self._sessions: dict[int, Session] = {}
        self._news: dict[Session, None] = {}
        self._refused: list[tuple[int, TritonMQError]] = []  # of sessions that were never open
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
        self._untold = 0
        self._over = asyncio.Event()  # the client has said its last

    # ------------------------------------------------------------------ what the client says

    async def read(self, requests: AsyncIterator[pb.WorkRequest]) -> None:
        async for request in requests:
            await self._all.held.room(caller())
            async for said in in_turns(request.sessions):
                while self._untold > UNTOLD_MAX:
                    self._told.clear()
                    await self._told.wait()
                try:
                    await self._hear(said)
                except TritonMQError as error:
                    self._refuse(said.session, error)
        self._over.set()
        self._wake.set()

    async def _hear(self, said: pb.SessionRequest) -> None:
        """Raises the error that ends the session."""
        opens = said.HasField("open")
        session = await self._open(said) if opens else self._sessions.get(said.session)
        if session is None or session.over:
            return  # its end is on the way to the client
        if said.HasField("terms") and not opens:
            await self._all.asked.check_terms(session.partition, said.terms)
            session.change_terms(said.terms)
        if said.settles:
            await self._settle(session, said)
        if said.check:
            leases = [lease_of(each) for each in said.check]
            check_epochs(session.partition, leases)
            session.check(leases)
        if said.HasField("credit"):
            session.set_credit(said.credit)
        if said.close:
            session.close(clean=True)
            self._drop_news(session)
            self._forget(session)

    async def _open(self, said: pb.SessionRequest) -> Session:
        if said.session in self._sessions:
            raise InvalidRequest(f"session {said.session} of this stream is open: give another one a number of its own")
        asked, opened = self._all.asked, said.open
        check_member_key(opened.member_key)
        partition = await asked.partition(opened)
        claims = await asked.claims(partition, opened.held)
        await asked.check_terms(partition, said.terms)
        led_group = self._all.working.led_group(partition, opened.group)
        here = len(led_group.present)
        if here >= WORK_SESSIONS_MAX or self._all.load.sessions >= WORK_SESSIONS_PER_BROKER_MAX:
            raise Overloaded(
                f"{partition.name} has {here} sessions of group {opened.group!r}, and this broker "
                f"{self._all.load.sessions}, as many as they take: have fewer members, or ask again"
            )
        session = Session(said.session, partition, opened, claims, said.terms, self._note, self._all.load)
        self._sessions[said.session] = session
        self._all.load.sessions += 1
        session.begin(led_group)
        return session

    async def _settle(self, session: Session, said: pb.SessionRequest) -> None:
        of = session.partition, session.group, session.member
        items = await self._all.asked.items(*of, said.settles)
        until = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_MS / 1000
        check = self._all.outputs.check
        session.settle(
            items, {at: partial(check, *of, one, until) for at, one in enumerate(said.settles) if one.outputs}
        )

    def _refuse(self, number: int, error: TritonMQError) -> None:
        session = self._sessions.get(number)
        if session is not None:
            session.end(error)
            return
        self._refused.append((number, error))
        self._untold += 1
        self._wake.set()

    def _forget(self, session: Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._all.load.sessions -= 1

    def close(self) -> None:
        """The stream is over: its members may come back by another one."""
        for session in list(self._sessions.values()):
            session.close(clean=False)
            self._forget(session)

    # ------------------------------------------------------------------ what it is told

    def _note(self, session: Session, weight: int) -> None:
        self._news[session] = None
        self._untold += weight
        self._wake.set()

    def _drop_news(self, session: Session) -> None:
        """Nothing more is said of it: the client may give its number to another one."""
        if session in self._news:
            del self._news[session]
            self._untold -= sum(map(weight, session.told))
            self._told.set()

    async def write(self, send: Send[Envelope[pb.WorkHeader]]) -> None:
        while not self._over.is_set():
            if not self._news and not self._refused:
                self._wake.clear()
                await self._wake.wait()
                continue
            await room_to_lend()
            async with self._all.held.sending(caller(), FETCH_CHUNK_BYTES + ROWS_BYTES_MAX, over=self._over) as room:
                if self._over.is_set():
                    return
                message = self._gather(min(FETCH_CHUNK_BYTES, room.bytes), min(ROWS_BYTES_MAX, room.bytes))
                room.took(sum(map(len, message.parts)) + message.header.ByteSize())
                await send(message)

    def _gather(self, bytes_max: int, rows_bytes_max: int) -> Envelope[pb.WorkHeader]:
        """The next message: what sessions have to tell, one after the other, until that is so much. `rows_bytes_max`:
        of the rows of one lease."""
        header = pb.WorkHeader()
        for number, error in self._refused:
            header.sessions.add(session=number, error=to_wire(error))
        self._untold -= len(self._refused)
        self._refused.clear()
        parts: list[Buffer] = []
        size = 0
        while self._news and size < bytes_max:
            session = next(iter(self._news))
            said = None
            while session.told and size < bytes_max:
                news = session.next_news()
                self._untold -= weight(news)
                if said is None or (said.HasField("lease") and isinstance(news, Lent | NumberedAnswer | Gone)):
                    said = header.sessions.add(session=session.number)
                size += self._tell(session, news, said, parts, rows_bytes_max)
            if not session.told:
                del self._news[session]
                if session.over:
                    self._forget(session)
        self._told.set()
        return Envelope(header, tuple(parts))

    @staticmethod
    def _tell(session: Session, news: News, said: pb.SessionResponse, parts: list[Buffer], rows_bytes_max: int) -> int:
        """How many bytes that is, about."""
        match news:
            case NumberedAnswer(number, answer):
                told = said.answers.add(number=number)
                told.answer.CopyFrom(answer_to_wire(answer))
                return ANSWER_BYTES + told.ByteSize()
            case Lent():
                lent = lent_to_wire(news, last_number(session.partition, session.group, session.member))
                ranges = [(run.first, run.end) for run in news.runs]
                rows = [] if session.terms.without_rows else lent_rows(session.partition, ranges, rows_bytes_max)
                lent.batches.extend(described for described, _ in rows)
                parts += [payload for _, payload in rows]
                said.lease.CopyFrom(lent)
                said.ClearField("ready")  # what was to be told before it; the lease says what holds since
                said.lent_bytes = news.bytes
                return lent.ByteSize() + sum(len(payload) for _, payload in rows)
            case Ready(more):
                said.ready = more
            case CreditHolds(records):
                said.credit = records
            case Gone(leases):
                said.gone.extend(map(lease_to_wire, leases))
            case Active(now):
                said.active = now
            case _:
                said.error.CopyFrom(to_wire(news))
        return 64


def lent_to_wire(lent: Lent, number: int) -> pb.LeaseResponse:
    """`number`: of the member's last ack with outputs."""
    ranges: Ranges = tuple((run.first, run.end) for run in lent.runs)
    response = pb.LeaseResponse(
        ranges=to_gaps(ranges),
        deliveries=[run.deliveries for run in lent.runs],
        failures=[run.failures for run in lent.runs],
        lease_ms=lent.lease_ms,
        ready=lent.ready,
        number=number,
        order=_ORDERS[lent.order],
        order_by=lent.order_by,
    )
    if lent.lease is not None:
        response.lease.CopyFrom(lease_to_wire(lent.lease))
    return response


def answer_to_wire(answer: Answer) -> pb.SettleAnswer:
    told = pb.SettleAnswer(lost=to_gaps(answer.lost))
    for lease, ranges in answer.pulled:
        told.pulled.add(lease=lease_to_wire(lease), ranges=to_gaps(ranges))
    if answer.error is not None:
        told.error.CopyFrom(to_wire(answer.error))
    return told


def lease_to_wire(lease: LeaseId) -> pb.LeaseId:
    epoch, entry, step = lease
    return pb.LeaseId(leader_epoch=epoch, entry=entry, step=step)
