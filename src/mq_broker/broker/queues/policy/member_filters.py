"""Which ready records members with a filter of their own are lent. Pure.

Each different filter has its own view (`FilteredRecords`) of where ready records are; they look at one state. What a
filter does not keep stays ready for others: it is in nobody's way, and it is looked at once for each filter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mq_broker.broker.queues.policy.dropping import Masks
from mq_broker.broker.queues.policy.ready_records import LOOKED_AT_MAX, Choice, Fits, ReadyRecords, Wish
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Reject, Reset, Return, Step
from mq_protocol.errors import InvalidSetting, TritonMQError

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


class FilteredRecords(ReadyRecords):
    """The ready records that one filter keeps. `_fresh`: below it everything was looked at, whoever had it."""

    def __init__(self, state: WorkState, limit: int, masks: Masks, text: str) -> None:
        self.mask = Mask(state, text)
        self._heard: list[Range] = []
        super().__init__(state, limit, masks)

    def begin(self) -> None:
        super().begin()
        self._scanned = self._scan_end = self._fresh = self.mask.looked_to = self._state.base
        self._heard = []

    def hear(self, ranges: Ranges) -> None:
        """These came back. It is looked at when somebody asks."""
        self._heard += ranges
        if len(self._heard) > CAME_BACK_MAX:
            self.begin()

    def came_back(self, ranges: Ranges) -> None:
        fresh = self._fresh
        super().came_back(tuple((first, min(end, fresh)) for first, end in ranges if first < fresh))

    def _sort(self, first: int, end: int, mark: Mark | None) -> None:
        if mark is None or not mark.doomed(self.limit):  # it is heard of when it is ready again
            super()._sort(first, end, mark)

    def looked_to(self, end: int) -> int:
        return end if self.mask.knows(end) else self.mask.read_to

    def choose(self, wish: Wish, now_us: int, end: int, fits: Fits) -> Choice:
        if self.overgrown():
            self.begin()
        ranges, self._heard = tuple(self._heard[:CAME_BACK_AT_ONCE]), self._heard[CAME_BACK_AT_ONCE:]
        self.came_back(ranges)
        if not self.wake(now_us) or self._heard:
            choice = Choice(wish, now_us, fits)
            choice.looked = LOOKED_AT_MAX
            return choice
        choice = super().choose(wish, now_us, min(end, self.mask.read_to), fits)
        self.mask.looked_to = self._fresh
        return choice

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


class MemberFilters:
    """Owns a view of the ready records for each filter that members ask with. `of`: where those are lent from who have
    none."""

    def __init__(self, of: ReadyRecords) -> None:
        self._of = of
        self._sifted: dict[str, FilteredRecords] = {}
        self._used: dict[str, int] = {}  # when somebody asked with it last
        self._present: Collection[str] = ()

    def begin(self) -> None:
        """The state is to be looked through anew, perhaps with another `delivery_limit`."""
        for each in self._sifted.values():
            each.limit = self._of.limit
            each.begin()

    def use(self, texts: Collection[str], state: WorkState, now_ms: int) -> dict[str, TritonMQError]:
        """Members ask with these filters of their own, empty for none. Returns those that are refused, and why."""
        self._present = [text for text in texts if text]
        if self._of.order is not None:
            why = "filter of a member needs a group with order=none: what others are to be lent first would hold it up"
            return {text: InvalidSetting(f"{why}. Set the group's filter instead") for text in self._present}
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
                self._sifted[text] = FilteredRecords(state, self._of.limit, self._of.masks, text)
            self._used[text] = now_ms
        return refused

    def of(self, text: str) -> ReadyRecords:
        """Where members are lent from that ask with it; empty: with none."""
        return self._sifted.get(text, self._of) if text else self._of

    def wanting(self) -> list[Mask]:
        """Whoever wants rows to be compared with a filter."""
        return [self._sifted[text].mask for text in self._present if text in self._sifted]

    def written(self, steps: Iterable[Step]) -> None:
        """They are in the state from now on."""
        for each in self._sifted.values():
            for step in steps:
                if isinstance(step, Return | Reject | Reset):
                    each.hear(step.ranges)
