"""A broker says when the UUIDs that its partitions remember take more memory than it was given, and drops none for
it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.host import window_budget
from mq_broker.broker.host.window_budget import WindowBudget
from mq_protocol.errors import InvalidSetting
from tests.mq_broker.broker.cluster import Broker, until


def test_it_is_told_once_and_once_more_after_there_was_room(caplog: pytest.LogCaptureFixture) -> None:
    def partition(name: str, taken: int) -> Any:
        return SimpleNamespace(name=name, replica=SimpleNamespace(window_bytes=taken))

    readings = iter([(4.0, 5.0), (4.0, 6.0), (9.0, 9.0), (4.0, 5.5), (0.1, 0.2), (9.0, 3.0)])

    def partitions() -> list[Any]:
        return [
            partition(name, int(taken * (1 << 20))) for name, taken in zip(("a-0", "b-0"), next(readings), strict=True)
        ]

    shell: Any = SimpleNamespace(partitions=partitions)
    budget = WindowBudget(shell, 10 << 20)
    with caplog.at_level(logging.INFO):
        for _ in range(6):
            asyncio.run(budget.look())
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]
    assert "take 0.3 MiB of memory again" in caplog.messages[1], "a little less than the budget is not room yet"
    assert "take 10.0 MiB of memory, and --dedup-memory-max is 10.0 MiB" in caplog.messages[0]
    assert "b-0 6.0 MiB, a-0 4.0 MiB" in caplog.messages[0]


def test_a_broker_beyond_its_budget_says_so_and_goes_on_recognising_every_uuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(window_budget, "CHECK_S", 0.05)

    async def scenario() -> None:
        broker = Broker(BrokerConfig(1, "127.0.0.1:0", tmp_path, dedup_memory_max=200))
        await broker.start()
        try:
            await broker.create_topic("t")
            first = await broker.produce("t", 1, uuid=b"batch %10d" % 1)
            for number in range(2, 12):
                await broker.produce("t", number, uuid=b"batch %10d" % number)

            async def told() -> bool:
                return any("--dedup-memory-max is 0.0 MiB" in words and "t-0" in words for words in caplog.messages)

            await until(told)
            again = await broker.produce("t", 1, uuid=b"batch %10d" % 1)
            assert (again.duplicate, again.base_offset) == (True, first.base_offset)
        finally:
            await broker.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())


def test_a_budget_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--dedup-memory-max=0 is out of range"):
        BrokerConfig(1, "127.0.0.1:0", tmp_path, dedup_memory_max=0)
