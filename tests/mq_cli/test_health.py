"""Health as a probe asks for it: `tritonmq health`, `cluster wait` and `cluster status --check`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mq_cli.machines.health import health
from mq_cli.managing.cluster import ClusterSummary, cluster
from mq_client import BrokerDescription, ClusterDescription, PartitionDescription, TopicDescription
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.arrow import RECORD_SCHEMA
from tests.mq_broker.broker.cluster import standalone
from tests.mq_cli.processes import Command


async def command(group: object, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, group, list(words), standalone_mode=False)  # type: ignore[arg-type]


def test_a_broker_that_stands_alone_lives_is_ready_and_is_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            for words in ((), ("--ready", "--wait", "10")):
                asked = await command(health, broker.address, *words)
                assert asked.return_value == 0, asked.output
            waited = await command(cluster, "wait", "--in-sync", "--bootstrap", broker.address, "--for", "10")
            assert waited.return_value == 0, waited.output
            few = await command(cluster, "wait", "--brokers", "2", "--bootstrap", broker.address, "--for", "0")
            assert few.return_value == 1
            assert "1 of 2 brokers live" in few.output
            checked = await command(cluster, "status", "--check", "--bootstrap", broker.address)
            assert checked.return_value == 0, checked.output
        gone = await command(health, broker.address)
        assert gone.return_value == 1
        unknown = await command(health, "no address")
        assert unknown.exception is not None

    asyncio.run(scenario())


def test_what_is_wrong_with_a_cluster_is_said() -> None:
    def summary(coordination: str = "connected", **partition: object) -> ClusterSummary:
        live = (BrokerDescription(1, "b:1", 1, "", "0.3.0", 2), BrokerDescription(2, "b:2", 1, "", "0.3.0", 2))
        fields = {"partition": 0, "leader": 1, "leader_epoch": 4, "replicas": (1, 2), "isr": (1, 2), **partition}
        topic = TopicDescription("t", "id", RECORD_SCHEMA, False, {}, (PartitionDescription(**fields),))  # type: ignore[arg-type]
        return ClusterSummary(ClusterDescription(live, coordination, 1, 2), [topic])

    assert summary().wrong(()) == []
    assert summary().wrong(("b:2",)) == ["the broker at b:2 does not answer"]
    assert summary(replicas=(1, 3)).wrong(()) == [
        "broker 3 is absent, and holds 1 replica",
        "1 partition not fully in sync",
    ]
    assert summary(leader=0).wrong(()) == ["1 partition without a leader", "1 partition not fully in sync"]
    assert summary("suspended").wrong(()) == ["the broker that answered has no session with ZooKeeper"]


@pytest.mark.cluster
def test_what_a_cluster_is_waited_for_is_said_meanwhile() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Command("cluster", "wait", "--bootstrap", address) as waiting:
        assert f"no broker listens at {address}" in waiting.remark_with("waiting: ")
        assert waiting.process.poll() is None
    with Command("health", address, "--wait", "600") as waiting:
        assert address in waiting.remark_with("waiting: ")
        assert waiting.process.poll() is None
