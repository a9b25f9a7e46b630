"""A dead query's key is aborted: what it staged goes, what it decided stays, and nothing more is written under it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.transactions import aborting
from mq_broker.broker.transactions import coordinator as transactions
from mq_broker.broker.transactions import upkeep as transaction_upkeep
from mq_broker.broker.transactions.requests import listed_name
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    InvalidRequest,
    TransactionAborted,
    TritonMQError,
)
from mq_protocol.names import TRANSACTIONS_TOPIC
from tests.coroutines import virtual_time
from tests.mq_broker.broker.cluster import Broker, standalone, until
from tests.mq_broker.broker.test_three_brokers import Three, three
from tests.virtual.world import in_virtual_time

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

    in_virtual_time(scenario())


async def _is_listed_as_aborted(broker: Broker) -> bool:
    return [known.aborted for known in (await listed(broker, "dead-query")).known] == [True]


async def _is_fenced(broker: Broker, partition: int = 0) -> bool:
    """Raises what else stands in the way; False if there is nothing."""
    try:
        await stage(broker, 3, 7, partition=partition)
    except TransactionAborted:
        return True
    return False


@virtual_time
async def test_listings_name_a_query_by_a_digest_and_tell_neither_its_key_nor_a_uuid(tmp_path: Path) -> None:
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


@virtual_time
async def test_an_operator_is_told_once_which_query_holds_up_retention_and_aborting_it_frees_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a minute: a batch of a few bytes does it, and a disk is full in less than an hour."""
    caplog.set_level(logging.ERROR)
    async with standalone(tmp_path) as broker:
        info = await broker.create_topic("t", retention_bytes="1kB", segment_bytes_max="64KiB")
        await stage(broker, 7, 1)
        for first in range(0, 40_000, 2_000):
            await broker.produce("t", *range(first, first + 2_000))
        await until(lambda: _pins(broker))
        await until(lambda: _said(caplog, "transaction abort " + NAME), 60.0)
        assert not await _is_free(broker)
        before = _journal_bytes(tmp_path, info.topic_id)
        assert before > 5 * (64 << 10)
        await abort(broker)
        await until(lambda: _shorter(tmp_path, info.topic_id, before // 2))
        assert len([record for record in caplog.records if "transaction abort" in record.message]) == 1
        await until(lambda: _is_free(broker))


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


@virtual_time
async def test_a_key_for_one_decision_is_forgotten_and_asked_again_writes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        line = await stage(broker, 0, 1, 2)
        await decide(broker, 0, line, once=True)
        await decide(broker, 0, key=pb.TransactionKey(query_id="app:lasting"))
        assert (await decide(broker, 0, line, once=True)).already_decided
        await asyncio.sleep(60)  # several rounds
        assert len((await listed(broker)).known) == 2, "within the hour it is known"
        monkeypatch.setattr(transaction_upkeep, "FORGET_US", 0)
        await until(lambda: _only_known(broker, "app:lasting"))
        await decide(broker, 0, line, once=True)
        assert await broker.numbers("t") == [1, 2]


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

    in_virtual_time(scenario())


def _of_peers(monkeypatch: pytest.MonkeyPatch) -> list[transactions.Transactions]:
    """What answers other brokers: publishing and discarding are not asked of clients' ports. Of brokers started from
    now on."""
    begin, found = transactions.Transactions.__init__, []

    def noted(self: transactions.Transactions, *args: Any) -> None:
        begin(self, *args)
        found.append(self)

    monkeypatch.setattr(transactions.Transactions, "__init__", noted)
    return found


@virtual_time
async def test_an_abort_survives_its_coordinator_and_the_leader_where_it_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path) as cluster:
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
