"""Subscribers behind a proxy that share a subscription: against a leader that is played here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mq_broker.broker.proxy.fan_out import FanOut
from mq_broker.broker.proxy.holding import Holding, Turn
from mq_broker.broker.proxy.tails import CREDIT_BYTES, KEPT_BYTES_MAX
from mq_broker.broker.runtime.memory import Held
from mq_broker.broker.runtime.streams import side_by_side
from mq_broker.rpc import callers
from mq_broker.security.names import Principal
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, OffsetOutOfRange, TritonMQError, Unreachable
from mq_protocol.wire.call import Said
from mq_protocol.wire.error_messages import from_wire, to_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.proxy.said import said

DEADLINE_S = 30.0
CREDIT = 1 << 40


class Leader:
    """A partition with batches of ten records; `first`: the first that is kept. Pushes within credit, as brokers do.
    `streams`: those that are open. `bytes_out`: of records, to all of them."""

    def __init__(self, batch_bytes: int = 1_000) -> None:
        self.batches = 0
        self.first = 0
        self.bytes_out = 0
        self.streams: dict[object, asyncio.Event] = {}
        self.opened = 0
        self.users: list[str] = []
        self.error: TritonMQError | None = None
        self.skip: pb.PartitionOpened | None = None
        self._batch_bytes = batch_bytes

    def append(self, batches: int = 1) -> None:
        self.batches += batches
        self._wake()

    def fail(self, error: TritonMQError) -> None:
        self.error = error
        self._wake()

    def lose(self, told: pb.PartitionOpened) -> None:
        self.skip = told
        self._wake()

    def _wake(self) -> None:
        for event in self.streams.values():
            event.set()

    # -- as forwarding

    async def converse(self, _to: int, _method: Any, requests: AsyncIterator[Any], _left_s: Any, send: Any) -> None:
        me, event = object(), asyncio.Event()
        self.streams[me] = event
        self.users.append(str(callers.principal()))
        at, credit = -1, 0

        async def hear() -> None:
            nonlocal at, credit
            async for message in requests:
                request = pb.SubscribeRequest.FromString(message.body)
                credit += request.credit.bytes
                if request.HasField("open"):
                    self.opened += 1
                    [wanted] = request.open.partitions
                    start = {"offset": wanted.offset, "earliest": self.first * 10}
                    at = start.get(wanted.WhichOneof("start") or "", self.batches * 10)
                    at = max(at, self.first * 10)
                    await send(_told(pb.PartitionOpened(topic="t", offset=at, active=True)))
                event.set()

        async def push() -> None:
            nonlocal at, credit
            while True:
                await event.wait()
                event.clear()
                while at >= 0 and credit > 0 and at < self.batches * 10:
                    number = at // 10
                    credit -= self._batch_bytes
                    self.bytes_out += self._batch_bytes
                    stored = pb.StoredBatch(
                        topic="t", base_offset=number * 10, record_count=10, payload_bytes=self._batch_bytes
                    )
                    payload = number.to_bytes(4, "big") * (self._batch_bytes // 4)
                    at = number * 10 + 10
                    await send(said(pb.BatchesHeader(batches=[stored]), payload))
                if self.error is not None:
                    raise self.error
                if self.skip is not None:
                    skip, self.skip = self.skip, None
                    await send(_told(skip))

        try:
            await side_by_side(hear(), push())
        finally:
            del self.streams[me]

    # -- as routing

    def turn(self, size: int, left_s: float | None) -> Turn:
        return Turn(Holding(1 << 20), size, asyncio.get_running_loop().time() + DEADLINE_S)

    async def found(self, to: int, _place: object, _turn: Turn) -> int:
        return to


def _told(*opened: pb.PartitionOpened) -> Said:
    return said(pb.BatchesHeader(opened=opened))


class Client:
    """One stream. `offsets`: of the batches that came; `reads`: whether it does. `told`: what it was told."""

    def __init__(self, fan_out: FanOut, user: str = "one", to: int = 1) -> None:
        self.offsets: list[int] = []
        self.told: list[pb.PartitionOpened] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        self._news = asyncio.Event()
        callers._principal.set(Principal("User", user))
        self.task = asyncio.create_task(fan_out.converse(to, self._requests(), self._send))

    async def _requests(self) -> AsyncIterator[Said]:
        while (request := await self._said.get()) is not None:
            yield request

    async def _send(self, message: Said) -> None:
        await self.reading.wait()
        header = pb.BatchesHeader.FromString(message.body)
        self.told += header.opened
        self.offsets += [batch.base_offset for batch in header.batches]
        for batch in header.batches:
            assert bytes(message.payload[:4]) == (batch.base_offset // 10).to_bytes(4, "big")
        self._news.set()

    def open(self, credit: int = CREDIT, **start: Any) -> Client:
        wanted = pb.SubscribePartition(topic="t", partition=0, **start)
        self.say(open=pb.SubscribeOpen(partitions=[wanted]), credit=pb.SubscribeCredit(bytes=credit))
        return self

    def say(self, **fields: Any) -> None:
        self._said.put_nowait(said(pb.SubscribeRequest(**fields)))

    async def until(self, condition: Callable[[Client], object]) -> None:
        while not condition(self):
            if self.task.done():
                self.task.result()
            self._news.clear()
            await self._news.wait()

    async def is_open(self) -> Client:
        await self.until(lambda client: client.told)
        return self

    async def has(self, *offsets: int) -> None:
        await self.until(lambda client: len(client.offsets) >= len(offsets))
        assert self.offsets == list(offsets)

    async def leave(self) -> None:
        self._said.put_nowait(None)
        await self.task


@asynccontextmanager
async def fanning(*, high: int = 1 << 30, **how: int) -> AsyncIterator[tuple[Leader, FanOut]]:
    held = Held(high)
    leader = Leader(**how)
    fan_out = FanOut(leader, leader, held)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        yield leader, fan_out
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[operator]
            if task.get_name() != "tail":
                task.cancel()
        await fan_out.close()
        await settled(lambda: not leader.streams)
    assert held.bytes == 0, "what was kept is free"
    assert not fan_out._tails


async def settled(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.001)


@virtual_time
async def test_a_hundred_subscribers_at_the_end_cost_the_leader_one() -> None:
    async with fanning() as (leader, fan_out):
        leader.append(5)
        clients = [Client(fan_out).open(latest=True) for _ in range(100)]
        for client in clients:
            await client.is_open()
            assert (client.told[0].offset, client.told[0].active) == (50, True)
        await settled(lambda: len(leader.streams) == 1)
        for number in range(20):
            leader.append()
            if number % 5 == 0:
                await asyncio.sleep(0)
        for client in clients:
            await client.has(*range(50, 250, 10))
        assert leader.bytes_out == 20 * 1_000
        leader.append()
        for client in clients:
            await client.has(*range(50, 260, 10))
        assert fan_out.held.bytes < 2_000, "what all have is forgotten when the next one comes"


@virtual_time
async def test_subscribers_of_the_same_offset_share_from_the_first_record_on() -> None:
    async with fanning() as (leader, fan_out):
        leader.append(30)
        clients = [Client(fan_out).open(offset=100) for _ in range(50)]
        for client in clients:
            await client.has(*range(100, 300, 10))
        assert leader.opened == 1
        assert leader.bytes_out == 20 * 1_000


@virtual_time
async def test_one_that_comes_later_catches_up_by_itself_and_then_shares() -> None:
    async with fanning() as (leader, fan_out):
        leader.append(30)
        first = await Client(fan_out).open(latest=True).is_open()
        late = Client(fan_out).open(earliest=True)
        await late.has(*range(0, 300, 10))
        await settled(lambda: len(leader.streams) == 1)
        before = leader.bytes_out
        leader.append(3)
        await first.has(300, 310, 320)
        await late.has(*range(0, 330, 10))
        assert leader.bytes_out == before + 3_000


@pytest.mark.parametrize("how", ["it does not read", "it gives no credit"])
@virtual_time
async def test_one_that_stalls_holds_up_nobody_and_goes_on_where_it_was(
    how: str,
) -> None:
    size = CREDIT_BYTES // 10
    async with fanning(batch_bytes=size) as (leader, fan_out):
        stalled = Client(fan_out).open(latest=True, credit=CREDIT if how == "it does not read" else 3 * size)
        others = [Client(fan_out).open(latest=True) for _ in range(3)]
        for client in (stalled, *others):
            await client.is_open()
        await settled(lambda: len(leader.streams) == 1)
        leader.append(1)
        await stalled.has(0)
        if how == "it does not read":
            stalled.reading.clear()
        for number in range(1, 200):
            leader.append()
            for client in others:
                await client.until(lambda client, number=number: len(client.offsets) > number)  # type: ignore[misc]
        assert len(stalled.offsets) < 5
        assert fan_out.held.bytes < 2 * KEPT_BYTES_MAX, "little is kept for it"
        stalled.reading.set()
        stalled.say(credit=pb.SubscribeCredit(bytes=CREDIT))
        for client in (stalled, *others):
            await client.has(*range(0, 2_000, 10))
        await settled(lambda: len(leader.streams) == 1)


@virtual_time
async def test_the_leaders_end_is_told_to_each_and_each_goes_on_at_the_next_from_its_own_offset() -> None:
    async with fanning() as (leader, fan_out):
        clients = [await Client(fan_out).open(offset=0).is_open() for _ in range(10)]
        leader.append(3)
        for client in clients:
            await client.has(0, 10, 20)
        leader.fail(NotLeader("no more", 2, 7))
        for client in clients:
            await client.until(lambda client: len(client.told) == 2)
            error = from_wire(client.told[1].error)
            assert isinstance(error, NotLeader)
            assert (error.leader, client.told[1].active) == (2, False)
        assert not leader.streams
        leader.error = None
        leader.append(1)
        for client in clients:
            client.open(offset=30)
        for client in clients:
            await client.has(0, 10, 20, 30)
        assert leader.opened == 2


@virtual_time
async def test_a_leader_that_dies_is_told_as_one_that_cannot_be_reached() -> None:
    async with fanning() as (leader, fan_out):
        client = await Client(fan_out).open(offset=0).is_open()
        leader.fail(Unreachable("gone"))
        await client.until(lambda client: len(client.told) == 2)
        assert isinstance(from_wire(client.told[1].error), Unreachable)


@virtual_time
async def test_one_that_never_reads_takes_no_memory_above_the_mark_and_holds_up_no_other_user() -> None:
    high, partitions, batches = 100_000, 50, 100
    async with fanning(high=high) as (leader, fan_out):
        stalled = Client(fan_out)
        stalled.reading.clear()
        wanted = [pb.SubscribePartition(topic="t", partition=number, earliest=True) for number in range(partitions)]
        leader.append(batches)
        stalled.say(open=pb.SubscribeOpen(partitions=wanted), credit=pb.SubscribeCredit(bytes=CREDIT))
        await settled(lambda: fan_out.held.bytes > high)
        callers._caller.set("another")
        other = Client(fan_out, "another").open(earliest=True)
        await other.has(*range(0, 10 * batches, 10))
        assert len(leader.streams) == partitions + 1
        assert fan_out.held.bytes < high + 2 * (partitions + 1) * 2_000
        stalled.reading.set()
        await stalled.until(lambda client: len(client.offsets) == partitions * batches)
        assert sorted(stalled.offsets) == sorted([*range(0, 10 * batches, 10)] * partitions)


@virtual_time
async def test_lost_records_are_told_once_and_it_goes_on_behind_them() -> None:
    async with fanning() as (leader, fan_out):
        clients = [await Client(fan_out).open(offset=0).is_open() for _ in range(3)]
        leader.append(1)
        for client in clients:
            await client.has(0)
        lost = pb.PartitionOpened(topic="t", offset=50, active=True, error=to_wire(OffsetOutOfRange("lost", 50)))
        leader.lose(lost)
        for client in clients:
            await client.until(lambda client: len(client.told) == 2)
            assert (client.told[1].offset, client.told[1].active) == (50, True)
        leader.append(6)
        for client in clients:
            await client.has(0, 50, 60)
            assert len(client.told) == 2


@virtual_time
async def test_users_do_not_share_and_each_is_asked_for_by_its_own_name() -> None:
    async with fanning() as (leader, fan_out):
        for user in ("one", "another"):
            await Client(fan_out, user).open(offset=0).is_open()
        assert sorted(leader.users) == ["User:another", "User:one"]
        assert len(leader.streams) == 2


@virtual_time
async def test_who_leaves_or_closes_a_partition_ends_what_nobody_else_shares() -> None:
    async with fanning() as (leader, fan_out):
        staying, leaving = [await Client(fan_out).open(offset=0).is_open() for _ in range(2)]
        await leaving.leave()
        leader.append()
        await staying.has(0)
        staying.say(close=pb.SubscribeClose(partitions=[pb.TopicPartition(topic="t", partition=0)]))
        await settled(lambda: not leader.streams)
        staying.open(offset=10)
        leader.append()
        await staying.has(0, 10)


@virtual_time
async def test_a_group_may_not_be_named_on_such_a_stream() -> None:
    async with fanning() as (_leader, fan_out):
        client = await Client(fan_out).open(offset=0).is_open()
        client.say(open=pb.SubscribeOpen(group="g"))
        with pytest.raises(InvalidRequest, match="another stream"):
            await client.task


@virtual_time
async def test_a_partition_beyond_the_bound_is_refused_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from mq_broker.broker.proxy import fan_out as module

    monkeypatch.setattr(module, "TAILS_MAX", 1)
    async with fanning() as (leader, fan_out):
        await Client(fan_out).open(latest=True).is_open()
        other = await Client(fan_out, "another").open(latest=True).is_open()
        assert other.told[0].error.code == pb.OVERLOADED
        assert len(leader.streams) == 1
