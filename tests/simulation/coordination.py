"""A simulated coordination service: sessions, the registrations that live in them, a versioned state node per
partition, and which brokers each is assigned to.

What ZooKeeper promises is kept (writes are atomic and in one order; a read that follows a sync sees no less than what
was written when it was asked for), and nothing more: answers are late, lost before or after the write happened, or the
write happens long after the caller was told that nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from mq_broker.core.messages import CasOutcome, LeaderName, NodeState
from tests.simulation.loop import Loop

OnRead: TypeAlias = Callable[["tuple[int, NodeState | None] | None"], None]
OnWritten: TypeAlias = Callable[[CasOutcome, int], None]

REQUEST_TIMEOUT_MS = 2_000
SLOWEST_HINT_MS = 6_000
"""So late may a broker learn that a partition was assigned to others."""
NOT_FOUND: tuple[int, NodeState | None] = (-1, None)


@dataclass(slots=True)
class Session:
    """One session: alive while its broker answers, and `timeout_ms` longer."""

    number: int
    broker: int
    expired: bool = False


@dataclass(slots=True)
class StateNode:
    version: int
    state: NodeState
    pending: list[NodeState] = field(default_factory=list)
    """Writes that were sent and may yet happen."""


class Coordination:
    """Owns what the service knows: state nodes, sessions, registrations, the number of lives each broker had."""

    def __init__(
        self, loop: Loop, nodes: list[NodeState], assigned: list[tuple[int, ...]], session_ms: int, faults: Counter[str]
    ) -> None:
        self.up = True
        self.assigned = [(0, replicas) for replicas in assigned]
        """By partition, with a version."""
        self.nodes = [StateNode(0, state) for state in nodes]
        self.registered: dict[int, tuple[int, Session]] = {}
        self.slow_ms = 0.0
        self.lose_answers = 0.0
        self.forget = 0.0
        self.on_written: Callable[[int], None] = lambda partition: None
        self._loop = loop
        self._session_ms = session_ms
        self._faults = faults
        self._lives: dict[int, int] = {}
        self._sessions = 0
        self._watchers: dict[int, Callable[[], None]] = {}
        self._movers: dict[int, Callable[[int], None]] = {}
        self._reach: dict[int, bool] = {}
        self._alive: dict[int, bool] = {}

    # ------------------------------------------------------------------ reach

    def reaches(self, broker: int) -> bool:
        return self.up and self._reach.get(broker, True)

    def set_reach(self, broker: int, reach: bool) -> None:
        self._reach[broker] = reach
        self._connected_again()

    def set_up(self, up: bool) -> None:
        self.up = up
        self._connected_again()

    def _connected_again(self) -> None:
        """Whoever is connected again is told that anything may have changed."""
        self._changed()

    def set_watcher(self, broker: int, hint: Callable[[], None]) -> None:
        """`hint` says that the registrations may have changed. It is lost while the broker is out of reach."""
        self._watchers[broker] = hint

    def _changed(self) -> None:
        for broker in sorted(self._watchers):
            if self.reaches(broker):
                self._loop.after(self._delay(), self._watchers[broker])

    def _delay(self) -> float:
        return self._loop.often_short(0.3, 25.0) + (self._loop.between(0, self.slow_ms) if self.slow_ms else 0.0)

    # ------------------------------------------------------------------ lives and sessions

    def begin_life(self, broker: int) -> int:
        self._lives[broker] = self._lives.get(broker, 0) + 1
        return self._lives[broker]

    def open_session(self, broker: int) -> Session:
        self._sessions += 1
        return Session(self._sessions, broker)

    def register(self, session: Session, incarnation: int) -> None:
        """In this session: whatever a former session of that broker left is replaced (trap 2)."""
        assert not session.expired
        self.registered[session.broker] = (incarnation, session)
        self._changed()

    def close_session(self, session: Session) -> None:
        session.expired = True
        present = self.registered.get(session.broker)
        if present is not None and present[1] is session:
            del self.registered[session.broker]
            self._changed()

    def watch_session(self, session: Session, answers: Callable[[], bool]) -> None:
        """End the session once its broker has not answered for the session's time."""
        every = self._session_ms / 3
        silent_since = self._loop.now_ms

        def check() -> None:
            nonlocal silent_since
            if session.expired:
                return
            if not self.up or answers():
                silent_since = self._loop.now_ms
            elif self._loop.now_ms - silent_since >= self._session_ms:
                self._faults["session expired"] += 1
                self.close_session(session)
                return
            self._loop.after(every * self._loop.between(0.8, 1.0), check)

        self._loop.after(every * self._loop.random.random(), check)

    def live(self) -> tuple[LeaderName, ...]:
        return tuple(LeaderName(broker, self.registered[broker][0]) for broker in sorted(self.registered))

    # ------------------------------------------------------------------ assignments

    def set_mover(self, broker: int, hint: Callable[[int], None]) -> None:
        """`hint` says that a partition's assignment has changed: sooner or later, in no order among brokers."""
        self._movers[broker] = hint

    def assign(self, partition: int, replicas: tuple[int, ...]) -> None:
        self.assigned[partition] = (self.assigned[partition][0] + 1, replicas)
        for broker in sorted(self._movers):
            self._loop.after(self._loop.often_short(1, SLOWEST_HINT_MS), self._movers[broker], partition)

    # ------------------------------------------------------------------ backups

    def copy(self) -> list[tuple[int, NodeState]]:
        """Of every state node, with its version."""
        return [(node.version, node.state) for node in self.nodes]

    def put_back(self, copy: list[tuple[int, NodeState]]) -> None:
        """The service stops and starts from a backup. What was asked of it is answered by nobody, and some sessions are
        over."""
        self.nodes = [StateNode(version, state) for version, state in copy]
        for _, session in list(self.registered.values()):
            if self._loop.chance(0.5):
                self.close_session(session)

    # ------------------------------------------------------------------ state nodes

    def read(self, broker: int, partition: int, answer: OnRead) -> None:
        """`answer(None)` past the deadline: nobody knows."""

        def serve() -> None:
            if not self.reaches(broker) or self._loop.chance(self.lose_answers):
                self._loop.after(REQUEST_TIMEOUT_MS, answer, None)
                return
            if self._loop.chance(self.forget):
                self._faults["state node not found"] += 1
                self._loop.after(self._delay(), self._answer_read, broker, answer, NOT_FOUND)
                return
            node = self.nodes[partition]
            self._loop.after(self._delay(), self._answer_read, broker, answer, (node.version, node.state))

        self._loop.after(self._delay(), serve)

    def _answer_read(self, broker: int, answer: OnRead, found: tuple[int, NodeState | None]) -> None:
        if self.reaches(broker):
            answer(found)
        else:
            self._loop.after(REQUEST_TIMEOUT_MS, answer, None)

    def write(self, broker: int, partition: int, expected_version: int, state: NodeState, answer: OnWritten) -> None:
        node = self.nodes[partition]
        node.pending.append(state)

        def serve() -> None:
            if node is not self.nodes[partition]:
                answer(CasOutcome.UNKNOWN, -1)
                return
            if not self.reaches(broker) or self._loop.chance(self.lose_answers):
                self._faults["write unanswered"] += 1
                self._loop.after(self._loop.between(100, REQUEST_TIMEOUT_MS), answer, CasOutcome.UNKNOWN, -1)
                fate = self._loop.random.random()
                if fate < 0.4:
                    self._loop.after(
                        self._loop.often_short(0, 10_000), self._apply, node, partition, expected_version, state
                    )
                else:
                    node.pending.remove(state)
                return
            version = self._apply(node, partition, expected_version, state)
            if self._loop.chance(self.lose_answers):
                self._faults["write's answer lost"] += 1
                self._loop.after(self._loop.between(100, REQUEST_TIMEOUT_MS), answer, CasOutcome.UNKNOWN, -1)
                return
            outcome = CasOutcome.DONE if version >= 0 else CasOutcome.REFUSED
            self._loop.after(self._delay(), self._answer_write, broker, answer, outcome, version)

        self._loop.after(self._delay(), serve)

    def recover(self, partition: int, expected_version: int, state: NodeState) -> bool:
        """An operator's compare-and-set. Whether it was done."""
        node = self.nodes[partition]
        node.pending.append(state)
        return self._apply(node, partition, expected_version, state) >= 0

    def _answer_write(self, broker: int, answer: OnWritten, outcome: CasOutcome, version: int) -> None:
        if self.reaches(broker):
            answer(outcome, version)
        else:
            self._faults["write's answer lost"] += 1
            self._loop.after(self._loop.between(100, REQUEST_TIMEOUT_MS), answer, CasOutcome.UNKNOWN, -1)

    def _apply(self, node: StateNode, partition: int, expected_version: int, state: NodeState) -> int:
        node.pending.remove(state)
        if node.version != expected_version or node is not self.nodes[partition]:
            return -1
        node.version += 1
        node.state = state
        self.on_written(partition)
        return node.version
