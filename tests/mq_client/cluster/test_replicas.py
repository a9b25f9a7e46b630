"""Reads from any replica, near ones first, and reads that go on while nobody leads: three real brokers in this
process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mq_client import Admin, PartitionUnavailable, Reader, Unreachable
from mq_client.cluster.lines import FetchCall
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import Three, three


def read(reader: Reader, *asked: Any, **more: Any) -> list[int]:
    return [n for batch in reader.read("t", 0, *asked, **more) for n in batch.column("n").to_pylist()]


async def fill(cluster: Three, replicas: int, count: int) -> tuple[int, list[int]]:
    """Topic t with the rows 0 .. count - 1: its leader and its followers, each of which knows all of it to be
    committed."""
    info = await cluster[1].create_topic("t", replicas=replicas)
    leader = await cluster.leader("t", at=1)
    followers = [broker for broker in info.partitions[0].replicas if broker != leader]
    for n in range(count):
        await cluster[leader].produce("t", n)
    for follower in followers:

        async def has_all(follower: int = follower) -> bool:
            return len(await cluster[follower].fetch("t", 0, count)) == count

        await until(has_all)
    return leader, followers


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of which something was fetched, in order."""
    addresses: list[str] = []

    def noted(address: str, *asked: Any) -> Any:
        addresses.append(address)
        return FetchCall(address, *asked)

    monkeypatch.setattr("mq_client.reader.FetchCall", noted)
    return addresses


def test_a_read_from_any_replica_goes_to_the_one_in_the_reader_s_rack(
    zookeeper: str, tmp_path: Path, fetched: list[str]
) -> None:
    async def scenario() -> None:
        async with three(tmp_path, zookeeper) as cluster:
            leader, followers = await fill(cluster, replicas=3, count=3)
            bootstrap = cluster[leader].address
            for near in followers:
                reader = Reader(bootstrap, read_from="any", rack=f"rack-{near}")
                assert await asyncio.to_thread(read, reader, 0, 3) == [0, 1, 2]
                assert fetched == [cluster[near].address]
                fetched.clear()
            assert await asyncio.to_thread(read, Reader(bootstrap), 0, 3) == [0, 1, 2]
            assert fetched == [cluster[leader].address]

    asyncio.run(scenario())


def test_what_the_nearest_replica_lacks_is_read_from_another(
    zookeeper: str, tmp_path: Path, fetched: list[str]
) -> None:
    async def scenario() -> None:
        async with three(tmp_path, zookeeper) as cluster:
            leader, (near, other) = await fill(cluster, replicas=3, count=3)
            await cluster[near].abandon()
            reader = Reader(cluster[leader].address, read_from="any", rack=f"rack-{near}")
            await asyncio.to_thread(reader.offsets, "t")  # it knows the cluster as it was, or as it is
            await cluster[leader].produce("t", 3)
            assert await asyncio.to_thread(read, reader, 0, 4) == [0, 1, 2, 3]
            assert fetched[-1] in {cluster[leader].address, cluster[other].address}

    asyncio.run(scenario())


def test_reads_go_on_while_the_partition_has_fewer_replicas_than_a_leader_needs(zookeeper: str, tmp_path: Path) -> None:
    """Two replicas, both needed, and the leader dies: nothing can be written, and what is committed is still read."""

    async def scenario() -> None:
        async with three(tmp_path, zookeeper) as cluster:
            leader, (follower,) = await fill(cluster, replicas=2, count=5)
            bystander = next(broker for broker in (1, 2, 3) if broker not in (leader, follower))
            await cluster[leader].abandon()
            bootstrap = cluster[bystander].address
            for read_from in ("leader", "any"):
                reader = Reader(bootstrap, timeout_ms=15_000, read_from=read_from)
                assert await asyncio.to_thread(read, reader, 0, 5) == [0, 1, 2, 3, 4]
            assert await asyncio.to_thread(read, reader) == [0, 1, 2, 3, 4]
            assert await asyncio.to_thread(Admin(bootstrap, timeout_ms=15_000).offsets, "t") == {0: (0, 5)}

            async def says_what_is_missing() -> bool:
                with pytest.raises((PartitionUnavailable, Unreachable)) as late:
                    await asyncio.to_thread(read, Reader(bootstrap, timeout_ms=4_000), 0, 6)
                return "no replica gave offset 5" in str(late.value)

            await until(says_what_is_missing)

            # A replica that has restarted since knows of nothing that it is committed: it says so, and not that the log
            # is empty.
            await cluster[follower].stop()
            await cluster[follower].start()
            await until(lambda: cluster[bystander].metadata("t"))
            with pytest.raises((PartitionUnavailable, Unreachable)):  # by what it waited for when its time was over
                await asyncio.to_thread(Admin(bootstrap, timeout_ms=4_000).offsets, "t")

    asyncio.run(scenario())
