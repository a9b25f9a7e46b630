"""A broker says when a partition's window of UUIDs turns over within a minute, and names the clients that fill it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import window_turnover
from mq_broker.broker.host.window_turnover import CALM_S, FILLERS_MAX, TOLD_AT_ONCE_MAX, Fillers, WindowTurnover
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


def test_one_look_tells_of_some_partitions_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(TOLD_AT_ONCE_MAX + 3)
    watched.turn_over()
    watched.look()
    assert len(caplog.messages) == TOLD_AT_ONCE_MAX + 1
    assert "of 3 more partitions" in caplog.messages[-1]


def test_clients_are_named_by_what_they_brought_and_counted_in_few_places() -> None:
    fillers, partition = Fillers(), Watched().partitions[0]
    for number in range(10 * FILLERS_MAX):
        fillers.count(partition, f"ipv4:10.0.0.{number}:1", "", 1)
        fillers.count(partition, f"ipv4:10.9.9.9:{number}", "", 1)
        fillers.count(partition, "ipv6:%5B::1%5D:7", "deadbeef", 1)
    assert len(fillers._of[partition]) <= FILLERS_MAX
    words = fillers.described(partition)
    assert "'ipv4:10.9.9.9:159' (" in words, "one host, whatever port it came from last"
    assert "'ipv6:[::1]:7' for query deadbeef (" in words
    for _ in range(20):
        fillers.age()
    assert not fillers._of, "what was long ago takes no place"
    assert "long enough" in fillers.described(partition)


def test_one_large_newcomer_among_many_small_clients_is_counted() -> None:
    fillers, partition = Fillers(), Watched().partitions[0]
    for number in range(FILLERS_MAX):
        fillers.count(partition, f"ipv4:10.0.0.{number}:1", "", 3)
    fillers.count(partition, "ipv4:10.9.9.9:1", "", 1000)
    assert fillers.described(partition).startswith("'ipv4:10.9.9.9:1' (997 UUIDs)")


def test_a_partition_that_was_closed_is_forgotten() -> None:
    watched = Watched()
    watched.fillers.count(watched.partitions[0], "ipv4:10.0.0.1:1", "", 100)
    watched.turn_over()
    watched.look()
    watched.partitions[0].closed = True
    watched.look()
    assert not watched.fillers._of
    assert not watched.watch._told
    assert not watched.watch._seen_us


def test_a_newcomer_among_as_many_clients_as_are_counted_takes_from_all_and_only_those_with_nothing_left_go() -> None:
    fillers, partition = Fillers(), Watched().partitions[0]
    for number in range(FILLERS_MAX):
        fillers.count(partition, f"ipv4:10.0.0.{number}:1", "", 3 if number else 2)
    fillers.count(partition, "ipv4:10.9.9.9:1", "", 2)
    counted = {key[0]: filler.uuids for key, filler in fillers._of[partition].items()}
    assert counted == {f"ipv4:10.0.0.{number}": 1 for number in range(1, FILLERS_MAX)}, "it used up all that it brought"
    fillers.count(partition, "ipv4:10.9.9.9:1", "", 2)
    assert len(fillers._of[partition]) == FILLERS_MAX
    fillers.count(partition, "ipv4:10.8.8.8:1", "", 2)
    assert {key[0]: filler.uuids for key, filler in fillers._of[partition].items()} == {
        "ipv4:10.9.9.9": 1,
        "ipv4:10.8.8.8": 1,
    }


def test_at_most_three_clients_are_named_those_that_brought_most_first() -> None:
    fillers, partition = Fillers(), Watched().partitions[0]
    for number in (2, 4, 1, 3):
        fillers.count(partition, f"ipv4:10.0.0.{number}:1", "", 10 * number)
    assert fillers.described(partition) == (
        "'ipv4:10.0.0.4:1' (40 UUIDs), 'ipv4:10.0.0.3:1' (30 UUIDs), 'ipv4:10.0.0.2:1' (20 UUIDs)"
    )
    fillers.age()
    assert fillers.described(partition).startswith("'ipv4:10.0.0.4:1' (20 UUIDs)")


def test_what_is_calm_at_the_very_end_of_its_time_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.turn_over()
    watched.look()
    watched.look(CALM_S)
    watched.turn_over()
    watched.look()
    assert len(caplog.messages) == 2
