"""Snapshots on links between brokers: in parts, in turns with other messages, and no further than their link."""

from __future__ import annotations

import asyncio
from typing import Any

from mq_broker.rpc.wire.outgoing import Outgoing, Peer
from mq_protocol import mq_pb2 as pb
from mq_protocol.limits import (
    LINK_BUFFER_BYTES_MAX,
    LINK_MESSAGE_BYTES,
    SNAPSHOT_PART_BYTES,
)
from tests.coroutines import real_time
from tests.mq_broker.rpc.linked import Node, nodes


def head(sequence: int, partition: int = 0, leader_epoch: int = 1) -> pb.SnapshotPart:
    return pb.SnapshotPart(
        leader=1, incarnation=1, topic_id="t", partition=partition, leader_epoch=leader_epoch, sequence=sequence
    )


def snapshots(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event for event in events if event[0] == "snapshot"]


@real_time
async def test_a_snapshot_larger_than_the_buffer_arrives_whole_and_keeps_nothing_else_out() -> None:
    parts = LINK_BUFFER_BYTES_MAX // SNAPSHOT_PART_BYTES + 3
    one, two = Node(1), Node(2)
    async with nodes(one, two):
        one.knows(two)
        await one.heard.until(lambda events: events == [("up", 2)])
        one.links.send_snapshot(2, head(7), bytes(parts * SNAPSHOT_PART_BYTES - 1))
        assert one.links.waiting_bytes(2) == 0
        one.send_ack(2, 1)
        await two.heard.until(lambda events: len(events) == parts + 2)
        assert snapshots(two.heard.events) == [("snapshot", 7, part) for part in range(parts)]
        assert ("ack", 1) in two.heard.events[:4], "it did not wait for the snapshot"


def test_a_snapshot_that_is_on_its_way_is_not_begun_again() -> None:
    peer = Peer(2)
    peer.ended = asyncio.Event()
    peer.put_snapshot(head(1), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.put_snapshot(head(2), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.put_snapshot(head(3, partition=1), bytes(1))
    first = peer.take().header.snapshot[0]
    peer.put_snapshot(head(4), bytes(2 * SNAPSHOT_PART_BYTES))
    second, third = (peer.take().header.snapshot[0] for _ in range(2))
    assert [(part.sequence, part.part, part.parts) for part in (first, second, third)] == [
        (2, 0, 2),
        (2, 1, 2),
        (3, 0, 1),
    ]
    assert not peer.something.is_set()
    peer.put_snapshot(head(5), bytes(2 * SNAPSHOT_PART_BYTES))
    peer.take()
    peer.put_snapshot(head(6, leader_epoch=2), bytes(1))
    assert [part.sequence for part in peer.take().header.snapshot] == [6], "what a leader of old began is of no use"


def test_parts_of_a_snapshot_take_turns_with_what_waits_and_are_not_counted_as_waiting() -> None:
    peer = Peer(2)
    peer.ended = asyncio.Event()
    peer.put_snapshot(head(1), bytes(3 * SNAPSHOT_PART_BYTES))
    # With a part beside it, it is too much for one message
    large = Outgoing(pb.AppendEntries(), None, (), LINK_MESSAGE_BYTES)
    for _ in range(2):
        peer.put(large)
    taken = []
    for _ in range(5):
        header = peer.take().header
        taken.append((len(header.snapshot), len(header.append)))
        assert peer.waiting_bytes == sum(outgoing.size for outgoing in peer.waiting)
    assert taken == [(1, 0), (0, 1), (1, 0), (0, 1), (1, 0)]
    assert not peer.something.is_set()


def test_of_a_snapshot_that_was_on_its_way_when_a_link_ended_nothing_goes_over_the_next_one() -> None:
    peer = Peer(2)
    peer.ended = asyncio.Event()
    peer.put_snapshot(head(1), bytes(3 * SNAPSHOT_PART_BYTES))
    peer.take()
    peer.forget()
    peer.put_snapshot(head(2), bytes(1))
    assert [(part.sequence, part.part) for part in peer.take().header.snapshot] == [(2, 0)], "from its first part on"
