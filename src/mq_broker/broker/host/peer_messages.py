"""One partition's messages to and from other brokers: the core's words as protobuf, with the journal's frames beside
them.

Nothing of other brokers reaches the core but through here. What is damaged on the way is dropped: whoever sent it sends
it again. What no broker sends (core/replication/peer_admission.py) is dropped as well, and ends the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.core.messages import AppendAck, AppendEntries, Event, InstallSnapshot, PeerMessage, SoFar
from mq_broker.core.replication.peer_admission import Judgement, Verdict, judge_snapshot
from mq_broker.rpc.wire.links import Links
from mq_broker.storage.codec.frame import Place, decode_frame, unpinned
from mq_broker.storage.codec.snapshot import decode_snapshot
from mq_broker.storage.interface import Frame, Journal
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused, StorageFailed, TritonMQError

log = logging.getLogger(__name__)

_ANY_BYTES: Final = 1 << 62
"""The core has bounded what it sends at once."""

SENDS_WAITING_MAX: Final = 64
"""To one broker, behind what is read in a thread. The core has `append_in_flight_max` of them, and heartbeats; what is
dropped it sends again."""

Judge: TypeAlias = Callable[[PeerMessage], Judgement]
Feed: TypeAlias = Callable[[Event], None]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], object]


class PeerMessages:
    """Owns the translation of one partition's messages. `judge` says what may reach the core as it is now; `arriving`
    is shared by all partitions."""

    def __init__(
        self,
        place: Place,
        links: Links,
        journal: Journal,
        feed: Feed,
        spawn: Spawn,
        judge: Judge,
        arriving: ArrivingSnapshots,
        snapshot_bytes_max: Callable[[], int],
    ) -> None:
        self._name = str(place)
        self._place = place
        self._links = links
        self._journal = journal
        self._feed = feed
        self._spawn = spawn
        self._judge = judge
        self._arriving = arriving
        self._snapshot_bytes_max = snapshot_bytes_max
        self._decoding = False
        self._waiting: dict[int, deque[AppendEntries]] = {}  # behind what is read in a thread, by broker

    # -- in: each raises `PeerRefused` for what no broker sends

    def _admit(self, message: PeerMessage) -> None:
        match self._judge(message):
            case Verdict.ADMITTED, _:
                self._feed(message)
            case Verdict.NOT_REGISTERED, why:
                log.debug("%s: dropped for now: %s", self._name, why)
            case _, why:
                raise PeerRefused(f"{self._name}: {why}", pb.PEER_NONSENSE)

    def hear_entries(self, message: pb.AppendEntries, views: Sequence[memoryview]) -> None:
        """From a leader. A frame that fails its checksum drops the message: the leader sends it again."""
        try:
            frames = [unpinned(decode_frame(self._place, view)) for view in views]
        except TritonMQError as error:
            log.warning("%s: entries from broker %d dropped: %s", self._name, message.leader, error)
            return
        self._admit(
            AppendEntries(
                message.leader,
                message.incarnation,
                message.leader_epoch,
                message.prev_index,
                message.prev_epoch,
                message.prev_index + len(frames),
                message.high_watermark,
                message.sequence,
                tuple(frame.entry for frame in frames),
                message.successor,
                tuple(frames),
            )
        )

    def hear_ack(self, message: pb.AppendAck) -> None:
        """From a follower."""
        self._admit(
            AppendAck(
                message.follower,
                message.incarnation,
                message.log_id,
                message.leader_epoch,
                message.acknowledged_index,
                message.matched_index,
                message.sequence,
                message.conflict,
                message.hint_index,
                message.hint_epoch,
            )
        )

    def hear_so_far(self, message: pb.SoFar) -> None:
        """Of a replica, where nobody leads."""
        self._admit(
            SoFar(
                message.broker,
                message.incarnation,
                message.log_id,
                message.leader_epoch,
                message.last_index,
                message.last_epoch,
                message.question,
                message.asks,
            )
        )

    def hear_snapshot(self, message: pb.SnapshotPart) -> None:
        """From a leader, a part at a time, in order. What is incomplete is dropped: the leader sends it all again."""
        if self._decoding:
            return
        parts = self._arriving.take(message, self._snapshot_bytes_max())
        if parts:
            self._decoding = True
            self._spawn(self._take_snapshot(parts), f"read the snapshot of {self._name}")

    async def _take_snapshot(self, parts: list[pb.SnapshotPart]) -> None:
        """In a thread: it takes a fifth of a second for 100,000 UUIDs, and a partition may remember ten million."""
        last = parts[-1]

        def read() -> tuple[InstallSnapshot, Judgement]:
            snapshot = decode_snapshot(self._place, b"".join(part.data for part in parts))
            message = InstallSnapshot(last.leader, last.incarnation, last.leader_epoch, last.sequence, snapshot)
            return message, judge_snapshot(message)

        try:
            message, (verdict, why) = await asyncio.to_thread(read)
            if verdict is not Verdict.ADMITTED:
                raise PeerRefused(f"{self._name}: {why}", pb.PEER_NONSENSE)
            self._admit(message)
        except PeerRefused as error:
            self._links.refuse(last.leader, error)
        except TritonMQError as error:
            log.warning("%s: a snapshot from broker %d dropped: %s", self._name, last.leader, error)
        finally:
            self._decoding = False
            self._arriving.done(parts)

    # -- out

    def send(self, to: int, message: PeerMessage) -> None:
        """Dropped where there is no link, or where the journal cannot be read."""
        match message:
            case AppendEntries():
                self._send_entries(to, message)
            case AppendAck():
                self._send_ack(to, message)
            case InstallSnapshot():
                self._send_snapshot(to, message)
            case SoFar():
                self._send_so_far(to, message)
            case _:
                assert_never(message)

    def _send_entries(self, to: int, message: AppendEntries) -> None:
        """In order. What would hold the event loop is read in a thread, and what follows waits for it."""
        waiting = self._waiting.get(to)
        if waiting is not None:
            if len(waiting) < SENDS_WAITING_MAX:
                waiting.append(message)
        elif message.last_index > message.prev_index and self._journal.is_dear(
            message.prev_index + 1, message.last_index
        ):
            self._waiting[to] = deque([message])
            work = self._send_waiting(to, self._journal.generation)
            self._spawn(work, f"read entries of {self._name} for broker {to}")
        else:
            with self._telling(to):
                self._send_frames(to, message, self._frames_of(message))

    async def _send_waiting(self, to: int, generation: int) -> None:
        """All that waits. Once the log is cut other entries may be where those were: what is left is dropped."""
        waiting, journal = self._waiting[to], self._journal
        try:
            while waiting and generation == journal.generation:
                message = waiting[0]
                first, last = message.prev_index + 1, message.last_index
                with self._telling(to):
                    frames = await journal.read_apart(first, last) if last >= first else []
                    if generation == journal.generation:
                        self._send_frames(to, message, frames)
                waiting.popleft()
        finally:
            del self._waiting[to]

    @contextlib.contextmanager
    def _telling(self, to: int) -> Iterator[None]:
        try:
            yield
        except StorageFailed as error:
            log.warning("%s: entries for broker %d cannot be read: %s", self._name, to, error)

    def _frames_of(self, message: AppendEntries) -> list[Frame]:
        if message.last_index <= message.prev_index:
            return []
        return self._journal.read(message.prev_index + 1, message.last_index, _ANY_BYTES)

    def _send_frames(self, to: int, message: AppendEntries, frames: list[Frame]) -> None:
        self._links.send_entries(
            to,
            pb.AppendEntries(
                topic_id=self._place.topic_id,
                partition=self._place.partition,
                leader_epoch=message.leader_epoch,
                incarnation=message.incarnation,
                leader=message.leader,
                prev_index=message.prev_index,
                prev_epoch=message.prev_epoch,
                high_watermark=message.high_watermark,
                frame_bytes=[frame.size for frame in frames],
                sequence=message.sequence,
                successor=message.successor,
            ),
            [part for frame in frames for part in frame.parts],
        )

    def _send_ack(self, to: int, message: AppendAck) -> None:
        self._links.send_ack(
            to,
            pb.AppendAck(
                topic_id=self._place.topic_id,
                partition=self._place.partition,
                leader_epoch=message.leader_epoch,
                incarnation=message.incarnation,
                follower=message.follower,
                log_id=message.log_id,
                acknowledged_index=message.acknowledged_index,
                matched_index=message.matched_index,
                conflict=message.conflict,
                hint_index=message.hint_index,
                hint_epoch=message.hint_epoch,
                sequence=message.sequence,
            ),
        )

    def _send_so_far(self, to: int, message: SoFar) -> None:
        self._links.send_so_far(
            to,
            pb.SoFar(
                topic_id=self._place.topic_id,
                partition=self._place.partition,
                leader_epoch=message.leader_epoch,
                incarnation=message.incarnation,
                broker=message.broker,
                log_id=message.log_id,
                last_index=message.last_index,
                last_epoch=message.last_epoch,
                question=message.question,
                asks=message.asks,
            ),
        )

    def _send_snapshot(self, to: int, message: InstallSnapshot) -> None:
        data = self._journal.snapshot_data
        log.info(
            "%s: broker %d is sent the state before entry %d, %d bytes",
            self._name,
            to,
            self._journal.first_index,
            len(data),
        )
        self._links.send_snapshot(
            to,
            pb.SnapshotPart(
                topic_id=self._place.topic_id,
                partition=self._place.partition,
                leader_epoch=message.leader_epoch,
                incarnation=message.incarnation,
                leader=message.leader,
                sequence=message.sequence,
            ),
            data,
        )


EARLY_MAX: Final = 1_000
"""Replicas. Those whose entries have waited longest are forgotten first."""

EARLY_BYTES_MAX: Final = 2 << 10
"""A message: the entry with which a leader begins has some hundred bytes. Larger ones are sent again."""

EARLY_MS: Final = 1_000
"""The leader sends again after that (`ReplicaSettings.resend_ms`)."""


class _Early(NamedTuple):
    message: pb.AppendEntries
    frames: tuple[memoryview, ...]
    at_ms: int


class EarlyEntries:
    """What leaders have sent to replicas that are not open here yet: of a new topic the leader is often open first.

    A leader waits a second for an answer before it sends again, and until then a new topic has no leader that serves.
    So the last entries for each such replica are kept for as long as that, and told to it once it is open, as if the
    link had been slow. Nothing relies on them: what is not kept is sent again.

    Hears for every replica that is not open. Owns what is kept of that, one message a replica.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._kept: OrderedDict[tuple[str, int], _Early] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def hear_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None:
        key = (message.topic_id, message.partition)
        self._kept.pop(key, None)
        if not frames or message.ByteSize() + sum(frame.nbytes for frame in frames) > EARLY_BYTES_MAX:
            return
        kept = pb.AppendEntries()
        kept.CopyFrom(message)  # the whole message of the link would stay in memory with a part of it
        self._kept[key] = _Early(kept, tuple(memoryview(bytes(frame)) for frame in frames), self._now_ms())
        if len(self._kept) > EARLY_MAX:
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
        if kept is None or self._now_ms() - kept.at_ms >= EARLY_MS:
            return
        try:
            peers.hear_entries(kept.message, kept.frames)
        except PeerRefused as error:
            refuse(kept.message.leader, error)
