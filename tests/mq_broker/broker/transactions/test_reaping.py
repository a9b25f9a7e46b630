"""What the reaper removes of what is staged, and how what is staged is listed. Partitions are stand-ins."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from mq_broker.broker.transactions import coordinator as transactions
from mq_broker.broker.transactions.requests import listed_name
from mq_broker.core.entries import Discard, Fence, TransactionKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotEnoughReplicas, NotLeader, UnknownTopic
from mq_protocol.limits import ANSWER_BYTES_MAX
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.transactions import worlds
from tests.mq_broker.broker.transactions.worlds import KEY, OTHER, World, known, line, played, staged, uuid, within
from tests.simulation.real.substitutes import EPOCH_S


def reaped(world: World) -> dict[int, list[object]]:
    return {number: part.asked for (topic, number), part in world.parts.items() if topic == "t" and part.asked}


@pytest.mark.parametrize(("finished", "losers"), [(True, (uuid(1), uuid(2))), (False, (uuid(1),))])
@virtual_time
async def test_what_no_decision_names_goes_and_what_one_that_is_not_published_yet_names_stays(
    finished: bool, losers: tuple[bytes, ...]
) -> None:
    async with played() as world:
        world.coordinator.machine.transactions[KEY] = known(5, finished=finished)
        world.parts["t", 0].stage(staged(1, 4), staged(2, 5), staged(3, 6), staged(4, 4, due_us=1))
        await world.transactions.reap()
        assert reaped(world) == {0: [Discard(KEY, losers)]}
        assert within(world.parts["t", 0].deadlines, transactions.ATTEMPT_S)


@virtual_time
async def test_what_is_young_stays() -> None:
    async with played() as world:
        world.coordinator.machine.transactions[KEY] = known(5)
        now_us = round((EPOCH_S + asyncio.get_running_loop().time()) * 1e6)
        world.parts["t", 0].stage(
            staged(1, 1, timestamp_us=now_us - 70_000_000), staged(2, 1, timestamp_us=now_us - 50_000_000)
        )
        await world.transactions.reap()
        assert reaped(world) == {0: [Discard(KEY, (uuid(1),))]}


@virtual_time
async def test_what_is_led_elsewhere_or_belongs_to_nobody_that_is_known_stays() -> None:
    async with played() as world:
        world.parts["t", 0].stage(staged(1, 1, OTHER))
        world.parts["t", 1].stage(staged(2, 1))
        world.parts["t", 1].serving = False
        world.parts[TRANSACTIONS_TOPIC, 0].stage(staged(3, 1))
        world.coordinator.machine.transactions[KEY] = known(5)
        await world.transactions.reap()
        assert reaped(world) == {}
        assert not world.parts[TRANSACTIONS_TOPIC, 0].of(Discard)


@virtual_time
async def test_a_key_is_asked_about_once_and_each_partition_has_its_own_losers() -> None:
    async with played() as world:
        world.elsewhere = {(TRANSACTIONS_TOPIC, world.coordinator.number): 2}
        world.answers["TransactionStatus"] = pb.TransactionStatusResponse(known=True, batch_id=3, published=True)
        for number in range(3):
            world.parts["t", number].stage(staged(number, 3), staged(10 + number, 4))
        await world.transactions.reap()
        assert reaped(world) == {number: [Discard(KEY, (uuid(number),))] for number in range(3)}
        assert [method for _, method, _ in world.calls] == ["TransactionStatus"]


@pytest.mark.parametrize("how", ["unreachable", "no coordinators"])
@virtual_time
async def test_what_cannot_be_asked_about_stays(how: str) -> None:
    async with played() as world:
        world.parts["t", 0].stage(staged(1, 1))
        world.elsewhere = {(TRANSACTIONS_TOPIC, world.coordinator.number): 2}
        if how == "unreachable":
            world.answers["TransactionStatus"] = NotLeader("moved")
        else:
            world.missing.add(TRANSACTIONS_TOPIC)
        await world.transactions.reap()
        assert reaped(world) == {}


@virtual_time
async def test_what_an_aborted_query_has_staged_is_fenced_once_its_last_decision_is_published() -> None:
    async with played() as world:
        transactions_of = world.coordinator.machine.transactions
        world.parts["t", 0].stage(staged(1, 4), staged(2, 6))
        transactions_of[KEY] = known(5, line(1, 9), finished=False, aborted=True)
        await world.transactions.reap()
        assert reaped(world) == {0: [Discard(KEY, (uuid(1),))]}
        world.parts["t", 0].asked.clear()
        transactions_of[KEY] = known(5, aborted=True)
        world.parts["t", 0].refuse = [NotEnoughReplicas("later")]
        for _ in range(2):
            await world.transactions.reap()
        assert reaped(world) == {0: [Fence(KEY), Fence(KEY)]}
        assert within(world.parts["t", 0].deadlines, transactions.ATTEMPT_S)


# ---------------------------------------------------------------- listed


async def listed(world: World, **fields: object) -> tuple[list[tuple[str, int, int]], pb.StagedResponse]:
    """(topic, partition, micro-batch) of all that is told, in one answer after the other."""
    told: list[tuple[str, int, int]] = []
    request = pb.StagedRequest(**fields)  # type: ignore[arg-type]
    while True:
        answer = await world.transactions.staged(request, 0.0)
        told += [(each.topic, each.partition, each.batch_id) for each in answer.staged]
        if not answer.more:
            return told, answer
        assert answer.staged
        *_, last = answer.staged
        assert answer.ByteSize() - last.ByteSize() < ANSWER_BYTES_MAX
        request.after.CopyFrom(answer.last)
        request.after_index = answer.last_index


@pytest.mark.parametrize("sink_bytes", [1, ANSWER_BYTES_MAX // 3, ANSWER_BYTES_MAX])
@virtual_time
async def test_a_listing_in_any_number_of_answers_tells_each_batch_once(sink_bytes: int) -> None:
    staged = partial(worlds.staged, key=TransactionKey("query", "t" * sink_bytes))
    async with played() as world:
        world.parts["t", 1].stage(staged(7, 3, index=8), staged(8, 2, index=5), staged(9, 1, index=9))
        world.parts["t", 0].stage(staged(1, 9, index=70), staged(2, 8, index=60))
        world.parts["t", 2].stage(staged(3, 7))
        world.parts["t", 2].serving = False
        told, _ = await listed(world)
        assert told == [("t", 0, 8), ("t", 0, 9), ("t", 1, 2), ("t", 1, 3), ("t", 1, 1)]


@virtual_time
async def test_a_listing_may_be_of_one_topic_which_must_be_there() -> None:
    async with played() as world:
        world.parts["t", 0].stage(staged(1, 9, timestamp_us=77))
        world.parts[TRANSACTIONS_TOPIC, 0].stage(staged(2, 8))
        told, answer = await listed(world, topic="t")
        assert told == [("t", 0, 9)]
        [each] = answer.staged
        assert (each.query, each.sink, each.row_count, each.timestamp_us) == (listed_name("query"), "t", 1, 77)
        assert len((await listed(world))[0]) == 2
        with pytest.raises(UnknownTopic):
            await listed(world, topic="nothing")
