"""Coordination for a broker that stands alone: the same interface, kept in one file, no server.

Everything is in one JSON document, replaced as a whole (written beside, fsynced, renamed, directory fsynced), so a
crash leaves the old or the new one and never half. Changes that are ready together share one replacement: ten thousand
partitions claimed at a start are a few writes, not ten thousand. Registrations live in memory: they end with the
process, as they must.

Not for two processes: a lock on the directory sees to that.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mq_broker.coordination import documents
from mq_broker.coordination.file_locks import FileLocks
from mq_broker.coordination.file_security import FileSecurity
from mq_broker.coordination.interface import (
    BrokerRegistration,
    CoordinationEvent,
    Features,
    Listener,
    LockPlace,
    NewTopic,
    SecurityDocuments,
    TopicChanges,
    TopicSpec,
    refusal,
)
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import (
    CoordinationUnavailable,
    InternalError,
    InvalidRequest,
    TopicExists,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.limits import LOCK_SILENCE_MS_MAX
from mq_protocol.names import check_topic_name
from mq_protocol.unknown_keys import unknown_keys, with_unknown
from mq_protocol.versions import LEVEL

_log = logging.getLogger(__name__)

T = TypeVar("T")

WRITE_TIMEOUT_S = 10.0
"""A disk that has not taken the document by then is reported as not answering; the write itself goes on."""

_DOCUMENT = "coordination.json"
_LOCK = "coordination.lock"

_NO_SECURITY = SecurityDocuments()
_KEYS = frozenset(("cluster_id", "lives", "topics", "states", "lock_tokens", "features", "security"))
_UNKNOWN_BYTES_MAX = 1 << 20
_FORMAT = 1
"""Of the document. A later one is to be named in it, as `format`."""

_PartitionKey = tuple[str, int]


@dataclass(slots=True)
class _Contents:
    """What the document holds. Copied (shallowly: its values are immutable) for each replacement."""

    cluster_id: str = ""
    lives: dict[int, int] = field(default_factory=dict)
    topics: dict[str, tuple[int, TopicSpec]] = field(default_factory=dict)
    states: dict[_PartitionKey, tuple[int, NodeState]] = field(default_factory=dict)
    lock_tokens: int = 0
    """None above it has been given to a holder of a lock."""

    unknown: str = ""
    features: Features = field(default_factory=Features)
    security: SecurityDocuments = _NO_SECURITY

    def copy(self) -> _Contents:
        return replace(self, lives=dict(self.lives), topics=dict(self.topics), states=dict(self.states))

    def to_json(self) -> dict[str, Any]:
        states: dict[str, dict[str, Any]] = {}
        for (topic_id, partition), (version, state) in self.states.items():
            states.setdefault(topic_id, {})[str(partition)] = {"version": version, **documents.state_to_json(state)}
        document = {
            "cluster_id": self.cluster_id,
            "lives": {str(broker): life for broker, life in self.lives.items()},
            "topics": [
                {"version": version, **documents.topic_to_json(topic)} for version, topic in self.topics.values()
            ],
            "states": states,
            "lock_tokens": self.lock_tokens,
            "features": documents.features_to_json(self.features),
        }
        if self.security != _NO_SECURITY:
            document["security"] = documents.security_to_json(self.security)
        return with_unknown(document, self.unknown)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> _Contents:
        if document.get("format", _FORMAT) != _FORMAT:
            raise ValueError(
                f"it is of format {document['format']}, and this version reads format {_FORMAT}; start a newer one"
            )
        topics = [(int(topic.pop("version", 0)), documents.topic_from_json(topic)) for topic in document["topics"]]
        return cls(
            cluster_id=str(document["cluster_id"]),
            lives={int(broker): int(life) for broker, life in document["lives"].items()},
            topics={topic.name: (version, topic) for version, topic in topics},
            states={
                (topic_id, int(partition)): (int(state.pop("version")), documents.state_from_json(state))
                for topic_id, partitions in document["states"].items()
                for partition, state in partitions.items()
            },
            lock_tokens=int(document["lock_tokens"]),
            unknown=unknown_keys(document, _KEYS, _UNKNOWN_BYTES_MAX),
            features=documents.features_from_json(document["features"]),
            security=documents.security_from_json(document["security"]) if "security" in document else _NO_SECURITY,
        )


@dataclass(slots=True)
class _Change:
    """A change that waits for the next replacement. `apply` raises to refuse, and then has changed nothing."""

    apply: Callable[[_Contents], Any]
    done: asyncio.Future[Any]


class FileCoordination:
    """Owns `directory`: its document and the lock on it."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._contents = _Contents()
        self._registrations: dict[int, BrokerRegistration] = {}
        self._locks = FileLocks(self._reserve_lock_tokens)
        self._listener: Listener = lambda _event: None
        self.security = FileSecurity(self._security_now, self._change_security)
        self._lock: int | None = None
        self._waiting: list[_Change] = []
        self._writer: asyncio.Task[None] | None = None

    # -------------------------------------------------------------- life

    async def start(self, listener: Listener) -> None:
        """Raises `InvalidRequest` if another process has the directory, `CoordinationUnavailable` if it cannot be
        used."""
        try:
            self._lock = await asyncio.to_thread(_take_lock, self._directory)
            self._contents = await asyncio.to_thread(_load, self._directory)
        except OSError as error:
            self._release_lock()
            raise CoordinationUnavailable(
                f"cannot keep the cluster's state in {self._directory}: {error}; give another --data"
            ) from error
        except InternalError:
            self._release_lock()
            raise
        self._listener = listener

    async def stop(self) -> None:
        """What was asked for is written first."""
        self._locks.stop()
        self._registrations.clear()
        if self._writer is not None:
            _, late = await asyncio.wait([self._writer], timeout=WRITE_TIMEOUT_S)
            if late:
                _log.warning(
                    "the disk under %s has not taken the last changes within %g s", self._directory, WRITE_TIMEOUT_S
                )
                # Kept until this process ends: the write may still replace the document of the next one
                self._lock = None
        self._release_lock()

    @property
    def condition(self) -> str:
        return "file"

    @property
    def access(self) -> str:
        return ""

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -------------------------------------------------------------- the cluster and its brokers

    async def cluster_id(self) -> str:
        def apply(contents: _Contents) -> str:
            if not contents.cluster_id:
                contents.cluster_id = uuid.uuid4().hex
                contents.features = replace(contents.features, level=max(LEVEL, contents.features.level))
            return contents.cluster_id

        return self._contents.cluster_id or await self._change(apply)

    async def peer_secret(self) -> bytes | None:
        return None

    async def begin_life(self, broker: int, above: int = 0) -> int:
        def apply(contents: _Contents) -> int:
            contents.lives[broker] = max(contents.lives.get(broker, 0), above) + 1
            return contents.lives[broker]

        return await self._change(apply)

    async def known_stamp(self, broker: int) -> int | None:
        return None

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        """Nobody asks for it."""

    async def register(self, registration: BrokerRegistration) -> None:
        """Raises `InvalidRequest` for a second broker: one directory holds one."""
        self._check_open()
        for other in self._registrations.values():
            if other.broker != registration.broker:
                raise InvalidRequest(
                    f"broker {other.broker} stands alone: for more than one give each --zookeeper instead of "
                    "--standalone"
                )
            if other.incarnation > registration.incarnation:
                raise InvalidRequest(f"a newer start of broker {other.broker} is registered: stop this one")
        self._registrations[registration.broker] = registration
        self._emit(CoordinationEvent.BROKERS_CHANGED)

    async def brokers(self) -> dict[int, BrokerRegistration]:
        self._check_open()
        return dict(self._registrations)

    async def level(self) -> int:
        self._check_open()
        return self._contents.features.level

    async def raise_level(self, level: int) -> int:
        def apply(contents: _Contents) -> int:
            contents.features = replace(contents.features, level=max(level, contents.features.level))
            return contents.features.level

        raised = await self._change(apply)
        self._emit(CoordinationEvent.BROKERS_CHANGED)
        return raised

    # -------------------------------------------------------------- topics

    async def topics(self) -> dict[str, TopicSpec]:
        self._check_open()
        return {name: topic for name, (_, topic) in sorted(self._contents.topics.items())}

    async def topic_changes(self, since: int) -> TopicChanges:
        return TopicChanges(since + 1, True, await self.topics())  # they are in memory: nothing is gained by less

    async def read_topic(self, name: str) -> tuple[int, TopicSpec] | None:
        self._check_open()
        return self._contents.topics.get(name)

    async def create_topic(self, topic: TopicSpec, states: tuple[NodeState, ...]) -> None:
        check_topic_name(topic.name, internal=True)

        def apply(contents: _Contents) -> None:
            if topic.name in contents.topics:
                raise TopicExists(f"topic {topic.name!r} exists already: choose another name, or delete it first")
            contents.topics[topic.name] = (0, topic)
            for partition, state in enumerate(states):
                contents.states[topic.topic_id, partition] = (0, state)

        await self._change(apply)
        self._emit(CoordinationEvent.TOPICS_CHANGED)

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        # They are written together: what is asked while the disk writes shares the next document
        return list(await asyncio.gather(*(refusal(self.create_topic(*topic)) for topic in topics)))

    async def update_topic(
        self, expected_version: int, topic: TopicSpec, states: tuple[NodeState, ...] = ()
    ) -> tuple[CasOutcome, int]:
        def apply(contents: _Contents) -> tuple[CasOutcome, int]:
            version, present = contents.topics.get(topic.name, (-1, topic))
            if version != expected_version or present.topic_id != topic.topic_id:
                return CasOutcome.REFUSED, -1
            contents.topics[topic.name] = (version + 1, topic)
            for partition, state in enumerate(states, start=len(topic.assignment) - len(states)):
                contents.states[topic.topic_id, partition] = (0, state)
            return CasOutcome.DONE, version + 1

        try:
            outcome = await self._change(apply)
        except CoordinationUnavailable as error:
            _log.warning("whether topic %s was changed is unknown: %s", topic.name, error)
            return CasOutcome.UNKNOWN, -1
        if outcome[0] is CasOutcome.DONE:
            self._emit(CoordinationEvent.TOPICS_CHANGED)
        return outcome

    async def delete_topic(self, name: str) -> None:
        check_topic_name(name, internal=True)

        def apply(contents: _Contents) -> None:
            found = contents.topics.pop(name, None)
            if found is None:
                raise UnknownTopic(f"there is no topic {name!r}: see `tritonmq topic list`")
            topic = found[1]
            for partition in range(len(topic.assignment)):
                contents.states.pop((topic.topic_id, partition), None)

        await self._change(apply)
        self._emit(CoordinationEvent.TOPICS_CHANGED)

    # -------------------------------------------------------------- one partition

    async def read_state(self, topic_id: str, partition: int) -> tuple[int, NodeState] | None:
        self._check_open()
        return self._contents.states.get((topic_id, partition))

    async def write_state(
        self, topic_id: str, partition: int, expected_version: int, state: NodeState
    ) -> tuple[CasOutcome, int]:
        def apply(contents: _Contents) -> tuple[CasOutcome, int]:
            present = contents.states.get((topic_id, partition))
            if present is None or present[0] != expected_version:
                return CasOutcome.REFUSED, -1
            contents.states[topic_id, partition] = (expected_version + 1, state)
            return CasOutcome.DONE, expected_version + 1

        try:
            return await self._change(apply)
        except CoordinationUnavailable as error:
            _log.warning(
                "whether the state of partition %d of %s was written is unknown: %s", partition, topic_id, error
            )
            return CasOutcome.UNKNOWN, -1

    # -------------------------------------------------------------- locks

    async def queue_for_lock(self, name: str) -> LockPlace:
        self._check_open()
        return self._locks.queue(name)

    @property
    def lock_silence_ms(self) -> int:
        return LOCK_SILENCE_MS_MAX

    async def _reserve_lock_tokens(self, count: int) -> int:
        """The first of so many tokens that nobody else is given, not even after a crash."""

        def apply(contents: _Contents) -> int:
            contents.lock_tokens += count
            return contents.lock_tokens - count + 1

        return await self._change(apply)

    # -------------------------------------------------------------- who may do what

    def _security_now(self) -> SecurityDocuments:
        self._check_open()
        return self._contents.security

    async def _change_security(self, change: Callable[[SecurityDocuments], SecurityDocuments | None]) -> int | None:
        """What `change` makes of them is stored, unless it is None. Their new version."""

        def apply(contents: _Contents) -> int | None:
            changed = change(contents.security)
            if changed is None:
                return None
            contents.security = changed
            return changed.version

        version = await self._change(apply)
        if version is not None:
            self._emit(CoordinationEvent.SECURITY_CHANGED)
        return version

    # -------------------------------------------------------------- the document

    async def _change(self, apply: Callable[[_Contents], T]) -> T:
        """Durable when it returns. Raises what `apply` raises; `CoordinationUnavailable` if the disk did not take it
        (in time)."""
        self._check_open()
        change = _Change(apply, asyncio.get_running_loop().create_future())
        self._waiting.append(change)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="coordination file")
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                result: T = await change.done
                return result
        except TimeoutError:
            raise CoordinationUnavailable(
                f"the disk under {self._directory} did not answer within {WRITE_TIMEOUT_S:g} s"
            ) from None

    async def _write_all(self) -> None:
        while self._waiting:
            changes, self._waiting = self._waiting, []
            draft = self._contents.copy()
            settled: list[tuple[_Change, Any]] = []
            for change in changes:
                try:
                    settled.append((change, change.apply(draft)))
                except (TopicExists, UnknownTopic) as error:
                    _settle(change, error=error)
            if not settled:
                continue
            try:
                await asyncio.to_thread(_store, self._directory, draft)
            except OSError as error:
                # Which of the two documents is there now only the disk knows.
                failed = CoordinationUnavailable(
                    f"cannot write {self._directory / _DOCUMENT}: {error}; make room or repair the disk"
                )
                await self._reload()
                for change, _ in settled:
                    _settle(change, error=failed)
                continue
            self._contents = draft
            for change, result in settled:
                _settle(change, result=result)

    async def _reload(self) -> None:
        try:
            self._contents = await asyncio.to_thread(_load, self._directory)
        except (OSError, InternalError):
            _log.exception(
                "%s cannot be read back; going on from what was last known to be there", self._directory / _DOCUMENT
            )

    def _check_open(self) -> None:
        if self._lock is None:
            raise CoordinationUnavailable(f"{self._directory} is not open: this broker is stopping")

    def _emit(self, event: CoordinationEvent) -> None:
        # Through the loop, as from a server: a listener is never called within the call that made the change.
        asyncio.get_running_loop().call_soon(self._listener, event)


def _settle(change: _Change, result: Any = None, error: Exception | None = None) -> None:
    if change.done.done():  # its caller no longer waits
        return
    if error is None:
        change.done.set_result(result)
    else:
        change.done.set_exception(error)


def _take_lock(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InvalidRequest(
            f"another process keeps its cluster in {directory}: stop it, or give another --data"
        ) from None
    return lock


def _load(directory: Path) -> _Contents:
    path = directory / _DOCUMENT
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _Contents()
    return documents.load(data, _Contents.from_json, str(path))


def read_topics(directory: Path) -> tuple[TopicSpec, ...]:
    """The topics of a broker that stands alone and does not run; none if there is no document. Raises `InternalError`
    for one that cannot be believed, and `OSError`."""
    return tuple(topic for _, topic in _load(directory).topics.values())


def _store(directory: Path, contents: _Contents) -> None:
    draft = directory / (_DOCUMENT + ".new")
    with draft.open("wb") as file:
        file.write(json.dumps(contents.to_json(), indent=1, sort_keys=True).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / _DOCUMENT)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
