"""What is held for clients' streams in all: above the mark nothing more is read, and nothing is held for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import server
from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.runtime import memory
from mq_broker.broker.runtime.memory import Held, memory_high_by_default
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import CLIENT_MESSAGE_BYTES_MAX, FETCH_CHUNK_BYTES, MEMORY_HIGH_FLOOR, MESSAGE_BYTES_MAX
from mq_protocol.wire.envelope import decode
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import (
    DEADLINE_S,
    rows,
    standalone,
    unpack,
    until,
)
from tests.virtual.world import in_virtual_time


@virtual_time
async def test_room_is_waited_for_only_above_the_mark() -> None:
    held = Held(100)
    held.add("a", 100)
    await asyncio.wait_for(held.room("a"), 1)
    async with held.sending("a", 2) as room:
        assert (room.bytes, held.bytes) == (2, 106), "each byte on its way out is there three times"
        room.took(1)
        waiting = asyncio.create_task(held.room("a"))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        assert held.bytes == 103
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert held.bytes == 100


@virtual_time
async def test_above_the_mark_a_caller_goes_on_while_it_holds_less_than_an_even_share() -> None:
    held = Held(100, callers_max=4)
    held.add("greedy", 101)
    held.add("modest", 24)
    await asyncio.wait_for(held.room("modest"), 1)
    held.add("modest", 1)
    waiting = asyncio.create_task(held.room("modest"))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    held.free("modest", 1)
    await asyncio.wait_for(waiting, 1)


@virtual_time
async def test_above_the_mark_a_caller_that_holds_nothing_goes_on_however_small_the_share_is() -> None:
    held = Held(100, callers_max=100)
    held.add("greedy", 101)
    await asyncio.wait_for(held.room("new"), 1)


@virtual_time
async def test_what_is_on_its_way_out_is_given_back_when_sending_fails() -> None:
    held = Held(100)
    with pytest.raises(ConnectionResetError):
        async with held.sending("a", 60):
            raise ConnectionResetError
    assert held.bytes == 0


@virtual_time
async def test_what_is_to_be_read_is_counted_before_it_is_and_those_who_wait_go_on_one_after_the_other() -> None:
    held = Held(100, callers_max=1)
    entered: list[int] = []
    leave = [asyncio.Event() for _ in range(6)]

    async def send(number: int) -> None:
        async with held.sending("a", 25) as room:
            entered.append(number)
            room.took(20)
            await leave[number].wait()

    sending = [asyncio.create_task(send(number)) for number in range(6)]
    await turns()
    assert (entered, held.bytes) == ([0, 1], 120), "the second one passes the mark, and no other"
    sending[3].cancel()
    leave[1].set()
    await turns()
    assert entered == [0, 1, 2]
    leave[2].set()
    await turns()
    assert entered == [0, 1, 2, 4]
    for each in leave:
        each.set()
    await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), DEADLINE_S)
    assert (entered, held.bytes) == ([0, 1, 2, 4, 5], 0)
    assert not held._waiting
    assert not held._waiting_of


@virtual_time
async def test_above_the_mark_who_holds_little_reads_little() -> None:
    held = Held(100, callers_max=4)
    held.add("greedy", 101)
    async with held.sending("modest", 1 << 20) as room:
        assert room.bytes == memory.PRESSED_BYTES
    async with held.sending("modest", 7) as room:
        assert room.bytes == 7
    waiting = asyncio.create_task(enter(held, "greedy"))
    await turns()
    assert not waiting.done()
    held.free("greedy", 80)  # it is below its share now
    await asyncio.wait_for(waiting, DEADLINE_S)


@virtual_time
async def test_who_waits_behind_a_larger_wish_of_the_same_caller_goes_on_when_that_is_cancelled() -> None:
    held = Held(100, callers_max=4)
    held.add("greedy", 101)
    held.add("a", 25)
    entered: list[int] = []

    async def read(least: int) -> None:
        async with held.sending("a", least, least):
            entered.append(least)

    large = asyncio.create_task(read(1 << 20))
    await turns()
    small = asyncio.create_task(read(1))
    await turns()
    held.free("a", 5)  # it is below its share, and the larger one comes first
    await turns()
    assert entered == []
    large.cancel()
    await asyncio.wait_for(small, DEADLINE_S)
    assert entered == [1]


@virtual_time
async def test_who_was_woken_and_found_the_room_taken_stays_the_first_who_waits_and_leaves_no_task() -> None:
    held = Held(100)
    held.add("greedy", 101 + held._share)
    entered: list[str] = []
    never = asyncio.Event()

    async def read(name: str) -> None:
        async with held.sending("greedy", 1, never):
            entered.append(name)

    reading = [asyncio.create_task(read(name)) for name in ("first", "second")]
    await turns()
    held.free("greedy", 50)
    held.add("fast", 60)  # before the one that was woken has its turn
    await turns()
    assert not entered
    held.free("fast", 60)
    await asyncio.wait_for(asyncio.gather(*reading), DEADLINE_S)
    assert entered == ["first", "second"]
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_all_who_have_room_go_on_at_once_and_wait_for_no_message_of_each_other() -> None:
    held = Held(100)
    held.add("greedy", 101 + held._share)
    entered: list[str] = []
    leave = asyncio.Event()

    async def read(caller: str) -> None:
        async with held.sending(caller, 1):
            entered.append(caller)  # and its records are not read yet
            await leave.wait()

    reading = [asyncio.create_task(read("greedy")) for _ in range(3)]
    await turns()
    assert not entered
    held.free("greedy", 50)
    await turns()
    assert len(entered) == 3
    leave.set()
    await asyncio.wait_for(asyncio.gather(*reading), DEADLINE_S)


@virtual_time
async def test_large_batches_of_who_holds_little_go_on_up_to_twice_the_mark() -> None:
    high = 10 * memory.PRESSED_BYTES
    large = 2 * memory.PRESSED_BYTES
    held = Held(high, callers_max=2)
    held.add("greedy", high + 1)
    async with held.sending("one", large, large) as first:
        assert first.bytes == large
        waiting = [asyncio.create_task(enter(held, name, None, large)) for name in ("two", "three", "one")]
        await turns()
        assert not any(each.done() for each in waiting), "each would be above twice the mark"
        await asyncio.wait_for(enter(held, "four"), DEADLINE_S)  # what is small goes on
        held.free("greedy", 3 * large)
        await asyncio.wait_for(asyncio.gather(*waiting[:2]), DEADLINE_S)
        await turns()
        assert not waiting[2].done(), "it holds more than its share"
    await asyncio.wait_for(waiting[2], DEADLINE_S)
    assert not held._waiting
    assert not held._large


@virtual_time
async def test_who_waits_for_room_is_let_go_at_the_end_of_its_call_and_what_woke_one_that_gave_up_wakes_the_next() -> (
    None
):
    held = Held(100)
    held.add("greedy", 101 + held._share)
    over = asyncio.Event()
    ending = asyncio.create_task(enter(held, "greedy", over))
    gives_up, next_ = (asyncio.create_task(enter(held, "greedy")) for _ in range(2))
    await turns()
    over.set()
    await asyncio.wait_for(ending, DEADLINE_S)
    assert not next_.done()
    held.free("greedy", 50)
    gives_up.cancel()  # it was woken in this very turn
    await asyncio.wait_for(next_, DEADLINE_S)
    assert gives_up.cancelled()
    assert not held._waiting


async def turns() -> None:
    """Whatever can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def enter(held: Held, caller: str, over: asyncio.Event | None = None, least: int = 1) -> None:
    async with held.sending(caller, least, least, over):
        pass


def test_half_of_the_memory_is_the_mark_of_the_machine_or_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUP", limit)
    machine = memory_high_by_default()
    assert machine > MEMORY_HIGH_FLOOR
    limit.write_text("max\n")
    assert memory_high_by_default() == machine
    limit.write_text("1000000\n")
    assert memory_high_by_default() == 500_000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"memory_high": MEMORY_HIGH_FLOOR - 1}, "--memory-high"),
        ({"message_bytes_max": CLIENT_MESSAGE_BYTES_MAX - 1}, "--message-bytes-max"),
        ({"message_bytes_max": MESSAGE_BYTES_MAX + 1}, "--message-bytes-max"),
        ({"connections_max": 0}, "--connections-max"),
    ],
)
def test_bounds_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        BrokerConfig(1, "127.0.0.1:0", tmp_path, **wrong)


class _Watched(Held):
    """The broker's count, for the test to look at."""

    one: _Watched

    def __init__(self, high: int, callers_max: int) -> None:
        super().__init__(high, callers_max)
        self.most = 0
        _Watched.one = self

    def add(self, caller: str, count: int) -> None:
        super().add(caller, count)
        self.most = max(self.most, self.bytes)


@pytest.mark.parametrize("by", ["Fetch", "Subscribe"])
def test_a_batch_that_is_larger_than_a_message_should_be_is_counted_whole_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    counted: list[int] = []

    class Noting(_Watched):
        def add(self, caller: str, count: int) -> None:
            super().add(caller, count)
            counted.append(count)

    monkeypatch.setattr(server, "Held", Noting)
    count = 150_000
    payload = encode_batch(rows(*range(count)))
    assert len(payload) > 2 * FETCH_CHUNK_BYTES

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", durability="memory")
            async with broker.producing() as stream:
                await stream.send("t", payload, count)
                assert not (await stream.result()).HasField("error")
            counted.clear()
            if by == "Fetch":
                await broker.fetch("t", 0, count)
            else:
                async with broker.subscribing() as subscription:
                    await subscription.open("t", earliest=True)
                    await subscription.read_numbers(count)
        of_records = [each for each in counted if each >= memory.COPIES_SENT * FETCH_CHUNK_BYTES]
        assert of_records
        assert min(of_records) >= memory.COPIES_SENT * len(payload)

    in_virtual_time(scenario())


@real_time
async def test_above_the_mark_who_holds_it_is_sent_no_more_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that does not read holds what was sent to it."""
    monkeypatch.setattr(server, "Held", lambda high, callers_max: _Watched(1_000_000, callers_max))
    payload = encode_batch(rows(*range(100_000)))
    assert len(payload) > 1_000_000
    async with standalone(tmp_path) as broker, broker.producing() as stream:
        await broker.create_topic("t", durability="memory")
        for _ in range(8):
            await stream.send("t", payload, 100_000)
            assert not (await stream.result()).HasField("error")

        async def nothing() -> bool:
            return _Watched.one.bytes == 0

        await until(nothing)
        request = pb.FetchRequest(topic="t", end_offset=800_000, chunk_bytes_max=4 << 20)
        reader = await broker.channel.begin("Fetch", request)

        async def stuck() -> bool:
            return _Watched.one.bytes > 1_000_000

        offset, beside_it = 800_000, 0
        while beside_it < 20:  # at first what was sent is on its way, and then the reader has it all
            before = await stuck()
            await stream.send("t", encode_batch(rows(offset)), 1)
            assert (await stream.result()).base_offset == offset
            offset += 1
            beside_it += before and await stuck()
        taken = 0
        while (data := await reader.read()) is not None:
            taken += sum(stored.record_count for stored, _ in unpack(decode(data, pb.BatchesHeader)))
        assert taken == 800_000
        await until(nothing)


@virtual_time
async def test_a_batch_may_be_as_large_as_every_broker_takes_and_no_larger(tmp_path: Path) -> None:
    most = 16 << 20
    async with standalone(tmp_path / "default") as broker:
        await broker.create_topic("fits", batch_bytes_max=str(most), durability="memory")
        for ask in (broker.create_topic("above", batch_bytes_max=str(most + 1)), _alter(broker, "fits", most + 1)):
            with pytest.raises(
                InvalidSetting, match=f"start every broker with --message-bytes-max {most + 1 + (1 << 20)}"
            ):
                await ask
    async with standalone(tmp_path / "larger", message_bytes_max=MESSAGE_BYTES_MAX) as broker:
        await broker.create_topic("large", batch_bytes_max="64MiB", durability="memory")


async def _alter(broker: Any, topic: str, batch_bytes_max: int) -> None:
    await broker.ask("AlterTopic", pb.AlterTopicRequest(name=topic, settings={"batch_bytes_max": str(batch_bytes_max)}))
