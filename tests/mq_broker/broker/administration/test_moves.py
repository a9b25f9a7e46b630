"""Moves in a cluster of brokers in one process: what starting, planning and carrying on do beyond what is written."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.metadata.topics import Topics
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.messages import CasOutcome, NodeState
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotEnoughReplicas, NotLeader, OutcomeUnknown, UnknownTopic
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, until
from tests.mq_broker.broker.test_three_brokers import Three, three


async def start(broker: Broker, topic: str, *targets: tuple[int, tuple[int, ...]], cancel: bool = False) -> None:
    moves = [pb.PartitionMove(topic=topic, partition=number, target=target) for number, target in targets]
    await broker.ask("StartMoves", pb.StartMovesRequest(moves=moves, cancel=cancel))


async def over(broker: Broker) -> bool:
    return not (await broker.ask("Moves", pb.MovesRequest())).moves


async def replicas(broker: Broker, topic: str) -> list[list[int]]:
    return [list(p.replicas) for p in (await broker.metadata(topic)).topics[0].partitions]


@virtual_time
async def test_the_coordinators_topic_gets_three_replicas_when_there_are_brokers_for_them(tmp_path: Path) -> None:
    cluster = Three(tmp_path)
    try:
        await cluster[1].start()
        await cluster[1].metadata(TRANSACTIONS_TOPIC)
        assert {tuple(r) for r in await replicas(cluster[1], TRANSACTIONS_TOPIC)} == {(1,)}
        await asyncio.gather(cluster[2].start(), cluster[3].start())
        await until(lambda: known(cluster, 3))
        planned = (await cluster[2].ask("PlanMoves", pb.PlanMovesRequest())).moves
        assert len(planned) == 8
        await start(cluster[2], TRANSACTIONS_TOPIC, *((move.partition, tuple(move.target)) for move in planned))
        await until(lambda: over(cluster[3]))
        found = await replicas(cluster[3], TRANSACTIONS_TOPIC)
        assert all(sorted(members) == [1, 2, 3] for members in found)
        assert {members[0] for members in found} == {1, 2, 3}, "and its leaders are spread"
        await asyncio.gather(*(until(partial(whole, cluster[b], TRANSACTIONS_TOPIC)) for b in (1, 2, 3)))
        assert not (await cluster[1].ask("PlanMoves", pb.PlanMovesRequest())).moves
    finally:
        await asyncio.gather(*(broker.stop() for broker in cluster.brokers.values()))


async def whole(leader: Broker, topic: str) -> bool:
    """Whether every partition that this broker leads has all its replicas in sync: only a leader knows at once."""
    answer = await leader.metadata(topic)
    return all(
        sorted(p.isr) == sorted(p.replicas) for p in answer.topics[0].partitions if p.leader == answer.answered_by
    )


async def known(cluster: Three, count: int) -> bool:
    answers = [await broker.metadata() for broker in cluster.brokers.values()]
    return all(len(answer.brokers) == count for answer in answers)


@virtual_time
async def test_two_brokers_that_begin_different_moves_at_once_leave_one_of_them(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", 4, 1)
        await asyncio.gather(*(start(cluster[b], "t", *((n, (b,)) for n in range(4))) for b in (1, 2, 3)))
        await until(lambda: over(cluster[1]))
        found = await replicas(cluster[1], "t")
        assert len({tuple(members) for members in found}) == 1, "all of a request or none of it"
        await cluster.in_sync("t", found[0], at=found[0][0])
        assert (await cluster[found[0][0]].produce("t", 1)).base_offset == 0


@virtual_time
async def test_a_move_changes_how_many_need_a_broker_and_leadership_goes_where_it_is_sent(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", 1, 2)
        [[leader, follower]] = await replicas(cluster[1], "t")
        third = 6 - leader - follower
        assert (await cluster[third].ask("Moves", pb.MovesRequest(broker=follower))).held == 1
        with pytest.raises(NotLeader) as told:
            await cluster[follower].ask("Lead", pb.LeadRequest(topic="t", partition=0, broker=follower))
        assert told.value.leader == leader
        with pytest.raises(InvalidRequest, match="holds no replica"):
            await cluster[leader].ask("Lead", pb.LeadRequest(topic="t", partition=0, broker=third))
        await cluster[leader].ask("Lead", pb.LeadRequest(topic="t", partition=0, broker=follower))
        assert await cluster.leader("t", at=follower) == follower

        await start(cluster[third], "t", (0, (third, follower)))
        await until(lambda: over(cluster[leader]))
        assert await cluster.leader("t", at=third) == third
        await until(lambda: free(cluster[follower], leader))
        await start(cluster[1], "t", (0, ()), cancel=True)
        assert await replicas(cluster[third], "t") == [[third, follower]], "what has arrived stays"


@virtual_time
async def test_a_topic_gets_fewer_copies_and_more_again_and_takes_its_floor_along(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster[1].create_topic("t", 1, 3)
        [[first, *others]] = await replicas(cluster[1], "t")
        await cluster[1].ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=1))
        await until(lambda: over(cluster[1]))
        for broker in others:
            await until(partial(free, cluster[1], broker))
        assert (await cluster[first].produce("t", 1)).base_offset == 0, "one is enough now"
        await cluster[1].ask("AlterTopic", pb.AlterTopicRequest(name="t", replicas=3))
        assert (await cluster[first].produce("t", 2)).base_offset == 1, "and is until the others are here"
        await until(lambda: over(cluster[1]))
        await until(partial(whole, cluster[first], "t"))
        for broker in others:
            await cluster[broker].abandon()
        await until(partial(refuses_to_be_alone, cluster[first]))


async def refuses_to_be_alone(leader: Broker) -> bool:
    with pytest.raises((NotEnoughReplicas, OutcomeUnknown)) as told:
        await leader.produce("t", 3, timeout_ms=200)
    return bool(told.value)


async def free(broker: Broker, which: int) -> bool:
    return bool((await broker.ask("Moves", pb.MovesRequest(broker=which))).held == 0)


class Forgetful(CoordinationService):
    """Writes topics, and loses the answers (or the questions) of the first updates."""

    fates: list[bool]

    async def update_topic(self, expected_version: int, topic: TopicSpec, states: Any = ()) -> tuple[CasOutcome, int]:
        if not self.fates:
            return await super().update_topic(expected_version, topic, states)
        if self.fates.pop(0):
            await super().update_topic(expected_version, topic, states)
        return CasOutcome.UNKNOWN, -1


@pytest.mark.parametrize("fates", [[], [True], [False], [False, True], [False, False, True]])
@virtual_time
async def test_a_topic_is_edited_once_whatever_answers_are_lost(tmp_path: Path, fates: list[bool]) -> None:
    service = Forgetful(FileStore(tmp_path))
    service.fates = list(fates)
    await service.start(lambda _event: None)
    topics = Topics(service, lambda _topics, _changed: None)
    await service.create_topic(TopicSpec("t", "0" * 32, ((1,),)), (NodeState(None, 0, ((1, ""),), 0, ""),))

    def widened(spec: TopicSpec) -> TopicSpec:
        return spec if len(spec.assignment) > 1 else TopicSpec("t", "0" * 32, (*spec.assignment, (1,)))

    assert (await topics.edit("t", widened)).partitions == 2
    assert (await service.read_topic("t") or (0,))[0] == 1, "written once"
    assert await service.read_state("0" * 32, 1) == (0, NodeState(None, 0, ((1, ""),), 0, ""))
    with pytest.raises(UnknownTopic):
        await topics.edit("other", widened)
    if not fates:
        service.fates = [False] * 100
        with pytest.raises(OutcomeUnknown, match="kept changing"):
            await topics.edit(
                "t", lambda spec: TopicSpec("t", "0" * 32, spec.assignment, settings={"durability": "os"})
            )
    await service.stop()
