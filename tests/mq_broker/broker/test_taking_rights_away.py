"""A right that is taken away is gone on open streams too; what is listed is what the asker may see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.administration.rights import acls
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_broker.security.rules import document_of
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import InvalidTopicName, PermissionDenied, UnknownTopic
from mq_protocol.wire.error_messages import from_wire
from tests.coroutines import virtual_time
from tests.mq_broker.broker.channel import Call
from tests.mq_broker.broker.cluster import Broker, rows, shared, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.virtual.world import in_virtual_time

pytestmark = pytest.mark.usefixtures("named")

ETL = "User:etl"


def rule(operation: str, kind: str = "Topic", name: str = "t", who: str = ETL, *, deny: bool = False) -> pb.AclRule:
    prefix = name.endswith("*")
    return pb.AclRule(
        principal=who, operation=operation, kind=kind, name=name.removesuffix("*"), prefix=prefix, deny=deny
    )


@contextlib.asynccontextmanager
async def served(data: Path, **settings: Any) -> AsyncIterator[tuple[As, As]]:
    """Somebody who may do everything, and `User:etl`; there is a topic `t`."""
    async with judging(data, **settings) as broker:
        root = As(broker, ROOT)
        await root.create_topic("t")
        yield root, As(broker, ETL)


@virtual_time
async def test_a_producers_next_batch_is_refused_and_its_stream_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.create_topic("u")
        await root.allow(rule("Write"), rule("Write", name="u"))
        async with etl.producing() as stream:
            await stream.send("t", encode_batch(rows(1)), 1)
            assert not (await stream.result()).HasField("error")
            await root.take_away(rule("Write"))
            await stream.send("t", encode_batch(rows(2)), 1)
            await stream.send("u", encode_batch(rows(3)), 1)
            first, second = await stream.result(), await stream.result()
            refused = from_wire(first.error)
            assert isinstance(refused, UnknownTopic), "nothing of it may be described any more"
            assert "or you have no right to it: an administrator looks by `tritonmq acl list`" in str(refused)
            assert not second.HasField("error")
            await root.allow(rule("Describe"))
            await stream.send("t", encode_batch(rows(4)), 1)
            assert isinstance(from_wire((await stream.result()).error), PermissionDenied)
            await root.allow(rule("Write"))
            await stream.send("t", encode_batch(rows(5)), 1)
            assert not (await stream.result()).HasField("error")
        assert await root.numbers("t") == [1, 5]


async def watching(etl: Broker) -> Call:
    return await etl.channel.begin("WatchOffsets", pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic="t")]))


async def _subscribed(etl: Broker) -> Call:
    wanted = [pb.SubscribePartition(topic="t", earliest=True)]
    opening = pb.SubscribeOpen(group="g", member_id="m", member_key=b"k" * 16, partitions=wanted)
    return await etl.channel.begin("Subscribe", pb.SubscribeRequest(open=opening))


async def _locking(etl: Broker) -> Call:
    return await etl.channel.begin("Lock", pb.LockRequest(name="l", wait_ms=0))


OPEN: dict[str, tuple[Callable[[Broker], Awaitable[Call]], list[pb.AclRule]]] = {
    "WatchOffsets": (watching, [rule("Describe")]),
    "Subscribe, topic": (_subscribed, [rule("Read")]),
    "Subscribe, group": (_subscribed, [rule("Read", "Group", "g")]),
    "Lock": (_locking, [rule("Write", "Lock", "l")]),
}


@pytest.mark.parametrize("how", ["taken", "denied"])
@pytest.mark.parametrize("what", OPEN)
@virtual_time
async def test_an_open_stream_ends_when_its_right_is_gone(what: str, how: str, tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        opening, lost = OPEN[what]
        await root.allow(
            rule("Describe"),
            rule("Read"),
            rule("Read", "Group", "g"),
            rule("Write", "Lock", "l"),
            rule("Read", name="x"),
        )
        call = await opening(etl)
        assert await call.read() is not None
        await root.take_away(rule("Read", name="x"))  # a change that has nothing to do with it
        await root.allow(rule("Read", name="y"))
        ending = asyncio.create_task(call.error())
        await asyncio.wait([ending], timeout=0.2)
        assert not ending.done()
        if how == "taken":
            also = [rule("Read")] if what == "WatchOffsets" else []
            await root.take_away(*lost, *also)
        else:
            await root.allow(*(rule(each.operation, each.kind, each.name, deny=True) for each in lost))
        error = await ending
        assert isinstance(error, PermissionDenied | UnknownTopic), error


def test_rights_are_gone_at_a_broker_that_was_not_asked(tmp_path: Path) -> None:
    """ZooKeeper tells it: it is over before anybody looks by himself."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        over = loop.time() + acls.SWEEP_S
        make = shared("", LASTING_MS, "/rights")
        async with (
            judging(tmp_path / "1", coordination=make) as first,
            judging_second(tmp_path / "2", make) as second,
        ):
            root, etl = As(first, ROOT), As(second, ETL)
            await root.create_topic("t")
            await until(lambda: _knows(As(second, ROOT)))
            for _ in range(3):
                await root.allow(rule("Describe"))
                await until(lambda: _described(etl))
                call = await watching(etl)
                assert await call.read() is not None
                await root.take_away(rule("Describe"))
                assert isinstance(await call.error(), UnknownTopic)
            assert loop.time() < over

    async def _knows(root: As) -> bool:
        return bool((await root.metadata("t")).topics)

    async def _described(etl: As) -> bool:
        return bool((await etl.metadata("t")).topics)

    in_virtual_time(main())


@contextlib.asynccontextmanager
async def judging_second(data: Path, make: Callable[[], Any]) -> AsyncIterator[Broker]:
    from mq_broker.broker import BrokerConfig
    from mq_broker.security.names import Principal

    config = BrokerConfig(
        2, "127.0.0.1:0", data, authorize=True, superusers=(Principal.parse(ROOT),), coordination=make
    )
    broker = Broker(config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


# ---------------------------------------------------------------- what is listed


def test_lists_tell_only_what_may_be_described(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (root, etl):
            await root.create_topic("secret")
            for topic in ("t", "secret"):
                await root.ask("AlterQueue", pb.AlterQueueRequest(topic=topic, group="work"))
                await root.ask("AlterQueue", pb.AlterQueueRequest(topic=topic, group="hidden"))
                for group in ("readers", "others"):
                    positions = [pb.CursorPosition(topic=topic)]
                    move = pb.MoveCursorsRequest(group=group, kind="spark", positions=positions)
                    assert not (await root.ask("MoveCursors", move)).partitions[0].HasField("error")
                key = pb.TransactionKey(query_id=f"q-{topic}", sink=topic)
                await root.produce(topic, 1, stage=pb.StageOf(key=key, batch_id=0, run_id="r"))
            assert await _seen(etl) == ([], ["secret", "t"], [], [], [], [])
            await root.allow(rule("Read"), rule("Describe", "Group", "readers"), rule("Describe", "Group", "work"))
            await root.allow(rule("Describe", "Transaction", "q-t"))
            assert await _seen(etl) == (["t"], ["secret"], [("t", "readers")], [("t", "work")], ["t"], ["t"])
            everything = await _seen(root)
            assert everything[:2] == (["secret", "t"], [])
            assert len(everything[2]) == len(everything[3]) == 4
            assert sorted(everything[4]) == ["secret", "t"]
            with pytest.raises(UnknownTopic):
                await etl.ask("Queues", pb.QueuesRequest(topic="secret"))
            with pytest.raises(UnknownTopic):
                await etl.ask("Staged", pb.StagedRequest(topic="secret"))

    async def _seen(who: As) -> tuple[list[Any], ...]:
        every = await who.metadata()
        named_ones = await who.metadata("secret", "t")
        groups = await who.ask("Groups", pb.GroupsRequest())
        queues = await who.ask("Queues", pb.QueuesRequest())
        staged = await who.ask("Staged", pb.StagedRequest())
        transactions = await who.ask("Transactions", pb.TransactionsRequest())
        return (
            [topic.name for topic in every.topics],
            sorted(named_ones.unknown_topics),
            [(cursor.topic, cursor.group) for cursor in groups.cursors],
            [(queue.topic, queue.group) for queue in queues.queues],
            [each.topic for each in staged.staged],
            [each.topic for each in transactions.staged],
        )

    in_virtual_time(main())


@virtual_time
async def test_a_topic_that_is_hidden_and_one_that_is_not_there_are_told_alike(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.create_topic("secret-1")
        await root.allow(rule("Delete", name="secret-2"))
        for method, kind in (("DeleteTopic", pb.DeleteTopicRequest), ("AlterTopic", pb.AlterTopicRequest)):
            told = []
            for name in ("secret-1", "secret-3"):
                with pytest.raises(UnknownTopic) as error:
                    await etl.ask(method, kind(name=name))
                told.append(str(error.value).replace(name, "NAME"))
            assert told[0] == told[1]
        await root.allow(rule("Write", name="of-its-own"))  # else the stream is refused when it is opened
        async with etl.producing() as stream:
            told = []
            for name in ("secret-1", "secret-3"):
                await stream.send(name, encode_batch(rows(1)), 1)
                told.append((await stream.result()).error.message.replace(name, "NAME"))
            assert told[0] == told[1] != ""
        with pytest.raises(UnknownTopic) as near:
            await etl.ask("DeleteTopic", pb.DeleteTopicRequest(name="secret-2"))
        assert "secret-1" not in str(near.value)


@virtual_time
async def test_an_abort_of_what_may_not_be_aborted_finds_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.metadata("__transactions")
        key = pb.TransactionKey(query_id="q", sink="t")
        await root.produce("t", 1, stage=pb.StageOf(key=key, batch_id=0, run_id="r"))
        request = pb.AbortTransactionRequest(query="q", sink="t", timeout_ms=5_000)
        await root.allow(rule("Describe", "Transaction", "q"))
        assert not (await etl.ask("AbortTransaction", request)).known
        await root.allow(rule("Abort", "Transaction", "q"))
        answer = await etl.ask("AbortTransaction", request)
        assert (answer.known, answer.discarded) == (True, 1)


# ---------------------------------------------------------------- rules


@virtual_time
async def test_rules_survive_a_restart_and_a_document_that_is_not_ours_allows_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, _):
        await root.allow(rule("Describe"))
    async with judging(tmp_path) as broker:
        assert (await As(broker, ETL).metadata("t")).topics
    stored = CoordinationService(FileStore(tmp_path))
    await stored.start(lambda _event: None)
    name = document_of("User:somebody")
    assert name != document_of(ETL)
    await stored.security.write({name: (-1, b"not ours")})
    await stored.stop()
    async with judging(tmp_path) as broker:
        assert not (await As(broker, ETL).metadata("t")).topics
        assert (await As(broker, ROOT).metadata("t")).topics


# ---------------------------------------------------------------- the audit log


@virtual_time
async def test_the_audit_log_says_who_was_refused_and_who_changed_what(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.allow(rule("Describe"), rule("Read", name="of-its-own"))
        with pytest.raises(PermissionDenied):
            await etl.fetch("t", 0, 1)
        for number in range(100):
            with pytest.raises(InvalidTopicName):
                await etl.fetch(f'forged\n{{"verdict":"allowed"}}{number}', 0, 1)
    log = tmp_path / "audit.log"
    assert stat.S_IMODE(log.stat().st_mode) & 0o137 == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(line["broker"] == 1 for line in lines)
    made = next(line for line in lines if line.get("method") == "CreateTopic")
    assert (made["principal"], made["verdict"], made["resource"]) == (ROOT, "allowed", "topic 't'")
    changed = next(line for line in lines if line.get("method") == "AlterAcls" and line["operation"] == "add")
    assert json.loads(changed["resource"]) == [ETL, "allow", "Describe", "Topic", "t", False]
    refused = [line for line in lines if line.get("principal") == ETL]
    assert refused[0]["resource"] == "topic 't'"
    assert len(refused) == 10, "no more of one kind in a minute"
    assert {(line["verdict"], line["method"], line["operation"]) for line in refused} == {("denied", "Fetch", "Read")}


# ---------------------------------------------------------------- clients


@virtual_time
async def test_an_observation_tells_only_what_may_be_described(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.create_topic("secret")
        for topic in ("t", "secret"):
            for group in ("readers", "others"):
                positions = [pb.CursorPosition(topic=topic)]
                await root.ask("MoveCursors", pb.MoveCursorsRequest(group=group, kind="spark", positions=positions))
        await root.allow(rule("Read"), rule("Describe", "Group", "readers"))
        everything = pb.ObserveRequest(detail=pb.PARTITIONS)
        seen = await etl.ask("Observe", everything)
        assert [row.name for row in seen.topics] == [row.topic for row in seen.partitions] == ["t"]
        assert [(row.topic, row.group) for row in seen.groups] == [("t", "readers")]
        assert (dict(seen.values), dict(seen.left_out)) == ({}, {})
        named = await etl.ask("Observe", pb.ObserveRequest(detail=pb.TOPICS, topics=["secret"]))
        assert not named.topics
        await root.allow(rule("Metrics", "Cluster", "cluster"))
        whole = await etl.ask("Observe", everything)
        assert sorted(row.name for row in whole.topics) == ["secret", "t"]
        assert whole.values
