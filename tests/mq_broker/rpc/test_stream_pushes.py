"""Subscribe, Work and WatchOffsets at the port for calls, and clients that lie, stop or read nothing."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import context, read
from mq_protocol.errors import InvalidRequest, RequestTooLarge, TritonMQError
from mq_protocol.methods import BROKER
from mq_protocol.methods import Kind as MethodKind
from mq_protocol.wire.call import PREAMBLE, Kind, parsed, say
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import (
    DEADLINE_S,
    Client,
    connected,
    opening,
    server_tls,
    serving,
    until,
)
from tests.securing import Certs


def credit(size: int) -> list[Any]:
    request = pb.SubscribeRequest(credit=pb.SubscribeCredit(bytes=size))
    return say(Kind.MESSAGE, request.SerializeToString())


def watching(*topics: str) -> list[Any]:
    request = pb.WatchOffsetsRequest(partitions=[pb.TopicPartition(topic=topic) for topic in topics])
    return [*opening("WatchOffsets"), *say(Kind.MESSAGE, request.SerializeToString()), *say(Kind.END)]


async def kinds(client: Client, count: int) -> list[Kind]:
    return [message.kind for message in [await client.hear() for _ in range(count)] if message is not None]


@real_time
async def test_batches_are_pushed_while_the_client_speaks_and_the_connection_serves_another_call() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE])
        for _ in range(2):
            client.say(opening("Subscribe"))
            for size in (0, 7, 300_000):
                client.say(credit(size))
                pushed = await client.hear()
                assert pushed is not None
                [described] = parsed(pushed.body, pb.BatchesHeader).batches
                assert (described.payload_bytes, len(pushed.payload)) == (size, size)
            client.say(say(Kind.END))
            assert await kinds(client, 1) == [Kind.END]
        work = pb.WorkRequest(sessions=[pb.SessionRequest(session=n) for n in (3, 4)])
        client.say(opening("Work"), say(Kind.MESSAGE, work.SerializeToString()), say(Kind.END))
        told = await client.hear()
        assert told is not None
        assert [each.session for each in parsed(told.body, pb.WorkHeader).sessions] == [3, 4]
        assert bytes(told.payload) == b"rr"
        assert await kinds(client, 1) == [Kind.END]


@real_time
async def test_a_watch_lasts_until_its_client_goes() -> None:
    async with serving() as served:
        async with connected(served) as client:
            client.say([PREAMBLE], watching("a", "b"))
            for topic in ("a", "b"):
                told = await client.hear()
                assert told is not None
                assert [each.topic for each in parsed(told.body, pb.WatchOffsetsResponse).offsets] == [topic]
            assert len(served.gate.calls) == 1
            assert not served.service.ended.is_set()
        async with asyncio.timeout(DEADLINE_S):
            await served.service.ended.wait()
        await until(lambda: not served.gate.calls)


@real_time
async def test_who_reads_nothing_is_sent_no_more_and_its_call_ends_with_it() -> None:
    async with serving() as served:
        async with connected(served) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.say([PREAMBLE], opening("Subscribe"), *[credit(1 << 20) for _ in range(100)])
            await until(lambda: any(not wire._room.is_set() for wire in served.server._wires))
            for _ in range(20):
                await asyncio.sleep(0)
            assert served.service.sent < 50  # TCP may have taken one more meanwhile
        async with asyncio.timeout(DEADLINE_S):
            await served.service.ended.wait()


@real_time
async def test_over_tls_nothing_is_said_within_a_message_that_waits_for_its_reader(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    theirs = context(read(certs.user("etl").files()), server=False)
    count, size = 12, 1_000_000
    async with serving(tls=server_tls(certs)) as served, connected(served, theirs) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.say([PREAMBLE], opening("Subscribe"), *[credit(size) for _ in range(count)])
        await until(lambda: any(wire.is_torn for wire in served.server._wires))
        [wire] = served.server._wires
        client.say(say(Kind.PING))
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        pushed = 0
        while pushed < count:
            message = await client.hear()
            assert message is not None
            if message.kind is Kind.MESSAGE:
                pushed += 1
                assert bytes(message.payload) == bytes(size)
                client.say(say(Kind.PING))
            else:
                assert message.kind is Kind.PONG
        await until(lambda: not wire.is_torn)


def bound(method: str) -> int:
    return BROKER.methods[method].bound.bytes_max


@pytest.mark.parametrize("method", ["Subscribe", "Work", "WatchOffsets"])
@pytest.mark.parametrize(
    ("said", "error", "is_whole"),
    [
        (lambda method: struct.pack(">II", bound(method) + 2, 0), RequestTooLarge, False),
        (lambda method: struct.pack(">II", 10, bound(method)), RequestTooLarge, False),
        (lambda method: b"".join(say(Kind.MESSAGE, b"\xff\xff")), InvalidRequest, True),
        (lambda method: b"".join(say(Kind.MESSAGE, b"", [b"payload"])), InvalidRequest, True),
        (lambda method: b"".join(opening(method)), InvalidRequest, False),
    ],
    ids=["header", "payload", "bytes", "with payload", "open within"],
)
@real_time
async def test_what_is_no_request_is_refused_with_a_reason(
    method: str, said: Any, error: type[TritonMQError], is_whole: bool
) -> None:
    """Who asks once may stay, if it is known where its request ends."""
    stays = is_whole and BROKER.methods[method].kind is not MethodKind.CONVERSATION
    async with serving() as served:
        async with connected(served) as client:
            client.say([PREAMBLE], opening(method), [said(method)], say(Kind.END))
            refused = await (client.failed() if stays else client.refused())
            assert type(refused) is error
        async with connected(served) as client:  # and the port serves others
            client.say([PREAMBLE], opening("Subscribe"), credit(5))
            assert await kinds(client, 1) == [Kind.MESSAGE]
