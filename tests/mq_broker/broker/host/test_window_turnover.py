"""A broker says when a partition's window of UUIDs turns over within a minute, and names the clients that fill it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import window_turnover
from mq_broker.broker.host.window_turnover import CALM_S, Fillers, WindowTurnover
from mq_protocol import mq_pb2 as pb
from tests.logs import said_here
from tests.mq_broker.broker.cluster import standalone, until

START_US = 1_000_000_000


class Watched:
    """A turnover watch of some partitions, with the clocks and the partitions' news in the test's hands."""

    def __init__(self, count: int = 1, *, leading: bool = True) -> None:
        self.partitions: list[Any] = [_Partition(number, leading) for number in range(count)]
        self.now_us, self.now_s = START_US, 0.0
        self.fillers = Fillers()
        shell: Any = SimpleNamespace(partitions=lambda: self.partitions)
        self.watch = WindowTurnover(shell, self.fillers, lambda: self.now_us, lambda: self.now_s)

    def look(self, later_s: float = 10.0) -> None:
        self.now_us += int(later_s * 1_000_000)
        self.now_s += later_s
        self.watch.look()

    def turn_over(self) -> None:
        for partition in self.partitions:
            partition.replica.window_turned_over_us = self.now_us + 1  # just after the last look


class _Partition:
    def __init__(self, number: int, leading: bool) -> None:
        self.name = f"t-{number}"
        self.closed = False
        self.topic = SimpleNamespace(spec=SimpleNamespace(name="t"), settings=SimpleNamespace(dedup_uuids_max=100))
        self.replica = SimpleNamespace(leading=leading, window_turned_over_us=0)


def test_noise_that_flushes_a_window_is_told_with_the_address_of_who_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(window_turnover, "CHECK_S", 1.0)  # each look halves what is counted

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", dedup_uuids_max="100")
            await broker.produce("t", 1, uuid=b"an honest batch.")
            stage = pb.StageOf(key=pb.TransactionKey(query_id="q 1", sink="t"), batch_id=0, run_id="r")
            await broker.produce("t", 1, stage=stage)
            for _ in range(99):
                await broker.produce("t", 2)
            again = await broker.produce("t", 1, uuid=b"an honest batch.")
            assert not again.duplicate, "100 other batches made the broker forget this one"

            async def told() -> bool:
                return any("t-0 remembers the last 100 UUIDs" in words for words in caplog.messages)

            await until(told)

    asyncio.run(scenario())
    words = next(words for words in caplog.messages if "t-0 remembers the last 100 UUIDs" in words)
    assert "came from 'ipv4:127.0.0.1:" in words
    assert "dedup_uuids_max" in words
    assert "a topic of their own" in words
    assert "q 1" not in words


def test_it_is_told_once_and_again_only_after_it_was_calm(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.look()
    assert not said_here(caplog)
    for _ in range(5):
        watched.turn_over()
        watched.look(CALM_S - 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    watched.look(CALM_S)
    watched.turn_over()
    watched.look()
    assert len(caplog.messages) == 2


def test_what_a_replica_reads_again_or_only_follows_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.partitions[0].replica.window_turned_over_us = START_US - 1  # from the journal, before this broker looked
    watched.look()
    follower = Watched(leading=False)
    follower.turn_over()
    follower.look()
    follower.partitions[0].replica.leading = True
    follower.look()
    assert not said_here(caplog)
