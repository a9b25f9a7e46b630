"""All that may come to a broker's one port: who is served there is served, and who is not is told what to do, or sent
away."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from grpc import aio

from mq_broker.rpc.calls import Calls
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire import framed
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, NotAuthenticated, PeerRefused, TritonMQError, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PREAMBLE
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.framing import PREAMBLE_BYTES, preamble
from tests.coroutines import real_time
from tests.mq_broker.broker.by_token import over_tls
from tests.mq_broker.broker.channel import Channel
from tests.mq_broker.broker.cluster import DEADLINE_S, standalone, until
from tests.mq_broker.broker.test_forwarding import Pair, pair

HTTP = b"GET /metrics HTTP/1.1\r\nHost: there\r\n\r\n"


async def heard(address: str, said: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """All that is answered to those bytes, until the broker ends the connection."""
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number), ssl=tls)
    try:
        writer.write(said)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def proof_of(made: Pair, broker: int) -> PeerProof:
    coordination = made.coordination[broker]
    secret, registered = await coordination.peer_secret(), await coordination.brokers()
    assert secret is not None
    return PeerProof(broker, registered[broker].incarnation, await coordination.cluster_id(), secret)


@pytest.mark.parametrize("secure", [False, True])
@real_time
async def test_clients_links_and_brokers_calls_come_to_one_port(secure: bool, zookeeper: str, tmp_path: Path) -> None:
    async with pair(zookeeper, tmp_path, secure=secure) as made, made.to(user="admin") as client:
        registered = (await made.coordination[1].brokers())[1]
        assert registered.peer_address_for(tls=secure) == made[1].address
        async with made.for_two(user="admin") as two:  # which broker 1 passes on, by a call of its own
            await two.produce("t", 1)

            async def in_sync() -> bool:
                [topic] = (await client.metadata("t")).topics
                return sorted(topic.partitions[0].isr) == [1, 2]

            await until(in_sync)  # by links
            await two.produce("t", 2)
            assert await two.numbers("t") == [1, 2]


@real_time
async def test_a_stranger_is_no_broker_and_who_shows_a_proof_of_another_cluster_neither(
    zookeeper: str, tmp_path: Path
) -> None:
    async with pair(zookeeper, tmp_path, secure=False) as made:
        proof = await proof_of(made, 1)
        address, later = made[2].address, asyncio.get_running_loop().time() + DEADLINE_S
        request = pb.PublishRequest(topic="t")
        ours, theirs = Calls(proof), Calls(PeerProof(1, proof.incarnation, "another", bytes(32)))
        with pytest.raises(InvalidRequest, match="names none"):  # it is judged: that is the method's own word
            await ours.ask(address, "Publish", request, pb.PublishResponse, later)
        with pytest.raises(PeerRefused, match="check its --zookeeper"):
            await theirs.ask(address, "Publish", request, pb.PublishResponse, later)
        for calls in (ours, theirs):
            await calls.close()
        with pytest.raises(InvalidRequest, match="no method 'Publish'"):  # clients have none of that name
            await Channel(address).ask("Publish", request.SerializeToString())
        wire = await framed.connect(address)
        wire.write(Envelope(pb.LinkHeader(beat=pb.LinkBeat())))
        with pytest.raises(TritonMQError, match="a link begins with hello"):
            await wire.hello()
        wire.close()


@real_time
async def test_what_speaks_something_else_in_plain_text_is_told_so_and_sent_away(tmp_path: Path) -> None:
    async with standalone(tmp_path) as broker:
        for said in (HTTP, b"\x00" * 100):
            answer = await heard(broker.address, said)
            assert answer[:PREAMBLE_BYTES] == PREAMBLE
            assert b"does not begin as a stream does" in answer
        assert b"does not begin as a stream does" in await heard(broker.address, preamble()), "it holds no links"
        async with aio.insecure_channel(broker.address) as channel:
            ask = channel.unary_unary(BROKER.path("Metadata"), None, None)
            with pytest.raises(aio.AioRpcError):
                await ask(b"", timeout=DEADLINE_S)
        secured = ssl.create_default_context()
        with pytest.raises(Unreachable):
            await Channel(broker.address, secured).ask("Metadata", b"")
        with pytest.raises(NotAuthenticated, match=r"^not authenticated$"):  # it was sent, and is not believed
            await Channel(broker.address, token="tmq_" + "a" * 60).ask("Metadata", b"")
        assert (await broker.metadata()).brokers, "all others are served as before"


@real_time
async def test_over_tls_whoever_shows_nothing_is_told_what_to_show_and_plain_text_ends(tmp_path: Path) -> None:
    async with over_tls(tmp_path) as place:
        with pytest.raises(NotAuthenticated, match="neither a certificate nor a token was shown"):
            await Channel(place.address, place.certs.tls()).ask("Metadata", b"")
        answer = await heard(place.address, HTTP, place.certs.tls())
        assert b"does not begin as a stream does" in answer
        for said in (HTTP, PREAMBLE, preamble()):
            assert PREAMBLE not in await heard(place.address, said), "nothing is said in plain text"
        with pytest.raises(Unreachable):
            await Channel(place.address).ask("Metadata", b"")
        async with place.shown("admin") as admin:
            assert (await admin.metadata()).brokers


@real_time
async def test_clients_above_their_number_are_refused_and_told_so(tmp_path: Path) -> None:
    async with standalone(tmp_path, connections_max=2) as broker:
        async with broker.subscribing() as one, broker.subscribing() as two:
            for each in (one, two):
                await each.say(credit=pb.SubscribeCredit(bytes=1))

            async def refused() -> bool:
                try:
                    await broker.metadata()
                except TritonMQError as error:
                    return "as many as it takes" in str(error)
                return False

            await until(refused)
        await until(broker.metadata)
