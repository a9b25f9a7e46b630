"""Links at a broker's port: what a stranger, a broker that lies and a network can do. What links are is in
test_links.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire import accepting, framed, links
from mq_broker.rpc.wire.accepting import bind
from mq_broker.rpc.wire.certificates import Certificates
from mq_broker.rpc.wire.framed import connect
from mq_broker.rpc.wire.outgoing import PeerAddress
from mq_broker.rpc.wire.port import Bounds
from mq_protocol import mq_pb2 as pb
from mq_protocol.addresses import origin
from mq_protocol.errors import PeerRefused, TritonMQError, Unreachable
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.wire import framing
from mq_protocol.wire.envelope import Envelope
from tests.coroutines import real_time
from tests.mq_broker.rpc.linked import DEADLINE_S, SECRET, Node, Spoken, door, nodes, until
from tests.mq_broker.rpc.wire.test_links import life
from tests.securing import Certs

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connection(node: Node, own: str = "127.0.0.1") -> AsyncIterator[Streams]:
    host, _, port = node.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(own, 0))
    yield reader, writer
    writer.transport.abort()


async def until_ended(link: Spoken) -> None:
    """Raises what it is ended with."""
    while True:
        await link.hear()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """All that was said until it was closed."""
    async with asyncio.timeout(DEADLINE_S):
        return await reader.read()


@pytest.mark.parametrize(
    "said",
    [
        framing.preamble() + b"\xff" * 8,
        framing.preamble() + struct.pack(">II", 0, 10),
        framing.preamble() + struct.pack(">II", 10, 2_000),
        framing.preamble() + struct.pack(">II", 4, 0) + b"\xff\xff\xff\xff",
        framing.preamble() + b"".join(framing.encode(pb.LinkHeader(hello=life().hello(2)).SerializeToString(), [b"x"])),
    ],
    ids=["4 GiB", "no header", "a long hello", "no protobuf", "a hello with a payload"],
)
@real_time
async def test_whoever_does_not_begin_with_hello_is_told_so_and_disconnected(said: bytes) -> None:
    two = Node(2)
    async with nodes(two), connection(two) as (reader, writer):
        writer.write(said)
        assert b"a link begins with hello" in await closed(reader)
        assert two.refusals.counts == {("PEER_NO_HELLO", 0): 1}
        assert two.heard.events == []


def test_much_that_is_no_hello_is_answered_as_little_and_the_log_shows_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It had filled the memory for what is received, and asyncio failed for want of room."""

    async def scenario() -> None:
        two = Node(2)
        async with nodes(two):
            for _ in range(5):
                async with connection(two) as (reader, writer):
                    writer.write(framing.preamble() + bytes(framing.GATHER_BYTES + 200_000))
                    assert b"a link begins with hello" in await closed(reader)

    asyncio.run(scenario())
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [each.message for each in errors] == []


@real_time
async def test_a_hello_that_is_cut_off_anywhere_opens_nothing() -> None:
    said = framing.preamble() + b"".join(framing.encode(pb.LinkHeader(hello=life().hello(2)).SerializeToString()))
    two = Node(2)
    async with nodes(two):
        for end in range(0, len(said), 9):
            async with connection(two) as (reader, writer):
                writer.write(said[:end])
                writer.write_eof()
                await closed(reader)
        await until(lambda: not two.port._tasks)
        assert two.refusals.counts == {}
        assert two.heard.events == []


@real_time
async def test_whoever_says_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CONNECT_TIMEOUT_MS", 50)
    two = Node(2, bounds=Bounds(handshake_ms=50))
    async with nodes(two):
        async with connection(two) as (nothing, _):
            assert await closed(nothing) == b""
        async with connection(two) as (reader, writer):
            writer.write(framing.preamble())
            assert b"none came" in await closed(reader)


@real_time
async def test_strangers_of_one_address_end_each_other_and_nobody_of_another() -> None:
    most = accepting.STRANGERS_MAX
    two = Node(2)
    async with nodes(two), contextlib.AsyncExitStack() as opened:
        two.knows_of(1)
        # A broker, say, on a slow network
        reader, writer = await opened.enter_async_context(connection(two, "127.0.0.2"))
        strangers = [await opened.enter_async_context(connection(two)) for _ in range(most + 17)]
        for ended, _ in strangers[:18]:
            assert await closed(ended) == b""
        assert len(two.port._strangers) == most
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await closed(reader), "it is listened to, and answered"


@real_time
async def test_a_broker_of_another_version_of_links_is_told_which_end_to_upgrade() -> None:
    two = Node(2)
    async with nodes(two), connection(two) as (reader, writer):
        writer.write(framing.preamble(newest=9, oldest=8))
        assert b"the other one 8 to 9: upgrade" in await closed(reader)
        assert two.refusals.counts == {("PEER_INCOMPATIBLE", 0): 1}


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([struct.pack(">II", 100, MESSAGE_BYTES_MAX)], "is above"),
        ([struct.pack(">II", 0, 0)], "without a header"),
        ([struct.pack(">II", 2, 0), b"\xff\xff"], "malformed message"),
        (
            framing.encode(
                pb.LinkHeader(append=[pb.AppendEntries(leader=1, incarnation=1)]).SerializeToString(), [b"x"]
            ),
            "add up",
        ),
    ],
    ids=["too large", "no header", "no protobuf", "a payload that nothing names"],
)
@real_time
async def test_what_a_broker_cannot_have_sent_ends_its_link_and_is_told(pieces: list[bytes], why: str) -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life())
        await link.greet()
        await link.call.write_raw(*pieces)
        with pytest.raises(TritonMQError, match=why):
            await until_ended(link)
        await two.heard.until(lambda events: events == [("up", 1), ("down", 1)])


@real_time
async def test_an_error_within_the_broker_ends_the_link_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    two = Node(2)

    def broken(message: pb.AppendAck) -> None:
        raise KeyError("a mistake of ours")

    two.heard.hear_ack = broken  # type: ignore[method-assign]
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life())
        await link.greet()
        await link.say(ack=[pb.AppendAck(follower=1, incarnation=1)])
        with pytest.raises(TritonMQError, match="KeyError"):
            await until_ended(link)
    assert "a link failed" in caplog.messages


@real_time
async def test_a_broker_that_is_refused_says_why_in_its_log_and_counts_no_refusal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    one, two = Node(1), Node(2, incarnation=3)
    async with nodes(one, two):
        one.links.know({2: two.registered})
        two.links.know({1: PeerAddress(one.address, 7)})  # a later start of it
        await until(lambda: any("has been started again since this one" in line for line in caplog.messages))
        assert ("PEER_FORMER_LIFE", 0) in two.refusals.counts
        assert not one.refusals.counts


@real_time
async def test_a_link_to_a_broker_that_does_not_read_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed, "LINGER_S", 0.05)
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life())
        await link.greet()  # and nothing more is read
        for n in range(8):
            two.send_entries(1, n, bytes(4 << 20))
        await until(lambda: two.links.waiting_bytes(1) < 32 << 20)
        await asyncio.sleep(0)
        two.links.end(1)
        assert two.heard.events[-1] == ("down", 1)
        await until(lambda: not two.port._tasks)
        async with asyncio.timeout(DEADLINE_S):
            while await link.call.hear() is not None:
                pass


@real_time
async def test_of_what_comes_after_the_end_of_a_link_only_so_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed, "LINGER_S", 60.0)
    two = Node(2)
    async with nodes(two), connection(two) as (reader, writer):
        writer.write(framing.preamble() + b"nonsense")
        assert b"a link begins with hello" in await closed(reader)
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(bytes(1 << 20))
                    await writer.drain()


# ---------------------------------------------------------------------- TLS


@real_time
async def test_links_go_over_tls_where_both_ends_are_given_it(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, 2)
    dialled, served = Certificates(certs.path, 1).client_context, Certificates(certs.path, 2).server_context
    one, two = Node(1, dialled=dialled), Node(2, served=served)
    async with nodes(one, two):
        one.knows(two)
        await one.heard.until(lambda events: events == [("up", 2)])
        payload = bytes(range(250)) * 20_000
        for n in range(5):
            one.send_entries(2, n, payload)
            two.send_ack(1, n)
        await two.heard.until(lambda events: len(events) == 6)
        assert two.heard.events[-1] == ("append", 4, [payload])
        await one.heard.until(lambda events: ("ack", 4) in events)
        wire = await connect(two.address)  # without TLS
        with pytest.raises((Unreachable, PeerRefused)):
            await asyncio.wait_for(wire.hello(), DEADLINE_S)
        wire.close()


@real_time
async def test_while_a_cluster_is_being_secured_a_broker_is_linked_at_its_port_in_plain_text(tmp_path: Path) -> None:
    second = Certificates(Certs(tmp_path / "certs", 2).path, 2)
    two, three = Node(2, dialled=second.client_context, served=second.server_context), Node(3)
    async with nodes(two, three):
        two.links.know({2: two.registered, 3: PeerAddress(three.address, 1, plain=True)})
        three.links.know({2: two.registered, 3: three.registered})
        await two.heard.until(lambda events: events == [("up", 3)])


@pytest.mark.parametrize(("dialler", "acceptor"), [(3, 2), (1, 3)], ids=["dialler", "acceptor"])
@real_time
async def test_a_link_over_tls_needs_the_certificate_of_the_broker_that_is_claimed(
    tmp_path: Path, dialler: int, acceptor: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certs = Certs(tmp_path / "certs", 1, 2, 3)
    one = Node(1, dialled=Certificates(certs.path, dialler).client_context)
    two = Node(2, served=Certificates(certs.path, acceptor).server_context)
    async with nodes(one, two):
        wire = await connect(two.address, Certificates(certs.path, dialler).client_context)
        assert str(wire.speaker()) == f"Broker:{acceptor}"
        hello = PeerProof(1, 1, "c", SECRET).hello(2)
        await wire.send(Envelope(pb.LinkHeader(hello=hello)))
        if dialler == 1:
            assert (await wire.hello()).broker == 2, "who accepts is judged by who dials"
        else:
            with pytest.raises(Unreachable, match="its certificate is that of Broker:3"):
                await wire.hello()
        wire.close()
        one.knows(two)
        await until(lambda: "link to broker 2: " in caplog.text)
        assert "its certificate is that of Broker:3" in caplog.text
        assert one.heard.events == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_strangers_count_by_address_or_by_the_network_that_one_machine_has(address: str, expected: str) -> None:
    assert origin(address) == expected


@pytest.mark.parametrize("ended_here", [True, False])
@real_time
async def test_who_waits_for_room_to_send_is_told_when_the_link_ends(*, ended_here: bool) -> None:
    listener, port = bind("127.0.0.1:0", "--listen")
    with listener:
        wire = await connect(f"127.0.0.1:{port}")
        there, _ = await asyncio.get_running_loop().sock_accept(listener)
    said, transport = pb.LinkHeader(hello=life().hello(2)), wire._check_up()
    with there:
        sending = asyncio.create_task(wire.send(Envelope(said, (bytes(32 << 20),))))
        await until(lambda: not wire.has_room)
        assert not sending.done()
        if ended_here:
            wire.close()
        else:
            transport.abort()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(sending, DEADLINE_S)
        transport.abort()
        await asyncio.sleep(0)
