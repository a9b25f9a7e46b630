"""What waits to go to another broker: entries, acknowledgements and parts of snapshots.

It gathers, within a bound, into the messages of a link (links.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from mq_broker.measured import LINK_BYTES, LINK_DROPPED
from mq_broker.rpc.wire.framed import FramedWire
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import LINK_BUFFER_BYTES_MAX, LINK_MESSAGE_BYTES, SNAPSHOT_PART_BYTES
from mq_protocol.wire.envelope import Buffer, Envelope

log = logging.getLogger(__name__)

FIXED_BYTES: Final = 150
"""About what a message takes beside its payload, so that a flood of empty ones is bounded too."""


class PeerAddress(NamedTuple):
    """`address` is the broker's; empty if it cannot be dialled from here. `plain`: no TLS is
    spoken there."""

    address: str
    incarnation: int
    plain: bool = False


class Outgoing(NamedTuple):
    append: pb.AppendEntries | None
    ack: pb.AppendAck | None
    parts: Sequence[Buffer]
    size: int
    so_far: pb.SoFar | None = None


def told_bytes(message: Envelope[pb.LinkHeader]) -> int:
    """About what a message that came took, as `Outgoing.size` counts those that go."""
    header = message.header
    fixed = FIXED_BYTES * (len(header.append) + len(header.ack) + len(header.snapshot) + len(header.so_far))
    return fixed + sum(map(len, message.parts)) + sum(len(part.data) for part in header.snapshot)


class Snapshot:
    """A snapshot on its way. `head` is what its parts have in common; `sent` how many of them have gone."""

    def __init__(self, head: pb.SnapshotPart, data: bytes) -> None:
        self.head = head
        self.sent = 0
        self._data = data

    @property
    def parts(self) -> int:
        return -(-len(self._data) // SNAPSHOT_PART_BYTES)

    def next_part(self) -> pb.SnapshotPart:
        part = pb.SnapshotPart(part=self.sent, parts=self.parts)
        part.MergeFrom(self.head)
        part.data = self._data[self.sent * SNAPSHOT_PART_BYTES : (self.sent + 1) * SNAPSHOT_PART_BYTES]
        self.sent += 1
        return part


class Peer:
    """What is known of one other broker, and what waits to go to it. `ended` is set while a conversation runs."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.address: PeerAddress | None = None
        self.registered = asyncio.Event()
        self.news = asyncio.Event()
        self.incarnation = 0
        self.waiting: deque[Outgoing] = deque()
        self.waiting_bytes = 0
        self.dropped = 0
        self.beat_due = False
        self.beat_tells_dropped = False
        self.snapshots: dict[tuple[str, int], Snapshot] = {}
        self._part_is_next = True
        self.something = asyncio.Event()
        self.written = asyncio.Event()
        self.written.set()
        self.ended: asyncio.Event | None = None
        self.wire: FramedWire | None = None
        """What can be written to at once."""

    @property
    def has_something(self) -> bool:
        """To be taken."""
        return bool(self.waiting or self.snapshots or self.beat_due)

    def put(self, outgoing: Outgoing) -> bool:
        """Whether it waits to go now. Say so by `something`."""
        if self.ended is None:
            return False
        # Alone, the largest batch goes too
        if self.waiting and self.waiting_bytes + outgoing.size > LINK_BUFFER_BYTES_MAX:
            if self.dropped == 0:
                log.warning(
                    "the link to broker %d is full: it reads slower than it is sent to; entries wait and go again",
                    self.broker,
                )
            self.dropped += 1
            self.beat_tells_dropped = True
            LINK_DROPPED.add(str(self.broker))
            return False
        self.waiting.append(outgoing)
        self.waiting_bytes += outgoing.size
        self.written.clear()
        return True

    def beat(self) -> None:
        """With the next message."""
        if self.ended is not None:
            self.beat_due = True
            self.something.set()

    def put_snapshot(self, head: pb.SnapshotPart, data: bytes) -> None:
        """One a partition: what has begun to go is not begun again, however long it takes. It is cut into parts as they
        go, so it takes no room in the buffer, may be larger than that, and keeps no entries and acknowledgements out of
        it."""
        place = head.topic_id, head.partition
        present = self.snapshots.get(place)
        if self.ended is None or not data:
            return
        if present is not None and present.sent and present.head.leader_epoch == head.leader_epoch:
            return
        self.snapshots[place] = Snapshot(head, data)
        self.something.set()

    def take(self) -> Envelope[pb.LinkHeader]:
        """The next message: all that waits, up to a bound. What is larger goes alone: with company it might be more
        than a message may be, and end the link. Of snapshots every other message has a part."""
        header = pb.LinkHeader()
        if self.beat_due:
            header.beat.dropped = self.beat_tells_dropped
            header.beat.SetInParent()
            self.beat_due = self.beat_tells_dropped = False
        parts: list[Buffer] = []
        taken = 0
        if self.snapshots and (self._part_is_next or not self.waiting):
            taken = self._take_part(header)
        self._part_is_next = not taken
        size = taken
        while self.waiting and (not size or size + self.waiting[0].size <= LINK_MESSAGE_BYTES):
            outgoing = self.waiting.popleft()
            size += outgoing.size
            if outgoing.append is not None:
                header.append.append(outgoing.append)
                parts.extend(outgoing.parts)
            if outgoing.ack is not None:
                header.ack.append(outgoing.ack)
            if outgoing.so_far is not None:
                header.so_far.append(outgoing.so_far)
        self.waiting_bytes -= size - taken
        LINK_BYTES.add(str(self.broker), "out", n=size)
        if not self.waiting:
            self.dropped = 0
            if not self.snapshots:
                self.something.clear()
        return Envelope(header, tuple(parts))

    def _take_part(self, header: pb.LinkHeader) -> int:
        place, snapshot = next(iter(self.snapshots.items()))
        part = snapshot.next_part()
        header.snapshot.append(part)
        if snapshot.sent == snapshot.parts:
            del self.snapshots[place]
        return FIXED_BYTES + len(part.data)

    def forget(self) -> None:
        self.waiting.clear()
        self.snapshots.clear()
        self.waiting_bytes = self.dropped = 0
        self.beat_due = self.beat_tells_dropped = False
        self.something.clear()
        self.written.set()
