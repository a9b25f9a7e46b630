"""Members that have a session, and what becomes of the leases of those who do not come back."""

from __future__ import annotations

import pytest

from mq_broker.broker.queues.group.holdings import RETURNED_AT_ONCE, Holdings
from mq_broker.broker.queues.group.presence import BROKEN_MAX, OVER_MAX, Presence
from mq_broker.core.work.settling import Settle
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Lease, LeaseId, Return
from mq_protocol.errors import TritonMQError

WHERE = "t-0", "g"


class Here:
    """The session of a member."""

    key, priority, lasting = b"k" * 16, 0, False

    def __init__(self, member: str) -> None:
        self.member = member

    def end(self, error: TritonMQError) -> None:
        raise AssertionError(error)


def given_up(presence: Presence, state: WorkState, now_ms: int) -> list[list[Settle]]:
    """What goes back, entry by entry, until nobody is gone any more."""
    holdings = Holdings(state, 2)
    while not holdings.take_up(1_000, 30_000, 0):
        pass
    turns: list[list[Settle]] = []
    while presence.due(now_ms):
        turns.append(presence.given_up(holdings, now_ms, WHERE))
        for at, settle in enumerate(turns[-1]):
            state.apply(Return(settle.ranges), LeaseId(2, 100 * len(turns) + at, 0), 1 << 20)
    return turns


@pytest.mark.parametrize(("until_ms", "kept"), [(None, OVER_MAX), (5, OVER_MAX + BROKEN_MAX)], ids=["closed", "broken"])
def test_members_that_are_gone_are_bounded_while_no_entry_can_be_written(until_ms: int | None, kept: int) -> None:
    """The leases of those that are forgotten, the first ones, run out."""
    state, presence = WorkState(1, 0), Presence()
    gone = [f"m{number}" for number in range(kept + 50)]
    for member in gone:
        presence.come(session := Here(member), "g", replaced_before=False)
        presence.leave(session, until_ms)
    assert presence.due(0), "too many to be waited for"
    forgotten, known = gone[49], gone[50]
    for number, member in enumerate((forgotten, known)):
        state.apply(Lease(((number, number + 1),), member), LeaseId(1, number + 1, 0), 1_000)
    given_up(presence, state, 0)
    assert {held.member for held in state.leases.values()} == {forgotten}


def test_of_all_members_that_are_gone_together_so_many_ranges_go_back_at_once() -> None:
    pieces = RETURNED_AT_ONCE // 2 + 1
    state, presence = WorkState(1, 0), Presence()
    for number, member in enumerate("abc"):
        first = 2 * pieces * number
        ranges = tuple((at, at + 1) for at in range(first, first + 2 * pieces, 2))
        state.apply(Lease(ranges, member), LeaseId(1, number + 1, 0), 6 * pieces)
        session = Here(member)
        presence.come(session, "g", replaced_before=False)
        presence.leave(session, None)
    turns = given_up(presence, state, 0)
    sizes = [sum(len(settle.ranges) for settle in settles) for settles in turns]
    assert max(sizes) == RETURNED_AT_ONCE
    assert sum(sizes) == 3 * pieces
    assert not state.leases


def test_who_could_not_come_back_while_the_leader_stood_still_is_waited_for_anew() -> None:
    presence, session = Presence(), Here("a")
    presence.come(session, "g", replaced_before=False)
    presence.leave(session, 100)
    presence.slept(500)
    assert not presence.due(499)
    assert presence.due(500)
