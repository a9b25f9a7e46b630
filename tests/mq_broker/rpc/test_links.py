"""Links between brokers: one stream a pair, both ways, refused to strangers, made again when it breaks, bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from grpc import aio

from mq_broker.rpc.links import LINK, Links, PeerAddress, _Outgoing, _Peer
from mq_broker.rpc.server import dial, listen
from mq_broker.rpc.status import from_call
from mq_broker.storage.frame import HEADER_BYTES
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, encode
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import (
    BATCH_BYTES_CEILING,
    LINK_BUFFER_BYTES_MAX,
    LINK_MESSAGE_BYTES,
    MESSAGE_BYTES_MAX,
    SNAPSHOT_PART_BYTES,
)

DEADLINE_S = 10.0


class Heard:
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._news = asyncio.Event()

    def _hear(self, *event: Any) -> None:
        self.events.append(event)
        self._news.set()

    def link_up(self, broker: int) -> None:
        self._hear("up", broker)

    def link_down(self, broker: int) -> None:
        self._hear("down", broker)

    def append_entries(self, message: pb.AppendEntries, frames: Sequence[memoryview]) -> None:
        self._hear("append", message.sequence, [bytes(frame) for frame in frames])

    def append_ack(self, message: pb.AppendAck) -> None:
        self._hear("ack", message.sequence)

    def snapshot_part(self, message: pb.SnapshotPart) -> None:
        self._hear("snapshot", message.sequence, message.part)

    async def until(self, condition: Callable[[list[tuple[Any, ...]]], bool]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition(self.events):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"heard only {self.events[-20:]}") from None


class Node:
    """One broker's end: its links, served on a port."""

    def __init__(self, broker: int, *, incarnation: int = 1, cluster_id: str = "c", address: str = "127.0.0.1:0") -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.heard = Heard()
        self.tasks: list[asyncio.Task[None]] = []
        self.links = Links(pb.LinkHello(broker=broker, incarnation=incarnation, cluster_id=cluster_id), self.heard, self._spawn)
        self._server, port = listen(address)
        self._server.add_generic_rpc_handlers((self.links.handler(),))
        self.address = f"127.0.0.1:{port}"

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self.links.close()
        await self._server.stop(0)
        for task in self.tasks:
            assert task.cancelled(), task.exception()

    def knows(self, *others: Node) -> None:
        self.links.know({o.broker: PeerAddress(o.address, o.incarnation) for o in (self, *others)})


@contextlib.asynccontextmanager
async def nodes(*made: Node) -> AsyncIterator[None]:
    try:
        for node in made:
            await node.start()
        yield
    finally:
        for node in made:
            await node.stop()


def test_entries_and_acknowledgements_go_both_ways_in_order() -> None:
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.knows(two)
            two.knows(one)
            for node in (one, two):
                await node.heard.until(lambda events: len(events) == 1)
            for here, there in ((one, two), (two, one)):
                for n in range(1, 51):
                    frames = [b"x" * n, b"", b"yz"]
                    message = pb.AppendEntries(sequence=n, frame_bytes=[len(frame) for frame in frames])
                    here.links.send_entries(there.broker, message, frames)
                    here.links.send_ack(there.broker, pb.AppendAck(sequence=n))
                await there.heard.until(lambda events: len(events) == 101)
                appends = [event[1:] for event in there.heard.events if event[0] == "append"]
                assert appends == [(n, [b"x" * n, b"", b"yz"]) for n in range(1, 51)]
                assert [event[1] for event in there.heard.events if event[0] == "ack"] == list(range(1, 51))
            assert (one.links.connected(), two.links.connected()) == ([2], [1])

    asyncio.run(scenario())


def test_more_than_fits_one_message_goes_in_several() -> None:
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.knows(two)
            await one.heard.until(lambda events: events == [("up", 2)])
            frame = bytes(1 << 20)
            for n in range(20):
                one.links.send_entries(2, pb.AppendEntries(sequence=n, frame_bytes=[len(frame)]), [frame])
            await two.heard.until(lambda events: len(events) == 21)
            assert [event[1] for event in two.heard.events[1:]] == list(range(20))

    asyncio.run(scenario())


def test_the_largest_batch_goes_whatever_comes_before_it() -> None:
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.knows(two)
            await one.heard.until(lambda events: events == [("up", 2)])
            before, largest = bytes(LINK_MESSAGE_BYTES - 1000), bytes(BATCH_BYTES_CEILING + HEADER_BYTES)
            one.links.send_entries(2, pb.AppendEntries(sequence=1, frame_bytes=[len(before)]), [before])
            await two.heard.until(lambda events: len(events) == 2)
            one.links.send_entries(2, pb.AppendEntries(sequence=2, frame_bytes=[len(largest)]), [largest])
            one.links.send_ack(2, pb.AppendAck(sequence=3))  # no room is left for it
            await two.heard.until(lambda events: len(events) == 3)
            assert two.heard.events[-1][:2] == ("append", 2)

            peer = one.links._peer(2)
            for sequence, frame in ((4, before), (5, largest)):
                peer.waiting.append(
                    _Outgoing(pb.AppendEntries(sequence=sequence, frame_bytes=[len(frame)]), None, [frame], len(frame))
                )
            assert [append.sequence for append in peer.take().header.append] == [4]
            assert len(encode(peer.take())) <= MESSAGE_BYTES_MAX

    asyncio.run(scenario())


def test_a_broker_that_comes_back_is_linked_again() -> None:
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one):
            await two.start()
            one.knows(two)
            await one.heard.until(lambda events: events == [("up", 2)])
            await two.stop()
            await one.heard.until(lambda events: events == [("up", 2), ("down", 2)])
            again = Node(2, incarnation=2)
            async with nodes(again):
                one.knows(again)
                await one.heard.until(lambda events: events == [("up", 2), ("down", 2), ("up", 2)])
                one.links.send_ack(2, pb.AppendAck(sequence=7))
                await again.heard.until(lambda events: events[-1:] == [("ack", 7)])

    asyncio.run(scenario())


def test_a_link_that_the_other_side_ends_while_it_is_written_to_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq_broker.rpc.links.BACKOFF_S", (0.001,))

    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.knows(two)
            for n in range(1, 60):
                for node, other in ((one, 2), (two, 1)):
                    await node.heard.until(lambda events, n=n, other=other: events.count(("up", other)) == n)  # type: ignore[misc]
                two.links.end(1)
                while one.links.connected():
                    one.links.send_ack(2, pb.AppendAck(sequence=n))
                    await asyncio.sleep(0.0001 * (n % 2))

    asyncio.run(scenario())


def test_nothing_is_kept_for_a_broker_without_a_link() -> None:
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.links.send_ack(2, pb.AppendAck(sequence=1))
            one.knows(two)
            await one.heard.until(lambda events: events == [("up", 2)])
            one.links.send_ack(2, pb.AppendAck(sequence=2))
            await two.heard.until(lambda events: len(events) == 2)
            assert two.heard.events == [("up", 1), ("ack", 2)]

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_costs_no_more_than_its_buffer() -> None:
    async def scenario() -> None:
        two = Node(2)
        async with nodes(two), dial(two.address) as channel:
            method: Any = channel.stream_stream(LINK, None, None)
            call = method()
            await call.write(encode(Envelope(pb.LinkHeader(hello=pb.LinkHello(broker=1, incarnation=1, cluster_id="c")))))
            await call.read()  # its hello, and nothing more
            frame = bytes(4 << 20)
            for n in range(2 * LINK_BUFFER_BYTES_MAX // len(frame)):
                two.links.send_entries(1, pb.AppendEntries(sequence=n, frame_bytes=[len(frame)]), [frame])
                await asyncio.sleep(0)
            assert two.links.waiting_bytes(1) <= LINK_BUFFER_BYTES_MAX
            call.cancel()
            await two.heard.until(lambda events: events[-1:] == [("down", 1)])
            assert two.links.waiting_bytes(1) == 0

    asyncio.run(scenario())


def test_a_newer_connection_of_the_same_peer_takes_the_place_of_the_former() -> None:
    async def scenario() -> None:
        two = Node(2)
        hello = encode(Envelope(pb.LinkHeader(hello=pb.LinkHello(broker=1, incarnation=1, cluster_id="c"))))
        ack = encode(Envelope(pb.LinkHeader(ack=[pb.AppendAck(sequence=5)])))
        async with nodes(two), dial(two.address) as channel:
            method: Any = channel.stream_stream(LINK, None, None)
            first, second = method(), method()
            for call in (first, second):
                await call.write(hello)
                await call.read()
            assert await first.read() is aio.EOF  # type: ignore[attr-defined]
            await second.write(ack)
            await two.heard.until(lambda events: events[-1:] == [("ack", 5)])
            assert two.heard.events == [("up", 1), ("down", 1), ("up", 1), ("ack", 5)]
            second.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (pb.LinkHello(broker=1, incarnation=1, cluster_id="other"), "of cluster other"),
        (pb.LinkHello(broker=2, incarnation=1, cluster_id="c"), "calls itself broker 2"),
        (pb.LinkHello(broker=3, incarnation=1, cluster_id="c"), "the lower id dials"),
        (None, "begins with hello"),
    ],
)
def test_strangers_are_refused_with_the_reason(hello: pb.LinkHello | None, reason: str) -> None:
    async def scenario() -> None:
        two = Node(2)
        async with nodes(two), dial(two.address) as channel:
            method: Any = channel.stream_stream(LINK, None, None)
            call = method()
            await call.write(encode(Envelope(pb.LinkHeader(hello=hello) if hello is not None else pb.LinkHeader())))
            with pytest.raises(aio.AioRpcError) as refused:
                await call.read()
            error = from_call(refused.value, two.address)
            assert type(error) is InvalidRequest
            assert reason in str(error)
            assert two.heard.events == []

    asyncio.run(scenario())


def test_a_former_life_is_refused() -> None:
    async def scenario() -> None:
        two = Node(2)
        async with nodes(two), dial(two.address) as channel:
            method: Any = channel.stream_stream(LINK, None, None)
            newer, older = method(), method()
            await newer.write(encode(Envelope(pb.LinkHeader(hello=pb.LinkHello(broker=1, incarnation=5, cluster_id="c")))))
            await newer.read()
            await older.write(encode(Envelope(pb.LinkHeader(hello=pb.LinkHello(broker=1, incarnation=4, cluster_id="c")))))
            with pytest.raises(aio.AioRpcError) as refused:
                await older.read()
            assert "later life" in str(from_call(refused.value, two.address))
            assert two.links.connected() == [1]
            newer.cancel()

    asyncio.run(scenario())


def head(sequence: int, partition: int = 0, leader_epoch: int = 1) -> pb.SnapshotPart:
    return pb.SnapshotPart(topic_id="t", partition=partition, leader_epoch=leader_epoch, sequence=sequence)


def snapshots(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event for event in events if event[0] == "snapshot"]


def test_a_snapshot_larger_than_the_buffer_arrives_whole_and_keeps_nothing_else_out() -> None:
    parts = LINK_BUFFER_BYTES_MAX // SNAPSHOT_PART_BYTES + 3

    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            one.knows(two)
            await one.heard.until(lambda events: events == [("up", 2)])
            one.links.send_snapshot(2, head(7), bytes(parts * SNAPSHOT_PART_BYTES - 1))
            assert one.links.waiting_bytes(2) == 0
            one.links.send_ack(2, pb.AppendAck(sequence=1))
            await two.heard.until(lambda events: len(events) == parts + 2)
            assert snapshots(two.heard.events) == [("snapshot", 7, part) for part in range(parts)]
            assert ("ack", 1) in two.heard.events[:4], "it did not wait for the snapshot"

    asyncio.run(scenario())


def test_a_snapshot_that_is_on_its_way_is_not_begun_again() -> None:
    peer = _Peer(2)
    peer.ended = asyncio.Event()
    peer.put_snapshot(head(1), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.put_snapshot(head(2), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.put_snapshot(head(3, partition=1), bytes(1))
    first = peer.take().header.snapshot[0]
    peer.put_snapshot(head(4), bytes(2 * SNAPSHOT_PART_BYTES))
    second, third = (peer.take().header.snapshot[0] for _ in range(2))
    assert [(part.sequence, part.part, part.parts) for part in (first, second, third)] == [(2, 0, 2), (2, 1, 2), (3, 0, 1)]
    assert not peer.something.is_set()
    peer.put_snapshot(head(5), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.take()
    peer.put_snapshot(head(6, leader_epoch=2), bytes(1))
    assert [part.sequence for part in peer.take().header.snapshot] == [6], "what a leader of old began is of no use"
