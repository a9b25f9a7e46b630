"""Subscribe streams, one to each broker that leads a subscribed partition, and the thread that keeps them where the
leaders are.

Positions are kept here, so a partition whose leader changes goes on at the next one without a gap or a repeat. In a
group the broker says where to begin; what this member already holds is not taken twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from mq_client.awaiting import Wakeable
from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Backoff, Deadline, attempts
from mq_client.cluster.requests import move_cursors
from mq_client.consuming.feeds import Feeding
from mq_client.consuming.health import Health
from mq_client.consuming.push_streams import PushStream
from mq_client.consuming.record_queue import Chunk, ConsumerRecord, PartitionPlace, RecordQueue, Skipped, not_subscribed
from mq_client.consuming.shared_batch import SharedBatch
from mq_client.consuming.slices import payloads_of
from mq_client.errors import (
    CorruptBatch,
    MemberInUse,
    NotAuthenticated,
    NotLeader,
    PermissionDenied,
    QuotaExceeded,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_nodes
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import from_wire
from mq_protocol.wire.ipc_message import node_count

log = logging.getLogger(__name__)

Place = tuple[str, int]
T = TypeVar("T")
SetStart = Callable[[pb.SubscribePartition], None]

_REFRESH_S: Final = 5.0
"""Who leads is looked up anew this often even if nothing seems wrong: a stopped process keeps its streams open."""

_REFRESH_MS: Final = 5_000.0
_HEALTH_S: Final = 0.5
_JOIN_S: Final = 2.0

_IN_USE_MS: Final = 20_000.0
"""How long a member waits for its id. A process that took the place of one whose machine was lost comes to it when the
broker has noticed that, after 15 s."""


class Subscriptions:
    """Owns places, queues, sessions and the thread that looks after them. All of it is under `changed`, which is
    notified of news.

    `start`: sets where a partition begins that has no position and no cursor. `credit_bytes`: what one broker may have
    pushed that was not taken. `broadcast`: instead of a group, the broadcast group of which this is a member, with that
    `priority`. `skipped`: what came of it and was not given to this member.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        member_id: str,
        start: SetStart,
        settle_s: float,
        credit_bytes: int,
        *,
        ephemeral: bool = False,
        broadcast: str = "",
        priority: int = 0,
        healthy: Callable[[], object] | None = None,
    ) -> None:
        lock = threading.RLock()
        self.changed = Wakeable(lock)
        self._work = threading.Condition(lock)
        self.queues: dict[str, RecordQueue] = {}
        self.connection = connection
        self.group = group
        self.member_id = member_id
        # Without it nobody replaces this member, nor speaks for it
        self.member_key = secrets.token_bytes(limits.MEMBER_KEY_BYTES)
        self.start = start
        self.credit_bytes = credit_bytes
        self.ephemeral = ephemeral
        self.broadcast = broadcast
        self.priority = priority
        self.skipped = Skipped()
        # What queues do to what they hand out
        self.deserialize: Callable[[ConsumerRecord], ConsumerRecord] | None = None
        self.places: dict[Place, PartitionPlace] = {}
        self.views: dict[str, TopicView] = {}
        self._settle_s = settle_s
        self._sessions: dict[str, Session] = {}
        self._told_of_start: set[str] = set()
        self._held: dict[str, int] = {}  # bytes that are here of what each broker has pushed, on whichever stream
        self._feeding = Feeding(self)
        self._look = False  # something is to be opened now
        self._failed = False  # something is to be opened again, in its time
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._health = None if healthy is None else Health(healthy, self._look_at_health)
        self.suspended = False  # the program says that it cannot work: no credit is given, and nothing handed out
        self._left = False  # for so long that its group's other members have its partitions

    # ------------------------------------------------------------------ what is subscribed

    def add(self, view: TopicView) -> None:
        """Subscribe to a topic from now on."""
        with self.changed:
            if view.name in self.views:
                return
            self.views[view.name] = view
            if (failed := self.queues.get(view.name)) is not None:  # else it would hold its credit for ever
                failed.give_back()
            self.queues[view.name] = RecordQueue(view.name, self.changed, self.deserialize)
            self.queues[view.name].suspended = self.suspended
            for number in range(view.partitions):
                self.places[view.name, number] = PartitionPlace(view.name, number)
            self._look = True
            self._work.notify()

    def remove(self, topic: str) -> None:
        """Unsubscribe: what was pushed and not taken is dropped."""
        with self.changed:
            found = self.queues.pop(topic, None)
            if found is None:
                return
            found.done_with_last()
            self._leave(topic)
            found.give_back()
            self.changed.notify_all()

    def fail(self, topic: str, error: TritonMQError) -> None:
        """The topic's subscription is over: its queue raises once it is empty. It can be subscribed to anew."""
        with self.changed:
            found = self.queues.get(topic)
            if found is not None and found.error is None:
                found.error = error
                self._leave(topic)
                self.changed.notify_all()

    def _leave(self, topic: str) -> None:
        """Its partitions are neither opened nor settled any more."""
        self._settle()
        self.views.pop(topic, None)
        for key in [key for key in self.places if key[0] == topic]:
            place = self.places.pop(key)
            session = self._stream_of(place)
            self._feeding.leave(place)
            if session is not None:
                session.close_partition(place)

    def begin(self) -> None:
        """Start the thread. A second call does nothing."""
        with self.changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tritonmq-consumer", daemon=True)
                self._thread.start()
                if self._health is not None:
                    self._health.start()

    def wait_opened(self, topics: Collection[str], deadline: Deadline) -> None:
        """Until the leader of each of their partitions has said where it begins, or that another member has it.

        Raises the error that stands in the way, `OutcomeUnknown` naming partitions at the deadline. A member that has
        left its group, since it cannot work, opens none.
        """
        with self.changed:
            while not self._left:
                for topic in topics:
                    waiting = self.queues.get(topic)
                    if waiting is not None and waiting.error is not None:
                        raise waiting.error
                wanted = [place for place in self.places.values() if place.topic in topics]
                missing = [place for place in wanted if not place.answered]
                if not missing:
                    return
                if deadline.expired:
                    for place in wanted:
                        if place.in_use is not None:
                            raise place.in_use[0]
                    raise not_subscribed(missing, deadline.timeout_ms)
                self.changed.wait(deadline.remaining_s)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._follow_leaders()
            with self.changed:
                complete = self._left or all(place.answered and place.address for place in self.places.values())
                if complete:
                    backoff.reset()
                deadline = Deadline(_REFRESH_S * 1000 if complete else backoff.next_ms())
                while not (self._stopping or self._look or deadline.expired or (self._failed and complete)):
                    look_s = _HEALTH_S if self._health is not None else _REFRESH_S
                    settle_s = self._settle_s if self.group else _REFRESH_S
                    self._work.wait(min(settle_s, deadline.remaining_s, look_s))
                    self._settle()
                    self._heed_health()
                self._look = self._failed = False
                if self._stopping:
                    return

    def _follow_leaders(self) -> None:
        """Open each partition at its leader, where it is known."""
        with self.changed:
            topics = list(self.views)
        for topic in topics:
            try:
                view = self.connection.refresh(topic, Deadline(_REFRESH_MS))
            except TritonMQError as error:
                if error.retriable:
                    log.warning("topic %s: %s", topic, error)
                else:
                    self.fail(topic, error)  # which raises it for whoever takes records
                continue
            self._learn(view)
        with self.changed:
            if self._stopping:
                return
            to_open: dict[str, list[PartitionPlace]] = {}
            for place in () if self._left else self.places.values():
                address = self.connection.leader_address(self.views[place.topic], place.partition)
                if address is None:
                    continue
                session = self._stream_of(place)
                if place.address == address and (place.fed or (session is not None and not session.ended)):
                    continue
                self._feeding.leave(place)
                if session is not None:
                    session.close_partition(place)
                place.address, place.answered = address, False
                to_open.setdefault(address, []).append(place)
            for address, places in to_open.items():
                self._session(address).open(places)
            for address in list(self._sessions):
                self._end_if_empty(address)

    def _stream_of(self, place: PartitionPlace) -> Session | None:
        """This consumer's own, if the partition is opened on it."""
        return None if place.fed or place.address is None else self._sessions.get(place.address)

    def _end_if_empty(self, address: str) -> None:
        if not any(place.address == address and not place.fed for place in self.places.values()):
            self._sessions.pop(address).end()

    # ------------------------------------------------------------------ whether the program can work

    def _look_at_health(self) -> None:
        """Its answer has changed."""
        with self.changed:
            self._work.notify()

    def _heed_health(self) -> None:
        """While the program says that it cannot work, no credit is given. After as long as a member may take to hand a
        partition over, the other members of its group get its partitions."""
        no_for_s = None if self._health is None else self._health.no_for_s()
        if no_for_s is not None and self.group and not self._left and no_for_s * 1000 > limits.GROUP_HANDOVER_MS:
            self._leave_group()
        if self.suspended == (no_for_s is not None):
            return
        self.suspended = no_for_s is not None
        if self._health is not None:
            self._health.log_answer(yes=not self.suspended)
        for waiting in self.queues.values():
            waiting.suspended = self.suspended
        if not self.suspended:
            self._look, self._left = self._look or self._left, False
            for session in self._sessions.values():
                session.give_back(0)
            self.changed.notify_all()

    def _leave_group(self) -> None:
        """What is here and was not handed out is others' now, and so is the record in hand if it was not settled."""
        self._settle()
        self._left = True
        for place in self.places.values():
            session = self._sessions.get(place.address or "")
            if session is not None:
                session.close_partition(place)
            self.queues[place.topic].drop(place)
            place.forget()
            place.address, place.answered = None, False
        self._look = True  # streams without partitions end
        self.changed.notify_all()

    def _learn(self, view: TopicView) -> None:
        """What was heard of a topic: partitions that it did not have are subscribed to as well.

        Places in a topic say nothing about another of the same name: to go on from there would pass over its first
        records.
        """
        with self.changed:
            known = self.views.get(view.name)
            if known is None:
                return
            if known.topic_id != view.topic_id:
                self.fail(
                    view.name,
                    UnknownTopic(f"topic {view.name!r} was deleted and made again: subscribe anew to read that one"),
                )
                return
            if view.partitions < known.partitions:
                return  # from a broker that has not heard of those added
            self.views[view.name] = view
            for number in range(view.partitions):
                if (view.name, number) not in self.places:
                    self.places[view.name, number] = PartitionPlace(view.name, number, added=True)

    def with_unknown_columns(self, header: pb.BatchesHeader, payloads: list[memoryview]) -> dict[str, int]:
        """The topics of which batches have more columns than are known, and how many nodes the widest batch has."""
        with self.changed:
            views = dict(self.views)
        found: dict[str, int] = {}
        for stored, payload in zip(header.batches, payloads, strict=True):
            view = views.get(stored.topic)
            if view is not None and view.typed and (nodes := node_count(payload)) > schema_nodes(view.schema):
                found[stored.topic] = max(found.get(stored.topic, 0), nodes)
        return found

    def learn_columns(self, topics: Mapping[str, int]) -> None:
        """Before batches are handed out that have more columns than are known of their topic, it is asked which those
        are: for some time, since a broker may be the last to hear of them. As `with_unknown_columns` says."""
        for topic, nodes in topics.items():
            missing = self._learn_columns_of(topic, nodes, Deadline(_REFRESH_MS))
            if missing:
                log.warning("topic %s: added columns are left out, because %s", topic, missing)

    def _learn_columns_of(self, topic: str, nodes: int, deadline: Deadline) -> str:
        """Why the columns could not be learned; empty if they were."""
        for _ in attempts(deadline):
            try:
                view = self.connection.refresh(topic, deadline, age_ms_max=0)
            except TritonMQError as error:
                return f"no broker described them: {error}"
            self._learn(view)
            if schema_nodes(view.schema) >= nodes:
                return ""
        return "no broker knew of them in time"

    def _session(self, address: str) -> Session:
        session = self._sessions.get(address)
        if session is None or session.ended:
            session = self._sessions[address] = Session(self, address)
        return session

    def session_ended(self, session: Session, error: TritonMQError | None = None) -> None:
        """The stream broke: its partitions are opened again wherever they are led by now. One that was refused for
        want of a right is not: no other broker would grant it. Nor is one on which came what cannot be.

        Ended and forgotten in one step: no partition stays at a stream that another has taken the place of.
        """
        with self.changed:
            session.ended = True
            if self._sessions.get(session.address) is not session:
                return  # another has taken its place
            del self._sessions[session.address]
            there = [place for place in self.places.values() if place.address == session.address and not place.fed]
            for place in there:
                self._feeding.leave(place)
                place.address = None
            if isinstance(error, PermissionDenied | NotAuthenticated | QuotaExceeded | UnknownTopic | CorruptBatch):
                for topic in dict.fromkeys(place.topic for place in there):
                    self.fail(topic, error)
            self._failed = True
            self._work.notify()

    # ------------------------------------------------------------------ what is pushed (on the loop of all streams)

    def opened(self, session: Session, told: pb.PartitionOpened) -> None:
        with self.changed:
            place = self.places.get((told.topic, told.partition))
            if place is None or not self._is_current(session, place):
                return
            if self.broadcast:
                place.added = False  # whoever comes again begins at the end
            if told.HasField("error") and not told.active:
                self._refused(place, from_wire(told.error))
            elif told.HasField("error"):
                if place.active:  # else a former subscription was told, on the same stream
                    log.warning("%s-%d: %s", place.topic, place.partition, told.error.message)
                    if self.broadcast:
                        self._was_away(place, told.offset)
                    self._skip(place, told.offset)
            elif told.active:
                place.answered, place.in_use = True, None
                self._activate(place, told.offset)
                self._feeding.offer(place)
            else:
                place.answered, place.in_use = True, None
                if not self.broadcast:  # what a member of a broadcast group was pushed, nobody else is given
                    self.queues[place.topic].drop(place)
                place.forget()
            self.changed.notify_all()

    def _is_current(self, session: Session, place: PartitionPlace) -> bool:
        """Whether it is this stream that the partition is opened on: words of a former one do not count."""
        return self._stream_of(place) is session

    def _refused(self, place: PartitionPlace, error: TritonMQError) -> None:
        if isinstance(error, NotLeader):
            self.connection.note_leader(place.topic, place.partition, error)
        self._feeding.leave(place)
        place.address, place.refused = None, error
        if not (error.retriable or self._waits_for_id(place, error)):
            self.fail(place.topic, error)  # which raises it for whoever takes records
        self._failed = True
        self._work.notify()

    @staticmethod
    def _waits_for_id(place: PartitionPlace, error: TritonMQError) -> bool:
        """Whether a living member had this one's id just now, and may be gone when it is asked for again."""
        if not isinstance(error, MemberInUse):
            return False
        if place.in_use is None:
            log.warning("%s-%d: asked again for %.0f s: %s", place.topic, place.partition, _IN_USE_MS / 1000, error)
            place.in_use = error, Deadline(_IN_USE_MS)
        return not place.in_use[1].expired

    def _activate(self, place: PartitionPlace, offset: int) -> None:
        """It is pushed from `offset` on. What is held of it stays, if nobody else has been given it meanwhile."""
        if place.position < 0:
            if not self.group and place.asked is not None and place.asked != offset:
                self._tell_of_start(place, place.asked, offset)
            place.began = place.position = place.taken = place.processed = offset
        elif offset > place.position:
            if self.broadcast:
                self._was_away(place, offset)
            elif not self.group:
                log.warning(
                    "%s-%d: offsets %d to %d are no longer kept",
                    place.topic,
                    place.partition,
                    place.position,
                    offset - 1,
                )
            place.position = offset
        place.pushed = place.settled = offset
        if self.group:  # alone, what is held is below the offset because it was asked for so
            self.queues[place.topic].drop(place, below=offset)
            # Others were done with it: the group is not to be moved back to where this member was
            if offset > place.processed:
                place.began = place.processed = offset
                place.taken = max(place.taken, offset)
        place.active = True

    def _was_away(self, place: PartitionPlace, offset: int) -> None:
        """What came before the offset was not pushed to this member of a broadcast group."""
        before, self.skipped = self.skipped, self.skipped.more(place.position, offset)
        count = self.skipped.records - before.records
        log.info("%s-%d: %s records were skipped", place.topic, place.partition, count or "an unknown number of")

    def _tell_of_start(self, place: PartitionPlace, asked: int, offset: int) -> None:
        """Once for a topic: its partitions rarely end at the same offset."""
        if place.topic in self._told_of_start:
            return
        self._told_of_start.add(place.topic)
        why = f"it ends at offset {offset}" if asked > offset else f"what is before offset {offset} is no longer kept"
        log.warning(
            "%s-%d: consumed from offset %d, not %d: %s (start=%d is for each partition; this is told once for a "
            "topic)",
            place.topic,
            place.partition,
            offset,
            asked,
            why,
            asked,
        )

    @staticmethod
    def _skip(place: PartitionPlace, offset: int) -> None:
        """The same stream goes on at `offset`: what is between was lost. What is held from before it is this member's
        as before; if nothing is, what was lost is done with as soon as what was handed out is.
        """
        if place.taken == place.position < offset:
            if place.processed == place.taken:
                place.processed = offset
            place.taken = offset
        place.position = max(place.position, offset)
        place.pushed = offset

    def pushed(self, session: Session, header: pb.BatchesHeader, payloads: list[memoryview]) -> None:
        with self.changed:
            for stored, payload in zip(header.batches, payloads, strict=True):
                place = self.places.get((stored.topic, stored.partition))
                if place is None or not self._is_current(session, place) or not place.active:
                    session.give_back(len(payload))
                    continue
                place.pushed = end = stored.base_offset + stored.record_count
                if end <= place.position:  # held, or taken, since before the stream was opened
                    session.give_back(len(payload))
                    continue
                held = self.held(session.address) + len(payload)
                if held > self.credit_bytes + limits.MESSAGE_BYTES_MAX:  # the last message may go beyond it
                    raise CorruptBatch(f"broker at {session.address} pushes {held} bytes, above its credit")
                self._held[session.address] = held
                self.put(place, SharedBatch(stored, payload), partial(self._released, session.address))
                self._feeding.offer(place)
            self.changed.notify_all()

    def put(self, place: PartitionPlace, batch: SharedBatch, release: Callable[[int], None]) -> None:
        """What came of a partition waits to be taken, from the place's position on."""
        view, skipped = self.views[place.topic], max(0, place.position - batch.base_offset)
        self.queues[place.topic].put(Chunk(place, batch, view.schema, view.fingerprint, view.typed, skipped, release))
        place.position = place.pushed = batch.end_offset

    def leave_stream(self, place: PartitionPlace) -> None:
        """It is fed from now on."""
        session = self._sessions.get(place.address or "")
        if session is not None:
            session.close_partition(place)
            self._end_if_empty(session.address)

    def open_again(self, *, now: bool = False) -> None:
        """A partition has no stream: it is opened again, wherever it is led by now."""
        self._look = self._look or now
        self._failed = True
        self._work.notify()

    def held(self, address: str) -> int:
        """Bytes that are here of what that broker has pushed."""
        return self._held.get(address, 0)

    def _released(self, address: str, count: int) -> None:
        """A batch was taken or dropped: the stream to its broker that there is now is given the credit."""
        self._held[address] -= count
        session = self._sessions.get(address)
        if session is not None:
            session.give_back(count)

    # ------------------------------------------------------------------ cursors

    def _settle(self) -> None:
        """Tell the brokers how far the application is. They coalesce: the newest word counts."""
        if not self.group:
            return
        by_address: dict[str, list[PartitionPlace]] = {}
        for place in self.places.values():
            if place.active and place.to_settle > place.settled and place.address is not None:
                by_address.setdefault(place.address, []).append(place)
        for address, places in by_address.items():
            session = self._sessions.get(address)
            if session is not None and not session.ended:
                session.settle(places)

    def stop(self, deadline: Deadline, *, last_is_done: bool) -> None:
        """Settle, end streams and threads. `last_is_done`: the records handed out last count as processed."""
        with self.changed:
            if self._stopping:
                return
            if last_is_done:
                for waiting in self.queues.values():
                    waiting.done_with_last()
            self._settle()
            self._stopping = True
            if self._health is not None:
                self._health.stop()
            for waiting in self.queues.values():
                waiting.close()
            self._feeding.close(self.places.values())
            positions: dict[str, dict[int, int]] = {}
            for place in self.places.values():
                if self.group and place.processed > place.began:  # also one that is just being opened again
                    positions.setdefault(place.topic, {})[place.partition] = place.processed
            self.changed.notify_all()
            self._work.notify()
        kind = "ephemeral" if self.ephemeral else "consumer"
        try:
            move_cursors(
                self.connection,
                self.group,
                positions,
                deadline,
                kind=kind,
                member_id=self.member_id,
                member_key=self.member_key,
            )
        except TritonMQError as error:
            log.warning("group %s may be given some records again: %s", self.group, error)
        with self.changed:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.end()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        for session in sessions:
            session.wait_over(_JOIN_S)
            session.cancel()


class Session:
    """One Subscribe stream: what a consumer asks of one broker, the credit that it gives back, and what it hears. Owns
    the stream, and the credit that is to be given back on it."""

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
