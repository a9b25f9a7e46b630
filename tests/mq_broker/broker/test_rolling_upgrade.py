"""A cluster goes to a next release, back, and there again, one broker at a time, until its level is raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.core import entries
from mq_broker.core.entries import DeleteGroup
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion
from mq_protocol.versions import LEVEL
from mq_protocol.wire.error_messages import from_wire
from tests.mq_broker.broker.cluster import until
from tests.mq_broker.broker.test_three_brokers import Three, three
from tests.mq_broker.releases import NEXT, knowing
from tests.virtual.world import in_virtual_time


async def start(cluster: Three, broker: int, level: int) -> None:
    """One that was stopped, of the release that knows this level."""
    with knowing(level):
        await cluster[broker].start()
    await cluster[broker].until_ready()


async def delete(cluster: Three, at: int) -> Exception | None:
    """An entry of the next release's level is written, or why it is not."""
    leader = await cluster.leader("t", at=at)
    request = pb.DeleteGroupRequest(group="g", partitions=[pb.TopicPartition(topic="t")])
    [answer] = (await cluster[leader].ask("DeleteGroup", request)).partitions
    return from_wire(answer.error) if answer.HasField("error") else None


async def upgrade(cluster: Three, at: int) -> tuple[int, int]:
    """The level now, and that which every broker knows."""
    answer = await cluster[at].ask("Upgrade", pb.UpgradeRequest())
    return answer.level, answer.target


def test_a_cluster_is_rolled_to_the_next_release_and_back_and_its_level_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(entries.LEVELS, DeleteGroup, NEXT)

    async def scenario() -> None:
        async with three(tmp_path) as cluster:
            await cluster[1].create_topic("t", replicas=3)
            written: list[int] = []
            for broker, level in ((1, NEXT), (2, NEXT), (2, LEVEL), (3, NEXT), (2, NEXT)):
                other = 1 + broker % 3
                await cluster[broker].stop()
                await start(cluster, broker, level)
                leader = await cluster.leader("t", at=other)
                await cluster.in_sync("t", [1, 2, 3], at=leader)
                written.append(10 * len(written) + broker)
                await cluster[leader].produce("t", written[-1])
                assert isinstance(await delete(cluster, other), IncompatibleVersion)
                if len(written) < 5:
                    assert await upgrade(cluster, other) == (LEVEL, LEVEL), "one of them does not know the next one"
            assert await upgrade(cluster, 1) == (NEXT, NEXT)
            await until(lambda: _is_written(cluster))
            await cluster[3].stop()
            with pytest.raises(IncompatibleVersion, match=f"knows up to {LEVEL}"):
                await start(cluster, 3, LEVEL)
            await start(cluster, 3, NEXT)
            leader = await cluster.leader("t", at=1)
            await cluster.in_sync("t", [1, 2, 3], at=leader)
            assert await cluster[leader].numbers("t") == written

    in_virtual_time(scenario())


async def _is_written(cluster: Three) -> bool:
    """Once its leader has heard of the level."""
    return await delete(cluster, 1) is None
