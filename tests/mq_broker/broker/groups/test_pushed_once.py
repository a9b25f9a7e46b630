"""What several streams are pushed of one partition is read and encoded once, and each is pushed what is its own."""

from __future__ import annotations

from typing import Any

from mq_broker.broker.groups.pushed_once import KEPT_BYTES_MAX, MESSAGE_BYTES, PushedOnce
from mq_broker.rpc.service import SharedBatches
from mq_protocol.errors import OffsetOutOfRange
from tests.coroutines import virtual_time
from tests.mq_broker.broker.groups.test_subscription_sessions import Readable, Stream, wanted


def several(count: int, *partitions: Readable) -> list[Stream]:
    first = Stream(*(partitions or (Readable(),)))
    return [first, *(Stream(*first.partitions, delivering=first.delivery) for _ in range(count - 1))]


def message(stream: Stream) -> Any:
    found = stream.session._gather()
    assert found is not None
    return found


async def opened(*streams: Stream, credit: int = 1 << 20, **start: Any) -> None:
    for stream in streams:
        await stream.open(wanted(**(start or {"latest": True})), credit=0)
        stream.told()
        await stream.credit(credit)


@virtual_time
async def test_those_at_one_place_share_a_message_that_was_read_once() -> None:
    streams = several(3)
    [partition] = streams[0].partitions
    await opened(*streams)
    partition.next_offset = 102
    partition.changes()
    first, second, third = (message(stream) for stream in streams)
    assert first is second is third
    assert [batch.base_offset for batch in first.header.batches] == [100]
    assert len(partition.most) == 1
    assert [stream.session._credit for stream in streams] == [(1 << 20) - 10] * 3


@virtual_time
async def test_who_took_less_goes_on_with_the_rest() -> None:
    poor, rich = several(2)
    [partition] = rich.partitions
    await opened(poor, credit=15)
    await opened(rich)
    partition.next_offset = 106
    partition.changes()
    assert message(poor) is message(rich)
    assert [batch.base_offset for batch in message(rich).header.batches] == [102, 104]


@virtual_time
async def test_what_was_read_under_another_leadership_or_is_deleted_by_now_is_read_anew() -> None:
    first, second = several(2)
    [partition] = first.partitions
    await opened(first, second)
    partition.next_offset = 102
    partition.changes()
    old = message(first)
    partition.replica.leader_epoch = 2
    assert message(second) is not old
    partition.next_offset = 104
    partition.changes()
    message(first)
    partition.index.log_start_offset = 104
    partition.fails = OffsetOutOfRange("it was purged", 104)
    assert second.session._gather() is None
    [told] = second.told()
    assert (told.offset, told.active) == (104, True), "it is not pushed what was deleted"


@virtual_time
async def test_who_is_to_stand_by_is_pushed_nothing_beyond_where_it_ends() -> None:
    first, second = several(2)
    [partition] = first.partitions
    await opened(first, second)
    partition.next_offset = 106
    partition.changes()
    assert [batch.base_offset for batch in message(first).header.batches] == [100, 102, 104]
    [subscription] = second.session._subscriptions.values()
    subscription.stand_by(102)
    assert [batch.base_offset for batch in message(second).header.batches] == [100]
    assert second.session._gather() is not None, "that it stands by"
    assert second.session._gather() is None


@virtual_time
async def test_a_word_to_one_of_them_goes_before_what_all_are_pushed() -> None:
    first, second = several(2)
    await opened(first)
    await second.open(wanted(offset=100), credit=1_000)
    first.partitions[0].next_offset = 102
    first.partitions[0].changes()
    message(first)
    told = message(second)
    assert [each.offset for each in told.header.opened] == [100]
    assert [batch.base_offset for batch in told.header.batches] == [100]
    assert not isinstance(told, SharedBatches)


def test_what_is_kept_has_a_bound_for_all_partitions_together() -> None:
    half = KEPT_BYTES_MAX // 2 - MESSAGE_BYTES
    first, second, third = (Readable(number, size=half) for number in range(3))
    larger = Readable(3, size=KEPT_BYTES_MAX - MESSAGE_BYTES + 1)
    kept = PushedOnce()

    def was_kept(partition: Any) -> bool:
        """Whether what is read of it now need not be read from the disk."""
        before = len(partition.most)
        kept.read(partition, 0, 2, 100)
        return len(partition.most) == before

    assert [was_kept(each) for each in (first, second, third)] == [False] * 3
    assert [was_kept(each) for each in (third, second, third)] == [True] * 3, "two fill it"
    assert [was_kept(each) for each in (first, second, third)] == [False, False, False], "the oldest went each time"
    assert [was_kept(each) for each in (larger, larger)] == [False] * 2, "what is larger than all may be is not kept"
    assert [was_kept(each) for each in (second, third)] == [True] * 2, "and takes nothing's place"
