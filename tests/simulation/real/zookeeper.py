"""A simulated ZooKeeper, as a store of coordination: what it promises, and nothing more.

Writes are atomic and in one order; what one session asks is answered in that order. Answers are late, or lost before or
after the write happened, or the write happens long after the caller was told that nobody knows. A session ends once its
process has not answered for its time, and the process hears of it when it is connected again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, TypeVar

from mq_broker.coordination import documents
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.store import (
    Change,
    Kept,
    Make,
    Node,
    Put,
    StoreEvent,
    Tree,
    Watch,
    Watches,
    Written,
    size_of,
)
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import CoordinationUnavailable
from tests.simulation.real.loop import PROCESS, Process, VirtualLoop

T = TypeVar("T")

REQUEST_TIMEOUT_S = 4.0
LATE_S = (0.01, 10.0)


class _Lost(Exception):
    """No answer within the deadline."""


class ZooKeeper:
    """Owns what the service knows, and the sessions. `topics` and `states` are what its nodes say, with their
    versions."""

    def __init__(self, loop: VirtualLoop, faults: Counter[str], session_s: float) -> None:
        self.loop = loop
        self.faults = faults
        self.session_s = session_s
        self.up = True
        self.cut_off: set[str] = set()
        self.lose = 0.0
        """How likely a request or its answer is lost."""
        self.latency_s = (0.0003, 0.01)
        self.tree = Tree()
        self.topics: dict[str, tuple[int, TopicSpec]] = {}
        self.states: dict[tuple[str, int], tuple[int, NodeState]] = {}
        self.restorations = 0
        self.older: dict[tuple[str, int], int] = {}
        """State nodes that were put back: the epoch that each had reached before. It says nothing up to that."""
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
        for path in self.tree.ephemeral(session.owner):
            self.tree.set(path, None)
            self._tell([path, f"{path.rpartition('/')[0]}/"])

    def apply(self, changes: Sequence[Change], owner: object) -> Written:
        former = {change.path: self.tree.find(change.path) for change in changes}
        written, touched = self.tree.apply(changes, owner)
        if written.done:
            for change in changes:
                self._see(change, former[change.path])
            self._tell(touched)
        return written

    def _tell(self, places: list[str]) -> None:
        for session in self.sessions:
            if not session.expired:
                session.tell(places)

    def _see(self, change: Change, former: Kept | None) -> None:
        """What has become of a topic or of a state."""
        kind, *names = change.path.split("/")
        node = self.tree.find(change.path)
        if kind == "topics" and names:
            self.topics.pop(names[0], None)
            if node is not None:
                spec = documents.load(node.data, documents.topic_from_json, change.path)
                if former is not None and isinstance(change, Put):
                    self.on_topic(documents.load(former.data, documents.topic_from_json, change.path), spec)
                self.topics[names[0]] = node.version, spec
        elif kind == "states" and len(names) == 2 and names[1].isdigit():
            key = names[0], int(names[1])
            self.states.pop(key, None)
            if node is not None:
                self.states[key] = node.version, documents.load(node.data, documents.state_from_json, change.path)
                if isinstance(change, Put):
                    if self.states[key][1].leader_epoch > self.older.get(key, -1):
                        self.older.pop(key, None)
                    self.on_state(*key, *self.states[key])

    def copy(self) -> dict[str, Kept]:
        """The state nodes of partitions."""
        nodes = self.tree.nodes()
        return {path: nodes[path] for path in (f"states/{topic_id}/{number}" for topic_id, number in self.states)}

    def put_back(self, copy: dict[str, Kept]) -> None:
        """It starts from a backup of the state nodes. Nobody answers what was asked before, and some sessions are
        over."""
        self.restorations += 1
        self.older = {key: state.leader_epoch for key, (_, state) in self.states.items()}
        for path, node in copy.items():
            _, topic_id, number = path.split("/")
            if (topic_id, int(number)) in self.states:
                self.tree.set(path, node)
                self.states[topic_id, int(number)] = (
                    node.version,
                    documents.load(node.data, documents.state_from_json, path),
                )
        for session in [session for session in self.sessions if not session.expired and self.loop.chance(0.5)]:
            self.expire(session)


class Session:
    """One process's connection: its store."""

    home = "the simulated ZooKeeper"
    alone = False
    access = "open"
    patience_s = REQUEST_TIMEOUT_S

    def __init__(self, service: ZooKeeper) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process = process
        self.owner = object()
        """Of what is ephemeral in the present session."""
        self.expired = False
        self.heard_at = service.loop.time()
        self.session_s = service.session_s
        self._service = service
        self._loop = service.loop
        self._context = copy_context()
        self._connected, self._stopped = True, False
        self._missed = False
        """It was not told of something that it watches, as it could not be reached."""
        self._asked_at = self._answered_at = self._told_at = 0.0
        self._watches = Watches()
        self._listener: Callable[[StoreEvent], None] = lambda event: None

    # ------------------------------------------------------------------ the connection

    async def start(self, listener: Callable[[StoreEvent], None]) -> None:
        self._listener = listener
        self._service.sessions.append(self)

    async def stop(self) -> None:
        self._stopped = True
        if not self.expired and self._service.reaches(self.process):
            self._service.expire(self)

    def tell(self, places: list[str]) -> None:
        """Something has changed there."""
        for watch in self._watches.taken(places):
            self._later(self._if_reached, watch)

    def _if_reached(self, watch: Watch) -> None:
        if self._service.reaches(self.process):
            watch()
        else:
            self._missed = True

    def _later(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._told_at = max(self._told_at, self._loop.time() + self._delay())
        self._loop.call_at(self._told_at, callback, *arguments, context=self._context)

    def look(self, reached: bool) -> None:
        """Called now and then: whether the process reaches the service."""
        if self._stopped:
            return
        if self._connected and not reached:
            self._connected = False
            self._later(self._tell, StoreEvent.SUSPENDED)
        elif reached and (not self._connected or self.expired or self._missed) and not self.process.paused:
            self._connected, self._missed = True, False
            self._watches.clear()
            if self.expired:
                self.expired, self.owner = False, object()  # a new session of the same process
                self.heard_at = self._loop.time()
                self._later(self._tell, StoreEvent.LOST)
            self._later(self._tell, StoreEvent.CONNECTED)

    def _tell(self, event: StoreEvent) -> None:
        if event is not StoreEvent.CONNECTED or self._service.reaches(self.process):
            self._listener(event)
        else:
            self._missed = True

    def _delay(self) -> float:
        return self._loop.often_short(*self._service.latency_s)

    async def _ask(self, work: Callable[[], T], *, writes: bool = False) -> T:
        """What `work` gives at the service. Raises `_Lost` past the deadline: then it happened, or not, or will."""
        loop, service, asked_in = self._loop, self._service, self._service.restorations
        if self._stopped:
            raise _Lost
        answered: asyncio.Future[T] = loop.create_future()

        def serve() -> None:
            lost = not service.reaches(self.process) or self.expired or loop.chance(service.lose)
            if lost:
                if writes and not self.expired:
                    service.faults["write unanswered"] += 1
                    if loop.chance(0.4):
                        loop.call_later(loop.often_short(*LATE_S), late)
                return
            if writes and asked_in != service.restorations:
                return
            result = work()
            if loop.chance(service.lose):
                service.faults["answer lost"] += writes
                return
            self._answered_at = max(self._answered_at, loop.time() + self._delay())
            loop.call_at(self._answered_at, answer, result, context=self._context)

        def late() -> None:
            if asked_in == service.restorations:
                work()

        def answer(result: T) -> None:
            if not answered.done() and service.reaches(self.process):
                answered.set_result(result)

        self._asked_at = max(self._asked_at, loop.time() + self._delay())
        loop.call_at(self._asked_at, serve, context=Context())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await answered
        except TimeoutError:
            raise _Lost from None

    # ------------------------------------------------------------------ the verbs

    @property
    def condition(self) -> str:
        return "connected" if self._connected else "suspended"

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return (await self._read(lambda: [self._found(path, watch)]))[0]

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read(lambda: [self._found(path) for path in paths])

    def _found(self, path: str, watch: Watch | None = None) -> Node | None:
        node = self._service.tree.get(path, self.owner)
        if node is not None:
            self._watches.add(path, watch)
        return node

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        def names() -> list[str] | None:
            found = self._service.tree.children(path)
            if found is not None:
                self._watches.add(f"{path}/", watch)
            return found

        return await self._read(names)

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await self._ask(work)
        except _Lost:
            raise CoordinationUnavailable("the coordination service does not answer: ask again") from None

    async def transact(self, changes: Sequence[Change]) -> Written:
        size_of(changes)
        owner, passing = self.owner, any(isinstance(change, Make) and change.ephemeral for change in changes)

        def work() -> Written:
            if passing and (self.expired or owner is not self.owner):  # nothing is made in a session that has ended
                return Written(CasOutcome.UNKNOWN, why="the session has ended")
            return self._service.apply(changes, owner)

        try:
            return await self._ask(work, writes=True)
        except _Lost:
            return Written(CasOutcome.UNKNOWN, why="the coordination service does not answer")
