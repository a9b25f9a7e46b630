"""When a group that ends with its last member ends. Partitions are stand-ins that say what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mq_broker.broker.groups.sharing import GRACE_MS, EphemeralGroups
from mq_broker.core.entries import DeleteGroup
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.window import WindowBounds
from mq_protocol.errors import NotLeader
from tests.mq_broker.broker.groups.partitions import Replica


class Led:
    """A partition led here, in which the ephemeral group `g` has a cursor."""

    def __init__(self) -> None:
        self.name = "t-0"
        self.ms = 0
        self.serving = True
        self.replica = Replica(PartitionMachine(WindowBounds(1_000)), leader_epoch=5)
        self.replica.machine.ephemeral.add("g")
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

    def now_ms(self) -> int:
        return self.ms

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        asyncio.run(work)

    def members_of(self, _partition: object, _group: str) -> list[str]:
        return self.members

    def forget(self, _partition: object, group: str) -> None:
        self.forgotten.append(group)


def looks_at(led: Any) -> Callable[[int], None]:
    """A look, so many milliseconds after the beginning of the clock."""
    groups = EphemeralGroups(led, led)

    def look(now_ms: int) -> None:
        led.ms = now_ms
        groups.look([led])

    return look


def test_a_group_ends_once_it_had_no_member_for_the_whole_grace() -> None:
    led = Led()
    look = looks_at(led)
    for now in (100_000, 100_000 + GRACE_MS - 100):
        look(now)
        assert led.asked == []
    look(100_000 + GRACE_MS)
    assert led.asked == [DeleteGroup("g")]


def test_a_member_that_came_in_between_begins_the_grace_anew() -> None:
    led = Led()
    look = looks_at(led)
    look(100_000)
    led.members = ["m"]
    look(110_000)
    led.members = []
    look(111_000)
    look(110_000 + GRACE_MS)
    assert led.asked == []
    look(111_000 + GRACE_MS)
    assert led.asked == [DeleteGroup("g")]


def test_a_new_leadership_has_heard_of_no_member_yet_and_waits_anew() -> None:
    led = Led()
    look = looks_at(led)
    look(100_000)
    led.replica.leader_epoch = 6  # of the same broker, whose members come again
    look(120_000)
    look(119_900 + GRACE_MS)
    assert led.asked == []
    look(120_000 + GRACE_MS)
    assert led.asked == [DeleteGroup("g")]


def test_an_end_that_was_refused_is_asked_for_once_a_grace_and_not_at_each_look() -> None:
    led = Led()
    led.refuses = True
    look = looks_at(led)
    for now in range(100_000, 100_000 + 2 * GRACE_MS + 1, 1_000):
        look(now)
    assert len(led.asked) == 2


def test_only_who_leads_ends_a_group() -> None:
    led = Led()
    led.serving = False
    look = looks_at(led)
    for now in (100_000, 100_000 + GRACE_MS):
        look(now)
    led.serving = True
    look(100_000 + 2 * GRACE_MS)
    assert led.asked == [], "the grace begins with the leadership"
