"""A simulated broker's registration: its session with the coordination service, and who else it knows to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.core.messages import BrokersSeen, SessionLost
from tests.simulation.coordination import Session

if TYPE_CHECKING:
    from tests.simulation.broker import Broker


class Registration:
    """Owns the session, and what was last read of the registrations. What was meant for a former life of the process is
    forgotten."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.session: Session | None = None
        self.seen = BrokersSeen(())
        self._seeing = self._see_again = False

    def begin(self) -> None:
        """A process that has read nothing yet."""
        self.seen = BrokersSeen(())
        self._seeing = self._see_again = False

    def is_live(self, broker: int) -> bool:
        return any(name.broker == broker for name in self.seen.live)

    def leave(self) -> None:
        """End the session, if the service is reached; else it runs out."""
        coordination = self._broker.cluster.coordination
        if self.session is not None and coordination.reaches(self._broker.number):
            coordination.close_session(self.session)

    def open_session(self) -> None:
        """Register, and read who else is there. Retried until the service answers."""
        broker, life = self._broker, self._broker.life
        coordination = broker.cluster.coordination
        if not coordination.reaches(broker.number):
            broker.loop.after(500, lambda: self.open_session() if life == broker.life else None)
            return
        session = self.session = coordination.open_session(broker.number)
        coordination.watch_session(session, lambda: broker.life == life and broker.answers())
        broker.loop.after(broker.loop.often_short(1, 500), self._register, life, session)
        self._look_after(life, session)

    def _register(self, life: int, session: Session) -> None:
        broker = self._broker
        if life != broker.life or session.expired:
            return
        if not broker.answers():
            broker.loop.after(100, self._register, life, session)
            return
        broker.cluster.coordination.register(session, broker.incarnation)
        self.hint(life)

    def _look_after(self, life: int, session: Session) -> None:
        """A process learns that its session ended when it reaches the service again, and not before."""
        broker = self._broker
        if life != broker.life or session is not self.session:
            return
        if session.expired and broker.answers():
            self.seen = BrokersSeen(tuple(name for name in self.seen.live if name.broker != broker.number))
            broker.feed_all(SessionLost())
            self.open_session()
            return
        broker.loop.after(broker.loop.between(20, 200), self._look_after, life, session)

    def hint(self, life: int) -> None:
        """The registrations may have changed: read them, and again if they change meanwhile."""
        broker = self._broker
        if life != broker.life or not broker.up:
            return
        if self._seeing:
            self._see_again = True
            return
        self._seeing = True
        broker.loop.after(broker.loop.often_short(0.3, 40), self._read, life)

    def _read(self, life: int) -> None:
        broker, coordination = self._broker, self._broker.cluster.coordination
        if life != broker.life or not broker.up:
            return
        self._see_again = False
        session = self.session
        answered = coordination.reaches(broker.number) and session is not None and not session.expired
        seen = BrokersSeen(coordination.live()) if answered else None
        delay_ms = broker.loop.often_short(0.3, 40)
        broker.loop.after(delay_ms, broker.arrive, "coordination", self._heard, life, session, seen)

    def _heard(self, life: int, session: Session | None, seen: BrokersSeen | None) -> None:
        broker = self._broker
        if life != broker.life:
            return
        self._seeing = False
        # What was read in a session already known to be lost is forgotten
        if seen is None or session is not self.session:
            broker.loop.after(500, self.hint, life)
            return
        self.seen = seen
        broker.feed_all(seen)
        if self._see_again:
            self.hint(life)
