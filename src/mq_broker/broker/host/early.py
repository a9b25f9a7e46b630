"""What leaders have sent to replicas that are not open here yet: of a new topic the leader is often open first.

A leader waits a second for an answer before it sends again, and until then a new topic has no leader that serves. So
the last entries for each such replica are kept for as long as that, and told to it once it is open, as if the link had
been slow. Nothing relies on them: what is not kept is sent again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mq_broker.broker.host.peer_messages import PeerMessages
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused

KEPT_MAX: Final = 1_000
"""Replicas. Those whose entries have waited longest are forgotten first."""

BYTES_MAX: Final = 2 << 10
"""A message: the entry with which a leader begins has some hundred bytes. Larger ones are sent again."""

KEPT_MS: Final = 1_000
"""The leader sends again after that (`ReplicaSettings.resend_ms`)."""


class _Early(NamedTuple):
    message: pb.AppendEntries
    frames: tuple[memoryview, ...]
    at_ms: int


class EarlyEntries:
    """Hears for every replica that is not open. Owns what is kept of that, one message a replica."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._kept: OrderedDict[tuple[str, int], _Early] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def hear_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None:
        key = (message.topic_id, message.partition)
        self._kept.pop(key, None)
        if not frames or message.ByteSize() + sum(frame.nbytes for frame in frames) > BYTES_MAX:
            return
        kept = pb.AppendEntries()
        kept.CopyFrom(message)  # the whole message of the link would stay in memory with a part of it
        self._kept[key] = _Early(kept, tuple(memoryview(bytes(frame)) for frame in frames), self._now_ms())
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def hear_ack(self, message: pb.AppendAck) -> None:
        """Dropped. If it is of the broker whose entries are kept, that may lead no more."""
        kept = self._kept.get((message.topic_id, message.partition))
        if kept is not None and kept.message.leader == message.follower:
            del self._kept[message.topic_id, message.partition]

    def hear_so_far(self, message: pb.SoFar) -> None:
        """Dropped: it is asked again, and asks itself once it is open."""

    def hear_snapshot(self, message: pb.SnapshotPart) -> None:
        """Dropped: it is sent again."""

    def forget(self, broker: int) -> None:
        """The link to that broker has ended, and with it what was on its way."""
        for key in [key for key, kept in self._kept.items() if kept.message.leader == broker]:
            del self._kept[key]

    def tell(
        self, topic_id: str, partition: int, peers: PeerMessages, refuse: Callable[[int, PeerRefused], None]
    ) -> None:
        """The replica is open. `refuse` ends the link to a broker that has sent what no broker sends."""
        kept = self._kept.pop((topic_id, partition), None)
        if kept is None or self._now_ms() - kept.at_ms >= KEPT_MS:
            return
        try:
            peers.hear_entries(kept.message, kept.frames)
        except PeerRefused as error:
            refuse(kept.message.leader, error)
