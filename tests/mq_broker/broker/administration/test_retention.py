"""Retention and snapshots on three real brokers: what is dropped is dropped everywhere, and nothing else is forgotten
with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from mq_broker.broker.administration import retention
from mq_broker.broker.administration.retention import RetentionClock
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OffsetOutOfRange
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, numbers_in, until
from tests.mq_broker.broker.test_three_brokers import Three, three

ROWS = 2_000
"""A batch of so many takes some 60 KB: each begins a segment of its own, or nearly."""


async def fill(broker: Broker, first: int, batches: int, **fields: object) -> None:
    for n in range(first, first + batches):
        await broker.produce("t", *range(n * ROWS, (n + 1) * ROWS), uuid=b"batch %10d" % n, **fields)


async def start_of(broker: Broker, topic: str = "t") -> int:
    answer = await broker.ask("ListOffsets", pb.ListOffsetsRequest(topic=topic, partitions=[0]))
    return int(answer.partitions[0].log_start_offset)


async def held(broker: Broker, start: int, end: int) -> list[int]:
    return [n for _, payload in await broker.fetch("t", start, end) for n in numbers_in(payload)]


def first_segments(data: Path, topic_id: str) -> dict[int, int]:
    """The index that each broker's journal begins with."""
    return {
        broker: min(int(path.stem) for path in (data / str(broker) / "partitions" / f"{topic_id}-0").glob("*.log"))
        for broker in (1, 2, 3)
    }


async def settled_start(cluster: Three, leader: int) -> int:
    """Where the log starts once retention has done what it can."""

    async def steady() -> int:
        before = await start_of(cluster[leader])
        await asyncio.sleep(5)
        return before if before and before == await start_of(cluster[leader]) else 0

    return int(await until(steady))


@virtual_time
async def test_what_is_too_much_is_dropped_on_every_replica_and_stays_dropped(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3, segment_bytes_max="65536", retention_bytes="200000")
        leader = await cluster.leader("t", at=1)
        await fill(cluster[leader], 0, 12)
        start = await settled_start(cluster, leader)
        assert start % ROWS == 0
        assert 0 < start < 12 * ROWS
        with pytest.raises(OffsetOutOfRange, match=str(start)):
            await cluster[leader].fetch("t", 0, 1)

        async def shortened() -> bool:
            return all(first > 1 for first in first_segments(tmp_path, info.topic_id).values())

        await until(shortened)
        kept = list(range(start, 12 * ROWS))
        assert await held(cluster[leader], start, 12 * ROWS) == kept
        await asyncio.gather(*(broker.abandon() for broker in cluster.brokers.values()))
        await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
        leader = await cluster.leader("t", at=1)
        await until(lambda: cluster[leader].end("t"))
        assert await settled_start(cluster, leader) == start
        assert await held(cluster[leader], start, 12 * ROWS) == kept
        again = await cluster[leader].produce("t", *range(ROWS), uuid=b"batch %10d" % 0)
        assert (again.duplicate, again.base_offset) == (True, 0)  # dropped, and still known (trap 13)


@virtual_time
async def test_a_replica_that_is_too_far_behind_begins_anew_with_the_leaders_state(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        info = await cluster[1].create_topic("t", replicas=3, segment_bytes_max="65536", retention_bytes="150000")
        leader = await cluster.leader("t", at=1)
        away, other = (n for n in (1, 2, 3) if n != leader)
        await fill(cluster[leader], 0, 2)
        await cluster[away].stop()
        await fill(cluster[leader], 2, 10)
        start = await settled_start(cluster, leader)

        async def shortened() -> bool:
            return first_segments(tmp_path, info.topic_id)[leader] > 6

        await until(shortened)
        await cluster[away].start()
        await cluster.in_sync("t", [1, 2, 3], at=leader)
        assert first_segments(tmp_path, info.topic_id)[away] > 6
        assert await until(lambda: held(cluster[away], start, 12 * ROWS)) == list(range(start, 12 * ROWS))
        await cluster[leader].abandon()
        await cluster[other].abandon()
        await cluster[other].start()
        heir = await cluster.leader("t", at=away, not_=leader)
        again = await until(lambda: cluster[heir].produce("t", *range(ROWS), uuid=b"batch %10d" % 0))
        assert (again.duplicate, again.base_offset) == (True, 0)
        assert await until(lambda: held(cluster[heir], start, 12 * ROWS)) == list(range(start, 12 * ROWS))


@virtual_time
async def test_a_new_replica_gets_in_sync_though_retention_goes_on_taking(tmp_path: Path) -> None:
    """Each trim lets a journal in memory begin later, and each time a replica that was given the state before that
    lacks some."""
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", replicas=3, durability="memory", retention_bytes="50000")
        leader = await cluster.leader("t", at=1)
        away = next(n for n in (1, 2, 3) if n != leader)
        await fill(cluster[leader], 0, 4)
        await cluster[away].abandon()
        await cluster[away].start()
        over = asyncio.Event()

        async def write_on() -> None:
            n = 4
            while not over.is_set():
                await fill(cluster[leader], n, 1)
                n += 1

        writing = asyncio.create_task(write_on())
        try:
            await cluster.in_sync("t", [1, 2, 3], at=leader)
        finally:
            over.set()
            await writing


@virtual_time
async def test_offsets_go_on_after_a_topic_was_emptied_by_age_and_its_leader_died(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", replicas=3, retention_ms="1s")
        leader = await cluster.leader("t", at=1)
        await cluster[leader].produce("t", 1, 2, 3)

        async def emptied() -> bool:
            return await start_of(cluster[leader]) == 3

        await until(emptied)
        await cluster[leader].abandon()
        heir = await cluster.leader("t", at=1 + leader % 3, not_=leader)
        placed = await until(lambda: cluster[heir].produce("t", 4))
        assert placed.base_offset == 3
        assert await start_of(cluster[heir]) >= 3


class Clocks:
    """A wall clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall_us = 1_700_000_000_000_000
        self.passed_s = 50.0
        self.believed = RetentionClock(lambda: self.wall_us, lambda: self.passed_s)

    def go_on(self, seconds: float) -> int:
        """What is believed after that, in seconds since the beginning."""
        self.passed_s += seconds
        self.wall_us += int(seconds * 1e6)
        return (self.believed.now_us() - 1_700_000_000_000_000) // 1_000_000


YEAR_S = 365 * 86_400


def test_a_wall_clock_that_jumps_forward_makes_nothing_old(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    assert clocks.go_on(100) == 100
    clocks.wall_us += YEAR_S * 1_000_000
    assert [clocks.go_on(2) for _ in range(3)] == [102, 104, 106]
    [said] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "set it right within 3600 s" in said.getMessage(), "told once"
    clocks.wall_us -= YEAR_S * 1_000_000
    assert [clocks.go_on(2) for _ in range(3)] == [108, 110, 112]


def test_a_wall_clock_that_stays_ahead_is_believed_in_the_end() -> None:
    """A machine may start with a clock that is years behind: retention must not be off for good."""
    clocks = Clocks()
    clocks.wall_us += YEAR_S * 1_000_000
    clocks.go_on(0)
    assert clocks.go_on(3_599) == 3_599
    assert clocks.go_on(1) == YEAR_S + 3_600
    assert clocks.go_on(1) == YEAR_S + 3_601
    clocks.wall_us += YEAR_S * 1_000_000
    assert clocks.go_on(1) == YEAR_S + 3_602, "the next jump waits anew"


def test_a_wall_clock_that_is_set_back_or_drifts_is_believed_at_once() -> None:
    clocks = Clocks()
    clocks.wall_us -= YEAR_S * 1_000_000
    assert clocks.go_on(5) == 5 - YEAR_S
    clocks.wall_us += 9_000_000
    assert clocks.go_on(0) == 14 - YEAR_S


def test_a_wall_clock_that_is_set_right_again_within_the_hour_is_believed_at_once() -> None:
    clocks = Clocks()
    clocks.wall_us -= YEAR_S * 1_000_000
    assert clocks.go_on(3_000) == 3_000 - YEAR_S
    clocks.wall_us -= YEAR_S * 1_000_000
    assert clocks.go_on(599) == 3_599 - 2 * YEAR_S
    clocks.wall_us += YEAR_S * 1_000_000
    assert clocks.go_on(0) == 3_599 - YEAR_S, "half of the way"
    clocks.wall_us += YEAR_S * 1_000_000 + retention.JUMP_US
    assert clocks.go_on(0) == 3_599 + 10, "as a clock may drift"
    clocks.wall_us -= YEAR_S * 1_000_000
    assert clocks.go_on(1) == 3_610 - YEAR_S
    clocks.wall_us += YEAR_S * 1_000_000
    assert clocks.go_on(3_000) == 6_610, "the hour begins anew when it is set back anew"


def test_while_the_wall_clock_is_ahead_time_goes_on_to_the_microsecond() -> None:
    clocks = Clocks()
    before_us = clocks.believed.now_us()
    clocks.passed_s += 1_000
    clocks.wall_us = before_us + 1_000_000_000 + retention.JUMP_US
    assert clocks.believed.now_us() == clocks.wall_us, "as far ahead as it may be"
    before_us = clocks.wall_us
    clocks.passed_s += 1_000
    clocks.wall_us = before_us + 1_000_000_000 + retention.JUMP_US + 1
    assert clocks.believed.now_us() == before_us + 1_000_000_000
