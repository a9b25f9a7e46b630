"""What brokers agree on, above any store: the cluster, who lives, partition states, and documents of security.

Paths are in DESIGN.md. Topics are in `topics.py`, locks in `locks.py`. Once a transaction's answer is lost, only the
store can say what became of it. Each is therefore such that it can be settled: by reading something it alone writes, or
by asking again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from mq_broker.coordination import documents
from mq_broker.coordination.documents import Unreadable
from mq_broker.coordination.interface import (
    LIVES_BEHIND_MAX,
    SECURITY_DOCUMENTS,
    BrokerRegistration,
    ClusterSpec,
    CoordinationEvent,
    Listener,
    SecurityDocuments,
)
from mq_broker.coordination.locks import LockPlace, Locks
from mq_broker.coordination.store import (
    Change,
    Check,
    Make,
    Node,
    Put,
    Remove,
    Store,
    StoreEvent,
    Watch,
    Written,
    names_below,
    pause_or_give_up,
    surely,
)
from mq_broker.coordination.topics import Topics
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol.errors import CoordinationUnavailable, InternalError, InvalidRequest, InvalidSetting
from mq_protocol.versions import FIRST, LEVEL

_log = logging.getLogger(__name__)

_HOMES: Final = (
    *("brokers", "brokers/live", "brokers/lives", "brokers/stamps", "topics", "topic_changes", "states", "locks"),
    *("security", "security/acls", "security/changes"),
)
_SECRET_BYTES: Final = 32
_SECRET: Final = re.compile(rb"[0-9a-f]{64}")
_FORMER_LIFE_POLL_S: Final = 0.1
_STARTS_AT_ONCE: Final = 500


class CoordinationService(Topics):
    """A broker's (or a tool's) view of the cluster. Owns one session with `store`. `security`: the documents that say
    who may do what.

    Methods are coroutines that never block the event loop; each has a deadline inside and raises
    `CoordinationUnavailable` past it. Events arrive on the loop through the listener given to `start`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Unreadable(), partial(self._emit, CoordinationEvent.TOPICS_CHANGED))
        self._listener: Listener = lambda _event: None
        self._locks = Locks(store)
        self._brokers_changed: Watch = partial(self._emit, CoordinationEvent.BROKERS_CHANGED)
        self.security = SecurityStore(store, partial(self._emit, CoordinationEvent.SECURITY_CHANGED))

    # -------------------------------------------------------------- life

    async def start(self, listener: Listener) -> None:
        """Connect. Raises `CoordinationUnavailable` naming the address when nobody answers within the connect
        timeout."""
        self._listener = listener
        await self._store.start(self._on_event)
        try:
            there = await self._store.get_all(_HOMES)
            for path in (path for path, node in zip(_HOMES, there, strict=True) if node is None):
                await surely(self._store, [Make(path)])
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the session: registrations vanish at once."""
        self._locks.stop()
        await self._store.stop()

    @property
    def condition(self) -> str:
        """ "connected", "suspended" or "file", for people."""
        return self._store.condition

    @property
    def access(self) -> str:
        """Who may read and write what is kept: "open" (everybody who reaches the service), "closing" or "closed" (the
        brokers alone); empty where there is no service."""
        return self._store.access

    def _on_event(self, event: StoreEvent) -> None:
        self._locks.on_event(event)
        if event is StoreEvent.SUSPENDED:
            self._emit(CoordinationEvent.SUSPENDED)
        elif event is StoreEvent.LOST:
            self._emit(CoordinationEvent.SESSION_LOST)
        else:
            self.forget_topics()
            self._emit(CoordinationEvent.CONNECTED)
            # Watches went with the connection, and what they would have told may have happened meanwhile.
            self._emit(CoordinationEvent.BROKERS_CHANGED)
            self._emit(CoordinationEvent.TOPICS_CHANGED)
            self._emit(CoordinationEvent.SECURITY_CHANGED)

    def _emit(self, event: CoordinationEvent) -> None:
        self._listener(event)

    # -------------------------------------------------------------- the cluster

    async def cluster_id(self) -> str:
        """Made once per cluster, by whoever comes first."""
        # The highest level, since no broker of an earlier release has written here
        mine = documents.dump(documents.cluster_to_json(ClusterSpec(uuid.uuid4().hex, LEVEL)))
        found = await self._made_once("cluster", mine)
        return documents.load(found, documents.cluster_from_json, self._where("cluster")).id

    async def peer_secret(self) -> bytes | None:
        """32 random bytes by which brokers of this cluster know each other. Made once, by whoever comes first. Never
        log them. None where a cluster is one broker, which has no peers. `InternalError` if something else is in its
        place."""
        if self._store.alone:
            return None
        path = "security/peer_secret"
        found = await self._made_once(path, secrets.token_bytes(_SECRET_BYTES).hex().encode())
        if not _SECRET.fullmatch(found):
            raise InternalError(
                f"{self._where(path)} does not hold {2 * _SECRET_BYTES} hex digits, as TritonMQ writes there: was it "
                "edited? Stop all brokers, delete the node, and start them again"
            )
        return bytes.fromhex(found.decode())

    async def _made_once(self, path: str, mine: bytes) -> bytes:
        """What that node holds, which is `mine` if nobody has made it before."""
        while (found := await self._store.get(path)) is None:
            await surely(self._store, [Make(path, mine)])
        return found.data

    async def level(self) -> int:
        """The cluster's level of features (`mq_protocol/versions.py`). Once this has returned, BROKERS_CHANGED will
        follow any later change. Raises `CoordinationUnavailable`, also if its document cannot be read."""
        found = await self._cluster()
        return FIRST if found is None else found[1].level

    async def raise_level(self, level: int) -> int:
        """The level afterwards: at least `level`, since it is never lowered. May be asked again.
        `CoordinationUnavailable`."""
        while (found := await self._cluster()) is None or found[1].level < level:
            if found is None:
                await self.cluster_id()
            else:
                raised = documents.dump(documents.cluster_to_json(replace(found[1], level=level)))
                await surely(self._store, [Put("cluster", raised, found[0])])  # if somebody else has: look again
        return found[1].level

    async def _cluster(self) -> tuple[int, ClusterSpec] | None:
        # The list is watched as well: where there is no cluster yet, who makes it registers in it next
        node = await self._store.get("cluster", self._brokers_changed)
        if node is None:
            return None
        return node.version, self._unreadable.require(self._where("cluster"), node.data, documents.cluster_from_json)

    # -------------------------------------------------------------- brokers

    async def begin_life(self, broker: int, above: int = 0) -> int:
        """The incarnation of this process: grows with every call for that broker id, for ever. `above`: the last one
        that is known elsewhere, for a service that was put back to an older copy gives no number twice either. Raises
        `InvalidSetting` if it is more than `LIVES_BEHIND_MAX` starts behind, and `CoordinationUnavailable`."""
        # Asked again after a lost answer it may count twice: an incarnation must grow, not be dense.
        path, behind = f"brokers/lives/{broker}", 1
        while (count := await self._counted(path, [Put(path, b"")] * behind)) <= above:
            if above - count > LIVES_BEHIND_MAX:
                raise InvalidSetting(
                    f"{self._where(path)} counts {count} starts of broker {broker}, and its data directory {above}: "
                    "was another backup put back? Restore the right one"
                )
            behind = min(above - count + 1, _STARTS_AT_ONCE)
        return count

    async def known_stamp(self, broker: int) -> int | None:
        """The last stamp of that broker's data directory that was kept here; 0 if none was, or it cannot be read. None
        where this lies in that directory itself, and is copied with it. Raises `CoordinationUnavailable`."""
        path = f"brokers/stamps/{broker}"
        node = None if self._store.alone else await self._store.get(path)
        if node is None or not node.data:
            return None if self._store.alone else 0
        return self._unreadable.read(self._where(path), node.data, documents.stamp_from_json) or 0

    async def keep_stamp(self, broker: int, stamp: int) -> None:
        """What that broker's directory has reached, durably, and a registered process has said: a lower one in its
        place only makes an older copy look young. Raises `CoordinationUnavailable`."""
        path = f"brokers/stamps/{broker}"
        if not self._store.alone:
            await self._counted(path, [Put(path, documents.dump(documents.stamp_to_json(stamp)))])

    async def _counted(self, path: str, changes: Sequence[Change]) -> int:
        """The version after changes of that node, which is made if it is not there yet."""
        while not (written := await surely(self._store, changes)).done:
            await surely(self._store, [Make(path)])
        return written.versions[-1]

    async def register(self, registration: BrokerRegistration) -> None:
        """Make the broker's ephemeral node, in *this* session: a node left by its own former session, or by an earlier
        life at the same address, is replaced, never taken for success (trap 2). An earlier life at *another* address is
        waited for until its session must have ended. Raises `InvalidRequest` if another live process has this broker
        id, a newer one above all: whoever finds its own broker id in `brokers()` with a newer incarnation must stop."""
        path = f"brokers/live/{registration.broker}"
        clock = asyncio.get_running_loop().time
        deadline = clock() + max(self._store.patience_s, 1.5 * self._store.session_s)
        await self._check_alone(registration)
        while True:
            node = await self._store.get(path)
            if node is not None and await self._is_awaited(node, registration):
                if clock() + 2 * _FORMER_LIFE_POLL_S > deadline:
                    raise _taken(registration, documents.load(node.data, documents.registration_from_json, path))
                await asyncio.sleep(_FORMER_LIFE_POLL_S)
                continue
            written = await self._replace(path, node, registration)
            if written.done:
                return
            await pause_or_give_up(deadline, written.why or f"{self._where(path)} keeps changing")

    async def _check_alone(self, registration: BrokerRegistration) -> None:
        if not self._store.alone:
            return
        for other in await names_below(self._store, "brokers/live"):
            if other != str(registration.broker):
                raise InvalidRequest(
                    f"broker {other} stands alone: for more than one give each --zookeeper instead of --standalone"
                )

    async def _is_awaited(self, node: Node, mine: BrokerRegistration) -> bool:
        """Whether who is registered there may be alive. Raises `InvalidRequest` if a newer process is."""
        where = self._where(f"brokers/live/{mine.broker}")
        other = self._unreadable.read(where, node.data, documents.registration_of(mine.broker))
        if other is None:  # nobody can be told by it: the counter of lives says who is the newest
            return False
        if other.incarnation <= mine.incarnation:
            return not node.mine and other.incarnation < mine.incarnation and other.address != mine.address
        lives = await self._store.get(f"brokers/lives/{mine.broker}")
        if lives is not None and other.incarnation <= lives.version:  # else anybody may have written it
            raise _taken(mine, other)
        _log.error("%s names a start that there has not been: it is replaced", where)
        return False

    async def _replace(self, path: str, node: Node | None, registration: BrokerRegistration) -> Written:
        # Every newly made node has version 0, so the version alone cannot tell the former life's node from one that a
        # newer life has put in its place since it was read. The check of the lives' counter does: a newer life has
        # moved it.
        data = documents.dump(documents.registration_to_json(registration))
        make = Make(path, data, ephemeral=True)
        if node is None:
            return await self._store.transact([make])
        if node.mine and node.data == data:  # only the answer to our own making was lost
            return Written(CasOutcome.DONE)
        lives = f"brokers/lives/{registration.broker}"
        written = await self._store.transact([Check(lives, registration.incarnation), Remove(path, node.version), make])
        if written.at == 0:
            count = await self._store.get(lives)
            if count is not None and count.version > registration.incarnation:
                raise InvalidRequest(
                    f"a newer process was started as broker {registration.broker} (start {count.version}; this is "
                    f"{registration.incarnation}): stop one of them, or give one another --id"
                )
        elif written.done:
            _log.info("broker %d: replaced the registration that was there", registration.broker)
        return written

    async def brokers(self) -> dict[int, BrokerRegistration]:
        """Those registered now; once this has returned, BROKERS_CHANGED will follow any later change. One whose
        registration cannot be read is left out, and the log says so."""
        names = await names_below(self._store, "brokers/live", self._brokers_changed)
        nodes = await self._store.get_all([f"brokers/live/{name}" for name in names])
        found = {}
        for name, node in zip(names, nodes, strict=True):  # one that went meanwhile: the watch on the list will tell
            where, parse = self._where(f"brokers/live/{name}"), documents.registration_of(name)
            if node is not None and (read := self._unreadable.read(where, node.data, parse)) is not None:
                found[read.broker] = read
        return dict(sorted(found.items()))

    # -------------------------------------------------------------- one partition

    async def read_state(self, topic_id: str, partition: int) -> tuple[int, NodeState] | None:
        """(version, state), read after a sync; None if there is no such node."""
        path = f"states/{topic_id}/{partition}"
        (node,) = await self._store.get_all([path])
        if node is None:
            return None
        return node.version, self._unreadable.require(self._where(path), node.data, documents.state_from_json)

    async def write_state(
        self, topic_id: str, partition: int, expected_version: int, state: NodeState
    ) -> tuple[CasOutcome, int]:
        """Compare-and-set: (DONE, new version), (REFUSED, -1) or (UNKNOWN, -1). Never raises for a lost answer: that is
        UNKNOWN."""
        assert expected_version >= 0, "a version of -1 would be no compare-and-set"
        data = documents.dump(documents.state_to_json(state))
        try:
            written = await self._store.transact([Put(f"states/{topic_id}/{partition}", data, expected_version)])
        except CoordinationUnavailable:  # nothing was done; who waits for an outcome is told in one way
            return CasOutcome.UNKNOWN, -1
        return written.outcome, written.versions[-1] if written.done else -1

    # -------------------------------------------------------------- locks

    async def queue_for_lock(self, name: str) -> LockPlace:
        """Take the last place in the queue for that lock, for one of this broker's clients. Raises
        `CoordinationUnavailable`."""
        return await self._locks.queue(name)

    @property
    def lock_silence_ms(self) -> int:
        """How long a holder may go without hearing from this broker and still be sure that nobody else has the lock,
        should the broker have stopped: its session lasts longer."""
        return self._locks.silence_ms


class SecurityStore:
    """A node for each document, and one that changes with every change, which alone is watched."""

    def __init__(self, store: Store, changed: Watch) -> None:
        self._store = store
        self._changed = changed

    async def read(self) -> SecurityDocuments:
        """All of them, not older than this call. Once it has returned, SECURITY_CHANGED will follow any later change
        that was made by `write`; what others write there is only seen by who reads again. Raises
        `CoordinationUnavailable`."""
        # The counter first: a change after it was read fires the watch, even if what is read below already has it.
        count = await self._store.get("security/changes", self._changed)
        nodes = await self._store.get_all([f"security/{name}" for name in SECURITY_DOCUMENTS])
        found = {n: (node.version, node.data) for n, node in zip(SECURITY_DOCUMENTS, nodes, strict=True) if node}
        return SecurityDocuments(0 if count is None else count.version, found)

    async def write(self, changes: Mapping[str, tuple[int, bytes]]) -> tuple[CasOutcome, int]:
        """Each document with the version that it is expected to have (-1: there is none) and its new contents; all of
        them or none. (DONE, the new version of them all), (REFUSED, -1) or (UNKNOWN, -1). Raises `InvalidRequest` for a
        document that is too large, or more than can be written at once."""
        documents.check_security_documents(changes)
        asked: list[Change] = [
            Make(f"security/{name}", data) if expected < 0 else Put(f"security/{name}", data, expected)
            for name, (expected, data) in changes.items()
        ]
        try:
            written = await self._store.transact([*asked, Put("security/changes", b"")])
        except CoordinationUnavailable as error:
            _log.warning("security documents were not changed: %s", error)
            return CasOutcome.UNKNOWN, -1
        return written.outcome, written.versions[-1] if written.done else -1


def _taken(registration: BrokerRegistration, other: BrokerRegistration) -> InvalidRequest:
    return InvalidRequest(
        f"another process runs as broker {registration.broker}, at {other.address} (start {other.incarnation}; "
        f"this is {registration.incarnation}): stop it, or give this one another --id"
    )
