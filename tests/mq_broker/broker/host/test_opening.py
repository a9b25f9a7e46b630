"""What happens while a replica's journal is being opened: nothing of it is here yet, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic
from mq_broker.core.entries import Entry, EpochStart, MoveCursor
from mq_broker.core.messages import BrokersSeen, Event, LeaderName, PeerConnected
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.journal.segments import SEGMENT_SUFFIX
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import NotLeader, OutcomeUnknown
from tests.coroutines import real_time
from tests.mq_broker.broker.host.test_partition_life import led
from tests.mq_broker.broker.host.test_shell import HERE, ID, shell, until

OTHER = Topic.of(replace(HERE.spec, name="other", topic_id="other"))
FOLLOWED = Topic.of(replace(HERE.spec, assignment=((2, 1),)))


class HeldDisk:
    """Opens no journal of the topic `id` until it is `released`, and closes journals as ever."""

    def __init__(self, broker: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.released = threading.Event(), threading.Event()
        self.opened: list[Any] = []
        self._opens = broker._directory.open_journal
        monkeypatch.setattr(broker._directory, "open_journal", self._open)

    def _open(self, place: Place, *arguments: Any, **named: Any) -> Any:
        if place.topic_id == HERE.spec.topic_id:
            self.asked.set()
            assert self.released.wait(60)
        self.opened.append(self._opens(place, *arguments, **named))
        return self.opened[-1]


@asynccontextmanager
async def while_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: Topic = HERE
) -> AsyncIterator[tuple[Shell, HeldDisk]]:
    isr = tuple((broker, "") for broker in topic.spec.assignment[0])
    leader = (LeaderName(2, 7), 1) if topic is FOLLOWED else (None, 0)
    async with shell(tmp_path, isr, *leader) as broker:
        disk = HeldDisk(broker, monkeypatch)
        try:
            broker.follow_topics({ID: topic})
            await until(disk.asked.is_set)
            yield broker, disk
        finally:
            disk.released.set()


@real_time
async def test_a_replica_that_is_being_opened_is_not_there_and_who_asks_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with while_opening(tmp_path, monkeypatch) as (broker, _disk):
        assert broker.hearer(ID, 0) is broker.early
        assert broker.partitions() == []
        assert broker.hosted(HERE, 0) is None
        with pytest.raises(NotLeader, match="is opening its replica of t-0: ask again"):
            broker.partition(HERE, 0)


@real_time
async def test_brokers_and_links_that_come_while_a_replica_is_opened_are_told_to_it_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Event] = []
    feed = Partition.feed

    def noted(partition: Partition, event: Event) -> None:
        told.append(event)
        feed(partition, event)

    monkeypatch.setattr(Partition, "feed", noted)
    async with while_opening(tmp_path, monkeypatch) as (broker, disk):
        live = (LeaderName(1, 1), LeaderName(2, 7))
        broker.brokers_seen(live)
        broker.link_up(2)
        monkeypatch.setattr(broker.links, "connected", lambda: [2])
        assert told == []
        disk.released.set()
        await until(lambda: broker.hosted(HERE, 0) is not None)
        assert told[:2] == [BrokersSeen(live), PeerConnected(2)]
        await until(lambda: broker.partition(HERE, 0).serving)


def begun_by_broker_2() -> tuple[pb.AppendEntries, list[memoryview]]:
    """How it begins to lead a new topic."""
    frame = memoryview(b"".join(map(bytes, encode(Place(ID, 0), Entry(1, 1, 77, EpochStart(2))).parts)))
    message = pb.AppendEntries(
        topic_id=ID, leader=2, incarnation=7, leader_epoch=1, sequence=1, frame_bytes=[len(frame)]
    )
    return message, [frame]


@real_time
async def test_what_a_leader_says_while_a_replica_is_opened_is_told_to_it_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with while_opening(tmp_path, monkeypatch, FOLLOWED) as (broker, disk):
        broker.brokers_seen((LeaderName(1, 1), LeaderName(2, 7)))
        broker.hearer(ID, 0).hear_entries(*begun_by_broker_2())
        disk.released.set()
        await until(lambda: broker.hosted(FOLLOWED, 0) is not None)
        replica = broker.partition(FOLLOWED, 0).replica
        assert (replica.leader, replica.leader_epoch, replica.last_index) == (2, 1, 1)
        assert not broker.early


@real_time
async def test_a_broker_that_is_closed_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with while_opening(tmp_path, monkeypatch) as (broker, disk):
        settling = list(broker._settling.values())
        async with asyncio.timeout(20):
            await broker.close(OutcomeUnknown("over"))
            await asyncio.wait(settling)
        assert not disk.opened
        assert broker.partitions() == []
        assert not broker.failure.done()


@real_time
async def test_a_disk_that_hangs_while_a_replica_is_opened_keeps_no_other_replica_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with while_opening(tmp_path, monkeypatch) as (broker, _disk):
        broker.follow_topics({ID: HERE, "other": OTHER})
        await until(lambda: broker.hosted(OTHER, 0) is not None)
        await broker.wait_until_open(0.0)
        assert caplog.messages[-1] == "1 partitions are not open yet after 0 s; they will be"
        assert broker.hosted(HERE, 0) is None
        assert not broker.failure.done()


@real_time
async def test_a_replica_whose_journal_was_found_damaged_begins_as_another_log_with_what_is_good(
    tmp_path: Path,
) -> None:
    async with led(tmp_path) as (broker, partition):
        for number in range(5):
            await partition.ask(MoveCursor(f"g{number}", 0, "consumer"), 1e9)
        before = partition.journal.last_index
        log_id = partition.journal.log_id

        def damage() -> None:
            [segment] = broker._directory.partition_path(Place(ID, 0)).glob("*" + SEGMENT_SUFFIX)
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 1
            segment.write_bytes(data)

        broker.reopen(partition, "its disk was looked at", damage)
        await until(lambda: not broker._settling)
        begun = broker.partition(HERE, 0)
        assert begun is not partition
        assert begun.replica.identity.log_id == begun.journal.log_id != log_id
        assert 0 < begun.journal.last_index < before
        assert not begun.leading, "the node names another log"
