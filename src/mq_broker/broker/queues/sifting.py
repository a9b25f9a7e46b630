"""Which ready records members with a filter of their own are lent. Pure.

Each different filter has its own view (`Sifted`) of where ready records are; they look at one state. What a filter does
not keep stays ready for others: it is in nobody's way, and it is looked at once for each filter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mq_broker.broker.queues.by_level import ByLevel
from mq_broker.broker.queues.lending import LOOKED_AT_MAX, Choice, Fits, Ready, Wish
from mq_broker.broker.queues.sieve import Wanting
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Reject, Reset, Return, Step
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.errors import InvalidSetting, TritonMQError
from mq_protocol.queue_settings import Priority

FILTERS_MAX: Final = 64
"""Different ones of a group in a partition."""

IDLE_MS: Final = 60_000
"""A filter that nobody asked with for so long makes room for another."""

LOOK_AHEAD_MAX: Final = 250_000
"""Unsettled records past base that a filter is compared with."""

SPAN_MAX: Final = 4_194_304
"""Offsets past base in which those are looked for: half a megabyte a filter in the worst pattern."""

READ_AHEAD: Final = 10_000
"""So many records that match are known, at most, past the last one that was looked at."""

READ_AT_ONCE: Final = 10_000
RECORDS_AT_ONCE: Final = 1_000
LOOKED_EACH: Final = 200
"""What so many records count as, of `LOOKED_AT_MAX`: each second one may be looked at by itself."""

CAME_BACK_MAX: Final = 32_000
"""Ranges of records that came back which a filter has not heard of. After more it begins anew."""

CAME_BACK_AT_ONCE: Final = 2_000


class Mask:
    """Owns which records a filter does not keep, one bit each, as far as they were read (`read_to`)."""

    def __init__(self, state: WorkState, text: str) -> None:
        self.text = text
        self.read_to = self.looked_to = state.base
        self._state = state
        self._unfit = OffsetSet(state.base)

    def to_read(self, end: int) -> Range | None:
        """The records that are to be read next. `end`: of the log."""
        return self._wanted(end, READ_AHEAD)

    def knows(self, end: int) -> bool:
        """Whether nothing is to be read now."""
        return self._wanted(end, READ_AHEAD // 2) is None

    def _wanted(self, end: int, ahead_max: int) -> Range | None:
        state = self._state
        self.read_to = max(self.read_to, min(state.settled.next_missing(self.read_to), end))
        until = min(end, state.base + SPAN_MAX, self.read_to + READ_AT_ONCE)
        if self.read_to >= until or self._unfit.missing_count(self.looked_to, self.read_to) >= ahead_max:
            return None
        full = state.settled.missing_count(state.base, self.read_to) >= LOOK_AHEAD_MAX
        return None if full else (self.read_to, until)

    def add(self, until: int, unfit: Iterable[Range]) -> None:
        """The records up to `until` were read. `unfit`: those that the filter does not keep, ascending."""
        self._unfit.add((max(first, self.read_to), end) for first, end in unfit if end > self.read_to)
        if self._unfit.base < self._state.base:
            self._unfit.add([(self._unfit.base, self._state.base)])  # nothing there is asked for any more
        self.read_to = max(self.read_to, until)

    def fit(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """What of these is kept."""
        for first, end in ranges:
            yield from self._unfit.missing(first, end)

    def next_fit(self, offset: int) -> int:
        return self._unfit.next_missing(offset)


class Sifted(Ready):
    """The ready records that one filter keeps. `_fresh`: below it everything was looked at, whoever had it."""

    def __init__(self, of: Unordered, state: WorkState, text: str) -> None:
        self.mask = Mask(state, text)
        self._of = of
        self._heard = of.came_back_end
        super().__init__(state, of.limit)
        self.sieve, self.expiring, self.surplus = of.sieve, of.expiring, of.surplus

    def begin(self) -> None:
        super().begin()
        self._scanned = self._scan_end = self._fresh = self.mask.looked_to = self._state.base
        self._heard = self._of.came_back_end

    def came_back(self, ranges: Ranges) -> None:
        fresh = self._fresh
        super().came_back(tuple((first, min(end, fresh)) for first, end in ranges if first < fresh))

    def _sort(self, first: int, end: int, mark: Mark | None) -> None:
        if mark is None or not mark.doomed(self.limit):  # it is heard of when it is ready again
            super()._sort(first, end, mark)

    def looked_to(self, end: int) -> int:
        known = end if self.mask.knows(end) else self.mask.read_to
        return min(known, super().looked_to(end))

    def choose(self, wish: Wish, now_us: int, end: int, fits: Fits) -> Choice:
        self.sieve, self.expiring, self.surplus = self._of.sieve, self._of.expiring, self._of.surplus
        if self.overgrown():
            self.begin()
        heard = self._hear()
        if not (self.wake(now_us) and heard):
            choice = Choice(wish, now_us, fits)
            choice.looked = LOOKED_AT_MAX
            return choice
        choice = super().choose(wish, now_us, min(end, self.mask.read_to), fits)
        self.mask.looked_to = self._fresh
        return choice

    def _hear(self) -> bool:
        """Of what came back. Returns whether that was all."""
        ranges = self._of.came_back_since(self._heard, CAME_BACK_AT_ONCE)
        if ranges is None:
            self.begin()
            return True
        self._heard += len(ranges)
        self.came_back(ranges)
        return self._heard >= self._of.came_back_end

    def _next(self, fresh_end: int) -> tuple[int, int, bool] | None:
        lent_to = max(self._state.frontier, self._state.marks.end())  # below it nothing waits for the state's bounds
        return super()._next(max(fresh_end, min(lent_to, self.mask.read_to)))

    def _choose_of(self, candidate: Range, choice: Choice) -> int:
        first, end = self.mask.next_fit(candidate[0]), candidate[1]
        choice.looked += 1
        if first >= end:
            return end
        until = min(end, first + RECORDS_AT_ONCE)
        choice.looked += min(until - first, LOOKED_EACH)
        return super()._choose_of((first, until), choice)

    def _fit(self, first: int, end: int) -> Iterator[Range]:
        return self.mask.fit(super()._fit(first, end))


class Unordered(Ready):
    """All ready records, in no order of keys, and a view of them for each filter that members ask with."""

    def __init__(self, state: WorkState, limit: int) -> None:
        self._know_no_filters()
        super().__init__(state, limit)

    def _know_no_filters(self) -> None:
        self._sifted: dict[str, Sifted] = {}
        self._used: dict[str, int] = {}  # when somebody asked with it last
        self._present: Collection[str] = ()
        self._came_back: list[Range] = []
        self._gone = 0  # of the ranges that came back, those that are not kept here any more

    def begin(self) -> None:
        super().begin()
        for each in self._sifted.values():
            each.limit = self.limit
            each.begin()

    def use(self, texts: Collection[str], now_ms: int) -> dict[str, TritonMQError]:
        self._present = [text for text in texts if text]
        refused: dict[str, TritonMQError] = {}
        for text in self._present:
            if text not in self._sifted and len(self._sifted) >= FILTERS_MAX:
                idle = min(self._sifted, key=lambda known: self._used[known])
                if idle in texts or now_ms - self._used[idle] < IDLE_MS:
                    refused[text] = InvalidSetting(
                        f"filter is one too many: the members of the group ask with {FILTERS_MAX} different ones "
                        "already. Use one of these, or set the group's filter"
                    )
                    continue
                del self._sifted[idle], self._used[idle]
            if text not in self._sifted:
                self._sifted[text] = Sifted(self, self._state, text)
            self._used[text] = now_ms
        return refused

    def of(self, text: str) -> Ready:
        return self._sifted.get(text, self) if text else self

    def wanting(self) -> list[Wanting]:
        masks = [self._sifted[text].mask for text in self._present if text in self._sifted]
        return [*super().wanting(), *masks]

    # ------------------------------------------------------------------ what came back

    @property
    def came_back_end(self) -> int:
        """How many ranges of records came back so far."""
        return self._gone + len(self._came_back)

    def came_back_since(self, heard: int, most: int) -> Ranges | None:
        """Those after the first `heard` ones; None if they are not kept any more."""
        at = heard - self._gone
        return tuple(self._came_back[at : at + most]) if at >= 0 else None

    # ------------------------------------------------------------------ what has changed

    def written(self, steps: Collection[Step], now_ms: int) -> None:
        super().written(steps, now_ms)
        for step in steps if self._sifted else ():
            if isinstance(step, Return | Reject | Reset):
                self._came_back += step.ranges
        cut = len(self._came_back) - CAME_BACK_MAX
        if cut > 0:
            cut += CAME_BACK_MAX // 2
            del self._came_back[:cut]
            self._gone += cut


class ByLevelAndFilter(Unordered, ByLevel):
    """The same by priorities of records. Members with filters are lent the lowest offsets that match, of any."""

    def __init__(self, state: WorkState, limit: int, index: OffsetIndex, priority: Priority) -> None:
        self._know_no_filters()
        ByLevel.__init__(self, state, limit, index, priority)
