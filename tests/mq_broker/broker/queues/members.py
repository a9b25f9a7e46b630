"""Members of a queue group, spoken by hand to a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import Broker, standalone
from tests.mq_broker.broker.queues.spoken import KEY, speaking

AGAIN_S = 0.05


class Member:
    """A member of group `g` of topic `t`, which has a session for as long as one question takes. What it has outlives
    its sessions."""

    def __init__(self, broker: Broker, name: str = "a") -> None:
        self.broker = broker
        self.name = name

    async def lease(
        self, records_max: int = 10, wait_ms: int = 10_000, *, held: Iterable[pb.LeaseId] = (), **fields: Any
    ) -> pb.LeaseResponse:
        """Up to so many, once some are ready; what the member has and does not name goes back. `fields`: of how the
        session is opened, and of its terms."""
        until = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            async with speaking(self.broker) as stream:
                await stream.say(self._open(**fields))
                credit = pb.WorkCredit(records=records_max, once=True)
                await stream.say(pb.SessionRequest(session=1, check=held, credit=credit))
                lent = pb.LeaseResponse()
                said = pb.SessionResponse()
                while not said.HasField("credit"):
                    said = await stream.hear(lambda said: said.HasField("lease") or said.HasField("credit"))
                    lent = said.lease if said.HasField("lease") else lent
            if lent.HasField("lease") or asyncio.get_running_loop().time() >= until:
                return lent
            await asyncio.sleep(AGAIN_S)

    async def settle(self, *settles: pb.SettleOne, **fields: Any) -> list[pb.SettleAnswer]:
        """What became of each. Acks with outputs are said one after the other."""
        alone = sum(bool(each.outputs) for each in settles) > 1
        async with speaking(self.broker) as stream:
            await stream.say(self._open(**fields))
            answers: dict[int, pb.SettleAnswer] = {}
            for said in [[each] for each in settles] if alone else [settles]:
                waits = len(answers) + len(said)
                await stream.settle(*said)
                while len(answers) < waits:
                    told = await stream.hear(lambda said: said.answers)
                    answers |= {each.number: each.answer for each in told.answers}
        return [answers[number] for number in sorted(answers)]

    def _open(
        self,
        *,
        partition: int = 0,
        topic_id: str = "",
        member: str | None = None,
        member_key: bytes = KEY,
        **terms: Any,
    ) -> pb.SessionRequest:
        opened = pb.WorkOpen(
            topic="t",
            partition=partition,
            group="g",
            topic_id=topic_id,
            member=self.name if member is None else member,
            member_key=member_key,
            lasting=True,
        )
        return pb.SessionRequest(session=1, open=opened, terms=pb.WorkTerms(**terms))

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
