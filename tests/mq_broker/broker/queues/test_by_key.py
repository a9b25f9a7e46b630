"""Who may be lent which records of which key, and what comes after what: random steps, against a look at every record.

No loop, no clock and no requests: only the facts (`WorkState`) and what a leader keeps beside them (`ByKey`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable

import pytest

from mq_broker.broker.queues.policy import ordering, ready_records
from mq_broker.broker.queues.policy.ordering import ByKey
from mq_broker.broker.queues.policy.ready_records import Choice, Wish
from mq_broker.core.work.ranges import Range, joined
from mq_broker.core.work.run_map import RunMap
from mq_broker.core.work.state import NO_MARK, WorkState
from mq_broker.core.work.steps import Accept, Drop, Lease, LeaseId, Reason, Reject, Reset, Return, Step

MEMBERS = ("a", "b", "c")
END = 48
LIMIT = 3


def ones(offsets: Iterable[int]) -> tuple[Range, ...]:
    return joined((offset, offset + 1) for offset in sorted(offsets))


def offsets_of(ranges: Iterable[Range]) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


class Leader:
    """Owns a state and what its leader keeps of it. Keys are letters; a blank is none."""

    def __init__(self, keys: str) -> None:
        self.keys, self.state = keys, WorkState(1, 0)
        self.entries, self.now_us = 0, 0
        self.lead_anew()

    def lead_anew(self) -> None:
        self.ready = ByKey(self.state, LIMIT)
        self.look()

    def look(self) -> None:
        """Read all keys, and look at all records."""
        while (wanted := self.ready.to_read(len(self.keys))) is not None:
            known = [offset for offset in range(*wanted) if self.keys[offset] != " "]
            self.ready.add(wanted[1], known, [ord(self.keys[offset]) for offset in known])
        while not self.ready.scan(2):
            pass
        while not self.ready.wake(self.now_us):
            pass
        if self.ready.overgrown():
            self.ready.begin()
            self.look()

    def write(self, *steps: Step) -> None:
        for step in steps:
            self.entries += 1
            self.state.apply(step, LeaseId(1, self.entries, 0), len(self.keys))
            self.ready.written((step,), 0)
        self.look()

    def choose(self, member: str, most: int = 1_000, *, alone: bool = False, settled: bool = False) -> Choice:
        wish = Wish(most, 0, alone, member, settled)
        return self.ready.choose(wish, self.now_us, len(self.keys), lambda _, until, __: (until, 0))

    def unsettled(self) -> list[int]:
        return sorted(offsets_of(self.state.settled.missing(0, len(self.keys))))

    def held(self, member: str) -> list[int]:
        return [o for o in self.unsettled() if (held := self.state.holder(o)) is not None and held[1] == member]

    def may_have(self, member: str, *, settled: bool) -> tuple[set[int], set[int]]:
        """What a look at every record says: what may be lent together, and what is lent alone."""
        found: set[int] = set()
        last: set[int] = set()
        stopped: set[str] = set()
        begun: set[str] = set()
        for offset in self.unsettled():
            key = self.keys[offset]
            ordered, is_first = key != " ", key not in begun
            begun.add(key)
            mark, holder = self.state.marks.at(offset) or NO_MARK, self.state.holder(offset)
            if key in stopped and ordered:
                continue
            if holder is not None:
                if holder[1] != member or settled:
                    stopped.add(key)
            elif mark.doomed(LIMIT) or mark.due_us > self.now_us:
                stopped.add(key)
            elif mark.failures == LIMIT - 1:
                stopped.add(key)
                if is_first or not ordered:
                    last.add(offset)
            else:
                found.add(offset)
                if settled:
                    stopped.add(key)
        return found, last

    def earlier(self, offset: int) -> set[int]:
        """The unsettled records of its key before it."""
        key = self.keys[offset]
        return {o for o in self.unsettled() if o < offset and self.keys[o] == key != " "}


def check_choices(leader: Leader, rng: random.Random) -> None:
    member, settled = rng.choice(MEMBERS), rng.random() < 0.3
    found, last = leader.may_have(member, settled=settled)
    for alone in (False, True):
        expected = [{each} for each in last] if alone and last else [found]
        wish = Wish(9, 0, alone, member, settled)
        assert leader.ready.is_ready(wish, leader.now_us, END) is any(expected)
        choice = copy.deepcopy(leader).choose(member, alone=alone, settled=settled)
        assert offsets_of(choice.ranges) in expected
        assert choice.records == len(offsets_of(choice.ranges))
        trial = copy.deepcopy(leader)
        some = trial.choose(member, 2, alone=alone, settled=settled)
        chosen = offsets_of(some.ranges)
        assert chosen <= found | last
        assert len(chosen) == min(2, len(expected[0]))
        if some.runs:
            trial.write(Lease(some.ranges, member))
        other = trial.choose(rng.choice(MEMBERS))
        assert not offsets_of(other.ranges) & chosen, "what was chosen is chosen by nobody else"
    assert leader.ready.waits_alone(leader.now_us) == bool(last)


def check_order(leader: Leader, rng: random.Random) -> None:
    """What comes after what, of records that somebody has or had."""
    unsettled = [offset for offset in leader.unsettled() if offset < leader.state.frontier]
    some = {o for o in unsettled if rng.random() < 0.3}
    others = {o for o in unsettled if rng.random() < 0.1}
    done = {o for o in unsettled if rng.random() < 0.1} - some
    after = {o for o in some if others & leader.earlier(o)}
    order = leader.ready
    assert offsets_of(order.of_those_after(ones(some), ones(others))) == after
    is_done: RunMap[bool] = RunMap((first, end, True) for first, end in ones(done))
    overtaking = {o for o in some if leader.earlier(o) - some - done}
    assert offsets_of(order.overtaking(ones(some), is_done)) == overtaking
    leased = {o for member in MEMBERS for o in leader.held(member)}
    begun = {o for o in leased if rng.random() < 0.3}
    behind = offsets_of(order.behind(ones(begun)))
    assert behind & set(unsettled) == {o for o in leased if begun & leader.earlier(o)}


def take_step(leader: Leader, rng: random.Random) -> None:
    member = rng.choice(MEMBERS)
    held = leader.held(member)
    some = {o for o in held if rng.random() < 0.5}
    back = some | (offsets_of(leader.ready.behind(ones(some))) & set(held))
    whole = ones(back)
    match rng.randrange(9):
        case 0 | 1 | 2:
            choice = leader.choose(member, rng.choice((1, 2, 3, 9)), alone=not held, settled=rng.random() < 0.1)
            if choice.runs:
                leader.write(Lease(choice.ranges, member))
        case 3 | 4:
            done = some - offsets_of(leader.ready.overtaking(ones(some), RunMap()))
            if done:
                leader.write(Accept(ones(done)))
        case 5 if whole:
            due_us = rng.choice((0, 0, leader.now_us + 5))
            leader.write(Return(whole, rng.random() < 0.7, due_us, "no"))
        case 6 if whole and rng.random() < 0.3:
            leader.write(Reject(whole, "never"))
        case 7:
            free = {o for o in leader.unsettled() if leader.state.holder(o) is None and rng.random() < 0.2}
            if free and rng.random() < 0.3:
                leader.write(rng.choice((Drop(ones(free), Reason.PURGED), Reset(ones(free)))))
        case _ if rng.random() < 0.2:
            leader.lead_anew()
    leader.now_us += rng.choice((0, 0, 1, 6))
    leader.look()


@pytest.mark.parametrize("seed", range(12))
def test_a_member_is_lent_what_a_look_at_every_record_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(ordering, "READ_AT_ONCE", 7)
    if seed % 3:
        monkeypatch.setattr(ordering, "_WALKED_AT_ONCE", 3)
        monkeypatch.setattr(ordering, "_BLOCK_RECORDS", 4)
    if seed % 2:
        for module in (ordering, ready_records):
            monkeypatch.setattr(module, "CAME_BACK_MAX", 4)
    leader = Leader("".join(rng.choice("ppqrs " if seed % 4 else "pq   ") for _ in range(END)))
    for _ in range(60):
        take_step(leader, rng)
        check_choices(leader, rng)
        check_order(leader, rng)


@pytest.mark.parametrize("keys", ["p q r s ", " p  q pp", "pq  rs  ", "  ppp  q"])
def test_what_was_chosen_by_a_new_leader_is_chosen_by_nobody_else(keys: str) -> None:
    for most in range(1, len(keys) + 1):
        leader = Leader(keys)
        leader.write(Lease(((0, len(keys)),), "a"))
        leader.write(Return(((0, len(keys)),)))
        leader.lead_anew()
        chosen = [offsets_of(leader.choose(member, most).ranges) for member in "abcabcabc"]
        assert sum(map(len, chosen)) == len(set().union(*chosen))
