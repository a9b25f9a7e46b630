"""Whoever is above a quota waits, or is refused by name; nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from grpc import aio

from mq_broker.measured import QUOTA_REFUSALS, QUOTA_WAITS
from mq_dev.embedded_zookeeper import free_port
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import (
    InvalidRequest,
    InvalidSetting,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    TritonMQError,
)
from mq_protocol.methods import BROKER
from tests.by_grpc import from_call
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import DEADLINE_S, SCHEMA, Broker, numbers_in, standalone, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.queues.members import of

pytestmark = pytest.mark.usefixtures("named")

GREEDY, MODEST = "User:greedy", "User:modest"
ROW_BYTES = 64 << 10


def large(*numbers: int) -> pa.RecordBatch:
    """A batch of a known size: each row has 64 KiB."""
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(["x" * ROW_BYTES] * len(numbers))], schema=SCHEMA)


async def limit(broker: Broker, principal: str, **limits: int) -> None:
    await broker.ask("AlterQuotas", pb.AlterQuotasRequest(principal=principal, set=limits))


async def unlimit(broker: Broker, principal: str, *quotas: str) -> None:
    await broker.ask("AlterQuotas", pb.AlterQuotasRequest(principal=principal, unset=quotas))


@contextlib.asynccontextmanager
async def served(data: Path, **settings: Any) -> AsyncIterator[tuple[As, As, As]]:
    """Somebody who may do everything, and two users who may do all with topics; there is a topic `t`."""
    async with judging(data, **settings) as broker:
        root = As(broker, ROOT)
        await root.create_topic("t", durability="memory")
        for who in (GREEDY, MODEST):
            names = (("Topic", operation) for operation in ("Read", "Write", "Create", "Alter", "Delete"))
            rights = [*names, ("Group", "Read"), ("Group", "Create"), ("Lock", "Write")]
            await root.allow(
                *(pb.AclRule(principal=who, operation=what, kind=kind, name="", prefix=True) for kind, what in rights)
            )
        yield root, As(broker, GREEDY), As(broker, MODEST)


def waits_of(quota: str) -> float:
    """Seconds for which this quota has held somebody back so far."""
    return QUOTA_WAITS.rows().get((quota,), 0)


async def write(who: Broker, count: int) -> float:
    """So many batches of 64 KiB by one stream, all answered: how many seconds it took."""
    began = asyncio.get_running_loop().time()
    async with who.producing() as stream:
        sending = asyncio.create_task(_send(stream, count))
        for _ in range(count):
            assert not (await stream.result()).HasField("error")
        await sending
    return asyncio.get_running_loop().time() - began


async def _send(stream: Any, count: int) -> None:
    for number in range(count):
        await stream.send("t", encode_batch(large(number)), 1)


@virtual_time
async def test_a_greedy_producer_waits_and_a_modest_one_does_not(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await limit(root, GREEDY, produce=4 * ROW_BYTES)
        waited = waits_of("produce")
        writing = asyncio.create_task(write(greedy, 12))
        others = []
        while not writing.done():
            others.append(await write(modest, 1))
        took = await writing
        assert took > 1.5, "twelve batches, four a second, and a second's worth at once"
        assert len(others) > 10
        assert sorted(others)[len(others) // 2] < 0.5
        assert QUOTA_WAITS.rows()["produce",] - waited > 1
        assert await root.end("t") == 12 + len(others), "nothing was refused, lost or doubled"


@virtual_time
async def test_a_quota_that_is_raised_lets_those_go_on_who_wait(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, _):
        await limit(root, GREEDY, produce=ROW_BYTES // 16)
        waited = waits_of("produce")
        writing = asyncio.create_task(write(greedy, 6))
        await until(of(lambda: waits_of("produce") > waited))
        assert not writing.done(), "this takes more than a minute"
        await unlimit(root, GREEDY, "produce")
        await asyncio.wait_for(writing, DEADLINE_S)


@virtual_time
async def test_reading_pauses_between_messages(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await write(root, 16)
        await limit(root, GREEDY, fetch=4 * ROW_BYTES)
        began = asyncio.get_running_loop().time()
        found = await greedy.fetch("t", 0, 16)
        assert [n for _, payload in found for n in numbers_in(payload)] == list(range(16))
        assert asyncio.get_running_loop().time() - began > 1.5, "sixteen batches, four a second"
        await limit(root, GREEDY, fetch=8 * ROW_BYTES)
        began = asyncio.get_running_loop().time()
        async with greedy.subscribing() as subscription:
            await subscription.open("t", earliest=True, credit=1 << 30)
            assert await subscription.read_numbers(16) == list(range(16))
        assert asyncio.get_running_loop().time() - began > 0.7
        await limit(root, GREEDY, fetch=ROW_BYTES // 100)  # the greedy one would need half an hour
        await modest.fetch("t", 0, 16)


@virtual_time
async def test_requests_wait_and_then_are_refused_with_the_time_to_ask_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await limit(root, GREEDY, requests=10)
        refused = QUOTA_REFUSALS.rows()["requests",]

        async def ask() -> TritonMQError | None:
            try:
                await greedy.end("t")
            except TritonMQError as error:
                return error
            return None

        answers = await asyncio.gather(*(ask() for _ in range(60)))
        errors = [error for error in answers if error is not None]
        assert all(isinstance(error, Overloaded) for error in errors)
        assert 20 <= len(errors) <= 45, "ten at once, ten more within a second, and what the time takes"
        assert QUOTA_REFUSALS.rows()["requests",] - refused == len(errors)
        first = errors[0]
        assert isinstance(first, Overloaded)
        assert 1_000 < first.retry_after_ms < 3_000
        assert "User:greedy is above its quota of requests, which is 10/s" in str(first)
        await modest.end("t")
        await asyncio.sleep(first.retry_after_ms / 1000)
        assert await ask() is None


@virtual_time
async def test_acknowledgements_are_never_held_back(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, _):
        await limit(root, GREEDY, requests=1)
        await greedy.end("t")
        with pytest.raises(Overloaded):
            await asyncio.gather(*(greedy.end("t") for _ in range(4)))
        for _ in range(400):  # one a second would outlast the test
            position = pb.CursorPosition(topic="t", offset=0)
            await greedy.ask("MoveCursors", pb.MoveCursorsRequest(group="g", kind="spark", positions=[position]))


@virtual_time
async def test_streams_above_the_quota_are_refused_by_name(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await limit(root, GREEDY, streams=2)
        async with greedy.producing() as one, greedy.producing() as two:
            for stream in (one, two):
                await stream.send("t", encode_batch(large(1)), 1)
                assert not (await stream.result()).HasField("error")
            with pytest.raises(QuotaExceeded, match=r"has 2 streams open at this broker.*--streams 4"):
                await greedy.fetch("t", 0, 1)
            await modest.fetch("t", 0, 1)
        assert await until(lambda: greedy.fetch("t", 0, 1)), "streams that are over do not count"


@real_time
async def test_connections_above_the_quota_are_refused_by_name(tmp_path: Path) -> None:
    """By gRPC, where one carries many calls. Those of a host that carry one each count as one."""
    address = f"127.0.0.1:{free_port()}"

    async def lock(name: str) -> aio.Channel:
        """On a connection of its own, on which the lock is kept."""
        channel = aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        call: Any = channel.stream_stream(BROKER.path("Lock"), None, None)
        stream = call(metadata=(("authorization", f"Bearer {GREEDY}"),))
        try:
            await stream.write(pb.LockRequest(name=name, wait_ms=600_000).SerializeToString())
            if await stream.read() is aio.EOF:  # type: ignore[attr-defined]
                raise aio.AioRpcError(
                    await stream.code(), await stream.initial_metadata(), await stream.trailing_metadata()
                )
        except aio.AioRpcError as error:
            await channel.close(None)
            raise from_call(error, "") from error
        return channel

    async with served(tmp_path, grpc=address) as (root, _, modest):
        await limit(root, GREEDY, connections=2)
        channels = [await lock(name) for name in ("a", "b")]
        with pytest.raises(QuotaExceeded, match="has 2 connections in use at this broker"):
            await lock("c")
        await modest.end("t")
        for channel in channels:
            await channel.close(None)


@virtual_time
async def test_topics_and_partitions_count_for_who_made_them(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, modest):
        await limit(root, GREEDY, topics=3, partitions=10)
        await greedy.create_topic("a", partitions=4)
        with pytest.raises(QuotaExceeded, match=r"has 4 partitions, and 7 more are asked for.*allows 10"):
            await greedy.create_topic("b", partitions=7)
        await greedy.create_topic("b", partitions=5)
        with pytest.raises(QuotaExceeded, match="partitions"):
            await modest.ask("AlterTopic", pb.AlterTopicRequest(name="a", partitions=6))
        await modest.ask("AlterTopic", pb.AlterTopicRequest(name="a", partitions=5))
        await root.ask("AlterTopic", pb.AlterTopicRequest(name="a", partitions=6))
        await unlimit(root, GREEDY, "partitions")
        made = await asyncio.gather(*(greedy.create_topic(f"c{number}") for number in range(4)), return_exceptions=True)
        assert [type(each) for each in made].count(QuotaExceeded) == 3, "two at once do not pass as one"
        await modest.create_topic("d")
        await modest.ask("DeleteTopic", pb.DeleteTopicRequest(name="a"))
        await greedy.create_topic("e")


@virtual_time
async def test_superusers_have_no_quotas_and_may_lift_the_lowest(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, _):
        await limit(root, "*", requests=1, produce=1, fetch=1, streams=1, connections=10, topics=1, partitions=1)
        await asyncio.gather(*(root.end("t") for _ in range(20)))
        await root.create_topic("u", partitions=3)
        with pytest.raises(Overloaded):
            await asyncio.gather(*(greedy.end("t") for _ in range(4)))
        told = await root.ask("Quotas", pb.QuotasRequest())
        assert told.quotas[0].principal == "*"
        assert told.quotas[0].limits["requests"] == 1
        assert told.in_force == told.version
        await unlimit(root, "*", *Quota)
        assert not (await root.ask("Quotas", pb.QuotasRequest())).quotas


@virtual_time
async def test_quotas_are_set_whole_or_not_at_all_and_only_by_who_may(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, greedy, _):
        for method, request in (
            ("Quotas", pb.QuotasRequest()),
            ("AlterQuotas", pb.AlterQuotasRequest(principal=GREEDY, set={"produce": -1})),
        ):
            with pytest.raises(PermissionDenied):
                await greedy.ask(method, request)
        with pytest.raises(InvalidRequest):
            await root.ask("AlterQuotas", pb.AlterQuotasRequest(principal=GREEDY))
        with pytest.raises(InvalidSetting, match="prodice"):
            await limit(root, GREEDY, produce=5, prodice=5)
        with pytest.raises(InvalidSetting):
            await limit(root, GREEDY, produce=5, fetch=0)
        with pytest.raises(InvalidRequest):
            await limit(root, "Broker:1", produce=5)
        assert not (await root.ask("Quotas", pb.QuotasRequest())).quotas


@virtual_time
async def test_quotas_outlast_the_broker_and_hold_where_rights_are_not_judged(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        await broker.create_topic("t")
        await limit(broker, "User:ANONYMOUS", requests=1)
    async with standalone(tmp_path) as broker:

        async def is_in_force() -> bool:
            try:
                await asyncio.gather(*(broker.metadata("t") for _ in range(6)))
            except Overloaded:
                return True
            return False

        await until(is_in_force)
        await unlimit(broker, "User:ANONYMOUS", "requests")
        await asyncio.gather(*(broker.metadata("t") for _ in range(6)))
