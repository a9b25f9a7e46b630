"""What a member knows of each partition of its queue, and which of them it asks for records next. Pure.

The member's credit is one: it is handed to one leader at a time. While nobody has anything, all leaders are asked to
say when they do, and lend nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mq_client.cluster.deadline import Backoff
from mq_client.consuming.slices import StoredSlice
from mq_client.queueing.leases import HeldLease, LeaseId
from mq_client.queueing.settling import Line, Outbox

WATCH_MS: Final = 20_000
"""For so long a leader waits for something to lend before it answers that there is nothing."""


TELLS_S: Final = 3.0
"""So often a member of a higher priority that asks a leader for nothing says that it is there, so that others wait."""

SAYS_S: Final = 20.0
"""So often at least any member is heard of by one leader: a group without members may be deleted after a minute."""

STAYS_MAX: Final = 4
"""So many times in a row a leader is asked for more together with outcomes, before others that have something are."""


@dataclass(eq=False, slots=True)
class Call:
    """A question on its way to the leader at `address`. `records`, `bytes`: of a LeaseRequest, the credit that it
    hands out; `waits`: the leader answers only when it has something; `rows`: that came with its answer. `lines`: the
    outcomes that it tells. `losses`: those of its place when it was asked."""

    address: str
    sent_at: float
    records: int = 0
    bytes: int = 0
    waits: bool = False
    lines: list[Line] = field(default_factory=list)
    rows: Sequence[StoredSlice] = ()
    cancel: Callable[[], object] = lambda: None
    doubted_at: float = 0.0
    losses: int = 0


@dataclass(eq=False, slots=True)
class Place:
    """One partition. Its three kinds of questions are asked independently, each one at a time.

    `losses`: how often its leaders have said that something is lost. `epoch`: of the leader that was known last.
    `number`: of the last ack with outputs, also of a former process of this member. `hopeful`: something may be ready
    there. `stayed`: how often in a row it was asked for more together with outcomes. `unsure`: the answer to a question
    that handed out credit was lost, leases may have run out, or another broker leads: it is to be told soon which
    leases this member holds. `asked_at`: when it was asked to lend, or told of the member. Times: of the monotonic
    clock.
    """

    partition: int
    leases: dict[LeaseId, HeldLease] = field(default_factory=dict)
    settles: Outbox = field(default_factory=Outbox)
    extensions: Outbox = field(default_factory=Outbox)
    leasing: Call | None = None
    settling: Call | None = None
    extending: Call | None = None
    losses: int = 0
    epoch: int = 0
    number: int = 0
    hopeful: bool = True
    stayed: int = 0
    unsure: bool = False
    ask_after: float = 0.0
    asked_at: float = 0.0
    settle_after: float = 0.0
    extend_after: float = 0.0
    extend_at: float = math.inf
    check_at: float = math.inf
    ask_backoff: Backoff = field(default_factory=Backoff)
    settle_backoff: Backoff = field(default_factory=Backoff)

    @property
    def quiet(self) -> bool:
        """Nothing is to be said to its leader, and no answer is waited for but to questions about more records."""
        return not (self.settles or self.extensions or self.settling or self.extending)

    def ask(self, call: Call) -> Call:
        """Its leader is asked to lend."""
        self.leasing, self.asked_at = call, call.sent_at
        call.losses = self.losses
        return call

    def leave(self, priority: int) -> None:
        """The member asks it no more. It is told so if it keeps others waiting for this member."""
        self.unsure = self.unsure or (priority > 0 and self.asked_at > 0)

    def takes_leave(self, now: float) -> bool:
        """Whether its leader is to hear first that the member asks no more. It may have a request of it still, and
        would lend what the member gives back to that."""
        return self.leasing is not None or (self.unsure and self.ask_after <= now)


@dataclass(frozen=True, slots=True)
class Credit:
    """How many records and bytes a member may hold."""

    records: int
    bytes: int

    def free(self, held: int, held_bytes: float, asked: Iterable[Call]) -> Credit:
        """What is left of it, beside what is held and what leaders were handed already."""
        calls = list(asked)
        return Credit(
            self.records - held - sum(call.records for call in calls),
            self.bytes - int(held_bytes) - sum(call.bytes for call in calls),
        )

    def worth_asking(self, whole: Credit, *, hungry: bool) -> bool:
        """Whether more is to be asked for. `hungry`: nothing waits to be worked on. Else only for half of all, since
        each lease is an entry in the journal."""
        if self.records < 1 or self.bytes < 1:
            return False
        return hungry or (self.records * 2 >= whole.records and self.bytes * 2 >= whole.bytes)


@dataclass(frozen=True, slots=True)
class Terms:
    """As whom and on which terms a member asks. `key`: random, and another one for each process. `lease_ms` 0: as the
    group says. `accept`: records are settled by being lent. `filter`: they match it; empty: any."""

    topic: str
    group: str
    member: str
    key: bytes
    credit: Credit
    working: int
    lease_ms: int
    accept: bool
    priority: int = 0
    filter: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What a partition's leader is to be asked: to lend up to so many records (0: none). `waits`: until it has some."""

    place: Place
    records: int
    bytes: int
    waits: bool


def told_of(places: dict[int, Place], now: float, priority: int) -> tuple[list[Question], float]:
    """What a member tells leaders that it asks for nothing: that it is there. One of a higher priority tells each of
    them, so that others wait. Any other one that has no lease tells the leader that it asked last, so that its group is
    not taken for idle. And when it is to be looked at again."""
    every_s, known = TELLS_S, list(places.values())
    if not priority:
        has_leases = any(place.leases for place in known)
        every_s, known = SAYS_S, [] if has_leases else sorted(known, key=lambda place: place.asked_at)[-1:]
    silent = [place for place in known if place.leasing is None and place.ask_after <= now]
    tells = [place for place in silent if place.asked_at + every_s <= now]
    rest = [place.asked_at + every_s for place in silent if place.asked_at + every_s > now]
    return [Question(place, 0, 0, waits=False) for place in tells], min(rest, default=math.inf)


class Turns:
    """Owns whose turn it is."""

    def __init__(self) -> None:
        self._next = 0

    def questions(
        self, places: dict[int, Place], free: Credit, wants: bool, now: float, *, alone: bool
    ) -> list[Question]:
        """What is to be asked now. Leaders have no more than one question each. `places`: those that have a leader.
        `alone`: there is no other partition, so its leader may keep the credit until it has something."""
        asked = [
            Question(place, 0, 0, waits=False)
            for place in places.values()
            if place.unsure and place.ask_after <= now and (place.leasing is None or place.leasing.waits)
        ]
        if asked or not wants or any(p.leasing is not None and p.leasing.records for p in places.values()):
            return asked
        idle = [place for place in self._in_turn(places) if place.leasing is None and place.ask_after <= now]
        chosen = next((place for place in idle if place.hopeful or alone), None)
        if chosen is not None:
            chosen.stayed = 0
            self._next = chosen.partition + 1
            return [Question(chosen, free.records, free.bytes, waits=alone)]
        return [Question(place, 0, 0, waits=True) for place in idle]

    @staticmethod
    def stays(place: Place, places: Iterable[Place], now: float) -> bool:
        """Whether the credit that outcomes of this partition set free goes to its leader again, together with them. For
        some turns, while others have something."""
        if place.leasing is not None or place.unsure or not place.hopeful or place.ask_after > now:
            return False
        others = [other for other in places if other is not place]
        if any(other.leasing is not None and other.leasing.records for other in others):
            return False
        return place.stayed < STAYS_MAX or not any(other.hopeful for other in others)

    def _in_turn(self, places: dict[int, Place]) -> list[Place]:
        numbers = sorted(places)
        return [places[number] for number in sorted(numbers, key=lambda number: (number < self._next, number))]
