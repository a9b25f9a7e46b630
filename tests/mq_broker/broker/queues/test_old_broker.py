"""A broker of an older release in the cluster: queue groups are refused with its name, and streams go on. After its
upgrade queue groups work, and no other broker was started anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.broker.ports import Ports
from mq_broker.coordination import zookeeper_identity as coordination
from mq_broker.coordination.interface import BrokerRegistration
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import IncompatibleVersion
from mq_protocol.versions import Versions
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.queues.members import Member
from tests.mq_broker.broker.test_three_brokers import three

OLD = 2
REFUSED = (
    r"level 2 .* level 1: upgrade broker 2 \(release 0\.2\.0 or older, protocol 1\), then run `tritonmq cluster upgr"
)


class Releases:
    """What brokers register. `old`: whether broker 2 says what one of 0.2.0 says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.old = True
        monkeypatch.setattr(coordination, "LEVEL", 1)
        registration = Ports.registration

        def registered(ports: Ports, incarnation: int) -> BrokerRegistration:
            ours = registration(ports, incarnation)
            return replace(ours, versions=Versions()) if self.old and ours.broker == OLD else ours

        monkeypatch.setattr(Ports, "registration", registered)


async def declared(broker: Broker) -> bool:
    return bool((await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g"))).queue.group)


def test_an_old_broker_keeps_queues_away_and_its_upgrade_brings_them_without_a_restart_of_others(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = Releases(monkeypatch)

    async def scenario() -> None:
        # No session may be lost to another process that keeps the machine busy: the stream is to go on at one leader
        async with three(zookeeper, tmp_path, session_timeout_ms=30_000) as cluster:
            await cluster[1].create_topic("t", replicas=3)
            leader = await cluster.leader("t", at=1)
            if leader == OLD:
                await cluster[OLD].ask("Lead", pb.LeadRequest(topic="t", partition=0, broker=1))
                leader = await cluster.leader("t", at=1, not_=OLD)
            for number in (1, 3):
                with pytest.raises(IncompatibleVersion, match=REFUSED):
                    await declared(cluster[number])
            with pytest.raises(IncompatibleVersion, match=REFUSED):
                await Member(cluster[leader]).lease()
            assert (await cluster[1].ask("Upgrade", pb.UpgradeRequest())).level == 1, "the old one keeps it there"

            async with cluster[leader].subscribing() as stream:
                await stream.open("t", group="readers", member="m", earliest=True)
                await cluster[leader].produce("t", 1)
                assert await stream.read_numbers(1) == [1]
                await cluster[OLD].stop()
                releases.old = False
                await cluster[OLD].start()

                async def raised() -> bool:
                    return int((await cluster[1].ask("Upgrade", pb.UpgradeRequest())).level) == 2

                await until(raised)
                await until(lambda: declared(cluster[3]))
                member = Member(cluster[leader])
                lent = await until(lambda: lease_of(member))
                await member.ack(lent.lease, *lent.ranges)
                await cluster[leader].produce("t", 2)
                assert await stream.read_numbers(2) == [1, 2], "it was never interrupted"

    asyncio.run(scenario())


async def lease_of(member: Member) -> pb.LeaseResponse | None:
    lent = await member.lease(wait_ms=500)
    return lent if lent.HasField("lease") else None
