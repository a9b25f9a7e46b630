"""What is told of queries, and what whoever aborts one is told while some brokers do not answer. Brokers are
stand-ins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.broker.transactions.aborting import Aborting, left_ms, pins, until
from mq_broker.broker.transactions.requests import key_to_wire, listed_name
from mq_broker.core.entries import SCHEDULED, Abort, TransactionKey
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotEnoughReplicas, Unreachable
from mq_protocol.limits import LISTED_TRANSACTIONS_MAX
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.transactions.worlds import KEY, OTHER, World, known, line, played, staged


def aborts(world: World) -> Aborting:
    for part in world.parts.values():
        part.machine.undecided = lambda _fence: []
        part.could_begin = 10  # type: ignore[attr-defined]
    stand_in: Any = world
    return Aborting(stand_in, stand_in, world.transactions)


@virtual_time
async def test_what_is_decided_and_staged_is_summed_up_by_query_where_it_is_led() -> None:
    async with played() as world:
        ours = aborts(world)
        world.coordinator.machine.transactions[KEY] = known(4, line(0, 1), finished=False, aborted=True, changed_us=9)
        world.parts["t", 1].stage(
            staged(1, 4, index=20, timestamp_us=70),
            staged(2, 6, index=9, timestamp_us=50),
            staged(3, 1, OTHER, index=30),
        )
        world.parts["t", 2].stage(staged(4, 1))
        world.parts["t", 2].serving = False
        told = await ours.transactions(pb.TransactionsRequest(), 0.0)
        [decided] = told.known
        assert (decided.query, decided.sink, decided.batch_id, decided.row_count) == (listed_name("query"), "t", 4, 1)
        assert (decided.published, decided.aborted, decided.changed_us) == (False, True, 9)
        sums = {each.query: each for each in told.staged}
        mine = sums[listed_name("query")]
        assert (mine.topic, mine.partition, mine.batches, mine.rows, mine.bytes) == ("t", 1, 2, 2, 20)
        assert (mine.first_batch_id, mine.last_batch_id, mine.since_us, mine.pins) == (4, 6, 50, True)
        assert not sums[listed_name("other")].pins
        assert told.left_out == 0
        told = await ours.transactions(pb.TransactionsRequest(query="other"), 0.0)
        assert [each.query for each in told.staged] == [listed_name("other")]
        assert not told.known


@virtual_time
async def test_a_listing_says_how_much_it_leaves_out() -> None:
    most = LISTED_TRANSACTIONS_MAX
    async with played() as world:
        ours = aborts(world)
        keys = [TransactionKey(f"query {number}", "t") for number in range(most + 1)]
        world.coordinator.machine.transactions.update({key: known(1, changed_us=at) for at, key in enumerate(keys)})
        for number in (0, 1):
            world.parts["t", number].stage(*(staged(at, 4, key) for at, key in enumerate(keys)))
        told = await ours.transactions(pb.TransactionsRequest(), 0.0)
        newest = [listed_name(key.query_id) for key in reversed(keys[1:])]
        assert [each.query for each in told.known] == newest
        assert (len(told.staged), told.left_out) == (most, 1 + most + 2)


def test_a_batch_holds_up_retention_if_it_comes_before_where_the_journal_could_begin() -> None:
    part: Any = type("Part", (), {"could_begin": 10})
    assert [pins(part, staged(1, 1, index=index)) for index in (9, 10)] == [True, False]


@virtual_time
async def test_brokers_that_do_not_answer_and_partitions_without_a_leader_are_asked_again_until_time_is_up() -> None:
    async def aborted(*answers: object) -> tuple[int, int, list[str]]:
        """How often broker 2 was asked to fence, what was removed, and what may be left."""
        world = World()
        world.coordinator.machine.transactions[KEY] = known(4, line(0, 1))
        ours = aborts(world)
        for part in world.parts.values():
            part.machine.fenced[KEY] = None
        world.answers["Fence"] = list(answers)
        deadline = asyncio.get_running_loop().time() + 5
        done = await ours.abort_key(pb.AbortKeyRequest(key=key_to_wire(KEY)), deadline)
        assert asyncio.get_running_loop().time() <= deadline
        return len(world.calls), done.discarded, list(done.unreached)

    async with played() as _world:
        left = pb.FenceResponse(left=[pb.TopicPartition(topic="t", partition=9)])
        fenced = pb.FenceResponse()
        fenced.fenced.add(topic="t", partition=9, discarded=3)
        assert await aborted(Unreachable("away"), left, fenced) == (3, 3, [])
        fenced.left.extend(left.left)
        assert await aborted(fenced) == (1, 3, []), "its leader has fenced it, whatever a follower knows"
        asked, discarded, unreached = await aborted(Unreachable("away"))
        assert (asked > 1, discarded, unreached) == (True, 0, ["what broker 2 leads: away"])
        asked, discarded, unreached = await aborted(left)
        assert (asked > 1, discarded, unreached) == (True, 0, ["t-9: it has no leader at the moment"])


@virtual_time
async def test_an_abort_is_written_at_the_coordinator_and_answers_for_what_was_decided_before() -> None:
    async with played() as world:
        ours = aborts(world)
        world.brokers = {1: None}
        part = world.coordinator
        request = pb.AbortKeyRequest(key=key_to_wire(KEY), timeout_ms=50)
        part.machine.transactions[KEY] = known(4)
        answer = await ours.abort_key(request, 1e9)
        assert part.asked == [Abort(KEY)]
        assert (answer.known, answer.batch_id, answer.published, list(answer.unreached)) == (True, 4, True, [])
        part.machine.transactions[KEY] = known(5, line(0, 1), finished=False)
        assert not (await ours.abort_key(request, 1e9)).published
        part.refuse = [NotEnoughReplicas("later")]
        with pytest.raises(NotEnoughReplicas):
            await ours.abort_key(request, 1e9)


@virtual_time
async def test_a_query_is_aborted_by_any_of_its_names_and_only_for_the_sink_that_is_meant() -> None:
    async with played() as world:
        ours = aborts(world)
        world.coordinator.machine.transactions[KEY] = known(4)
        world.parts["t", 0].stage(staged(1, 4, OTHER))
        world.parts["t", 1].stage(staged(2, 4, OTHER), staged(3, 0, SCHEDULED))
        world.parts["t", 2].serving = False
        for query, sink, found in (
            ("query", "t", [KEY]),
            (listed_name("other"), "t", [OTHER]),
            ("query", "u", []),
            ("other", "u", []),
            ("", "t", []),
            ("nobody", "t", []),
            (listed_name(""), "", []),  # what is to be due is no query's
        ):
            assert await ours._keys(query, sink) == found, (query, sink)
        deadline = asyncio.get_running_loop().time() + 5
        answer = await ours.abort_transaction(pb.AbortTransactionRequest(query="nobody", sink="t"), deadline)
        assert (answer.known, answer.batch_id, answer.published) == (False, -1, True)


@real_time
async def test_a_shorter_time_that_was_asked_for_counts_and_a_longer_one_does_not() -> None:
    now = asyncio.get_running_loop().time()
    assert until(0, now + 5) == now + 5
    assert until(1_000, now + 5) == pytest.approx(now + 1, abs=0.5)
    assert until(60_000, now + 5) == now + 5
    assert 1_700 < left_ms(now + 2) <= 1_800
    assert left_ms(now - 1) == 1
