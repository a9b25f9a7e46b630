"""A subscription at a partition's leader that subscribers behind a proxy share.

It keeps the messages that some of them have not been sent yet, up to a bound. It is given credit as the quickest of
them gets on. Whoever falls behind by more than the bound loses its place, and goes on at another tail (fan_out.py).

There may be thousands of tails. What each keeps counts in `Held`, for the client that it was made for. Above the mark a
tail reads no more while those of that client keep much.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple, Protocol

from mq_broker.broker.forwarding import Forwarding
from mq_broker.broker.proxy.holding import Turn
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.callers import caller
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InternalError, TritonMQError, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import Kind, Said, parsed
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)

SUBSCRIBE: Final = BROKER.methods["Subscribe"]
CREDIT_BYTES: Final = 2 << 20
"""What the leader may have pushed that the quickest subscriber has not been sent."""

FIRST_CREDIT_BYTES: Final = 64 << 10
"""Of a new tail. Each byte that is sent on adds one, so a subscriber that never reads costs no more than this."""

KEPT_BYTES_MAX: Final = 4 << 20
MESSAGE_BYTES: Final = 512
"""About what a message takes beside its bytes."""


class Finding(Protocol):
    """Where a partition is asked for (routing.py)."""

    def turn(self, size: int, left_s: float | None) -> Turn: ...
    async def found(self, to: int, place: tuple[str, int], turn: Turn) -> int: ...


class Pushed(NamedTuple):
    """A message with batches, as the leader has sent it: records from `start` to `end`, perhaps some before `start`."""

    start: int
    end: int
    payload_bytes: int
    message: Said


class Subscriber(Protocol):
    """Of one partition. `position`: the next offset to send; -1 while it does not know where to begin. `tail`: where it
    is served; None while that is nowhere."""

    position: int
    tail: Tail | None

    def begins(self, offset: int) -> None:
        """The leader has opened the subscription there."""

    def has_news(self) -> None:
        """There may be something to send."""

    def falls_behind(self) -> None:
        """What comes next is not kept here any more."""

    def ends(self, told: pb.PartitionOpened) -> None:
        """The leader has said so. `active`: it goes on, elsewhere in the log."""


class Tail:
    """Owns the stream to the leader, and the messages that are kept. `next`: one past the last of them; -1 until the
    subscription is open. `moved` is called when the tail or a subscriber has come to another place, `ended` when it is
    over."""

    def __init__(
        self,
        finding: Finding,
        forwarding: Forwarding,
        to: int,
        wanted: pb.SubscribePartition,
        moved: Callable[[Tail], None],
        ended: Callable[[Tail], None],
        held: Held,
    ) -> None:
        self.wanted = wanted
        self.next = -1
        self.subscribers: dict[Subscriber, None] = {}
        self._finding = finding
        self._forwarding = forwarding
        self._to = to
        self._moved = moved
        self._ended = ended
        self._held = held
        # Not what the client itself holds: what it says, such as its credit, must not wait for what the tails keep
        self._owner = f"{caller()}, shared subscriptions"
        self._kept: list[Pushed] = []
        self._kept_bytes = 0
        self._received = 0  # bytes of records in all, and how many of them the quickest has been sent
        self._taken = 0
        self._granted = 0
        self._wants = asyncio.Event()
        self._wants.set()
        self._task = asyncio.create_task(self._run(), name="tail")
        self._task.add_done_callback(self._done)

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        return self._kept[0].start if self._kept else self.next

    def covers(self, position: int) -> bool:
        """Whether a subscriber may go on here."""
        return self.next >= 0 and self.start <= position <= self.next

    def is_drained(self) -> bool:
        """Whether all subscribers have been sent all."""
        return self.next >= 0 and all(each.position == self.next for each in self.subscribers)

    def add(self, subscriber: Subscriber) -> None:
        """It is served here from now on."""
        subscriber.tail = self
        self.subscribers[subscriber] = None
        if self.next >= 0:
            subscriber.begins(self.next if subscriber.position < 0 else subscriber.position)
            subscriber.has_news()

    def remove(self, subscriber: Subscriber) -> None:
        self.subscribers.pop(subscriber, None)
        if not self.subscribers:
            self.close()

    def has_more(self, position: int) -> bool:
        return position < self.next

    def take(self, subscriber: Subscriber) -> Pushed | None:
        """The next message for it, which it is sent now; None if there is none."""
        at = bisect_right(self._kept, subscriber.position, key=lambda pushed: pushed.start) - 1
        if at < 0 or subscriber.position >= self._kept[at].end:
            return None
        pushed = self._kept[at]
        subscriber.position = pushed.end
        behind = sum(each.payload_bytes for each in self._kept[at + 1 :])
        if self._received - behind > self._taken:
            self._taken = self._received - behind
            self._wants.set()
        if subscriber.position == self.next:
            if self._held.is_half_full and self.is_drained():  # there may be no next message that would do it
                self._drop(len(self._kept))
            self._moved(self)
        return pushed

    def close(self) -> None:
        """Nobody needs it any more."""
        self._task.cancel()
        self._over()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    # ------------------------------------------------------------------ the leader

    async def _run(self) -> None:
        wanted = self.wanted
        try:
            with self._finding.turn(wanted.ByteSize(), None) as turn:
                target = await self._finding.found(self._to, (wanted.topic, wanted.partition), turn)
            await self._forwarding.converse(target, SUBSCRIBE, self._says(), None, self._hears)
            raise Unreachable(f"broker {target} has ended the subscription: it is opened again")
        except TritonMQError as error:
            self._end(_refused(wanted, error))

    def _done(self, task: asyncio.Task[None]) -> None:
        """What is no `TritonMQError` is a defect."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a shared subscription failed", exc_info=error)
            self._end(_refused(self.wanted, InternalError("the subscription failed in the proxy: see its log")))

    async def _says(self) -> AsyncIterator[Said]:
        opening = pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[self.wanted]))
        while True:
            await self._wants.wait()
            self._wants.clear()
            await self._held.room(self._owner)
            allowed = min(CREDIT_BYTES, FIRST_CREDIT_BYTES + self._taken)
            credit = self._taken + allowed - self._granted
            if credit * 2 >= allowed:
                self._granted += credit
                opening.credit.bytes = credit
                yield Said(Kind.MESSAGE, opening.SerializeToString(), memoryview(b""))
                opening.ClearField("open")

    async def _hears(self, message: Said) -> None:
        header = parsed(message.body, pb.BatchesHeader)
        for told in header.opened:
            if told.HasField("error"):
                self._end(told)
                return
            self._opens(told.offset)
        batches = header.batches
        if not batches:
            return
        if header.opened:
            alone = pb.BatchesHeader(batches=batches, leader_epoch=header.leader_epoch)
            message = message._replace(body=alone.SerializeToString())
        end = batches[-1].base_offset + batches[-1].record_count
        payload_bytes = sum(batch.payload_bytes for batch in batches)
        self._keep(Pushed(self.next, end, payload_bytes, message))
        await self._held.room(self._owner)

    def _opens(self, offset: int) -> None:
        self.next = offset
        for subscriber in list(self.subscribers):
            subscriber.begins(offset)
        self._moved(self)

    def _keep(self, pushed: Pushed) -> None:
        self._received += pushed.payload_bytes
        positions = [each.position for each in self.subscribers] or [self.next]
        slowest, quickest = min(positions), max(positions)
        self._drop(sum(1 for each in self._kept if each.end <= slowest))
        self._kept.append(pushed)
        self.next = pushed.end
        self._counted(pushed.message.nbytes + MESSAGE_BYTES)
        while self._kept_bytes > KEPT_BYTES_MAX and self._kept[0].end <= quickest:  # its credit bounds the rest
            self._drop(1)
        for subscriber in list(self.subscribers):
            if subscriber.position < self.start:
                del self.subscribers[subscriber]
                subscriber.falls_behind()
            else:
                subscriber.has_news()
        if not self.subscribers:
            self.close()
        else:
            self._moved(self)

    def _drop(self, count: int) -> None:
        self._counted(-sum(each.message.nbytes + MESSAGE_BYTES for each in self._kept[:count]))
        del self._kept[:count]

    def _counted(self, size: int) -> None:
        if size:
            self._kept_bytes += size
            (self._held.add if size > 0 else self._held.free)(self._owner, abs(size))

    def _end(self, told: pb.PartitionOpened) -> None:
        subscribers = list(self.subscribers)
        is_behind = {each for each in subscribers if told.active and each.position < self.next}
        self.close()
        for subscriber in subscribers:
            if subscriber in is_behind:  # records before those that are lost may be there: it asks for them itself
                subscriber.falls_behind()
            else:
                subscriber.ends(told)

    def _over(self) -> None:
        self._ended(self)
        self.subscribers.clear()
        self._drop(len(self._kept))


def _refused(wanted: pb.SubscribePartition, error: TritonMQError) -> pb.PartitionOpened:
    return pb.PartitionOpened(topic=wanted.topic, partition=wanted.partition, error=to_wire(error))
