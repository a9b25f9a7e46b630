"""The store of a broker that stands alone: kept in one file, no server.

Everything is in one JSON document, replaced as a whole (written beside, fsynced, renamed, directory fsynced), so a
crash leaves the old or the new one and never half. Changes that are ready together share one replacement: ten thousand
partitions claimed at a start are a few writes, not ten thousand. What is ephemeral lives in memory: it ends with the
process, as it must.

Not for two processes: a lock on the directory sees to that.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mq_broker.coordination import documents
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.store import Change, Kept, Node, StoreEvent, Tree, Watch, Watches, Written, size_of
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, InternalError, InvalidRequest

_log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 10.0
"""A disk that has not taken the document by then is reported as not answering; the write itself goes on."""

_DOCUMENT: Final = "coordination.json"
_LOCK: Final = "coordination.lock"
_FORMAT: Final = 1
"""Of the document. A later one is to be named in it."""

_BORN_AT_ONCE: Final = 1_000
"""How many nodes may be made, and not written, before the document is: none is `born` twice, not even after a crash."""


@dataclass(slots=True)
class _Waiting:
    changes: Sequence[Change]
    written: asyncio.Future[Written]


class FileStore:
    """Owns `directory`: its document and the lock on it."""

    alone = True
    condition = "file"
    access = ""
    session_s = WRITE_TIMEOUT_S
    patience_s = 0.0

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self.home = str(self._directory / _DOCUMENT)
        self._tree = Tree()
        self._born_until = 0
        self._watches = Watches()
        self._lock: int | None = None
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def start(self, listener: Callable[[StoreEvent], None]) -> None:
        try:
            self._lock = await asyncio.to_thread(_take_lock, self._directory)
            self._tree = await asyncio.to_thread(_load, self._directory)
        except OSError as error:
            self._release_lock()
            raise CoordinationUnavailable(
                f"cannot keep the cluster's state in {self._directory}: {error}; give another --data"
            ) from error
        except InternalError:
            self._release_lock()
            raise
        self._born_until = self._tree.born

    async def stop(self) -> None:
        """What was asked for is written first."""
        if self._writer is not None:
            _, late = await asyncio.wait([self._writer], timeout=WRITE_TIMEOUT_S)
            if late:
                _log.warning(
                    "the disk under %s has not taken the last changes within %g s", self._directory, WRITE_TIMEOUT_S
                )
                # Kept until this process ends: the write may still replace the document of the next one
                self._lock = None
        self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_open(self) -> None:
        if self._lock is None:
            raise CoordinationUnavailable(f"{self._directory} is not open: this broker is stopping")

    # -------------------------------------------------------------- the verbs

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self._check_open()
        node = self._tree.get(path, self)
        if node is not None:
            self._watches.add(path, watch)
        return node

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return [await self.get(path) for path in paths]

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        self._check_open()
        names = self._tree.children(path)
        if names is not None:
            self._watches.add(f"{path}/", watch)
        return names

    async def transact(self, changes: Sequence[Change]) -> Written:
        """Durable when it returns."""
        size_of(changes)
        self._check_open()
        waiting = _Waiting(changes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="coordination file")
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                return await waiting.written
        except TimeoutError:
            return _unknown(f"the disk under {self._directory} did not answer within {WRITE_TIMEOUT_S:g} s")

    # -------------------------------------------------------------- the document

    async def _write_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            draft = self._tree.copy()
            applied = [(each, *draft.apply(each.changes, self)) for each in waiting]
            fault = await self._store(draft) if draft.lasts or draft.born > self._born_until else ""
            if not fault or await self._has(draft):
                self._tree = draft
                draft.lasts = False
            for each, written, touched in applied:
                if not each.written.done():  # else its caller no longer waits
                    each.written.set_result(_unknown(fault) if fault and written.done else written)
                for watch in self._watches.taken(touched):
                    asyncio.get_running_loop().call_soon(watch)

    async def _store(self, draft: Tree) -> str:
        """Why the disk has not taken it; empty if it has."""
        until = draft.born + _BORN_AT_ONCE
        try:
            await asyncio.to_thread(_store, self._directory, draft, until)
        except OSError as error:
            _log.warning("whether the cluster's state was changed is unknown: %s", error)
            return f"cannot write {self.home}: {error}; make room or repair the disk"
        self._born_until = until
        return ""

    async def _has(self, draft: Tree) -> bool:
        """Which of the two documents is there now only the disk knows."""
        try:
            return (await asyncio.to_thread(_load, self._directory)).nodes() == _lasting(draft)
        except (OSError, InternalError):
            _log.exception("%s cannot be read back; going on from what was last known to be there", self.home)
            return False


def _unknown(why: str) -> Written:
    return Written(CasOutcome.UNKNOWN, why=why)


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


def _load(directory: Path) -> Tree:
    path = directory / _DOCUMENT
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Tree()
    return documents.load(data, _tree_from_json, str(path))


def _tree_from_json(document: dict[str, Any]) -> Tree:
    if document["format"] != _FORMAT:
        raise ValueError(
            f"it is of format {document['format']}, and this version reads format {_FORMAT}; start a newer one"
        )
    nodes = {}
    for path, (version, born, data) in document["nodes"].items():
        numbers = documents.number(version, path), documents.number(born, path)
        nodes[path] = Kept(documents.text(data, path).encode(), *numbers)
    return Tree(nodes, documents.number(document["born"], "born"))


def read_topics(directory: Path) -> tuple[TopicSpec, ...]:
    """The topics of a broker that stands alone and does not run; none if there is no document. Raises `InternalError`
    for one that cannot be believed, and `OSError`."""
    tree = _load(directory)
    return tuple(
        documents.load(node.data, documents.topic_of(name), f"{directory / _DOCUMENT}: topics/{name}")
        for name in sorted(tree.children("topics") or ())
        if (node := tree.find(f"topics/{name}")) is not None
    )


def _lasting(tree: Tree) -> dict[str, Kept]:
    return {path: node for path, node in tree.nodes().items() if node.owner is None}


def _store(directory: Path, tree: Tree, born: int) -> None:
    nodes = {path: [node.version, node.born, node.data.decode()] for path, node in _lasting(tree).items()}
    draft = directory / (_DOCUMENT + ".new")
    with draft.open("wb") as file:
        file.write(documents.dump({"format": _FORMAT, "born": born, "nodes": nodes}))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / _DOCUMENT)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
