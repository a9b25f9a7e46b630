"""Scheduled batches at real brokers: published once, when they are due, whoever leads."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from mq_broker.broker import server
from mq_broker.broker.data import scheduled
from mq_broker.broker.data.scheduled import check_schedule
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, Overloaded
from mq_protocol.limits import DELAY_MS_MAX
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, numbers_in, standalone, until
from tests.simulation.real.substitutes import EPOCH_S


async def cancel(broker: Broker, uuid: bytes) -> pb.CancelScheduledResponse:
    request = pb.CancelScheduledRequest(topic="t", uuid=uuid)
    answer: pb.CancelScheduledResponse = await broker.ask("CancelScheduled", request)
    return answer


async def waiting(broker: Broker) -> pb.PartitionOffsets:
    offsets: pb.PartitionOffsets = (await broker.ask("ListOffsets", pb.ListOffsetsRequest(topic="t"))).partitions[0]
    return offsets


@virtual_time
async def test_a_scheduled_batch_is_published_when_it_is_due_and_one_that_is_cancelled_is_not(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t", scheduled_max="3")
        now_us = round((EPOCH_S + asyncio.get_running_loop().time()) * 1e6)
        due_us, gone, kept = now_us + 3_500_000, os.urandom(16), os.urandom(16)
        assert (await broker.produce("t", 2, due_us=due_us + 1, uuid=kept)).base_offset == -1
        assert (await broker.produce("t", 1, due_us=due_us)).base_offset == -1
        assert (await broker.produce("t", 9, delay_ms=60_000, uuid=gone)).base_offset == -1
        assert (await broker.produce("t", 0)).base_offset == 0
        with pytest.raises(Overloaded, match="raise the topic's scheduled_max"):
            await broker.produce("t", 8, delay_ms=1_000)
        again = await broker.produce("t", 2, due_us=due_us + 1, uuid=kept)
        assert (again.base_offset, again.duplicate) == (-1, True)
        told = await waiting(broker)
        assert (told.scheduled, told.next_due_us, told.log_end_offset) == (3, due_us, 1)
        assert (await cancel(broker, gone)).cancelled
        assert (await cancel(broker, gone)).cancelled, "asked again, the same answer"
        assert await cancel(broker, os.urandom(16)) == pb.CancelScheduledResponse()

        async def all_there() -> bool:
            return await broker.end("t") == 3

        await until(all_there)
        assert (EPOCH_S + asyncio.get_running_loop().time()) * 1e6 >= due_us
        assert await broker.numbers("t") == [0, 1, 2]
        assert await cancel(broker, kept) == pb.CancelScheduledResponse(published=True, offset=2)
        assert (await waiting(broker)).scheduled == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"due_us": 5, "delay_ms": 5}, "not both"),
        ({"due_us": -5}, "above 0"),
        ({"delay_ms": -5}, "above 0"),
        ({"delay_ms": DELAY_MS_MAX + 1}, "a year"),
        ({"due_us": (DELAY_MS_MAX + 10) * 1000}, "a year"),
        ({"delay_ms": 5, "stage": pb.StageOf(run_id="r")}, "no transaction"),
        ({"delay_ms": 5, "record_uuids": bytes(16)}, "no UUIDs of its records"),
    ],
)
def test_a_time_that_a_batch_cannot_have_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_schedule(pb.ProduceHeader(**fields), 5_000)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what holds the journal back


class Clock:
    """The time that the broker believes, which can be moved on."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us


WEEK_US = 7 * 86_400 * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Brokers have this clock, and carry what holds a few entries back."""
    clock = Clock()
    monkeypatch.setattr(server, "RetentionClock", lambda: clock)
    monkeypatch.setattr(scheduled, "CARRY_ENTRIES", 4)
    return clock


def files_of(data: Path) -> list[int]:
    """The first entry of each file of the journal."""
    return sorted(int(path.stem) for path in (data / "partitions").glob("*-0/*.log"))


async def let_the_journal_go_on(broker: Broker, data: Path) -> bytes:
    """A record is scheduled for next week, and much is written, dropped and gone from the disk behind it. Returns its
    UUID."""
    await broker.create_topic("t", segment_bytes_max="65536", retention_bytes="100000")
    uuid = os.urandom(16)
    await broker.produce("t", 77, delay_ms=WEEK_US // 1000, uuid=uuid)
    for _ in range(12):
        await broker.produce("t", *range(2_000))

    async def shortened() -> bool:
        """Of the twelve batches each took a file of its own, or nearly. They go in more than one turn."""
        files = files_of(data)
        return files[0] > 4 and len(files) < 8

    await until(shortened)
    assert (await waiting(broker)).scheduled == 1
    return uuid


async def is_published(broker: Broker) -> bool:
    return not (await waiting(broker)).scheduled


@virtual_time
async def test_a_record_for_next_week_does_not_hold_the_journal_and_comes_once_when_it_is_due(
    tmp_path: Path, clock: Clock
) -> None:
    async with standalone(tmp_path) as broker:
        uuid = await let_the_journal_go_on(broker, tmp_path)
        await broker.stop()
        await broker.start()
        end = await until(lambda: broker.end("t"))
        assert (await waiting(broker)).scheduled == 1
        clock.ahead_us = WEEK_US
        await until(lambda: is_published(broker))
        again = await broker.produce("t", 77, delay_ms=WEEK_US // 1000, uuid=uuid)
        assert (again.duplicate, again.base_offset, await broker.end("t")) == (True, end, end + 1)
        [(_, payload)] = await broker.fetch("t", end, end + 1)
        assert numbers_in(payload) == [77]
