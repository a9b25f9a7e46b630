"""One Subscribe stream: what a consumer asks of one broker, the credit that it gives back, and what it hears."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from mq_client.consuming.push_streams import PushStream
from mq_client.consuming.record_queue import PartitionPlace
from mq_client.consuming.slices import payloads_of
from mq_client.errors import TritonMQError
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.envelope import Envelope

if TYPE_CHECKING:
    from mq_client.consuming.subscription import Subscriptions

log = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """Owns one Subscribe stream, and the credit that is to be given back on it."""

    def __init__(self, subscriptions: Subscriptions, address: str) -> None:
        self.address = address
        self.ended = False
        self._subscriptions = subscriptions
        credit = subscriptions.credit_bytes - subscriptions.held(address)
        said = 0 if subscriptions.suspended else max(0, credit)
        self._owed = credit - said
        self._stream = PushStream(address, self._heard, self._over, subscriptions.connection.client)
        self._stream.say(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=said)))

    # -- under the lock

    def open(self, places: Iterable[PartitionPlace]) -> None:
        """Ask for these: from where this consumer is, else from where it is to start.

        What is asked for in a group becomes its cursor if it has none, since a leader died before it was committed: all
        that this member is not done with.
        """
        wanted = []
        for place in places:
            topic_id = self._subscriptions.views[place.topic].topic_id
            request = pb.SubscribePartition(topic=place.topic, partition=place.partition, topic_id=topic_id)
            if place.position >= 0 and not self._subscriptions.broadcast:
                request.offset = place.processed if self._subscriptions.group else place.position
            elif place.added and place.position < 0:
                request.earliest = True
            else:
                self._subscriptions.start(request)
                place.asked = request.offset if request.WhichOneof("start") == "offset" else None
            place.active = False
            wanted.append(request)
        subscriptions = self._subscriptions
        for some in _pieces(wanted):
            opening = pb.SubscribeOpen(
                group=subscriptions.group,
                member_id=subscriptions.member_id,
                member_key=subscriptions.member_key if subscriptions.group else b"",
                partitions=some,
                ephemeral=subscriptions.ephemeral,
                broadcast=subscriptions.broadcast,
                priority=subscriptions.priority,
            )
            self._stream.say(pb.SubscribeRequest(open=opening))

    def close_partition(self, place: PartitionPlace) -> None:
        closing = pb.SubscribeClose(partitions=[pb.TopicPartition(topic=place.topic, partition=place.partition)])
        self._stream.say(pb.SubscribeRequest(close=closing))

    def settle(self, places: Iterable[PartitionPlace]) -> None:
        settled = []
        for place in places:
            settled.append(pb.CursorPosition(topic=place.topic, partition=place.partition, offset=place.to_settle))
            place.settled = place.to_settle
        for some in _pieces(settled):
            self._stream.say(pb.SubscribeRequest(settled=some))

    def give_back(self, count: int) -> None:
        """Credit for a batch that was taken. In portions: a request for each small batch would cost more than the
        batch. None while the program says that it cannot work."""
        self._owed += count
        if self._owed * 4 >= self._subscriptions.credit_bytes and not (self.ended or self._subscriptions.suspended):
            self._stream.say(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=self._owed)))
            self._owed = 0

    def end(self) -> None:
        """Say the last word; the broker ends the stream once it has heard all before it."""
        if not self.ended:
            self.ended = True
            self._stream.say_last()

    # -- from any thread

    def wait_over(self, timeout_s: float) -> None:
        self._stream.wait_over(timeout_s)

    def cancel(self) -> None:
        """Do not wait for the broker's last word any longer."""
        self._stream.cancel()

    # -- on the loop of all streams

    async def _heard(self, message: Envelope[pb.BatchesHeader]) -> None:
        for told in message.header.opened:
            self._subscriptions.opened(self, told)
        if message.header.batches:
            payloads = payloads_of(message.header.batches, message.payload)
            unknown = self._subscriptions.with_unknown_columns(message.header, payloads)
            if unknown:  # a broker is asked: not on the loop
                await asyncio.to_thread(self._subscriptions.learn_columns, unknown)
            self._subscriptions.pushed(self, message.header, payloads)

    def _over(self, broke: TritonMQError | None) -> None:
        error = None if self.ended else broke
        if error is not None:
            log.info("subscription at %s ended: %s", self.address, error)
        self._subscriptions.session_ended(self, error)


def _pieces(elements: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at once as a request may name."""
    for first in range(0, len(elements), limits.REQUEST_PLACES_MAX):
        yield elements[first : first + limits.REQUEST_PLACES_MAX]
