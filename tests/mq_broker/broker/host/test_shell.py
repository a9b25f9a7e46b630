"""Which replicas a broker has open, and that nothing that happens to one meanwhile ends the broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.broker.host import partition as partitions
from mq_broker.broker.host import shell as shells
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topic
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.service import CoordinationService
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import LeaderName, NodeState, Published
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.wire.links import Links
from mq_broker.storage.journal import writer as writers
from mq_broker.storage.opening.directory import DataDirectory
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, StorageFailed, TritonMQError
from tests.coroutines import virtual_time
from tests.mq_broker.broker import cluster
from tests.simulation.real.loop import PROCESS
from tests.virtual.world import present, the_world

ID = "0" * 32
HERE = Topic.of(TopicSpec("t", ID, ((1,),)))
AWAY = Topic.of(TopicSpec("t", ID, ((2,),)))


@asynccontextmanager
async def shell(
    data: Path, isr: tuple[tuple[int, str], ...], leader: LeaderName | None = None, epoch: int = 0
) -> AsyncIterator[Shell]:
    """Broker 1, alone with a topic of one partition whose node names these logs."""
    world = present()
    if world is not None:
        process = world.process("shell", data, 1)
        PROCESS.set(process)
        data = process.disk.path
    coordination = CoordinationService(FileStore(data / "coordination"))
    await coordination.start(lambda _event: None)
    await coordination.create_topic(HERE.spec, (NodeState(leader, epoch, isr, 0, ""),))
    directory = DataDirectory.open(data / "data", 1)
    directory.join_cluster(await coordination.cluster_id())
    writer = writers.Writer()  # in virtual time that of the simulated world
    writer.start()
    async with asyncio.TaskGroup() as tasks:
        broker = Shell(1, 1, coordination, directory, writer, tasks)
        broker.links = Links(PeerProof(1, 1, "c", bytes(32)), broker, broker.spawn)
        try:
            yield broker
        finally:
            await broker.close(OutcomeUnknown("over"))
    await writer.stop()
    directory.close()
    await coordination.stop()


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await cluster.until(holds)


async def later(seconds: float = 10.0) -> None:
    """In virtual time: all that is under way has been done."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("durability", ["memory", "fsync"])
@virtual_time
async def test_a_state_to_begin_anew_with_is_not_kept_once_the_replica_begins_or_is_not_wanted(
    tmp_path: Path, durability: str
) -> None:
    snapshot = Snapshot(7, 1, 1_000_000, MachineState(next_offset=5))
    async with shell(tmp_path, isr=((2, "other"),)) as broker:
        here = Topic.of(replace(HERE.spec, settings={"durability": durability}))
        broker.follow_topics({ID: here})
        await later()
        broker.install(broker.partition(here, 0), snapshot, 3)
        await later()
        partition = broker.partition(here, 0)
        assert (partition.journal.first_index, partition.replica.identity.recovery) == (8, 3)
        assert not broker._begin_with
        broker.install(partition, snapshot, 4)
        broker.follow_topics({})  # deleted while it begins anew
        await later()
        assert broker.hosted(here, 0) is None
        assert not broker._begin_with


@pytest.mark.parametrize("durability", ["memory", "fsync"])
@virtual_time
async def test_a_partition_that_was_recovered_from_another_log_begins_an_empty_one_under_another_id(
    tmp_path: Path, durability: str
) -> None:
    async with shell(tmp_path, isr=((2, "other"),)) as broker:
        here = Topic.of(replace(HERE.spec, settings={"durability": durability}))
        broker.follow_topics({ID: here})
        await later()
        broker.install(broker.partition(here, 0), Snapshot(7, 1, 1_000_000, MachineState(next_offset=5)), 2)
        await later()
        former = broker.partition(here, 0)
        before = former.replica.identity
        assert (former.next_offset, before.recovery) == (5, 2)
        broker.start_over(former, 3)
        await later()
        partition = broker.partition(here, 0)
        assert (former.closed, partition.next_offset, partition.replica.last_index) == (True, 0, 0)
        assert partition.replica.identity.recovery == 3
        assert partition.replica.identity.log_id != before.log_id


async def leading(broker: Shell) -> Partition:
    """The partition, once broker 1 leads it."""
    broker.spawn(broker.ticking.run(), "ticks")
    broker.follow_topics({ID: HERE})
    broker.brokers_seen((LeaderName(1, 1),))
    await later()
    return broker.leader(HERE, 0)


@virtual_time
async def test_a_group_that_stands_at_lost_offsets_is_behind_by_what_comes_after_them(tmp_path: Path) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        partition = await leading(broker)
        partition.index.append(Published(0, 10, 1, 5, 100, 100))
        partition.index.skip(10, 30)
        partition.replica.machine.next_offset = 30
        assert partition.lag(10) == (0, 0), "there is nothing for it to read"
        partition.index.append(Published(30, 10, 2, 6, 70, 70))
        partition.replica.machine.next_offset = 40
        assert [partition.lag(offset)[0] for offset in (0, 10, 29, 30, 40)] == [170, 70, 70, 70, 0]


@virtual_time
async def test_what_a_full_link_dropped_wakes_those_at_rest_at_both_ends(tmp_path: Path) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        partition = await leading(broker)

        async def rests() -> None:
            await until(lambda: not broker._touched)
            if not partition.rest.asleep:
                partition.rest.asleep = True
                broker.ticking.slept(partition)

        await rests()
        broker.link_beat(2, dropped=False)
        assert partition.rest.asleep
        broker.link_beat(2, dropped=True)
        assert partition.rest.asleep, "it does not follow broker 2"
        broker.link_beat(1, dropped=True)
        assert not partition.rest.asleep
        await rests()
        broker.link_dropped(2)
        assert not partition.rest.asleep
        assert broker.contacts.since(2) is not None
        broker.link_down(2)
        assert broker.contacts.since(2) is None


@virtual_time
async def test_what_a_broker_said_to_a_replica_that_is_not_open_goes_with_its_link(tmp_path: Path) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        message = pb.AppendEntries(topic_id="not open", leader=2, sequence=1, frame_bytes=[5])
        broker.hearer("not open", 0).hear_entries(message, [memoryview(b"entry")])
        broker.link_down(3)
        assert len(broker.early) == 1
        broker.link_down(2)
        assert len(broker.early) == 0


@virtual_time
async def test_the_link_of_a_broker_that_has_fallen_silent_is_made_anew_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, isr=((1, ""),)) as broker:
        ended: list[int] = []
        times = itertools.count(broker.now_ms(), 1000)
        monkeypatch.setattr(broker.links, "end", ended.append)
        monkeypatch.setattr(broker, "now_ms", lambda: next(times))
        for silent in (2, 3):
            broker.link_beat(silent, dropped=False)
        broker.link_down(3)  # the link has ended by itself: there is nobody to blame
        while not ended:
            broker.end_silent_links()
        assert ended == [2]


@virtual_time
async def test_who_leads_no_more_and_who_begins_with_another_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, str]] = []

    def send(_links: Links, to: int, message: pb.AppendAck) -> None:
        said.append((to, message.log_id))

    monkeypatch.setattr(Links, "send_ack", send)

    async with shell(tmp_path, isr=((1, ""),)) as broker:
        partition = await leading(broker)
        former = partition.replica.identity.log_id
        broker.follow_topics({ID: Topic.of(replace(HERE.spec, assignment=((1, 2),)))})
        assert said == []
        broker.session_lost()
        assert said == [(2, former)]
        broker.reopen(partition, "its disk failed")
        await later()
        assert len(said) == 2
        assert said[1][0] == 2


@virtual_time
async def test_a_journal_that_the_disk_did_not_let_be_shortened_is_shortened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> int:
        raise StorageFailed("no room")

    async with shell(tmp_path, isr=((1, ""),)) as broker:
        partition = await leading(broker)
        partition.shorten_due = True
        monkeypatch.setattr(partition.journal, "shorten_to", refused)
        with pytest.raises(StorageFailed):
            await partition.shorten()
        assert not partition.shorten_due
        await later(partitions.SHORTEN_AGAIN_S + 10)
        assert partition.shorten_due


@pytest.mark.parametrize("named_again", [True, False])
@virtual_time
async def test_a_replica_that_was_moved_away_is_deleted_only_by_what_the_node_says_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_again: bool
) -> None:
    """A leader that knows an older assignment may put it back in sync after the node was read."""
    async with shell(tmp_path, isr=((2, "other"),)) as broker:
        broker.follow_topics({ID: HERE})
        await later()
        files = the_world().disk(tmp_path).path / "data" / "partitions" / f"{ID}-0"
        close = Partition.close

        async def put_back_meanwhile(partition: Partition, error: TritonMQError) -> None:
            if named_again:
                found = await broker.coordination.read_state(ID, 0)
                assert found is not None
                await broker.coordination.write_state(
                    ID, 0, found[0], NodeState(None, 0, ((1, "mine"), (2, "other")), 0, "")
                )
            await close(partition, error)

        monkeypatch.setattr(Partition, "close", put_back_meanwhile)
        broker.follow_topics({ID: AWAY})
        await later(shells.RELEASE_POLL_S + 10)
        assert files.exists() is named_again
