"""One subscription stream without its network: what a client says goes in, and messages come out as the broker would
send them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.groups.subscriptions import CREDIT_BYTES_MAX, Delivery, _Session
from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.runtime.memory import Held
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.machine.state import Cursor
from mq_broker.core.messages import Published
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    StorageFailed,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.limits import FETCH_CHUNK_BYTES
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.groups.partitions import BEGUN, Led, rounds

KEY = b"k" * 16


class Readable(Led):
    """A partition of batches of two records and `size` bytes each: offsets `log_start` to 99 are there."""

    def __init__(self, number: int = 0, log_start: int = 0, size: int = 10) -> None:
        super().__init__(number)
        self.serving = True
        self.observers: set[Callable[[], None]] = set()
        self.index = SimpleNamespace(log_start_offset=log_start, find_time=lambda us: us // 10, next_bytes=lambda _: 10)
        self.journal = SimpleNamespace(sealed=False)
        self.fails: TritonMQError | None = None
        self.most: list[int] = []
        self._payload = bytes(size)

    def read(self, start: int, end: int, bytes_max: int, _opened: object) -> list[tuple[Published, bytes]]:
        if self.fails is not None:
            raise self.fails
        self.most.append(bytes_max)
        size = len(self._payload)
        count = max(1, bytes_max // size)
        return [(Published(at, 2, 1, 1, size, size), self._payload) for at in range(start, end, 2)[:count]]

    def not_leader(self) -> NotLeader:
        return NotLeader("ask broker 2", 2, 5)

    def changes(self) -> None:
        for observer in list(self.observers):
            observer()


class Stream:
    """One client's stream. Topic `t` has the id `id-of-t`; the broker has heard of its newer one only once it looks
    again."""

    def __init__(self, *partitions: Readable, group: str = "", delivering: Any = None) -> None:
        self.partitions = partitions or (Readable(),)
        self.renewals = 0
        self._topic_id = "id-of-t"
        stand_in: Any = self
        self.delivery = delivering or Delivery(stand_in, stand_in, Held(1 << 30), BEGUN)
        self.session = _Session(self.delivery)
        self._group = group

    # ---- what the session sees of the broker

    def partition(self, _topic: object, number: int) -> Any:
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition("no such partition")
        return self.partitions[number]

    async def get(self, name: str) -> Any:
        if name != "t":
            raise UnknownTopic("no such topic")
        return Topic.of(TopicSpec("t", self._topic_id, ((1,),)))

    async def renewed(self, topic: Any) -> Any:
        self.renewals += 1
        self._topic_id = "newer"
        return await self.get(topic.spec.name)

    # ---- what the client says and is sent

    async def say(self, *requests: pb.SubscribeRequest) -> None:
        async def said() -> AsyncIterator[pb.SubscribeRequest]:
            for request in requests:
                yield request

        await self.session.read(said())

    async def open(
        self, *wanted: pb.SubscribePartition, credit: int = 1 << 20, member: str = "a", **fields: Any
    ) -> None:
        named = {"group": self._group, "member_id": member, "member_key": KEY} if self._group else {}
        opened = pb.SubscribeOpen(partitions=wanted, **{**named, **fields})
        await self.say(pb.SubscribeRequest(open=opened, credit=pb.SubscribeCredit(bytes=credit)))

    async def credit(self, count: int) -> None:
        await self.say(pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=count)))

    async def settle(self, offset: int) -> None:
        await self.say(pb.SubscribeRequest(settled=[pb.CursorPosition(topic="t", partition=0, offset=offset)]))

    def message(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The next one: (partition, offset) of what is opened, and of the batches."""
        message = self.session._gather()
        if message is None:
            return [], []
        batches = [(batch.partition, batch.base_offset) for batch in message.header.batches]
        assert len(message.parts) == len(batches)
        return [(told.partition, told.offset) for told in message.header.opened], batches

    def told(self) -> list[pb.PartitionOpened]:
        message = self.session._gather()
        return list(message.header.opened) if message is not None else []


def wanted(partition: int = 0, **start: Any) -> pb.SubscribePartition:
    return pb.SubscribePartition(topic="t", partition=partition, **(start or {"earliest": True}))


@virtual_time
async def test_what_is_pushed_is_paid_from_the_credit_which_a_batch_may_overdraw() -> None:
    stream = Stream()
    await stream.open(wanted(), credit=25)
    assert stream.message() == ([(0, 0)], [(0, 0), (0, 2), (0, 4)]), "five bytes of credit are enough for one more"
    assert stream.message() == ([], [])
    await stream.credit(5)
    assert stream.message() == ([], []), "what was overdrawn is paid first"
    await stream.credit(1)
    assert stream.message() == ([], [(0, 6)])


@virtual_time
async def test_credit_has_a_bound() -> None:
    stream = Stream()
    await stream.open(wanted(), credit=CREDIT_BYTES_MAX)
    await stream.credit(CREDIT_BYTES_MAX)
    assert stream.session._credit == CREDIT_BYTES_MAX


@virtual_time
async def test_partitions_take_turns_and_share_a_message() -> None:
    size = FETCH_CHUNK_BYTES // 3
    stream = Stream(Readable(0, size=size), Readable(1, size=size))
    for partition in stream.partitions:
        partition.next_offset = 4
    await stream.open(wanted(0), wanted(1), credit=4 * FETCH_CHUNK_BYTES)
    assert stream.message()[1] == [(0, 0), (0, 2), (1, 0)], "what is left of the message's room is the second one's"
    assert stream.message()[1] == [(1, 2)]
    assert stream.message() == ([], [])
    assert [partition.most for partition in stream.partitions] == [
        [FETCH_CHUNK_BYTES],
        [FETCH_CHUNK_BYTES - 2 * size, FETCH_CHUNK_BYTES],
    ]


@virtual_time
async def test_a_message_holds_no_more_than_a_chunk_but_one_batch_of_any_size() -> None:
    stream = Stream()
    await stream.open(wanted())
    assert len(stream.message()[1]) == 50
    assert stream.partitions[0].most == [FETCH_CHUNK_BYTES]


@virtual_time
async def test_a_subscription_begins_at_the_nearer_end_of_the_log() -> None:
    stream = Stream(Readable(log_start=20))
    starts: list[tuple[dict[str, Any], int]] = [
        ({"earliest": True}, 20),
        ({"latest": True}, 100),
        ({"offset": 3}, 20),
        ({"offset": 50}, 50),
        ({"offset": 101}, 100),
        ({"timestamp_us": 400}, 40),
        ({"timestamp_us": 50}, 20),
    ]
    for start, offset in starts:
        await stream.open(wanted(**start))
        assert stream.message()[0] == [(0, offset)], start


@virtual_time
async def test_a_partition_that_is_opened_again_begins_anew_and_is_watched_once() -> None:
    stream = Stream()
    [partition] = stream.partitions
    await stream.open(wanted(offset=10))
    stream.message()
    await stream.open(wanted(offset=90))
    assert len(partition.observers) == 1
    opened, batches = stream.message()
    assert (opened, batches[0]) == ([(0, 90)], (0, 90))


@virtual_time
async def test_a_subscription_waits_for_a_leader_that_is_not_ready_and_ends_with_one_that_leads_no_more() -> None:
    stream = Stream()
    [partition] = stream.partitions
    partition.serving = False
    await stream.open(wanted())
    assert stream.message() == ([], [])
    partition.serving = True
    partition.changes()
    opened, batches = stream.message()
    assert (opened, len(batches)) == ([(0, 0)], 50)
    partition.serving = False
    partition.changes()
    assert stream.told() == [], "between two entries of one leadership"
    partition.replica.leading = False
    partition.changes()
    [told] = stream.told()
    assert (told.partition, from_wire(told.error).leader) == (0, 2)
    assert not partition.observers


@virtual_time
async def test_a_subscription_to_a_partition_that_closes_ends() -> None:
    stream = Stream()
    [partition] = stream.partitions
    await stream.open(wanted())
    stream.message()
    partition.serving, partition.closed = False, True
    partition.changes()
    [told] = stream.told()
    assert isinstance(from_wire(told.error), NotLeader)


@virtual_time
async def test_records_that_are_lost_are_told_once_and_pushing_goes_on_behind_them() -> None:
    stream = Stream()
    [partition] = stream.partitions
    await stream.open(wanted())
    partition.fails = OffsetOutOfRange("offsets 0 to 29 were lost", 30)
    assert stream.message() == ([(0, 0)], [])
    partition.fails = None
    [told] = stream.told()
    assert (told.offset, told.active, from_wire(told.error).next_offset) == (30, True, 30)
    assert stream.message() == ([], []), "not in the same turn as the word that says so"
    await rounds()
    assert stream.message()[1][0] == (0, 30)


@pytest.mark.parametrize("error", [OffsetOutOfRange("the same place again", 0), StorageFailed("damaged")])
@virtual_time
async def test_a_partition_that_cannot_be_read_ends_the_subscription_with_the_reason(error: TritonMQError) -> None:
    stream = Stream()
    [partition] = stream.partitions
    await stream.open(wanted())
    partition.fails = error
    assert stream.message() == ([(0, 0)], [])
    [told] = stream.told()
    assert type(from_wire(told.error)) is type(error)
    await rounds()
    assert stream.message() == ([], [])
    assert not partition.observers


# ---------------------------------------------------------------- members of groups


@virtual_time
async def test_what_a_member_settles_moves_the_cursor_as_far_as_it_was_given() -> None:
    stream = Stream(group="g")
    [partition] = stream.partitions
    partition.cursors["g"] = Cursor(0, "consumer", 0)
    await stream.open(wanted(), credit=15)
    stream.message()
    for offset in (5, 3, 3, 4, 2):
        await stream.settle(offset)
    assert partition.offsets == [3], "it was given offsets 0 to 3: 5 is beyond, 2 goes back, and 4 waits for 3"
    assert stream.delivery.shares._moves.cursor(partition, "g") == 4


@virtual_time
async def test_a_member_that_hands_over_is_pushed_nothing_more() -> None:
    stream = Stream(group="g")
    [partition] = stream.partitions
    first = Stream(partition, group="g", delivering=stream.delivery)
    await first.open(wanted(), member="b", credit=15)
    first.message()
    await stream.open(wanted(), member="a")
    assert not stream.told()[0].active
    await first.credit(1_000)
    partition.changes()
    assert first.message() == ([], []), "it is paused"
    await first.settle(4)
    [told] = first.told()
    assert (told.active, told.offset) == (False, 4)
    partition.changes()
    assert first.message() == ([], [])
    opened, batches = stream.message()
    assert (opened, batches[0]) == ([(0, 4)], (0, 4))


@virtual_time
async def test_a_stream_is_one_members() -> None:
    stream = Stream(group="g")
    with pytest.raises(InvalidRequest, match="a member id of its own"):
        await stream.open(wanted(), member="")
    await stream.open(wanted())
    await stream.open(wanted())
    with pytest.raises(InvalidRequest, match="open another stream"):
        await stream.open(wanted(), member="b")


@virtual_time
async def test_a_stream_without_a_group_names_none_later() -> None:
    stream = Stream()
    await stream.open(wanted())
    with pytest.raises(InvalidRequest, match="open another stream"):
        await stream.say(pb.SubscribeRequest(open=pb.SubscribeOpen(group="g", member_id="a", member_key=KEY)))


# ---------------------------------------------------------------- the stream as a whole
