"""What one partition reads, says to other brokers and begins with, and when it goes to rest and wakes, with
stand-ins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mq_broker.broker.host import partition as partitions
from mq_broker.broker.host.arriving import bytes_max
from mq_broker.broker.host.opened import JournalEvents, Opened
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.metadata.topics import Topic
from mq_broker.core.entries import Decide, TransactionKey
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    CasAnswer,
    CasOutcome,
    DecisionCommitted,
    Flushed,
    Install,
    NodeState,
    Propose,
    Published,
    Refused,
    Reopen,
    ReplicasChanged,
    Reply,
    Send,
    StartOver,
    Tick,
    Truncate,
    TurnEnded,
    WriteNode,
)
from mq_broker.storage.interface import Unsealed
from mq_protocol.errors import NotLeader, OffsetOutOfRange
from tests.mq_broker.broker.host.test_partition_alone import MOVE, TOPIC, World

SNAPSHOT = Snapshot(7, 1, 1_000_000, MachineState(next_offset=5))
DECISION = Decide(TransactionKey("q", "t"), 1, "r", 0, ())
ACK = AppendAck(3, 1, "log", 4, 0, 0, 0)
HEARTBEAT = AppendEntries(2, 1, 5, 9, 5, 9, 9, 1)


class Resting(World):
    """Its broker notes who goes to rest and who wakes."""

    def __init__(self) -> None:
        super().__init__()
        self.ticking = SimpleNamespace(
            slept=lambda _partition: self.did.append(("slept",)), woke=lambda _partition: self.did.append(("woke",))
        )

    def rest(self) -> None:
        """It has been calm for long enough."""
        self.partition.end_turn(1)
        self.partition.end_turn(100_000)
        assert self.partition.rest.asleep
        self.did.clear()
        self.events.clear()


def test_a_read_begins_at_what_the_journal_still_has() -> None:
    world = World()
    stored = [Published(10 * number, 10, 5 + number, 1, 8, 8) for number in range(3)]
    world.index.range = lambda *_: stored
    world.journal.payload = lambda index, unsealed: f"payload {index}, {len(unsealed.frames)} opened"
    world.journal.first_index = 5
    assert world.partition.read(3, 30, 100) == [(each, f"payload {each.index}, 0 opened") for each in stored]
    unsealed: Any = Unsealed(0, {5: None})
    assert world.partition.read(3, 30, 100, unsealed)[2] == (stored[2], "payload 7, 1 opened")
    world.journal.first_index = 7
    with pytest.raises(OffsetOutOfRange) as told:
        world.partition.read(3, 30, 100)
    assert told.value.next_offset == 20, "behind the last that is gone"


def test_a_read_is_as_long_as_was_asked_for_and_has_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "READ_BATCHES_MAX", 77)
    world = World()
    asked: list[tuple[int, ...]] = []
    world.index.range = lambda *bounds: asked.append(bounds) or []
    assert world.partition.read(3, 30, 100) == []
    assert asked == [(3, 30, 100, 77)]


def test_its_ends_are_those_of_what_is_committed_here() -> None:
    world = World()
    world.index.bytes_total = 88
    ends = world.partition.offsets()
    assert (ends.partition, ends.log_start_offset, ends.log_end_offset, ends.leader_epoch, ends.bytes) == (
        0,
        3,
        10,
        5,
        88,
    )


@pytest.mark.parametrize(("epoch", "said"), [(5, 5), (1, 1), (0, 1)])
def test_it_speaks_to_the_other_replicas_of_nothing(epoch: int, said: int) -> None:
    world = World()
    world.replica.leader_epoch = epoch
    world.replica.identity = SimpleNamespace(broker=1, incarnation=8, log_id="log")
    sent: list[tuple[int, AppendAck]] = []
    peers: Any = SimpleNamespace(send=lambda to, message: sent.append((to, message)))
    world.partition.peers = peers
    world.partition.speak()
    assert sent == [(to, AppendAck(1, 8, "log", said, 0, 0, 0)) for to in (2, 3)]


@pytest.mark.parametrize(("durability", "begins_empty"), [("memory", True), ("fsync", False)])
def test_a_replica_begins_with_what_its_topic_says(
    monkeypatch: pytest.MonkeyPatch, durability: str, begins_empty: bool
) -> None:
    world: Any = World()
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(partitions, "Replica", lambda *arguments: made.append(arguments))
    topic = Topic.of(replace(TOPIC.spec, settings={"durability": durability, "dedup_uuids_max": "123"}))
    stored: Any = SimpleNamespace(checkpoint=None)
    found: Any = SimpleNamespace(journal=SimpleNamespace(log_id="log"), recovery=4, recovered=stored)
    partition = Partition(world, topic, 0, Opened(found, JournalEvents("t-0"), world.index))
    [(name, number, identity, settings, recovered, now_ms)] = made
    assert (name, number, recovered, now_ms) == ("t", 0, stored, world.clock_ms)
    assert (identity.broker, identity.incarnation, identity.log_id, identity.recovery) == (1, 1, "log", 4)
    assert (settings.replicas, settings.dedup_uuids_max) == ((1, 2, 3), 123)
    assert (settings.begins_empty, settings.volatile) == (begins_empty, begins_empty)
    assert partition.index is world.index
    assert partition.peers._snapshot_bytes_max() == bytes_max(123)


def test_a_core_is_told_of_a_topic_only_what_is_new_to_it() -> None:
    world = World()
    world.partition.topic_changed(Topic.of(replace(TOPIC.spec, settings={"retention_ms": "5000"})))
    assert world.partition.topic.settings.retention_ms == 5_000
    assert not world.events
    world.partition.topic_changed(Topic.of(replace(TOPIC.spec, assignment=((1, 2),))))
    assert [type(event) for event in world.events] == [ReplicasChanged]
    [told] = world.events
    assert isinstance(told, ReplicasChanged)
    assert told.replicas == (1, 2)


def test_what_is_refused_is_raised_to_who_asked() -> None:
    async def scenario() -> None:
        world = World()
        world.answers = lambda event: (
            [Reply(event.request, Refused(NotLeader("ask broker 2")))] if isinstance(event, Propose) else []
        )
        with pytest.raises(NotLeader, match="ask broker 2"):
            await world.partition.ask(MOVE, 1e9)
        assert world.partition.at_rest

    asyncio.run(scenario())


def test_it_goes_to_rest_once_and_its_core_is_told_no_time_there() -> None:
    world = Resting()
    world.partition.end_turn(1)
    world.partition.end_turn(500)
    assert ("slept",) not in world.did
    world.partition.end_turn(100_000)
    world.partition.end_turn(100_001)
    assert world.did.count(("slept",)) == 1
    assert world.events == [TurnEnded(1), TurnEnded(500), TurnEnded(100_000), TurnEnded(0)]


def test_whatever_happens_wakes_it_once_and_a_heartbeat_does_not() -> None:
    world = Resting()
    world.rest()
    world.partition.feed(HEARTBEAT)
    assert ("woke",) not in world.did
    world.partition.feed(Flushed(9, 5))
    world.partition.feed(Flushed(10, 5))
    assert world.did.count(("woke",)) == 1
    assert not world.partition.rest.asleep


def test_an_acknowledgement_of_another_epoch_wakes_it_and_is_heard_afterwards() -> None:
    world = Resting()
    world.rest()
    world.partition.feed(ACK)
    assert world.did == [("touch", "t-0"), ("woke",)]
    assert world.events == [TurnEnded(world.clock_ms), ACK]
    world.rest()
    world.partition.feed(replace(ACK, leader_epoch=5))
    assert ("woke",) not in world.did


def test_what_a_heartbeat_began_wakes_it_at_the_end_of_the_turn() -> None:
    world = Resting()
    world.rest()
    world.replica.at_rest = False
    world.partition.end_turn(100_002)
    assert world.did == [("woke",)]
    assert world.events == [TurnEnded(0), TurnEnded(100_002)]
    assert not world.partition.rest.asleep


def test_the_broker_is_told_in_each_turn_that_it_was_touched_and_not_twice() -> None:
    world = Resting()
    for _ in range(2):
        world.partition.feed(Tick(1))
        world.partition.feed(Tick(2))
        world.partition.end_turn(3)
    assert world.did.count(("touch", "t-0")) == 2


def test_a_new_partition_has_changed_nothing_yet() -> None:
    world = Resting()
    looked: list[int] = []
    world.partition.observers.add(lambda: looked.append(1))
    world.partition.end_turn(1)
    assert not looked


def test_a_log_that_is_another_from_here_on_is_begun_by_the_broker() -> None:
    for effect, done in (
        (Reopen("damaged"), ("reopen", "damaged")),
        (Install(SNAPSHOT, 3), ("install", SNAPSHOT, 3)),
        (StartOver(4), ("start over", 4)),
        (DecisionCommitted(DECISION), ("decided", DECISION)),
        (Truncate(7), ("truncate", 7)),
    ):
        world = World()
        world.answer(effect)
        assert world.did == [("touch", "t-0"), done]


def test_what_the_node_is_to_say_is_written_and_the_answer_told() -> None:
    async def scenario() -> None:
        world = World()
        state = NodeState(None, 5, ((1, "log"),), 0, "token")
        world.answer(WriteNode(7, state))
        await world.work()
        assert world.did[1:] == [("write node",), ("written", "id", 0, 7, state)]
        assert world.events[-1] == CasAnswer("token", CasOutcome.DONE, 8)

    asyncio.run(scenario())


def test_a_message_of_the_core_goes_to_the_broker_that_it_names() -> None:
    world = World()
    sent: list[tuple[int, object]] = []
    peers: Any = SimpleNamespace(send=lambda to, message: sent.append((to, message)))
    world.partition.peers = peers
    message = AppendAck(1, 1, "log", 5, 0, 0, 0)
    world.answer(Send(2, message))
    assert sent == [(2, message)]


def test_a_replica_that_was_at_rest_is_unheard_of_since_its_broker_was() -> None:
    """Five minutes of rest are no silence: the heartbeats of the broker stood for the replica."""
    world = Resting()
    started = world.clock_ms
    world.replica.last_heard_ms = {3: started}
    world.rest()
    world.clock_ms += 300_000
    world.beats[3] = world.clock_ms - 1_000
    world.partition.wake(world.clock_ms)
    world.clock_ms += 20_000
    assert world.partition.unheard_ms == {3: 21_000}


def test_a_replica_that_says_nothing_while_its_broker_does_is_unheard_of_since_it_spoke() -> None:
    world = Resting()
    world.rest()
    world.partition.wake(world.clock_ms)
    world.replica.last_heard_ms = {3: world.clock_ms + 5_000}
    world.clock_ms += 60_000
    world.beats[3] = world.clock_ms
    assert world.partition.unheard_ms == {3: 55_000}


def test_silence_goes_on_while_the_leader_is_at_rest() -> None:
    world = Resting()
    world.replica.last_heard_ms = {3: world.clock_ms}
    world.rest()
    world.clock_ms += 600_000
    assert world.partition.unheard_ms == {3: 600_000}


def test_an_event_that_wakes_it_ends_its_rest() -> None:
    world = Resting()
    world.replica.last_heard_ms = {3: world.clock_ms}
    world.rest()
    world.clock_ms += 300_000
    world.beats[3] = world.clock_ms
    world.partition.feed(ReplicasChanged((1, 2, 3)))
    world.clock_ms += 7_000
    assert world.partition.unheard_ms == {3: 7_000}
