"""Queues for locks, for clients of this broker: a place is an ephemeral sequential node of its session.

Each watches the one before it alone, so that a release wakes one waiter. A token is what the place was born as: that
grows over all nodes and for ever, so a queue's node may go when nobody is in the queue.

A session that is suspended may end without a word. Places are therefore given up a quarter of a session after the
connection was lost: ZooKeeper keeps them for a third of one at least, as it is pinged three times in a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, TypeVar

from mq_broker.coordination.store import Make, Node, Remove, Store, StoreEvent, pause_or_give_up, surely
from mq_broker.core.messages import CasOutcome
from mq_protocol.errors import CoordinationUnavailable, LockLost, LockNotAcquired
from mq_protocol.limits import LOCK_SILENCE_MS_MAX

_log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_AGAIN_S: Final = 0.2
_MARK_CHARACTERS: Final = 32


class Locks:
    """Owns the places that were taken in this session, and the work of removing those that were left."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.silence_ms = min(LOCK_SILENCE_MS_MAX, int(store.session_s * 500))
        self._places: set[LockPlace] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._doubt: asyncio.TimerHandle | None = None

    async def queue(self, name: str) -> LockPlace:
        """Raises `CoordinationUnavailable`; then nothing is left in the queue, or is removed once that is possible."""
        if self.store.condition == "suspended":  # else each attempt would leave something to remove once it is not
            raise CoordinationUnavailable(
                "ZooKeeper does not answer this broker at the moment: ask again, or ask another broker"
            )
        place = LockPlace(self, name)
        self._places.add(place)
        try:
            await place.take()
        except BaseException:
            self._places.discard(place)
            self._remove_behind(place)
            raise
        return place

    def on_event(self, event: StoreEvent) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        if event is StoreEvent.SUSPENDED:
            loop = asyncio.get_running_loop()
            self._doubt = loop.call_later(
                self.store.session_s / 4, self._end_all, "ZooKeeper does not answer its broker"
            )
        elif event is StoreEvent.LOST:
            self._end_all("its broker's session has ended")
        else:
            for place in self._places:
                place.changed.set()  # watches went with the connection

    def stop(self) -> None:
        """End all places. Their nodes go with the session."""
        self.on_event(StoreEvent.LOST)
        for removal in self._removals:
            removal.cancel()

    def _end_all(self, why: str) -> None:
        for place in self._places:
            place.end(why)

    async def leave(self, place: LockPlace) -> None:
        self._places.discard(place)
        self._remove_behind(place)
        if place.over:  # whoever had it is to be told now, and not when the store answers again
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.store.session_s):
                await place.gone.wait()

    def _remove_behind(self, place: LockPlace) -> None:
        removal = asyncio.create_task(self._remove(place), name="leave a lock")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, place: LockPlace) -> None:
        """Until it is gone: it was removed, or went with its session."""
        loop = asyncio.get_running_loop()
        # A question whose answer was lost may reach the server late.
        sure_at = loop.time() + (self.store.session_s if place.unsure else 0)
        while True:
            try:
                await place.remove()
                place.gone.set()
                if loop.time() >= sure_at:
                    return
            except CoordinationUnavailable as error:
                _log.info("a place in the queue for lock %s is not yet removed: %s", place.name, error)
            await asyncio.sleep(_ASK_AGAIN_S)


class LockPlace:
    """A place in the queue for a lock: `first`, then `hold`, and `leave` in any case. It ends with `leave`, and with
    the session in which it was taken. Owns its node. `changed`: look again. `gone`: the node was removed."""

    def __init__(self, locks: Locks, name: str) -> None:
        self.name = name
        self.changed = asyncio.Event()
        self.gone = asyncio.Event()
        self.unsure = False
        self._locks = locks
        self._store = locks.store
        self._queue = f"locks/{name}"
        self._mark = secrets.token_bytes(_MARK_CHARACTERS // 2).hex()
        self._node = ""
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # -------------------------------------------------------------- the place

    async def first(self, wait_s: float) -> int:
        """Wait until every place before this one is gone; looks once at least. The token, which is higher than any that
        was given for that lock before. Raises `LockNotAcquired` after `wait_s`, `LockLost` if this place ended
        meanwhile."""
        return await self._unless_over(self._first(asyncio.get_running_loop().time() + wait_s, wait_s))

    async def hold(self) -> NoReturn:
        """Once this place is the first: runs until it has ended, or until it may have. Raises `LockLost`, which says
        why."""
        await self._unless_over(self._watch_own())
        raise LockLost(f"lock {self.name!r} is lost: its node was removed; acquire it again")

    async def leave(self) -> None:
        """Give the place up. It is gone when this returns, if the service answers; if not, as soon as it answers again.
        Does not wait for a place that has ended by itself."""
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
        deadline = asyncio.get_running_loop().time() + self._store.patience_s
        make = Make(f"{self._queue}/{self._mark}-", ephemeral=True, sequential=True)
        while not self._node:
            written = await self._store.transact([make])
            if written.outcome is CasOutcome.REFUSED:
                await surely(self._store, [Make(self._queue)])  # or somebody has just removed it, empty
                continue
            self.unsure |= not written.done
            self._node = next(iter(await self._mine()), "")
            if not self._node:
                await pause_or_give_up(deadline, written.why)

    async def remove(self) -> None:
        """Its node, and the queue's if it is empty then. Raises `CoordinationUnavailable`."""
        for node in await self._mine() if self.unsure else [self._node]:
            await surely(self._store, [Remove(f"{self._queue}/{node}")])
        await surely(self._store, [Remove(self._queue)])

    async def _mine(self) -> list[str]:
        """More than one where a question was asked again and then both were heard."""
        return sorted(node for node in await self._nodes() if node.startswith(self._mark))

    async def _nodes(self) -> list[str]:
        return await self._store.children(self._queue) or []

    # -------------------------------------------------------------- waiting

    async def _first(self, until: float, wait_s: float) -> int:
        while True:
            self.changed.clear()
            try:
                before = self._before(await self._nodes())
                node = await self._watched(before or self._node)
                if node is not None and not before:
                    return node.born
            except CoordinationUnavailable:  # whether this place still stands the session says
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            if node is None:  # that place has just gone
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

    async def _watched(self, node: str) -> Node | None:
        return await self._store.get(f"{self._queue}/{node}", self.changed.set)

    def _before(self, nodes: list[str]) -> str:
        """The node next before this place's; empty if there is none. Raises `LockLost` if this place's is not there."""
        if self._node not in nodes:
            raise LockLost(f"the place in the queue for lock {self.name!r} is gone; queue again")
        mine = _number(self._node)
        ahead = {distance(_number(node), mine): node for node in nodes if distance(_number(node), mine) < 0}
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
    """Which the store put behind the mark; 0 for a node that is none of ours, which is then before all and has to be
    removed."""
    try:
        return int(node[_MARK_CHARACTERS + 1 :])
    except ValueError:
        return 0


def distance(number: int, other: int) -> int:
    """From the other to the number. ZooKeeper counts with 32 bits and goes on below zero."""
    return (number - other + (1 << 31)) % (1 << 32) - (1 << 31)
