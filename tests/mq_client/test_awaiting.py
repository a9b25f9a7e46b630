"""Clients in programs of asyncio: futures that can be awaited, records as they come, blocks. One client, any loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

import pytest

from mq_client import Admin, Consumer, InvalidRequest, OutcomeUnknown, Producer, RecordMetadata
from mq_client.awaiting import TURN_RECORDS, AsyncBlock, Taken, Wakeable
from mq_client.producing.futures import BatchOutcome, BatchPlace, RecordFuture, TableOutcome

PLACE = BatchPlace(2, 100, 3, 55, False)
DEADLINE_S = 30.0


def later(call: object, *arguments: object) -> None:
    threading.Timer(0.05, call, arguments).start()  # type: ignore[arg-type]


# ------------------------------------------------------------------ futures


def test_a_future_is_awaited_before_and_after_it_is_settled_and_again() -> None:
    outcome = BatchOutcome("t")
    futures = [RecordFuture(outcome, index) for index in range(3)]

    async def scene() -> None:
        later(outcome.settle, PLACE, None)
        found = await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_S)
        assert found == [RecordMetadata("t", 2, 100 + index, 55, False) for index in range(3)]
        assert await futures[1] == found[1]

    asyncio.run(scene())
    assert futures[0].result(0).offset == 100


def test_an_error_is_raised_where_it_is_awaited_and_counts_as_seen() -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)

    async def scene() -> None:
        later(outcome.settle, None, OutcomeUnknown("?"))
        with pytest.raises(OutcomeUnknown):
            await future

    asyncio.run(scene())
    assert outcome.observed


def test_who_is_cancelled_waits_no_longer_and_the_record_goes_its_way() -> None:
    outcome = BatchOutcome("t")
    future = RecordFuture(outcome, 0)

    async def scene() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        assert not future.done()
        assert not future.cancelled()
        later(outcome.settle, PLACE, None)
        assert (await future).offset == 100

    asyncio.run(scene())


def test_a_table_is_awaited_too() -> None:
    table = TableOutcome("t", 3)
    piece, future = table.piece(), table.complete()

    async def scene() -> int:
        later(piece.settle, PLACE, None)
        return (await asyncio.wait_for(future, DEADLINE_S)).base_offset

    assert asyncio.run(scene()) == 100


# ------------------------------------------------------------------ items as they come


class Box:
    def __init__(self, idle_s: float | None = None) -> None:
        self.changed = Wakeable()
        self.items: deque[int] = deque()
        self.started = 0
        self.over = False
        self.idle_s = idle_s

    def put(self, *items: int, over: bool = False) -> None:
        with self.changed:
            self.items.extend(items)
            self.over = over
            self.changed.notify_all()

    def start(self) -> None:
        self.started += 1

    def taken(self) -> AsyncIterator[int]:
        return Taken(
            self.changed,
            self.start,
            lambda: self.items.popleft() if self.items else None,
            lambda: self.over,
            self.idle_s,
        )


def test_items_come_as_another_thread_puts_them_until_it_is_over() -> None:
    async def scene() -> None:
        box = Box()
        box.put(1, 2)
        later(box.put, 3)
        threading.Timer(0.2, box.put, (4,), {"over": True}).start()
        async with asyncio.timeout(DEADLINE_S):
            assert [item async for item in box.taken()] == [1, 2, 3, 4]
        assert box.started == 1
        assert box.changed.wakers == set()

    asyncio.run(scene())


def test_who_is_cancelled_while_nothing_comes_has_taken_nothing() -> None:
    async def scene() -> None:
        box = Box()
        records = box.taken()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await anext(records)
        assert box.changed.wakers == set()
        box.put(7)
        assert await anext(records) == 7

    asyncio.run(scene())


def test_several_tasks_and_loops_share_what_comes_and_nothing_is_given_twice() -> None:
    box = Box()
    got: list[int] = []

    async def take() -> None:
        async for item in box.taken():
            got.append(item)
            await asyncio.sleep(0)

    async def several() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(take() for _ in range(3)))

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for first in range(0, 2_000, 20):
        box.put(*range(first, first + 20))
    box.put(over=True)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(got) == list(range(2_000))


def test_it_ends_when_nothing_has_come_for_a_while() -> None:
    async def scene() -> None:
        box = Box(idle_s=0.05)
        box.put(1)
        async with asyncio.timeout(DEADLINE_S):
            assert [item async for item in box.taken()] == [1]
        assert box.changed.wakers == set()

    asyncio.run(scene())


def test_other_tasks_get_their_turn_although_there_is_always_something() -> None:
    async def scene() -> None:
        box, turns = Box(), 0
        box.put(*range(5 * TURN_RECORDS), over=True)

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        before = turns
        async for _ in box.taken():
            pass
        assert turns - before >= 4
        task.cancel()

    asyncio.run(scene())


def test_a_loop_that_has_ended_is_forgotten_by_who_wakes() -> None:
    box = Box()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(anext(box.taken()))  # type: ignore[arg-type]

    async def waits() -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not box.changed.wakers:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.001)

    loop.run_until_complete(waits())
    loop.close()
    box.put(1)
    assert box.changed.wakers == set()
    assert list(box.items) == [1]
    waiting._log_destroy_pending = False  # asyncio would say that it was never ended, as is meant here


# ------------------------------------------------------------------ blocks


class Door(AsyncBlock):
    def __init__(self) -> None:
        self.may_open, self.opened, self.shut = threading.Event(), threading.Event(), threading.Event()

    def __enter__(self) -> Door:
        self.opened.set()
        self.may_open.wait(DEADLINE_S)
        return self

    def __exit__(self, *_error: object) -> None:
        self.shut.set()


def test_what_was_being_begun_when_a_task_was_cancelled_is_ended() -> None:
    door = Door()

    async def enter() -> None:
        async with door:
            pytest.fail("it was cancelled before")

    async def scene() -> None:
        task = asyncio.ensure_future(enter())
        await asyncio.to_thread(door.opened.wait, DEADLINE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        door.may_open.set()

    asyncio.run(scene())
    assert door.shut.is_set()


# ------------------------------------------------------------------ with a broker


def test_records_are_published_and_consumed_in_a_loop(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic, partitions=2)

    async def scene() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            Producer(bootstrap) as producer,
            Consumer(bootstrap, group=topic, start="earliest", value_deserializer="string") as consumer,
        ):
            await asyncio.to_thread(consumer.subscribe, topic)
            places = await asyncio.gather(*(producer.publish(topic, f"m{n}") for n in range(20)))
            assert len({(place.partition, place.offset) for place in places}) == 20
            got = []
            async for record in consumer:
                got.append(record.value)
                if len(got) == 20:
                    break
            assert sorted(got) == sorted(f"m{n}" for n in range(20))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(aiter(consumer))
            await producer.publish(topic, "after")
            assert (await anext(aiter(consumer))).value == "after"

    asyncio.run(scene())
    with Consumer(bootstrap, group=topic, idle_ms=300) as again:
        again.subscribe(topic)
        assert list(again) == [], "the end of the block settled what was handed out"


def test_a_consumer_that_another_thread_stops_ends_its_loop(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)

    async def scene() -> None:
        consumer = Consumer(bootstrap)
        consumer.subscribe(topic)
        threading.Timer(0.2, consumer.stop).start()
        async with asyncio.timeout(DEADLINE_S):
            assert [record async for record in consumer] == []

    asyncio.run(scene())


def test_what_a_producer_took_is_sent_before_its_block_ends_and_then_it_refuses(
    admin: Admin, bootstrap: str, topic: str
) -> None:
    admin.create_topic(topic)

    async def scene() -> None:
        async with Producer(bootstrap, linger_ms=60_000) as producer:
            future = producer.publish(topic, "x")
        assert (await asyncio.wait_for(future, DEADLINE_S)).offset == 0
        with pytest.raises(InvalidRequest, match="closed"):
            producer.publish(topic, "y")

    asyncio.run(scene())


def test_a_block_that_failed_gives_its_record_to_the_group_again(admin: Admin, bootstrap: str, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap) as producer:
        producer.publish(topic, "work").result(DEADLINE_S)

    async def scene() -> None:
        async with Consumer(bootstrap, group=topic, start="earliest") as consumer:
            await asyncio.to_thread(consumer.subscribe, topic)
            async for record in consumer:
                raise KeyError(record.value)

    with pytest.raises(KeyError):
        asyncio.run(scene())
    with Consumer(bootstrap, group=topic, start="earliest") as again:
        again.subscribe(topic)
        given = again.take(DEADLINE_S * 1000)
        assert given is not None
        assert given.value == b"work"
