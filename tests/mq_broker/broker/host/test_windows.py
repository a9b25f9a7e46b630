"""A broker says when the UUIDs that its partitions remember take more memory than it was given, and drops none for it;
and when a partition's window of UUIDs turns over within a minute, with the clients that fill it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mq_broker.broker.config import BrokerConfig
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidSetting
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.virtual.world import in_virtual_time


@virtual_time
async def test_a_broker_beyond_its_budget_says_so_and_goes_on_recognising_every_uuid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
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


def test_a_budget_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--dedup-memory-max=0 is out of range"):
        BrokerConfig(1, "127.0.0.1:0", tmp_path, dedup_memory_max=0)


def test_noise_that_flushes_a_window_is_told_with_the_address_of_who_made_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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

    in_virtual_time(scenario())
    words = next(words for words in caplog.messages if "t-0 remembers the last 100 UUIDs" in words)
    assert "came from 'ipv4:10.0.1.1:" in words, "the address of clients on wires of tests"
    assert "dedup_uuids_max" in words
    assert "a topic of their own" in words
    assert "q 1" not in words
