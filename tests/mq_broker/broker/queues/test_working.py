"""Queue groups of the partitions that are led here: bounds of who waits, the end of a leadership, a loop that stood
still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.queues import working as working_module
from mq_broker.broker.queues.group.requests import Asking, Lent
from mq_broker.broker.queues.working import Working
from mq_broker.core.work.settling import Ack, Answer, Release, Settle
from mq_broker.core.work.steps import Begin, Lease, OutputLine, Reason, Send
from mq_protocol.errors import DiskFull, NotLeader, OutcomeUnknown, Overloaded
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Around, Declares, Led, rounds


class World:
    """A broker that leads a partition with a queue group, and its clock."""

    def __init__(self, records: int = 0, **callbacks: Any) -> None:
        self.led: Any = Led(records)
        self.led.apply("g", 1, Begin(0))
        self.around: Any = Around(self.led.topic)
        self.around.leds, self.roles = [self.led], self.around.on_role
        self.declares: Any = Declares()
        self.now_us = 1
        self.working = Working(self.around, self.declares, lambda: self.now_us, **callbacks)

    def asks(self, member: str, group: str = "g") -> asyncio.Task[Any]:
        now = asyncio.get_running_loop().time()
        return asyncio.create_task(self.working.lent(self.led, group, Asking(member, b"", 1), now + 9, now + 10))


@virtual_time
async def test_no_more_requests_wait_at_a_partition_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_module, "WAITING_PER_PARTITION_MAX", 2)
    world = World()
    waiting = [world.asks(member) for member in ("a", "b", "c")]
    await rounds()
    with pytest.raises(Overloaded, match="2 requests of queue groups wait at t-0"):
        waiting[2].result()
    waiting[0].cancel()
    await rounds()
    another = world.asks("d")
    await rounds()
    assert not another.done(), "there is room again"
    world.led.append(2)
    assert [each.runs[0].first for each in await asyncio.gather(waiting[1], another)] == [0, 1]


@virtual_time
async def test_a_group_with_many_members_makes_room_for_another_group_of_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working_module, "WAITING_PER_PARTITION_MAX", 3)
    world = World()
    world.led.apply("other", 1, Begin(0))
    first, *waiting = [world.asks(member) for member in ("a", "b", "c")]
    await rounds()
    other = world.asks("a", "other")
    await rounds()
    assert await first == Lent(), "the longest waiting one was answered that nothing is ready"
    assert not any(each.done() for each in (other, *waiting))
    with pytest.raises(Overloaded):
        await world.asks("d")
    world.led.append(1)
    assert (await other).runs[0].first == 0
    for each in waiting:
        each.cancel()


@virtual_time
async def test_members_that_wait_keep_nobody_from_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_module, "WAITING_PER_PARTITION_MAX", 2)
    world = World(1)
    lent = await world.asks("a")
    waiting = [world.asks(member) for member in ("b", "c")]
    await rounds()
    with pytest.raises(Overloaded):
        await world.asks("d")
    soon = asyncio.get_running_loop().time() + 10
    settle = Settle(lent.lease, "a", ((0, 1),), Ack())
    assert list(await world.working.settled(world.led, "g", [settle], soon)) == [Answer()]
    for each in waiting:
        each.cancel()


@virtual_time
async def test_who_waits_is_told_at_once_when_the_leadership_ends_and_nothing_of_it_stays() -> None:
    world = World()
    waiting = world.asks("a")
    await rounds()
    assert len(world.led.observers) == 1
    world.led.lose(OutcomeUnknown("deposed"))
    with pytest.raises(NotLeader):
        await waiting
    assert not world.led.observers
    with pytest.raises(NotLeader):
        await world.asks("a")


@virtual_time
async def test_leases_of_a_former_leader_run_out_though_nobody_asks_anything() -> None:
    world = World(10)
    world.led.apply("g", 1, Lease(((0, 4),), "gone"), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    world.around.ms += 31_000
    await asyncio.sleep(5)  # the broker's own timer has come
    assert not world.led.state.leases
    assert world.led.state.totals.returned == 4


@virtual_time
async def test_no_more_requests_wait_at_a_broker_than_it_takes_whatever_their_partitions_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working_module, "WAITING_MAX", 2)
    world = World()
    other: Any = Led()
    other.apply("g", 1, Begin(0))
    waiting = world.asks("a")
    now = asyncio.get_running_loop().time()
    elsewhere = asyncio.create_task(world.working.lent(other, "g", Asking("a", b"", 1), now + 9, now + 10))
    await rounds()
    with pytest.raises(Overloaded, match="1 requests of queue groups wait at t-0, and 2 at this broker"):
        await world.asks("b")
    elsewhere.cancel()
    await rounds()
    another = world.asks("b")
    await rounds()
    assert not another.done(), "there is room again"
    waiting.cancel()
    another.cancel()


@virtual_time
async def test_no_more_ranges_wait_to_be_settled_at_a_broker_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_module, "RANGES_WAITING_MAX", 5)
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    soon = asyncio.get_running_loop().time() + 10

    def settles(*ranges: tuple[int, int]) -> asyncio.Task[Any]:
        settle = Settle(lent.lease, "a", ranges, Ack())
        return asyncio.create_task(world.working.settled(world.led, "g", [settle], soon))

    waiting = settles((0, 1), (2, 3), (4, 5))
    await rounds()
    with pytest.raises(Overloaded, match="which name 3 ranges of records"):
        await settles((0, 1), (2, 3), (4, 5))
    waiting.cancel()
    await rounds()
    another = settles(*((at, at + 1) for at in range(0, 14, 2)))
    await rounds()
    assert not another.done(), "there is room again, and one is taken however many it names"
    another.cancel()


@virtual_time
async def test_a_settle_that_was_not_judged_in_time_is_not_done_later() -> None:
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    now = asyncio.get_running_loop().time()
    ack = Settle(lent.lease, "a", ((0, 1),), Ack())
    release = Settle(lent.lease, "a", ((0, 1),), Release())
    first = asyncio.create_task(world.working.settled(world.led, "g", [release], now + 5))
    await rounds()
    with pytest.raises(OutcomeUnknown, match="ask again, the same way"):
        await world.working.settled(world.led, "g", [ack], now)
    world.led.keeps_up = True
    world.led.commit()
    assert [answer.error for answer in await first] == [None]
    await rounds()
    assert world.led.state.base == 0
    assert await world.working.settled(world.led, "g", [], now) == ()


@virtual_time
async def test_a_lease_that_is_not_committed_in_time_is_not_known() -> None:
    world = World(10)
    world.led.keeps_up = False
    now = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown, match="did not commit a lease in time"):
        await world.working.lent(world.led, "g", Asking("a", b"", 1), now, now)


@virtual_time
async def test_what_a_former_leader_has_decided_is_published_by_the_next_though_nobody_asks() -> None:
    looked: list[str] = []
    world = World(10, on_outbox=lambda gathering, _: looked.append(gathering.group))
    line = OutputLine("1" * 32, 0, (bytes(16),))
    world.led.apply("g", 1, Send((), Reason.OUTPUT, 1, (line,)), epoch=1)
    [became_leader] = world.roles
    became_leader(world.led)
    await rounds()
    assert looked


@virtual_time
async def test_a_group_whose_entry_the_disk_refused_begins_anew_and_knows_what_is_committed() -> None:
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    cut = world.asks("b")
    await rounds()
    before = world.working.gathering(world.led, "g")
    world.led.cut(DiskFull("full"))
    with pytest.raises(DiskFull):
        await cut
    await rounds()
    assert before.closed
    world.led.keeps_up = True
    again = await world.asks("c")
    assert [(run.first, run.end) for run in again.runs] == [(1, 2)], "nobody has it"
    ack = Settle(lent.lease, "a", ((0, 1),), Ack())
    now = asyncio.get_running_loop().time()
    assert await world.working.settled(world.led, "g", [ack], now + 10) == [Answer()]


@virtual_time
async def test_leases_of_a_group_whose_entry_the_disk_refused_run_out_though_nobody_asks() -> None:
    world = World(10)
    await world.asks("a")
    world.led.keeps_up = False
    cut = world.asks("b")
    await rounds()
    world.led.cut(DiskFull("full"))
    with pytest.raises(DiskFull):
        await cut
    world.led.keeps_up = True
    await asyncio.sleep(5)
    world.around.ms += 31_000
    await asyncio.sleep(5)
    assert not world.led.state.leases


@virtual_time
async def test_who_settles_and_asks_is_refused_both_with_one_error_and_nothing_of_it_stays() -> None:
    world = World(10)
    lent = await world.asks("a")
    world.led.keeps_up = False
    ack = Settle(lent.lease, "a", ((0, 1),), Ack())
    now = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown, match="did not commit this in time"):
        await world.working.settled_and_lent(world.led, "g", [ack], Asking("a", b"", 1), now + 0.05)
    assert not world.working.gathering(world.led, "g").waits
    world.led.lose(OutcomeUnknown("deposed"))
    with pytest.raises(NotLeader):
        await world.working.settled_and_lent(world.led, "g", [ack], Asking("a", b"", 1), now + 10)
