"""Coordination through ZooKeeper. Paths and what they mean; the session itself is kazoo_session.py's.

    <root>/cluster_id                        made once
    <root>/security/…                        who may do what (zookeeper_security.py)
    <root>/security/access                   whether the nodes are the brokers' alone (zookeeper_access.py)
    <root>/security/peer_secret              64 hex digits, made once: by it brokers know each other
    <root>/brokers/live/<broker>             ephemeral: BrokerRegistration
    <root>/brokers/lives/<broker>            its version is the newest incarnation of that broker
    <root>/brokers/stamps/<broker>           how far that broker's data directory had come (`known_stamp`)
    <root>/topics/<name>                     TopicSpec
    <root>/topic_changes                     changed with every change of <root>/topics: watched instead of each of
                                             them. Its version counts them, and it says which topics the last ones were
                                             (change_notes.py)
    <root>/states/<topic id>/<partition>     NodeState, changed by compare-and-set only
    <root>/features                          Features: the level, from cluster_id on
    <root>/locks/<name>/<mark>-<number>      ephemeral: a place in the queue for that lock (zookeeper_locks.py)

A topic is made in two steps, so that thousands of partitions need not fit one transaction: first the states, under the
topic's fresh id where nobody looks, then in one transaction the topic itself and the change counter. What fails in
between leaves states that no topic names: they are removed again, and harmless where that is not possible.

Once a transaction's answer is lost, only the server can say what became of it. Each is therefore such that it can be
settled: by reading something it alone writes, after closing the door on it (see `_withdraw`), or by asking again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, ZookeeperError
from kazoo.protocol.states import KazooState

from mq_broker.coordination import change_notes, documents
from mq_broker.coordination.credential import Credential
from mq_broker.coordination.interface import (
    PARTITIONS_ADDED_AT_ONCE_MAX,
    BrokerRegistration,
    CoordinationEvent,
    Features,
    Listener,
    LockPlace,
    NewTopic,
    TopicChanges,
    TopicSpec,
)
from mq_broker.coordination.kazoo_session import AnswerLost, Denied, KazooSession
from mq_broker.coordination.node_reads import NodeReads
from mq_broker.coordination.state_writes import StateWrites
from mq_broker.coordination.topics_together import NOTE_ATTEMPTS, TopicsTogether
from mq_broker.coordination.unreadable import Unreadable
from mq_broker.coordination.zookeeper_access import ZooKeeperAccess
from mq_broker.coordination.zookeeper_identity import ZooKeeperIdentity
from mq_broker.coordination.zookeeper_lives import ZooKeeperLives
from mq_broker.coordination.zookeeper_locks import ZooKeeperLocks
from mq_broker.coordination.zookeeper_security import PATHS, ZooKeeperSecurity
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    OutcomeUnknown,
    TopicExists,
    TritonMQError,
    UnknownTopic,
)
from mq_protocol.limits import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS
from mq_protocol.names import check_topic_name
from mq_protocol.pem import Files

_log = logging.getLogger(__name__)

TRANSACTION_OPERATIONS_MAX = 500
"""At about 300 bytes a state, a seventh of the megabyte that ZooKeeper takes in one request."""

_FORMER_LIFE_POLL_S = 0.1


class ZooKeeperCoordination:
    """A broker's (or a tool's) view of the cluster through one ZooKeeper session. Owns that session.

    `hosts` is `HOST:PORT[,HOST:PORT…][/PREFIX]`; everything lies below `PREFIX` + `root`. Questions wait
    `request_timeout_ms` for their answers: by default two sessions, in which a dropped connection is noticed and, if a
    server is there, made again.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        root: str = "/tritonmq",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int | None = None,
        credential: Credential | None = None,
        tls: Files | None = None,
    ) -> None:
        addresses, _, prefix = hosts.partition("/")
        self._root = (f"/{prefix.strip('/')}" if prefix.strip("/") else "") + root
        self._session_timeout_s = session_timeout_ms / 1000
        self._session = KazooSession(
            addresses,
            session_timeout_ms,
            connect_timeout_ms,
            request_timeout_ms or 2 * session_timeout_ms,
            credential,
            tls,
        )
        self._access = ZooKeeperAccess(self._session, self._root, credential)
        self._reads = NodeReads(self._session)
        self._writes = StateWrites(self._session)
        self._identity = ZooKeeperIdentity(self._session, self._reads, self._root)
        self._unreadable = Unreadable()
        self._lives = ZooKeeperLives(self._session, self._reads, self._unreadable, self._path("brokers"))
        self._locks = ZooKeeperLocks(self._session, self._path("locks"), self._session_timeout_s)
        self._listener: Listener = lambda _event: None
        self.security = ZooKeeperSecurity(
            self._session, self._reads, self._root, lambda: self._emit(CoordinationEvent.SECURITY_CHANGED)
        )
        self._making = asyncio.Lock()
        self._together = TopicsTogether(
            self._session, self._path, self._making, self.create_topic, self._withdraw, self._remove_states
        )
        self._noted: tuple[bytes, int] | None = None  # the change counter, as it was read or written here last
        self._read_all = True  # what is remembered of the topics may be of another ensemble, or one that was put back
        self._brokers_watch = self._session.watch(lambda: self._emit(CoordinationEvent.BROKERS_CHANGED))
        self._topics_watch = self._session.watch(lambda: self._emit(CoordinationEvent.TOPICS_CHANGED))

    # -------------------------------------------------------------- life

    async def start(self, listener: Listener) -> None:
        """Connect and make the paths. Raises `CoordinationUnavailable` naming the address."""
        self._listener = listener
        await self._session.open(self._on_state)
        try:
            await self._access.enter()
            self._access.warn()
            deadline = self._session.deadline()
            for path in ("brokers/live", "brokers/lives", "topics", "states", "topic_changes", *PATHS, "features"):
                await self._make(self._path(path), deadline)
        except ZookeeperError as error:
            await self.stop()
            raise CoordinationUnavailable(
                f"ZooKeeper at {self._session.hosts} refuses {self._root}: {error!r}"
            ) from error
        except CoordinationUnavailable:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the session: registrations vanish at once."""
        self._locks.stop()
        self._access.stop()
        await self._session.close()

    @property
    def condition(self) -> str:
        return "connected" if self._session.connected else "suspended"

    @property
    def access(self) -> str:
        return self._access.state

    def _on_state(self, state: str) -> None:
        self._locks.on_state(state)
        if state == KazooState.SUSPENDED:
            self._emit(CoordinationEvent.SUSPENDED)
        elif state == KazooState.LOST:
            self._emit(CoordinationEvent.SESSION_LOST)
        else:
            self._read_all = True
            self._noted = None
            self._access.look_again()
            self._emit(CoordinationEvent.CONNECTED)
            # Watches went with the connection, and what they would have told may have happened meanwhile.
            self._emit(CoordinationEvent.BROKERS_CHANGED)
            self._emit(CoordinationEvent.TOPICS_CHANGED)
            self._emit(CoordinationEvent.SECURITY_CHANGED)

    def _emit(self, event: CoordinationEvent) -> None:
        self._listener(event)

    def _path(self, *parts: object) -> str:
        return "/".join([self._root, *(str(part) for part in parts)])

    async def _make(self, path: str, deadline: float) -> None:
        """An empty node and those above it, where they are not there yet."""
        await self._session.ask_again(lambda client: client.ensure_path_async(path), deadline)

    async def _read(self, path: str, deadline: float) -> tuple[bytes, Any] | None:
        """(data, stat) of a node as it is now (after a sync); None if there is none."""
        return await self._reads.read(path, deadline)

    # -------------------------------------------------------------- the cluster and its brokers

    async def cluster_id(self) -> str:
        return await self._identity.cluster_id()

    async def peer_secret(self) -> bytes | None:
        return await self._identity.peer_secret()

    async def begin_life(self, broker: int, above: int = 0) -> int:
        return await self._lives.begin(broker, above)

    async def known_stamp(self, broker: int) -> int | None:
        return await self._lives.known_stamp(broker)

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        await self._lives.keep_stamp(broker, stamp)

    async def register(self, registration: BrokerRegistration) -> None:
        """Waits up to a session's length (and a half) where a former life of this broker was registered at another
        address: it may be alive, and is known to be dead only once its session ends. At our own address nobody else can
        be alive."""
        path = self._path("brokers/live", registration.broker)
        data = documents.dump(documents.registration_to_json(registration))
        deadline = self._session.deadline(at_least_s=1.5 * self._session_timeout_s)
        while True:
            found = await self._read(path, deadline)
            try:
                if found is None:
                    await self._session.ask(lambda client: client.create_async(path, data, ephemeral=True), deadline)
                    return
                other = self._unreadable.read(path, found[0], documents.registration_of(registration.broker))
                if other is None:  # nobody can be told by it: the counter of lives says who is the newest
                    await self._replace(path, data, registration, found[1].version, deadline)
                    return
                if other.incarnation > registration.incarnation:
                    if not await self._has_lived(other, deadline):
                        _log.error("%s names a start that there has not been: it is replaced", path)
                        await self._replace(path, data, registration, found[1].version, deadline)
                        return
                    raise _taken(registration, other)
                if found[1].ephemeralOwner == self._session.session_id:
                    if other != registration:
                        await self._session.ask(lambda client: client.set_async(path, data), deadline)
                    return  # if they are equal, only the answer to our create was lost
                if other.incarnation < registration.incarnation and other.address != registration.address:
                    if asyncio.get_running_loop().time() + 2 * _FORMER_LIFE_POLL_S > deadline:
                        raise _taken(registration, other)
                    await asyncio.sleep(_FORMER_LIFE_POLL_S)
                    continue
                await self._replace(path, data, registration, found[1].version, deadline)
                return
            except (NodeExistsError, NoNodeError, BadVersionError):
                await self._session.pause_or_give_up(deadline, AnswerLost(f"{path} keeps changing"))
            except AnswerLost as error:
                await self._session.pause_or_give_up(deadline, error)

    async def _has_lived(self, other: BrokerRegistration, deadline: float) -> bool:
        """Whether the counter of that broker's lives has come so far. Anybody may have written the registration."""
        found = await self._read(self._path("brokers/lives", other.broker), deadline)
        return found is not None and other.incarnation <= found[1].version

    async def _replace(
        self, path: str, data: bytes, registration: BrokerRegistration, version: int, deadline: float
    ) -> None:
        # Every newly made node has version 0, so the version alone cannot tell the former life's node from one that a
        # newer life has put in its place since it was read. The check of the lives' counter does: a newer life has
        # moved it.
        lives = self._path("brokers/lives", registration.broker)

        def build(transaction: TransactionRequest) -> None:
            transaction.check(lives, registration.incarnation)
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)

        try:
            await self._session.commit(build, deadline)
        except BadVersionError:
            found = await self._read(lives, deadline)
            if found is not None and found[1].version > registration.incarnation:
                raise InvalidRequest(
                    f"a newer process was started as broker {registration.broker} (start {found[1].version}; "
                    f"this is {registration.incarnation}): stop one of them, or give one another --id"
                ) from None
            raise
        _log.info("broker %d: replaced the registration that a former session had left", registration.broker)

    async def brokers(self) -> dict[int, BrokerRegistration]:
        live = self._path("brokers/live")
        deadline = self._session.deadline()
        names = await self._children(live, self._brokers_watch, deadline)
        found = await self._reads.read_many([f"{live}/{name}" for name in names], deadline)
        read = [
            self._unreadable.read(path, data, documents.registration_of(path.rpartition("/")[2]))
            for path, data in found
        ]
        registrations = [registration for registration in read if registration is not None]
        return {registration.broker: registration for registration in sorted(registrations, key=lambda r: r.broker)}

    async def level(self) -> int:
        return (await self._features(self._session.deadline()))[1].level

    async def raise_level(self, level: int) -> int:
        deadline = self._session.deadline()
        path = self._path("features")
        while True:
            version, features = await self._features(deadline)
            if features.level >= level:
                return features.level
            data = documents.dump(documents.features_to_json(replace(features, level=level)))
            with contextlib.suppress(BadVersionError):  # somebody else has: look again
                await self._session.ask_again(partial(_set, path, data, version), deadline)

    async def _features(self, deadline: float) -> tuple[int, Features]:
        path = self._path("features")
        data, stat = await self._session.ask_synced(
            lambda client: client.get_async(path, watch=self._brokers_watch), deadline
        )
        if not data:  # there is no cluster yet
            return int(stat.version), Features()
        return int(stat.version), self._unreadable.require(path, data, documents.features_from_json)

    # -------------------------------------------------------------- topics

    async def topics(self) -> dict[str, TopicSpec]:
        return (await self.topic_changes(-1)).present

    async def topic_changes(self, since: int) -> TopicChanges:
        if self._read_all:
            since, self._read_all = -1, False
        try:
            return await self._changes(since, self._session.deadline())
        except BaseException:
            self._read_all = True
            raise

    async def _changes(self, since: int, deadline: float) -> TopicChanges:
        topics = self._path("topics")
        # The counter first: a change after it was read fires the watch, even if what is read below already has it.
        note, stat = await self._session.ask_synced(
            lambda client: client.get_async(self._path("topic_changes"), watch=self._topics_watch), deadline
        )
        self._noted = note, int(stat.version)
        changed = change_notes.since(note, stat.version, since) if since >= 0 else None
        names = changed if changed is not None else sorted(await self._children(topics, None, deadline))
        found = await self._reads.read_many([f"{topics}/{name}" for name in names], deadline)
        nodes = [(path.rpartition("/")[2], path, data) for path, data in found]
        read = {name: self._unreadable.read(path, data, documents.topic_of(name)) for name, path, data in nodes}
        present = {name: spec for name, spec in read.items() if spec is not None}
        unreadable = tuple(name for name, spec in read.items() if spec is None)
        self._read_all = bool(unreadable)  # whoever puts such a document right need not know of the counter
        gone = tuple(name for name in changed or () if name not in read)
        return TopicChanges(int(stat.version), changed is None, present, gone, unreadable)

    async def _note(self, name: str, deadline: float, noted: tuple[bytes, int] | None = None) -> tuple[bytes, int]:
        """What the change counter is to say with a change of that topic, and the version that it stands on. `noted`: as
        it was a moment ago, for who insists on that version."""
        if noted is None:
            note, stat = await self._session.ask_again(
                lambda client: client.get_async(self._path("topic_changes")), deadline
            )
            noted = note, int(stat.version)
        return change_notes.with_change(*noted, name), noted[1]

    async def create_topic(self, topic: TopicSpec, states: tuple[NodeState, ...]) -> None:
        check_topic_name(topic.name, internal=True)
        deadline = self._session.deadline()
        path, home = self._path("topics", topic.name), self._path("states", topic.topic_id)

        async def create(attempt: int) -> None:
            note, version = await self._note(topic.name, deadline, self._noted if attempt == 1 else None)
            last = attempt == NOTE_ATTEMPTS  # then without insisting: whoever reads the note sees that one is missing
            self._noted = None

            def build(transaction: TransactionRequest) -> None:
                transaction.check(home, 0)
                transaction.create(path, documents.dump(documents.topic_to_json(topic)))
                transaction.set_data(self._path("topic_changes"), note, -1 if last else version)

            await self._session.commit(build, deadline)
            self._noted = None if last else (note, version + 1)

        try:
            await self._create_states(home, states, deadline)
        except InvalidRequest:
            await self._remove_states(topic.topic_id)
            raise
        except AnswerLost as error:  # nothing names them, whatever became of them
            if self._session.connected and not isinstance(error, Denied):
                await self._remove_states(topic.topic_id)
            raise CoordinationUnavailable(f"topic {topic.name!r} was not made: {error}") from error
        try:
            async with self._making:
                for attempt in range(1, NOTE_ATTEMPTS + 1):
                    try:
                        await create(attempt)
                        break
                    except BadVersionError:  # another topic was changed meanwhile
                        if attempt == NOTE_ATTEMPTS:
                            raise
        except NodeExistsError:
            await self._remove_states(topic.topic_id)
            raise TopicExists(f"topic {topic.name!r} exists already: choose another name, or delete it first") from None
        except InvalidRequest:  # too large to be sent: the states are there, and nothing names them
            await self._remove_states(topic.topic_id)
            raise
        except Denied as error:
            raise CoordinationUnavailable(f"topic {topic.name!r} was not made: {error}") from error
        except (AnswerLost, CoordinationUnavailable) as error:
            await self._withdraw(topic, error)

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TritonMQError | None]:
        return await self._together.make(topics)

    async def _create_states(self, home: str, states: Sequence[NodeState], deadline: float) -> None:
        for first in range(0, len(states), TRANSACTION_OPERATIONS_MAX):

            def build(transaction: TransactionRequest, first: int = first) -> None:
                if first == 0:
                    transaction.create(home)
                for partition, state in enumerate(states[first : first + TRANSACTION_OPERATIONS_MAX], start=first):
                    transaction.create(f"{home}/{partition}", documents.dump(documents.state_to_json(state)))

            await self._session.commit(build, deadline)

    async def _withdraw(self, topic: TopicSpec, cause: Exception) -> None:
        """The answer was lost: return if the topic was made after all, raise otherwise. A set on the states' parent
        comes first, since the transaction that makes the topic checks it: if it has not happened by then it never
        will."""
        path, home = self._path("topics", topic.name), self._path("states", topic.topic_id)
        deadline = self._session.deadline()
        try:
            try:
                await self._session.ask_again(lambda client: client.set_async(home, b"withdrawn"), deadline)
            except NoNodeError:
                raise CoordinationUnavailable(f"topic {topic.name!r} was not made: {cause}; ask again") from cause
            found = await self._read(path, deadline)
        except CoordinationUnavailable as error:
            raise OutcomeUnknown(
                f"topic {topic.name!r} may or may not have been made: {error}; then see whether it is there"
            ) from error
        if (
            found is not None
            and documents.load(found[0], documents.topic_of(topic.name), path).topic_id == topic.topic_id
        ):
            return
        await self._remove_states(topic.topic_id)
        if found is not None:
            raise TopicExists(f"topic {topic.name!r} exists already: choose another name, or delete it first")
        raise CoordinationUnavailable(f"topic {topic.name!r} was not made: {cause}; ask again") from cause

    async def read_topic(self, name: str) -> tuple[int, TopicSpec] | None:
        check_topic_name(name, internal=True)
        path = self._path("topics", name)
        found = await self._read(path, self._session.deadline())
        if found is None:
            return None
        return int(found[1].version), self._unreadable.require(path, found[0], documents.topic_of(name))

    async def update_topic(
        self, expected_version: int, topic: TopicSpec, states: tuple[NodeState, ...] = ()
    ) -> tuple[CasOutcome, int]:
        assert expected_version >= 0, "a version of -1 would be no compare-and-set"
        assert len(states) <= PARTITIONS_ADDED_AT_ONCE_MAX
        path, home = self._path("topics", topic.name), self._path("states", topic.topic_id)
        try:
            note, _ = await self._note(topic.name, self._session.deadline())
        except (
            CoordinationUnavailable
        ) as error:  # nothing was asked yet, but who waits for an outcome is told in one way
            _log.warning("topic %s was not changed from version %d: %s", topic.name, expected_version, error)
            return CasOutcome.UNKNOWN, -1

        def build(transaction: TransactionRequest) -> None:
            # A topic made again has version 0 again: only the states' parent, touched when a topic goes, tells the two
            # apart.
            transaction.check(home, 0)
            transaction.set_data(path, documents.dump(documents.topic_to_json(topic)), expected_version)
            for partition, state in enumerate(states, start=len(topic.assignment) - len(states)):
                transaction.create(f"{home}/{partition}", documents.dump(documents.state_to_json(state)))
            transaction.set_data(self._path("topic_changes"), note)

        try:
            results = await self._session.commit(build, self._session.deadline())
        except (BadVersionError, NoNodeError, NodeExistsError):
            return CasOutcome.REFUSED, -1
        except (AnswerLost, ZookeeperError) as error:
            _log.warning(
                "whether topic %s was changed from version %d is unknown: %s", topic.name, expected_version, error
            )
            return CasOutcome.UNKNOWN, -1
        return CasOutcome.DONE, int(results[1].version)

    async def delete_topic(self, name: str) -> None:
        check_topic_name(name, internal=True)
        deadline = self._session.deadline()
        path = self._path("topics", name)
        found = await self._read(path, deadline)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}: see `tritonmq topic list`")
        topic = self._unreadable.require(path, found[0], documents.topic_of(name))
        note, _ = await self._note(name, deadline)

        def build(transaction: TransactionRequest) -> None:
            # Every newly made node has version 0: only the states' parent tells this topic from one made since under
            # its name.
            transaction.set_data(self._path("states", topic.topic_id), b"deleted", 0)
            transaction.delete(path)
            transaction.set_data(self._path("topic_changes"), note)

        try:
            await self._session.commit(build, deadline)
        except (NoNodeError, BadVersionError):
            raise UnknownTopic(f"there is no topic {name!r} any more: it was deleted meanwhile") from None
        except AnswerLost as error:
            raise OutcomeUnknown(f"topic {name!r} may or may not have been deleted: {error}; ask again") from error
        await self._remove_states(topic.topic_id)

    async def _remove_states(self, topic_id: str) -> None:
        """Of a topic that is no more. What cannot be removed now stays, unnamed and harmless."""
        home = self._path("states", topic_id)
        deadline = self._session.deadline()
        try:
            names = await self._children(home, None, deadline)
            for first in range(0, len(names), TRANSACTION_OPERATIONS_MAX):
                chunk = names[first : first + TRANSACTION_OPERATIONS_MAX]

                def build(transaction: TransactionRequest, chunk: Sequence[str] = chunk) -> None:
                    for name in chunk:
                        transaction.delete(f"{home}/{name}")

                await self._session.commit(build, deadline)
            await self._session.ask(lambda client: client.delete_async(home), deadline)
        except NoNodeError:
            return
        except (AnswerLost, CoordinationUnavailable, ZookeeperError) as error:
            _log.warning("the states of a removed topic stay behind at %s: %s", home, error)

    # -------------------------------------------------------------- one partition

    async def read_state(self, topic_id: str, partition: int) -> tuple[int, NodeState] | None:
        path = self._path("states", topic_id, partition)
        found = await self._read(path, self._session.deadline())
        if found is None:
            return None
        return int(found[1].version), self._unreadable.require(path, found[0], documents.state_from_json)

    async def write_state(
        self, topic_id: str, partition: int, expected_version: int, state: NodeState
    ) -> tuple[CasOutcome, int]:
        path = self._path("states", topic_id, partition)
        data = documents.dump(documents.state_to_json(state))
        assert expected_version >= 0, "a version of -1 would be no compare-and-set"
        return await self._writes.write(path, data, expected_version)

    # -------------------------------------------------------------- locks

    async def queue_for_lock(self, name: str) -> LockPlace:
        return await self._locks.queue(name)

    @property
    def lock_silence_ms(self) -> int:
        return self._locks.silence_ms

    # -------------------------------------------------------------- lists

    async def _children(self, path: str, watch: Any, deadline: float) -> list[str]:
        names: list[str] = await self._session.ask_synced(
            lambda client: client.get_children_async(path, watch=watch), deadline
        )
        return names


def _set(path: str, data: bytes, version: int, client: KazooClient) -> Any:
    return client.set_async(path, data, version)


def _taken(registration: BrokerRegistration, other: BrokerRegistration) -> InvalidRequest:
    return InvalidRequest(
        f"another process runs as broker {registration.broker}, at {other.address} (start {other.incarnation}; "
        f"this is {registration.incarnation}): stop it, or give this one another --id"
    )
