"""Whom a member asks for records: one leader at a time has its credit."""

from __future__ import annotations

import math
from typing import Any

from mq_client.queueing.places import SAYS_S, STAYS_MAX, TELLS_S, Call, Credit, Place, Turns, told_of

WHOLE = Credit(100, 1_000)


def places(count: int) -> dict[int, Place]:
    return {number: Place(number) for number in range(count)}


def asked(turns: Turns, of: dict[int, Place], *, wants: bool = True, now: float = 0.0) -> list[tuple[int, int, bool]]:
    found = turns.questions(of, WHOLE, wants, now, alone=len(of) == 1)
    for question in found:
        question.place.leasing = Call("b:1", now, question.records, question.bytes, question.waits)
    return [(question.place.partition, question.records, question.waits) for question in found]


def test_leaders_are_asked_in_turn_and_then_all_are_waited_for() -> None:
    turns, of = Turns(), places(3)
    for expected in (0, 1, 2):
        assert asked(turns, of) == [(expected, 100, False)]
        assert asked(turns, of) == [], "one has the credit"
        of[expected].leasing, of[expected].hopeful = None, False
    assert asked(turns, of) == [(0, 0, True), (1, 0, True), (2, 0, True)]
    of[1].leasing, of[1].hopeful = None, True  # it has something now
    assert asked(turns, of) == [(1, 100, False)]
    of[1].leasing, of[1].hopeful = None, False
    assert asked(turns, of) == [(1, 0, True)]


def test_the_only_partition_is_asked_and_waited_for_at_once() -> None:
    assert asked(Turns(), places(1)) == [(0, 100, True)]


def test_a_leader_that_does_not_answer_holds_up_nobody_else() -> None:
    turns, of = Turns(), places(2)
    of[0].ask_after = 5.0
    assert asked(turns, of) == [(1, 100, False)]
    of[1].leasing, of[1].hopeful = None, False
    assert asked(turns, of, now=1.0) == [(1, 0, True)]
    assert asked(turns, of, now=6.0) == [(0, 100, False)]


def test_a_lost_answer_is_asked_about_without_any_credit() -> None:
    turns, of = Turns(), places(2)
    of[1].unsure = True
    assert asked(turns, of, wants=False) == [(1, 0, False)]
    assert asked(turns, of, wants=False) == []


def test_a_question_that_waits_does_not_keep_a_leader_from_hearing_what_is_held() -> None:
    turns, of = Turns(), places(2)
    of[0].leasing = Call("b:1", 0.0, waits=True)
    of[1].leasing = Call("b:2", 0.0, 10, 100)
    of[0].unsure = of[1].unsure = True
    assert asked(turns, of) == [(0, 0, False)], "the other one has just been told, and answers soon"


def test_credit_is_what_is_neither_held_nor_asked_for() -> None:
    free = WHOLE.free(30, 250.0, [Call("b:1", 0.0, 20, 100), Call("b:2", 0.0)])
    assert free == Credit(50, 650)


def test_more_is_asked_for_when_nothing_waits_or_half_is_free() -> None:
    assert Credit(1, 1).worth_asking(WHOLE, hungry=True)
    assert not Credit(0, 100).worth_asking(WHOLE, hungry=True)
    assert not Credit(100, 0).worth_asking(WHOLE, hungry=True)
    assert not Credit(49, 1_000).worth_asking(WHOLE, hungry=False)
    assert not Credit(100, 499).worth_asking(WHOLE, hungry=False)
    assert Credit(50, 500).worth_asking(WHOLE, hungry=False)


def test_a_leader_is_asked_again_together_with_outcomes_unless_something_speaks_against_it() -> None:
    def stays(now: float = 0.0, of: dict[int, Place] | None = None, **fields: object) -> bool:
        found = places(2) if of is None else of
        for name, value in fields.items():
            setattr(found[0], name, value)
        return Turns.stays(found[0], found.values(), now)

    assert stays()
    assert not stays(leasing=Call("b:1", 0.0, waits=True))
    assert not stays(unsure=True)
    assert not stays(hopeful=False)
    assert not stays(ask_after=1.0)
    assert stays(ask_after=1.0, now=1.0)
    assert stays(stayed=STAYS_MAX - 1)
    assert not stays(stayed=STAYS_MAX)
    others = places(2)
    others[1].hopeful = False
    assert stays(of=others, stayed=STAYS_MAX)
    others[1].leasing = Call("b:1", 0.0, waits=True)
    assert stays(of=others)
    others[1].leasing = Call("b:1", 0.0, records=1)
    assert not stays(of=others)


def test_a_leader_that_gets_the_credit_in_turn_may_keep_it_for_a_while() -> None:
    turns, of = Turns(), places(2)
    of[0].stayed = STAYS_MAX
    assert asked(turns, of) == [(0, 100, False)]
    assert of[0].stayed == 0


def told(of: dict[int, Place], now: float, priority: int = 0) -> tuple[list[int], float]:
    questions, again_at = told_of(of, now, priority)
    assert all((each.records, each.waits) == (0, False) for each in questions)
    return [each.place.partition for each in questions], again_at


def test_a_member_that_holds_no_lease_and_asks_for_nothing_is_heard_of_by_one_leader() -> None:
    of = places(3)
    of[0].asked_at, of[1].asked_at, of[2].asked_at = 100.0, 130.0, 120.0
    assert told(of, 149.0) == ([], 130.0 + SAYS_S)
    assert told(of, 150.0) == ([1], math.inf)
    lease: Any = None
    of[2].leases[1, 2, 3] = lease
    assert told(of, 150.0) == ([], math.inf), "its leases tell that the group is in use"
    assert told(of, 122.0, priority=1) == ([0], 120.0 + TELLS_S), "others wait for it at each leader"
