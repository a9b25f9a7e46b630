"""What a connection to the port for calls takes of a broker: memory of what is half sent, and a place."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from mq_broker.broker.runtime.memory import Held
from mq_protocol.access.quotas import Quota
from mq_protocol.errors import Overloaded, QuotaExceeded
from mq_protocol.wire.call import PREAMBLE, Kind
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import Served, batch, connected, fetching, opening, serving, until

OPENED = PREAMBLE + b"".join(opening())


@real_time
async def test_what_is_half_sent_is_counted_and_more_than_there_is_room_for_waits_in_tcp() -> None:
    """Then each goes on as soon as those before it are answered."""
    message = b"".join(batch(1, bytes(1_000_000)))
    most = 0

    async with serving(memory=Held(6_000_000)) as served:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(served)) for _ in range(20)]
            for client in clients:
                client.say([OPENED, message[:-1_000]])
            await served.service.begins(len(clients))
            await until(lambda: served.memory.bytes > 2_000_000)
            waiting = [asyncio.create_task(client.result()) for client in clients]
            for client in clients:
                client.say([message[-1_000:]])
                await asyncio.sleep(0)
                most = max(most, served.memory.bytes)
            assert await asyncio.gather(*waiting) == [(1, 1_000_000)] * len(clients)
        await until(lambda: served.memory.bytes == 0)
    assert most <= 3_100_000  # half of it, and what was handed over just now


@real_time
async def test_what_is_half_sent_by_who_is_gone_is_given_back() -> None:
    async with serving() as served:
        async with connected(served) as client:
            client.say([OPENED, b"".join(batch(1, bytes(1_000_000)))[:-1]])
            await until(lambda: served.memory.bytes > 900_000)
        await until(lambda: served.memory.bytes == 0)


def connections(served: Served) -> int:
    meter = served.gate.quotas.meter_of("User:ANONYMOUS")
    return 0 if meter is None else len(meter.connections)


@pytest.mark.parametrize("opened", [opening("Fetch"), fetching(0, 0)], ids=["nothing was asked", "one was answered"])
@real_time
async def test_a_connection_counts_for_the_quota_of_connections_while_it_is_open(opened: list[Any]) -> None:
    async with serving() as served:
        served.gate.quotas.take(0, 1, {"User:ANONYMOUS": {Quota.CONNECTIONS: 2}})
        async with connected(served) as one:
            one.say([PREAMBLE], fetching(0, 1))
            assert await one.hear() is not None
            async with connected(served) as other:
                other.say([PREAMBLE], opened)
                await until(lambda: connections(served) == 2)
                async with connected(served) as third:
                    third.say([PREAMBLE], opening("Fetch"))
                    assert isinstance(await third.refused(), QuotaExceeded)
            async with connected(served) as fourth:
                await until(lambda: connections(served) == 1)
                fourth.say([PREAMBLE], fetching(0, 1))
                answered = await fourth.hear()
                assert answered is not None
                assert answered.kind is Kind.MESSAGE


@real_time
async def test_what_is_refused_before_it_is_let_in_is_told_at_once_on_a_kept_connection_too() -> None:
    async with serving(room=1) as served, connected(served) as kept:
        kept.say([PREAMBLE], fetching(0, 1))
        while (heard := await kept.hear()) is not None and heard.kind is not Kind.END:
            pass
        async with connected(served) as other:
            other.say([PREAMBLE], opening())
            await served.service.begins()
            kept.say(fetching(0, 1))
            assert isinstance(await kept.refused(), Overloaded)


@real_time
async def test_what_nobody_had_read_of_who_is_gone_is_given_back() -> None:
    message = b"".join(batch(1, bytes(40_000)))
    async with serving() as served:
        served.service.hangs = True
        async with connected(served) as client:
            client.say([OPENED, message[:1_000]])
            await until(lambda: served.memory.bytes > 30_000)
            client.say([message[1_000:], message[:1_000]])
            await until(lambda: served.memory.bytes > 60_000)  # the first one is whole, and waits to be read
        await until(lambda: served.memory.bytes == 0)
