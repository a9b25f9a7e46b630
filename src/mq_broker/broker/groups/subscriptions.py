"""Subscriptions: committed batches pushed to consumers as they come, as far as their credit goes.

One stream carries one member's subscriptions to any partitions led here. A subscription ends, with its reason, when the
leadership does; its client opens it at the next leader. Who of a group has a partition is sharing.py's, who of a
broadcast group is pushed records audiences.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final, NamedTuple

from mq_broker.broker.groups import pushed_once
from mq_broker.broker.groups.audiences import Audiences
from mq_broker.broker.groups.cursors import Mover, check_is_no_queue, check_is_no_stream, note_stranger
from mq_broker.broker.groups.pushed_once import Pushed, PushedOnce
from mq_broker.broker.groups.sharing import Share, Shares
from mq_broker.broker.host.cold_reads import ColdReads
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic, Topics
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.streams import in_turns, side_by_side
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.measured import TOPIC_BYTES_OUT
from mq_broker.rpc.callers import asker, caller, own_member
from mq_broker.rpc.pacing import chunk_bytes, room_to_send
from mq_broker.rpc.service import Batches, Send
from mq_broker.rpc.turns import Turns
from mq_broker.security.names import member_shown
from mq_broker.storage.interface import NOTHING_UNSEALED, Unsealed
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OffsetOutOfRange, PermissionDenied, TritonMQError, UnknownTopic
from mq_protocol.limits import FETCH_CHUNK_BYTES
from mq_protocol.names import check_group_name, check_member_id, check_member_key, check_new_group_name
from mq_protocol.queues.settings import MEMBER_PRIORITY_MAX
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.error_messages import to_wire

log = logging.getLogger(__name__)

CREDIT_BYTES_MAX: Final = 1 << 40
"""More is a mistake: nobody can hold it."""

_LOOK_AGAIN_S: Final = 0.2

TOLD_AT_ONCE: Final = 200
"""So many places are told of in one message: a request may name ten thousand, and each is copied, counted and encoded,
in some microseconds."""

UNTOLD_BYTES_MAX: Final = 4 << 20
"""What may wait to be told to a client that does not read; what it asks past that waits in TCP. Many times a topic's
partitions."""


class Delivery:
    """Owns the shares of groups and the audiences of broadcast groups; each stream's session owns its subscriptions."""

    def __init__(self, shell: Shell, topics: Topics, held: Held, begun: BegunGroups) -> None:
        self.shell = shell
        self.begun = begun
        self.held = held
        self.topics = topics
        self.shares = Shares()
        self.audiences = Audiences()
        self.pushed_once = PushedOnce()

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], send: Send[Batches]) -> None:
        """One stream, until the client has said its last or goes."""
        session = _Session(self)
        try:
            await side_by_side(session.read(requests), session.write(send))
        finally:
            session.close()


class _Subscription:
    """One partition in one session. Owns its place in the log; is a member of its group's share or audience, or active
    by itself.

    `position`: the next offset to push. `settled`: the member is done with all below it. `until`: of a member of a
    broadcast group that is to stand by, what it is still pushed ends there.
    """

    def __init__(self, session: _Session, partition: Partition, request: pb.SubscribePartition) -> None:
        self.partition = partition
        self.member_id = session.member_id
        self.member_key = session.member_key
        self.priority = session.priority
        self.mover = session.mover
        self.until: int | None = None
        self.position = -1
        self.settled = -1
        self.pushing = False
        self.share: Share | None = None
        self.joined = False
        self._session = session
        self._request = request

    def changed(self) -> None:
        """Observer: something became readable, or the role changed."""
        partition = self.partition
        if partition.serving:
            if not self.joined:
                self._join()
            elif self.pushing:
                self._session.mark(self)
        elif partition.closed or not partition.replica.leading:
            self._session.end(self, partition.not_leader())

    def _join(self) -> None:
        self.joined = True
        group = self._session.group
        if not (group or self._session.broadcast):
            self.activate(self.first_offset())
            return
        try:
            if self._session.broadcast:
                self._session.audiences.join(self.partition, self._session.broadcast, self)
                return
            self.share = self._session.shares.join(self.partition, group, self, ephemeral=self._session.ephemeral)
        except TritonMQError as error:
            if isinstance(error, PermissionDenied):
                note_stranger(self._session.asker, group)
            self._session.end(self, error)
            return
        if self.position < 0:  # another member has it
            self._session.tell(self._opened(active=False))

    @property
    def bound(self) -> int:
        """One past what may be pushed."""
        return self.partition.next_offset if self.until is None else self.until

    @property
    def next_batch_bytes(self) -> int:
        return self.partition.index.next_bytes(self.position)

    def leave(self) -> None:
        self.pushing = False
        self._session.shares.leave(self.partition, self._session.group, self)  # nothing, for who is no member
        self._session.audiences.leave(self.partition, self._session.broadcast, self)

    def settle(self, offset: int) -> None:
        if self.settled < offset <= self.position:
            self.settled = offset
            if self.share is not None:
                self.share.settle(self, offset)

    def _opened(self, *, active: bool) -> pb.PartitionOpened:
        name = self.partition.topic.spec.name
        return pb.PartitionOpened(
            topic=name, partition=self.partition.number, offset=max(0, self.position), active=active
        )

    # -- as its share's member

    def first_offset(self) -> int:
        """The start that the client asked for. An offset outside the log is moved to its nearer end: what is gone is
        gone."""
        index, request = self.partition.index, self._request
        match request.WhichOneof("start"):
            case "earliest":
                return index.log_start_offset
            case "offset":
                return max(index.log_start_offset, min(request.offset, self.partition.next_offset))
            case "timestamp_us":
                return index.find_time(request.timestamp_us)
            case _:
                return self.partition.next_offset

    def activate(self, offset: int) -> None:
        self.until = None
        self.position = self.settled = max(offset, self.partition.index.log_start_offset)
        self.pushing = True
        self._session.tell(self._opened(active=True))
        self._session.mark(self)

    def skip_to(self, offset: int, error: TritonMQError) -> None:
        """The records before are lost (rule 15): the client is told so, once, and that it goes on there.

        What it holds from before them is still to be settled.
        """
        self.position = offset
        opened = self._opened(active=True)
        opened.error.CopyFrom(to_wire(error))
        self._session.tell(opened)
        self.stand_by_when_done()
        # Not at once: what is pushed must come behind the word that it does not begin where the last batch ended.
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.pushing:
            self._session.mark(self)

    def stand_by(self, offset: int) -> None:
        if self.position < 0:  # it has just come
            self._session.tell(self._opened(active=False))
        elif self.pushing:
            self.until = offset
            self.stand_by_when_done()

    def stand_by_when_done(self) -> None:
        """Stand by, once all before `until` was pushed."""
        if self.until is not None and self.position >= self.until:
            self.until = None
            self.deactivate()

    def pause(self) -> None:
        self.pushing = False

    def resume(self) -> None:
        self.pushing = True
        self._session.mark(self)

    def end(self, error: TritonMQError) -> None:
        self._session.end(self, error)

    def deactivate(self) -> None:
        self.pushing = False
        self._session.tell(self._opened(active=False))


class _UnsealedOf(NamedTuple):
    """What was opened for the next read of a subscription."""

    subscription: _Subscription
    frames: Unsealed


def message_bytes(message: Batches) -> int:
    """Of what is told and of payload: about what a message takes until its client has read it."""
    return sum(len(part) for part in message.parts) + sum(told.ByteSize() for told in message.header.opened)


class _Session:
    """Owns one stream's subscriptions and credit. Batches of several partitions share a message, each partition in its
    turn."""

    def __init__(self, delivery: Delivery) -> None:
        self.group = ""
        self.member_id = ""
        self.member_key = b""
        self.ephemeral = False
        self.broadcast = ""
        self.priority = 0
        self.asker = asker()
        self.mover = Mover.of(self.asker)
        self.shares = delivery.shares
        self.audiences = delivery.audiences
        self._delivery = delivery
        self._cold = ColdReads(delivery.held, caller())
        self._subscriptions: dict[tuple[str, int], _Subscription] = {}
        self._ready: dict[_Subscription, None] = {}
        self._opened: deque[tuple[pb.PartitionOpened, int]] = deque()  # with their sizes
        self._untold_bytes = 0
        self._credit = 0
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
        self._over = asyncio.Event()  # the client has said its last
        self._named = False

    # -- what the client says

    async def read(self, requests: AsyncIterator[pb.SubscribeRequest]) -> None:
        async for request in requests:
            await self._delivery.held.room(caller())
            if request.HasField("open"):
                await self._open(request.open)
            async for settled in in_turns(request.settled):
                subscription = self._subscriptions.get((settled.topic, settled.partition))
                if subscription is not None:
                    subscription.settle(settled.offset)
            async for place in in_turns(request.close.partitions):
                self._remove(self._subscriptions.get((place.topic, place.partition)))
            if request.credit.bytes:
                self._credit = min(self._credit + request.credit.bytes, CREDIT_BYTES_MAX)
                self._wake.set()
        self._over.set()
        self._wake.set()

    async def _open(self, request: pb.SubscribeOpen) -> None:
        if request.group:
            check_group_name(request.group)
            if not request.member_id:
                raise InvalidRequest("a member of a group needs a member id of its own")
            check_member_id(request.member_id)
            check_member_key(request.member_key)
        self._check_broadcast(request)
        member = own_member(request.member_id)
        named = request.group, member, request.member_key, request.broadcast, request.priority
        if self._named and named != (self.group, self.member_id, self.member_key, self.broadcast, self.priority):
            raise InvalidRequest(
                f"this stream is member {member_shown(self.member_id)!r} of group {self.group or self.broadcast!r}: "
                "open another stream for another"
            )
        self._named = True
        self.group, self.member_id, self.member_key, self.broadcast, self.priority = named
        self.ephemeral = request.ephemeral
        renewed: set[str] = set()
        async for wanted in in_turns(request.partitions, Turns()):
            while self._untold_bytes > UNTOLD_BYTES_MAX:
                self._told.clear()
                await self._told.wait()
            try:
                partition = self._delivery.shell.partition(await self._topic(wanted, renewed), wanted.partition)
                self._check_kind(partition)
                if self.group and self.group not in partition.replica.machine.cursors:
                    await self._delivery.begun.check(self.asker, self.mover.owner, self.group)
            except TritonMQError as error:
                self._refuse(wanted.topic, wanted.partition, error)
                continue
            key = (wanted.topic, wanted.partition)
            self._remove(self._subscriptions.get(key))
            subscription = self._subscriptions[key] = _Subscription(self, partition, wanted)
            partition.observers.add(subscription.changed)
            self._delivery.pushed_once.subscribed(partition)
            subscription.changed()

    @staticmethod
    def _check_broadcast(request: pb.SubscribeOpen) -> None:
        """Raises `InvalidRequest`."""
        if not request.broadcast:
            if request.priority:
                raise InvalidRequest("only members of a broadcast group have a priority here: leave it out")
            return
        check_group_name(request.broadcast)
        check_new_group_name(request.broadcast)
        if request.group or request.ephemeral:
            raise InvalidRequest("a broadcast group has no cursor and ends by itself: leave out group and ephemeral")
        if request.priority > MEMBER_PRIORITY_MAX:
            raise InvalidRequest(f"priority {request.priority} is not allowed: 0 to {MEMBER_PRIORITY_MAX}")

    def _check_kind(self, partition: Partition) -> None:
        """Raises `WrongGroupKind` for a group that is of another kind, `InvalidRequest` for the name of a new one."""
        if self.broadcast:
            check_is_no_queue(partition, self.broadcast)
            check_is_no_stream(partition, self.broadcast, self.shares.members_of(partition, self.broadcast))
        elif self.group:
            self.audiences.check_has_nobody(partition, self.group)
            if self.group not in partition.replica.machine.cursors:
                check_new_group_name(self.group)
                check_is_no_queue(partition, self.group)

    async def _topic(self, wanted: pb.SubscribePartition, renewed: set[str]) -> Topic:
        """The client may have heard of the topic before this broker did: it is read anew, once for all of its
        partitions."""
        topics = self._delivery.topics
        topic = await topics.get(wanted.topic)
        if wanted.topic_id not in ("", topic.spec.topic_id) and wanted.topic not in renewed:
            renewed.add(wanted.topic)
            topic = await topics.renewed(topic)
        if wanted.topic_id not in ("", topic.spec.topic_id):
            raise UnknownTopic(f"topic {wanted.topic!r} was deleted and made again: subscribe anew to read that one")
        return topic

    # -- what subscriptions say

    def tell(self, opened: pb.PartitionOpened) -> None:
        size = opened.ByteSize()
        self._opened.append((opened, size))
        self._untold_bytes += size
        self._wake.set()

    def mark(self, subscription: _Subscription) -> None:
        """It may have something to push."""
        if subscription not in self._ready and subscription.position < subscription.bound:
            self._ready[subscription] = None
            self._wake.set()

    def end(self, subscription: _Subscription, error: TritonMQError) -> None:
        self._remove(subscription)
        self._refuse(subscription.partition.topic.spec.name, subscription.partition.number, error)

    def _refuse(self, topic: str, number: int, error: TritonMQError) -> None:
        self.tell(pb.PartitionOpened(topic=topic, partition=number, error=to_wire(error)))

    def _remove(self, subscription: _Subscription | None) -> None:
        if subscription is None:
            return
        key = (subscription.partition.topic.spec.name, subscription.partition.number)
        if self._subscriptions.get(key) is subscription:
            del self._subscriptions[key]
            self._delivery.pushed_once.left(subscription.partition)
        subscription.partition.observers.discard(subscription.changed)
        self._ready.pop(subscription, None)
        subscription.leave()

    def close(self) -> None:
        """The stream is over: its members leave their groups."""
        self._cold.close()
        for subscription in list(self._subscriptions.values()):
            self._remove(subscription)

    # -- pushing

    async def write(self, send: Send[Batches]) -> None:
        while not self._over.is_set():
            if not await room_to_send(_LOOK_AGAIN_S):
                continue  # the client may have said its last meanwhile
            if not self._has_news:
                self._cold.close()  # the client may stay for long, and who waits for room would wait for it
                self._wake.clear()
                await self._wake.wait()
                continue
            async with self._delivery.held.sending(caller(), *self._next_bytes(), self._over) as room:
                opened = await self._open_apart(room.bytes)
                message = None if self._over.is_set() else self._gather(room.bytes, opened)
                del opened
                if message is not None:
                    room.took(message_bytes(message))
                    self._open_ahead()
                    await send(message)

    @property
    def _has_news(self) -> bool:
        return bool(self._opened or (self._ready and self._credit > 0))

    def _next_bytes(self) -> tuple[int, int]:
        """About what the next message should take, and at least takes: a batch is not divided."""
        told_bytes = sum(size for _, size in islice(self._opened, TOLD_AT_ONCE))
        if not self._ready or self._credit <= 0 or len(self._opened) > TOLD_AT_ONCE:
            return told_bytes, told_bytes
        least = told_bytes + next(iter(self._ready)).next_batch_bytes
        return max(told_bytes + chunk_bytes(FETCH_CHUNK_BYTES), least), least

    async def _open_apart(self, bytes_max: int) -> _UnsealedOf | None:
        """What is read next costs the loop little by then, though it lies sealed on the disk. Within the room that is
        held for it, since what is opened is in memory."""
        subscription = next(iter(self._ready), None)
        if subscription is None or self._over.is_set() or len(self._opened) > TOLD_AT_ONCE:
            return None
        partition, bytes_max = subscription.partition, min(bytes_max, chunk_bytes(FETCH_CHUNK_BYTES))
        opened = await self._cold.opened(partition, subscription.position, subscription.bound, bytes_max)
        return _UnsealedOf(subscription, opened)

    def _open_ahead(self) -> None:
        """While a message is sent. What others are pushed too may have been read for them. Only a whole chunk: by the
        time it is read there may be credit for one, and the rest would be opened on the event loop."""
        following, bytes_max = next(iter(self._ready), None), chunk_bytes(FETCH_CHUNK_BYTES)
        if following is not None and self._credit >= bytes_max and not self._is_shared(following):
            self._cold.open_ahead(following.partition, following.position, following.bound, bytes_max)

    def _gather(self, bytes_max: int = CREDIT_BYTES_MAX, opened: _UnsealedOf | None = None) -> Batches | None:
        """The next message: what there is to tell, and once all is told batches while credit lasts. It may end below
        zero by a batch. Batches that others are pushed too have a message of their own, which all of them share."""
        if not self._has_news:
            return None
        first = next(iter(self._ready), None)
        if not self._opened and first is not None and self._is_shared(first):
            del self._ready[first]
            found = self._read(first, min(bytes_max, chunk_bytes(FETCH_CHUNK_BYTES), self._credit), opened)
            return None if found is None else found.message
        header = pb.BatchesHeader()
        room = min(bytes_max - self._tell_some(header), chunk_bytes(FETCH_CHUNK_BYTES))
        parts: list[Buffer] = []
        if self._opened:
            return Envelope(header)
        while self._ready and self._credit > 0 and room > 0:
            subscription = next(iter(self._ready))
            if parts and (self._is_shared(subscription) or subscription.next_batch_bytes > room):
                break  # a batch is not divided: it would be above what is held
            del self._ready[subscription]
            found = self._read(subscription, min(room, self._credit), opened) if subscription.pushing else None
            if found is not None:
                header.batches.extend(found.message.header.batches)
                parts.extend(found.message.parts)
                room -= found.bytes
        return Envelope(header, tuple(parts))

    def _tell_some(self, header: pb.BatchesHeader) -> int:
        """The first of what there is to tell; its bytes."""
        told_bytes = 0
        for _ in range(min(len(self._opened), TOLD_AT_ONCE)):
            opened, size = self._opened.popleft()
            header.opened.append(opened)
            told_bytes += size
        self._untold_bytes -= told_bytes
        self._told.set()
        return told_bytes

    def _is_shared(self, subscription: _Subscription) -> bool:
        return subscription.pushing and self._delivery.pushed_once.has_several(subscription.partition)

    def _read(self, subscription: _Subscription, bytes_max: int, opened: _UnsealedOf | None) -> Pushed | None:
        """What the subscription is pushed now, paid from the credit; None if nothing can be read, which is told."""
        partition = subscription.partition
        source = self._delivery.pushed_once if self._is_shared(subscription) else pushed_once
        frames = opened.frames if opened is not None and opened.subscription is subscription else NOTHING_UNSEALED
        try:
            found = source.read(partition, subscription.position, subscription.bound, bytes_max, frames)
        except OffsetOutOfRange as error:
            if error.next_offset > subscription.position:
                subscription.skip_to(error.next_offset, error)
            else:
                self.end(subscription, error)
            return None
        except TritonMQError as error:
            log.warning("%s: cannot be read at offset %d: %s", partition.name, subscription.position, error)
            self.end(subscription, error)
            return None
        subscription.position = found.end
        self._credit -= found.bytes
        subscription.stand_by_when_done()
        self.mark(subscription)
        TOPIC_BYTES_OUT.add(partition.topic.spec.name, "push", n=found.bytes)
        return found
