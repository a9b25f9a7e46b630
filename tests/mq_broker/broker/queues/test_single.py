"""Whose turn it is where all records are in order: one member, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Container

import pytest

from mq_broker.broker.queues.policy.ordering import LOOK_AHEAD_MAX, STAYS_MS, ByKey, Single
from mq_broker.broker.queues.policy.ready_records import Choice, Wish
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, Lease, LeaseId, Reject, Return, Step

END = 10


class Turns:
    """Owns a state of ten records, and what its leader keeps of it. Steps are written as soon as they are said."""

    def __init__(self, limit: int = 0) -> None:
        self.state = WorkState(1, 0)
        self.single = Single(self.state, limit)
        self.entries = self.now_us = 0

    def write(self, step: Step, now_ms: int = 0) -> None:
        self.entries += 1
        self.state.apply(step, LeaseId(1, self.entries, 0), END)
        self.single.written((step,), now_ms)
        while not (self.single.scan(100) and self.single.wake(self.now_us)):
            pass

    def choose(
        self, member: str, now_ms: int = 0, most: int = 5, *, alone: bool = True, present: Container[str] = ()
    ) -> Choice:
        wish = Wish(most, 0, alone, member, now_ms=now_ms, present=present)
        return self.single.choose(wish, self.now_us, END, lambda _, end, __: (end, 0))

    def tried(self, member: str, now_ms: int = 0, *, present: Container[str] = ()) -> bool:
        """Whether it would be lent something; nothing is."""
        return bool(self.choose(member, now_ms, present=present).runs)


@pytest.mark.parametrize(
    "step", [Accept(((0, 5),)), Return(((0, 5),)), Return(((0, 5),), True, 0, "no")], ids=["ack", "release", "fail"]
)
def test_a_member_stays_for_so_long_after_it_was_heard_of_last_unless_another_may_take_over(step: Step) -> None:
    turns = Turns()
    turns.write(Lease(((0, 5),), "a"), 100)
    assert not turns.tried("b", 5_000), "a has records"
    assert turns.single.again_ms(5_000) is None, "no time changes that"
    turns.write(step, 2_000)
    assert not turns.tried("b", 2_400)
    assert turns.single.again_ms(2_400) == STAYS_MS - 400
    assert turns.single.again_ms(2_400) is None, "it was told"
    assert not turns.tried("b", 2_000 + STAYS_MS - 1)
    assert turns.single.again_ms(2_000 + STAYS_MS + 50) == 1
    assert not turns.tried("b", 9_000, present=("a", "b")), "a asks"
    assert turns.single.again_ms(9_000) == 1
    assert turns.tried("b", 2_000 + STAYS_MS)
    assert turns.single.again_ms(2_000 + STAYS_MS) is None
    assert turns.tried("a", 3_500)
    assert not turns.tried("b", 3_500 + STAYS_MS - 1), "a has asked since"
    turns.write(Lease(((0, 9) if isinstance(step, Return) else (5, 9),), "b"), 5_000)
    assert not turns.tried("a", 5_001)


def test_a_record_that_waits_or_is_doomed_holds_up_all_that_follows_and_is_named() -> None:
    turns = Turns()
    assert turns.single.blocked_by(0) is None
    turns.write(Lease(((0, 5),), "a"))
    assert turns.single.blocked_by(0) is None, "somebody has it"
    turns.write(Accept(((0, 2),)))
    turns.write(Return(((2, 5),), True, 50, "no"))
    assert (turns.choose("a").ranges, turns.single.blocked_by(49)) == ((), 2)
    turns.now_us = 50
    assert turns.single.blocked_by(50) is None
    assert turns.choose("a", most=1).ranges == ((2, 3),)
    turns.write(Lease(((2, 3),), "a"))
    turns.write(Reject(((2, 3),), "never"))
    assert (turns.choose("a").ranges, turns.single.blocked_by(50)) == ((), 2)


# ---------------------------------------------------------------- how many keys are known


def test_the_first_record_of_the_key_that_most_wait_for_is_named_if_it_cannot_be_lent() -> None:
    state = WorkState(1, 0)
    keys = ByKey(state, 0)
    assert keys.blocked_by(0) is None

    def write(step: Step, entry: int) -> None:
        state.apply(step, LeaseId(1, entry, 0), 10)
        keys.written((step,), 0)
        assert keys.scan(100)

    keys.add(7, range(7), [1, 2, 2, 1, 2, 2, 2])
    for entry, held in enumerate(((0, 1), (1, 2), (3, 7)), 1):
        write(Lease((held,), "a"), entry)
    keys.begin()
    assert keys.scan(100)
    assert keys.blocked_by(0) is None
    write(Return(((1, 2), (4, 7)), True, 50, "no"), 4)
    assert keys.blocked_by(49) == 1
    assert keys.blocked_by(50) is None
    last = LOOK_AHEAD_MAX - 1
    keys.add(last, range(7, last), range(100, 100 + last))
    assert keys.blocked_by(50) is None, "one key more may be known"
    keys.add(last + 1, [last], [2])
    assert (keys.full, keys.blocked_by(50)) == (True, 1)
