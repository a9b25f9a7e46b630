"""What a coordinator does about a decision until it is published, and whom it tells what. Partitions are stand-ins."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.broker.transactions import coordinator as transactions
from mq_broker.core.entries import Finish, Publish
from mq_broker.core.messages import AreStaged, Decided
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OutcomeUnknown,
    StagedBatchMissing,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
)
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.transactions.worlds import (
    KEY,
    World,
    decision,
    known,
    line,
    played,
    rounds,
    staged,
    uuid,
    within,
)

SOON = NotEnoughReplicas("1 live in-sync replica of 2")


@virtual_time
async def test_each_partition_publishes_once_all_that_is_its_own_and_then_the_decision_is_finished() -> None:
    async with played() as world:
        decide = decision(3, line(0, 1, 2), line(1, 3), line(0, 4))
        world.decides(decide)
        await world.until_published(decide)
        published = {part.number: part.of(Publish) for part in world.parts.values() if part.of(Publish)}
        assert published == {
            0: [Publish(KEY, 3, (uuid(1), uuid(2), uuid(4)))],
            1: [Publish(KEY, 3, (uuid(3),))],
        }
        assert world.coordinator.asked == [Finish(KEY, 3)]
        for part in (world.parts["t", 0], world.parts["t", 1], world.coordinator):
            assert within(part.deadlines, transactions.ATTEMPT_S)


@virtual_time
async def test_what_waits_for_an_earlier_decision_is_told_of_the_later_one_which_alone_goes_on() -> None:
    async with played() as world:
        part = world.parts["t", 0]
        part.refuse = [SOON] * 10_000
        first, later = decision(1, line(0, 1)), decision(2, line(1, 2))
        world.decides(first)
        waiting = asyncio.create_task(world.until_published(first))
        await rounds()
        world.decides(later)
        with pytest.raises(OutcomeUnknown, match="micro-batch 1 is decided, and a later decision has been made"):
            await waiting
        await world.until_published(later)
        asked = len(part.asked)
        await rounds()
        assert len(part.asked) == asked, "nothing asks for the earlier one any more"


@virtual_time
async def test_a_decision_that_is_heard_of_again_is_published_by_what_is_under_way() -> None:
    async with played() as world:
        world.parts["t", 0].refuse = [SOON] * 20
        decide = decision(2, line(0, 1))
        world.decides(decide)
        waiting = asyncio.create_task(world.until_published(decide))
        await rounds(5)
        world.decides(decide)
        world.decides(decision(1, line(1, 9)))
        await waiting
        assert world.coordinator.asked == [Finish(KEY, 2)]
        assert world.parts["t", 1].asked == []


@virtual_time
async def test_a_coordinator_that_leads_no_more_stops_and_says_so_and_others_go_on() -> None:
    async with played() as world:
        part = world.parts["t", 0]
        part.refuse = [SOON] * 10_000
        decide = decision(0, line(0, 1))
        world.decides(decide)
        waiting = asyncio.create_task(world.until_published(decide))
        await rounds()
        elsewhere = next(
            p for (topic, _), p in world.parts.items() if topic == TRANSACTIONS_TOPIC and p is not world.coordinator
        )
        world.loses(elsewhere)
        for listener in world.on_role:  # it is told of an epoch of its own, too
            listener(world.coordinator)
        await rounds()
        assert not waiting.done()
        world.loses(world.coordinator)
        with pytest.raises(OutcomeUnknown, match="its coordinator has changed"):
            await waiting
        asked = len(part.asked)
        await rounds()
        assert len(part.asked) == asked
        world.coordinator.replica.leading = world.coordinator.serving = True
        part.refuse.clear()
        world.decides(decide)  # it leads again, and reads the decision in its journal
        await world.until_published(decide)
        assert world.coordinator.of(Finish)


@virtual_time
async def test_batches_that_are_missing_are_told_to_whoever_waits_and_asked_for_all_the_same() -> None:
    async with played() as world:
        part = world.parts["t", 0]
        part.refuse = [StagedBatchMissing("gone")] * 50
        decide = decision(0, line(0, 1))
        world.decides(decide)
        with pytest.raises(StagedBatchMissing):
            await world.until_published(decide)
        with pytest.raises(StagedBatchMissing):
            await world.until_published(decide)
        while not world.coordinator.of(Finish):
            await rounds(1)
        assert len(part.of(Publish)) == 51


@virtual_time
async def test_whoever_waits_later_is_told_at_once_what_stands_in_the_way() -> None:
    async with played() as world:
        world.parts["t", 0].refuse = [StagedBatchMissing("gone")]
        decide = decision(0, line(0, 1))
        world.decides(decide)
        for _ in range(2):
            with pytest.raises(StagedBatchMissing):
                await world.until_published(decide, seconds=1.0)
        await rounds(int(transactions.ALARM_BACKOFF_S) - 1)
        assert len(world.parts["t", 0].of(Publish)) == 1, "it is asked for again after a pause"
        await rounds(2)
        assert len(world.parts["t", 0].of(Publish)) == 2


@pytest.mark.parametrize("error", [UnknownTopic("none"), UnknownPartition("none")])
@virtual_time
async def test_what_was_deleted_holds_up_no_decision_but_only_the_coordination_service_may_say_so(
    error: TritonMQError,
) -> None:
    async with played() as world:
        part = world.parts["t", 0]
        part.refuse = [error] * 20
        world.away = True
        decide = decision(0, line(0, 1))
        world.decides(decide)
        await rounds(10)
        assert not world.coordinator.of(Finish), "it does not answer: rows that were decided must not be given up"
        world.away = False
        while part.refuse:
            await rounds(1)
        await world.until_published(decide)
        assert len(part.of(Publish)) == 21, "it is there: it was asked until it had published"

        part.refuse = [error] * 10_000
        world.gone.add("t")
        gone = decision(1, line(0, 1))
        world.decides(gone)
        await world.until_published(gone)
        assert len(part.of(Publish)) == 22


@virtual_time
async def test_whoever_waits_past_its_deadline_is_told_that_it_is_still_being_published() -> None:
    async with played() as world:
        world.parts["t", 0].refuse = [SOON] * 100_000
        decide = decision(0, line(0, 1))
        world.decides(decide)
        with pytest.raises(OutcomeUnknown, match="still being published"):
            await world.until_published(decide, 0.01)
        world.parts["t", 0].refuse = []
        await world.until_published(decide)  # those who are gone are told nothing


# ---------------------------------------------------------------- before it is decided


@virtual_time
async def test_what_is_decided_already_is_not_looked_for_again() -> None:
    """Its batches are published, and are not staged any more."""
    async with played() as world:
        world.coordinator.machine.transactions[KEY] = known(4, line(0, 1))
        world.coordinator.answer = Decided(already=True, finished=True, row_count=1)
        manifest = [pb.StagedBatches(topic="t", partition=0, uuids=[uuid(1)], row_count=1)]
        key = pb.TransactionKey(query_id=KEY.query_id, sink=KEY.sink)
        request = pb.DecideRequest(key=key, batch_id=4, run_id="run", row_count=1, manifest=manifest)
        answer = await world.transactions.decide(request, asyncio.get_running_loop().time() + 5)
        assert answer.already_decided
        assert not world.parts["t", 0].of(AreStaged)
        request.batch_id = 5
        await world.transactions.decide(request, asyncio.get_running_loop().time() + 5)
        assert world.parts["t", 0].of(AreStaged)
        for state in (known(4, line(0, 1), finished=False), known(4, line(0, 1), aborted=True)):
            world.parts["t", 0].asked.clear()
            world.coordinator.machine.transactions[KEY] = state
            await world.transactions.decide(request, asyncio.get_running_loop().time() + 5)
            assert not world.parts["t", 0].of(AreStaged), "the coordinator refuses it whatever is staged"


@virtual_time
async def test_a_partition_that_cannot_say_for_now_what_it_has_is_asked_again_until_the_deadline() -> None:
    async with played() as world:
        part = world.parts["t", 0]
        world.coordinator.answer = Decided(already=True, finished=True, row_count=1)
        manifest = [pb.StagedBatches(topic="t", partition=0, uuids=[uuid(1)], row_count=1)]
        key = pb.TransactionKey(query_id=KEY.query_id, sink=KEY.sink)
        request = pb.DecideRequest(key=key, batch_id=4, run_id="run", row_count=1, manifest=manifest)
        world.coordinator.machine.transactions[KEY] = known(3)
        part.refuse = [SOON, NotLeader("moved"), UnknownTopic("none")]
        await world.transactions.decide(request, asyncio.get_running_loop().time() + 60)
        assert len(part.of(AreStaged)) == 4
        part.refuse = [SOON] * 1_000
        deadline = asyncio.get_running_loop().time() + 60
        with pytest.raises(NotEnoughReplicas):
            await world.transactions.decide(request, deadline)
        assert asyncio.get_running_loop().time() <= deadline


@virtual_time
async def test_a_decision_has_the_shorter_of_the_time_that_its_writer_gives_and_the_time_of_the_call() -> None:
    async with played() as world:
        world.coordinator.answer = Decided(already=True, finished=True, row_count=0)
        world.coordinator.machine.transactions[KEY] = known(4)
        key = pb.TransactionKey(query_id=KEY.query_id, sink=KEY.sink)
        for timeout_ms, longest in ((0, 100.0), (2_000, 2.0), (200_000, 100.0)):
            world.coordinator.deadlines.clear()
            request = pb.DecideRequest(key=key, batch_id=4, run_id="run", timeout_ms=timeout_ms)
            await world.transactions.decide(request, asyncio.get_running_loop().time() + 100)
            assert within(world.coordinator.deadlines, longest)


# ---------------------------------------------------------------- whom to ask


@virtual_time
async def test_a_partition_is_asked_where_it_is_led() -> None:
    async with played() as world:
        world.elsewhere = {("t", 0): 2, ("t", 1): 0, ("t", 2): 9}
        world.parts["t", 3].replica.leading = False
        decide = decision(0, line(0, 1))
        world.decides(decide)
        await world.until_published(decide)
        [(address, method, request)] = world.calls
        assert (address, method) == ("broker-2", "Publish")
        assert (request.topic, request.partition, list(request.uuids), request.batch_id) == ("t", 0, [uuid(1)], 0)
        for number in (1, 2):
            with pytest.raises(NotLeader, match="no leader at the moment"):
                await asked(world, number)
        with pytest.raises(UnknownPartition, match="partitions 0 to 3, not 4"):
            await asked(world, 4)
        with pytest.raises(UnknownPartition):
            await asked(world, -1)
        await asked(world, 3)
        assert world.calls[-1][0] == "broker-1", "it is here, and leads no more as this broker knows it"


async def asked(world: World, number: int) -> None:
    ours = world.transactions
    request = pb.DiscardRequest(
        topic="t", partition=number, key=pb.TransactionKey(query_id="query", sink="t"), uuids=[uuid(1)]
    )
    await ours.ask_leader("t", number, "Discard", request, pb.DiscardResponse, ours.discard)


# ---------------------------------------------------------------- what partitions' leaders answer


@virtual_time
async def test_a_partition_publishes_and_discards_only_what_is_named_in_the_topic_that_is_meant() -> None:
    key = pb.TransactionKey(query_id="query", sink="t")

    async with played() as world:
        ours, part = world.transactions, world.parts["t", 0]
        with pytest.raises(InvalidRequest, match="names none"):
            await ours.publish(pb.PublishRequest(topic="t", key=key), 0.0)
        with pytest.raises(InvalidRequest, match="micro-batch ids"):
            await ours.publish(pb.PublishRequest(topic="t", key=key, batch_id=-1, uuids=[uuid(1)]), 0.0)
        for topic_id in ("another", "id-of-u"):
            with pytest.raises(UnknownTopic, match="made again"):
                await ours.publish(pb.PublishRequest(topic="t", key=key, uuids=[uuid(1)], topic_id=topic_id), 0.0)
            with pytest.raises(UnknownTopic, match="made again"):
                await ours.are_staged(pb.AreStagedRequest(topic="t", key=key, uuids=[uuid(1)], topic_id=topic_id), 0.0)
        assert part.asked == []
        answer = await ours.publish(pb.PublishRequest(topic="t", key=key, uuids=[uuid(1)], topic_id="id-of-t"), 0.0)
        assert answer.log_end_offset == 7
        part.stage(staged(1, 0), staged(2, 0))
        discarded = await ours.discard(pb.DiscardRequest(topic="t", key=key, uuids=[uuid(1), uuid(9)]), 0.0)
        assert discarded.discarded == 1
        strange = pb.TransactionKey(query_id="stranger", sink="t")
        assert (await ours.discard(pb.DiscardRequest(topic="t", key=strange, uuids=[uuid(1)]), 0.0)).discarded == 0


@virtual_time
async def test_the_last_decided_micro_batch_of_a_key_is_told_as_the_journal_has_it() -> None:
    key = pb.TransactionKey(query_id="query", sink="t")

    async with played() as world:
        status = world.transactions.transaction_status
        assert not (await status(pb.TransactionStatusRequest(key=key), 0.0)).known
        for finished, aborted in ((True, False), (False, True)):
            world.coordinator.machine.transactions[KEY] = known(8, line(0, 1), finished=finished, aborted=aborted)
            told = await status(pb.TransactionStatusRequest(key=key), 0.0)
            assert (told.known, told.batch_id, told.run_id, told.row_count) == (True, 8, "run", 1)
            assert (told.published, told.aborted) == (finished, aborted)
