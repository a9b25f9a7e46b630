"""What a broker tells of topics and partitions: whom it names as leader, how old its word may be, and how much one
answer holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_broker.broker.administration import topics as admin
from mq_broker.broker.administration.topics import Admin
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.core.messages import LeaderName, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import schema_to_bytes
from mq_protocol.errors import (
    CoordinationUnavailable,
    UnknownTopic,
    Unreachable,
)
from mq_protocol.limits import MESSAGE_OVERHEAD_BYTES
from tests.coroutines import real_time

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def node(leader: int | None = 2, epoch: int = 5, incarnation: int = 1) -> NodeState:
    name = LeaderName(leader, incarnation) if leader else None
    return NodeState(name, epoch, ((2, "log"), (3, "log")), 0, "")


class World:
    """Broker 1 of brokers 1, 2 and 3. It holds only the replicas that the test gives it; nodes say what the test
    says."""

    def __init__(self, *names: str) -> None:
        self.broker = 1
        self.condition, self.access, self.level = "connected", "", 1
        self.demanding = SimpleNamespace(demands=frozenset({"tls"}))
        self.brokers = {broker: self.registration(broker) for broker in (1, 2, 3)}
        self.known = {name: self.topic(name) for name in names or ("t",)}
        self.replicas: dict[int, Any] = {}
        self.nodes: dict[int, NodeState | CoordinationUnavailable] = {}
        self.reads: list[int] = []
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        world: Any = self
        self.admin = Admin(world, world, world, world, world)

    @staticmethod
    def registration(broker: int) -> BrokerRegistration:
        """Broker 1 takes the smallest messages: batches of 10,001 bytes."""
        return BrokerRegistration(broker, 1, f"b{broker}:1", message_bytes_max=MESSAGE_OVERHEAD_BYTES + 10_000 + broker)

    def topic(self, name: str, partitions: int = 2, schema: bytes = b"") -> Any:
        spec = SimpleNamespace(
            name=name,
            topic_id=f"id-{name}",
            assignment=((2, 3),) * partitions,
            schema=schema,
            settings={},
            moving={},
            earlier=(),
        )
        settings = SimpleNamespace(min_insync_replicas=2)
        return SimpleNamespace(spec=spec, settings=settings, schema=SCHEMA, partitions=partitions)

    def holds(self, number: int = 0, *, leader: int = 1, serving: bool = True, isr: tuple[int, ...] = (1, 2)) -> None:
        replica = SimpleNamespace(leader=leader, leading=leader == 1, leader_epoch=9, isr=isr)
        self.replicas[number] = SimpleNamespace(replica=replica, serving=serving, unheard_ms={})

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

    def all(self) -> list[Any]:
        return [self.known[name] for name in sorted(self.known)]

    async def get(self, name: str) -> Any:
        if name not in self.known:
            raise UnknownTopic("none")
        return self.known[name]

    async def info(self, number: int = 0) -> pb.PartitionInfo:
        return await self.admin.partition_info(self.known["t"], number)

    async def names(self, **fields: Any) -> tuple[list[str], bool]:
        answer = await self.admin.metadata(pb.MetadataRequest(**fields), 1e9)
        return [topic.name for topic in answer.topics], answer.more


@pytest.fixture
def world() -> World:
    return World()


@real_time
async def test_a_leader_that_is_here_is_named_once_it_serves_and_another_while_it_lives(world: World) -> None:
    world.known["t"].spec.assignment = ((1, 2, 3),)
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
    world.admin.forget(set())
    assert (await world.info()).leader == 0, "nobody is named in the place of one that is gone"


@real_time
async def test_of_a_partition_that_is_not_here_the_node_is_told_unless_it_names_nobody_who_lives_or_this_broker(
    world: World,
) -> None:
    for state, leader in ((node(2), 2), (node(None), 0), (node(2, incarnation=7), 0), (node(9), 0), (node(1), 0)):
        world.nodes[0] = state
        world.admin.forget(set())
        told = await world.info()
        assert (told.leader, told.leader_epoch, list(told.isr)) == (leader, 5, [2, 3])
    del world.nodes[0]
    world.admin.forget(set())
    told = await world.info()
    assert (told.leader, list(told.replicas), list(told.isr)) == (0, [2, 3], [])


@real_time
async def test_who_led_before_a_move_and_has_no_replica_any_more_is_not_named(world: World) -> None:
    world.nodes[0] = node(2)
    assert (await world.info()).leader == 2
    world.known["t"].spec.assignment = ((3, 1),)
    assert (await world.info()).leader == 0, "what was read of the node a moment ago is older than the move"
    world.known["t"].spec.assignment = ((2, 3),)
    world.holds(leader=2, serving=False)
    assert (await world.info()).leader == 2
    world.known["t"].spec.assignment = ((3, 1),)
    assert (await world.info()).leader == 0, "its own replica has not heard of the next leader"


@real_time
async def test_where_a_partition_moves_is_told_whoever_tells_it(world: World) -> None:
    world.known["t"].spec.moving = {0: SimpleNamespace(target=(3, 1))}
    assert list((await world.info()).moving_to) == [3, 1]
    world.nodes[0] = world.nodes[1] = node()
    assert list((await world.info()).moving_to) == [3, 1]
    assert list((await world.info(1)).moving_to) == []
    world.holds(leader=2, serving=False)
    assert list((await world.info()).moving_to) == [3, 1]


@real_time
async def test_a_node_is_read_once_in_a_while_and_what_was_read_serves_while_nobody_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.known["t"]
    state = world.admin.state
    world.nodes[0] = node(epoch=1)
    for _ in range(3):
        found = await state(topic, 0)
        assert found is not None
        assert found.leader_epoch == 1
    assert world.reads == [0]
    monkeypatch.setattr(admin, "STATE_CACHE_S", -1.0)
    world.nodes[0] = node(epoch=2)
    found = await state(topic, 0)
    assert found is not None
    assert found.leader_epoch == 2
    world.nodes[0] = CoordinationUnavailable("away")
    assert await state(topic, 0) == found
    world.condition = "suspended"
    reads = len(world.reads)
    assert await state(topic, 0) == found
    assert await state(topic, 1) is None
    assert len(world.reads) == reads, "nobody would answer"
    world.condition = "connected"
    del world.nodes[0]
    assert await state(topic, 0) is None
    world.nodes[0] = CoordinationUnavailable("away")
    assert await state(topic, 0) is None, "it is gone, and not remembered either"
    world.nodes[0] = node()
    await state(topic, 0)
    world.admin.forget({"another"})
    assert not world.admin._states


@real_time
async def test_all_topics_are_told_in_order_without_the_brokers_own_and_those_asked_for_beside_them() -> None:
    world = World("a", "b", "c", "__own")
    assert await world.names(all_topics=True) == (["a", "b", "c"], False)
    assert await world.names(all_topics=True, after="a") == (["b", "c"], False)
    assert await world.names(all_topics=True, after="b", topics=["a"]) == (["c", "a"], False)
    assert await world.names(topics=["c", "x", "a"]) == (["c", "a"], False)
    answer = await world.admin.metadata(pb.MetadataRequest(topics=["x"]), 1e9)
    assert (list(answer.unknown_topics), answer.answered_by, answer.coordination) == (["x"], 1, "connected")
    assert [(broker.id, broker.address, broker.incarnation) for broker in answer.brokers] == [
        (n, f"b{n}:1", 1) for n in (1, 2, 3)
    ]


def said(leader: int, *isr: tuple[int, ...]) -> pb.MetadataResponse:
    partitions = [pb.PartitionInfo(partition=number, leader=leader, isr=members) for number, members in enumerate(isr)]
    return pb.MetadataResponse(topics=[pb.TopicInfo(name="t", partitions=partitions)])


@real_time
async def test_a_leader_serves_what_it_says_itself_with_enough_replicas_in_sync(world: World) -> None:
    async def led(numbers: set[int]) -> set[int]:
        return await world.admin._led(world.known["t"], 2, numbers, 1e9)

    world.answers["broker-2"] = said(2, (2, 3), (2,))
    assert await led({0, 1}) == {0}
    assert await led({1}) == set()
    world.answers["broker-2"] = said(3, (2, 3), (2, 3))
    assert await led({0, 1}) == set(), "another leads them"
    world.answers["broker-2"] = pb.MetadataResponse()
    assert await led({0}) == set(), "it has not heard of the topic"
    world.answers["broker-2"] = Unreachable("away")
    assert await led({0}) == set()
    asked = len(world.asked)
    del world.brokers[2]
    assert await led({0}) == set()
    assert len(world.asked) == asked
    world.known["t"].spec.assignment = ((1, 2), (2, 3))
    world.holds(0)
    world.nodes[1] = node()
    assert await world.admin._led(world.known["t"], 1, {0, 1}, 1e9) == {0}


# ---------------------------------------------------------------- until leaders serve


@real_time
async def test_a_topic_of_records_is_told_with_the_columns_of_records_and_a_typed_one_with_its_own(
    world: World,
) -> None:
    told = await world.admin.topic_info(world.known["t"])
    assert (told.schema, told.typed) == (schema_to_bytes(SCHEMA), False)
    typed = await world.admin.topic_info(world.topic("typed", schema=b"as it was stored"))
    assert (typed.schema, typed.typed) == (b"as it was stored", True)
