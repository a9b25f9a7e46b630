"""The port for calls, and what strangers and dead clients do to it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest

from mq_broker.rpc.wire import streams
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import (
    IncompatibleVersion,
    InternalError,
    InvalidRequest,
    NotLeader,
    RequestTooLarge,
    TritonMQError,
    Unreachable,
)
from mq_protocol.methods import BROKER
from mq_protocol.wire import call, framing
from mq_protocol.wire.call import PREAMBLE, Kind, error_of, parsed, say
from mq_protocol.wire.framing import STREAM
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import (
    DEADLINE_S,
    MESSAGE_BYTES_MAX,
    Served,
    asking,
    batch,
    connected,
    fetching,
    opening,
    server_tls,
    serving,
    until,
)
from tests.securing import HOST, Certs

# ---------------------------------------------------------------- calls


@real_time
async def test_batches_of_all_sizes_are_answered_and_the_connection_serves_another_call() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE], opening())
        for n in (0, 5, 40_000, MESSAGE_BYTES_MAX - 100):
            client.say(batch(n, b"x" * n))
            assert await client.result() == (n, n)
        client.say(say(Kind.END))
        await client.hear_end()
        client.say(opening(), batch(7), say(Kind.END))
        assert await client.result() == (7, 0)


@real_time
async def test_an_error_comes_back_as_it_was_raised_and_a_defect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with serving() as served:
        for error, told in (
            (NotLeader("ask broker 3", 3, 17), NotLeader),
            (ZeroDivisionError("a defect"), InternalError),
        ):
            served.service.error = error
            async with connected(served) as client:
                client.say([PREAMBLE], opening(), batch(1))
                refused = await client.refused()
                assert type(refused) is told
                assert "a defect" not in str(refused)
    assert "ZeroDivisionError: a defect" in caplog.text


@real_time
async def test_who_asks_whether_the_broker_is_there_is_answered() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE], opening(), say(Kind.PING), batch(1))
        kinds = [message.kind for message in [await client.hear(), await client.hear()] if message is not None]
        assert sorted(kinds) == [Kind.MESSAGE, Kind.PONG]


@real_time
async def test_every_method_that_asks_once_answers_and_one_connection_serves_them_all() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE])
        for name, method in BROKER.unary.items():
            client.say(asking(name))
            parsed((await client.hear_answer()).body, method.response)
            await client.hear_end()


@real_time
async def test_a_single_request_that_is_refused_leaves_the_connection_to_the_next() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE])
        served.service.error = NotLeader("ask broker 3", 3, 17)
        client.say(asking("Groups"))
        assert isinstance(await client.failed(), NotLeader)
        served.service.error = None
        client.say([*opening("Groups"), *say(Kind.MESSAGE, b"\xff\xff"), *say(Kind.END)])
        assert isinstance(await client.failed(), InvalidRequest)
        client.say([*opening("Groups"), *say(Kind.MESSAGE, b"", [b"payload"]), *say(Kind.END)])
        assert isinstance(await client.failed(), InvalidRequest)
        client.say(asking("Groups"))
        await client.hear_answer()
        await client.hear_end()


@real_time
async def test_a_deadline_reaches_the_service_and_ends_the_wait() -> None:
    async with serving() as served:
        now = asyncio.get_running_loop().time
        async with connected(served) as client:
            client.say([PREAMBLE])
            for timeout_ms, least_s, most_s in ((5_000, 0, 5), (0, 10, 30), (600_000, 10, 30)):
                before = now()
                client.say(asking("Groups", timeout_ms=timeout_ms))
                await client.hear_answer()
                await client.hear_end()
                assert before + least_s < served.service.deadline <= now() + most_s
            client.say(asking("Staged", pb.StagedRequest(topic="hang"), timeout_ms=100))
            assert isinstance(await client.refused(), Unreachable)


# ---------------------------------------------------------------- strangers and liars

OPENED = PREAMBLE + b"".join(opening())


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(50), InvalidRequest),
        (framing.preamble(), InvalidRequest),
        (framing.preamble(9, 8, spoken=STREAM), IncompatibleVersion),
        (PREAMBLE + b"\xff" * 8, RequestTooLarge),
        (PREAMBLE + struct.pack(">II", 0, 10), InvalidRequest),
        (PREAMBLE + struct.pack(">II", 1, call.OPEN_BYTES_MAX + 1), RequestTooLarge),
        (PREAMBLE + struct.pack(">II", call.OPEN_BYTES_MAX + 2, 0), RequestTooLarge),
        (PREAMBLE + b"".join(say(Kind.MESSAGE, b"x")), InvalidRequest),
        (PREAMBLE + b"".join(say(Kind.END)), InvalidRequest),
        (PREAMBLE + b"".join(say(Kind.OPEN, b"\xff\xff")), InvalidRequest),
        (PREAMBLE + b"".join(say(Kind.OPEN, b"", [b"payload"])), InvalidRequest),
        (PREAMBLE + b"".join(opening("NoSuchMethod")), InvalidRequest),
        (PREAMBLE + b"".join(opening(protocol=99, protocol_oldest=99)), IncompatibleVersion),
        (OPENED + b"".join(opening()), InvalidRequest),
        (PREAMBLE + b"".join([*fetching(0, 0)[:-1], *say(Kind.MESSAGE, b"")]), InvalidRequest),
        (PREAMBLE + b"".join(opening("Fetch")) + struct.pack(">II", limits.REQUEST_BYTES_MAX + 2, 0), RequestTooLarge),
        (OPENED + struct.pack(">II", 5, 0) + bytes(5), InvalidRequest),
        (OPENED + b"".join(say(Kind.MESSAGE, b"\xff\xff")), InvalidRequest),
        (OPENED + struct.pack(">II", limits.PRODUCE_HEADER_BYTES_MAX + 2, 0), RequestTooLarge),
        (OPENED + struct.pack(">II", 10, MESSAGE_BYTES_MAX), RequestTooLarge),
        (OPENED + struct.pack(">II", 1, 0xFFFFFFFF), RequestTooLarge),
    ],
)  # fmt: skip
@real_time
async def test_what_is_no_call_is_refused_with_a_reason(stream: bytes, error: type[TritonMQError]) -> None:
    async with serving() as served:
        async with connected(served) as client:
            client.say([stream])
            assert type(await client.refused()) is error
        async with connected(served) as client:  # and the port serves others
            client.say([PREAMBLE], opening(), batch(1))
            assert await client.result() == (1, 0)


@real_time
async def test_what_is_not_taken_is_left_in_tcp() -> None:
    async with serving() as served:
        served.service.hangs = True
        async with connected(served) as client:
            client.say([OPENED])
            await served.service.begins()
            taken = 0
            said = b"".join(batch(1, bytes(500_000)))
            with contextlib.suppress(TimeoutError):
                while taken < 100 << 20:
                    client.writer.write(said)
                    async with asyncio.timeout(0.5):
                        await client.writer.drain()
                    taken += len(said)
            assert taken < 50 << 20


@real_time
async def test_the_handler_of_a_client_that_has_gone_ends() -> None:
    async with serving() as served:
        served.service.hangs = True
        async with connected(served) as client:
            client.say([OPENED])
            await served.service.begins()
        async with asyncio.timeout(DEADLINE_S):
            await served.service.ended.wait()
        assert not served.gate.calls


@real_time
async def test_a_client_that_has_stopped_is_noticed_and_one_that_answers_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "PING_S", 0.5)
    monkeypatch.setattr(call, "SILENCE_S", 5.0)
    monkeypatch.setattr(streams, "_LOOK_S", 0.1)
    async with serving() as served, connected(served) as mute, connected(served) as alive:
        for client in (mute, alive):
            client.say([OPENED])
        for _ in range(8):
            asked = await alive.hear()
            assert asked is not None
            assert asked.kind is Kind.PING
            alive.say(say(Kind.PONG))
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                await mute.reader.read()
        alive.say(batch(3))
        while (message := await alive.hear()) is not None and message.kind is Kind.PING:
            alive.say(say(Kind.PONG))
        assert message is not None
        assert message.kind is Kind.MESSAGE


@real_time
async def test_a_client_that_is_not_read_is_told_that_the_broker_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """One above its quota, say. What it asks waits behind what it has sent, and is not read."""
    monkeypatch.setattr(streams, "_LOOK_S", 0.05)
    async with serving() as served:
        served.service.hangs = True
        async with connected(served) as client:
            client.say([OPENED], *[batch(n, bytes(100_000)) for n in range(20)], say(Kind.PING))
            for _ in range(5):
                told = await client.hear()
                assert told is not None
                assert told.kind is Kind.PONG


@real_time
async def test_a_flood_of_questions_whether_the_broker_is_there_is_answered_once_and_ends_the_connection() -> None:
    async with serving() as served, connected(served) as curious, connected(served) as flooding:
        curious.say([PREAMBLE, *opening(), *say(Kind.PING) * (call.BEATS_MAX // 2), *batch(1), *say(Kind.END)])
        kinds = []
        while (message := await curious.hear()) is not None and message.kind is not Kind.END:
            kinds.append(message.kind)
        assert kinds.count(Kind.PONG) < call.BEATS_MAX // 4  # one for each time that something came
        assert kinds.count(Kind.MESSAGE) == 1
        flooding.say([PREAMBLE, *opening(), *say(Kind.PING) * (call.BEATS_MAX + 1)])
        while (message := await flooding.hear()) is not None and message.kind is Kind.PONG:
            pass
        assert message is not None
        assert message.kind is Kind.CLOSE
        assert "PING" in str(error_of(message))
        assert await flooding.hear() is None


@real_time
async def test_a_connection_that_asks_for_nothing_is_closed() -> None:
    async with (
        serving(waits={"handshake_ms": 1_500, "idle_ms": 300}) as served,
        connected(served) as silent,
        connected(served) as greeted,
        connected(served) as idle,
    ):
        greeted.say([PREAMBLE])
        idle.say([OPENED], say(Kind.END))
        await idle.hear_end()
        for client in (greeted, idle):
            assert isinstance(await client.refused(), Unreachable)
        await silent.gone()


@real_time
async def test_a_handshake_that_stands_still_is_ended(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    async with serving(tls=server_tls(certs), waits={"handshake_ms": 200}) as served, connected(served) as client:
        client.say([b"\x16\x03\x01"])
        async with asyncio.timeout(DEADLINE_S):
            await client.reader.read()


def test_who_has_gone_without_reading_leaves_no_answers_for_the_collector_of_cycles() -> None:
    async def scenario() -> None:
        async with serving() as served:
            await all_gone(served)

    async def all_gone(served: Served) -> None:
        for _ in range(5):
            async with connected(served) as client:
                client.say([PREAMBLE], fetching(0, 100, 500_000))
                await client.hear()
        del client
        await until(lambda: held() <= 1)  # the last one that was accepted, until there is another

    def held() -> int:
        return sum(isinstance(each, streams.StreamWire) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


@real_time
async def test_a_call_ends_when_the_time_is_over_that_the_client_gave_or_may_give() -> None:
    async with serving(waits={"call_ms_max": 300}) as served:
        served.service.hangs = True
        for timeout_ms in (200, 0xFFFFFFFF):
            async with connected(served) as client:
                client.say([PREAMBLE], opening(timeout_ms=timeout_ms))
                assert isinstance(await client.refused(), Unreachable)


@real_time
async def test_a_call_that_was_answered_and_is_not_ended_keeps_no_connection() -> None:
    async with serving(waits={"idle_ms": 300}) as served, connected(served) as client:
        request = pb.FetchRequest(topic="t", start_offset=0, end_offset=1, chunk_bytes_max=10)
        client.say([PREAMBLE], opening("Fetch"), say(Kind.MESSAGE, request.SerializeToString()))
        heard = []
        while (message := await client.hear()) is not None:
            heard.append(message)
            if message.kind is Kind.PONG:
                await asyncio.sleep(0.1)
            if message.kind is not Kind.CLOSE:
                client.say(say(Kind.PING))  # it is there, and goes on saying so
        assert heard[0].kind is Kind.MESSAGE
        assert heard[-1].kind is Kind.CLOSE
        assert isinstance(error_of(heard[-1]), InvalidRequest)


@pytest.mark.parametrize("secured", ["plain", "handshake"])
@real_time
async def test_a_port_that_has_stopped_has_closed_what_it_accepted(tmp_path: Path, secured: str) -> None:
    certs = Certs(tmp_path / "certs", 1)

    def accepted(served: Served) -> list[Any]:
        every = psutil.Process().net_connections("tcp")
        return [each for each in every if each.laddr.port == served.port and each.status != "LISTEN"]

    tls = None if secured == "plain" else server_tls(certs)
    async with serving(tls=tls) as served, connected(served) as client:
        if secured == "handshake":
            client.say([b"\x16\x03\x01"])
        else:
            client.say([PREAMBLE], fetching(0, 1_000, 500_000))
            await client.hear()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # also what says that it ends
        await until(lambda: len(accepted(served)) == 1)
        await served.server.stop()
        assert accepted(served) == []


@real_time
async def test_a_port_that_stops_ends_what_is_under_way() -> None:
    async with serving() as served, connected(served) as client:
        client.say([OPENED])
        await served.service.begins()
        await served.server.stop()
        assert served.service.ended.is_set()
        with pytest.raises(OSError):
            socket.create_connection((HOST, served.port), timeout=1)


@real_time
async def test_fetches_follow_one_another_on_a_connection_also_after_one_that_is_refused() -> None:
    async with serving() as served, connected(served) as client:
        client.say([PREAMBLE])
        for size in (10, 500_000):
            client.say(fetching(3, 6, size))
            for n in (3, 4, 5):
                message = await client.hear()
                assert message is not None
                assert parsed(message.body, pb.BatchesHeader).batches[0].base_offset == n
                assert len(message.payload) == size
            await client.hear_end()
            served.service.error = NotLeader("ask broker 3", 3, 17)
            for asked, error in (
                (fetching(0, 1), NotLeader),
                ([*opening("Fetch"), *say(Kind.END)], InvalidRequest),  # which asks for nothing
            ):
                client.say(asked)
                assert isinstance(await client.failed(), error)
            served.service.error = None


def wires_there() -> int:
    gc.collect()
    return sum(isinstance(each, streams.StreamWire) for each in gc.get_objects())


@real_time
async def test_strangers_that_are_cut_just_as_they_greet_leave_nothing() -> None:
    async with serving(strangers_max=2) as served:
        strangers = [await asyncio.open_connection(HOST, served.port)]
        for _ in range(60):
            strangers.append(await asyncio.open_connection(HOST, served.port))
            strangers[-2][1].write(PREAMBLE)
        for _, writer in strangers:
            writer.transport.abort()
        await until(lambda: not wires_there())


@real_time
async def test_many_batches_at_once_are_answered_in_order_however_they_are_torn() -> None:
    async with serving() as served, connected(served) as client:
        sizes = [n * 97 % 70_000 for n in range(150)]
        stream = PREAMBLE + b"".join(
            b"".join(pieces)
            for pieces in [opening(), *(batch(n, b"x" * size) for n, size in enumerate(sizes)), say(Kind.END)]
        )

        async def speak() -> None:
            at = 0
            while at < len(stream):
                step = at * 31 % 100_000 + 1
                client.writer.write(stream[at : at + step])
                await client.writer.drain()
                at += step

        speaking = asyncio.create_task(speak())
        assert [await client.result() for _ in sizes] == list(enumerate(sizes))
        await speaking
        await client.hear_end()
