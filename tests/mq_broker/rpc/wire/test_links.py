"""Links between brokers: one stream a pair, both ways, refused to strangers, made again when it breaks, bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire import links
from mq_broker.storage.codec.frame import HEADER_BYTES
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import PeerRefused
from mq_protocol.limits import (
    BATCH_BYTES_CEILING,
    LINK_BUFFER_BYTES_MAX,
    LINK_MESSAGE_BYTES,
)
from tests.coroutines import real_time
from tests.mq_broker.rpc.linked import (
    DEADLINE_S,
    SECRET,
    Call,
    Node,
    Spoken,
    door,
    impostor,
    nodes,
    until,
)


@real_time
async def test_entries_and_acknowledgements_go_both_ways_in_order() -> None:
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.knows(two)
        two.knows(one)
        for node in (one, two):
            await node.heard.until(lambda events: len(events) == 1)
        for here, there in ((one, two), (two, one)):
            for n in range(1, 51):
                frames = [b"x" * n, b"", b"yz"]
                here.send_entries(there.broker, n, *frames)
                here.send_ack(there.broker, n)
            await there.heard.until(lambda events: len(events) == 101)
            appends = [event[1:] for event in there.heard.events if event[0] == "append"]
            assert appends == [(n, [b"x" * n, b"", b"yz"]) for n in range(1, 51)]
            assert [event[1] for event in there.heard.events if event[0] == "ack"] == list(range(1, 51))
        assert (one.links.connected(), two.links.connected()) == ([2], [1])


@real_time
async def test_the_largest_batch_goes_whatever_comes_before_it() -> None:
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.knows(two)
        await one.heard.until(lambda events: events == [("up", 2)])
        before, largest = bytes(LINK_MESSAGE_BYTES - 1000), bytes(BATCH_BYTES_CEILING + HEADER_BYTES)
        one.send_entries(2, 1, before)
        await two.heard.until(lambda events: len(events) == 2)
        one.send_entries(2, 2, largest)
        one.send_ack(2, 3)  # no room is left for it
        await two.heard.until(lambda events: len(events) == 3)
        assert two.heard.events[-1][:2] == ("append", 2)


def test_the_first_beat_comes_before_all_that_is_said_on_the_link() -> None:
    heard: list[tuple[int, int]] = []

    async def scenario() -> None:
        one, two = Node(1), Node(2)
        one.heard.link_up = lambda broker: one.send_ack(broker, 1)  # type: ignore[method-assign]

        def noted(message: pb.AppendAck) -> None:
            heard.append((message.sequence, len(two.heard.beats)))

        two.heard.hear_ack = noted  # type: ignore[method-assign]
        async with nodes(one, two):
            one.knows(two)
            await until(lambda: heard)

    asyncio.run(scenario())
    assert heard == [(1, 1)]


@real_time
async def test_what_did_not_fit_a_full_link_is_told_at_both_ends_once_there_is_room() -> None:
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.knows(two)
        await until(lambda: one.heard.beats and two.heard.beats)
        frame = bytes(HEADER_BYTES + (1 << 20))
        for n in range(2 * LINK_BUFFER_BYTES_MAX // len(frame)):
            one.send_entries(2, n, frame)
        await one.heard.until(lambda events: ("dropped", 2) in events)
        await until(lambda: (1, True) in two.heard.beats)
        assert one.heard.events.count(("dropped", 2)) == 1
        assert two.heard.beats.count((1, True)) == 1


@real_time
async def test_what_a_turn_says_to_a_broker_that_reads_slowly_goes_as_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "BEAT_S", 60.0)  # a beat would take it along
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.knows(two)
        await until(lambda: one.heard.beats and two.heard.beats)
        one.links.turn_begins()
        for n in range(20):
            one.send_entries(2, n, bytes(1 << 20))
        one.links.turn_ends()
        assert one.links.waiting_bytes(2) > 0
        await two.heard.until(lambda events: len(events) == 21)
        assert [event[1] for event in two.heard.events[1:]] == list(range(20))
        async with asyncio.timeout(DEADLINE_S):
            await one.links.flush(DEADLINE_S)


def life(incarnation: int = 1, cluster_id: str = "c", secret: bytes = SECRET, broker: int = 1) -> PeerProof:
    return PeerProof(broker, incarnation, cluster_id, secret)


async def refused(link: Spoken, *said: pb.LinkHeader) -> PeerRefused:
    """Why the link was ended, after that was said."""
    for header in said:
        await link.call.say(header)
    try:
        while True:
            await link.hear()
    except PeerRefused as error:
        return error


@real_time
async def test_a_peer_that_does_not_read_costs_no_more_than_its_buffer() -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life())
        await link.greet()  # and nothing more is read
        frame = bytes(4 << 20)
        for n in range(2 * LINK_BUFFER_BYTES_MAX // len(frame)):
            two.send_entries(1, n, frame)
            await asyncio.sleep(0)
        assert two.links.waiting_bytes(1) <= LINK_BUFFER_BYTES_MAX
        link.call.cancel()
        await two.heard.until(lambda events: events[-1:] == [("down", 1)])
        assert two.links.waiting_bytes(1) == 0


@real_time
async def test_a_newer_connection_of_the_same_peer_takes_the_place_of_the_former() -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        first, second = Spoken(there, life()), Spoken(there, life())
        for link in (first, second):
            await link.greet()
        while (header := await first.call.hear()) is not None:
            assert header.HasField("beat"), "and nothing else"
        await second.say(ack=[pb.AppendAck(follower=1, incarnation=1, sequence=5)])
        await two.heard.until(lambda events: events[-1:] == [("ack", 5)])
        assert two.heard.events == [("up", 1), ("down", 1), ("up", 1), ("ack", 5)]
        second.call.cancel()


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (life(broker=2).hello(2), pb.PEER_SAME_ID),
        (life(broker=3).hello(2), pb.PEER_WRONG_WAY),
        (life(broker=0).hello(2), pb.PEER_WRONG_WAY),
        (life().hello(3), pb.PEER_WRONG_BROKER),
        (pb.LinkHello(broker=1, incarnation=1, to=2), pb.PEER_NO_HELLO),
        (None, pb.PEER_NO_HELLO),
    ],
)
@real_time
async def test_a_hello_that_is_refused_says_why_by_a_code(
    hello: pb.LinkHello | None, why: pb.PeerRefusal.ValueType
) -> None:
    two = Node(2, cluster_id="of-this-cluster")
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        said = pb.LinkHeader(beat=pb.LinkBeat()) if hello is None else pb.LinkHeader(hello=hello)
        error = await refused(Spoken(there, life()), said)
        assert error.why == why
        assert "of-this-cluster" not in str(error)
        assert two.heard.events == []
        assert two.refusals.counts == {(pb.PeerRefusal.Name(why), 0): 1}


@pytest.mark.parametrize("stranger", [life(secret=bytes(32)), life(cluster_id="d")], ids=["secret", "cluster"])
@real_time
async def test_who_does_not_know_the_secret_is_refused_and_told_neither_it_nor_the_cluster(stranger: PeerProof) -> None:
    two = Node(2, cluster_id="of-this-cluster")
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, stranger)
        mine = stranger.hello(2)
        await link.say(hello=mine)
        theirs = (await link.hear()).hello
        told = theirs.SerializeToString()
        assert b"of-this-cluster" not in told
        assert SECRET not in told
        error = await refused(link, pb.LinkHeader(hello=pb.LinkHello(proof=stranger.of_dialler(mine, theirs))))
        assert error.why == pb.PEER_NO_PROOF
        assert two.heard.events == []


@real_time
async def test_a_recorded_link_cannot_be_played_again() -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        first = Spoken(there, life())
        mine, theirs = await first.greet()
        again = Spoken(there, life())
        error = await refused(
            again,
            pb.LinkHeader(hello=mine),
            pb.LinkHeader(hello=pb.LinkHello(proof=life().of_dialler(mine, theirs))),
        )
        assert error.why == pb.PEER_NO_PROOF
        assert two.links.connected() == [1], "the first link is as it was"
        mirror = Spoken(there, life())
        await mirror.say(hello=life().hello(2))
        shown = (await mirror.hear()).hello.proof
        reflected = await refused(mirror, pb.LinkHeader(hello=pb.LinkHello(proof=shown)))
        assert reflected.why == pb.PEER_NO_PROOF
        first.call.cancel()


@pytest.mark.parametrize("proof", [b"", bytes(32)])
@real_time
async def test_who_is_dialled_proves_itself_before_it_is_told_anything(proof: bytes) -> None:
    heard: list[pb.LinkHeader] = []
    dialled = asyncio.Event()

    async def impostor_2(call: Call) -> None:
        heard.extend(filter(None, [await call.hear()]))
        hello = pb.LinkHello(broker=2, incarnation=1, to=1, nonce=bytes(32), proof=proof)
        await call.say(pb.LinkHeader(hello=hello))
        heard.extend(filter(None, [await call.hear()]))
        dialled.set()

    node = Node(1)
    async with impostor(impostor_2) as address, nodes(node):
        node.links.know({2: address})
        async with asyncio.timeout(DEADLINE_S):
            await dialled.wait()
        assert node.heard.events == []
        assert not any(header.hello.proof for header in heard)


@real_time
async def test_a_life_that_is_not_registered_waits_for_the_registration_and_is_refused_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq_broker.rpc.wire.links.REGISTRATION_TIMEOUT_S", DEADLINE_S)
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life(incarnation=2))
        greeting = asyncio.create_task(link.greet())
        await until(lambda: two.readings)
        two.knows_of(1, incarnation=2)
        await greeting
        monkeypatch.setattr("mq_broker.rpc.wire.links.REGISTRATION_TIMEOUT_S", 0.05)
        far = Spoken(there, life(incarnation=1 << 60))
        with pytest.raises(PeerRefused) as error:
            await far.greet()
        assert error.value.why == pb.PEER_NOT_REGISTERED
        assert two.links.connected() == [1]
        again = Spoken(there, life(incarnation=2))
        await again.greet()
        link.call.cancel()
        again.call.cancel()


@real_time
async def test_a_former_life_is_refused() -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1, incarnation=5)
        newer, older = Spoken(there, life(incarnation=5)), Spoken(there, life(incarnation=4))
        await newer.greet()
        with pytest.raises(PeerRefused) as error:
            await older.greet()
        assert error.value.why == pb.PEER_FORMER_LIFE
        assert two.links.connected() == [1]
        newer.call.cancel()


@pytest.mark.parametrize(
    "message",
    [
        {"append": [pb.AppendEntries(leader=3, incarnation=1)]},
        {"append": [pb.AppendEntries(leader=1, incarnation=1), pb.AppendEntries(leader=1, incarnation=2)]},
        {"ack": [pb.AppendAck(follower=3, incarnation=1)]},
        {"ack": [pb.AppendAck(follower=1, incarnation=1 << 60)]},
        {"snapshot": [pb.SnapshotPart(leader=2, incarnation=1)]},
    ],
)
@real_time
async def test_a_message_in_another_brokers_name_ends_the_link_and_is_not_heard(message: dict[str, Any]) -> None:
    two = Node(2)
    async with nodes(two), door(two) as there:
        two.knows_of(1)
        link = Spoken(there, life())
        await link.greet()
        error = await refused(link, pb.LinkHeader(**message))
        assert error.why == pb.PEER_NOT_ITSELF
        await two.heard.until(lambda events: events == [("up", 1), ("down", 1)])
        assert two.refusals.counts == {("PEER_NOT_ITSELF", 1): 1}


@real_time
async def test_nothing_is_kept_for_a_broker_without_a_link() -> None:
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.send_ack(2, 1)
        one.knows(two)
        await one.heard.until(lambda events: events == [("up", 2)])
        one.send_ack(2, 2)
        await two.heard.until(lambda events: len(events) == 2)
        assert two.heard.events == [("up", 1), ("ack", 2)]
