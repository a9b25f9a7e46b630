"""Members of a queue group, spoken by hand to a broker in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import Broker, standalone


class Member:
    """A member of group `g` of topic `t`, spoken by hand."""

    def __init__(self, broker: Broker, name: str = "a") -> None:
        self.broker = broker
        self.name = name

    async def lease(self, records_max: int = 10, wait_ms: int = 10_000, **fields: Any) -> pb.LeaseResponse:
        fields = {"member": self.name, "member_key": b"k" * 16, **fields}
        request = pb.LeaseRequest(topic="t", group="g", records_max=records_max, wait_ms=wait_ms, **fields)
        response: pb.LeaseResponse = await self.broker.ask("Lease", request)
        return response

    async def settle(self, *settles: pb.SettleOne, **fields: Any) -> list[pb.SettleAnswer]:
        request = pb.SettleRequest(topic="t", group="g", member=self.name, settles=settles, **fields)
        return list((await self.broker.ask("Settle", request)).answers)

    async def ack(self, lease: pb.LeaseId, *gaps: int) -> None:
        [answer] = await self.settle(pb.SettleOne(lease=lease, ranges=gaps))
        assert answer == pb.SettleAnswer(), answer


@asynccontextmanager
async def queue(data: Path, records: int = 10, **settings: str) -> AsyncIterator[Broker]:
    """A broker with topic `t`, which has so many records and the queue group `g`."""
    async with standalone(data) as broker:
        await broker.create_topic("t")
        await broker.ask("AlterQueue", pb.AlterQueueRequest(topic="t", group="g", settings=settings))
        if records:
            await broker.produce("t", *range(records))
        yield broker


def ranges(response: pb.LeaseResponse) -> Sequence[int]:
    return list(response.ranges)


def partition_of(shells: list[Shell], topic: str = "t") -> Partition:
    """The replica of the topic in the broker that was started last."""
    [found] = [each for each in shells[-1].partitions() if each.topic.spec.name == topic]
    return found


def of(condition: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    """To be waited for."""

    async def ask() -> Any:
        return condition()

    return ask
