"""What coordination is kept in: a tree of small nodes, written all or nothing. DESIGN.md has its verbs.

Three implementations, one contract suite: ZooKeeper (`zookeeper.py`), a file (`file.py`) and the simulator's. What is
kept, and what it means, is said once above them (`service.py`). `Tree` has the nodes of those that keep them in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest

TRANSACTION_BYTES_MAX: Final = 1_000_000
"""A little below what ZooKeeper takes in one request unless it is told otherwise (jute.maxbuffer)."""

_CHANGE_BYTES: Final = 64
"""What a change has beside its path and its data, at most."""

_ASK_AGAIN_S: Final = 0.05
_DIGITS: Final = 10


class StoreEvent(Enum):
    """Of the session, in order. The first connection is the return of `start`, not an event."""

    SUSPENDED = "suspended"  # no answer; the session may still live
    CONNECTED = "connected"  # again: watches are gone, and anything may have changed
    LOST = "lost"  # the session ended, and what was ephemeral in it; after CONNECTED there is a new one


class Node(NamedTuple):
    """`version`: how often it was written since it was made. `born`: higher than that of every node that was made
    before, anywhere and for ever. `mine`: ephemeral, and made in the present session."""

    data: bytes
    version: int
    born: int
    mine: bool = False


class Make(NamedTuple):
    """A node, with version 0, below one that is there and not ephemeral. `sequential`: a number of ten digits is
    appended, which grows with each node that is made below that one."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Put(NamedTuple):
    """New data of a node. -1: whatever its version is."""

    path: str
    data: bytes
    version: int = -1


class Remove(NamedTuple):
    """A node that has none below it."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """Nothing, if the node has that version."""

    path: str
    version: int


Change: TypeAlias = Make | Put | Remove | Check
Watch: TypeAlias = Callable[[], None]
"""Called on the loop, never within a call of the store. The same one may be given many times: it is kept once."""


class Written(NamedTuple):
    """What became of a transaction. DONE: `versions`, after each change, of its node. REFUSED: `at`, the change that
    could not be made; none was. UNKNOWN: `why`."""

    outcome: CasOutcome
    versions: tuple[int, ...] = ()
    at: int = -1
    why: str = ""

    @property
    def done(self) -> bool:
        return self.outcome is CasOutcome.DONE


class Store(Protocol):
    """`home`: where its nodes are, for people. `alone`: it is one broker's, in that broker's data directory.
    `session_s`: so long at most what is ephemeral outlives its process. `patience_s`: so long it waits for an answer,
    and so long it is worth to ask again."""

    home: str
    alone: bool
    session_s: float

    @property
    def patience_s(self) -> float: ...

    @property
    def condition(self) -> str:
        """ "connected", "suspended" or "file", for people."""

    @property
    def access(self) -> str:
        """As `CoordinationService.access`."""

    async def start(self, listener: Callable[[StoreEvent], None]) -> None:
        """Connect. Raises `CoordinationUnavailable` naming the address or the directory, `InvalidRequest` where another
        process has it, and `InternalError` for what cannot be read."""

    async def stop(self) -> None:
        """End the session, and with it what is ephemeral in it."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """The node as it was at this call or later. `watch` is called if it changes or goes afterwards; not if there is
        none. Raises `CoordinationUnavailable`."""

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        """As `get`, each of them. For what many ask at a time: it may wait a little, for others that ask."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names below the node, in no order; None if it is not there, and then nothing is watched. `watch` is
        called if one comes or goes afterwards. Raises `CoordinationUnavailable`."""

    async def transact(self, changes: Sequence[Change]) -> Written:
        """All of them, in order, or none. Raises `CoordinationUnavailable` if it is certain that nothing was done, and
        `InvalidRequest` for more than `TRANSACTION_BYTES_MAX`."""


async def surely(store: Store, changes: Sequence[Change]) -> Written:
    """For what may be done twice: asked again while the answer is lost. DONE or REFUSED. Raises
    `CoordinationUnavailable`."""
    deadline = asyncio.get_running_loop().time() + store.patience_s
    while (written := await store.transact(changes)).outcome is CasOutcome.UNKNOWN:
        await pause_or_give_up(deadline, written.why)
    return written


async def names_below(store: Store, path: str, watch: Watch | None = None) -> list[str]:
    """The children of a node that is always there: one that is not is not taken for an empty one (trap 18). Raises
    `CoordinationUnavailable`."""
    if (names := await store.children(path, watch)) is None:
        raise CoordinationUnavailable(f"{store.home}/{path} is gone: start a broker anew, which makes it")
    return names


async def pause_or_give_up(deadline: float, why: str) -> None:
    """Before asking again. Raises `CoordinationUnavailable` if there is no time left for that."""
    if asyncio.get_running_loop().time() + _ASK_AGAIN_S >= deadline:
        raise CoordinationUnavailable(why)
    await asyncio.sleep(_ASK_AGAIN_S)


def size_of(changes: Iterable[Change]) -> int:
    """In bytes, at most. Raises `InvalidRequest` if it is too much for one transaction."""
    size = sum(_CHANGE_BYTES + len(each.path.encode()) + len(getattr(each, "data", b"")) for each in changes)
    if size > TRANSACTION_BYTES_MAX:
        raise InvalidRequest(
            f"{size} bytes are more than the coordination service takes at once ({TRANSACTION_BYTES_MAX}): write less "
            "in one change"
        )
    return size


# ---------------------------------------------------------------- nodes in memory


class Kept(NamedTuple):
    """A node of a tree. `owner`: the session that it ends with."""

    data: bytes
    version: int
    born: int
    owner: object = None


class Tree:
    """Owns nodes, by the path above them and their name. `born`: of the newest one. `lasts`: whether a change since
    this was a copy must outlive the process."""

    def __init__(self, nodes: dict[str, Kept] | None = None, born: int = 0) -> None:
        self._below: dict[str, dict[str, Kept]] = {}
        self.born = born
        self.lasts = False
        for path, node in (nodes or {}).items():
            self.set(path, node)

    def copy(self) -> Tree:
        copy = Tree(born=self.born)
        copy._below = {above: dict(names) for above, names in self._below.items()}
        return copy

    def nodes(self) -> dict[str, Kept]:
        """All of them, by their paths."""
        return {
            f"{above}/{name}" if above else name: node
            for above, names in self._below.items()
            for name, node in names.items()
        }

    def find(self, path: str) -> Kept | None:
        above, _, name = path.rpartition("/")
        return self._below.get(above, {}).get(name)

    def get(self, path: str, session: object) -> Node | None:
        node = self.find(path)
        return None if node is None else Node(*node[:3], mine=node.owner is session)

    def children(self, path: str) -> list[str] | None:
        return None if self.find(path) is None else list(self._below.get(path, ()))

    def ephemeral(self, owner: object) -> list[str]:
        """The paths of what ends with that session."""
        return [path for path, node in self.nodes().items() if node.owner is owner]

    def apply(self, changes: Sequence[Change], owner: object) -> tuple[Written, list[str]]:
        """As `Store.transact`, in the session `owner`; and the paths that were written, or what could be watched of
        them (see `Watches`)."""
        before: list[tuple[str, Kept | None]] = []
        versions: list[int] = []
        touched: list[str] = []
        lasts = self.lasts
        for at, change in enumerate(changes):
            path, node = change.path, self.find(change.path)
            if isinstance(change, Make):
                if change.sequential:
                    path, node = f"{path}{self.born + 1:0{_DIGITS}d}", None
                after = self._made(path, node, change, owner)
            else:
                after = self._changed(path, node, change)
            if after is None:
                for path, node in reversed(before):
                    self.set(path, node)
                self.lasts = lasts
                return Written(CasOutcome.REFUSED, at=at), []
            versions.append(after.version)
            if isinstance(change, Check):
                continue
            before.append((path, node))
            self.set(path, None if isinstance(change, Remove) else after)
            self.lasts |= after.owner is None and bool(isinstance(change, Put) or after.data)
            touched += [path] if node is not None else []
            touched += [] if isinstance(change, Put) else [f"{path.rpartition('/')[0]}/"]
        return Written(CasOutcome.DONE, tuple(versions)), touched

    def _made(self, path: str, node: Kept | None, change: Make, owner: object) -> Kept | None:
        above = path.rpartition("/")[0]
        home = self.find(above) if above else Kept(b"", 0, 0)
        if node is not None or home is None or home.owner is not None:
            return None
        self.born += 1
        return Kept(change.data, 0, self.born, owner if change.ephemeral else None)

    def _changed(self, path: str, node: Kept | None, change: Put | Remove | Check) -> Kept | None:
        """The node after it. None if it cannot be made."""
        if node is None or change.version not in (-1, node.version):
            return None
        if isinstance(change, Remove) and self._below.get(path):
            return None
        return node._replace(data=change.data, version=node.version + 1) if isinstance(change, Put) else node

    def set(self, path: str, node: Kept | None) -> None:
        """Whatever is there now. None: there is none any more."""
        above, _, name = path.rpartition("/")
        if node is not None:
            self._below.setdefault(above, {})[name] = node
        else:
            names = self._below[above]
            del names[name]
            if not names:
                del self._below[above]


class Watches:
    """Owns who is told once of a change: of a node at its path, of the names below one at its path and `/`."""

    def __init__(self) -> None:
        self._by_place: dict[str, dict[Watch, None]] = {}

    def add(self, place: str, watch: Watch | None) -> None:
        if watch is not None:
            self._by_place.setdefault(place, {})[watch] = None

    def taken(self, touched: Iterable[str]) -> list[Watch]:
        """Those of these places, which are forgotten."""
        return list(dict.fromkeys(watch for place in touched for watch in self._by_place.pop(place, ())))

    def clear(self) -> None:
        self._by_place.clear()
