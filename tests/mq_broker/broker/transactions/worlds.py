"""A small cluster as a coordinator of transactions sees it. Each partition notes what it is asked, and answers as it is
told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from mq_broker.broker.metadata.topics import Topic
from mq_broker.broker.transactions.coordinator import Transactions
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import Decide, TransactionKey
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import StagedBatch, TransactionState
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import Done
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import CoordinationUnavailable, NotLeader, TritonMQError, UnknownTopic
from mq_protocol.manifest import StagedPart
from mq_protocol.names import TRANSACTIONS_TOPIC
from mq_protocol.partitioner import coordinator_partition

KEY = TransactionKey("query", "t")
OTHER = TransactionKey("other", "t")


def uuid(number: int) -> bytes:
    return b"batch %10d" % number


def line(partition: int, *numbers: int, topic: str = "t", topic_id: str = "") -> StagedPart:
    return StagedPart(topic, partition, tuple(map(uuid, numbers)), len(numbers), topic_id)


def decision(batch_id: int, *lines: StagedPart, key: TransactionKey = KEY) -> Decide:
    return Decide(key, batch_id, "run", sum(each.row_count for each in lines), lines)


def known(batch_id: int, *lines: StagedPart, finished: bool = True, **fields: Any) -> TransactionState:
    return TransactionState(batch_id, "run", len(lines), lines, finished, (), **fields)


def staged(
    number: int, batch_id: int, key: TransactionKey = KEY, *, index: int = 0, timestamp_us: int = 0, due_us: int = 0
) -> StagedBatch:
    return StagedBatch(uuid(number), key, batch_id, "run", 1, index or number, timestamp_us, 10, 10, due_us=due_us)


@dataclass
class Replica:
    machine: PartitionMachine
    leading: bool = True


class Part:
    """A partition. `refuse` are errors for the next questions, in this order."""

    def __init__(self, topic: str, number: int) -> None:
        self.name, self.number = f"{topic}-{number}", number
        self.topic = Topic.of(TopicSpec(topic, f"id-of-{topic}", ((1,),) * 4))
        self.serving, self.closed, self.next_offset = True, False, 7
        self.machine: Any = PartitionMachine(WindowBounds(1_000))
        self.replica = Replica(self.machine)
        self.asked: list[Any] = []
        self.deadlines: list[float] = []
        self.refuse: list[TritonMQError] = []
        self.answer: Any = Done(1)

    async def ask(self, operation: Any, deadline: float, **_fields: Any) -> Any:
        self.asked.append(operation)
        self.deadlines.append(deadline)
        if self.refuse:
            raise self.refuse.pop(0)
        return self.answer

    def stage(self, *batches: StagedBatch) -> None:
        self.machine.staged.update({batch.uuid: batch for batch in batches})

    def of(self, kind: type) -> list[Any]:
        """What it was asked of that kind."""
        return [operation for operation in self.asked if isinstance(operation, kind)]


class World:
    """Broker 1. It leads all partitions of `t` and of the coordinators' topic, unless it is said that another broker
    does."""

    def __init__(self) -> None:
        self.broker = 1
        self.brokers = {1: None, 2: None}
        self.on_decision: list[Callable[[Any, Decide], None]] = []
        self.on_role: list[Callable[[Any], None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.parts = {(topic, n): Part(topic, n) for topic in ("t", TRANSACTIONS_TOPIC) for n in range(4)}
        self.elsewhere: dict[tuple[str, int], int] = {}
        self.missing: set[str] = set()
        self.gone: set[str] = set()
        self.away = False
        self.calls: list[tuple[str, str, Any]] = []
        self.call_deadlines: list[float] = []
        self.answers: dict[str, Any] = {}
        world: Any = self
        self.transactions = Transactions(world, world, world, world, world)

    @property
    def coordinator(self) -> Part:
        """The partition in which the key's decisions are."""
        return self.parts[TRANSACTIONS_TOPIC, coordinator_partition(KEY.query_id, KEY.sink, 4)]

    def decides(self, decide: Decide) -> None:
        for listener in self.on_decision:
            listener(self.coordinator, decide)

    def loses(self, part: Part) -> None:
        part.replica.leading = part.serving = False
        for listener in self.on_role:
            listener(part)

    async def until_published(self, decide: Decide, seconds: float = 3_600.0) -> None:
        part: Any = self.coordinator
        deadline = asyncio.get_running_loop().time() + seconds
        await self.transactions.wait_until_published(part, decide, deadline)

    # ---- the shell

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    def partitions(self) -> list[Any]:
        return list(self.parts.values())

    def hosted(self, topic: Any, number: int) -> Any:
        place = topic.spec.name, number
        return self.parts.get(place) if place not in self.elsewhere else None

    def leader(self, topic: Any, number: int) -> Any:
        place = topic.spec.name, number
        if place in self.elsewhere:
            raise NotLeader("not here", 0)
        return self.parts[place]

    # ---- the topics

    def find(self, name: str) -> Any:
        return None if name in self.missing or name not in ("t", TRANSACTIONS_TOPIC) else self.parts[name, 0].topic

    async def get(self, name: str) -> Any:
        topic = self.find(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    async def exists(self, name: str, _number: int, topic_id: str) -> bool:
        if self.away:
            raise CoordinationUnavailable("away")
        return name not in self.gone and topic_id in ("", f"id-of-{name}")

    # ---- the administration, the cluster and calls to other brokers

    async def transactions_topic(self, _deadline: float) -> Any:
        return await self.get(TRANSACTIONS_TOPIC)

    async def partition_info(self, topic: Any, number: int) -> pb.PartitionInfo:
        return pb.PartitionInfo(partition=number, leader=self.elsewhere.get((topic.spec.name, number), 1))

    def peer_address(self, broker: int) -> str | None:
        return f"broker-{broker}" if broker in self.brokers else None

    async def ask(self, address: str, method: str, request: Any, response: Any, deadline: float) -> Any:
        self.calls.append((address, method, request))
        self.call_deadlines.append(deadline)
        answer = self.answers.get(method, response())
        if isinstance(answer, list):  # one after the other, and the last of them for ever
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, TritonMQError):
            raise answer
        return answer


@contextlib.asynccontextmanager
async def played() -> AsyncIterator[World]:
    world = World()
    try:
        async with asyncio.timeout(86_400):
            yield world
    finally:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)


async def rounds(count: int = 30) -> None:
    """All that is due in so many seconds has been done."""
    await asyncio.sleep(count)


def within(deadlines: list[float], seconds: float) -> bool:
    """Whether all are in the future, and no further than that."""
    now = asyncio.get_running_loop().time()
    return bool(deadlines) and all(now < deadline <= now + seconds for deadline in deadlines)
