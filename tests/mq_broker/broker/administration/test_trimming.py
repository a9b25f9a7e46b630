"""Below which offset records may go, and which partitions have a turn of retention, with a clock that is given."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.administration import retention
from mq_broker.broker.administration.consumed import Consumed
from mq_broker.broker.administration.retention import Retention, _trim_to
from mq_broker.core.messages import Published
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Accept, LeaseId, Reason, Send, Sent
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.errors import TritonMQError
from mq_protocol.names import RetentionPolicy
from tests.coroutines import real_time

NOW_US = 1_000_000_000


class Part:
    """A partition of five batches of ten records and 100 bytes, one a second, the last of them at `NOW_US`."""

    def __init__(self, retention_ms: int | None = None, retention_bytes: int | None = None, start: int = 0) -> None:
        self.name = "t-0"
        settings = SimpleNamespace(
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            retention=RetentionPolicy.LIMITS,
            retention_over_queues=False,
        )
        self.topic = SimpleNamespace(settings=settings, internal=False, spec=SimpleNamespace(queues={}))
        self.index = OffsetIndex()
        for number in range(5):
            self.index.append(Published(10 * number, 10, number + 1, NOW_US - (4 - number) * 1_000_000, 100, 100))
        self.index.trim(start)
        self.replica = SimpleNamespace(machine=SimpleNamespace(log_start_offset=start, work={}))
        self.serving, self.shorten_due, self.closed = True, False, False
        self.held_by = ""
        self.asked: list[tuple[object, float]] = []
        self.shortened = 0
        self.refuses: TritonMQError | None = None
        self.shortens: TritonMQError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def ask(self, operation: object, deadline: float) -> None:
        self.asked.append((operation, deadline))
        if self.refuses is not None:
            raise self.refuses

    async def shorten(self) -> None:
        await self.goes_on.wait()
        self.shortened += 1
        if self.shortens is not None:
            raise self.shortens


def trimmed(now_us: int = NOW_US, **settings: Any) -> int | None:
    part: Any = Part(**settings)
    return _trim_to(part, now_us)


def test_nothing_goes_where_nothing_was_asked_for() -> None:
    assert trimmed() is None
    assert trimmed(NOW_US * 1_000) is None


def test_what_is_older_than_the_topic_keeps_goes_by_whole_batches() -> None:
    assert trimmed(retention_ms=4_000) is None
    assert trimmed(retention_ms=3_999) == 10
    assert trimmed(retention_ms=2_500) == 20
    assert trimmed(NOW_US + 1_000_000, retention_ms=2_500) == 30
    assert trimmed(NOW_US + 10_000_000, retention_ms=1_000) == 50, "all of it"


def test_what_is_more_than_the_topic_keeps_goes() -> None:
    assert trimmed(retention_bytes=500) is None
    assert trimmed(retention_bytes=401) is None, "so much is kept at least"
    assert trimmed(retention_bytes=400) == 10
    assert trimmed(retention_bytes=200) == 30
    assert trimmed(retention_bytes=200, retention_ms=3_500) == 30, "whichever takes more"
    assert trimmed(retention_bytes=450, retention_ms=1_500) == 30


def test_what_has_gone_already_is_not_written_down_again() -> None:
    assert trimmed(retention_bytes=200, start=30) is None
    assert trimmed(retention_bytes=200, start=29) == 30


class Shell:
    """Partitions, and the turns that were begun of them."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.tasks: list[asyncio.Task[None]] = []

    def partitions(self) -> list[Any]:
        return list(self.parts)

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]


async def turns(*parts: Part, times: int = 1) -> None:
    shell: Any = Shell(*parts)
    clock: Any = SimpleNamespace(now_us=lambda: NOW_US)
    ours = Retention(shell, Consumed(shell, shell, shell), clock)
    for _ in range(times):
        await ours.look()
        await asyncio.wait_for(asyncio.gather(*shell.tasks), 10)
        await asyncio.sleep(0)


@real_time
async def test_a_partition_whose_turn_goes_on_gets_no_second_one_beside_it() -> None:
    part = Part(retention_bytes=200)
    part.goes_on.clear()
    shell: Any = Shell(part)
    ours = Retention(shell, Consumed(shell, shell, shell))
    for _ in range(3):
        await ours.look()
    assert len(shell.tasks) == 1
    part.goes_on.set()
    await asyncio.gather(*shell.tasks)
    await ours.look()
    assert len(shell.tasks) == 2
    await asyncio.gather(*shell.tasks)


@real_time
async def test_so_many_journals_are_shortened_at_once_and_one_that_takes_too_long_is_taken_up_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "SHORTENINGS_AT_ONCE", 1)
    monkeypatch.setattr(retention, "TURN_S", 0.01)
    slow, other = Part(retention_bytes=200), Part(retention_bytes=200)
    slow.goes_on.clear()
    await turns(slow)
    assert (slow.shorten_due, slow.shortened) == (True, 0)
    await turns(other)
    assert other.shortened == 1, "its place is free again"


def test_retention_stops_at_what_a_queue_group_has_not_settled_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part: Any = Part(retention_ms=1_000)
    shell: Any = None
    keeper = Retention(shell, Consumed(shell, shell, shell))
    work = part.replica.machine.work
    assert keeper._needed_from(part, 40) == 40
    work.update(slow=WorkState(1, 13), fast=WorkState(1, 70))
    for _ in range(3):
        assert keeper._needed_from(part, 40) == 13
    (told,) = caplog.messages[:1]
    assert len(caplog.messages) == 1
    assert "offset 13" in told
    assert "'slow'" in told
    declared = part.topic.spec.queues
    declared["later"] = SimpleNamespace(life=4, start_us=0)
    assert keeper._needed_from(part, 40) is None, "it has not begun here, and needs the first record"
    declared["later"].start_us = 17
    assert keeper._needed_from(part, 40) == 13
    work["slow"].apply(Accept(((13, 20),)), LeaseId(1, 1, 0), 100)
    assert keeper._needed_from(part, 40) == 20
    work["slow"].apply(Send(((20, 21),), Reason.REJECTED, 1, ()), LeaseId(1, 2, 0), 100)
    work["slow"].apply(Accept(((21, 90),)), LeaseId(1, 3, 0), 100)
    assert keeper._needed_from(part, 40) == 20, "its dead letter is not published yet"
    work["slow"].apply(Sent(1), LeaseId(1, 4, 0), 100)
    assert keeper._needed_from(part, 40) == 40
    work["slow"] = WorkState(1, 0)
    assert keeper._needed_from(part, 40) is None
    part.topic.settings.retention_over_queues = True
    assert keeper._needed_from(part, 40) == 40
    assert keeper._held_back == {}
