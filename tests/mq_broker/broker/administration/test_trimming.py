"""Below which offset records may go, and which partitions have a turn of retention, with a clock that is given. The
partitions' state and index are real."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.broker.administration.consumed import Consumed
from mq_broker.broker.administration.retention import SHORTENINGS_AT_ONCE, TURN_S, Retention
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import QueueSpec, TopicSpec
from mq_broker.core.work.steps import Accept, Begin, Reason, Send, Sent
from tests.coroutines import virtual_time
from tests.mq_broker.broker.queues.partitions import Led

NOW_US = 1_000_000_000


class Part(Led):
    """Five batches of ten records and 100 bytes, one a second, the last of them at `NOW_US`. Its journal is shortened
    while it `may`."""

    def __init__(self, start: int = 0, number: int = 0, **settings: int | str) -> None:
        given = {name: str(value) for name, value in settings.items()}
        super().__init__(topic=Topic.of(TopicSpec("t", "0" * 32, ((1,), (1,)), settings=given)), number=number)
        for number in range(5):
            self.append(10, at_us=NOW_US - (4 - number) * 1_000_000)
        if start:
            self.trim(start)
        self.held_by, self.shorten_due = "", False
        self.shortened = 0
        self.may = asyncio.Event()
        self.may.set()

    async def shorten(self) -> None:
        await self.may.wait()
        self.shortened += 1

    @property
    def start(self) -> int:
        return self.machine.log_start_offset

    def declare(self, **queues: QueueSpec) -> None:
        self.topic = Topic.of(replace(self.topic.spec, queues=queues))


class Shell:
    """Partitions, and the turns that were begun of them."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.tasks: list[asyncio.Task[None]] = []
        self.now = NOW_US

    def now_us(self) -> int:
        return self.now

    def partitions(self) -> list[Part]:
        return list(self.parts)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]


def retention_of(*parts: Part, now_us: int = NOW_US) -> tuple[Retention, Shell]:
    shell: Any = Shell(*parts)
    shell.now = now_us
    return Retention(shell, Consumed(shell, shell, shell), shell), shell


async def looks(keeper: Retention) -> None:
    """And turns that need not wait are over."""
    await keeper.look()
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("settings", "now_us", "kept_from"),
    [
        ({}, NOW_US * 1_000, 0),
        ({"retention_ms": 4_000}, NOW_US, 0),
        ({"retention_ms": 3_999}, NOW_US, 10),
        ({"retention_ms": 2_500}, NOW_US, 20),
        ({"retention_ms": 2_500}, NOW_US + 1_000_000, 30),
        ({"retention_ms": 1_000}, NOW_US + 10_000_000, 50),
        ({"retention_bytes": 500}, NOW_US, 0),
        ({"retention_bytes": 401}, NOW_US, 0),  # so much is kept at least
        ({"retention_bytes": 400}, NOW_US, 10),
        ({"retention_bytes": 200}, NOW_US, 30),
        ({"retention_bytes": 200, "retention_ms": 3_500}, NOW_US, 30),  # whichever takes more
        ({"retention_bytes": 450, "retention_ms": 1_500}, NOW_US, 30),
        ({"retention_bytes": 200, "start": 29}, NOW_US, 30),
    ],
)
@virtual_time
async def test_what_is_older_or_more_than_the_topic_keeps_goes_by_whole_batches(
    settings: dict[str, int], now_us: int, kept_from: int
) -> None:
    part = Part(**settings)
    keeper, shell = retention_of(part, now_us=now_us)
    await looks(keeper)
    assert (part.start, len(shell.tasks)) == (kept_from, 1 if kept_from else 0)
    last = part.replica.last_index
    await looks(keeper)
    assert part.replica.last_index == last, "what has gone already is not written down again"


@virtual_time
async def test_who_does_not_lead_drops_nothing() -> None:
    part = Part(retention_bytes=200)
    part.serving = False
    keeper, shell = retention_of(part)
    await looks(keeper)
    assert (part.start, shell.tasks) == (0, [])


@virtual_time
async def test_a_partition_whose_turn_goes_on_gets_no_second_one_beside_it() -> None:
    part = Part(retention_bytes=200)
    keeper, shell = retention_of(part)
    part.may.clear()
    for _ in range(3):
        part.shorten_due = True
        await looks(keeper)
    assert len(shell.tasks) == 1
    part.may.set()
    await looks(keeper)
    await looks(keeper)
    assert (len(shell.tasks), part.shortened) == (2, 2)


@virtual_time
async def test_so_many_journals_are_shortened_at_once_and_one_that_takes_too_long_is_taken_up_later() -> None:
    slow = [Part(retention_bytes=200) for _ in range(SHORTENINGS_AT_ONCE)]
    other = Part(retention_bytes=200)
    keeper, _ = retention_of(*slow, other)
    for part in slow:
        part.may.clear()
    await looks(keeper)
    assert (other.start, other.shortened) == (30, 0), "it waits for a place"
    await asyncio.sleep(TURN_S)
    assert {part.shorten_due for part in slow} == {True}
    await looks(keeper)
    other.shorten_due = True
    slow[0].may.set()
    await looks(keeper)
    assert (slow[0].shortened, other.shortened) == (1, 1), "its place is free again"


@virtual_time
async def test_retention_stops_at_what_a_queue_group_has_not_settled_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = Part(retention_ms=1_000)
    keeper, shell = retention_of(part, now_us=NOW_US + 100_000_000)
    part.apply("slow", 1, Begin(13))
    part.apply("fast", 1, Begin(40))
    part.declare(later=QueueSpec(4, 0, {}))
    for _ in range(3):
        await looks(keeper)
    assert (part.start, part.held_by) == (0, "later"), "it has not begun here, and needs the first record"
    part.declare(later=QueueSpec(4, 17, {}))
    for _ in range(3):
        await looks(keeper)
    assert (part.start, part.held_by) == (13, "slow")
    told = [message for message in caplog.messages if "held back" in message]
    assert ["'later'" in told[0], "offset 13" in told[1], "'slow'" in told[1], len(told)] == [True, True, True, 2]
    part.apply("slow", 1, Accept(((13, 20),)))
    await looks(keeper)
    assert part.start == 20
    part.apply("slow", 1, Send(((20, 21),), Reason.REJECTED, 1, ()))
    part.apply("slow", 1, Accept(((21, 50),)))
    await looks(keeper)
    assert part.start == 20, "its dead letter is not published yet"
    part.apply("slow", 1, Sent(1))
    await looks(keeper)
    assert (part.start, part.held_by) == (40, "fast")
    part.topic = Topic.of(replace(part.topic.spec, settings={"retention_ms": "1000", "retention_over_queues": "true"}))
    await looks(keeper)
    assert (part.start, part.held_by) == (50, "")
    assert shell.tasks[-1].done()
