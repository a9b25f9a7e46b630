"""Which members of a queue group have a session at one partition, and whose sessions are over. Pure: the time is an
argument, milliseconds of a monotonic clock.

A session that breaks leaves its member's leases alone for a while: who comes back in time goes on with what it has.
What is to become of the leases of others is said as requests to settle, which are judged with those of members.
"""

from __future__ import annotations

from typing import Final, Protocol

from mq_broker.broker.queues.group.holdings import RETURNED_AT_ONCE, Holdings, tell_lost
from mq_broker.broker.queues.group.members import replaced, taken
from mq_broker.core.work.settling import Settle
from mq_protocol.errors import TritonMQError

BROKEN_MAX: Final = 10_000
"""Members whose sessions broke that are waited for. Of more, the one that is waited for longest counts as lost."""


OVER_MAX: Final = 2 * BROKEN_MAX
"""Members whose leases are still to go back. They wait while no entry can be written. Of more, what the first one has
runs out in its own time."""


class Session(Protocol):
    """What is known here of a session."""

    member: str
    key: bytes
    lasting: bool

    def end(self, error: TritonMQError) -> None:
        """It is over, and its member is told why."""


class Presence:
    """Owns who is here, until when those are waited for whose sessions broke, and who is gone for good (`_over`: with
    whether it was lost)."""

    def __init__(self) -> None:
        self._here: dict[str, Session] = {}
        self._broken: dict[str, int] = {}
        self._over: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, member: str) -> bool:
        return member in self._here

    def come(self, session: Session, group: str, *, replaced_before: bool) -> None:
        """The member has this session from now on, and no other; unless another process has taken its place."""
        if replaced_before:
            session.end(replaced(session.member, group))
            return
        former = self._here.get(session.member)
        self._here[session.member] = session
        if former is not None:
            former.end(taken(session.member) if former.key == session.key else replaced(session.member, group))

    def leave(self, session: Session, until_ms: int | None) -> bool:
        """It is over. Its member is waited for until then; None: it has closed it, and wants nothing of what it has.
        What a lasting one's has is left alone. Whether it was here."""
        if self._here.get(session.member) is not session:
            return False
        del self._here[session.member]
        if session.lasting:
            return True
        if until_ms is None:
            self._is_over(session.member, lost=False)
            return True
        self._broken[session.member] = until_ms
        if len(self._broken) > BROKEN_MAX:
            longest = next(iter(self._broken))
            del self._broken[longest]
            self._is_over(longest, lost=True)
        return True

    def _is_over(self, member: str, *, lost: bool) -> None:
        self._over[member] = lost
        if len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]

    def heard_of(self, member: str) -> None:
        """It asks for records, and so has said what it has."""
        self._broken.pop(member, None)
        self._over.pop(member, None)

    @property
    def keeps_time(self) -> bool:
        """Whether time means something here."""
        return bool(self._broken)

    def slept(self, until_ms: int) -> None:
        """This leader stood still, so that nobody could come back: they are waited for until then."""
        self._broken = dict.fromkeys(self._broken, until_ms)

    def due(self, now_ms: int) -> bool:
        """Whether a member is to lose what it has."""
        return bool(self._over) or any(until_ms <= now_ms for until_ms in self._broken.values())

    def given_up(self, holdings: Holdings, now_ms: int, where: tuple[str, str]) -> list[Settle]:
        """Leases of those who do not come back, so many at once. Told again until they have none. `where`: partition
        and group, for the log."""
        late = [member for member, until_ms in self._broken.items() if until_ms <= now_ms]
        for member in late:
            del self._broken[member]
            self._is_over(member, lost=True)
        tell_lost(*where, [member for member in late if holdings.members.leases(member)])
        settles: list[Settle] = []
        for member, lost in list(self._over.items()):
            room = RETURNED_AT_ONCE - sum(len(settle.ranges) for settle in settles)
            if room <= 0:
                break
            found, _ = holdings.given_up(member, room, lost=lost)
            settles += found
            if not found:
                del self._over[member]
        return settles

    def end(self, error: TritonMQError) -> None:
        """All of them are over."""
        here, self._here = self._here, {}
        for session in here.values():
            session.end(error)
