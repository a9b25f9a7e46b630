"""One partition of a real broker: what waits for it is answered, whoever looks on is told, and it shortens its journal
in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.core.entries import MoveCursor
from mq_broker.core.messages import Done, Refused, Result, Tick
from mq_protocol.errors import NotLeader, OutcomeUnknown
from tests.coroutines import virtual_time
from tests.mq_broker.broker.host.test_shell import later, leading, shell


@asynccontextmanager
async def led(tmp_path: Path) -> AsyncIterator[tuple[Shell, Partition]]:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        yield broker, await leading(broker)


@virtual_time
async def test_what_is_not_committed_by_its_deadline_is_unknown_and_what_has_time_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(tmp_path) as (broker, partition):
        monkeypatch.setattr(partition.journal, "append", lambda _frames: None)  # a disk that does nothing
        told: list[Result] = []
        for deadline in (100.0, 200.0):
            partition.propose(MoveCursor("g", 0, "consumer"), told.append, deadline)
        partition.tick(broker.now_ms(), 99.9)
        assert told == []
        partition.tick(broker.now_ms() + 1_000, 100.0)
        [result] = told
        assert isinstance(result, Refused)
        assert isinstance(result.error, OutcomeUnknown)
        partition.tick(broker.now_ms() + 2_000, 1_000.0)
        assert len(told) == 2


@virtual_time
async def test_who_waits_and_who_looks_on_are_told_when_a_partition_closes_and_nothing_is_asked_of_it_any_more(
    tmp_path: Path,
) -> None:
    async with led(tmp_path) as (_broker, partition):
        looked: list[bool] = []
        partition.observers.add(lambda: looked.append(partition.closed))
        waiting: list[Result] = []
        partition.propose(MoveCursor("g", 0, "consumer"), waiting.append, 1e9)
        await partition.close(NotLeader("it was moved"))
        assert looked[-1:] == [True]
        [result] = waiting
        assert isinstance(result, Refused)
        assert str(result.error) == "it was moved"
        later: list[Result] = []
        partition.propose(MoveCursor("g", 0, "consumer"), later.append, 1e9)
        assert [str(each.error) for each in later if isinstance(each, Refused)] == ["it was moved"]
        stepped: list[object] = []
        partition.replica.step = lambda event: stepped.append(event) or ()  # type: ignore[method-assign, func-returns-value, assignment]
        partition.feed(Tick(1))
        partition.end_turn(1)
        assert stepped == []
        assert not partition.knows_committed
        assert not partition.serving
        await partition.close(NotLeader("again"))


@virtual_time
async def test_a_step_that_fails_stops_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Exception] = []
    async with led(tmp_path) as (broker, partition):

        def broken(_event: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(broker, "fail", failed.append)
        with monkeypatch.context() as patched:
            patched.setattr(partition.replica, "step", broken, raising=False)
            partition.feed(Tick(1))
        assert [type(error) for error in failed] == [ZeroDivisionError]
        assert isinstance(await partition.ask(MoveCursor("g", 0, "consumer"), 1e9), Done), "and nothing is stuck"


@virtual_time
async def test_a_broker_that_hands_over_waits_for_what_it_writes_to_the_coordination_service(tmp_path: Path) -> None:
    async with led(tmp_path) as (broker, partition):
        written, may_write = [], asyncio.Event()

        async def slowly() -> None:
            await may_write.wait()
            written.append(True)

        broker.write_node(slowly(), "write")
        handing = asyncio.create_task(broker.hand_over(5.0))
        await later(1)
        assert len(broker._node_writes) == 1
        assert not partition.leading
        for _ in range(20):
            await asyncio.sleep(0)
        assert not handing.done()
        may_write.set()
        await handing
        assert written
