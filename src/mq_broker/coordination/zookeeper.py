"""The store in ZooKeeper. The session itself is kazoo_session.py's.

Transactions of one change that are ready together go as one, which is all or nothing though they have nothing to do
with each other: if it is refused, each goes by itself. Measured on two cores with one server: 3,000 writes a second one
a question, 20,000 gathered. Readings that come together are one question, which goes out behind a sync, both once all
of its readings have been asked for, so none is older than its asking. Kazoo has no request for several readings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    EXCEPTIONS,
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    ZookeeperError,
)
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, stat_struct
from kazoo.protocol.states import KazooState

from mq_broker.coordination.credential import Credential
from mq_broker.coordination.gathering import Gathering
from mq_broker.coordination.kazoo_session import LOOK, AnswerLost, Denied, KazooSession
from mq_broker.coordination.store import Change, Make, Node, Put, Remove, StoreEvent, Watch, Written, size_of
from mq_broker.coordination.zookeeper_access import ZooKeeperAccess
from mq_broker.core.messages import CasOutcome
from mq_protocol.access.pem import Files
from mq_protocol.errors import CoordinationUnavailable
from mq_protocol.limits import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS

_log = logging.getLogger(__name__)

READS_TOGETHER: Final = 100
"""A topic of many partitions has tens of kilobytes: so many answers are some megabytes at worst."""

READS_IN_FLIGHT: Final = 2
CHANGES_TOGETHER: Final = 100
BYTES_TOGETHER: Final = 256 << 10
WRITES_IN_FLIGHT: Final = 4

_REFUSED: Final = (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError)
_ERROR: Final = -1
_EVENTS: Final = {KazooState.SUSPENDED: StoreEvent.SUSPENDED, KazooState.LOST: StoreEvent.LOST}


class ZooKeeperStore:
    """Owns one session. `hosts` is `HOST:PORT[,HOST:PORT…][/PREFIX]`; everything lies below `PREFIX` + `root`.
    Questions wait `request_timeout_ms` for their answers: by default two sessions, in which a dropped connection is
    noticed and, if a server is there, made again.
    """

    alone = False

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
        self._session = KazooSession(
            hosts, session_timeout_ms, connect_timeout_ms, request_timeout_ms or 2 * session_timeout_ms, credential, tls
        )
        self.home = self._session.prefix + root
        self.session_s = session_timeout_ms / 1000
        self._access = ZooKeeperAccess(self._session, self.home, credential)
        self._reads = Gathering(self._read, READS_TOGETHER, READS_IN_FLIGHT)
        self._writes = Gathering(self._write, CHANGES_TOGETHER, WRITES_IN_FLIGHT)
        self._listener: Callable[[StoreEvent], None] = lambda _event: None

    @property
    def patience_s(self) -> float:
        return self._session.request_timeout_s

    @property
    def condition(self) -> str:
        return "connected" if self._session.connected else "suspended"

    @property
    def access(self) -> str:
        return self._access.state

    async def start(self, listener: Callable[[StoreEvent], None]) -> None:
        self._listener = listener
        await self._session.open(self._on_state)
        try:
            await self._access.enter()
            self._access.warn()
        except (ZookeeperError, CoordinationUnavailable) as error:
            await self.stop()
            if isinstance(error, CoordinationUnavailable):
                raise
            raise self._refuses(self.home, error) from error

    async def stop(self) -> None:
        self._access.stop()
        await self._session.close()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._access.look_again()
        self._listener(_EVENTS.get(state, StoreEvent.CONNECTED))

    def _path(self, path: str) -> str:
        return f"{self.home}/{path}"

    def _refuses(self, path: str, error: Exception) -> CoordinationUnavailable:
        return CoordinationUnavailable(f"ZooKeeper at {self._session.hosts} refuses {path}: {error!r}")

    # -------------------------------------------------------------- reading

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        watching = None if watch is None else self._session.watch(watch)
        # Not `exists`: of a node that is not there it would leave a watch for ever
        found = await self._watching(path, lambda client: client.get_async(self._path(path), watch=watching))
        return None if found is None else self._node(found)

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        watching = None if watch is None else self._session.watch(watch)
        names: list[str] | None = await self._watching(
            path, lambda client: client.get_children_async(self._path(path), watch=watching)
        )
        return names

    async def _watching(self, path: str, question: Callable[[KazooClient], Any]) -> Any:
        """None if there is no such node."""
        try:
            return await self._session.ask_synced(question, self._session.deadline())
        except NoNodeError:
            return None
        except ZookeeperError as error:
            raise self._refuses(self._path(path), error) from error

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        loop = asyncio.get_running_loop()
        reads = [_Read(self._path(path), loop.create_future()) for path in paths]
        self._reads.add(reads)
        try:
            async with asyncio.timeout_at(self._session.deadline()):
                return await asyncio.gather(*(read.answer for read in reads))
        except TimeoutError:
            raise CoordinationUnavailable(f"{self._session.silent()}: {LOOK}") from None

    async def _read(self, reads: list[_Read]) -> None:
        paths = [read.path for read in reads]
        ask, deadline = self._session.ask_synced, self._session.deadline()
        try:
            if len(paths) > 1:
                found: list[Any] = await ask(lambda client: _multi_read(client, paths), deadline)
            else:
                found = [await ask(lambda client: client.get_async(paths[0]), deadline)]
        except (CoordinationUnavailable, ZookeeperError) as error:
            found = [error] * len(reads)
        for read, node in zip(reads, found, strict=True):
            if read.answer.done():
                continue
            if isinstance(node, NoNodeError):
                read.answer.set_result(None)
            elif isinstance(node, NoAuthError):
                read.answer.set_exception(CoordinationUnavailable(str(self._session.denied())))
            elif isinstance(node, ZookeeperError):
                read.answer.set_exception(self._refuses(read.path, node))
            elif isinstance(node, Exception):
                read.answer.set_exception(node)
            else:
                read.answer.set_result(self._node(node))

    def _node(self, found: tuple[bytes | None, Any]) -> Node:
        data, stat = found  # None is what somebody made without any
        mine = bool(stat.ephemeralOwner) and stat.ephemeralOwner == self._session.session_id
        return Node(data or b"", int(stat.version), int(stat.czxid), mine)

    # -------------------------------------------------------------- writing

    async def transact(self, changes: Sequence[Change]) -> Written:
        write = _Write(changes, size_of(changes), asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout_at(self._session.deadline()):
                if len(changes) == 1:
                    self._writes.add([write])
                else:
                    await self._commit([write])
                return await write.answer
        except TimeoutError:
            return Written(CasOutcome.UNKNOWN, why=self._session.silent())

    async def _write(self, writes: list[_Write]) -> None:
        if not await self._commit(writes):
            await asyncio.gather(*(self._commit([write]) for write in writes if not write.answer.done()))

    async def _commit(self, writes: Sequence[_Write]) -> bool:
        """Whether all are answered. If not, none of them has happened."""

        def build(transaction: TransactionRequest) -> None:
            for write in writes:
                for change in write.changes:
                    self._add(transaction, change)

        try:
            results = await self._session.commit(build, self._session.deadline())
            failed = next((at for at, result in enumerate(results) if _is_cause(result)), -1)
            if failed >= 0 and not isinstance(results[failed], _REFUSED):
                raise self._session.denied() if isinstance(results[failed], NoAuthError) else results[failed]
        except Denied as error:
            for write in writes:
                if not write.answer.done():
                    write.answer.set_exception(CoordinationUnavailable(str(error)))
            return True
        except (AnswerLost, ZookeeperError) as error:
            _log.warning("whether %s was written, of %d transactions, is unknown: %s", *_example(writes), error)
            for write in writes:
                _settle(write, Written(CasOutcome.UNKNOWN, why=str(error)))
            return True
        if failed >= 0:
            if len(writes) == 1:
                _settle(writes[0], Written(CasOutcome.REFUSED, at=failed))
            return len(writes) == 1
        each = iter(results)
        for write in writes:
            versions = tuple(int(getattr(next(each), "version", 0)) for _ in write.changes)
            _settle(write, Written(CasOutcome.DONE, versions))
        return True

    def _add(self, transaction: TransactionRequest, change: Change) -> None:
        path = self._path(change.path)
        match change:
            case Make(_, data, ephemeral, sequential):
                transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
            case Put(_, data, version):
                transaction.set_data(path, data, version)
            case Remove(_, version):
                transaction.delete(path, version)
            case _:
                transaction.check(path, change.version)


@dataclass(slots=True)
class _Read:
    path: str
    answer: asyncio.Future[Node | None]
    weight: int = 1


@dataclass(slots=True)
class _Write:
    changes: Sequence[Change]
    size: int
    answer: asyncio.Future[Written]

    @property
    def weight(self) -> int:
        """One change, or as many as so many bytes stand for."""
        return max(1, self.size * CHANGES_TOGETHER // BYTES_TOGETHER)


def _settle(write: _Write, written: Written) -> None:
    if not write.answer.done():
        write.answer.set_result(written)


def _example(writes: Sequence[_Write]) -> tuple[str, int]:
    return writes[0].changes[0].path, len(writes)


def _is_cause(result: Any) -> bool:
    """Whether it is what made a transaction fail, and no result or what fell with it."""
    return isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency)


@dataclass(frozen=True, slots=True)
class _MultiRead:
    """ZooKeeper's `multiRead` of data, as a request of kazoo's. Its answer: for each path what `GetData` answers, or
    the error."""

    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        asked = bytearray()
        for path in self.paths:
            asked += MultiHeader(GetData.type, False, -1).serialize()
            asked += GetData(path, None).serialize()
        asked += MultiHeader(-1, True, -1).serialize()
        return asked

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[tuple[bytes, Any] | Exception]:
        found: list[tuple[bytes, Any] | Exception] = []
        header, offset = MultiHeader.deserialize(answer, offset)
        while not header.done:
            if header.type == _ERROR:
                found.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            else:
                data, stat = GetData.deserialize(answer, offset)
                found.append((data, stat))
                offset += int_struct.size + len(data or b"") + stat_struct.size
            header, offset = MultiHeader.deserialize(answer, offset)
        return found


def _multi_read(client: KazooClient, paths: Sequence[str]) -> Any:
    answer = client.handler.async_result()
    client._call(_MultiRead(paths), answer)  # noqa: SLF001 - as its own requests do: kazoo has no other way in for one of ours
    return answer
