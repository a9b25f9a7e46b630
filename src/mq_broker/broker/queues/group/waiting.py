"""Who waits to be lent records of one queue group in one partition, and whose turn it is by the priority of members.

While a member of a higher priority is there, lower ones are lent nothing; with `spill`, while one has room for more.
One is there from what it asks first until its session is over, and if that broke for a moment longer. That is this
leader's own knowledge. A later leader begins without: until a member asks there, lower ones may be lent something.
Nobody waits for a member with a filter of its own: what others could work on may not be for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mq_broker.broker.queues.group.requests import Asking

BROKEN_OFF_MS: Final = 3_000
"""For so long a member is there whose session broke."""

BETWEEN_MS: Final = 250
"""For so long a member that was told something, and has room for more, is waited for until it asks again."""

KNOWN_MAX: Final = 10_000
"""Members of a higher priority than the lowest that are remembered, those that asked last."""


@dataclass(slots=True)
class _Known:
    """A member above the lowest priority. `until_ms`: when it counts as gone, None while it has a session;
    `asks_until_ms`: when it is not waited for to ask again."""

    priority: int
    until_ms: int | None = None
    asks_until_ms: int = 0


class Waiting:
    """Owns the requests, one a member, in the order in which they came, and what is known of members that go before
    others. Times: milliseconds of a monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._asking: OrderedDict[str, Asking] = OrderedDict()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._floor = 0
        self._again_ms: int | None = None

    def __bool__(self) -> bool:
        return bool(self._asking)

    def __contains__(self, member: object) -> bool:
        """Whether it waits, and was not held back when turns were given out last."""
        asking = self._asking.get(member) if isinstance(member, str) else None
        return asking is not None and asking.priority >= self._floor

    def values(self) -> list[Asking]:
        """Everybody who waits."""
        return list(self._asking.values())

    def has(self, asking: Asking) -> bool:
        """Whether this request waits still."""
        return self._asking.get(asking.member) is asking

    def put(self, asking: Asking) -> None:
        """It waits from now on, in the place of what the member asked before."""
        self._asking.pop(asking.member, None)
        self._asking[asking.member] = asking
        self._known.pop(asking.member, None)
        if asking.priority and not asking.filter:
            self._known[asking.member] = _Known(asking.priority)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def leave(self, asking: Asking) -> bool:
        """It has its answer, or is about to. Whether it had waited."""
        if not self.has(asking):
            return False
        del self._asking[asking.member]
        known = self._known.get(asking.member)
        if known is not None and asking.has_room:
            known.asks_until_ms = self._now_ms() + BETWEEN_MS
        return True

    def part(self, member: str, *, clean: bool) -> None:
        """Its session is over; `clean`: by its own word."""
        known = self._known.get(member)
        if known is not None:
            known.until_ms = self._now_ms() + (0 if clean else BROKEN_OFF_MS)

    def lent(self, asking: Asking, records: int) -> None:
        """So many of what it asked for. Who was lent less has room for more."""
        known = self._known.get(asking.member)
        if known is not None:
            known.asks_until_ms = 0 if records >= asking.records_max else self._now_ms() + BETWEEN_MS

    def clear(self) -> None:
        self._asking.clear()
        self._known.clear()

    # ------------------------------------------------------------------ whose turn it is

    def in_turn(self, *, spill: bool, full: Callable[[str], bool]) -> list[Asking]:
        """Those who may be lent something now, in the order in which they came. `full`: whether a member is lent
        nothing before it has settled something."""
        self._floor, self._again_ms = 0, None
        if not self._known:
            return self.values()
        now_ms = self._now_ms()
        over = [name for name, known in self._known.items() if known.until_ms is not None and known.until_ms <= now_ms]
        for member in over:
            del self._known[member]
        for priority, until_ms in self._before(spill, full, now_ms):
            if priority > self._floor:
                self._floor, self._again_ms = priority, until_ms
            elif priority == self._floor and self._again_ms is not None:
                self._again_ms = None if until_ms is None else max(self._again_ms, until_ms)
        return [asking for asking in self._asking.values() if asking.priority >= self._floor]

    def _before(self, spill: bool, full: Callable[[str], bool], now_ms: int) -> Iterator[tuple[int, int | None]]:
        """The priorities below which nobody is lent anything, and until when; None: until the member is told
        something."""
        for member, known in self._known.items():
            asking = self._asking.get(member)
            if not spill:
                yield known.priority, known.until_ms if asking is None else None
            elif asking is not None and asking.has_room:
                if not full(member):
                    yield known.priority, None
            elif asking is None and known.asks_until_ms > now_ms:
                yield known.priority, known.asks_until_ms

    def again_ms(self) -> int | None:
        """How long until somebody may be lent something who is held back now; None if time changes nothing, or nobody
        is."""
        if self._again_ms is None or all(asking.priority >= self._floor for asking in self._asking.values()):
            return None
        return max(self._again_ms - self._now_ms(), 1)
