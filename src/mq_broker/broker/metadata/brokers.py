"""Who else lives: this broker's registration, and the registered brokers as last read.

Coordination events are hints (trap 20): each only wakes the one task here that reads and acts on what it read. A lost
session is told to the partitions at once, and followed by registering again, with the same incarnation (rule 9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.interface import BrokerRegistration, CoordinationEvent
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import LeaderName
from mq_protocol.errors import CoordinationUnavailable, IncompatibleVersion, InvalidRequest, InvalidSetting
from mq_protocol.versions import FIRST

log = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
"""Watches can be missed; half a minute bounds for how long."""


class Demanding(Protocol):
    """What the cluster demands of each broker: the security floor."""

    demands: frozenset[str]

    async def refresh(self) -> None:
        """Anew. Raises `CoordinationUnavailable`."""

    def check_here(self, registration: BrokerRegistration) -> None:
        """Raises `InvalidSetting` if this broker is below it."""

    def missing(self, registration: BrokerRegistration) -> list[str]:
        """What a broker lacks of it."""


class _NothingDemanded:
    demands: frozenset[str] = frozenset()

    async def refresh(self) -> None:
        pass

    def check_here(self, registration: BrokerRegistration) -> None:
        pass

    def missing(self, _registration: BrokerRegistration) -> list[str]:
        return []


class Cluster:
    """Owns this broker's registration and its copy of the list of registered brokers. `demanding` is to be set.

    `on_brokers` is called after every successful read, `on_session_lost` at once when the session ended.
    `peer_address_of`: where this broker dials another one. `registers`: else this process is no broker, and only reads
    the list (broker/proxy).
    """

    def __init__(
        self,
        coordination: CoordinationService,
        me: BrokerRegistration,
        on_brokers: Callable[[], None],
        on_session_lost: Callable[[], None],
        peer_address_of: Callable[[BrokerRegistration], str] = lambda registration: registration.peer_address,
        *,
        registers: bool = True,
    ) -> None:
        self.demanding: Demanding = _NothingDemanded()
        self._peer_address_of = peer_address_of
        self._coordination = coordination
        self.me = me
        self._registers = registers
        self._on_brokers = on_brokers
        self._on_session_lost = on_session_lost
        self._changed = asyncio.Event()
        self._registered = False
        self.topics_changed = asyncio.Event()
        self.security_changed = asyncio.Event()
        self.brokers: dict[int, BrokerRegistration] = {}
        self.level = FIRST
        self._level_read = False
        self._told_of: set[tuple[int, int]] = set()  # lives of brokers that take no part, and that the log has told of

    @property
    def live(self) -> tuple[LeaderName, ...]:
        return tuple(LeaderName(broker, self.brokers[broker].incarnation) for broker in sorted(self.brokers))

    @property
    def racks(self) -> dict[int, str]:
        return {broker: registration.rack for broker, registration in self.brokers.items()}

    def peer_address(self, broker: int) -> str | None:
        """Where other brokers reach it; None if it is not registered, or has no such port."""
        registration = self.brokers.get(broker)
        return (self._peer_address_of(registration) or None) if registration is not None else None

    def read_again(self) -> None:
        """Something was heard of a broker that the list does not have: read it, soon."""
        self._changed.set()

    def is_live(self, broker: int, incarnation: int) -> bool:
        registration = self.brokers.get(broker)
        return registration is not None and registration.incarnation == incarnation

    def hear(self, event: CoordinationEvent) -> None:
        """The coordination service's listener."""
        match event:
            case CoordinationEvent.TOPICS_CHANGED:
                self.topics_changed.set()
            case CoordinationEvent.BROKERS_CHANGED:
                self._changed.set()
            case CoordinationEvent.SECURITY_CHANGED:
                self.security_changed.set()
            case CoordinationEvent.CONNECTED:
                self._changed.set()
                self.topics_changed.set()
                self.security_changed.set()
            case CoordinationEvent.SESSION_LOST:
                leads = ": this broker leads nothing until it is registered again" if self._registers else ""
                log.warning("the session with the coordination service ended%s", leads)
                self._registered = False
                self.brokers.pop(self.me.broker, None)
                self._on_session_lost()
                self._changed.set()
            case CoordinationEvent.SUSPENDED:
                log.warning("the coordination service does not answer: leaders continue, elections wait")

    async def join(self) -> None:
        """Register for the first time and read who else is there. Raises `CoordinationUnavailable`, `InvalidRequest`,
        `InvalidSetting`."""
        await self._read()

    async def _read(self) -> None:
        level_unread = await self._read_level()
        if not self._registered:  # while this broker was away the floor may have been raised
            await self.demanding.refresh()
        self.demanding.check_here(self.me)
        if self._registers:
            await self._register()
        found = await self._coordination.brokers()
        if not self._registers and self.me.broker in found:
            raise InvalidSetting(
                f"broker {self.me.broker} is registered at {found[self.me.broker].address}: give this proxy an --id of "
                "its own"
            )
        if self._registered and self.me.broker not in found:
            log.warning(
                "the registration of broker %d was removed, or cannot be read: registering again", self.me.broker
            )
            self._registered = False
            await self._register()
            found = await self._coordination.brokers()
        if not self._registered:
            found.pop(self.me.broker, None)
        self.brokers = {
            broker: registration for broker, registration in found.items() if self._takes_part(registration)
        }
        self._on_brokers()
        if level_unread is not None:
            raise level_unread  # so that it is read again soon

    async def _read_level(self) -> CoordinationUnavailable | None:
        """Returns why the level cannot be read now: then the one that was read last holds, since no level is ever
        lowered, and this broker goes on. Raises it if none was read yet, and `IncompatibleVersion` if this broker does
        not know the level: its journals may hold what it cannot read."""
        try:
            self.level = max(self.level, await self._coordination.level())
        except CoordinationUnavailable as error:
            if not self._level_read:
                raise
            return error
        self._level_read = True
        if self.level > self.me.versions.level:
            raise IncompatibleVersion(
                f"the cluster is at level {self.level} of features, and this broker ({self.me.versions}) knows up to "
                f"{self.me.versions.level}: start a release that knows it; `tritonmq cluster status` names those that "
                "run"
            )
        return None

    def _takes_part(self, registration: BrokerRegistration) -> bool:
        """Whether that broker may take part: one that does not know the level cannot read all that leaders may
        write, and one below the security floor may show to strangers what it is sent."""
        too_old, missing = registration.versions.level < self.level, self.demanding.missing(registration)
        if not too_old and not missing:
            return True
        life = registration.broker, registration.incarnation
        if life in self._told_of:
            return False
        self._told_of.add(life)
        if too_old:
            log.error(
                "broker %d (%s) knows features up to level %d, and the cluster is at level %d: it takes no part. Start "
                "a newer release there",
                registration.broker,
                registration.versions,
                registration.versions.level,
                self.level,
            )
        else:
            log.error(
                "broker %d (%s) is below the cluster's security floor, and takes no part: it does not offer %s",
                registration.broker,
                registration.versions,
                ", ".join(missing),
            )
        return False

    async def _register(self) -> None:
        if not self._registered:
            # Set before the wait: a session that ends meanwhile clears it, and then this is done again.
            self._registered = True
            try:
                await self._coordination.register(self.me)
            except (CoordinationUnavailable, InvalidRequest):
                self._registered = False
                raise

    def following(self) -> Periodic:
        """Keeps registered and reads again on every hint, and now and then without one.

        Raises `InvalidRequest` when another process has taken this broker's id, and `InvalidSetting` when this broker
        is below the security floor: it must stop. So must a proxy whose id is a broker's.
        """
        unread = "not all is known of the cluster's brokers, asked again"
        return Periodic("follow brokers", SWEEP_S, self._read, hint=self._changed, unread=unread)


class Hints:
    """The coordination service's listener from the first moment on; what comes before `to` is known is read at the
    start anyway."""

    def __init__(self) -> None:
        self.to: Cluster | None = None

    def __call__(self, event: CoordinationEvent) -> None:
        if self.to is not None:
            self.to.hear(event)


async def joined(coordination: CoordinationService, hints: Hints, stop: asyncio.Event) -> bool:
    """Start the coordination service's session, which takes as long as nobody answers. False: this process was told to
    stop meanwhile."""
    starting = asyncio.create_task(coordination.start(hints), name="join")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            await coordination.stop()
