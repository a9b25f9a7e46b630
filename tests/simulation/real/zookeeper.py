"""A simulated coordination service, behind the product's interface: what ZooKeeper promises, and nothing more.

Writes are atomic and in one order; what one session asks is answered in that order. Answers are late, or lost before or
after the write happened, or the write happens long after the caller was told that nobody knows. A session ends once its
process has not answered for its time, and the process hears of it when it is connected again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, TypeVar

from mq_broker.coordination.interface import (
    BrokerRegistration,
    CoordinationEvent,
    Listener,
    LockPlace,
    NewTopic,
    SecurityDocuments,
    SecurityStore,
    TopicChanges,
    TopicSpec,
    refusal,
)
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    OutcomeUnknown,
    TopicExists,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.versions import LEVEL
from tests.simulation.real.loop import PROCESS, Process, VirtualLoop

T = TypeVar("T")

REQUEST_TIMEOUT_S = 4.0
LATE_S = (0.01, 10.0)
CHANGES_KEPT = 8
"""How far behind a reader of the list of topics may be and still be told only what changed."""


class _Lost(Exception):
    """No answer within the deadline."""


class ZooKeeper:
    """Owns what the service knows, and the sessions."""

    def __init__(self, loop: VirtualLoop, faults: Counter[str], session_s: float) -> None:
        self.loop = loop
        self.faults = faults
        self.session_s = session_s
        self.up = True
        self.cut_off: set[str] = set()
        self.lose = 0.0
        """How likely a request or its answer is lost."""
        self.latency_s = (0.0003, 0.01)
        self.cluster = "simulated"
        self.level = LEVEL
        self.secret = loop.random.randbytes(32)
        self.lives: Counter[int] = Counter()
        self.stamps: dict[int, int] = {}
        self.registered: dict[int, tuple[BrokerRegistration, Session]] = {}
        self.topics: dict[str, tuple[int, TopicSpec]] = {}
        self.states: dict[tuple[str, int], tuple[int, NodeState]] = {}
        self.restorations = 0
        self.older: dict[tuple[str, int], int] = {}
        """State nodes that were put back: the epoch that each had reached before. It says nothing up to that."""
        self.changes: list[str] = []
        self.documents = SecurityDocuments()
        self.sessions: list[Session] = []
        self.on_state: Callable[[str, int, int, NodeState], None] = lambda topic_id, partition, version, state: None
        self.on_topic: Callable[[TopicSpec, TopicSpec], None] = lambda before, after: None
        loop.call_later(0.1, self._look_at_sessions, context=Context())

    def reaches(self, process: Process) -> bool:
        return self.up and process.alive and process.name.partition("#")[0] not in self.cut_off

    def _look_at_sessions(self) -> None:
        now = self.loop.time()
        for session in [session for session in self.sessions if not session.expired]:
            if not self.up or (self.reaches(session.process) and not session.process.paused):
                session.heard_at = now
            elif now - session.heard_at > self.session_s:
                self.faults["session expired"] += 1
                self.expire(session)
        # That of a process that is dead is over after its time, like any other
        self.sessions = [session for session in self.sessions if session.process.alive or not session.expired]
        for session in self.sessions:
            if session.process.alive:
                session.look(self.reaches(session.process))
        self.loop.call_later(0.1, self._look_at_sessions, context=Context())

    def expire(self, session: Session) -> None:
        session.expired = True
        broker = session.process.broker
        if broker in self.registered and self.registered[broker][1] is session:
            del self.registered[broker]
            self.hint(CoordinationEvent.BROKERS_CHANGED)

    def hint(self, event: CoordinationEvent) -> None:
        for session in self.sessions:
            if not session.expired and self.reaches(session.process):
                session.tell(event)

    def changed(self, name: str) -> None:
        self.changes.append(name)
        self.hint(CoordinationEvent.TOPICS_CHANGED)

    def put_back(self, states: dict[tuple[str, int], tuple[int, NodeState]]) -> None:
        """It starts from a backup of the state nodes. Nobody answers what was asked before, and some sessions are
        over."""
        self.restorations += 1
        self.older = {key: state.leader_epoch for key, (_, state) in self.states.items()}
        self.states.update({key: found for key, found in states.items() if key in self.states})
        for session in [session for session in self.sessions if not session.expired and self.loop.chance(0.5)]:
            self.expire(session)

    def write_state(
        self, key: tuple[str, int], expected_version: int, state: NodeState, asked_in: int
    ) -> tuple[CasOutcome, int]:
        """`asked_in`: how often it had been put back when that was asked."""
        if asked_in != self.restorations:
            return CasOutcome.UNKNOWN, -1
        present = self.states.get(key)
        if present is None or present[0] != expected_version:
            return CasOutcome.REFUSED, -1
        version = expected_version + 1
        self.states[key] = version, state
        if state.leader_epoch > self.older.get(key, -1):
            self.older.pop(key, None)
        self.on_state(key[0], key[1], version, state)
        return CasOutcome.DONE, version


class Session:
    """One process's connection. Is its `CoordinationService`."""

    def __init__(self, service: ZooKeeper) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process = process
        self.expired = False
        self.heard_at = service.loop.time()
        self._service = service
        self._loop = service.loop
        self._context = copy_context()
        self._connected = True
        self._asked_at = self._answered_at = self._told_at = 0.0
        self._listener: Listener = lambda event: None

    # ------------------------------------------------------------------ the connection

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self._service.sessions.append(self)

    async def stop(self) -> None:
        if not self.expired and self._service.reaches(self.process):
            self._service.expire(self)

    def tell(self, event: CoordinationEvent) -> None:
        self._told_at = max(self._told_at, self._loop.time() + self._delay())
        self._loop.call_at(self._told_at, self._tell, event, context=self._context)

    def _tell(self, event: CoordinationEvent) -> None:
        if self._service.reaches(self.process) or event in (
            CoordinationEvent.SUSPENDED,
            CoordinationEvent.SESSION_LOST,
        ):
            self._listener(event)

    def look(self, reached: bool) -> None:
        """Called now and then: whether the process reaches the service."""
        if self._connected and not reached:
            self._connected = False
            self.tell(CoordinationEvent.SUSPENDED)
        elif reached and (not self._connected or self.expired):
            if self.process.paused:
                return
            self._connected = True
            if self.expired:
                self.expired = False  # a new session of the same process
                self.heard_at = self._loop.time()
                self.tell(CoordinationEvent.SESSION_LOST)
            for event in (
                CoordinationEvent.CONNECTED,
                CoordinationEvent.BROKERS_CHANGED,
                CoordinationEvent.TOPICS_CHANGED,
            ):
                self.tell(event)

    def _delay(self) -> float:
        return self._loop.often_short(*self._service.latency_s)

    async def _ask(self, work: Callable[[], T], *, writes: bool = False) -> T:
        """What `work` gives at the service. Raises `_Lost` past the deadline: then it happened, or not, or will."""
        loop, service = self._loop, self._service
        answered: asyncio.Future[T] = loop.create_future()

        def serve() -> None:
            lost = not service.reaches(self.process) or self.expired or loop.chance(service.lose)
            if lost:
                if writes and not self.expired:
                    service.faults["write unanswered"] += 1
                    if loop.chance(0.4):
                        loop.call_later(loop.often_short(*LATE_S), late)
                return
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 - it is raised where the answer is waited for
                error = raised
            if loop.chance(service.lose):
                service.faults["answer lost"] += writes
                return
            self._answered_at = max(self._answered_at, loop.time() + self._delay())
            loop.call_at(self._answered_at, answer, result, error, context=self._context)

        def late() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001 - nobody hears of it
                return

        def answer(result: Any, error: Exception | None) -> None:
            if not answered.done() and service.reaches(self.process):
                if error is None:
                    answered.set_result(result)
                else:
                    answered.set_exception(error)

        self._asked_at = max(self._asked_at, loop.time() + self._delay())
        loop.call_at(self._asked_at, serve, context=Context())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await answered
        except TimeoutError:
            raise _Lost from None

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await self._ask(work)
        except _Lost:
            raise CoordinationUnavailable("the coordination service does not answer: ask again") from None

    # ------------------------------------------------------------------ the interface

    @property
    def security(self) -> SecurityStore:
        return _Documents(self)

    async def cluster_id(self) -> str:
        return await self._read(lambda: self._service.cluster)

    async def peer_secret(self) -> bytes | None:
        return await self._read(lambda: self._service.secret)

    async def begin_life(self, broker: int, above: int = 0) -> int:
        def begin() -> int:
            self._service.lives[broker] = max(self._service.lives[broker], above) + 1
            return self._service.lives[broker]

        return await self._read(begin)

    async def known_stamp(self, broker: int) -> int | None:
        return await self._read(lambda: self._service.stamps.get(broker, 0))

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        def keep() -> None:
            self._service.stamps[broker] = stamp

        await self._read(keep)

    async def register(self, registration: BrokerRegistration) -> None:
        def write() -> None:
            present = self._service.registered.get(registration.broker)
            if present is not None and present[0].incarnation > registration.incarnation:
                raise InvalidRequest(f"broker id {registration.broker} is taken by a newer process")
            self._service.registered[registration.broker] = registration, self
            self._service.hint(CoordinationEvent.BROKERS_CHANGED)

        try:
            await self._ask(write, writes=False)
        except _Lost:
            raise CoordinationUnavailable("the registration was not answered: ask again") from None

    async def brokers(self) -> dict[int, BrokerRegistration]:
        return await self._read(lambda: {broker: each[0] for broker, each in sorted(self._service.registered.items())})

    async def level(self) -> int:
        return await self._read(lambda: self._service.level)

    async def raise_level(self, level: int) -> int:
        def write() -> int:
            self._service.level = max(level, self._service.level)
            self._service.hint(CoordinationEvent.BROKERS_CHANGED)
            return self._service.level

        return await self._read(write)

    async def topics(self) -> dict[str, TopicSpec]:
        return await self._read(lambda: {name: spec for name, (_, spec) in sorted(self._service.topics.items())})

    async def topic_changes(self, since: int) -> TopicChanges:
        def read() -> TopicChanges:
            service = self._service
            version = len(service.changes)
            if since < 0 or version - since > CHANGES_KEPT:
                return TopicChanges(version, True, {name: spec for name, (_, spec) in sorted(service.topics.items())})
            names = sorted(set(service.changes[since:]))
            present = {name: service.topics[name][1] for name in names if name in service.topics}
            return TopicChanges(version, False, present, tuple(name for name in names if name not in present))

        return await self._read(read)

    async def create_topic(self, topic: TopicSpec, states: tuple[NodeState, ...]) -> None:
        def write() -> None:
            if topic.name in self._service.topics:
                raise TopicExists(f"topic {topic.name} exists")
            self._service.topics[topic.name] = 0, topic
            for partition, state in enumerate(states):
                self._service.states[topic.topic_id, partition] = 0, state
            self._service.changed(topic.name)

        try:
            await self._ask(write, writes=True)
        except _Lost:
            raise OutcomeUnknown(f"whether topic {topic.name} was made is not known: look") from None

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        return [await refusal(self.create_topic(*topic)) for topic in topics]

    async def read_topic(self, name: str) -> tuple[int, TopicSpec] | None:
        return await self._read(lambda: self._service.topics.get(name))

    async def update_topic(
        self, expected_version: int, topic: TopicSpec, states: tuple[NodeState, ...] = ()
    ) -> tuple[CasOutcome, int]:
        def write() -> tuple[CasOutcome, int]:
            present = self._service.topics.get(topic.name)
            if present is None or present[0] != expected_version or present[1].topic_id != topic.topic_id:
                return CasOutcome.REFUSED, -1
            self._service.on_topic(present[1], topic)
            first = len(present[1].assignment)
            self._service.topics[topic.name] = expected_version + 1, replace(topic)
            for partition, state in enumerate(states, first):
                self._service.states[topic.topic_id, partition] = 0, state
            self._service.changed(topic.name)
            return CasOutcome.DONE, expected_version + 1

        try:
            return await self._ask(write, writes=True)
        except _Lost:
            return CasOutcome.UNKNOWN, -1

    async def delete_topic(self, name: str) -> None:
        def write() -> None:
            if name not in self._service.topics:
                raise UnknownTopic(f"there is no topic {name}")
            _, spec = self._service.topics.pop(name)
            for partition in range(len(spec.assignment)):
                self._service.states.pop((spec.topic_id, partition), None)
            self._service.changed(name)

        try:
            await self._ask(write, writes=True)
        except _Lost:
            raise OutcomeUnknown(f"whether topic {name} was deleted is not known: ask again") from None

    async def read_state(self, topic_id: str, partition: int) -> tuple[int, NodeState] | None:
        return await self._read(lambda: self._service.states.get((topic_id, partition)))

    async def write_state(
        self, topic_id: str, partition: int, expected_version: int, state: NodeState
    ) -> tuple[CasOutcome, int]:
        key, asked_in = (topic_id, partition), self._service.restorations
        try:
            return await self._ask(
                lambda: self._service.write_state(key, expected_version, state, asked_in), writes=True
            )
        except _Lost:
            return CasOutcome.UNKNOWN, -1

    async def queue_for_lock(self, name: str) -> LockPlace:
        raise CoordinationUnavailable("locks are not simulated")

    @property
    def lock_silence_ms(self) -> int:
        return int(self._service.session_s * 250)

    @property
    def condition(self) -> str:
        return "connected" if self._connected else "suspended"

    @property
    def access(self) -> str:
        return "open"


class _Documents:
    """The security documents, as one session reads and writes them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def read(self) -> SecurityDocuments:
        return await self._session._read(lambda: self._session._service.documents)

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        service = self._session._service

        def write() -> tuple[CasOutcome, int]:
            after = service.documents.changed(changes)
            if after is None:
                return CasOutcome.REFUSED, -1
            service.documents = after
            service.hint(CoordinationEvent.SECURITY_CHANGED)
            return CasOutcome.DONE, after.version

        try:
            return await self._session._ask(write, writes=True)
        except _Lost:
            return CasOutcome.UNKNOWN, -1
