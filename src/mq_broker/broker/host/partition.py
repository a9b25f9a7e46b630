"""One partition on this broker: its core, its journal, its index of offsets, and the requests that wait for it.

Every event for the partition goes in through `feed`; what the core answers is carried out here, in order. Nothing here
decides anything about replication (mq_broker.core does) or knows of clients (produce, fetch, delivery do).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, assert_never, cast

from mq_broker.broker.host.arriving import ArrivingSnapshots, bytes_max
from mq_broker.broker.host.contacts import Contacts
from mq_broker.broker.host.peer_messages import PeerMessages
from mq_broker.broker.host.quiescence import IN_EARNEST, Rest, Ticking
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.entries import NO_UUID, Decide, Entry, Operation, level_of
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AreStaged,
    Audit,
    CasAnswer,
    CasOutcome,
    Decided,
    DecisionCommitted,
    DiskRefused,
    Done,
    Effect,
    Event,
    Flushed,
    HandedOver,
    HandOver,
    Identity,
    Install,
    JournalBegins,
    LogReplaced,
    NodeRead,
    NodeState,
    OffsetsSkipped,
    Propose,
    Published,
    ReadNode,
    RecordsThere,
    RecoveryAdopted,
    Refused,
    Reopen,
    ReplicasChanged,
    ReplicaSettings,
    Reply,
    RequestId,
    Result,
    RoleChanged,
    Room,
    Send,
    StartOver,
    Tick,
    TransferLeadership,
    Trimmed,
    Truncate,
    Wait,
    WriteEntries,
    WriteNode,
)
from mq_broker.core.replication.peer_admission import judge
from mq_broker.core.replication.replica import Replica
from mq_broker.measured import ALARMS, ISR_CHANGES, LEADERSHIPS, TOPIC_BYTES_IN, TOPIC_RECORDS_IN
from mq_broker.rpc.wire.links import Links
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.interface import NOTHING_UNSEALED, Frame, Journal, OpenJournal, Unsealed
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    CoordinationUnavailable,
    IncompatibleVersion,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageFailed,
    TritonMQError,
)
from mq_protocol.limits import READ_BATCHES_MAX, SCHEDULED_MAX
from mq_protocol.names import OnTotalLoss
from mq_protocol.wire.envelope import Buffer

log = logging.getLogger(__name__)

OnReply: TypeAlias = Callable[[Result], None]
SHORTEN_AGAIN_S: Final = 30.0
"""After the disk refused: each attempt reads everything that is to go."""

FOLLOW_S: Final = 30.0
"""Between two shortenings while a live replica is not in sync: it may be on its way to where the journal begins, and
would have to begin anew with another snapshot each time that moves. It is asked again for the first entries some
seconds after the snapshot."""

_SWEEP_MS: Final = 500
_request_ids = itertools.count(1)


class _Waiting(NamedTuple):
    on_reply: OnReply
    deadline: float


class Host(Protocol):
    """What a partition asks of the broker that holds it (shell.py). Called on the event loop. `broker` is its id,
    `incarnation` says which start of it this is. `level`: of the cluster's features."""

    @property
    def broker(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def coordination(self) -> CoordinationService: ...
    @property
    def links(self) -> Links: ...
    @property
    def arriving(self) -> ArrivingSnapshots: ...
    @property
    def contacts(self) -> Contacts: ...
    @property
    def ticking(self) -> Ticking: ...

    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""

    def is_live(self, broker: int) -> bool:
        """Whether it is registered, as last read."""

    def touch(self, partition: Partition) -> None:
        """The partition has been fed: it is told when the turn ends."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of the broker's: it ends with the broker, and if it fails the broker does."""

    def write_node(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """As `spawn`, for a write to the coordination service: a clean stop waits for those."""

    def fail(self, error: Exception) -> None:
        """Something that must never happen did: the broker stops."""

    def role_changed(self, partition: Partition) -> None:
        """It leads from now on, or does so no more."""

    def decision_committed(self, partition: Partition, decision: Decide) -> None:
        """The partition, which leads, is to see that it is published."""

    def reopen(self, partition: Partition, reason: str) -> None:
        """Its log is another now: close it, read that from the disk again, and begin a new replica."""

    def stay_closed(self, partition: Partition, reason: str) -> None:
        """Its journal was altered on the disk: stand back from leading it, and close it. It opens once it can."""

    def install(self, partition: Partition, snapshot: Snapshot, recovery: int) -> None:
        """As `reopen`, with a journal that begins with that state (rule 13)."""

    def start_over(self, partition: Partition, recovery: int) -> None:
        """As `reopen`, with an empty journal: the present one is kept aside (rule 15)."""


class JournalEvents:
    """A journal's listener: what it reports, as events of the core. A journal is opened with its listener, and a
    partition is built with its open journal. This stands between the two, so that neither exists in a state in which it
    lacks the other.

    `to` says where they go. It is called once, before anything is asked of the journal: a journal that was asked for
    nothing has nothing to report.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._feed: Callable[[Event], None]
        self._close: Callable[[str], None]

    def to(self, feed: Callable[[Event], None], close: Callable[[str], None]) -> None:
        """`close`: what is to be done with the replica if its journal was altered."""
        self._feed, self._close = feed, close

    def flushed(self, index: int, leader_epoch: int) -> None:
        self._feed(Flushed(index, leader_epoch))

    def refused(self, first_index: int, reason: str) -> None:
        log.warning("%s: the disk took nothing from entry %d on: %s", self._name, first_index, reason)
        self._feed(DiskRefused(first_index, reason))

    def replaced(self, log_id: str, reason: str) -> None:
        log.warning("%s: the log is another now, %s: %s", self._name, log_id, reason)
        ALARMS.add("log_replaced")
        self._feed(LogReplaced(log_id, reason))

    def altered(self, reason: str) -> None:
        self._close(reason)


@dataclass(frozen=True, slots=True)
class Opened:
    """All that a partition is built of. `found`: the open journal, and what recovery said of it. `events`: that
    journal's listener. `index`: empty, or with what the journal's snapshot stands for."""

    found: OpenJournal
    events: JournalEvents
    index: OffsetIndex


class Observers:
    """Who is told of changes, in the order in which they began to observe. A `set` of functions has one that depends on
    their addresses: no run would be like another."""

    def __init__(self) -> None:
        self._observers: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        return len(self._observers)

    def __iter__(self) -> Iterator[Callable[[], None]]:
        return iter(self._observers)

    def add(self, observer: Callable[[], None]) -> None:
        """Behind the others, unless it is there."""
        self._observers[observer] = None

    def discard(self, observer: Callable[[], None]) -> None:
        """It need not be there."""
        self._observers.pop(observer, None)


class Partition:
    """Owns one replica of one partition and everything of it on this broker. It is built once its journal is open.

    `observers` are called, at the end of a turn, when something became readable or the role changed. `shorten_due`: the
    journal may begin later than it does (retention.py). `could_begin`: at which entry, as last looked, if nothing were
    staged before it. `held_by`: the group that retention waits for, if any. `rest` says when it is ticked seldom
    (quiescence.py).
    """

    def __init__(self, host: Host, topic: Topic, number: int, opened: Opened) -> None:
        found = opened.found
        self.topic = topic
        self.number = number
        self.name = f"{topic.spec.name}-{number}"
        self.observers = Observers()
        self.closed = False
        self.shorten_due = found.recovered.checkpoint is not None  # what is applied already says so no more
        self.could_begin = 0
        self.held_by = ""
        self.rest = Rest(IN_EARNEST)
        self._host = host
        self._place = Place(topic.spec.topic_id, number)
        self._waiting: dict[RequestId, _Waiting] = {}
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._touched = False
        self._woke_ms = 0  # when its last rest ended
        self._changed = False
        self._led = self._taken_up = False
        self._reading_node = False
        self._next_sweep_ms = 0
        self._shortened_ms = -(1 << 40)
        self._handed_over: asyncio.Future[int] | None = None
        self._ended: TritonMQError = OutcomeUnknown(f"{self.name} is closed: ask again")
        self.journal: Journal = found.journal
        self.index = opened.index
        self.peers = PeerMessages(
            self._place,
            host.links,
            found.journal,
            self.feed,
            host.spawn,
            lambda message: judge(self.replica, message),
            host.arriving,
            lambda: bytes_max(self.topic.settings.dedup_uuids_max),
        )
        self._settings = replica_settings(topic, number)
        self.replica = Replica(
            topic.spec.name,
            number,
            Identity(host.broker, host.incarnation, found.journal.log_id, found.recovery),
            self._settings,
            found.recovered,
            host.now_ms(),
        )
        opened.events.to(self.feed, lambda reason: host.stay_closed(self, reason))

    # ------------------------------------------------------------------ what it knows

    @property
    def serving(self) -> bool:
        """It leads, and the end of its log is known (rule 3)."""
        return self.replica.leading and self.replica.ready and not self.closed

    @property
    def leading(self) -> bool:
        return self.replica.leading

    @property
    def knows_committed(self) -> bool:
        """Whether some entry of the journal is known here to be committed. After a restart none is (rule 2), and the
        end that this replica knows would pass for the end of the log."""
        return not self.closed and self.replica.applied_index >= self.replica.first_index

    @property
    def at_rest(self) -> bool:
        """Ticks may be few: nobody waits for it, and the core has nothing under way."""
        return not self._waiting and self.replica.at_rest

    @property
    def unheard_ms(self) -> dict[int, int]:
        """While it leads: for how long nothing has been heard of each replica that is not in sync. At rest the
        heartbeats of its broker stood for it, up to when this partition woke."""
        now_ms, beats = self._host.now_ms(), self._host.contacts.last_beat_ms
        return {
            broker: max(0, now_ms - max(heard_ms, min(self._woke_ms, beats(broker))))
            for broker, heard_ms in self.replica.last_heard_ms.items()
        }

    @property
    def led_by(self) -> tuple[int, int]:
        return self.replica.leader, self.replica.leader_epoch

    @property
    def contact_ms(self) -> int | None:
        return self._host.contacts.since(self.replica.leader)

    @property
    def next_offset(self) -> int:
        """The log_end_offset of what this replica knows to be committed."""
        return self.replica.machine.next_offset

    def read(
        self, start: int, end: int, bytes_max: int, unsealed: Unsealed = NOTHING_UNSEALED
    ) -> list[tuple[Published, memoryview]]:
        """The stored batches that hold the committed offsets `start .. end - 1`, whole, each with its payload: the
        first one, then as many as fit, at most `READ_BATCHES_MAX`. `unsealed`: what was opened for this read, if
        anything was. Raises `OffsetOutOfRange` below the log's start, `StorageFailed` for damage.
        """
        batches = self.index.range(start, end, bytes_max, READ_BATCHES_MAX)
        gone = [batch for batch in batches if batch.index < self.journal.first_index]
        if gone:  # after a restart, until the entry that says so is committed anew
            next_offset = gone[-1].base_offset + gone[-1].record_count
            raise OffsetOutOfRange(
                f"offset {start} of {self.name} was dropped by retention: read on at {next_offset}", next_offset
            )
        return [(batch, self.journal.payload(batch.index, unsealed)) for batch in batches]

    def lag(self, offset: int) -> tuple[int, int]:
        """How far a reader at `offset` is behind: stored bytes, and microseconds since the oldest record that it has
        not read."""
        start = self.index.kept_from(offset)
        if start >= self.next_offset:
            return 0, 0
        behind_us = time.time_ns() // 1000 - self.index.find(start).timestamp_us
        return self.index.bytes_between(start, self.next_offset), max(0, behind_us)

    def offsets(self) -> pb.PartitionOffsets:
        """Its ends. For a serving leader: elsewhere `log_end_offset` is a lower bound only."""
        return pb.PartitionOffsets(
            partition=self.number,
            log_start_offset=self.index.log_start_offset,
            log_end_offset=self.next_offset,
            leader_epoch=self.replica.leader_epoch,
            bytes=self.index.bytes_total,
            scheduled=len(self.replica.machine.due_times),
            next_due_us=self.replica.machine.due_times.next_us() or 0,
            held_by=self.held_by,
        )

    def not_leader(self) -> NotLeader:
        """The error for a request that only a serving leader answers."""
        leader = self.replica.leader
        if leader == self._host.broker:
            text = f"broker {leader} is taking up the leadership of {self.name}: ask again"
        elif leader:
            text = f"{self.name} is led by broker {leader}: ask there"
        else:
            text = f"{self.name} has no leader at the moment: ask again"
        return NotLeader(text, leader, self.replica.leader_epoch)

    # ------------------------------------------------------------------ requests

    def propose(
        self,
        operation: Operation | AreStaged,
        on_reply: OnReply,
        deadline: float,
        *,
        uuid: bytes = NO_UUID,
        record_count: int = 0,
        payload: Buffer = b"",
        decoded_bytes: int = 0,
        after: bytes = b"",
        wait: Wait = Wait.COMMITTED,
        keep_on_mismatch: bool = False,
        scheduled_max: int = SCHEDULED_MAX,
        room: Room | None = None,
        for_anybody: bool = False,
    ) -> None:
        """Ask the core. `on_reply` is called exactly once, on the loop, perhaps before this returns; past `deadline`
        (loop's clock) with `OutcomeUnknown`.
        """
        if (error := self._not_open(operation)) is not None:  # nobody would tick it any more
            on_reply(Refused(error))
            return
        request = next(_request_ids)
        self._waiting[request] = _Waiting(on_reply, deadline)
        self.feed(
            Propose(
                request,
                operation,
                time.time_ns() // 1000,
                uuid,
                record_count,
                len(payload),
                decoded_bytes,
                after,
                wait,
                keep_on_mismatch,
                scheduled_max,
                room,
                for_anybody,
                payload,
            )
        )

    def why_not(self, operation: Operation) -> TritonMQError | None:
        """What this would be refused with now, whatever it is about; None if it would be written at once, as the entry
        after the replica's last one, unless it is wrong itself."""
        return self._not_open(operation) or self.replica.why_not()

    def _not_open(self, operation: Operation | AreStaged) -> TritonMQError | None:
        needed = level_of(operation)
        if self.closed:
            return self._ended
        return _not_yet(type(operation).__name__, needed, self._host.level) if needed > self._host.level else None

    async def ask(
        self,
        operation: Operation | AreStaged,
        deadline: float,
        *,
        keep_on_mismatch: bool = False,
        for_anybody: bool = False,
    ) -> Done | Decided:
        """As `propose`, for an operation without a payload. Raises the `TritonMQError` it was refused with."""
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def on_reply(result: Result) -> None:
            if not answered.done():
                answered.set_result(result)

        self.propose(operation, on_reply, deadline, keep_on_mismatch=keep_on_mismatch, for_anybody=for_anybody)
        result = await answered
        if isinstance(result, Refused):
            raise result.error
        assert not isinstance(result, RecordsThere), "only a batch has records"
        return result

    def _answer(self, request: RequestId, result: Result) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            waiting.on_reply(result)

    def _end_waiting(self, error: TritonMQError) -> None:
        for request in list(self._waiting):
            self._answer(request, Refused(error))

    # ------------------------------------------------------------------ events in

    def feed(self, event: Event) -> None:
        """One step of the core, and what it asks for. Called while a step is being carried out, it waits its turn."""
        if self.closed:
            return
        if not self._touched:
            self._touched = True
            self._host.touch(self)
        if isinstance(event, AppendAck) and self.rest.spoken_to(event, self):
            self.wake(self._host.now_ms())
        asleep = self.rest.asleep
        for told in self.rest.told(event, self._host.now_ms()):
            self._step(told)
        if asleep and not self.rest.asleep:
            self._woke_ms = self._host.now_ms()
            self._host.ticking.woke(self)

    def speak(self) -> None:
        """Wake the partition's other replicas, which may be at rest and count on this one: it leads no more, or it has
        another log than before. An acknowledgement of nothing says so; those who are not at rest have no use for it."""
        me, epoch = self.replica.identity, max(self.replica.leader_epoch, 1)
        for broker in self.replica.replicas:
            if broker != me.broker:
                self.peers.send(broker, AppendAck(me.broker, me.incarnation, me.log_id, epoch, 0, 0, 0))

    def wake(self, now_ms: int) -> None:
        if self.rest.asleep:
            self._woke_ms = now_ms
        self._step(self.rest.wake(now_ms))
        self._host.ticking.woke(self)

    def end_turn(self, now_ms: int) -> None:
        """Everything that is ready now has been fed: what was gathered goes out."""
        if self.closed:
            return
        self._touched = False
        self._step(self.rest.turn_ended(now_ms))
        if not self.rest.asleep:
            if self.rest.settled(self, now_ms):
                self._host.ticking.slept(self)
        elif not self.at_rest:  # a heartbeat, its answer or the node brought something new
            self.wake(now_ms)
        if self._changed:
            self._changed = False
            for observer in list(self.observers):
                observer()

    def tick(self, now_ms: int, now: float) -> None:
        """Time passes: `now_ms` of the monotonic clock, `now` of the loop's."""
        self.feed(Tick(now_ms))
        if self._waiting and now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + _SWEEP_MS
            for request in [request for request, waiting in self._waiting.items() if waiting.deadline <= now]:
                error = OutcomeUnknown(f"{self.name} did not commit this in time: ask again with the same UUID")
                self._answer(request, Refused(error))

    def _step(self, event: Event) -> None:
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox:
                event = self._inbox.popleft()
                for effect in self.replica.step(event):
                    self._carry_out(effect)
        except Exception as error:  # a broken invariant: a broker that stops is safer than one that goes on
            log.exception("%s: a step failed on %s", self.name, type(event).__name__)
            self._host.fail(error)
        finally:
            self._stepping = False

    # ------------------------------------------------------------------ effects out

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case WriteEntries(entries, bodies):
                self.journal.append([self._frame(entry, body) for entry, body in zip(entries, bodies, strict=True)])
            case Reply(request, result):
                self._answer(request, result)
            case Published() | Trimmed() | OffsetsSkipped():
                self._index(effect)
            case Send() | ReadNode() | WriteNode():
                self._go_out(effect)
            case Truncate(last_index):
                self.journal.truncate(last_index)
            case RoleChanged(leading=leading, ready=ready):
                self._changed = True
                if self._led and not leading:
                    self.speak()
                count_role(self._led, effect)
                self._led, self._taken_up = leading, ready
                self._host.role_changed(self)
            case DecisionCommitted(decision):
                assert isinstance(decision, Decide)
                self._host.decision_committed(self, decision)
            case Reopen() | Install() | StartOver() | RecoveryAdopted():
                self._begin_anew(effect)
            case HandedOver(successor):
                if self._handed_over is not None and not self._handed_over.done():
                    self._handed_over.set_result(successor)
            case Audit(text, alarm):
                log.log(logging.WARNING if alarm else logging.INFO, "%s", text)
                ALARMS.add("audit", n=alarm)
            case _:
                assert_never(effect)

    def _index(self, effect: Published | Trimmed | OffsetsSkipped) -> None:
        """What readers see has changed."""
        self._changed = True
        match effect:
            case Published():
                self.index.append(effect)
                start = self.replica.epoch_start
                count_published(self.topic.spec.name, start, effect, taken_up=self._taken_up)
            case Trimmed(log_start_offset):
                self.index.trim(log_start_offset)
                self.shorten_due = True
            case OffsetsSkipped(first, next_offset):
                self.index.skip(first, next_offset)

    def _begin_anew(self, effect: Reopen | Install | StartOver | RecoveryAdopted) -> None:
        """The log is another from here on, or goes on as another."""
        match effect:
            case Reopen(reason):
                self._host.reopen(self, reason)
            case Install(snapshot, recovery):
                self._host.install(self, snapshot, recovery)
            case StartOver(recovery):
                self._host.start_over(self, recovery)
            case RecoveryAdopted(recovery):
                self._host.spawn(self.journal.adopt(recovery), f"remember that {self.name} was recovered")

    def _go_out(self, effect: Send | ReadNode | WriteNode) -> None:
        """To other brokers, to the coordination service."""
        match effect:
            case Send(to, message):
                self.peers.send(to, message)
            case ReadNode():
                if not self._reading_node:
                    self._reading_node = True
                    self._host.spawn(self._read_node(), f"read the node of {self.name}")
            case WriteNode():
                self._host.write_node(self._write_node(effect), f"write the node of {self.name}")

    def _frame(self, entry: Entry, body: object) -> Frame:
        """As it came from a leader, or made of what came from a client, if it has a payload."""
        if isinstance(body, Frame):
            return body
        return encode(self._place, entry, (cast(Buffer, body),) if entry.payload_bytes else ())

    async def _read_node(self) -> None:
        try:
            found = await self._host.coordination.read_state(self.topic.spec.topic_id, self.number)
        except CoordinationUnavailable as error:  # the core asks again
            log.debug("%s: the node cannot be read: %s", self.name, error)
            return
        finally:
            self._reading_node = False
        version, state = found if found is not None else (-1, None)
        self.feed(NodeRead(version, state))

    async def _write_node(self, effect: WriteNode) -> None:
        state = effect.state
        outcome, version = await self._host.coordination.write_state(
            self.topic.spec.topic_id, self.number, effect.expected_version, state
        )
        count_in_sync(self.replica.isr, state, outcome)
        self.feed(CasAnswer(state.token, outcome, version))

    # ------------------------------------------------------------------ what changes while it is open

    def topic_changed(self, topic: Topic) -> None:
        """The topic's settings, or the brokers that this partition is assigned to, are others now."""
        before, self.topic = self.topic, topic
        now = ReplicasChanged(topic.spec.assignment[self.number], topic.settings.min_insync_replicas)
        if now != ReplicasChanged(before.spec.assignment[self.number], before.settings.min_insync_replicas):
            self.feed(now)

    def look(self) -> None:
        """Read the state node soon, for others may have changed it: a replica at rest reads it hardly ever."""
        if not self.closed:
            self._go_out(ReadNode())

    def transfer(self, to: int, deadline_ms: int) -> None:
        """Let broker `to` lead as soon as it has everything; this one leads on if that cannot be by the deadline
        (monotonic)."""
        self.feed(TransferLeadership(to, deadline_ms))

    async def shorten(self) -> None:
        """Drop the entries that nothing needs any more, as far as whole segments go (rule 13)."""
        if self.closed:
            return
        staged = self.replica.machine.oldest_staged_index()
        readable = self.index.oldest_index(self.index.log_start_offset)
        needed = self.replica.applied_index + 1
        needed = self.could_begin = needed if readable is None else min(needed, readable)
        first_index = needed if staged is None else min(needed, staged)
        self.shorten_due = first_index == staged  # more may go once that batch is decided
        begins = self.journal.first_index
        try:
            if first_index > begins and self._followed():
                self.shorten_due = True
            elif first_index > begins:
                self._shortened_ms = self._host.now_ms()
                begins = await self.journal.shorten_to(first_index, self._settings.window)
        except StorageFailed:  # on a full disk this is what makes room: there may be some for it later
            asyncio.get_running_loop().call_later(SHORTEN_AGAIN_S, self._shorten_again)
            raise
        if not self.closed and begins > self.replica.first_index:  # perhaps by a turn before, which was not waited for
            log.info("%s: the journal begins at entry %d now", self.name, begins)
            self.feed(JournalBegins(begins))

    def _followed(self) -> bool:
        """Whether the journal must stay as it is for now, since somebody who lacks what went before follows from its
        beginning."""
        if not self.replica.leading or self._host.now_ms() - self._shortened_ms >= FOLLOW_S * 1000:
            return False
        members = self.topic.spec.assignment[self.number]
        return any(self._host.is_live(member) for member in members if member not in self.replica.isr)

    def _shorten_again(self) -> None:
        self.shorten_due = True

    # ------------------------------------------------------------------ the end

    async def hand_over(self, deadline_ms: int) -> int:
        """Stand back from leadership, waiting for a successor to have everything. Returns the successor, 0 if there is
        none."""
        self._handed_over = asyncio.get_running_loop().create_future()
        self.feed(HandOver(deadline_ms))
        return await self._handed_over

    async def close(self, error: TritonMQError) -> None:
        """What waits ends with `error`; the journal is flushed and closed."""
        if self.closed:
            return
        self._ended = error
        self._end_waiting(error)
        self.closed = True
        for observer in list(self.observers):
            observer()
        await self.journal.close()
        self.index.close()


def _not_yet(operation: str, needed: int, level: int) -> IncompatibleVersion:
    return IncompatibleVersion(
        f"{operation} needs level {needed} of the cluster's features, and the cluster is at level {level}: once every "
        "broker runs a release that knows it, raise the level with `tritonmq cluster upgrade`"
    )


def replica_settings(topic: Topic, number: int) -> ReplicaSettings:
    """What the core is told of a topic when a replica of it is opened."""
    settings = topic.settings
    return ReplicaSettings(
        replicas=topic.spec.assignment[number],
        min_insync_replicas=settings.min_insync_replicas,
        dedup_uuids_max=settings.dedup_uuids_max,
        dedup_ms=settings.dedup_ms,
        volatile=topic.volatile,
        begins_empty=settings.on_total_loss is OnTotalLoss.RECOVER,
    )


def count_published(topic: str, epoch_start: int, effect: Published, *, taken_up: bool) -> None:
    """Count what became readable under this broker's leadership, and nothing else: what it learns as a follower others
    count, and a former leader may have counted what is before `epoch_start` (0: it does not lead). What was staged or
    scheduled before that is counted if it is published once the leadership is `taken_up`."""
    if epoch_start and (effect.index > epoch_start or taken_up):
        TOPIC_RECORDS_IN.add(topic, n=effect.record_count)
        TOPIC_BYTES_IN.add(topic, n=effect.payload_bytes)


def count_role(led: bool, effect: RoleChanged) -> None:
    """`led`: before."""
    if effect.leading != led:
        LEADERSHIPS.add("taken" if effect.leading else "lost")


def count_in_sync(before: tuple[int, ...], state: NodeState, outcome: CasOutcome) -> None:
    """`before`: the brokers in sync until this was written."""
    now = {broker for broker, _ in state.isr}
    if outcome is CasOutcome.DONE and len(now) != len(before):
        ISR_CHANGES.add("shrunk" if len(now) < len(before) else "expanded")
