"""The shell: one asyncio loop that feeds events to the replicas of a broker and carries out what they ask.

A *turn* is one round of the loop. Events are stepped as they come; when all that were ready have been, `TurnEnded` goes
to each replica touched, so that entries, acknowledgements and answers that are ready together leave together.

Here is what partitions share: the turn, the ticks, background tasks, links, coordination. What clients ask for is
elsewhere (produce, fetch, delivery, admin, transactions).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, Final

from mq_broker.broker.host.arriving import ArrivingSnapshots
from mq_broker.broker.host.checkpoints import leave
from mq_broker.broker.host.contacts import BEAT_PATIENCE_MS, Contacts
from mq_broker.broker.host.partition import JournalEvents, Opened, Partition
from mq_broker.broker.host.peer_messages import EarlyEntries
from mq_broker.broker.host.quiescence import Ticking
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.entries import Decide
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import BrokersSeen, Event, LeaderName, PeerConnected, PeerDisconnected, SessionLost
from mq_broker.measured import ALARMS
from mq_broker.rpc.wire.links import Hearer, Links
from mq_broker.storage.codec.frame import Place
from mq_broker.storage.interface import JournalListener, OpenJournal
from mq_broker.storage.journal.memory import open_memory_journal
from mq_broker.storage.journal.writer import Writer
from mq_broker.storage.offset_index import OffsetIndex
from mq_broker.storage.opening.directory import DataDirectory
from mq_broker.storage.sealed import Altered, SealedAway
from mq_protocol.errors import (
    CoordinationUnavailable,
    IncompatibleVersion,
    InvalidSetting,
    NotLeader,
    StorageFailed,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.versions import FIRST

log = logging.getLogger(__name__)

OPENINGS_AT_ONCE: Final = 8
REOPEN_S: Final = 5.0
STAND_BACK_S: Final = 5.0
RELEASE_POLL_S: Final = 0.3
"""How often a replica that was moved away asks whether the in-sync set still names it."""


class Shell:
    """Owns the partitions of this broker and the loop's turn. Is the links' listener."""

    def __init__(
        self,
        broker: int,
        incarnation: int,
        coordination: CoordinationService,
        directory: DataDirectory,
        writer: Writer,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.broker = broker
        self.level = FIRST  # of features, of the cluster
        self.incarnation = incarnation
        self.coordination = coordination
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_role: list[Callable[[Partition], None]] = []
        self.on_decision: list[Callable[[Partition, Decide], None]] = []
        self.links: Links
        self.arriving = ArrivingSnapshots()
        self.early = EarlyEntries(self.now_ms)
        self.contacts = Contacts(self.now_ms())
        self.ticking = Ticking()
        self._directory = directory
        self._writer = writer
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._live: tuple[LeaderName, ...] = ()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._in_order: list[Partition] | None = None  # the same, sorted; None if they have changed since
        self._wanted: dict[str, Topic] = {}
        self._sealed_away: dict[tuple[str, int], SealedAway] = {}  # why partitions do not open, as it was told
        self._settling: dict[tuple[str, int], asyncio.Task[None]] = {}
        # Journals in memory that are to begin anew
        self._begin_with: dict[tuple[str, int], tuple[Snapshot | None, int]] = {}
        self._openings = asyncio.Semaphore(OPENINGS_AT_ONCE)
        self._touched: list[Partition] = []
        self._work: set[asyncio.Task[None]] = set()
        self._node_writes: set[asyncio.Task[None]] = set()
        self._stopping = False

    # ------------------------------------------------------------------ what partitions ask

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def is_live(self, broker: int) -> bool:
        """Whether it is registered, as last read."""
        return any(name.broker == broker for name in self._live)

    def touch(self, partition: Partition) -> None:
        """The partition has been fed: it is told when the turn ends."""
        if not self._touched:
            self._loop.call_soon(self._end_turn)
        self._touched.append(partition)

    def _end_turn(self) -> None:
        self._writer.tell()  # what was written at once is acknowledged in this turn
        touched, self._touched = self._touched, []
        now_ms = self.now_ms()
        self.links.turn_begins()
        try:
            for partition in touched:
                partition.end_turn(now_ms)
        finally:
            self.links.turn_ends()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of this broker's: it ends with the broker, and if it fails the broker does."""
        task = self._tasks.create_task(self._guarded(work, name), name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step it would never have been begun
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except (IncompatibleVersion, InvalidSetting) as error:  # no fault of this broker: the error says what to do
            log.error("this broker stops: %s", error)  # noqa: TRY400 - a traceback would hide that
            self.fail(error)
        except Exception as error:
            log.exception("%s failed", name)
            self.fail(error)

    def write_node(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """As `spawn`, for a write to the coordination service: a clean stop waits for those."""
        task = self.spawn(work, name)
        self._node_writes.add(task)
        task.add_done_callback(self._node_writes.discard)

    def gauges(self) -> dict[str, float]:
        """What waits for the disk, is kept in memory and stays closed, by the names of metrics."""
        altered = sum(isinstance(error, Altered) for error in self._sealed_away.values())
        return {
            **self._writer.gauges(),
            "partitions_without_key": len(self._sealed_away) - altered,
            "partitions_altered": altered,
        }

    async def check_key(self, name: str) -> None:
        """Raises `InvalidSetting` if this broker knows that it has no key called so."""
        await asyncio.to_thread(self._directory.check_key, name)

    async def disk_room(self) -> None:
        """Returns once the disk keeps up: until then producers must wait."""
        await self._writer.room()

    def fail(self, error: Exception) -> None:
        """Something that must never happen did: the broker stops, and its replicas elsewhere take over."""
        if not self.failure.done():
            self.failure.set_exception(error)

    def role_changed(self, partition: Partition) -> None:
        for listener in self.on_role:
            listener(partition)

    def decision_committed(self, partition: Partition, decision: Decide) -> None:
        for listener in self.on_decision:
            listener(partition, decision)

    # ------------------------------------------------------------------ what services ask

    def partitions(self) -> list[Partition]:
        """Every open replica, in order of topic and number. The list is not changed afterwards."""
        if self._in_order is None:
            self._in_order = sorted(self._partitions.values(), key=lambda each: (each.topic.spec.name, each.number))
        return self._in_order

    def assigned(self) -> Iterator[tuple[Topic, int]]:
        """Topic and number of every replica that is to be here, open or not."""
        for topic in list(self._wanted.values()):
            for number, brokers in enumerate(topic.spec.assignment):
                if self.broker in brokers:
                    yield topic, number

    def why_closed(self, topic: Topic, number: int) -> SealedAway | None:
        """Why a replica does not open. None: it is open, or on its way."""
        return self._sealed_away.get((topic.spec.topic_id, number))

    def partitions_of(self, topic_ids: Collection[str] | None) -> list[Partition]:
        """Those of these topics; None: every one. To be asked at each change of a topic, among thousands."""
        if topic_ids is None:
            return self.partitions()
        topics = [self._wanted[topic_id] for topic_id in sorted(topic_ids) if topic_id in self._wanted]
        here = (self.hosted(topic, number) for topic in topics for number in range(topic.partitions))
        return [partition for partition in here if partition is not None]

    def hosted(self, topic: Topic, number: int) -> Partition | None:
        """This broker's replica, if it has one and it is open."""
        return self._partitions.get((topic.spec.topic_id, number))

    def partition(self, topic: Topic, number: int) -> Partition:
        """As `hosted`. Raises `UnknownPartition`, or `NotLeader` when there is no open replica of it here."""
        found = self._partitions.get((topic.spec.topic_id, number))
        if found is not None:
            return found
        if not 0 <= number < topic.partitions:
            raise UnknownPartition(f"topic {topic.spec.name} has partitions 0 to {topic.partitions - 1}, not {number}")
        if self.why_closed(topic, number) is not None:
            raise NotLeader(
                f"broker {self.broker} keeps its replica of {topic.spec.name}-{number} closed: its key is missing or "
                "wrong there, or it was altered on the disk"
            )
        if self.broker in topic.spec.assignment[number]:
            raise NotLeader(f"broker {self.broker} is opening its replica of {topic.spec.name}-{number}: ask again")
        raise NotLeader(
            f"broker {self.broker} holds no replica of {topic.spec.name}-{number}: ask for its metadata, then its "
            "leader"
        )

    def leader(self, topic: Topic, number: int) -> Partition:
        """The replica, if it leads and knows the end of its log. Raises `NotLeader`, naming who does."""
        found = self.partition(topic, number)
        if not found.serving:
            raise found.not_leader()
        return found

    # ------------------------------------------------------------------ events for many

    def _feed_all(self, event: Event) -> None:
        for partition in list(self._partitions.values()):
            partition.feed(event)

    def brokers_seen(self, live: Sequence[LeaderName]) -> None:
        """The list was read, which happens now and then without a change as well: that wakes no replica."""
        if tuple(live) != self._live:
            self._live = tuple(live)
            self._feed_all(BrokersSeen(self._live))

    def session_lost(self) -> None:
        self._live = tuple(name for name in self._live if name.broker != self.broker)
        self._feed_all(SessionLost())

    def link_up(self, broker: int) -> None:
        self._feed_all(PeerConnected(broker))

    def link_down(self, broker: int) -> None:
        self.arriving.forget(broker)
        self.early.forget(broker)
        self.contacts.ended(broker)
        self._feed_all(PeerDisconnected(broker))

    def link_beat(self, broker: int, *, dropped: bool) -> None:
        now_ms = self.now_ms()
        self.contacts.beat(broker, now_ms, dropped=dropped)
        if dropped:
            for partition in list(self._partitions.values()):
                if partition.rest.asleep and partition.replica.leader == broker:
                    partition.wake(now_ms)

    def link_dropped(self, broker: int) -> None:
        """What was in flight may be lost, as when a link is new. Replicas that are awake send again what is not
        acknowledged."""
        for partition in list(self._partitions.values()):
            if partition.rest.asleep:
                partition.feed(PeerConnected(broker))

    def end_silent_links(self) -> None:
        """Make links anew whose other end has fallen silent."""
        for broker in self.contacts.silent(self.now_ms()):
            log.warning(
                "broker %d has not been heard of for %g s: its link is made anew", broker, BEAT_PATIENCE_MS / 1000
            )
            self.links.end(broker)

    def hearer(self, topic_id: str, partition: int) -> Hearer:
        found = self._partitions.get((topic_id, partition))
        return found.peers if found is not None else self.early

    # ------------------------------------------------------------------ which partitions are here

    def follow_topics(self, topics: dict[str, Topic], changed: Collection[str] | None = None) -> None:
        """Open what is assigned to this broker, close what is gone, tell what has changed. Returns at once. `changed`:
        the ids of the topics to look at; None is all."""
        self._wanted = topics
        ids = topics.keys() if changed is None else topics.keys() & set(changed)
        keys = {(topic_id, number) for topic_id in ids for number in range(topics[topic_id].partitions)}
        if changed is None or len(ids) < len(changed):
            keys |= {key for key in self._partitions if key[0] not in topics}
        for key in sorted(keys):
            topic, present = topics.get(key[0]), self._partitions.get(key)
            if topic is not None and present is not None and topic is not present.topic:
                present.topic_changed(topic)
            wanted = topic is not None and self.broker in topic.spec.assignment[key[1]]
            if wanted != (present is not None):
                self._settle(key)

    def _settle(self, key: tuple[str, int]) -> None:
        if key not in self._settling and not self._stopping:
            self._settling[key] = self.spawn(self._settle_one(key), f"settle partition {key[1]} of {key[0]}")

    async def _settle_one(self, key: tuple[str, int]) -> None:
        """Open or close one partition until it is as wanted: one task a partition, so that the two never meet."""
        topic_id, number = key
        me = asyncio.current_task()
        told = ""
        try:
            # Else its log is begun anew, and that task goes on
            while not self._stopping and self._settling.get(key) is me:
                topic = self._wanted.get(topic_id)
                assigned = topic.spec.assignment if topic is not None else ()  # of fewer partitions, in an older state
                wanted = number < len(assigned) and self.broker in assigned[number]
                present = self._partitions.get(key)
                if wanted and present is None:
                    assert topic is not None
                    try:
                        async with self._openings:
                            await self._open(topic, number)
                        self._sealed_away.pop(key, None)
                    except SealedAway as error:
                        self._stays_closed(key, topic, error)
                        return
                    except StorageFailed as error:
                        name = f"partition {number} of {topic.spec.name}"
                        told = await _again_later(f"{name} cannot be opened; trying again: {error}", told)
                elif present is not None and not wanted:
                    if topic is not None and not await self._released(present):
                        await asyncio.sleep(RELEASE_POLL_S)
                        continue
                    if self._wanted.get(topic_id) is not topic or self._partitions.get(key) is not present:
                        continue  # while the node was read: it may be wanted here again
                    del self._partitions[key]
                    self._in_order = None
                    gone = "was deleted" if topic is None else f"has partition {number} on other brokers now"
                    await present.close(UnknownTopic(f"topic {present.topic.spec.name!r} {gone}"))
                    # Closed, it joins no set any more: what the node says from here on stays true.
                    if topic is not None and not await self._released(present):
                        log.warning(
                            "%s: the in-sync set names this replica again, or may: its data is kept", present.name
                        )
                        continue
                    await self._delete(present)
                else:
                    self._begin_with.pop(key, None)  # not wanted here any more: nothing begins with it
                    self._sealed_away.pop(key, None)
                    if present is not None and topic is not None and topic is not present.topic:
                        present.topic_changed(topic)  # while it was being opened
                    return
        finally:
            if self._settling.get(key) is me:
                del self._settling[key]

    def _stays_closed(self, key: tuple[str, int], topic: Topic, error: SealedAway) -> None:
        """It is sealed and does not open. It is tried again and again, and told once for each reason. Nobody waits for
        it, the start of this broker included."""
        self._loop.call_later(REOPEN_S, self._settle, key)
        if str(self._sealed_away.get(key)) != str(error):
            self._sealed_away[key] = error.with_traceback(None)  # which would keep the frames, and what they hold
            ALARMS.add("sealed_away")
            log.error("partition %d of %s stays closed: %s", key[1], topic.spec.name, error)

    async def _released(self, partition: Partition) -> bool:
        """Whether a replica that was moved away is needed no more: the node neither names its log nor this broker as
        leader."""
        if partition.replica.leading:
            return False
        try:
            found = await self.coordination.read_state(partition.topic.spec.topic_id, partition.number)
        except CoordinationUnavailable as error:
            log.debug("%s: is it needed here still? %s", partition.name, error)
            return False
        if found is None:
            return False  # missing metadata is not an order to delete (trap 18)
        state = found[1]
        if state.leader_epoch < partition.replica.leader_epoch:
            return False  # older than what was seen here: it may name those who were in sync once
        led_here = state.leader is not None and state.leader.broker == self.broker
        return not led_here and all(broker != self.broker for broker, _ in state.isr)

    async def _delete(self, partition: Partition) -> None:
        """Remove what a deleted topic held, or a replica that was moved away. A cluster that is another now did neither
        (trap 18)."""
        place = Place(partition.topic.spec.topic_id, partition.number)
        try:
            if await self.coordination.cluster_id() != self._directory.cluster_id:
                log.error("%s: the coordination service holds another cluster now; its data is kept", partition.name)
                return
            await asyncio.to_thread(self._directory.delete_partition, place)
            log.info("%s: deleted", partition.name)
        except (CoordinationUnavailable, StorageFailed) as error:
            log.warning("%s: its data stays in %s: %s", partition.name, self._directory.partition_path(place), error)

    async def _open(self, topic: Topic, number: int) -> None:
        """Open a replica's log, and build the partition of what was found. Until then nobody finds it here."""
        place = Place(topic.spec.topic_id, number)
        events = JournalEvents(f"{topic.spec.name}-{number}")
        found, index = await self._open_journal(topic, place, events)
        if self._stopping:
            await found.journal.close()
            index.close()
            return
        partition = Partition(self, topic, number, Opened(found, events, index))
        self._partitions[topic.spec.topic_id, number] = partition
        self._in_order = None
        self.ticking.add(partition)
        partition.feed(BrokersSeen(self._live))
        for broker in self.links.connected():
            partition.feed(PeerConnected(broker))
        self.early.tell(topic.spec.topic_id, number, partition.peers, self.links.refuse)

    async def _open_journal(
        self, topic: Topic, place: Place, listener: JournalListener
    ) -> tuple[OpenJournal, OffsetIndex]:
        """In a thread, for it reads the log, or what a checkpoint does not have of it, and copies the index of that."""
        snapshot, recovery = self._begin_with.pop((place.topic_id, place.partition), (None, 0))
        durability = topic.settings.durability.value

        def opened() -> tuple[OpenJournal, OffsetIndex]:
            if topic.volatile:
                found = open_memory_journal(listener, place, snapshot=snapshot, recovery=recovery)
            else:
                found = self._directory.open_journal(
                    place,
                    durability,
                    topic.settings.segment_bytes_max,
                    listener,
                    self._writer,
                    topic=topic.spec.name,
                    key=topic.settings.encryption_key,
                )
            base = found.recovered.snapshot
            next_offset = base.state.next_offset if base is not None else 0
            return found, self._directory.open_index(place, durability, next_offset=next_offset, frozen=found.offsets)

        return await asyncio.to_thread(opened)

    def reopen(
        self,
        partition: Partition,
        reason: str,
        prepare: Callable[[], object] = lambda: None,
        begin_with: tuple[Snapshot | None, int] | None = None,
    ) -> None:
        """The partition's log is another now: read it from disk again and begin a new replica. `prepare` is what is to
        be done to the closed journal before, in a thread; `begin_with` what one in memory begins with."""
        key = (partition.topic.spec.topic_id, partition.number)
        if self._partitions.get(key) is not partition or self._stopping:
            return  # it is being closed already
        del self._partitions[key]
        self._in_order = None
        if begin_with is not None:
            self._begin_with[key] = begin_with

        async def reopen() -> None:
            await partition.close(NotLeader(f"{partition.name}: its log is read again ({reason}); ask again"))
            told = ""
            while not self._stopping:
                try:
                    await asyncio.to_thread(prepare)
                    break
                except StorageFailed as error:
                    told = await _again_later(f"{partition.name} cannot begin anew; trying again: {error}", told)
            await self._settle_one(key)
            begun = self._partitions.get(key)
            if begun is not None:
                begun.speak()

        self._settling[key] = self.spawn(reopen(), f"reopen {partition.name}")

    def stay_closed(self, partition: Partition, reason: str) -> None:
        """What was altered on the disk is found again when the journal is opened: until then another replica leads."""

        async def stand_back() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STAND_BACK_S):
                    await partition.hand_over(self.now_ms() + int(STAND_BACK_S * 1000))
            self.reopen(partition, reason)

        self.spawn(stand_back(), f"stand back from {partition.name}")

    def install(self, partition: Partition, snapshot: Snapshot, recovery: int) -> None:
        """The journal is to begin anew with that state: what it lacks is no longer to be had as entries (rule 13)."""
        self._begin_anew(
            partition,
            "it begins anew from its leader's state",
            lambda place, durability, name: self._directory.install(
                place, durability, name, snapshot, recovery, partition.topic.settings.encryption_key
            ),
            (snapshot, recovery),
        )

    def start_over(self, partition: Partition, recovery: int) -> None:
        """The partition goes on from another log: keep this one aside, and begin an empty one (rule 15)."""
        self._begin_anew(
            partition,
            "the partition was recovered from another log",
            lambda place, durability, name: self._directory.start_over(place, durability, name, recovery),
            (None, recovery),
        )

    def _begin_anew(
        self,
        partition: Partition,
        reason: str,
        on_disk: Callable[[Place, str, str], object],
        in_memory: tuple[Snapshot | None, int],
    ) -> None:
        spec, settings = partition.topic.spec, partition.topic.settings
        if partition.topic.volatile:
            self.reopen(partition, reason, begin_with=in_memory)
        else:
            place = Place(spec.topic_id, partition.number)
            self.reopen(partition, reason, lambda: on_disk(place, settings.durability.value, spec.name))

    # ------------------------------------------------------------------ the end

    async def wait_until_open(self, seconds: float) -> None:
        """Until everything assigned to this broker is open. What takes longer goes on by itself."""
        if self._settling:
            _, late = await asyncio.wait(set(self._settling.values()), timeout=seconds)
            if late:
                log.warning("%d partitions are not open yet after %g s; they will be", len(late), seconds)

    async def hand_over(self, seconds: float) -> None:
        """Stand back from everything that is led, each with a successor that has all of it if there is one."""
        self._stopping = True
        deadline_ms = self.now_ms() + int(seconds * 1000)
        try:
            async with asyncio.timeout(seconds + 1.0):  # followers answer at once, and claim nothing from now on
                await asyncio.gather(*(partition.hand_over(deadline_ms) for partition in self._partitions.values()))
                if self._node_writes:
                    await asyncio.wait(self._node_writes)
        except TimeoutError:
            log.warning("not every partition was handed over in %g s", seconds)

    def stop(self) -> None:
        """Open nothing any more; end all work in the background."""
        self._stopping = True
        for task in list(self._work):
            task.cancel()

    async def close(self, error: TritonMQError) -> None:
        """Close every journal, with checkpoints as far as there is time for them; what still waits ends with
        `error`."""
        self.stop()
        partitions = list(self._partitions.values())
        self._partitions.clear()
        self._in_order = None
        # What is applied may be wrong where something that must never happen did
        await leave(partitions, error, keeps=not self.failure.done())


async def _again_later(words: str, told: str) -> str:
    """Say why something has to be tried again, unless it was just told, and wait for that. Returns the words."""
    if words != told:
        log.error("%s", words)
    await asyncio.sleep(REOPEN_S)
    return words
