"""What a broker tells of topics and partitions: whom it names as leader, how old its word may be, and how much one
answer holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import BrokerRegistration, Move, TopicSpec
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import RECORD_SCHEMA, schema_to_bytes
from mq_protocol.errors import (
    CoordinationUnavailable,
    OutcomeUnknown,
    UnknownTopic,
    Unreachable,
)
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import standalone

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def node(leader: int | None = 2, epoch: int = 5, incarnation: int = 1) -> NodeState:
    name = LeaderName(leader, incarnation) if leader else None
    return NodeState(name, epoch, ((2, "log"), (3, "log")), 0, "")


@dataclass
class Replica:
    """Of one partition at this broker: as the partition shows it, and as its core does."""

    leader: int
    serving: bool
    isr: tuple[int, ...]
    leader_epoch: int = 9
    unheard_ms: dict[int, int] = field(default_factory=dict)

    @property
    def leading(self) -> bool:
        return self.leader == 1

    @property
    def replica(self) -> Replica:
        return self


class World:
    """Broker 1 of brokers 1, 2 and 3. It holds only the replicas that the test gives it; nodes say what the test
    says."""

    def __init__(self) -> None:
        self.broker, self.level = 1, 1
        self.condition = "connected"
        self.brokers = {each: BrokerRegistration(each, 1, f"b{each}:1") for each in (1, 2, 3)}
        self.known: dict[str, Topic] = {}
        self.place("t", (2, 3), (2, 3))
        self.replicas: dict[int, Replica] = {}
        self.nodes: dict[int, NodeState | CoordinationUnavailable] = {}
        self.reads: list[int] = []
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        world: Any = self
        self.admin = Admin(world, world, world, world, world)

    def place(
        self, name: str, *assignment: tuple[int, ...], schema: bytes = b"", to: tuple[int, ...] | None = None
    ) -> None:
        """The topic, with these brokers for each partition. `to`: where partition 0 moves."""
        moving = {} if to is None else {0: Move(to, assignment[0])}
        self.known[name] = Topic.of(TopicSpec(name, f"id-{name}", assignment, schema, moving=moving))

    def holds(self, number: int = 0, *, leader: int = 1, serving: bool = True, isr: tuple[int, ...] = (1, 2)) -> None:
        self.replicas[number] = Replica(leader, serving, isr)

    def hosted(self, _topic: object, number: int) -> Any:
        return self.replicas.get(number)

    def is_live(self, broker: int, incarnation: int) -> bool:
        return broker in self.brokers and incarnation == 1

    def peer_address(self, broker: int) -> str | None:
        return f"broker-{broker}" if broker in self.brokers else None

    async def ask(self, address: str, _method: str, _request: object, _response: object, _deadline: float) -> Any:
        self.asked.append(address)
        answer = self.answers.get(address, pb.MetadataResponse())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read_state(self, _topic_id: str, number: int) -> tuple[int, NodeState] | None:
        self.reads.append(number)
        found = self.nodes.get(number)
        if isinstance(found, CoordinationUnavailable):
            raise found
        return (1, found) if found is not None else None

    def all(self) -> list[Topic]:
        return [self.known[name] for name in sorted(self.known)]

    def find(self, name: str) -> Topic | None:
        return self.known.get(name)

    async def refresh(self) -> None:
        """What the test says is all that there is."""

    async def get(self, name: str) -> Topic:
        if name not in self.known:
            raise UnknownTopic("none")
        return self.known[name]

    async def info(self, number: int = 0) -> pb.PartitionInfo:
        """As it is told two seconds later."""
        await asyncio.sleep(2)
        return await self.admin.partition_info(self.known["t"], number)


@pytest.fixture
def world() -> World:
    return World()


@virtual_time
async def test_a_leader_that_is_here_is_named_once_it_serves_and_another_while_it_lives(world: World) -> None:
    world.place("t", (1, 2, 3))
    world.holds(leader=1)
    told = await world.info()
    assert (told.leader, told.leader_epoch, list(told.replicas), list(told.isr)) == (1, 9, [1, 2, 3], [1, 2])
    world.holds(leader=1, serving=False)
    assert (await world.info()).leader == 0
    world.holds(leader=2, serving=False)
    assert (await world.info()).leader == 2
    assert world.reads == []
    del world.brokers[2]
    world.nodes[0] = node(3)
    assert (await world.info()).leader == 3, "what its own replica knows is no help: the node may know more"
    assert world.reads == [0]
    world.broker = 3
    world.nodes[0] = node(None)
    assert (await world.info()).leader == 0, "nobody is named in the place of one that is gone"


@virtual_time
async def test_of_a_partition_that_is_not_here_the_node_is_told_unless_it_names_nobody_who_lives_or_this_broker(
    world: World,
) -> None:
    for state, leader in ((node(2), 2), (node(None), 0), (node(2, incarnation=7), 0), (node(9), 0), (node(1), 0)):
        world.nodes[0] = state
        told = await world.info()
        assert (told.leader, told.leader_epoch, list(told.isr)) == (leader, 5, [2, 3])
    del world.nodes[0]
    told = await world.info()
    assert (told.leader, list(told.replicas), list(told.isr)) == (0, [2, 3], [])
    world.place("t", (1, 2))
    world.nodes[0] = node(1)
    assert (await world.info()).leader == 0, "it has not taken up what the node says that it leads"


@virtual_time
async def test_who_led_before_a_move_and_has_no_replica_any_more_is_not_named(world: World) -> None:
    world.nodes[0] = node(2)
    assert (await world.info()).leader == 2
    world.place("t", (3, 1))
    told = await world.admin.partition_info(world.known["t"], 0)
    assert (told.leader, len(world.reads)) == (0, 1), "what was read of the node a moment ago is older than the move"
    world.place("t", (2, 3))
    world.holds(leader=2, serving=False)
    assert (await world.info()).leader == 2
    world.place("t", (3, 1))
    assert (await world.info()).leader == 0, "its own replica has not heard of the next leader"


@virtual_time
async def test_where_a_partition_moves_is_told_whoever_tells_it(world: World) -> None:
    world.place("t", (2, 3), (2, 3), to=(3, 1))
    assert list((await world.info()).moving_to) == [3, 1]
    world.nodes[0] = world.nodes[1] = node()
    assert list((await world.info()).moving_to) == [3, 1]
    assert list((await world.info(1)).moving_to) == []
    world.holds(leader=2, serving=False)
    assert list((await world.info()).moving_to) == [3, 1]


@virtual_time
async def test_a_node_is_read_once_in_a_while_and_what_was_read_serves_while_nobody_answers(world: World) -> None:
    async def epochs(after_s: float = 2, number: int = 0) -> int | None:
        await asyncio.sleep(after_s)
        found = await world.admin.state(world.known["t"], number)
        return found.leader_epoch if found is not None else None

    world.nodes[0] = node(epoch=1)
    assert [await epochs(0) for _ in range(3)] == [1] * 3
    assert world.reads == [0]
    world.nodes[0] = node(epoch=2)
    assert await epochs() == 2
    world.nodes[0] = CoordinationUnavailable("away")
    assert await epochs() == 2
    world.condition = "suspended"
    reads = len(world.reads)
    assert (await epochs(), await epochs(number=1)) == (2, None)
    assert len(world.reads) == reads, "nobody would answer"
    world.condition = "connected"
    del world.nodes[0]
    assert await epochs() is None
    world.nodes[0] = CoordinationUnavailable("away")
    assert await epochs() is None, "it is gone, and not remembered either"
    world.nodes[0] = node(epoch=3)
    assert await epochs() == 3
    world.nodes[0] = CoordinationUnavailable("away")
    world.admin.forget({"id-t"})
    assert await epochs() == 3
    world.admin.forget({"another"})
    assert await epochs() is None


@virtual_time
async def test_all_topics_are_told_in_order_without_the_brokers_own_and_those_asked_for_beside_them(
    tmp_path: Path,
) -> None:
    async with standalone(tmp_path) as broker:
        for name in ("b", "a", "c"):
            await broker.create_topic(name)
        await broker.metadata("__transactions")  # makes it
        for asked, names, unknown in (
            ({"all_topics": True}, ["a", "b", "c"], []),
            ({"all_topics": True, "after": "a"}, ["b", "c"], []),
            ({"all_topics": True, "after": "b", "topics": ["a"]}, ["c", "a"], []),
            ({"topics": ["c", "x", "a"]}, ["c", "a"], ["x"]),
        ):
            answer = await broker.ask("Metadata", pb.MetadataRequest(**asked))
            assert ([topic.name for topic in answer.topics], answer.more) == (names, False)
            assert (list(answer.unknown_topics), answer.answered_by, answer.coordination) == (unknown, 1, "file")
            assert [(each.id, each.address, each.incarnation) for each in answer.brokers] == [(1, broker.address, 1)]


def said(leader: int, *isr: tuple[int, ...]) -> pb.MetadataResponse:
    partitions = [pb.PartitionInfo(partition=number, leader=leader, isr=members) for number, members in enumerate(isr)]
    return pb.MetadataResponse(topics=[pb.TopicInfo(name="t", partitions=partitions)])


@virtual_time
async def test_a_new_topic_is_waited_for_until_each_leader_says_that_it_serves_with_enough_replicas_in_sync(
    world: World,
) -> None:
    async def made() -> bool:
        """Whether it is told to be, within a few seconds."""
        try:
            await world.admin.make_like(world.known["t"], "t", SCHEMA, asyncio.get_running_loop().time() + 5)
        except OutcomeUnknown:
            return False
        return True

    for answer, there in (
        (said(2, (2, 3), (2, 3)), True),
        (said(2, (2, 3), (2,)), False),
        (said(3, (2, 3), (2, 3)), False),  # another leads them
        (pb.MetadataResponse(), False),  # it has not heard of the topic
        (Unreachable("away"), False),
    ):
        world.answers["broker-2"] = answer
        assert await made() is there
    asked = len(world.asked)
    del world.brokers[2]
    assert not await made()
    assert len(world.asked) == asked
    world.place("t", (1, 2), (1, 2))
    world.holds(0)
    assert not await made()
    world.holds(1)
    assert await made()


@virtual_time
async def test_a_topic_of_records_is_told_with_the_columns_of_records_and_a_typed_one_with_its_own(
    world: World,
) -> None:
    told = await world.admin.topic_info(world.known["t"])
    assert (told.schema, told.typed) == (schema_to_bytes(RECORD_SCHEMA), False)
    stored = schema_to_bytes(SCHEMA)
    world.place("typed", (1,), schema=stored)
    typed = await world.admin.topic_info(world.known["typed"])
    assert (typed.schema, typed.typed) == (stored, True)
