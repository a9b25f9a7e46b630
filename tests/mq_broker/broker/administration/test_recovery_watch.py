"""Which partitions a broker recovers by itself, and when; and what a recovery asks and writes. The cluster is a
stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mq_broker.broker.administration import recovery
from mq_broker.broker.administration.recovery import TotalLoss, choose
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.messages import CasOutcome, LeaderName, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OutcomeUnknown, UnknownPartition, Unreachable
from mq_protocol.names import OnTotalLoss
from tests.coroutines import virtual_time

LOST = NodeState(LeaderName(2, 7), 5, ((1, "gone"), (2, "gone too")), 2, "w")


def status(broker: int, **fields: Any) -> pb.ReplicaStatusResponse:
    log = {"log_id": f"log-{broker}", "open": True, "recovery": LOST.recovery, "last_epoch": 5}
    said = {**log, "last_index": 10, "next_offset": 100, **fields}
    return pb.ReplicaStatusResponse(broker=broker, **said)


def topic(on_total_loss: OnTotalLoss, members: tuple[int, ...]) -> Topic:
    settings = {"durability": "memory", "on_total_loss": on_total_loss.value}
    return Topic.of(TopicSpec("t", "id", (members, members), settings=settings))


@dataclass
class Replica:
    """As the partition shows it, and as its core does."""

    leader: int

    @property
    def replica(self) -> Replica:
        return self


class World:
    """Broker 1 of brokers 1 to 3, and topic `t`, which goes on by itself and has lost all logs of its two
    partitions."""

    def __init__(self) -> None:
        self.broker = 1
        self.brokers = dict.fromkeys((1, 2, 3))
        self.topic = topic(OnTotalLoss.RECOVER, (1, 2))
        self.leaders = {0: 0, 1: 0}
        self.node: tuple[int, NodeState] | None = (3, LOST)
        self.outcomes: list[tuple[CasOutcome, bool]] = []
        self.written: list[tuple[int, NodeState]] = []
        self.said: dict[int, Any] = {2: status(2, last_index=8)}
        self.asked: list[tuple[str, float]] = []
        self.own = status(1)
        self.tasks: list[asyncio.Task[None]] = []
        world: Any = self
        self.total_loss = TotalLoss(world, world, world, world, world)
        self.total_loss.replica_status = self._own  # type: ignore[method-assign]

    async def _own(self, _request: object, _deadline: float) -> pb.ReplicaStatusResponse:
        return self.own

    def spawn(self, work: Coroutine[Any, Any, None], _name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def all(self) -> list[Any]:
        return [self.topic]

    async def get(self, _name: str) -> Any:
        return self.topic

    def hosted(self, _topic: object, number: int) -> Any:
        return Replica(self.leaders[number]) if number in self.leaders else None

    def peer_address(self, broker: int) -> str | None:
        return f"broker-{broker}" if broker in self.brokers else None

    async def ask(self, address: str, _method: str, _request: object, _response: object, deadline: float) -> Any:
        self.asked.append((address, deadline))
        answer = self.said.get(int(address[-1]), Unreachable("away"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read_state(self, _topic_id: str, _number: int) -> tuple[int, NodeState] | None:
        return self.node

    async def write_state(self, _topic_id: str, _number: int, version: int, state: NodeState) -> tuple[CasOutcome, int]:
        self.written.append((version, state))
        outcome, done = self.outcomes.pop(0) if self.outcomes else (CasOutcome.DONE, True)
        if done:
            self.node = (version + 1, state)
        return outcome, version + 1

    async def recover(self, seconds: float = 60.0, **fields: Any) -> pb.RecoverResponse:
        deadline = asyncio.get_running_loop().time() + seconds
        return await self.total_loss.recover(pb.RecoverRequest(topic="t", **fields), deadline)


@asynccontextmanager
async def played() -> AsyncIterator[World]:
    world = World()
    async with asyncio.timeout(20):
        yield world
    await asyncio.gather(*world.tasks)


@virtual_time
async def test_all_that_may_have_something_are_asked_and_the_best_log_goes_on_alone() -> None:
    async with played() as world:
        world.node = 3, NodeState(LeaderName(2, 7), 5, ((1, "gone"), (3, "gone too")), 2, "w")
        world.said[3] = status(3, last_index=99)
        now = asyncio.get_running_loop().time()
        answer = await world.recover()
        assert sorted(address for address, _ in world.asked) == ["broker-2", "broker-3"], (
            "also one that was moved away and is named"
        )
        await asyncio.gather(*world.tasks)
        assert len(world.asked) == 4, "and once more, so that they look at the node"
        assert all(0 < deadline - now <= recovery.STATUS_TIMEOUT_S + 1 for _, deadline in world.asked)
        [(version, state)] = world.written
        assert (version, state.isr, state.leader, state.leader_epoch, state.recovery) == (
            3,
            ((3, "log-3"),),
            None,
            6,
            3,
        )
        assert (answer.kept.broker, list(answer.given_up), answer.offset_floor) == (3, [1], state.offset_floor)


@virtual_time
async def test_who_asks_is_told_of_a_partition_that_is_not_there() -> None:
    async with played() as world:
        for number in (-1, 2):
            with pytest.raises(UnknownPartition, match="partitions 0 to 1"):
                await world.recover(partition=number)
        assert (await world.recover(partition=1)).kept.broker == 1
        world.node = None
        with pytest.raises(UnknownPartition, match="no state node"):
            await world.recover()


@virtual_time
async def test_a_broker_that_is_gone_or_does_not_answer_is_not_counted_as_one_that_has_nothing() -> None:
    async with played() as world:
        world.said[2] = Unreachable("away")
        with pytest.raises(InvalidRequest, match="broker 2 was in sync and does not answer"):
            await world.recover()
        del world.brokers[2]
        world.asked.clear()
        with pytest.raises(InvalidRequest, match="broker 2 was in sync and does not answer"):
            await world.recover()
        assert world.asked == []
        assert (await world.recover(force=True)).kept.broker == 1


@virtual_time
async def test_a_recovery_whose_answer_was_lost_is_found_done_and_one_that_others_were_quicker_than_tried_again() -> (
    None
):
    async with played() as world:
        world.outcomes = [(CasOutcome.UNKNOWN, True)]
        assert (await world.recover()).kept.broker == 1
        assert len(world.written) == 1
    async with played() as world:
        world.outcomes = [(CasOutcome.REFUSED, False), (CasOutcome.UNKNOWN, False)]
        assert (await world.recover()).kept.broker == 1
        assert len(world.written) == 3
    async with played() as world:
        world.outcomes = [(CasOutcome.UNKNOWN, False)] * 100
        with pytest.raises(OutcomeUnknown, match="keeps changing"):
            await world.recover()
        assert len(world.written) == recovery.WRITE_ATTEMPTS_MAX


@pytest.mark.parametrize("why", ["no call reaches it", "it is not registered"])
@virtual_time
async def test_a_replica_that_does_not_answer_is_waited_for_though_it_was_not_in_sync(why: str) -> None:
    """It may have left the set since its broker died, and have all that was committed before."""
    async with played() as world:
        world.topic = topic(OnTotalLoss.RECOVER, (1, 2, 3))
        if why == "it is not registered":
            del world.brokers[3]
        with pytest.raises(InvalidRequest, match=r"broker 3 does not answer for its replica.*start that broker"):
            await world.recover()
        assert not world.written
        assert (await world.recover(force=True)).kept.broker == 1
        world.node = 3, LOST
        world.brokers[3], world.said[3] = None, status(3, last_index=99)
        assert (await world.recover()).kept.broker == 3


def test_a_recovery_by_another_with_another_log_is_not_taken_for_this_one() -> None:
    choice = choose("t-0", LOST, {1: status(1), 2: status(2, last_index=8)}, "mine")
    assert choice.made(choice.state)
    assert choice.made(replace(choice.state, leader=LeaderName(1, 7), isr=(*choice.state.isr, (2, "joined"))))
    assert not choice.made(replace(choice.state, isr=((2, "log-2"),))), "somebody chose the other log"
    assert not choice.made(replace(choice.state, recovery=choice.state.recovery + 1)), "and this is a later one"


def test_a_replica_without_a_log_is_no_candidate() -> None:
    told = {1: status(1, log_id="", last_index=99), 2: status(2)}
    assert choose("t-0", LOST, told, "mine").kept.broker == 2
    with pytest.raises(InvalidRequest, match="no replica of it is open"):
        choose("t-0", LOST, {1: told[1], 2: status(2, log_id="")}, "mine")
    with pytest.raises(InvalidRequest, match=r"broker 1 has no open replica; those that have: \[2\]"):
        choose("t-0", LOST, told, "mine", from_broker=1)


def test_a_replica_that_is_not_open_is_no_candidate_whatever_is_given_up() -> None:
    told = {1: status(1, open=False, last_index=99), 2: status(2)}
    assert choose("t-0", LOST, told, "mine", force=True).kept.broker == 2
    with pytest.raises(InvalidRequest, match=r"broker 1 has no open replica; those that have: \[2\]"):
        choose("t-0", LOST, told, "mine", from_broker=1, force=True)


def test_a_replica_that_is_not_open_is_not_taken_for_one_in_sync_whose_log_the_node_does_not_name() -> None:
    unnamed = replace(LOST, isr=((1, ""),))
    told = {1: pb.ReplicaStatusResponse(broker=1), 2: status(2)}
    with pytest.raises(InvalidRequest, match="broker 1 was in sync and does not answer"):
        choose("t-0", unnamed, told, "mine")
    floor = choose("t-0", unnamed, told, "mine", force=True).state.offset_floor
    assert floor == choose("t-0", LOST, {2: status(2)}, "mine", force=True).state.offset_floor


# ---------------------------------------------------------------- by itself


def stops(world: World) -> None:
    world.topic = topic(OnTotalLoss.STOP, (1, 2))


def is_led(world: World) -> None:
    world.leaders = {0: 3, 1: 3}


def is_not_the_first(world: World) -> None:
    world.broker, world.own, world.said = 2, status(2), {1: status(1)}


def lacks_one(world: World) -> None:
    del world.brokers[2]


def does_not_hear(world: World) -> None:
    world.said[2] = Unreachable("away")


@pytest.mark.parametrize("prevented", [None, stops, is_led, is_not_the_first, lacks_one, does_not_hear])
@virtual_time
async def test_a_partition_without_a_leader_for_long_goes_on_by_itself_if_it_may_and_nothing_may_come_that_has_more(
    prevented: Callable[[World], None] | None,
) -> None:
    world = World()
    world.leaders = {0: 0, 1: 3}
    if prevented is not None:
        prevented(world)
    await world.total_loss.look()
    await asyncio.sleep(recovery.LEADERLESS_S - 0.5)
    await world.total_loss.look()
    assert world.written == [], "it may be merely between two leaders"
    await asyncio.sleep(0.5)
    await world.total_loss.look()
    assert len(world.written) == (prevented is None)
    await asyncio.gather(*world.tasks)
