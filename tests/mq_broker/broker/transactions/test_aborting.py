"""A dead query's key is aborted: what it staged goes, what it decided stays, and nothing more is written under it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.administration import retention
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.transactions import aborting
from mq_broker.broker.transactions import coordinator as transactions
from mq_broker.broker.transactions import upkeep as transaction_upkeep
from mq_broker.broker.transactions.requests import listed_name
from mq_broker.broker.transactions.upkeep import HeldUp
from mq_broker.core.entries import Fence, Forget, TransactionKey
from mq_broker.core.machine.state import TransactionState
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    NotLeader,
    StagedBatchMissing,
    TransactionAborted,
    TritonMQError,
)
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.test_three_brokers import Three, three

KEY = pb.TransactionKey(query_id="dead-query", sink="t")
NAME = listed_name("dead-query")


async def stage(
    broker: Broker, batch_id: int, *numbers: int, topic: str = "t", partition: int = 0, key: pb.TransactionKey = KEY
) -> pb.StagedBatches:
    name = uuid.uuid4().bytes
    place = pb.StageOf(key=key, batch_id=batch_id, run_id="run")
    await broker.produce(topic, *numbers, partition=partition, uuid=name, stage=place)
    return pb.StagedBatches(topic=topic, partition=partition, uuids=[name], row_count=len(numbers))


async def decide(
    broker: Broker, batch_id: int, *manifest: pb.StagedBatches, key: pb.TransactionKey = KEY, **fields: Any
) -> Any:
    count = sum(line.row_count for line in manifest)
    request = pb.DecideRequest(key=key, batch_id=batch_id, run_id="run", row_count=count, manifest=manifest, **fields)
    return await broker.ask("Decide", request)


async def abort(broker: Broker, name: str = NAME, sink: str = "t", **fields: Any) -> pb.AbortTransactionResponse:
    request = pb.AbortTransactionRequest(query=name, sink=sink, **fields)
    answer: pb.AbortTransactionResponse = await broker.ask("AbortTransaction", request)
    return answer


async def listed(broker: Broker, query: str = "") -> pb.TransactionsResponse:
    answer: pb.TransactionsResponse = await broker.ask("Transactions", pb.TransactionsRequest(query=query))
    return answer


async def sums(broker: Broker) -> list[tuple[str, str, int, int]]:
    return sorted((s.query, s.topic, s.partition, s.batches) for s in (await listed(broker)).staged)


def test_what_a_dead_query_staged_is_removed_and_nothing_more_is_written_under_its_key(tmp_path: Path) -> None:
    other = pb.TransactionKey(query_id="another", sink="t")

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=3)
            await stage(broker, 0, 1, 2)
            await stage(broker, 1, 3)
            line = await stage(broker, 0, 4, partition=1)
            others = await stage(broker, 0, 5, key=other)
            done = await abort(broker)
            assert (done.known, done.batch_id, done.published, done.discarded) == (True, -1, True, 3)
            assert list(done.unreached) == []
            assert await sums(broker) == [(listed_name("another"), "t", 0, 1)]
            for partition in range(3):  # also where it had staged nothing, but writes to
                with pytest.raises(TransactionAborted, match="new checkpoint"):
                    await stage(broker, 2, 6, partition=partition)
            with pytest.raises(TransactionAborted, match="new checkpoint"):
                await decide(broker, 0, line)
            assert (await abort(broker)).discarded == 0
            assert (await decide(broker, 0, others, key=other)).published
        async with standalone(tmp_path) as broker:
            await until(lambda: broker.end("t"))
            await until(lambda: _is_fenced(broker))
            await until(lambda: _is_listed_as_aborted(broker))
            assert await broker.numbers("t") == [5]

    asyncio.run(scenario())


async def _is_listed_as_aborted(broker: Broker) -> bool:
    return [known.aborted for known in (await listed(broker, "dead-query")).known] == [True]


async def _is_fenced(broker: Broker, partition: int = 0) -> bool:
    """Raises what else stands in the way; False if there is nothing."""
    try:
        await stage(broker, 3, 7, partition=partition)
    except TransactionAborted:
        return True
    return False


def test_what_was_decided_before_the_abort_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2)
            may_publish, publish = asyncio.Event(), transactions.Transactions.publish

            async def held(self: transactions.Transactions, request: pb.PublishRequest, deadline: float) -> Any:
                await may_publish.wait()
                return await publish(self, request, deadline)

            monkeypatch.setattr(transactions.Transactions, "publish", held)
            manifest = [await stage(broker, 4, 1, 2), await stage(broker, 4, 3, partition=1)]
            await stage(broker, 4, 1, 2)  # a task that lost
            await stage(broker, 5, 9)
            deciding = asyncio.create_task(decide(broker, 4, *manifest))
            await until(lambda: _is_decided(broker))
            done = await abort(broker, timeout_ms=3_000)
            assert (done.batch_id, done.published, done.discarded) == (4, False, 2)
            may_publish.set()
            assert (await deciding).published
            assert (await broker.numbers("t", 0), await broker.numbers("t", 1)) == ([1, 2], [3])
            assert (await decide(broker, 4, *manifest)).already_decided
            assert (await abort(broker)).published
            with pytest.raises(TransactionAborted):
                await decide(broker, 5)

    asyncio.run(scenario())


def test_an_abort_waits_while_it_has_time_for_what_was_decided_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            may_publish, publish = asyncio.Event(), transactions.Transactions.publish

            async def held(self: transactions.Transactions, request: pb.PublishRequest, deadline: float) -> Any:
                await may_publish.wait()
                return await publish(self, request, deadline)

            monkeypatch.setattr(transactions.Transactions, "publish", held)
            deciding = asyncio.create_task(decide(broker, 4, await stage(broker, 4, 1, 2)))
            await until(lambda: _is_decided(broker))
            aborted = asyncio.create_task(abort(broker, timeout_ms=20_000))
            await until(lambda: _is_listed_as_aborted(broker))
            may_publish.set()
            assert (await aborted).published
            assert (await deciding).published
            assert await broker.numbers("t") == [1, 2]

    asyncio.run(scenario())


class Elsewhere:
    """Two brokers that answer as they are told to: this one, 1, and broker 2."""

    def __init__(self, *answers: pb.FenceResponse) -> None:
        self.broker = 1
        self.brokers = {2: None}
        self._answers = iter(answers)

    async def ask_broker(self, *_: object) -> pb.FenceResponse:
        return next(self._answers)

    def partitions(self) -> list[Any]:
        return []


def test_a_partition_that_its_leader_has_fenced_is_done_though_a_follower_has_not_heard_of_it() -> None:
    t0, t1 = (pb.TopicPartition(topic="t", partition=number) for number in (0, 1))
    fenced = pb.FenceResponse()
    fenced.fenced.add(topic="t", partition=0, discarded=2)
    behind = pb.FenceResponse(left=[t0])
    both = pb.FenceResponse(left=[t0, t1])

    async def scenario(*answers: pb.FenceResponse) -> tuple[int, list[str]]:
        elsewhere: Any = Elsewhere(*answers)
        aborts = aborting.Aborting(elsewhere, elsewhere, elsewhere)
        deadline = asyncio.get_running_loop().time() + aborting.AGAIN_S * (len(answers) - 0.5)
        return await aborts._fence_everywhere(TransactionKey("q", "t"), (), deadline)

    fenced.left.extend([t0])
    assert asyncio.run(scenario(fenced)) == (2, [])
    assert asyncio.run(scenario(both)) == (
        0,
        ["t-0: it has no leader at the moment", "t-1: it has no leader at the moment"],
    )
    assert asyncio.run(scenario(behind, fenced)) == (2, [])


def test_a_partition_whose_fence_is_refused_is_told_as_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.metadata(TRANSACTIONS_TOPIC)  # made before the short request below
            await stage(broker, 0, 1, 2)
            ask = Partition.ask

            async def refused(self: Partition, operation: Any, deadline: float) -> Any:
                if isinstance(operation, Fence):
                    raise NotLeader("it has just lost the leadership")
                return await ask(self, operation, deadline)

            with monkeypatch.context() as patched:
                patched.setattr(Partition, "ask", refused)
                done = await abort(broker, timeout_ms=2_000)
                assert (done.discarded, list(done.unreached)) == (0, ["t-0: it has no leader at the moment"])
            done = await abort(broker)
            assert (done.discarded, list(done.unreached)) == (1, [])

    asyncio.run(scenario())


def test_a_sink_that_has_the_name_of_the_brokers_own_topic_has_nothing_fenced_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = pb.TransactionKey(query_id="dead-query", sink=TRANSACTIONS_TOPIC)
    ask, fenced = Partition.ask, []

    async def noting(self: Partition, operation: Any, deadline: float, **fields: Any) -> Any:
        if isinstance(operation, Fence):
            fenced.append(self.name)
        return await ask(self, operation, deadline, **fields)

    monkeypatch.setattr(Partition, "ask", noting)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await decide(broker, 0, key=key)
            await stage(broker, 1, 1, key=key)
            done = await abort(broker, sink=TRANSACTIONS_TOPIC)
            assert (done.known, done.discarded) == (True, 1)
            assert fenced == ["t-0"]

    asyncio.run(scenario())


def test_a_coordinator_is_given_nine_tenths_of_the_time_that_is_left() -> None:
    async def left_ms(seconds: float) -> int:
        return aborting.left_ms(asyncio.get_running_loop().time() + seconds)

    assert 8_000 < asyncio.run(left_ms(10.0)) <= 9_000
    assert asyncio.run(left_ms(-1.0)) == 1, "0 would be no bound"


async def _is_decided(broker: Broker) -> bool:
    return [known.batch_id for known in (await listed(broker)).known] == [4]


def test_listings_name_a_query_by_a_digest_and_tell_neither_its_key_nor_a_uuid(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2)
            await stage(broker, 3, 1, 2)
            line = await stage(broker, 4, 3, partition=1)
            everything = await listed(broker)
            staged = await broker.ask("Staged", pb.StagedRequest(topic="t"))
            for told in (everything, staged):
                assert b"dead-query" not in told.SerializeToString()
                assert line.uuids[0] not in told.SerializeToString()
            [first, second] = everything.staged
            assert (first.query, first.sink, first.batches, first.rows, first.first_batch_id) == (NAME, "t", 1, 2, 3)
            assert (second.partition, second.last_batch_id, second.pins) == (1, 4, False)
            for name in ("dead-query", NAME, "dead-query:t", f"{NAME}:t"):
                assert len((await listed(broker, name)).staged) == 2, name
            assert not (await listed(broker, "dead")).staged
            assert not (await abort(broker, "dead")).known
            assert not (await abort(broker, sink="another")).known
            assert not (await abort(broker, "")).known

    asyncio.run(scenario())


def test_a_listing_is_bounded_and_says_how_much_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborting, "LISTED_TRANSACTIONS_MAX", 2)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            for number in range(5):
                await decide(broker, 0, key=pb.TransactionKey(query_id=f"q{number}"))
            for number in range(3):
                await stage(broker, 1, 1, key=pb.TransactionKey(query_id=f"q{number}"))
            told = await listed(broker)
            assert [known.query for known in told.known] == [listed_name("q4"), listed_name("q3")]
            assert (len(told.staged), told.left_out) == (2, 4)
            assert len((await listed(broker, "q0")).known) == 1

    asyncio.run(scenario())


def test_what_is_staged_under_an_aborted_key_where_it_is_not_fenced_is_removed_by_the_reaper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REAP_EVERY_S", 0.05)
    monkeypatch.setattr(transactions, "REAP_AGE_S", 0.0)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            await broker.create_topic("elsewhere")
            await stage(broker, 0, 1)
            await abort(broker)
            await stage(broker, 0, 2, topic="elsewhere")
            await until(lambda: _nothing(broker))
            with pytest.raises(TransactionAborted):
                await stage(broker, 0, 3, topic="elsewhere")

    asyncio.run(scenario())


async def _nothing(broker: Broker) -> bool:
    return await sums(broker) == []


def test_an_operator_is_told_once_which_query_holds_up_retention_and_aborting_it_frees_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "CHECK_S", 0.05)
    monkeypatch.setattr(transaction_upkeep, "LOOK_S", 0.05)
    monkeypatch.setattr(transaction_upkeep, "ALARM_MS", 1)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            info = await broker.create_topic("t", retention_bytes="1kB", segment_bytes_max="64KiB")
            await stage(broker, 7, 1)
            for first in range(0, 40_000, 2_000):
                await broker.produce("t", *range(first, first + 2_000))
            await until(lambda: _pins(broker))
            await until(lambda: _said(caplog, "transaction abort " + NAME))
            assert not await _is_free(broker)
            before = _journal_bytes(tmp_path, info.topic_id)
            assert before > 5 * (64 << 10)
            await abort(broker)
            await until(lambda: _shorter(tmp_path, info.topic_id, before // 2))
            assert len([record for record in caplog.records if "transaction abort" in record.message]) == 1
            await until(lambda: _is_free(broker))

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


async def _pins(broker: Broker) -> bool:
    return [s.pins for s in (await listed(broker)).staged] == [True]


async def _is_free(broker: Broker) -> bool:
    return (await broker.ask("Observe", pb.ObserveRequest())).values["retention_held_up"] == 0


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.message for record in caplog.records)


async def _shorter(data: Path, topic_id: str, size: int) -> bool:
    return _journal_bytes(data, topic_id) < size


def _journal_bytes(data: Path, topic_id: str) -> int:
    """A segment that retention deletes after it was listed counts as nothing."""
    total = 0
    for path in data.rglob("*.log"):
        if topic_id in str(path):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
    return total


def test_retention_is_held_up_for_a_while_before_anybody_is_told_and_anew_after_it_was_free() -> None:
    key, another = TransactionKey("q", "t"), TransactionKey("r", "t")
    held_up = HeldUp(alarm_ms=100)
    assert held_up.look([("t-0", key)], 0) == []
    assert held_up.look([("t-0", key), ("t-0", another)], 99) == []
    assert held_up.look([("t-0", key), ("t-0", another)], 100) == [("t-0", key)]
    assert held_up.look([("t-0", key), ("t-0", another)], 199) == [("t-0", another)]
    assert held_up.look([("t-0", key)], 1_000) == []
    assert held_up.look([], 1_001) == []
    assert held_up.look([("t-0", key)], 1_002) == []
    assert held_up.look([("t-0", key)], 1_102) == [("t-0", key)]


def test_a_key_for_one_decision_is_forgotten_an_hour_after_it_was_published_and_not_before() -> None:
    """One that was aborted stays: nothing more may be written under it. One that is not published yet stays, too."""
    old, lasting, aborted, open_still = (TransactionKey(name, "t") for name in ("old", "lasting", "aborted", "open"))
    known = {
        old: TransactionState(0, "run", 1, (), True, (), once=True, changed_us=0),
        lasting: TransactionState(0, "run", 1, (), True, (), changed_us=0),
        aborted: TransactionState(0, "run", 1, (), True, (), aborted=True, once=True, changed_us=0),
        open_still: TransactionState(0, "run", 1, (), False, (), once=True, changed_us=0),
    }
    asked: list[object] = []

    async def ask(operation: object, _deadline: float) -> None:
        asked.append(operation)

    replica = SimpleNamespace(machine=SimpleNamespace(transactions=known))
    partition = SimpleNamespace(
        name="c-0", serving=True, topic=SimpleNamespace(internal=True), replica=replica, ask=ask
    )
    shell: Any = SimpleNamespace(partitions=lambda: [partition])
    for minutes, expected in ((59, []), (60, [Forget((old,))])):
        upkeep = transaction_upkeep.Upkeep(shell, lambda minutes=minutes: minutes * 60 * 1_000_000)  # type: ignore[misc]
        asyncio.run(upkeep.forget(transaction_upkeep.FORGET_US))
        assert asked == expected


def test_a_key_for_one_decision_is_forgotten_and_asked_again_writes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_upkeep, "LOOK_S", 0.05)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            line = await stage(broker, 0, 1, 2)
            await decide(broker, 0, line, once=True)
            await decide(broker, 0, key=pb.TransactionKey(query_id="app:lasting"))
            assert (await decide(broker, 0, line, once=True)).already_decided
            await asyncio.sleep(0.2)  # several rounds
            assert len((await listed(broker)).known) == 2, "within the hour it is known"
            monkeypatch.setattr(transaction_upkeep, "FORGET_US", 0)
            await until(lambda: _only_known(broker, "app:lasting"))
            await decide(broker, 0, line, once=True)
            assert await broker.numbers("t") == [1, 2]

    asyncio.run(scenario())


async def _only_known(broker: Broker, query_id: str) -> bool:
    return [known.query for known in (await listed(broker)).known] == [listed_name(query_id)]


def test_a_micro_batch_that_no_query_reaches_bricks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = _of_peers(monkeypatch)

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t")
            line = await stage(broker, 2**62, 1)
            for far in (2**62 + 1, 2**63 - 1, -1):
                with pytest.raises(InvalidRequest, match=r"2\^62"):
                    await stage(broker, far, 1)
                with pytest.raises(InvalidRequest, match=r"2\^62"):
                    await decide(broker, far)
                publish = pb.PublishRequest(topic="t", key=KEY, batch_id=far, uuids=line.uuids)
                with pytest.raises(InvalidRequest, match=r"2\^62"):
                    await peers[0].publish(publish, asyncio.get_running_loop().time() + 5)
            assert (await decide(broker, 0, await stage(broker, 0, 5))).published
            assert await broker.numbers("t") == [5]

    asyncio.run(scenario())


def _of_peers(monkeypatch: pytest.MonkeyPatch) -> list[transactions.Transactions]:
    """What answers other brokers: publishing and discarding are not asked of clients' ports. Of brokers started from
    now on."""
    begin, found = transactions.Transactions.__init__, []

    def noted(self: transactions.Transactions, *args: Any) -> None:
        begin(self, *args)
        found.append(self)

    monkeypatch.setattr(transactions.Transactions, "__init__", noted)
    return found


def test_a_decision_that_names_what_is_not_staged_for_it_is_refused_and_the_query_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = _of_peers(monkeypatch)
    other = pb.TransactionKey(query_id="another", sink="t")

    async def scenario() -> None:
        async with standalone(tmp_path) as broker:
            await broker.create_topic("t", partitions=2)
            theirs, earlier = await stage(broker, 1, 1, key=other), await stage(broker, 0, 2)
            nowhere = pb.StagedBatches(topic="t", partition=1, uuids=[uuid.uuid4().bytes], row_count=1)
            mine = await stage(broker, 1, 3, 4)
            for line in (theirs, earlier, nowhere):
                with pytest.raises(StagedBatchMissing):
                    await decide(broker, 1, mine, line)
            assert (await broker.ask("TransactionStatus", pb.TransactionStatusRequest(key=KEY))).known is False
            assert (await decide(broker, 1, mine)).published
            discard = pb.DiscardRequest(topic="t", key=KEY, uuids=theirs.uuids)
            assert (await peers[0].discard(discard, asyncio.get_running_loop().time() + 5)).discarded == 0
            assert (await decide(broker, 1, theirs, key=other)).published
            assert await broker.numbers("t") == [3, 4, 1]

    asyncio.run(scenario())


def test_an_abort_survives_its_coordinator_and_the_leader_where_it_staged(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with three(zookeeper, tmp_path) as cluster:
            await cluster[1].create_topic("t", partitions=3, replicas=3)
            await cluster[1].metadata(TRANSACTIONS_TOPIC)
            for partition in range(3):
                await stage(cluster[await cluster.leader("t", partition, at=1)], 0, 1, partition=partition)
            fencing, fence = asyncio.Event(), aborting.Aborting._fence_everywhere

            async def never(*_: object) -> Any:
                fencing.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(aborting.Aborting, "_fence_everywhere", never)
            asked = await cluster.leader("t", at=1)
            aborting_first = asyncio.create_task(abort(cluster[asked], timeout_ms=3_000))
            await asyncio.wait_for(fencing.wait(), 20)  # the abort is committed, and nothing is fenced
            coordinator = await _coordinator(cluster)
            await cluster[coordinator].abandon()
            monkeypatch.setattr(aborting.Aborting, "_fence_everywhere", fence)
            await asyncio.gather(aborting_first, return_exceptions=True)
            alive = 1 + coordinator % 3
            await cluster.leader("t", at=alive, not_=coordinator)
            done = await until(lambda: _aborted_whole(cluster, alive))
            assert done.published
            for partition in range(3):
                leader = await cluster.leader("t", partition, at=alive, not_=coordinator)
                await until(functools.partial(_is_fenced, cluster[leader], partition))

    asyncio.run(scenario())


async def _coordinator(cluster: Three) -> int:
    """Who leads the partition in which the key is."""
    for number, broker in cluster.brokers.items():
        if (await listed(broker, "dead-query")).known:
            return number
    raise AssertionError("nobody knows the key")


async def _aborted_whole(cluster: Three, alive: int) -> pb.AbortTransactionResponse | None:
    """Asked again at whoever knows the key now; None until there is nothing left."""
    for broker in cluster.brokers.values():
        try:
            answer = await abort(broker, timeout_ms=3_000)
        except TritonMQError:
            continue
        except AssertionError:  # the one that is gone has no channel
            continue
        if answer.known:
            return answer if not answer.unreached else None
    return None
