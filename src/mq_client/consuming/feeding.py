"""A consumer's part in what it is fed: partitions that it is pushed on a stream for all (feeds.py)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from mq_client.cluster import loop
from mq_client.consuming.feeds import Feed, Key, feeds
from mq_client.consuming.record_queue import PartitionPlace
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.errors import NotLeader, TritonMQError
from mq_protocol.arrow import schema_nodes

if TYPE_CHECKING:
    from mq_client.consuming.subscription import Subscriptions

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
                    self._go_by_itself(place, feed)
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

    def _go_by_itself(self, place: PartitionPlace, feed: Feed) -> None:
        place.apart_until = time.monotonic() + APART_S
        place.feed, place.fed, place.address = None, False, None
        self._subscriptions.open_again(now=True)

    def _released(self, address: str, count: int) -> None:
        """A batch that was fed was taken or dropped."""
        self._held[address] -= count
