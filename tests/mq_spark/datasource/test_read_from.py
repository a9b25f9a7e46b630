"""Which replica Spark's tasks read from: three real brokers in this process, without Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from mq_client.cluster.lines import FetchCall
from mq_spark.datasource.readers import BatchReader
from mq_spark.planning.options import parse_source
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import three


def rows(bootstrap: str, rack: str) -> list[int]:
    """What a batch read of topic t gives, one task after the other."""
    given = {"bootstrap.servers": bootstrap, "subscribe": "t", "readFrom": "any", "kafka.client.rack": rack}
    reader = BatchReader(parse_source(given, streaming=False), StructType().add("n", LongType()))
    return [n for part in reader.partitions() for batch in reader.read(part) for n in batch.column("n").to_pylist()]


def test_a_task_reads_from_the_replica_in_its_rack(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(address: str, *more: Any) -> Any:
        asked.append(address)
        return FetchCall(address, *more)

    monkeypatch.setattr("mq_client.reader.FetchCall", noted)

    async def scenario() -> None:
        async with three(tmp_path, zookeeper) as cluster:
            await cluster[1].create_topic("t", replicas=3)
            leader = await cluster.leader("t", at=1)
            near = 1 + leader % 3
            for n in range(3):
                await cluster[leader].produce("t", n)

            async def has_all() -> bool:
                return len(await cluster[near].fetch("t", 0, 3)) == 3

            await until(has_all)
            assert await asyncio.to_thread(rows, cluster[leader].address, f"rack-{near}") == [0, 1, 2]
            assert asked == [cluster[near].address]

    asyncio.run(scenario())
