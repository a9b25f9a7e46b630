"""What a broker's port for other brokers takes of strangers who reach it, by real sockets. Brokers that are connected
go on."""

from __future__ import annotations

import contextlib
from typing import Any

from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire import accepting
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import Overloaded
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PREAMBLE
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import asking, connected, opening
from tests.mq_broker.rpc.test_peer_service import SECRET, Peer, serving


def peer(broker: int, **options: Any) -> Peer:
    return Peer(PeerProof(broker, 1, "cluster", SECRET), **options)


@real_time
async def test_of_strangers_the_first_goes_and_a_broker_that_is_connected_or_comes_is_served() -> None:
    one, two, three = peer(1), peer(2), peer(3)
    async with serving(one, two, three), contextlib.AsyncExitStack() as stack:
        await two.ask(one)
        strangers = [await stack.enter_async_context(connected(one.port)) for _ in range(accepting.STRANGERS_MAX + 1)]
        await strangers[0].gone()
        await two.ask(one)
        await three.ask(one)


@real_time
async def test_clients_that_have_all_connections_keep_no_broker_out() -> None:
    one, two = peer(1, connections_max=1), peer(2)
    async with serving(one, two), connected(one.port) as client, connected(one.port) as too_many:
        for each in (client, too_many):
            each.say([PREAMBLE], asking("Metadata"))
        await too_many.gone()
        await two.ask(one)


@real_time
async def test_what_is_passed_on_of_clients_keeps_no_broker_out() -> None:
    whose = pb.ForwardedFor(principal="User:ANONYMOUS", address="ipv4:c:1")
    passed_on = PeerProof(2, 1, "cluster", SECRET).forwarded(BROKER.path("Produce"), 1, whose)
    one, two = peer(1, connections_max=1), peer(2)
    async with serving(one, two), connected(one.port) as first, connected(one.port) as too_many:
        first.say([PREAMBLE], opening(passed_on=passed_on))
        await one.port.service.begins()
        too_many.say([PREAMBLE], opening(passed_on=passed_on))
        assert isinstance(await too_many.refused(), Overloaded)
        await two.ask(one)


@real_time
async def test_a_stranger_that_asks_nothing_is_disconnected() -> None:
    one = peer(1, waits={"handshake_ms": 100})
    async with serving(one), connected(one.port) as silent:
        await silent.gone()
