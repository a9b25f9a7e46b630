"""When a queue group that nobody has open for `idle_ms` is deleted: what counts as open, who is asked, and what a
leader that cannot know for sure says. Time is the test's; the last tests run real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.declared import Queue
from mq_broker.broker.queues.idle import AGAIN_MS, SLEPT_MS, Idle, without_idle
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Lease, Reason, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotLeader, TritonMQError
from mq_protocol.queue_settings import QueueSettings
from tests.mq_broker.broker.queues.partitions import Group, rounds, scenario

MINUTE = 60_000
TOPIC_ID = "0" * 32
SPEC = TopicSpec("t", TOPIC_ID, ((1,), (2,), (3,)), queues={"g": QueueSpec(1, 0, {"idle_ms": "1m"})})


class Led(SimpleNamespace):
    """A partition that this broker leads; one is not another."""

    __hash__ = object.__hash__


class World:
    """A broker that leads partition 0 of a topic of three with the queue group `g`. `others`: for how long the leaders
    of partitions 1 and 2 say that the group is idle, or what they are refused with. `asked`: which leaders were."""

    def __init__(self, number: int = 0) -> None:
        self.ms = 1_000_000
        self.used_ms = 0
        self.settings = QueueSettings(idle_ms=MINUTE)
        self.life = 1
        self.spec = SPEC
        self.others: list[int | TritonMQError] = [MINUTE, MINUTE]
        self.asked: list[int] = []
        self.refuses: TritonMQError | None = None
        self.proved: list[object] = []
        machine = SimpleNamespace(work={"g": WorkState(1, 0)})
        self.partition: Any = Led(
            name=f"t-{number}",
            number=number,
            serving=True,
            topic=SimpleNamespace(spec=SPEC),
            replica=SimpleNamespace(machine=machine, leader_epoch=5),
            ask=self._prove,
        )
        each: Any = self
        self.idle = Idle(each, each, each, each, each)

    # ---- the shell

    def now_ms(self) -> int:
        return self.ms

    def leader(self, _topic: object, number: int) -> Any:
        assert number == self.partition.number
        if not self.partition.serving:
            raise NotLeader("another broker leads")
        return self.partition

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> None:
        asyncio.run(work)

    # ---- topics, what is declared, who works, what leaders answer

    async def meant(self, _name: str, topic_id: str) -> Any:
        assert topic_id == TOPIC_ID
        return SimpleNamespace(spec=self.spec)

    async def renewed(self, _topic: object) -> Any:
        return SimpleNamespace(spec=self.spec, partitions=len(self.spec.assignment))

    async def edit(self, name: str, change: Any) -> Any:
        assert name == "t"
        self.spec = change(self.spec)
        return SimpleNamespace(spec=self.spec)

    def of(self, _partition: object) -> dict[str, Queue]:
        return {"g": Queue("g", self.life, 0, self.settings)}

    def gathering(self, _partition: object, _group: str) -> Any:
        return SimpleNamespace(used_ms=lambda: self.used_ms)

    async def ask_leader(self, _name: str, number: int, method: str, request: Any, _kind: object, here: Any) -> Any:
        assert (method, request.group, request.life) == ("QueueIdle", "g", 1)
        self.asked.append(number)
        if number == 0:
            return await here(request, 5.0)
        said = self.others[number - 1]
        if isinstance(said, TritonMQError):
            raise said
        return pb.QueueIdleResponse(idle_ms=said)

    async def _prove(self, operation: object, _deadline: float) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.proved.append(operation)

    # ---- what the test does

    def wait(self, ms: int) -> list[int]:
        """Time passes, a second at a time. Which leaders were asked."""
        self.asked = []
        while ms > 0:
            self.ms += min(ms, 1_000)
            ms -= 1_000
            self.idle.look([self.partition])
        return self.asked

    def says(self, life: int = 1) -> int:
        number = self.partition.number
        request = pb.QueueIdleRequest(topic="t", topic_id=TOPIC_ID, partition=number, group="g", life=life)
        return int(asyncio.run(self.idle.queue_idle(request, 5.0)).idle_ms)

    @property
    def there(self) -> bool:
        return "g" in self.spec.queues


def watched(number: int = 0) -> World:
    """At the moment from which the group counts as idle."""
    world = World(number)
    world.idle.look([world.partition])
    return world


def test_a_group_goes_once_the_leaders_of_all_partitions_agree() -> None:
    world = watched()
    assert world.wait(MINUTE - 1) == []
    assert world.wait(1) == [0, 1, 2]
    assert not world.there


def test_a_leader_that_stood_still_begins_the_time_anew() -> None:
    world = watched()
    world.wait(MINUTE // 2)
    world.ms += SLEPT_MS + 1
    assert world.says() == 0, "asked before it has looked again"
    assert world.wait(MINUTE - 1) == []
    assert world.wait(1_001) == [0, 1, 2]


def test_one_leader_at_which_a_member_was_heard_of_keeps_the_group_and_is_asked_again_in_its_time() -> None:
    world = watched()
    world.others = [MINUTE - 25_000, MINUTE]
    assert world.wait(MINUTE) == [0, 1], "one word is enough"
    assert world.there
    world.others[0] = MINUTE
    assert world.wait(24_000) == []
    assert world.wait(1_000) == [0, 1, 2]
    assert not world.there


def test_a_leader_that_cannot_be_asked_has_not_agreed() -> None:
    world = watched()
    world.others[1] = NotLeader("t-2 has no leader at the moment")
    assert world.wait(MINUTE) == [0, 1, 2]
    assert world.there
    assert world.wait(AGAIN_MS - 1) == []
    world.others[1] = MINUTE
    assert world.wait(1) == [0, 1, 2]
    assert not world.there


@pytest.mark.parametrize(
    "now",
    [
        replace(SPEC, topic_id="1" * 32),
        replace(SPEC, assignment=(*SPEC.assignment, (1,))),
        replace(SPEC, queues={"g": QueueSpec(2, 0, {"idle_ms": "1m"})}),
        replace(SPEC, queues={"g": QueueSpec(1, 0, {"idle_ms": "2m"})}),
        replace(SPEC, queues={}),
    ],
)
def test_what_has_changed_since_the_leaders_were_asked_is_left_alone(now: TopicSpec) -> None:
    assert without_idle(now, SPEC, "g") is now
    assert without_idle(SPEC, SPEC, "g").queues == {}


@scenario
async def test_a_group_is_in_use_while_a_member_waits_or_has_a_lease_and_when_it_says_something() -> None:
    group = Group(10)
    began = group.ms
    group.ms += 100
    assert group.gathering.used_ms() == began
    asking = group.ask("a", 0)
    group.ms += 100
    assert group.gathering.used_ms() == began + 200, "it waits"
    group.ms += 100
    group.gathering.leave(asking)
    group.ms += 100
    assert group.gathering.used_ms() == began + 300
    group.led.apply("g", 1, Lease(((0, 2),), "a"))
    group.ms += 100
    assert group.gathering.used_ms() == began + 500
    [lease] = group.state.leases
    group.ms += 100
    group.ack("a", lease, (0, 2))
    await rounds()
    group.ms += 100
    assert not group.state.leases
    assert group.gathering.used_ms() == began + 600
    session: Any = SimpleNamespace(member="s", key=b"", priority=0, end=lambda _: None)
    group.gathering.present.come(session, "g", replaced_before=False)
    group.ms += 100
    assert group.gathering.used_ms() == began + 800, "a member has a session, and need not say anything"
    group.gathering.present.leave(session, None)
    group.led.apply("g", 1, Send(((2, 3),), Reason.REJECTED, 1, ()))
    group.ms += 100
    assert group.gathering.used_ms() == began + 900, "what is decided is to be published"


# ---------------------------------------------------------------- real brokers
