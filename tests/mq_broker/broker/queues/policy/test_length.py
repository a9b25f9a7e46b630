"""How many records a partition keeps for a queue group, and what happens to those beyond."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq_broker.broker.queues.group.requests import Sending
from mq_broker.broker.queues.policy import length
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.length import Kept
from mq_broker.core.entries import Append, Entry, Schedule
from mq_broker.core.machine.admission import Admit, judge
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.messages import Propose, Published, Refused, Room
from mq_broker.core.work.settling import Release, SendDead
from mq_broker.core.work.state import NO_MARK
from mq_broker.core.work.steps import Accept, Begin, Drop, Lease, Park, Reason, Return
from mq_protocol.errors import QueueFull
from mq_protocol.queues.settings import Dropped, Order, Overflow, QueueSettings
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import EPOCH, Group, Led, offsets, rounds


class Declares:
    def __init__(self, *queues: Queue) -> None:
        self._queues = {queue.group: queue for queue in queues}

    def of(self, _partition: object) -> dict[str, Queue]:
        return self._queues


def declared(*queues: Queue) -> Any:
    return Declares(*queues)


def room(queues: Any, partition: Any, kept: Kept | None = None) -> Room | None:
    return length.room(queues, lambda *_: kept, partition)


def queue(group: str = "g", life: int = 1, **settings: Any) -> Queue:
    return Queue(group, life, 0, QueueSettings(**settings))


def led(records: int = 20) -> Any:
    made: Any = Led(records)
    made.apply("g", 1, Begin(0))
    return made


# ---------------------------------------------------------------- new records are refused


def test_the_room_is_what_the_group_may_keep_beyond_what_nobody_has() -> None:
    partition = led(20)
    assert room(declared(queue(length_max=50)), partition) == Room(20 + 30, "g", 50)
    partition.apply("g", 1, Lease(((0, 5),), "m"))
    assert room(declared(queue(length_max=50)), partition) == Room(20 + 35, "g", 50), "what a member has is not kept"
    partition.apply("g", 1, Accept(((0, 3),)))
    assert room(declared(queue(length_max=50)), partition) == Room(20 + 35, "g", 50)
    partition.apply("g", 1, Return(((3, 5),)))
    partition.apply("g", 1, Park(((3, 4),)))
    assert room(declared(queue(length_max=50)), partition) == Room(20 + 33, "g", 50), "what is parked is kept too"


def test_the_group_with_the_least_room_says_how_much_there_is() -> None:
    partition = led(20)
    partition.apply("h", 1, Begin(15))
    groups = declared(queue(length_max=100), queue("h", length_max=10), queue("i", length_max=1))
    assert room(groups, partition) == Room(25, "h", 10), "group i has not begun here"
    assert room(declared(queue(life=2, length_max=1)), partition) is None, "nor has this life of g"


def propose(records: int = 1, uuid: int = 1, operation: Any = Append(), **fields: Any) -> Propose:  # noqa: B008
    return Propose(1, operation, 0, uuid.to_bytes(16), records, **fields)


def test_a_batch_is_taken_whole_while_there_is_room_for_a_record() -> None:
    machine, overlay = led(20).machine, Overlay([])
    assert judge(propose(1_000, uuid=90, room=Room(21, "g", 5)), machine, overlay, 1) == Admit(Append())
    verdict: Any = judge(propose(1, uuid=90, room=Room(20, "g", 5)), machine, overlay, 1)
    assert isinstance(verdict.result, Refused)
    assert isinstance(verdict.result.error, QueueFull)
    assert verdict.result.error.retriable
    assert "queue group 'g' keeps 5 records of this partition" in str(verdict.result.error)


def test_what_is_on_its_way_into_the_log_takes_room() -> None:
    machine, overlay = led(20).machine, Overlay([])
    tail = [
        Entry(50, EPOCH, 0, Append(), (70).to_bytes(16), 3, 30),
        Entry(51, EPOCH, 0, Schedule(1), (71).to_bytes(16), 9, 30),
    ]
    for entry in tail:
        overlay.add(entry)
    verdict: Any = judge(propose(uuid=90, room=Room(23, "g", 5)), machine, overlay, 1)
    assert isinstance(verdict.result.error, QueueFull)
    assert isinstance(judge(propose(uuid=90, room=Room(24, "g", 5)), machine, overlay, 1), Admit)
    overlay.remove(tail[0])
    assert isinstance(judge(propose(uuid=90, room=Room(21, "g", 5)), machine, overlay, 1), Admit)


def test_only_what_gets_its_offsets_now_is_refused() -> None:
    machine = led(20).machine
    scheduled = propose(uuid=90, operation=Schedule(1), room=Room(0, "g", 5))
    assert isinstance(judge(scheduled, machine, Overlay([]), 1), Admit)


# ---------------------------------------------------------------- the oldest are dropped


@virtual_time
async def test_the_oldest_records_are_dropped_whoever_asks() -> None:
    group = Group(records=8, length_max=10, overflow=Overflow.DROP_HEAD)
    assert group.led_group.waits, "records that become readable are news to it"
    group.led_group.wake()
    await rounds()
    assert not group.led.proposed
    group.led.append(7)
    group.led_group.wake()
    await rounds()
    assert [each.steps for each in group.led.proposed] == [(Drop(((0, 5),), Reason.LENGTH),)]
    assert group.state.base == 5
    assert dict(group.state.totals.dropped) == {Reason.LENGTH: 5}
    group.led_group.wake()
    await rounds()
    assert len(group.led.proposed) == 1, "what fits is left alone, and nothing is written for it"
    asking = group.ask("m", 100)
    await rounds()
    assert offsets(asking) == [(5, 15)]


@virtual_time
async def test_what_is_lent_in_the_same_entry_need_not_be_dropped() -> None:
    group = Group(records=30, length_max=10, overflow=Overflow.DROP_HEAD)
    asking = group.ask("m", 15)
    await rounds()
    assert offsets(asking) == [(0, 15)]
    assert group.led.proposed[0].steps == (Lease(((0, 15),), "m"), Drop(((0, 20),), Reason.LENGTH))
    assert (group.state.unlent(30), group.state.leased) == (10, 15)


# ---------------------------------------------------------------- a bound in bytes


def kept_of(partition: Any) -> Kept:
    kept = Kept(partition.state, partition.index)
    assert kept.count()
    return kept


def test_room_in_bytes_is_what_nobody_has_and_the_group_with_the_least_says_it() -> None:
    partition = led(20)  # ten bytes each
    partition.apply("h", 1, Begin(15))
    partition.apply("g", 1, Lease(((0, 5),), "m"))
    assert room(declared(queue(bytes_max=160)), partition, kept_of(partition)) == Room(1 << 62, "", 0, "g", 10, 160)
    both = declared(queue(bytes_max=500, length_max=30), queue("h", bytes_max=9))
    assert room(both, partition, kept_of(partition)) == Room(35, "g", 30, "h", -141, 9)
    assert room(declared(queue(bytes_max=160)), partition) == Room(1 << 62, "", 0, "g", -40, 160), "not counted yet"


def test_a_batch_is_taken_while_there_is_room_for_a_byte_and_what_is_on_its_way_takes_room() -> None:
    machine, overlay = led(20).machine, Overlay([])
    tail = Entry(50, EPOCH, 0, Append(), (70).to_bytes(16), 3, 30)
    overlay.add(tail)
    full: Any = judge(propose(uuid=90, room=Room(1 << 62, "", 0, "g", 30, 99)), machine, overlay, 1)
    assert isinstance(full.result.error, QueueFull)
    assert "queue group 'g' keeps 99 bytes of this partition, as many as its bytes_max allows" in str(full.result.error)
    assert isinstance(judge(propose(uuid=90, room=Room(1 << 62, "", 0, "g", 31, 99)), machine, overlay, 1), Admit)
    overlay.remove(tail)
    assert isinstance(judge(propose(uuid=90, room=Room(1 << 62, "", 0, "g", 1, 99)), machine, overlay, 1), Admit)


@virtual_time
async def test_the_oldest_records_go_until_the_rest_has_few_enough_bytes() -> None:
    group = Group(records=10, bytes_max=75, overflow=Overflow.DROP_HEAD)
    group.led_group.wake()
    await rounds()
    assert [each.steps for each in group.led.proposed] == [(Drop(((0, 3),), Reason.LENGTH),)]
    asking = group.ask("m", 2)
    await rounds()
    assert offsets(asking) == [(3, 5)]
    group.led.append(2)
    group.led_group.wake()
    await rounds()
    assert len(group.led.proposed) == 2, "two are lent, and seven are kept"
    group.outcome(Release(0), "m", asking.answered.result().lease, (3, 4))
    await rounds()
    assert (group.state.base, dict(group.state.totals.dropped)) == (4, {Reason.LENGTH: 4})
    group.declare(length_max=2)
    await rounds()
    assert group.state.unlent(12) == 2, "both bounds hold"


@pytest.mark.parametrize("seed", range(14))
def test_the_bytes_that_are_kept_are_those_of_each_record_that_nobody_has(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr("mq_broker.broker.queues.policy.length._CHUNK", rng.choice((1, 4, 1_024)))
    monkeypatch.setattr("mq_broker.broker.queues.policy.length.COUNTED_AT_ONCE", rng.choice((1, 200)))
    partition, sizes = led(0), list[int]()
    kept = Kept(partition.state, partition.index)
    for number in range(120):
        state, end = partition.state, partition.next_offset
        if rng.random() < 0.3 or not end:
            count, size = rng.randrange(1, 6), rng.randrange(100)
            batch = Published(end, count, number + 1, 0, size * count, size * count)
            partition.machine.next_offset += count
            partition.index.append(batch)
            sizes += [size] * count
            continue
        first = rng.randrange(end)
        ranges = ((first, min(end, first + rng.choice((1, 2, 9)))),)
        step = rng.choice(
            (Lease(ranges, "m"), Accept(ranges), Return(ranges), Drop(ranges, Reason.PURGED), Park(ranges))
        )
        if rng.random() < 0.05:
            partition.trim(rng.randrange(partition.index.log_start_offset, end))
        partition.apply("g", 1, step)
        kept.written([step])
        if rng.random() < 0.3:
            kept.count()
        held = {offset for low, high, _ in state.unleased(state.base, end) for offset in range(low, high)}
        while not kept.count():
            pass
        assert kept.bytes() == sum(sizes[offset] for offset in held)
    anew = Kept(partition.state, partition.index)
    while not anew.count():
        pass
    assert anew.bytes() == kept.bytes()


# ---------------------------------------------------------------- what is too much becomes dead letters


DEAD: dict[str, Any] = {"overflow": Overflow.DROP_HEAD, "dropped": Dropped.DEAD, "dead_letter": "t.dead"}


@virtual_time
async def test_the_oldest_that_are_too_many_become_letters_and_are_lent_to_nobody() -> None:
    group = Group(records=30, length_max=10, **DEAD)
    asking = group.ask("m", 15)
    await rounds()
    assert offsets(asking) == [(0, 15)], "what is lent in the same turn is not too much"
    assert group.told_of_doomed
    assert [run[:2] for run in group.led_group.take_doomed(99, Reason.LENGTH)] == [(15, 20)]
    assert group.led_group.take_doomed(99, Reason.LENGTH) == []
    other = group.ask("n", 100)
    await rounds()
    assert offsets(other) == [(20, 30)], "members are lent what comes after"
    group.led_group.doomed_again([(15, 20, NO_MARK)])
    await rounds()
    assert [run[:2] for run in group.led_group.take_doomed(99, Reason.LENGTH)] == [(15, 20)]
    assert group.led.proposed[-1].steps == (Lease(((20, 30),), "n"),), "nothing is dropped"


@virtual_time
async def test_in_an_order_nothing_is_lent_before_what_is_too_much_is_gone() -> None:
    group = Group(records=12, length_max=10, order=Order.ALL, **DEAD)
    group.led_group.wake()
    await rounds()
    asking = group.ask("m", 100)
    await rounds()
    assert not asking.answered.done()
    group.led_group.take_doomed(99, Reason.LENGTH)
    group.led_group.send(Sending(1, SendDead(((0, 2),), Reason.LENGTH, ())))
    await rounds()
    assert offsets(asking) == [(2, 12)]
