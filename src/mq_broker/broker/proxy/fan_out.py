"""Subscribers without a group behind one proxy: those at the same place of a partition share one subscription there.

Each client's stream is a session here, which answers as a broker does (groups/subscriptions.py). What it is sent are
the messages of the leader as they came. A subscription that begins where nothing is shared has a tail of its own. As
soon as that has come to where an older one is, its subscribers go over to that one.

- **Shared among those whom the leader takes for the same**: the user, with one certificate or one token. The gate of
  this proxy has judged each of them.
- **Nobody waits for another one.** Who reads nothing, or gives no credit, falls behind, and then has a tail of its own.
- **A leader that stops** is told to each of them, as a broker does. Clients ask for the partition again, at the next
  one, each from its own offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from mq_broker.broker.forwarding import Forwarding, whose
from mq_broker.broker.proxy.tails import Finding, Tail
from mq_broker.broker.runtime.memory import COPIES_SENT, Held
from mq_broker.broker.runtime.streams import in_turns, side_by_side
from mq_broker.rpc.callers import caller
from mq_broker.rpc.pacing import room_to_send
from mq_broker.rpc.service import RefusedBatch, Send
from mq_broker.rpc.turns import Turns
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OffsetOutOfRange, Overloaded, TritonMQError
from mq_protocol.wire.call import Kind, Said
from mq_protocol.wire.error_messages import to_wire

CREDIT_BYTES_MAX: Final = 1 << 40
TAILS_MAX: Final = 10_000
UNTOLD_MAX: Final = 20_000
"""Words that wait for a client which does not read; what it asks past that waits in TCP."""

LOOK_AGAIN_S: Final = 0.2

Key = tuple[bytes, int, str, str, int]


class FanOut:
    """Owns the tails, by whose they are and what they are of: of one key the oldest first."""

    def __init__(self, finding: Finding, forwarding: Forwarding, held: Held) -> None:
        self._finding = finding
        self._forwarding = forwarding
        self.held = held
        self._tails: dict[Key, list[Tail]] = {}
        self._count = 0

    async def converse(self, to: int, requests: AsyncIterator[Said | RefusedBatch], send: Send[Said]) -> None:
        """One stream of a client that means broker `to`, until it has said its last or goes."""
        session = _Session(self, to)
        try:
            await side_by_side(session.read(requests), session.write(send))
        finally:
            session.close()

    async def close(self) -> None:
        """End them all."""
        tails = [tail for some in self._tails.values() for tail in some]
        for tail in tails:
            tail.close()
        for tail in tails:
            await tail.wait_closed()

    def join(self, subscriber: _Subscriber, to: int, wanted: pb.SubscribePartition) -> None:
        """The subscriber is served from there. Raises `Overloaded`."""
        asked = whose()
        asked.ClearField("address")
        key = asked.SerializeToString(deterministic=True), to, wanted.topic, wanted.topic_id, wanted.partition
        tails = self._tails.get(key, [])
        at = wanted.offset if wanted.WhichOneof("start") == "offset" else -1
        for tail in tails:
            if at >= 0 and (tail.covers(at) or (tail.next < 0 and tail.wanted == wanted)):
                break
        else:
            if self._count >= TAILS_MAX:
                raise Overloaded(f"this proxy has {TAILS_MAX} subscriptions at leaders, as many as it keeps")
            tail = self._made(key, to, wanted)
        if tail.next >= 0:
            subscriber.position = at
        tail.add(subscriber)

    def _made(self, key: Key, to: int, wanted: pb.SubscribePartition) -> Tail:
        tails = self._tails.setdefault(key, [])

        def ended(tail: Tail) -> None:
            if tail in tails:
                tails.remove(tail)
                self._count -= 1
            if not tails and self._tails.get(key) is tails:
                del self._tails[key]

        made = Tail(self._finding, self._forwarding, to, wanted, lambda _tail: _merge(tails), ended, self.held)
        tails.append(made)
        self._count += 1
        return made


def _merge(tails: list[Tail]) -> None:
    """Those that have come to where an older one is end. Their subscribers go on there."""
    for younger in tails[1:]:
        if not younger.is_drained():
            continue
        older = next((tail for tail in tails[: tails.index(younger)] if tail.covers(younger.next)), None)
        if older is not None:
            subscribers = list(younger.subscribers)
            younger.close()
            for subscriber in subscribers:
                older.add(subscriber)


class _Subscriber:
    """One partition in one session. `told`: the client knows that it is open."""

    def __init__(self, session: _Session, wanted: pb.SubscribePartition) -> None:
        self.wanted = wanted
        self.position = -1
        self.told = False
        self.tail: Tail | None = None
        self._session = session

    def begins(self, offset: int) -> None:
        if not self.told:
            self.told, self.position = True, offset
            self._session.tell(self._opened(offset))
        elif offset > self.position:  # while it had no tail, records were dropped
            opened = self._opened(offset)
            gone = f"records from offset {self.position} on are not kept any more: it goes on at {offset}"
            opened.error.CopyFrom(to_wire(OffsetOutOfRange(gone, offset)))
            self.position = offset
            self._session.tell(opened)
        self._session.mark(self)

    def _opened(self, offset: int) -> pb.PartitionOpened:
        return pb.PartitionOpened(topic=self.wanted.topic, partition=self.wanted.partition, offset=offset, active=True)

    def has_news(self) -> None:
        self._session.mark(self)

    def falls_behind(self) -> None:
        self.tail = None
        self._session.mark(self)

    def ends(self, told: pb.PartitionOpened) -> None:
        self.tail = None
        if not told.active:
            self._session.end(self, told)
            return
        self.position = told.offset
        self._session.tell(told)
        self._session.mark(self)

    def has_more(self) -> bool:
        """Whether there is something to do for it: also to find it a tail."""
        return self.tail is None or (self.position >= 0 and self.tail.has_more(self.position))


class _Session:
    """Owns one client's stream: its subscribers, its credit, and what it is to be told."""

    def __init__(self, fan_out: FanOut, to: int) -> None:
        self._fan_out = fan_out
        self._to = to
        self._subscribers: dict[tuple[str, int], _Subscriber] = {}
        self._ready: dict[_Subscriber, None] = {}
        self._untold: list[pb.PartitionOpened] = []
        self._credit = 0
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
        self._over = False

    # -- what the client says

    async def read(self, requests: AsyncIterator[Said | RefusedBatch]) -> None:
        async for said in requests:
            assert isinstance(said, Said), "only batches are refused by themselves"
            await self._fan_out.held.room(caller())
            request = pb.SubscribeRequest.FromString(said.body)
            if request.HasField("open"):
                await self._open(request.open)
            async for place in in_turns(request.close.partitions):
                self._remove(self._subscribers.get((place.topic, place.partition)))
            if request.credit.bytes:
                self._credit = min(self._credit + request.credit.bytes, CREDIT_BYTES_MAX)
                self._wake.set()
        self._over = True
        self._wake.set()

    async def _open(self, request: pb.SubscribeOpen) -> None:
        if request.group or request.broadcast:
            raise InvalidRequest("this stream is of no group: open another stream for a member of one")
        async for wanted in in_turns(request.partitions, Turns()):
            while len(self._untold) > UNTOLD_MAX:
                self._told.clear()
                await self._told.wait()
            key = wanted.topic, wanted.partition
            self._remove(self._subscribers.get(key))
            subscriber = self._subscribers[key] = _Subscriber(self, wanted)
            self._join(subscriber, wanted)

    def _join(self, subscriber: _Subscriber, wanted: pb.SubscribePartition) -> None:
        try:
            self._fan_out.join(subscriber, self._to, wanted)
        except TritonMQError as error:
            topic, partition = wanted.topic, wanted.partition
            self.end(subscriber, pb.PartitionOpened(topic=topic, partition=partition, error=to_wire(error)))

    # -- what subscribers say

    def tell(self, opened: pb.PartitionOpened) -> None:
        self._untold.append(opened)
        self._wake.set()

    def mark(self, subscriber: _Subscriber) -> None:
        """There may be something to do for it."""
        if subscriber.has_more():
            self._ready[subscriber] = None
            self._wake.set()

    def end(self, subscriber: _Subscriber, told: pb.PartitionOpened) -> None:
        self._remove(subscriber)
        self.tell(told)

    def _remove(self, subscriber: _Subscriber | None) -> None:
        if subscriber is None:
            return
        key = subscriber.wanted.topic, subscriber.wanted.partition
        if self._subscribers.get(key) is subscriber:
            del self._subscribers[key]
        self._ready.pop(subscriber, None)
        if subscriber.tail is not None:
            subscriber.tail.remove(subscriber)
            subscriber.tail = None

    def close(self) -> None:
        """The stream is over."""
        for subscriber in list(self._subscribers.values()):
            self._remove(subscriber)

    # -- what the client is sent

    async def write(self, send: Send[Said]) -> None:
        while not self._over:
            if not await room_to_send(LOOK_AGAIN_S):
                continue  # the client may have said its last meanwhile
            message = self._next()
            if message is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            who, size = caller(), message.nbytes * COPIES_SENT
            self._fan_out.held.add(who, size)
            try:
                await send(message)
            finally:
                self._fan_out.held.free(who, size)

    def _next(self) -> Said | None:
        """The next message; None if there is none now."""
        if self._untold:
            told, self._untold = self._untold, []
            self._told.set()
            return Said(Kind.MESSAGE, pb.BatchesHeader(opened=told).SerializeToString(), memoryview(b""))
        while self._ready and self._credit > 0:
            subscriber = next(iter(self._ready))
            del self._ready[subscriber]
            if subscriber.tail is None:
                self._goes_on(subscriber)
                continue
            pushed = subscriber.tail.take(subscriber)
            self.mark(subscriber)
            if pushed is not None:
                self._credit -= pushed.payload_bytes
                return pushed.message
        return None

    def _goes_on(self, subscriber: _Subscriber) -> None:
        """It has fallen behind, or was told to go on elsewhere."""
        wanted = pb.SubscribePartition()
        wanted.CopyFrom(subscriber.wanted)
        wanted.offset = subscriber.position
        self._join(subscriber, wanted)
