"""Records whose batches have a time to live of their own are lent to nobody after it, wherever they are, and go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq_broker.broker.queues.policy import batch_expiries, dropping, expiring
from mq_broker.broker.queues.policy.expiring import Expiring, Fate, covering
from mq_broker.core.entries import Attributes, Entry, Publish, Stage, TransactionKey
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Published
from mq_broker.core.work.settling import Failed, Rejected, Release
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Drop, Lease, Reason
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import Order
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Group, offsets, rounds


def group_of(*lives_ms: int, records: int = 5, **settings: Any) -> Group:
    """A group whose batches of so many records were appended just now, each with such a life; 0 for ever."""
    group = Group(0, **settings)
    for ttl_ms in lives_ms:
        group.led.append(records, at_us=group.us, ttl_ms=ttl_ms)
    return group


def test_a_life_counts_from_when_a_batch_gets_its_offsets_and_not_from_when_it_was_staged() -> None:
    machine, key = PartitionMachine(WindowBounds(100)), TransactionKey("query", "t")
    staged = Stage(key, 0, "run", Attributes(ttl_ms=5_000))
    machine.apply(Entry(1, 1, 1_000_000, staged, b"u" * 16, 10, 100, 100))
    [published] = machine.apply(Entry(2, 1, 90_000_000, Publish(key, 0, (b"u" * 16,))))
    assert isinstance(published, Published)
    assert published.expires_us == 90_000_000 + 5_000 * 1_000


def dropped(group: Group) -> int:
    return dict(group.state.totals.dropped).get(Reason.EXPIRED, 0)


async def lent(group: Group, member: str, records: int) -> list[tuple[int, int]]:
    asking = group.ask(member, records)
    await rounds()
    return offsets(asking) if asking.answered.done() else []


async def pass_ms(group: Group, ms: int) -> None:
    group.pass_ms(ms)
    await rounds()


@pytest.mark.parametrize(("ttl_ms", "of_batch", "after_ms"), [(5_000, 2_000, 2_000), (2_000, 5_000, 2_000)])
@virtual_time
async def test_a_record_expires_by_its_batch_or_by_its_group_whichever_is_first(
    ttl_ms: int, of_batch: int, after_ms: int
) -> None:
    group = group_of(of_batch, ttl_ms=ttl_ms)
    group.ms, group.us = group.ms + after_ms - 1, group.us + (after_ms - 1) * 1_000
    assert await lent(group, "a", 1) == [(0, 1)]
    group.us += 1_000
    assert await lent(group, "b", 1) == []
    assert dropped(group) == 4


@virtual_time
async def test_a_batch_that_nobody_asked_for_is_the_first_that_has_a_life_and_goes() -> None:
    group = group_of(0)
    await lent(group, "a", 5)
    assert not group.led_group.waits
    group.led.append(3, at_us=group.us, ttl_ms=500)
    assert group.led_group.waits
    group.led_group.wake()  # as the one who watches the partition does
    await rounds()
    assert group.led_group.has_clocks
    await pass_ms(group, 1_000)
    assert dropped(group) == 3


@virtual_time
async def test_where_much_expires_at_once_it_is_found_in_turns_and_nothing_is_lent_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiring, "FOUND_AT_ONCE", 7)
    group = group_of(*([1_000, 0] * 20), records=1)
    group.ms, group.us = group.ms + 1_000, group.us + 1_000_000
    asking = group.ask("a", 100)
    await rounds()
    steps = [(type(step), len(step.ranges)) for work in group.led.proposed for step in work.steps]
    assert steps == [(Drop, 7), (Drop, 7), (Lease, 20), (Drop, 6)]
    assert offsets(asking) == [(at, at + 1) for at in range(1, 40, 2)]


@pytest.mark.parametrize("seed", range(30))
@virtual_time
async def test_whatever_happens_nothing_is_lent_that_has_expired_and_all_of_it_goes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    block, bound = rng.choice(((1, 8), (4, 8), (1_024, 10_000)))
    monkeypatch.setattr(batch_expiries, "_BLOCK", block)
    monkeypatch.setattr(batch_expiries, "READ_AT_ONCE", rng.choice((1, 5, 4_000)))
    monkeypatch.setattr(batch_expiries, "BATCHES_MAX", bound)
    monkeypatch.setattr(expiring, "FOUND_AT_ONCE", rng.choice((1, 3, 4_000)))
    monkeypatch.setattr(expiring, "_PENDING_MAX", rng.choice((2, 10_000)))
    monkeypatch.setattr(dropping, "DROPPED_AT_ONCE", rng.choice((2, 2_000)))
    monkeypatch.setattr(dropping, "LOOKED_AT_ONCE", rng.choice((2, 4_000)))
    await Walk(rng).run()


class Walk:
    """A group whose batches have lives, and what each record's time is."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.expire_us: list[int] = []
        self.seen = 0
        self.leases: list[tuple[str, Any, int, int]] = []

    async def run(self) -> None:
        rng = self.rng
        ttl_ms = rng.choice((0, 0, 4_000))
        order = rng.choice([Order.NONE, Order.NONE, Order.KEY, Order.ALL])
        self.group = Group(0, ttl_ms=ttl_ms, order=order, delivery_limit=3, retry_ms=500, lease_ms=5_000)
        self.group.key_of = lambda offset: offset % 3
        self.ttl_us = ttl_ms * 1_000 or 1 << 60
        for _ in range(60):
            await self._step()
            self._check_dropped()
        for _ in range(4):
            await pass_ms(self.group, 61_000)
        state, end = self.group.state, self.group.led.next_offset
        left = [run for run in state.unleased(state.base, end) if run[2] is None or not run[2].parked]
        assert all(self.expire_us[at] > self.group.us for first, until, _ in left for at in range(first, until))

    def _check_dropped(self) -> None:
        """Nothing is dropped before its time."""
        for work in self.group.led.proposed[self.seen :]:
            for step in work.steps:
                if isinstance(step, Drop):
                    assert all(self.expire_us[at] <= self.group.us for a, b in step.ranges for at in range(a, b))
        self.seen = len(self.group.led.proposed)

    async def _step(self) -> None:
        rng, group = self.rng, self.group
        match rng.randrange(6):
            case 0 | 1:
                count, life = rng.randrange(1, 4), rng.choice((0, 1_000, 1_000, rng.randrange(1, 9_000), 100_000))
                group.led.append(count, rng.choice((4, 4, 9)), group.us, life)
                self.expire_us += [group.us + min(life * 1_000 or 1 << 60, self.ttl_us)] * count
                group.led_group.wake()
            case 2:
                member = f"m{rng.randrange(3)}"
                asking = group.ask(member, rng.randrange(1, 8))
                await rounds()
                lease = asking.answered.result().lease if asking.answered.done() else None
                for first, end in offsets(asking) if lease is not None else ():
                    assert all(self.expire_us[at] > group.us for at in range(first, end))
                    self.leases.append((member, lease, first, end))
                group.led_group.leave(asking)
            case 3 if self.leases:
                member, lease, first, end = self.leases.pop(rng.randrange(len(self.leases)))
                if rng.random() < 0.4:
                    group.ack(member, lease, (first, end))
                else:
                    outcome = rng.choice([Release(0), Failed("boom"), Rejected("bad")])
                    group.outcome(outcome, member, lease, (first, end))
                await rounds()
            case 4 if rng.random() < 0.2:
                group.lead_anew()
                await rounds()
            case _:
                await pass_ms(group, rng.randrange(1_500))


def test_many_places_are_made_fewer() -> None:
    assert covering([(0, 1), (5, 6), (4_000, 5_000), (4_096, 4_097), (9_000, 9_001)]) == [
        (0, 5_000),
        (4_096, 4_097),
        (9_000, 9_001),
    ]
    index, state = OffsetIndex(), WorkState(1, 0)
    for at in range(40):
        index.append(Published(at, 1, at + 1, 0, 1, 1, 4, at + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiring, "_PENDING_MAX", 3)
        of = Expiring(state, index, 0, Fate.SENT, ordered=False)
        for now_us in range(1, 41):
            of.look(now_us, 0)
            assert len(of._pending) <= 3
        assert [run[:2] for run in of.take(100, 0)] == [(0, 40)]
