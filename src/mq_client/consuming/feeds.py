"""One stream to each broker for all consumers of a process that want the same: partitions that several are pushed.

A consumer without a group opens its partitions on a stream of its own (subscription.py). Where two of them, of the same
cluster and the same user, have come to the same offset of a partition, the partition is opened once more, on a stream
for all, and whoever is at its offset goes over to that: it is fed. Nobody waits for anybody. Who takes too slowly goes
on by its own stream, from its own offset, and so do all when the stream for all ends.

All here is on the event loop of this process, but `Feed.leave`. A consumer's part in it is `Feeding`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mq_client.cluster import loop
from mq_client.cluster.client import Client
from mq_client.cluster.loop import EventLoop
from mq_client.consuming.push_streams import PushStream
from mq_client.consuming.record_queue import PartitionPlace
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.consuming.slices import payloads_of
from mq_client.errors import NotLeader, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_nodes
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import from_wire

if TYPE_CHECKING:
    from mq_client.consuming.subscription import Subscriptions


CREDIT_BYTES: Final = 4 << 20
"""What may be on its way on a stream for all. It is given again at once, since nobody is waited for."""

AGAIN_S: Final = 30.0
"""A stream for all that was refused is not asked for again before: a user may have no more streams, say. Consumers work
without it."""

SOON_S: Final = 1.0
"""The same of one that broke."""

EMPTY_S: Final = 1.0
"""A partition that nobody is fed is closed so long afterwards."""

TURN_S: Final = 0.002
"""For so long consumers are given what came, before other work of the loop has its turn."""


class Key(NamedTuple):
    """What consumers have in common that may be fed together."""

    client: Client
    address: str
    topic: str
    topic_id: str
    partition: int


class Consuming(Protocol):
    """A consumer, on the loop."""

    def join(self, place: PartitionPlace, feed: Feed) -> bool:
        """It is fed from now on, unless it cannot be just now."""

    def fed(self, place: PartitionPlace, feed: Feed, batches: Sequence[SharedBatch]) -> bool:
        """Whether it has taken them and is still fed."""

    def let_go(self, place: PartitionPlace, feed: Feed, error: TritonMQError | None) -> None:
        """It is fed no more, and goes on by itself."""


class Feed:
    """Owns who is fed one partition of one broker, and who waits to be. `position`: the next offset that is fed; -1
    while the partition is not open."""

    def __init__(self, feeds: Feeds, key: Key) -> None:
        self.key = key
        self.position = -1
        self._feeds = feeds
        self._waiting: dict[PartitionPlace, Consuming] = {}
        self._members: dict[PartitionPlace, Consuming] = {}
        self._stream: _SharedStream | None = None
        self._closing: asyncio.TimerHandle | None = None  # when it is closed, unless somebody joins before
        self._again: asyncio.TimerHandle | None = None  # when it is opened, if it may not be before
        self._not_before = 0.0

    def offer(self, place: PartitionPlace, consumer: Consuming) -> None:
        """It has its own stream, and can be fed once it is where others are."""
        self._waiting[place] = consumer
        if self.position >= 0:
            self._join(place)
        elif self._stream is None and self._is_met(place):
            self._open(place.position)

    def leave(self, place: PartitionPlace) -> None:
        """From any thread."""
        self._feeds.loop.call(self._left, place)

    # ------------------------------------------------------------------ for the stream

    def opened(self, told: pb.PartitionOpened) -> None:
        if told.HasField("error"):
            # With an offset to go on at, too: each consumer is told by its own stream what it has lost
            error = from_wire(told.error)
            self._not_before = self._feeds.loop.now() + (SOON_S if error.retriable else AGAIN_S)
            self._close()
            self.over(error)
        elif told.active:
            self.position = told.offset
            # A former opening, which was closed before it was answered, may have been answered just before
            for place in [place for place in self._members if place.position != told.offset]:
                self._members.pop(place).let_go(place, self, None)
            self._join_all()
            self._close_soon_if_empty()

    async def push(self, batches: Sequence[SharedBatch]) -> None:
        self.position = batches[-1].end_offset
        clock = self._feeds.loop.now
        began = clock()
        for place, consumer in list(self._members.items()):
            if place in self._members and not consumer.fed(place, self, batches):
                self._members.pop(place, None)
            if clock() - began >= TURN_S:
                await asyncio.sleep(0)
                began = clock()
        self._join_all()
        self._close_soon_if_empty()

    def over(self, error: TritonMQError | None) -> None:
        """The stream has ended, or the partition on it."""
        self._stream, self.position = None, -1
        self._stay_open()
        members, self._members = self._members, {}
        for place, consumer in members.items():
            consumer.let_go(place, self, error)
        self._open_if_met()
        self._forget_if_done()

    # ------------------------------------------------------------------ private

    def _is_met(self, place: PartitionPlace) -> bool:
        """Whether somebody else waits at its offset."""
        return any(other is not place and other.position == place.position for other in self._waiting)

    def _open(self, offset: int) -> None:
        """Now, or when it may be. By the clock: perhaps nothing is published any more, and nobody is offered again."""
        wait_s = max(self._not_before, self._feeds.not_before(self.key)) - self._feeds.loop.now()
        if wait_s <= 0:
            self._stream, wait_s = self._feeds.open(self, offset), SOON_S
        if self._stream is None and self._again is None:
            self._again = self._feeds.loop.later(wait_s, self._open_again)

    def _open_again(self) -> None:
        self._again = None
        self._open_if_met()

    def _open_if_met(self) -> None:
        """If two of those who wait are at one place."""
        if self._stream is not None or self.position >= 0:
            return
        places: set[int] = set()
        for waiting in self._waiting:
            if waiting.position in places:
                self._open(waiting.position)
                return
            places.add(waiting.position)

    def _join_all(self) -> None:
        for place in [place for place in self._waiting if place.position == self.position]:
            self._join(place)

    def _join(self, place: PartitionPlace) -> None:
        consumer = self._waiting[place]
        if place.position == self.position and consumer.join(place, self):
            del self._waiting[place]
            self._members[place] = consumer
            self._stay_open()

    def _left(self, place: PartitionPlace) -> None:
        self._waiting.pop(place, None)
        self._members.pop(place, None)
        if not self._waiting and not self._members:
            self._close()
        self._close_soon_if_empty()
        self._forget_if_done()

    def _close_soon_if_empty(self) -> None:
        """By the clock: perhaps nothing is published any more, and nobody comes to leave."""
        if self._stream is not None and not self._members and self._closing is None:
            self._closing = self._feeds.loop.later(EMPTY_S, self._close_empty)

    def _close_empty(self) -> None:
        self._close()
        self._forget_if_done()

    def _stay_open(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _close(self) -> None:
        self._stay_open()
        stream, self._stream, self.position = self._stream, None, -1
        if stream is not None:
            stream.close(self)

    def _forget_if_done(self) -> None:
        if not self._waiting and not self._members:
            self._feeds.forget(self)


class _SharedStream:
    """Owns one stream for all, and the feeds that it carries."""

    def __init__(self, feeds: Feeds, key: Key) -> None:
        self.key = key
        self.is_over = False
        self._feeds = feeds
        self._carried: dict[tuple[str, int], Feed] = {}
        self._owed = 0
        self._stream = PushStream(key.address, self._heard, self._over, key.client)
        self._stream.say(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=CREDIT_BYTES)))

    def open(self, feed: Feed, offset: int) -> bool:
        """Whether it can carry this one too."""
        key = feed.key
        if self._carried.setdefault((key.topic, key.partition), feed) is not feed:
            return False
        wanted = pb.SubscribePartition(topic=key.topic, partition=key.partition, topic_id=key.topic_id, offset=offset)
        self._stream.say(pb.SubscribeRequest(open=pb.SubscribeOpen(partitions=[wanted])))
        return True

    def close(self, feed: Feed) -> None:
        key = feed.key
        if self._carried.get((key.topic, key.partition)) is not feed:
            return
        del self._carried[key.topic, key.partition]
        place = pb.TopicPartition(topic=key.topic, partition=key.partition)
        self._stream.say(pb.SubscribeRequest(close=pb.SubscribeClose(partitions=[place])))
        if not self._carried:
            self.is_over = True
            self._stream.say_last()

    async def _heard(self, message: Envelope[pb.BatchesHeader]) -> None:
        for told in message.header.opened:
            feed = self._carried.get((told.topic, told.partition))
            if feed is not None:
                feed.opened(told)
        if not message.header.batches:
            return
        for place, batches in _by_partition(message):
            feed = self._carried.get(place)
            if feed is not None and feed.position >= 0:
                self._feeds.keep(batches)
                await feed.push(batches)
        self._owed += len(message.payload)
        if self._owed * 4 >= CREDIT_BYTES and not self.is_over:
            self._stream.say(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=self._owed)))
            self._owed = 0

    def _over(self, broke: TritonMQError | None) -> None:
        ended, self.is_over = self.is_over, True
        if not ended:
            self._feeds.broke(self, SOON_S if broke is None or isinstance(broke, Unreachable) else AGAIN_S)
        self._feeds.ended(self)
        carried, self._carried = self._carried, {}
        for feed in carried.values():
            feed.over(broke or Unreachable(f"broker at {self.key.address} has ended the stream"))


def _by_partition(message: Envelope[pb.BatchesHeader]) -> Iterator[tuple[tuple[str, int], list[SharedBatch]]]:
    payloads = payloads_of(message.header.batches, message.payload)
    shared = (SharedBatch(stored, payload) for stored, payload in zip(message.header.batches, payloads, strict=True))
    for place, batches in groupby(shared, lambda batch: (batch.topic, batch.partition)):
        yield place, list(batches)


KEPT_DECODED_BYTES: Final = 1 << 20
"""Of batches whose records are kept for who comes to them next. Whoever is later decodes for itself."""


class Feeds:
    """Owns the feeds of one process, the streams that carry them, and the batches whose records are kept."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self._feeds: dict[Key, Feed] = {}
        self._streams: dict[tuple[Client, str], _SharedStream] = {}
        self._not_before: dict[tuple[Client, str], float] = {}
        self._kept: deque[SharedBatch] = deque()
        self._kept_bytes = 0

    def feed(self, key: Key) -> Feed:
        found = self._feeds.get(key)
        if found is None:
            found = self._feeds[key] = Feed(self, key)
        return found

    def forget(self, feed: Feed) -> None:
        """Nobody is fed by it, and nobody waits to be."""
        if self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]

    def open(self, feed: Feed, offset: int) -> _SharedStream | None:
        """The stream that carries it from now on; None if that carries a former topic of the same name."""
        to = feed.key.client, feed.key.address
        self._not_before.pop(to, None)
        found = self._streams.get(to)
        if found is None or found.is_over:
            found = self._streams[to] = _SharedStream(self, feed.key)
        return found if found.open(feed, offset) else None

    def not_before(self, key: Key) -> float:
        """When a stream to its broker may be opened, by the loop's clock."""
        return self._not_before.get((key.client, key.address), 0.0)

    def broke(self, stream: _SharedStream, wait_s: float) -> None:
        """No other one is opened to its broker for so long."""
        self._not_before[stream.key.client, stream.key.address] = self.loop.now() + wait_s

    def ended(self, stream: _SharedStream) -> None:
        to = stream.key.client, stream.key.address
        if self._streams.get(to) is stream:
            del self._streams[to]

    def keep(self, batches: Sequence[SharedBatch]) -> None:
        """Their records are kept until so many bytes have come after them."""
        for batch in batches:
            self._kept.append(batch)
            self._kept_bytes += len(batch.payload)
        while self._kept_bytes > KEPT_DECODED_BYTES:
            last = self._kept.popleft()
            self._kept_bytes -= len(last.payload)
            last.keep_no_more()


_of_loops: dict[EventLoop, Feeds] = {}


def feeds(loop: EventLoop) -> Feeds:
    """Those of the process whose loop that is. On the loop."""
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Feeds(loop)
    return found


APART_S: Final = 5.0
"""Who was too slow to be fed goes by itself for so long at least: to come and go costs a stream each time."""


class Feeding:
    """Owns how many bytes are here of what one consumer was fed, by the address of the broker. All of it is under the
    consumer's lock.

    A consumer holds up to `credit_bytes` that it was fed, and then goes on by its own stream, which may bring as much
    again.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._held: dict[str, int] = {}
        self._closed = False

    def close(self, places: Iterable[PartitionPlace]) -> None:
        """The consumer ends."""
        self._closed = True
        for place in places:
            self.leave(place)

    def offer(self, place: PartitionPlace) -> None:
        """It is pushed by itself, and may be fed as soon as others are where it is. Nothing off the loop."""
        subscriptions, address = self._subscriptions, place.address
        if subscriptions.group or subscriptions.broadcast or place.fed or not place.active or address is None:
            return
        if self._closed or not loop.on_loop() or time.monotonic() < place.apart_until:
            return
        if subscriptions.suspended or self._full(address, 2):
            return  # it would not join, and a stream would be opened for nobody
        if place.feed is None:
            topic_id = subscriptions.views[place.topic].topic_id
            key = Key(subscriptions.connection.client, address, place.topic, topic_id, place.partition)
            place.feed = feeds(loop.this_process()).feed(key)
        place.feed.offer(place, self)

    def leave(self, place: PartitionPlace) -> None:
        """It is neither fed nor waits to be."""
        feed, place.feed, place.fed = place.feed, None, False
        if feed is not None:
            feed.leave(place)

    # ------------------------------------------------------------------ for feeds, on the loop

    def join(self, place: PartitionPlace, feed: Feed) -> bool:
        """As `Consuming.join`."""
        subscriptions = self._subscriptions
        with subscriptions.changed:
            if place.feed is not feed or not place.active or place.position != feed.position:
                return False
            if subscriptions.suspended or self._full(feed.key.address, 2):
                return False
            place.fed = True
            subscriptions.leave_stream(place)
            return True

    def fed(self, place: PartitionPlace, feed: Feed, batches: Sequence[SharedBatch]) -> bool:
        """As `Consuming.fed`."""
        subscriptions, address = self._subscriptions, feed.key.address
        with subscriptions.changed:
            if place.feed is not feed:
                return False
            view = subscriptions.views[place.topic]
            for batch in batches:
                if batch.end_offset <= place.position:
                    continue
                lacks_columns = view.typed and batch.nodes > schema_nodes(view.schema)
                if lacks_columns or batch.base_offset > place.position or self._full(address):
                    self._go_by_itself(place)
                    break
                self._held[address] = self._held.get(address, 0) + len(batch.payload)
                subscriptions.put(place, batch, partial(self._released, address))
            subscriptions.changed.notify_all()
            return place.feed is feed

    def let_go(self, place: PartitionPlace, feed: Feed, error: TritonMQError | None) -> None:
        """As `Consuming.let_go`."""
        subscriptions = self._subscriptions
        with subscriptions.changed:
            if place.feed is feed:
                if isinstance(error, NotLeader):
                    subscriptions.connection.note_leader(place.topic, place.partition, error)
                place.feed, place.fed, place.address = None, False, None
                subscriptions.open_again()

    # ------------------------------------------------------------------ private

    def _full(self, address: str, times: int = 1) -> bool:
        """Whether the bytes that are here, so many times, are as many as there may be."""
        held = self._held.get(address, 0) + self._subscriptions.held(address)
        return held * times >= self._subscriptions.credit_bytes

    def _go_by_itself(self, place: PartitionPlace) -> None:
        place.apart_until = time.monotonic() + APART_S
        place.feed, place.fed, place.address = None, False, None
        self._subscriptions.open_again(now=True)

    def _released(self, address: str, count: int) -> None:
        """A batch that was fed was taken or dropped."""
        self._held[address] -= count
