"""Which replicas of a broker are ticked, and how often: those at rest hardly ever, so that idle partitions cost
nothing.

A replica in use is ticked every 80 ms, and its leader sends a heartbeat four times a second. Of ten thousand partitions
nearly all have nothing to do. Those rest: their leaders send no heartbeats and their followers expect none. Both count
on the heartbeat of the pair of brokers instead (contacts.py): a follower rests once it has heard its leader since the
contact with the leader's broker began, and wakes when that contact ends. Whatever else happens wakes a replica at once:
a request, entries, a broker that comes or goes, a link, a state node that says something new.

Every `REST_TICK_S` times `AUDIT_ROUNDS` a replica at rest is ticked all the same. It reads its state node then, and a
leader sends a heartbeat. Nothing relies on that; it bounds for how long a mistake of ours could last.

Nothing of the protocol is here: the core takes time as an argument and says itself when it is at rest. `Rest` decides
for one replica, in the simulator too; `Ticking` carries it out.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    DiskRefused,
    Event,
    Flushed,
    JournalBegins,
    LogReplaced,
    NodeRead,
    Tick,
    TurnEnded,
)

TICK_S: Final = 0.08
SLICES: Final = 4
"""Replicas are ticked in turns, a quarter of them every 20 ms: a thousand at once would hold up the loop."""

TICKS_AT_ONCE_MAX: Final = 100
"""Of replicas in use. A broker that starts with thousands gives all of them time, if more seldom, and with ticks their
heartbeats become fewer: else these would take more than a processor, and no partition would ever come to rest."""

TICKS_AT_ONCE_MIN: Final = 5
LATE_S: Final = 0.02
"""A loop that comes this much too late to its ticks has more to do than it gets done, most of it what ticks bring
about. So it is given half as many, down to that least, and more again once it keeps up: or ten thousand partitions that
start together are kept by their heartbeats from being led. With so few, five hundred in use are ticked every two
seconds at best, which the core takes for sleep of its own: a broker that is that late drops nobody for being late."""

REST_TICK_S: Final = 20.0
AUDIT_ROUNDS: Final = 15
_SLICE_S: Final = TICK_S / SLICES
_REST_SLICE_S: Final = 0.1
"""Those at rest are ticked in turns as well. Not in shorter ones: what is due together shares messages and
questions."""

_REST_SLICES: Final = round(REST_TICK_S / _REST_SLICE_S)


_ROUTINE: Final = (Tick, AppendEntries, AppendAck, NodeRead)
"""What idle replicas are told: alone it wakes none of them. (AppendEntries without entries, that is.)"""

_OF_THE_DISK: Final = (Flushed, DiskRefused, LogReplaced, JournalBegins)


@dataclass(frozen=True, slots=True)
class RestTimes:
    """In milliseconds, of the monotonic clock. A follower rests before its leader, or it would wonder why that has
    become so quiet."""

    calm_ms: int
    """A leader goes to rest after so long without anything to do. Its followers hear some heartbeats meanwhile."""
    follower_calm_ms: int


IN_EARNEST: Final = RestTimes(calm_ms=1_000, follower_calm_ms=500)


class AtRest(Protocol):
    """A replica, as seen from here."""

    @property
    def leading(self) -> bool: ...

    @property
    def at_rest(self) -> bool:
        """The core has nothing under way, and nobody waits for it."""

    @property
    def led_by(self) -> tuple[int, int]:
        """The leader's broker, 0 if it is not known, and the leader epoch."""

    @property
    def contact_ms(self) -> int | None:
        """Since when the leader's broker has been in contact. None: it is not."""


class Rest:
    """Owns whether one replica is `asleep`, and decides what its core is told and when. Pure: the time is an
    argument."""

    __slots__ = ("_calm_since_ms", "_heard", "_heard_ms", "_stirred", "_times", "asleep")

    def __init__(self, times: RestTimes) -> None:
        self.asleep = False
        self._times = times
        self._stirred = True  # something happened since the last tick that was no heartbeat
        self._calm_since_ms = 0
        self._heard: tuple[int, int] | None = None  # who spoke last as a leader, and of which epoch
        self._heard_ms = 0  # when that was

    def told(self, event: Event, now_ms: int) -> tuple[Event, ...]:
        """What the core is to be told, in this order, when this happens; it is awake afterwards unless that was a
        heartbeat."""
        heard = isinstance(event, AppendEntries)
        if isinstance(event, AppendEntries):
            self._heard = event.leader, event.leader_epoch
            self._heard_ms = now_ms
        if not isinstance(event, _ROUTINE) or (isinstance(event, AppendEntries) and (event.entries or event.successor)):
            self._stirred = True
            if self.asleep:
                self.asleep = False
                # What the disk has done is so already: nothing may be done before the core knows of it.
                return (event, TurnEnded(now_ms)) if isinstance(event, _OF_THE_DISK) else (TurnEnded(now_ms), event)
        elif self.asleep and heard:  # time stands still at rest: it comes with the heartbeat
            return TurnEnded(now_ms), event, Tick(now_ms)
        return (event,)

    def turn_ended(self, now_ms: int) -> TurnEnded:
        """The end of a turn. For whoever is at rest, a leader too, no time has passed in it: that comes with the
        heartbeat. If it were told that an answer took long, as so much else goes on, a leader would ask again, and all
        of them together for ever."""
        return TurnEnded(0 if self.asleep else now_ms)

    def wake(self, now_ms: int) -> Event:
        """It is awake from now on. What its core is to be told of that."""
        self.asleep = False
        self._stirred = True
        return TurnEnded(now_ms)

    def spoken_to(self, ack: AppendAck, replica: AtRest) -> bool:
        """Whether this acknowledgement answers no heartbeat of this replica, and must wake it. It is of a leader that
        leads no more, which has to be heard again before this one rests; or of a replica that has begun with another
        log."""
        leader, epoch = replica.led_by
        if replica.leading and ack.leader_epoch == epoch:
            return False
        if ack.follower == leader:
            self._heard = None
        return self.asleep

    def settled(self, replica: AtRest, now_ms: int) -> bool:
        """At the end of each turn: whether it is asleep from now on. Not only after a tick, which is late when there is
        much to do: what is awake for nothing costs the most then."""
        if self._stirred:
            self._stirred = False
            self._calm_since_ms = now_ms
            return False
        calm_ms, times = now_ms - self._calm_since_ms, self._times
        if calm_ms < min(times.calm_ms, times.follower_calm_ms) or not replica.at_rest:
            return False
        if replica.leading:
            self.asleep = calm_ms >= times.calm_ms
        else:
            self.asleep = calm_ms >= times.follower_calm_ms and self._is_led(replica)
        return self.asleep

    def _is_led(self, replica: AtRest) -> bool:
        """It has heard its leader, which leads still: it would have said so otherwise."""
        contact_ms = replica.contact_ms
        return contact_ms is not None and self._heard == replica.led_by and self._heard_ms >= contact_ms


class Ticked(AtRest, Protocol):
    """A partition of this broker. It calls `Ticking.slept` and `woke` when its rest begins and is over."""

    rest: Rest
    closed: bool

    def tick(self, now_ms: int, now: float) -> None:
        """Time passes: `now_ms` of the monotonic clock, `now` of the loop's."""


class Ticking:
    """Owns the round of ticks: those in use one after another, those at rest each in its slice of `REST_TICK_S`."""

    def __init__(self) -> None:
        self._awake: OrderedDict[Ticked, None] = OrderedDict()
        self._asleep: list[dict[Ticked, None]] = [{} for _ in range(_REST_SLICES)]
        self._slices: dict[Ticked, int] = {}
        self._next_slice = itertools.cycle(range(_REST_SLICES))
        self._at_once = TICKS_AT_ONCE_MAX
        self._ticked = 0  # the slice of those at rest that was ticked last, counted from the beginning of the clock

    def add(self, partition: Ticked) -> None:
        """From now on, until it is closed."""
        self._slices[partition] = next(self._next_slice)
        self._awake[partition] = None

    def slept(self, partition: Ticked) -> None:
        """It is hardly ticked from now on."""
        del self._awake[partition]
        self._asleep[self._slices[partition]][partition] = None

    def woke(self, partition: Ticked) -> None:
        """It is ticked as any other again."""
        del self._asleep[self._slices[partition]][partition]
        self._awake[partition] = None

    @property
    def awake(self) -> int:
        return len(self._awake)

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SLICE_S
            await asyncio.sleep(_SLICE_S)
            self.turn(time.monotonic_ns() // 1_000_000, loop.time(), due)

    def turn(self, now_ms: int, now: float, due: float) -> None:
        """Tick whoever's turn it is. `due`: when this was to happen, by the loop's clock, as `now`."""
        if now - due > LATE_S:
            self._at_once = max(self._at_once // 2, TICKS_AT_ONCE_MIN)
        else:
            self._at_once = min(self._at_once + TICKS_AT_ONCE_MIN, TICKS_AT_ONCE_MAX)
        for _ in range(min(-(-len(self._awake) // SLICES), self._at_once)):
            self._tick(next(iter(self._awake)), now_ms, now)
        # By the clock, not by turns, which a late loop has fewer of. At most a whole round is made up for.
        last = int(now / _REST_SLICE_S)
        for number in range(max(self._ticked, last - _REST_SLICES) + 1, last + 1):
            rounds, place = divmod(number, _REST_SLICES)
            audit = (rounds + place) % AUDIT_ROUNDS == 0
            for partition in list(self._asleep[place]):
                if partition.closed:
                    del self._asleep[self._slices.pop(partition)][partition]
                elif audit:
                    partition.tick(now_ms, now)
        self._ticked = last

    def _tick(self, partition: Ticked, now_ms: int, now: float) -> None:
        if partition.closed:
            del self._awake[partition], self._slices[partition]
        else:
            self._awake.move_to_end(partition)
            partition.tick(now_ms, now)
