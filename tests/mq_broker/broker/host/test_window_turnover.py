"""A broker says when a partition's window of UUIDs turns over within a minute, and names the clients that fill it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import standalone, until
from tests.virtual.world import in_virtual_time


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
    assert "came from 'clients' (" in words, "as addresses are called on wires of tests"
    assert "dedup_uuids_max" in words
    assert "a topic of their own" in words
    assert "q 1" not in words
