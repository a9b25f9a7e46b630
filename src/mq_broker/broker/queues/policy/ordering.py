"""Who is lent what where records are worked on in order: those of one key, or all. Pure.

A record is lent only if every earlier unsettled record of its key is leased to the same member, or goes with it. There
is no table of who has which key: whoever has the first records of a key has the key, as long as it has them.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from mq_broker.broker.queues.policy.dropping import Masks
from mq_broker.broker.queues.policy.ready_records import CAME_BACK_MAX, Choice, Fits, ReadyRecords, Run, Wish
from mq_broker.core.work.offset_set import OffsetSet
from mq_broker.core.work.order import OneKey
from mq_broker.core.work.ranges import RANGES_MAX, Range, Ranges, joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import NO_MARK, Mark, WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, Reject, Reset, Return, Send, Step
from mq_protocol.queues.settings import Order

_BLOCK_RECORDS = 4_096


class _Block:
    __slots__ = ("keys", "offsets", "settled")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.keys = array("Q")
        self.settled = 0  # about so many are by now


class KeyIndex:
    """Owns the offsets of records that were read and have a key, and the keys: hashes of 64 bits. 16 bytes a record, in
    blocks. Once half of a block's records are settled they go."""

    def __init__(self, settled: OffsetSet) -> None:
        self._settled = settled
        self._blocks: list[_Block] = []
        self._ends: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offsets: Sequence[int], keys: Sequence[int]) -> None:
        """They ascend, and come after all that is here."""
        self._count += len(offsets)
        at = 0
        while at < len(offsets):
            if not self._blocks or len(self._blocks[-1].offsets) >= _BLOCK_RECORDS:
                self._blocks.append(_Block())
                self._ends.append(0)
            block = self._blocks[-1]
            until = min(len(offsets), at + _BLOCK_RECORDS - len(block.offsets))
            block.offsets.extend(offsets[at:until])
            block.keys.extend(keys[at:until])
            self._ends[-1] = block.offsets[-1] + 1
            at = until

    def key(self, offset: int) -> int | None:
        """None if the record has none, or was not read."""
        return next((key for _, key in self.of(((offset, offset + 1),))), None)

    def of(self, ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
        """The records of these ranges that have a key, each with it."""
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                block = self._blocks[at]
                low, high = bisect_left(block.offsets, first), bisect_left(block.offsets, end)
                yield from zip(block.offsets[low:high], block.keys[low:high], strict=True)
                if high < len(block.offsets):
                    break

    def count(self, ranges: Iterable[Range]) -> int:
        """How many those are."""
        count = 0
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                offsets = self._blocks[at].offsets
                count += bisect_left(offsets, end) - bisect_left(offsets, first)
                if offsets[-1] >= end:
                    break
        return count

    def settle(self, ranges: Iterable[Range]) -> set[int]:
        """These are settled. The keys of records that go by that: also of others that are settled by now, of which
        this is not told any more."""
        touched: set[int] = set()
        for first, end in ranges:
            for at in range(bisect_right(self._ends, first), len(self._blocks)):
                block = self._blocks[at]
                low, high = bisect_left(block.offsets, first), bisect_left(block.offsets, end)
                block.settled += high - low
                touched.add(at)
                if high < len(block.offsets):
                    break
        gone: set[int] = set()
        for at in sorted(touched, reverse=True):
            if 2 * self._blocks[at].settled >= len(self._blocks[at].offsets):
                gone |= self._shrink(at)
        return gone

    def _shrink(self, at: int) -> set[int]:
        block, settled = self._blocks[at], self._settled
        gone = {key for offset, key in zip(block.offsets, block.keys, strict=True) if offset in settled}
        kept = [i for i, offset in enumerate(block.offsets) if offset not in settled]
        self._count -= len(block.offsets) - len(kept)
        if not kept:
            del self._blocks[at], self._ends[at]
            return gone
        block.offsets = array("q", [block.offsets[i] for i in kept])
        block.keys = array("Q", [block.keys[i] for i in kept])
        block.settled = 0
        self._ends[at] = block.offsets[-1] + 1
        return gone


LOOK_AHEAD_MAX: Final = 250_000
"""Unsettled records past base whose keys a leader knows at a time."""

READ_AHEAD: Final = 20_000
"""So many records past the last one that was looked at, at most, have their keys read."""

READ_AT_ONCE: Final = 10_000
"""Records whose keys are taken in in one turn, some five milliseconds."""

HELD_MAX: Final = RANGES_MAX // 2
"""Records of a partition that one member has with `order=key`: if one comes back, others of its key go with it, and all
of that is one entry."""

STAYS_MS: Final = 1_000
"""With `order=all`: for so long a member that holds nothing is waited for before another takes over."""

_WALKED_AT_ONCE: Final = 500

CHOSEN_AT_ONCE: Final = 1_000
"""Records by one entry with `order=key`, some twenty milliseconds. Who is left is lent some by the next one."""


class Single(ReadyRecords):
    """All records are in order, so one member at a time has some."""

    ordered = Order.ALL, ""

    def __init__(self, state: WorkState, limit: int, masks: Masks | None = None) -> None:
        super().__init__(state, limit, masks)
        self.order = OneKey(state)
        self._active = ""
        self._seen_ms = 0  # when the active member asked last, or had something settled
        self._denied = False

    def _sort(self, first: int, end: int, mark: Mark | None) -> None:
        """What is ready is found where the unsettled records begin."""
        if mark is not None and (mark.due_us or mark.doomed(self.limit)):
            super()._sort(first, end, mark)

    def wake(self, now_us: int) -> bool:
        done = super().wake(now_us)
        self._back.clear()
        self._alone.clear()
        return done

    def written(self, steps: Collection[Step], now_ms: int) -> None:
        for step in steps:
            if isinstance(step, Lease):
                self._active = step.member
            if isinstance(step, Lease | Accept | Return | Reject | Send):
                self._seen_ms = now_ms
        super().written(steps, now_ms)

    @property
    def active(self) -> str | None:
        return self._active

    def _undo(self, runs: list[Run]) -> None:
        """Choosing takes nothing."""

    def again_ms(self, now_ms: int) -> int | None:
        denied, self._denied = self._denied, False
        return max(self._seen_ms + STAYS_MS - now_ms, 1) if denied else None

    def _first_alone(self, now_us: int) -> Run | None:
        run = next(self._state.unleased(self._state.base, self._end(self._state.frontier)), None)
        ready = run is not None and run[2] is not None and run[2].due_us <= now_us and not run[2].doomed(self.limit)
        return run if ready and run is not None and self._is_last(run[2]) else None

    def _end(self, end: int) -> int:
        state = self._state
        return min(end, max(state.base + state.fresh_room(), state.frontier))

    def _may(self, wish: Wish) -> bool:
        """Whether this member is the one that has records now."""
        holders = {held.member for held in self._state.leases.values()}
        if wish.member == self._active:
            self._seen_ms = wish.now_ms
        if holders:
            return holders == {wish.member} and not wish.settled
        stays = self._active in wish.present or wish.now_ms < self._seen_ms + STAYS_MS
        if self._active and self._active != wish.member and stays:
            self._denied = True
            return False
        return True

    def choose(self, wish: Wish, now_us: int, end: int, fits: Fits) -> Choice:
        choice = Choice(wish, now_us, fits)
        if not wish.records_max or not self._may(wish):
            return choice
        for first, until, mark in self._state.unleased(self._state.base, self._end(end)):
            known = mark or NO_MARK
            if known.doomed(self.limit) or known.due_us > now_us:
                break
            if self._is_last(mark):
                if wish.alone and not choice.runs:
                    choice.runs, choice.records = [(first, first + 1, mark)], 1
                break
            choice.take(first, until, mark)
            if choice.over:
                break
        return choice

    def blocked_by(self, now_us: int) -> int | None:
        """The record that all others wait for, which cannot be lent now; None if there is none."""
        run = next(self._state.unleased(self._state.base, self._state.frontier), None)
        if run is None or self._state.leases:
            return None
        known = run[2] or NO_MARK
        return run[0] if known.doomed(self.limit) or known.due_us > now_us else None


class _Chain:
    """The unsettled records of one key that were looked at, ascending. Those before `at` are settled, or `holder` has
    them or is about to; the one at `at` is the next to be lent. `queued`: the one that waits in a heap, and whose."""

    __slots__ = ("at", "holder", "offsets", "queued", "start")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.start = self.at = 0
        self.holder: str | None = None
        self.queued: tuple[int, str | None] | None = None

    @property
    def next(self) -> int:
        """-1 if there is none."""
        return self.offsets[self.at] if self.at < len(self.offsets) else -1


class ByKey(ReadyRecords):
    """Records of one key are in order. Owns what is known of keys; somebody else reads them (`to_read`, `add`)."""

    def __init__(self, state: WorkState, limit: int, order_by: str = "", masks: Masks | None = None) -> None:
        self.ordered = Order.KEY, order_by
        self.index = KeyIndex(state.settled)
        self.read_to = state.base
        self._now_us = 0
        self._undoing: list[tuple[_Chain, int, str | None]] | None = None
        super().__init__(state, limit, masks)
        self.order = self

    def begin(self) -> None:
        super().begin()
        self._fresh = self._state.base
        self._chains: dict[int, _Chain] = {}
        self._own: dict[str, list[Range]] = {}  # what comes after records that a member has: for that one alone

    # ------------------------------------------------------------------ keys

    @property
    def full(self) -> bool:
        """Whether as many keys are known as may be."""
        return len(self.index) >= LOOK_AHEAD_MAX

    def to_read(self, end: int) -> Range | None:
        """The records whose keys are to be read next. `end`: of the log."""
        until = min(end, max(self._lent_to(), self._fresh + READ_AHEAD))
        self.read_to = max(self.read_to, self._state.base)
        if self.read_to >= until or self.full:
            return None
        return self.read_to, min(until, self.read_to + READ_AT_ONCE)

    def knows(self, end: int) -> bool:
        """Whether nothing is to be read now: half of what may be read ahead is known."""
        return self.full or self.read_to >= min(end, max(self._lent_to(), self._fresh + READ_AHEAD // 2))

    @property
    def knows_lent(self) -> bool:
        """Whether the keys are known of all records that somebody has or had."""
        return self.full or self.read_to >= self._lent_to()

    def _lent_to(self) -> int:
        state = self._state
        return max(state.frontier, state.marks.end())

    def add(self, until: int, offsets: Sequence[int], keys: Sequence[int]) -> None:
        """The records up to `until` were read: those that have a key, and the keys."""
        settled = self._state.settled
        kept = [i for i, offset in enumerate(offsets) if offset >= self.read_to and offset not in settled]
        self.index.add([offsets[i] for i in kept], [keys[i] for i in kept])
        self.read_to = max(self.read_to, until)

    # ------------------------------------------------------------------ looking at records

    def scan(self, most: int) -> bool:
        end = min(self._scan_end, self.read_to)
        self._walk(end, most)
        return self._fresh >= end

    def _walk(self, end: int, most: int) -> int:
        """Look at the next records, so many about. Returns how many."""
        state, looked = self._state, 0
        self._fresh = max(self._fresh, state.base)
        for low, high, lease in state.lent.pieces(((self._fresh, end),) if self._fresh < end else ()):
            marked = state.marks.pieces(((low, high),)) if lease is None else ((low, high, None),)
            for first, until, mark in marked:
                for a, b in state.settled.missing(first, until):
                    stop = min(b, a + most - looked)
                    self._meet(a, stop, mark, leased=lease is not None)
                    looked, self._fresh = looked + stop - a, stop
                    if looked >= most:
                        return looked
                self._fresh, looked = until, looked + 1
        return looked

    def _meet(self, first: int, end: int, mark: Mark | None, *, leased: bool) -> None:
        """Records that were not looked at before, and are alike."""
        known = mark or NO_MARK
        waits = not leased and (known.doomed(self.limit) or bool(known.due_us))
        if waits:
            self._sort(first, end, mark)
        free = self._alone if self._is_last(mark) else self._back
        at = first
        for offset, key in self.index.of(((first, end),)):
            if at < offset and not leased and not waits:
                heapq.heappush(free, (at, offset))
            at = offset + 1
            chain = self._chains.get(key)
            if chain is None:
                chain = self._chains[key] = _Chain()
            chain.offsets.append(offset)
            self._advance(chain)
            if chain.next == offset:
                self._queue(chain)
        if at < end and not leased and not waits:
            heapq.heappush(free, (at, end))

    def _advance(self, chain: _Chain) -> None:
        """To the next record that its holder, or anybody, may be lent."""
        state, offsets = self._state, chain.offsets
        while chain.at < len(offsets):
            offset = offsets[chain.at]
            if offset not in state.settled:
                lease = state.lent.at(offset)
                if lease is None:
                    return
                member = state.leases[lease].member
                if chain.holder not in (None, member):
                    return
                chain.holder = member
            chain.at += 1

    def _queue(self, chain: _Chain) -> None:
        """Have the next record of this key found by whoever may be lent it."""
        offset = chain.next
        if offset < 0 or chain.queued == (offset, chain.holder) or self._state.lent.at(offset) is not None:
            return
        mark = self._state.marks.at(offset)
        known = mark or NO_MARK
        if known.doomed(self.limit) or known.due_us > self._now_us:
            return  # it is found when it is due, or when it was sent
        if self._is_last(mark):
            if chain.holder is None:
                heapq.heappush(self._alone, (offset, offset + 1))
            return
        heap = self._back if chain.holder is None else self._own.setdefault(chain.holder, [])
        heapq.heappush(heap, (offset, offset + 1))
        chain.queued = offset, chain.holder

    def _changed(self, key: int) -> None:
        """Records of this key were settled."""
        chain = self._chains.get(key)
        if chain is None:
            return
        settled, offsets = self._state.settled, chain.offsets
        while chain.start < len(offsets) and offsets[chain.start] in settled:
            chain.start += 1
        if chain.start == len(offsets):
            del self._chains[key]
            return
        if chain.start >= chain.at:
            chain.at, chain.holder = chain.start, None
        if chain.start > 64 and 2 * chain.start > len(offsets):
            del offsets[: chain.start]
            chain.at -= chain.start
            chain.start = 0
        self._advance(chain)
        self._queue(chain)

    def _anew(self, key: int) -> None:
        """Leases of this key have ended."""
        chain = self._chains.get(key)
        if chain is not None:
            chain.at, chain.holder, chain.queued = chain.start, None, None
            self._changed(key)

    # ------------------------------------------------------------------ what has changed

    def written(self, steps: Collection[Step], now_ms: int) -> None:
        for step in steps:
            if isinstance(step, Accept | Drop | Send):
                self._settled(step.ranges)
            elif isinstance(step, Return | Reject | Reset):
                self.came_back(step.ranges)

    def trimmed(self, start: int) -> None:
        first = next((offset for offset, _ in self.index.of(((0, start),))), start)
        if first < start:
            self._settled(((first, start),))

    def _settled(self, ranges: Ranges) -> None:
        if self.index.count(ranges) > CAME_BACK_MAX:
            self.index.settle(ranges)
            self.begin()
            return
        keys = {key for _, key in self.index.of(ranges)}
        keys |= self.index.settle(ranges)  # what a later step of the entry, or a trim, has settled may go with these
        for key in keys:
            self._changed(key)

    def came_back(self, ranges: Ranges) -> None:
        if self.index.count(ranges) > CAME_BACK_MAX:
            self.begin()
            return
        super().came_back(tuple((first, min(end, self._fresh)) for first, end in ranges if first < self._fresh))
        for key in {key for _, key in self.index.of(ranges)}:
            self._anew(key)

    def overgrown(self) -> bool:
        extra = len(self._own) + sum(map(len, self._own.values())) - 2 * len(self._chains)  # members that went, too
        return super().overgrown() or extra > CAME_BACK_MAX

    def wake(self, now_us: int) -> bool:
        self._now_us = now_us
        return super().wake(now_us)

    # ------------------------------------------------------------------ choosing

    at_once = CHOSEN_AT_ONCE

    def most(self, held: int) -> int:
        return min(max(HELD_MAX - held, 0), CHOSEN_AT_ONCE)

    def _first_alone(self, now_us: int) -> Run | None:
        while (run := super()._first_alone(now_us)) is not None:
            key = self.index.key(run[0])
            chain = self._chains.get(key) if key is not None else None
            if key is None or (chain is not None and chain.next == run[0] and chain.holder is None):
                return run
            _, end = heapq.heappop(self._alone)  # it is found again when those before it are settled
            if run[0] + 1 < end:
                heapq.heappush(self._alone, (run[0] + 1, end))
        return None

    def choose(self, wish: Wish, now_us: int, end: int, fits: Fits) -> Choice:
        choice = Choice(wish, now_us, fits)
        self._now_us = now_us
        if not wish.records_max:
            return choice
        lone = self._first_alone(now_us) if wish.alone else None
        if lone is not None:
            until = heapq.heappop(self._alone)[1]
            self._keep(lone[0] + 1, until)
            key = self.index.key(lone[0])
            if key is not None:
                self._give(self._chains[key], wish.member)
            choice.runs, choice.records = [(lone[0], lone[0] + 1, lone[2])], 1
            return choice
        end = min(end, self._state.base + self._state.fresh_room(), self.read_to)
        room = self._state.base + self._state.fresh_room()
        kept: list[tuple[list[Range], Range]] = []  # what was never lent, and is above the state's bounds
        own: list[Range] = self._own.get(wish.member, []) if not wish.settled else []
        while not choice.over:
            heap = own if own and (not self._back or own[0] < self._back[0]) else self._back
            if not heap:
                if self._fresh >= end:
                    break
                if not self._take_fresh(end, choice):
                    choice.looked += self._walk(end, _WALKED_AT_ONCE)
                own = self._own.get(wish.member, []) if not wish.settled else []
                continue
            first, until = heapq.heappop(heap)
            if choice.runs:
                first = max(first, choice.runs[-1][1])  # what is here twice is taken once
            if first < until and until > room and self._state.marks.at(max(first, room)) is None:
                kept.append((heap, (max(first, room), until)))
                until = room
                choice.looked += 1
            rest = self._choose_of((first, until), choice) if first < until else until
            if rest < until:
                heapq.heappush(heap, (rest, until))
            if not own and not wish.settled:
                own = self._own.get(wish.member, [])
        for heap, candidate in kept:
            heapq.heappush(heap, candidate)
        return choice

    def _choose_of(self, candidate: Range, choice: Choice) -> int:
        state = self._state
        if candidate[1] - candidate[0] == 1 and (candidate[0] in state.settled or state.lent.at(candidate[0])):
            choice.looked += 1
            return candidate[1]
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
                    for begin, until in state.settled.missing(first, end):
                        rest = self._choose_alike(begin, until, mark, choice)
                        if choice.over:
                            return rest
                if choice.over:
                    return end
            if choice.over:
                return high
        return candidate[1]

    def _choose_alike(self, first: int, end: int, mark: Mark | None, choice: Choice) -> int:
        """Take what may be lent of records that are alike. Returns where that ends which was looked at."""
        at = first
        for offset, key in self.index.of(((first, end),)):
            if choice.over:
                return at
            if at < offset:
                at = choice.take(at, offset, mark)
                if choice.full:
                    return at
            choice.looked += 1
            chain = self._chains.get(key)
            if chain is not None and chain.next == offset:
                chain.queued = None
                if self._may(chain, choice.wish):
                    if choice.take(offset, offset + 1, mark) == offset:
                        self._queue(chain)  # too large for now
                        return offset + 1
                    self._give(chain, choice.wish.member)
                else:
                    self._queue(chain)
            at = offset + 1
        return choice.take(at, end, mark) if at < end and not choice.over else at

    def _take_fresh(self, end: int, choice: Choice) -> bool:
        """Take records that nobody had or looked at, if they are next of their keys. False if there are none."""
        state, wish = self._state, choice.wish
        first = self._fresh = max(self._fresh, state.base)
        stop = min(end, first + _WALKED_AT_ONCE)
        fresh = first >= max(state.frontier, state.marks.end(), choice.runs[-1][1] if choice.runs else 0)
        if not fresh or state.settled.missing_count(first, stop) < stop - first:
            return False
        if wish.bytes_max:
            stop, size = choice.fits(first, stop, wish.bytes_max - choice.bytes)
            if stop == first:
                return False
            choice.bytes += size
        self._fresh = stop = min(stop, first + wish.records_max - choice.records)
        run = first
        for offset, key in self.index.of(((first, stop),)):
            chain = self._chains.get(key)
            if chain is None:
                chain = self._chains[key] = _Chain()
            chain.offsets.append(offset)
            if chain.next == offset and self._may(chain, wish):
                self._give(chain, wish.member)
                continue
            if chain.next == offset:
                self._queue(chain)
            choice.append(run, offset)
            run = offset + 1
        choice.append(run, stop)
        choice.looked += stop - first
        return True

    @staticmethod
    def _may(chain: _Chain, wish: Wish) -> bool:
        """What is settled by being lent must not overtake what its member has of the key."""
        return chain.holder is None or (chain.holder == wish.member and not wish.settled)

    def _give(self, chain: _Chain, member: str) -> None:
        """Its next record is chosen for this member."""
        if self._undoing is not None:
            self._undoing.append((chain, chain.at, chain.holder))
        chain.holder = member
        chain.at += 1
        self._advance(chain)
        self._queue(chain)

    def is_ready(self, wish: Wish, now_us: int, end: int) -> bool | None:
        self._undoing = []
        try:
            return super().is_ready(wish, now_us, end)
        finally:
            self._undoing = None

    def _undo(self, runs: list[Run]) -> None:
        for chain, at, holder in reversed(self._undoing or ()):
            chain.at, chain.holder, chain.queued = at, holder, None
            self._queue(chain)
        super()._undo([run for run in runs if self.index.key(run[0]) is None])

    # ------------------------------------------------------------------ how settles are judged

    def behind(self, ranges: Sequence[Range]) -> Ranges:
        found: list[Range] = []
        for key, first in self._firsts(ranges).items():
            chain = self._chains.get(key)
            if chain is not None:
                after = chain.offsets[bisect_right(chain.offsets, first) : chain.at]
                found += [(offset, offset + 1) for offset in after]
        return joined(found)

    def of_those_after(self, ranges: Sequence[Range], others: Sequence[Range]) -> Ranges:
        firsts = self._firsts(others)
        return joined((o, o + 1) for o, key in self.index.of(ranges) if key in firsts and o > firsts[key])

    def overtaking(self, ranges: Sequence[Range], done: RunMap[bool]) -> Ranges:
        theirs: dict[int, list[int]] = {}
        for offset, key in self.index.of(ranges):
            theirs.setdefault(key, []).append(offset)
        found = [(max(first, self.read_to), end) for first, end in ranges if end > self.read_to]
        settled = self._state.settled
        for key, mine in theirs.items():
            chain = self._chains.get(key)
            if chain is not None and chain.offsets[chain.start : chain.start + len(mine)] == array("q", mine):
                continue  # they are the first ones
            named = set(mine)
            for offset in chain.offsets[chain.start :] if chain is not None else ():
                if offset > mine[-1]:
                    break
                if offset not in named and offset not in settled and not done.at(offset):
                    found += [(each, each + 1) for each in mine if each > offset]
                    break
        return joined(found)

    def _firsts(self, ranges: Iterable[Range]) -> dict[int, int]:
        """The first record of each key."""
        firsts: dict[int, int] = {}
        for offset, key in self.index.of(ranges):
            firsts.setdefault(key, offset)
        return firsts

    # ------------------------------------------------------------------ what is stuck

    def blocked_by(self, now_us: int) -> int | None:
        """The first record of the key that most others wait for, if it cannot be lent now or the look-ahead is full;
        None if there is none."""
        longest = max(
            islice(self._chains.values(), CAME_BACK_MAX), key=lambda chain: len(chain.offsets) - chain.at, default=None
        )
        if longest is None or longest.at >= len(longest.offsets):
            return None
        offset = longest.offsets[longest.start]
        known = self._state.marks.at(offset) or NO_MARK
        waits = self._state.lent.at(offset) is None and (known.doomed(self.limit) or known.due_us > now_us)
        return offset if waits or (self.full and len(longest.offsets) - longest.at > 1) else None
