"""When a group that ends with its last member ends. Time is an argument; partitions are stand-ins that say what they
are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from mq_broker.broker.groups.ephemeral import GRACE_S, EphemeralGroups
from mq_broker.core.entries import DeleteGroup
from mq_protocol.errors import NotLeader


class Led:
    """A partition led here, in which the ephemeral group `g` has a cursor."""

    def __init__(self) -> None:
        self.name = "t-0"
        self.serving = True
        self.replica = SimpleNamespace(leader_epoch=5, machine=SimpleNamespace(ephemeral=["g"]))
        self.members: list[str] = []
        self.forgotten: list[str] = []
        self.asked: list[object] = []
        self.refuses = False

    async def ask(self, operation: object, _deadline: float) -> None:
        assert self.forgotten, "or a move under way would write the cursor again"
        self.asked.append(operation)
        if self.refuses:
            raise NotLeader("another leads")

    # ---- what the groups see of the broker and of who shares the partition

    def partitions(self) -> list[Any]:
        return [self]

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        asyncio.run(work)

    def members_of(self, _partition: object, _group: str) -> list[str]:
        return self.members

    def forget(self, _partition: object, group: str) -> None:
        self.forgotten.append(group)


def groups_of(led: Any) -> EphemeralGroups:
    return EphemeralGroups(led, led)


def test_a_group_ends_once_it_had_no_member_for_the_whole_grace() -> None:
    led = Led()
    groups = groups_of(led)
    for now in (100.0, 100.0 + GRACE_S - 0.1):
        groups.look(now)
        assert led.asked == []
    groups.look(100.0 + GRACE_S)
    assert led.asked == [DeleteGroup("g")]


def test_a_member_that_came_in_between_begins_the_grace_anew() -> None:
    led = Led()
    groups = groups_of(led)
    groups.look(100.0)
    led.members = ["m"]
    groups.look(110.0)
    led.members = []
    groups.look(111.0)
    groups.look(110.0 + GRACE_S)
    assert led.asked == []
    groups.look(111.0 + GRACE_S)
    assert led.asked == [DeleteGroup("g")]


def test_a_new_leadership_has_heard_of_no_member_yet_and_waits_anew() -> None:
    led = Led()
    groups = groups_of(led)
    groups.look(100.0)
    led.replica.leader_epoch = 6  # of the same broker, whose members come again
    groups.look(120.0)
    groups.look(119.9 + GRACE_S)
    assert led.asked == []
    groups.look(120.0 + GRACE_S)
    assert led.asked == [DeleteGroup("g")]


def test_an_end_that_was_refused_is_asked_for_once_a_grace_and_not_at_each_look() -> None:
    led = Led()
    led.refuses = True
    groups = groups_of(led)
    for now in range(100, 100 + 2 * int(GRACE_S) + 1):
        groups.look(float(now))
    assert len(led.asked) == 2


def test_only_who_leads_ends_a_group() -> None:
    led = Led()
    led.serving = False
    groups = groups_of(led)
    for now in (100.0, 100.0 + GRACE_S):
        groups.look(now)
    led.serving = True
    groups.look(100.0 + 2 * GRACE_S)
    assert led.asked == [], "the grace begins with the leadership"
