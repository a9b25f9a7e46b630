"""When a queue group that no member has open for `idle_ms` is deleted: three brokers in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.idle import without_idle
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_broker.core.work.steps import Lease, Reason, Send
from mq_protocol import mq_pb2 as pb
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker
from tests.mq_broker.broker.queues.members import Member, ranges
from tests.mq_broker.broker.queues.partitions import Group, rounds
from tests.mq_broker.broker.test_three_brokers import Three, three

SPEC = TopicSpec("t", "0" * 32, ((1,), (2,), (3,)), queues={"g": QueueSpec(1, 0, {"idle_ms": "1m"})})


class Used:
    """Three brokers that lead a partition each of topic `t`, which has the queue group `g` with an `idle_ms` of a
    minute."""

    def __init__(self, cluster: Three, leaders: list[int]) -> None:
        self.cluster, self.leaders = cluster, leaders

    def leader(self, number: int) -> Broker:
        return self.cluster[self.leaders[number]]

    async def there(self, after_s: float) -> bool:
        """Whether the group is, so much later."""
        await asyncio.sleep(after_s)
        return bool((await self.leader(0).ask("Queues", pb.QueuesRequest(topic="t"))).queues)


@asynccontextmanager
async def used(data: Path) -> AsyncIterator[Used]:
    async with three(data) as cluster:
        info = await cluster[1].create_topic("t", partitions=3)
        settings = {"idle_ms": "1m"}
        await cluster[1].ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", settings=settings))
        yield Used(cluster, [each.leader for each in info.partitions])


@virtual_time
async def test_a_group_goes_once_the_leaders_of_all_partitions_agree(tmp_path: Path) -> None:
    async with used(tmp_path) as here:
        await here.leader(2).produce("t", 1, 2, partition=2)
        member = Member(here.leader(2))
        lent = await member.lease(1, partition=2, lease_ms=600_000)
        assert ranges(lent) == [0, 1]
        assert await here.there(180), "a member works on a record"
        ack = pb.SettleOne(lease=lent.lease, ranges=[0, 1])
        await member.settle(ack, partition=2)
        assert await here.there(50)
        await member.lease(0, partition=2, wait_ms=0)
        assert await here.there(50), "it was heard of"
        assert not await here.there(40)


@virtual_time
async def test_a_leader_that_cannot_be_asked_has_not_agreed(tmp_path: Path) -> None:
    async with used(tmp_path) as here:
        await here.leader(1).abandon()
        assert await here.there(180)
        await here.leader(1).start()
        assert await here.there(50), "who leads anew begins the time anew"
        assert not await here.there(60)


@virtual_time
async def test_a_leader_that_stood_still_begins_the_time_anew(tmp_path: Path) -> None:
    async with used(tmp_path) as here:
        await asyncio.sleep(40)
        await here.leader(2).stand_still(5.5)
        assert await here.there(50), "members could not reach it"
        assert not await here.there(40)


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


@virtual_time
async def test_a_group_is_in_use_while_a_member_waits_or_has_a_lease_and_when_it_says_something() -> None:
    group = Group(10)
    began = group.ms
    group.ms += 100
    assert group.led_group.used_ms() == began
    asking = group.ask("a", 0)
    group.ms += 100
    assert group.led_group.used_ms() == began + 200, "it waits"
    group.ms += 100
    group.led_group.leave(asking)
    group.ms += 100
    assert group.led_group.used_ms() == began + 300
    group.led.apply("g", 1, Lease(((0, 2),), "a"))
    group.ms += 100
    assert group.led_group.used_ms() == began + 500
    [lease] = group.state.leases
    group.ms += 100
    group.ack("a", lease, (0, 2))
    await rounds()
    group.ms += 100
    assert not group.state.leases
    assert group.led_group.used_ms() == began + 600
    session: Any = SimpleNamespace(member="s", key=b"", priority=0, lasting=False, end=lambda _: None)
    group.led_group.present.come(session, "g", replaced_before=False)
    group.ms += 100
    assert group.led_group.used_ms() == began + 800, "a member has a session, and need not say anything"
    group.led_group.present.leave(session, None)
    group.led.apply("g", 1, Send(((2, 3),), Reason.REJECTED, 1, ()))
    group.ms += 100
    assert group.led_group.used_ms() == began + 900, "what is decided is to be published"
