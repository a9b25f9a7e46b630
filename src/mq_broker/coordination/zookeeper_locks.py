"""Queues for locks in ZooKeeper: its lock recipe, for clients that do not speak to it themselves.

A place is an ephemeral sequential node of this broker's session. Each watches the one before it alone, so that a
release wakes one waiter. A token is the transaction in which the place was made: ZooKeeper counts those over all nodes
and for ever, so a queue's node may go when nobody is in the queue.

A session that is suspended may end without a word. Places are therefore given up a quarter of a session after the
connection was lost: the server keeps them for a third of one at least, as it is pinged three times in a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.protocol.states import KazooState

from mq_broker.coordination.kazoo_session import AnswerLost, KazooSession
from mq_protocol.errors import CoordinationUnavailable, LockLost, LockNotAcquired
from mq_protocol.limits import LOCK_SILENCE_MS_MAX

_log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_AGAIN_S: Final = 0.2
_MARK_CHARACTERS: Final = 32


class ZooKeeperLocks:
    """Owns the places that were taken in this session, and the work of removing those that were left. `home`: the node
    above all queues."""

    def __init__(self, session: KazooSession, home: str, session_timeout_s: float) -> None:
        self.silence_ms = min(LOCK_SILENCE_MS_MAX, int(session_timeout_s * 500))
        self.session = session
        self._home = home
        self._session_timeout_s = session_timeout_s
        self._places: set[ZooKeeperLockPlace] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._doubt: asyncio.TimerHandle | None = None

    async def queue(self, name: str) -> ZooKeeperLockPlace:
        """Raises `CoordinationUnavailable`; then nothing is left in the queue, or is removed once that is possible."""
        if not self.session.connected:  # else each attempt would leave something to remove once it is
            raise CoordinationUnavailable(
                "ZooKeeper does not answer this broker at the moment: ask again, or ask another broker"
            )
        place = ZooKeeperLockPlace(self, name, f"{self._home}/{name}")
        self._places.add(place)
        try:
            await place.take()
        except BaseException:
            self._places.discard(place)
            self._remove_behind(place)
            raise
        return place

    def on_state(self, state: str) -> None:
        """kazoo's CONNECTED, SUSPENDED or LOST."""
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        if state == KazooState.SUSPENDED:
            loop = asyncio.get_running_loop()
            self._doubt = loop.call_later(
                self._session_timeout_s / 4, self._end_all, "ZooKeeper does not answer its broker"
            )
        elif state == KazooState.LOST:
            self._end_all("its broker's session with ZooKeeper has ended")
        else:
            for place in self._places:
                place.changed.set()  # watches went with the connection

    def stop(self) -> None:
        """End all places. Their nodes go with the session."""
        self.on_state(KazooState.LOST)
        for removal in self._removals:
            removal.cancel()

    def _end_all(self, why: str) -> None:
        for place in self._places:
            place.end(why)

    async def leave(self, place: ZooKeeperLockPlace) -> None:
        self._places.discard(place)
        self._remove_behind(place)
        if place.over:  # whoever had it is to be told now, and not when ZooKeeper answers again
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._session_timeout_s):
                await place.gone.wait()

    def _remove_behind(self, place: ZooKeeperLockPlace) -> None:
        removal = asyncio.create_task(self._remove(place), name="leave a lock")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, place: ZooKeeperLockPlace) -> None:
        """Until it is gone: it was removed, or went with its session."""
        loop = asyncio.get_running_loop()
        # A question whose answer was lost may reach the server late.
        sure_at = loop.time() + (self._session_timeout_s if place.unsure else 0)
        while True:
            try:
                await place.remove()
                place.gone.set()
                if loop.time() >= sure_at:
                    return
            except (AnswerLost, CoordinationUnavailable) as error:
                _log.info("a place in the queue for lock %s is not yet removed: %s", place.name, error)
            await asyncio.sleep(_ASK_AGAIN_S)


class ZooKeeperLockPlace:
    """One place in one queue. Owns its node. `changed`: look again. `gone`: the node was removed."""

    def __init__(self, locks: ZooKeeperLocks, name: str, queue: str) -> None:
        self.name = name
        self.changed = asyncio.Event()
        self.gone = asyncio.Event()
        self.unsure = False
        self._locks = locks
        self._session = locks.session
        self._queue = queue
        self._mark = secrets.token_hex(_MARK_CHARACTERS // 2)
        self._node = ""
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watch = self._session.watch(self.changed.set)

    # -------------------------------------------------------------- the place

    async def first(self, wait_s: float) -> int:
        return await self._unless_over(self._first(asyncio.get_running_loop().time() + wait_s, wait_s))

    async def hold(self) -> NoReturn:
        await self._unless_over(self._watch_own())
        raise LockLost(f"lock {self.name!r} is lost: its node in ZooKeeper was removed; acquire it again")

    async def leave(self) -> None:
        await self._locks.leave(self)

    @property
    def over(self) -> bool:
        """It has ended, or may have."""
        return self._over.done()

    def end(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    # -------------------------------------------------------------- its node

    async def take(self) -> None:
        deadline = self._session.deadline()
        while not self._node:
            try:
                made: str = await self._session.ask(self._create, deadline)
                self._node = made.rpartition("/")[2]
            except NoNodeError:  # somebody has just removed the empty queue
                await self._session.pause_or_give_up(deadline, AnswerLost(f"{self._queue} keeps changing"))
            except AnswerLost as error:
                self.unsure = True
                await self._session.pause_or_give_up(deadline, error)
                self._node = next(iter(await self._mine(deadline)), "")

    def _create(self, client: KazooClient) -> Any:
        return client.create_async(f"{self._queue}/{self._mark}-", ephemeral=True, sequence=True, makepath=True)

    async def remove(self) -> None:
        """Its node, and the queue's if it is empty then. Raises `AnswerLost`, `CoordinationUnavailable`."""
        deadline = self._session.deadline()
        for node in await self._mine(deadline) if self.unsure else [self._node]:
            await self._delete(f"{self._queue}/{node}", deadline)
        await self._delete(self._queue, deadline)

    async def _delete(self, path: str, deadline: float) -> None:
        with contextlib.suppress(NoNodeError, NotEmptyError):
            await self._session.ask(lambda client: client.delete_async(path), deadline)

    async def _mine(self, deadline: float) -> list[str]:
        """More than one where a question was asked again and then both were heard."""
        return sorted(node for node in await self._nodes(deadline) if node.startswith(self._mark))

    async def _nodes(self, deadline: float) -> list[str]:
        try:
            nodes: list[str] = await self._session.ask_synced(
                lambda client: client.get_children_async(self._queue), deadline
            )
        except NoNodeError:
            return []
        return nodes

    # -------------------------------------------------------------- waiting

    async def _first(self, until: float, wait_s: float) -> int:
        while True:
            self.changed.clear()
            try:
                before = self._before(await self._nodes(self._session.deadline()))
                if (stat := await self._watched(before or self._node)) is not None and not before:
                    return int(stat.czxid)
            except CoordinationUnavailable:  # whether this place still stands the session says
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            if stat is None:  # that place has just gone
                continue
            try:
                async with asyncio.timeout_at(until):
                    await self.changed.wait()
            except TimeoutError:
                raise LockNotAcquired(f"lock {self.name!r} was not free within {wait_s:g} s") from None

    async def _watch_own(self) -> None:
        while True:
            self.changed.clear()
            try:
                if await self._watched(self._node) is None:
                    return
            except CoordinationUnavailable:
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            await self.changed.wait()

    async def _watched(self, node: str) -> Any:
        """What ZooKeeper says of it, and `changed` once it changes; None if it is not there."""
        path = f"{self._queue}/{node}"
        try:  # not `exists`: of a node that is not there it would leave a watch for ever
            _, stat = await self._session.ask_again(
                lambda client: client.get_async(path, watch=self._watch), self._session.deadline()
            )
        except NoNodeError:
            return None
        return stat

    def _before(self, nodes: list[str]) -> str:
        """The node next before this place's; empty if there is none. Raises `LockLost` if this place's is not there."""
        if self._node not in nodes:
            raise LockLost(f"the place in the queue for lock {self.name!r} is gone; queue again")
        mine = _number(self._node)
        ahead = {_distance(_number(node), mine): node for node in nodes if _distance(_number(node), mine) < 0}
        return ahead[max(ahead)] if ahead else ""

    async def _unless_over(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                raise LockLost(f"lock {self.name!r} is lost: {self._over.result()}; acquire it again")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _number(node: str) -> int:
    """Which ZooKeeper put behind the mark; 0 for a node that is none of ours, which is then before all and has to be
    removed."""
    try:
        return int(node[_MARK_CHARACTERS + 1 :])
    except ValueError:
        return 0


def _distance(number: int, other: int) -> int:
    """From the other to the number. ZooKeeper counts with 32 bits and goes on below zero."""
    return (number - other + (1 << 31)) % (1 << 32) - (1 << 31)
