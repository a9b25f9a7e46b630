"""Purge at the brokers: what is dropped stays dropped, whoever leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotLeader, OffsetOutOfRange
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.test_three_brokers import three


async def purge(broker: Broker, topic: str, offset: int) -> pb.PartitionOffsets:
    request = pb.PurgeRequest(positions=[pb.CursorPosition(topic=topic, partition=0, offset=offset)])
    answer: pb.PartitionOffsets = (await broker.ask("Purge", request)).partitions[0]
    if answer.HasField("error"):
        raise from_wire(answer.error)
    return answer


@virtual_time
async def test_what_was_purged_stays_so_under_the_next_leader(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", replicas=3)
        former = await cluster.leader("t", at=1)
        for n in range(4):
            await cluster[former].produce("t", n)
        with pytest.raises(NotLeader):
            await purge(cluster[1 + former % 3], "t", 3)
        assert (await purge(cluster[former], "t", 3)).log_start_offset == 3
        await cluster[former].abandon()
        leader = await cluster.leader("t", at=1 + former % 3, not_=former)
        await until(lambda: cluster[leader].end("t"))
        offsets = (await cluster[leader].ask("ListOffsets", pb.ListOffsetsRequest(topic="t"))).partitions[0]
        assert (offsets.log_start_offset, offsets.log_end_offset) == (3, 4)
        with pytest.raises(OffsetOutOfRange) as gone:
            await cluster[leader].fetch("t", 0, 4)
        assert gone.value.next_offset == 3


@virtual_time
async def test_only_users_topics_are_purged_and_from_an_offset_that_can_be(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.metadata(TRANSACTIONS_TOPIC)
        with pytest.raises(InvalidRequest, match="from 0 on"):
            await purge(broker, "t", -1)
        with pytest.raises(InvalidRequest, match="the brokers' own"):
            await purge(broker, TRANSACTIONS_TOPIC, 0)
        assert (await purge(broker, "t", 1 << 60)).log_start_offset == 0
        places = [pb.CursorPosition(topic="t", partition=number, offset=0) for number in range(2)]
        first, missing = (await broker.ask("Purge", pb.PurgeRequest(positions=places))).partitions
        assert not first.HasField("error"), "nothing is below the first offset, which may be named all the same"
        assert (missing.partition, missing.HasField("error")) == (1, True)
