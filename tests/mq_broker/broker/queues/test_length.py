"""How many records a partition keeps for a queue group, and what happens to those beyond."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.queues.declared import Queue
from mq_broker.broker.queues.length import beyond_length, room
from mq_broker.core.entries import Append, Entry, Schedule
from mq_broker.core.machine.admission import Admit, Overlay, judge
from mq_broker.core.messages import Propose, Refused, Room
from mq_broker.core.work.settling import Failed, Release
from mq_broker.core.work.state import RUNS_MAX
from mq_broker.core.work.steps import Accept, Begin, Drop, Lease, Park, Reason, Reject, Return, Send
from mq_protocol.errors import QueueFull
from mq_protocol.queue_settings import Overflow, QueueSettings
from tests.mq_broker.broker.queues.partitions import EPOCH, Group, Led, offsets, rounds, scenario

DROPS = QueueSettings(length_max=10, overflow=Overflow.DROP_HEAD)


def declared(*queues: Queue) -> Any:
    return SimpleNamespace(of=lambda _: {queue.group: queue for queue in queues})


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


@pytest.mark.parametrize("settings", [{}, {"length_max": 1, "overflow": Overflow.DROP_HEAD}])
def test_a_group_without_a_bound_and_one_that_drops_records_refuse_nothing(settings: dict[str, Any]) -> None:
    assert room(declared(queue(**settings)), led(20)) is None


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


def test_a_batch_that_is_there_already_is_not_refused() -> None:
    machine = led(20).machine
    verdict: Any = judge(propose(20, uuid=1, room=Room(0, "g", 5)), machine, Overlay([]), 1)
    assert verdict.result.duplicate


def test_only_what_gets_its_offsets_now_is_refused() -> None:
    machine = led(20).machine
    scheduled = propose(uuid=90, operation=Schedule(1), room=Room(0, "g", 5))
    assert isinstance(judge(scheduled, machine, Overlay([]), 1), Admit)


# ---------------------------------------------------------------- the oldest are dropped


@scenario
async def test_the_oldest_records_are_dropped_whoever_asks() -> None:
    group = Group(records=8, length_max=10, overflow=Overflow.DROP_HEAD)
    assert group.gathering.waits, "records that become readable are news to it"
    group.gathering.wake()
    await rounds()
    assert not group.led.proposed
    group.led.append(7)
    group.gathering.wake()
    await rounds()
    assert [each.steps for each in group.led.proposed] == [(Drop(((0, 5),), Reason.LENGTH),)]
    assert group.state.base == 5
    assert dict(group.state.totals.dropped) == {Reason.LENGTH: 5}
    group.gathering.wake()
    await rounds()
    assert len(group.led.proposed) == 1, "what fits is left alone, and nothing is written for it"
    asking = group.ask("m", 100)
    await rounds()
    assert offsets(asking) == [(5, 15)]


@scenario
async def test_what_is_lent_in_the_same_entry_need_not_be_dropped() -> None:
    group = Group(records=30, length_max=10, overflow=Overflow.DROP_HEAD)
    asking = group.ask("m", 15)
    await rounds()
    assert offsets(asking) == [(0, 15)]
    assert group.led.proposed[0].steps == (Lease(((0, 15),), "m"), Drop(((0, 20),), Reason.LENGTH))
    assert (group.state.unlent(30), group.state.leased) == (10, 15)


@scenario
async def test_a_group_that_is_given_a_bound_drops_what_is_too_much() -> None:
    group = Group(records=30)
    assert not group.gathering.waits
    group.declare(length_max=12)
    await rounds()
    assert not group.led.proposed, "with reject nothing is dropped"
    group.declare(overflow=Overflow.DROP_HEAD)
    await rounds()
    assert (group.state.base, group.state.unlent(30)) == (18, 12)


@scenario
async def test_what_comes_back_is_dropped_if_it_is_too_much_then() -> None:
    group = Group(records=10, length_max=10, overflow=Overflow.DROP_HEAD)
    lease = (await group.ask("m", 4).answered).lease
    group.led.append(4)
    group.gathering.wake()
    await rounds()
    assert len(group.led.proposed) == 1, "four are lent, and ten are kept"
    await group.outcome(Release(0), "m", lease, (0, 2)).answered
    await rounds()
    assert dict(group.state.totals.dropped) == {Reason.LENGTH: 2}
    assert (group.state.base, group.leased()) == (2, {"m": ((2, 4),)}), "the released are the oldest"


@scenario
async def test_records_that_wait_for_their_next_try_are_kept_and_the_oldest_go() -> None:
    group = Group(records=10, length_max=10, overflow=Overflow.DROP_HEAD)
    lease = (await group.ask("m", 1).answered).lease
    await group.outcome(Failed("boom", None), "m", lease, (0, 1)).answered
    group.led.append(3)
    group.gathering.wake()
    await rounds()
    assert (group.state.base, group.state.unlent(13)) == (3, 10)


@scenario
async def test_a_lease_of_later_records_leaves_room_for_earlier_ones() -> None:
    group = Group(records=10, length_max=10, overflow=Overflow.DROP_HEAD)
    lease = (await group.ask("m", 2).answered).lease
    await group.outcome(Failed("boom", None), "m", lease, (0, 2)).answered
    group.led.append(3)
    asking = group.ask("m", 3)
    await rounds()
    assert offsets(asking) == [(2, 5)]
    assert (group.state.base, group.state.totals.dropped) == (0, ())


def test_records_that_the_same_entry_takes_are_left_out_of_the_count() -> None:
    partition = led(20)
    partition.apply("g", 1, Lease(((0, 4),), "m"))
    partition.apply("g", 1, Return(((0, 4),)))
    state = partition.state
    late = Accept(((0, 4),))  # of records that nobody has any more
    assert beyond_length(state, DROPS, 20, [late]) == [Drop(((0, 10),), Reason.LENGTH)]
    assert beyond_length(state, DROPS, 20, [late, Lease(((4, 10),), "m")]) == []
    assert beyond_length(state, DROPS, 20, [Lease(((12, 16),), "m")]) == [Drop(((0, 6),), Reason.LENGTH)]
    assert beyond_length(state, DROPS, 10, []) == []


def test_dead_letters_of_the_same_entry_are_left_out_of_the_count() -> None:
    partition = led(20)
    partition.apply("g", 1, Lease(((0, 4),), "m"))
    partition.apply("g", 1, Reject(((0, 4),)))
    send = Send(((0, 4),), Reason.REJECTED, 1, ())
    assert beyond_length(partition.state, DROPS, 20, [send]) == [Drop(((0, 10),), Reason.LENGTH)]
    assert beyond_length(partition.state, DROPS, 14, [send]) == []


def test_an_entry_without_room_leaves_it_to_the_next() -> None:
    partition = led(20)
    scattered = tuple(Accept(((0, 1),)) for _ in range(RUNS_MAX))
    assert beyond_length(partition.state, DROPS, 20, scattered) == []


def test_only_drop_head_drops() -> None:
    assert beyond_length(led(20).state, QueueSettings(length_max=5), 20, []) == []
    assert beyond_length(led(20).state, QueueSettings(overflow=Overflow.DROP_HEAD), 20, []) == []
