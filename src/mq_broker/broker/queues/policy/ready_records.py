"""Where the ready records of a queue group are, and which of them a request is lent. Pure.

The state knows which records are ready, but to look through it takes as long as it has runs, up to 100,000. So a leader
looks through it once, a piece at a time, and then keeps up with what its own entries change. What is kept here may be
out of date: each record is looked up in the state before it is chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from mq_broker.broker.queues.policy.dropping import Masks
from mq_broker.core.work.order import Order
from mq_broker.core.work.ranges import Range, Ranges
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import Reject, Reset, Return, Step
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Order as Ordered

RANGES_PER_LEASE_MAX: Final = 1_000
"""A lease is one step of an entry, which several requests share."""

LOOKED_AT_MAX: Final = 4_000
"""Runs that one choice looks at, some ten milliseconds. If it has found nothing by then it goes on in the next turn."""

CAME_BACK_MAX: Final = 16_000
"""Runs that one step may give back. After more the state is looked through anew, a piece at a time."""

RECORDS_MAX: Final = 1 << 31

_ANY_BYTES: Final = 1 << 62
_SIZE_SLACK: Final = 10_000

Run: TypeAlias = tuple[int, int, Mark | None]

Fits: TypeAlias = Callable[[int, int, int], tuple[int, int]]
"""Of the records from the first offset to the second: where those end that have at most so many bytes, and how many
they have."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request of `member` may be lent. `bytes_max` 0: any number. `alone`: its member holds nothing, so it may
    have a record that must be lent alone. `settled`: by being lent. `now_ms`: of the monotonic clock. `present`:
    members that ask for something now."""

    records_max: int
    bytes_max: int = 0
    alone: bool = True
    member: str = ""
    settled: bool = False
    now_ms: int = 0
    present: Container[str] = ()


@dataclass(slots=True)
class Choice:
    """The records for one request, by runs of equal marks. `unfinished`: there is more to look at, in another turn."""

    wish: Wish
    now_us: int
    fits: Fits
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    looked: int = 0
    full: bool = False

    @property
    def ranges(self) -> Ranges:
        return tuple((first, end) for first, end, _ in self.runs)

    @property
    def end(self) -> int:
        """One past the last record that was chosen."""
        return self.runs[-1][1] if self.runs else 0

    @property
    def unfinished(self) -> bool:
        return not self.runs and self.looked >= LOOKED_AT_MAX

    @property
    def over(self) -> bool:
        """Whether no more is to be looked at."""
        return self.full or self.looked >= LOOKED_AT_MAX

    def take(self, first: int, end: int, mark: Mark | None) -> int:
        """As many of these records as the wish allows. Returns where those end."""
        until = min(end, first + self.wish.records_max - self.records)
        if self.wish.bytes_max:
            until, size = self.fits(first, until, self.wish.bytes_max - self.bytes)
            if until == first and not self.runs:  # one record may have more than was asked for
                until, size = first + 1, self.fits(first, first + 1, _ANY_BYTES)[1]
            self.bytes += size
        if until > first:
            begun = self.runs.pop()[0] if self.runs and self.runs[-1][1:] == (first, mark) else first
            self.runs.append((begun, until, mark))
            self.records += until - first
        self.full = until < end or self.records >= self.wish.records_max or len(self.runs) >= RANGES_PER_LEASE_MAX
        return until

    def append(self, first: int, end: int) -> None:
        """All of these, which were never lent: the wish allows them, and their bytes are counted."""
        if first < end:
            begun = self.runs.pop()[0] if self.runs and self.runs[-1][1:] == (first, None) else first
            self.runs.append((begun, end, None))
            self.records += end - first
            self.full = self.records >= self.wish.records_max or len(self.runs) >= RANGES_PER_LEASE_MAX


class ReadyRecords:
    """Owns where to look for ready records, for one state. Not to be asked before `scan` has said that it is done.

    `limit`: the group's `delivery_limit`. Below `_fresh` everything that can be lent is in one of the heaps: what came
    back, what waits for its time, what must be lent alone.
    """

    order: Order | None = None
    """By which the group's settles are judged."""

    ordered: tuple[Ordered, str] = Ordered.NONE, ""
    """The settings `order` and `order_by`."""

    at_once = RECORDS_MAX
    """Once so many records are lent by one entry, nobody else is looked at for it."""

    def __init__(self, state: WorkState, limit: int, masks: Masks | None = None) -> None:
        """`masks`: what they do not let through is lent to nobody."""
        self._state = state
        self.limit = limit
        self.masks = masks or Masks()
        self.begin()

    def begin(self) -> None:
        """Forget everything; the state is to be looked through anew."""
        self._scanned = self._state.base
        self._scan_end = self._fresh = max(self._state.frontier, self._state.marks.end(), self._state.base)
        self._back: list[Range] = []
        self._alone: list[Range] = []
        self._delayed: list[tuple[int, int, int]] = []  # when, from, to
        self._doomed: list[Range] = []

    # ------------------------------------------------------------------ what is where

    def scan(self, most: int) -> bool:
        """Look through the next runs of the state, at most so many. Returns whether all is done."""
        state, looked = self._state, 0
        at = max(self._scanned, state.base)
        if at >= self._scan_end:
            return True
        for low, high, lease in state.lent.pieces(((at, self._scan_end),)):
            if lease is None:
                for first, end, mark in state.marks.pieces(((low, high),)):
                    self._sort(first, end, mark)
                    self._scanned = end
                    looked += 1
                    if looked >= most:
                        return False
            self._scanned = high
            looked += 1
            if looked >= most:
                return False
        return True

    def _sort(self, first: int, end: int, mark: Mark | None) -> None:
        """To where it belongs."""
        first = max(first, self._state.settled.next_missing(first))
        if first >= end or (mark is not None and mark.parked):
            return
        if mark is None:
            self._push(first, end)
        elif mark.doomed(self.limit):
            self._doomed.append((first, end))
        elif mark.due_us:
            heapq.heappush(self._delayed, (mark.due_us, first, end))
        elif self._is_last(mark):
            heapq.heappush(self._alone, (first, end))
        else:
            self._push(first, end)

    def _push(self, first: int, end: int) -> None:
        """They may be lent again, with others."""
        heapq.heappush(self._back, (first, end))

    def _is_last(self, mark: Mark | None) -> bool:
        """Whether one more failure dooms it. Of a limit of 1 that is every record, and none is lent alone."""
        return self.limit >= 2 and mark is not None and mark.failures == self.limit - 1

    def written(self, steps: Collection[Step], now_ms: int) -> None:
        """They are in the state from now on. `now_ms`: of the monotonic clock."""
        for step in steps:
            if isinstance(step, Return | Reject | Reset):
                self.came_back(step.ranges)

    def trimmed(self, start: int) -> None:
        """The log begins there by now."""

    def knows(self, end: int) -> bool:
        """Whether nothing of the records is to be read now. `end`: of the log."""
        return True

    @property
    def active(self) -> str | None:
        """The one member that is lent records, "" if there is none yet; None if any may be."""
        return None

    def looked_to(self, end: int) -> int:
        """Up to there everything that may be lent could have been, of a log that ends at `end`."""
        return end

    @property
    def knows_lent(self) -> bool:
        """Whether what is to be known is, of all records that somebody has or had."""
        return True

    def most(self, held: int) -> int:
        """How many records a member may be lent that holds so many."""
        return RECORDS_MAX

    def again_ms(self, now_ms: int) -> int | None:
        """How long until somebody may be lent something that may not have it now; None if time changes nothing."""
        return None

    def came_back(self, ranges: Ranges) -> None:
        """Steps in the leader's view have ended the leases of these records, or what kept them."""
        for looked, (first, end, mark) in enumerate(self._state.marks.pieces(ranges)):
            if looked >= CAME_BACK_MAX:
                self.begin()
                return
            self._sort(first, end, mark)

    def overgrown(self) -> bool:
        """Whether most of what is kept here is out of date, as after many late acknowledgements: `begin` again."""
        kept = len(self._back) + len(self._alone) + len(self._delayed) + len(self._doomed)
        return kept > 2 * self._state.runs + _SIZE_SLACK

    def wake(self, now_us: int) -> bool:
        """What waited for its time, and is due, may be lent. Returns whether that is all of it: so much is done in one
        turn, and the rest in another."""
        for _ in range(LOOKED_AT_MAX):
            if not self._delayed or self._delayed[0][0] > now_us:
                return True
            _, first, end = heapq.heappop(self._delayed)
            for low, high, mark in self._state.marks.pieces(((first, end),)):
                if mark is not None and mark.due_us <= now_us:
                    heapq.heappush(self._alone, (low, high)) if self._is_last(mark) else self._push(low, high)
                else:
                    self._sort(low, high, mark)
        return False

    def next_due_us(self) -> int | None:
        """When the next record is due that waits for its time."""
        return self._delayed[0][0] if self._delayed else None

    def take_doomed(self, most: int) -> list[tuple[int, int, Mark]]:
        """Runs of records that are to become dead letters; they are forgotten here. `doomed_again` takes them back."""
        found: list[tuple[int, int, Mark]] = []
        while self._doomed and len(found) < most:
            first, end = self._doomed.pop()
            for low, high, lease in self._state.lent.pieces(((first, end),)):
                if lease is None:
                    for a, b, mark in self._state.marks.pieces(((low, high),)):
                        if mark is not None and mark.doomed(self.limit) and not mark.parked:
                            found.append((a, b, mark))
        return found

    def doomed_again(self, runs: list[tuple[int, int, Mark]]) -> None:
        self._doomed += [(first, end) for first, end, _ in runs]

    @property
    def dooms(self) -> bool:
        """Whether there is something for `take_doomed`, perhaps."""
        return bool(self._doomed)

    # ------------------------------------------------------------------ choosing

    def waits_alone(self, now_us: int) -> bool:
        """Whether a record is ready that must be lent alone."""
        return self._first_alone(now_us) is not None

    def _first_alone(self, now_us: int) -> Run | None:
        """The first of those; it stays where it is. What is there and is not ready any more goes."""
        for _ in range(LOOKED_AT_MAX):
            if not self._alone:
                return None
            first, end = self._alone[0]
            run = next(self._state.unleased(first, end), None)
            fits = run is None or run[0] in (low for low, _ in self._fit(run[0], run[0] + 1))
            if run is not None and run[2] is not None and self._is_last(run[2]) and run[2].due_us <= now_us and fits:
                return run
            heapq.heappop(self._alone)
            if run is not None and not fits:
                self._keep(run[0] + 1, end)
                continue
            if run is not None:
                self._sort(*run)
                self._keep(run[1], end)
        return None

    def choose(self, wish: Wish, now_us: int, end: int, fits: Fits) -> Choice:
        """The ready records with the lowest offsets, as far as the wish goes; before them one that must be lent alone,
        if the member may have it. They are to be lent at once: they are not chosen again. `end`: of the log. Fresh
        records above the state's bounds are not chosen."""
        choice = Choice(wish, now_us, fits)
        lone = self._first_alone(now_us) if wish.alone and wish.records_max else None
        if lone is not None:
            until = heapq.heappop(self._alone)[1]
            self._keep(lone[0] + 1, until)
            choice.runs, choice.records = [(lone[0], lone[0] + 1, lone[2])], 1
            return choice
        choice.full = not wish.records_max
        self._fill(choice, min(end, self._state.base + self._state.fresh_room()))
        return choice

    def _fill(self, choice: Choice, fresh_end: int) -> None:
        """Choose until the wish is fulfilled, or nothing is left. `fresh_end`: up to there records that were never lent
        may be chosen."""
        while not choice.over:
            candidate = self._next(fresh_end)
            if candidate is None:
                break
            first, until, fresh = candidate
            first = max(first, choice.end)  # what was sent back twice is here twice
            rest = self._choose_of((first, until), choice) if first < until else until
            if fresh:
                self._fresh = rest
            else:
                self._keep(rest, until)

    def is_ready(self, wish: Wish, now_us: int, end: int) -> bool | None:
        """Whether a request would be lent anything; None if there is more to look at, in another turn."""
        choice = self.choose(replace(wish, records_max=1, bytes_max=0), now_us, end, lambda _, until, __: (until, 0))
        self._undo(choice.runs)
        return None if choice.unfinished else bool(choice.runs)

    def _undo(self, runs: list[Run]) -> None:
        """They were chosen just now, and are not asked for."""
        for first, until, mark in runs:
            if self._is_last(mark):
                heapq.heappush(self._alone, (first, until))
            elif mark is None and until == self._fresh:
                self._fresh = first
            else:
                self._push(first, until)

    def _next(self, fresh_end: int) -> tuple[int, int, bool] | None:
        """What to look at next, which is forgotten here, and whether it was never lent."""
        first = max(self._fresh, self._state.base)
        if self._back and (self._back[0][0] < first or first >= fresh_end):
            return *heapq.heappop(self._back), False
        return (first, fresh_end, True) if first < fresh_end else None

    def _keep(self, first: int, end: int) -> None:
        """What was not looked at of a candidate stays one."""
        if first < end:
            self._push(first, end)

    def _fit(self, first: int, end: int) -> Iterator[Range]:
        """Of these records the unsettled ones that may be lent."""
        return iter(self.masks.fit(self._state.settled.missing(first, end)))

    def _choose_of(self, candidate: Range, choice: Choice) -> int:
        """Take what may be lent of the candidate. Returns where that ends which was looked at."""
        state = self._state
        for low, high, lease in state.lent.pieces((candidate,)):
            choice.looked += 1
            for first, end, mark in state.marks.pieces(((low, high),)) if lease is None else ():
                choice.looked += 1
                known = mark or NO_MARK
                if known.doomed(self.limit) or known.due_us > choice.now_us:
                    self._sort(first, end, mark)
                elif self._is_last(mark):
                    heapq.heappush(self._alone, (first, end))
                else:
                    for begin, until in self._fit(first, end):
                        taken = choice.take(begin, until, mark)
                        if choice.full:
                            return taken
                if choice.over:
                    return end
            if choice.over:
                return high
        return candidate[1]


def fitting(index: OffsetIndex) -> Fits:
    """Sizes by the index: a batch's bytes are shared out among its records."""
    between = index.bytes_between

    def fits(first: int, end: int, bytes_max: int) -> tuple[int, int]:
        size = between(first, end)
        if size <= bytes_max:
            return end, size
        low, high = first, end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if between(first, middle) <= bytes_max else (low, middle)
        return low, between(first, low)

    return fits
