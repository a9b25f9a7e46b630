"""Rule 15 in the core: what becomes of logs when a partition goes on from one of them, or must begin without any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.entries import Append, Entry, EpochStart, Operation, Trim
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Audit,
    BrokersSeen,
    CasAnswer,
    CasOutcome,
    Effect,
    Flushed,
    Identity,
    Install,
    InstallSnapshot,
    LeaderName,
    NodeRead,
    NodeState,
    OffsetsSkipped,
    ReadNode,
    RecoveredLog,
    RecoveryAdopted,
    ReplicaSettings,
    Send,
    SessionLost,
    StartOver,
    Tick,
    Trimmed,
    Truncate,
    TurnEnded,
    WriteEntries,
    WriteNode,
)
from mq_broker.core.replication.replica import Replica
from mq_protocol.limits import next_life

OTHER = LeaderName(2, 1)
RECOVERED = NodeState(OTHER, 6, ((2, "two"),), 1, "w")


def entry(index: int, epoch: int, operation: Operation | None = None) -> Entry:
    return Entry(index, epoch, index, operation or Append(), bytes([index]) * 16, 1, 10, 10)


def replica(*entries: Entry, replicas: tuple[int, ...] = (1, 2), begins_empty: bool = False) -> Replica:
    """Broker 1's, just opened with these entries."""
    settings = ReplicaSettings(replicas, 1, volatile=begins_empty, begins_empty=begins_empty)
    return Replica("t", 0, Identity(1, 1, "one"), settings, RecoveredLog(entries), 0)


def appended(previous: int, epoch: int, *entries: Entry) -> AppendEntries:
    """From the leader of epoch 6."""
    return AppendEntries(2, 1, 6, previous, epoch, previous + len(entries), 0, 1, entries)


def of(effects: list[Effect], *kinds: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kinds)]


def test_a_log_that_comes_back_after_a_recovery_loses_nothing_before_it_is_put_aside() -> None:
    former = replica(entry(1, 5), entry(2, 5))
    conflict = appended(1, 5, entry(2, 6, EpochStart(2)))
    effects = former.step(conflict)
    assert not of(effects, Truncate)
    assert of(effects, ReadNode)
    assert of(former.step(NodeRead(9, RECOVERED)), StartOver)

    same_recovery = replica(entry(1, 5), entry(2, 5))
    same_recovery.step(NodeRead(9, NodeState(OTHER, 6, ((2, "two"),), 0, "w")))
    assert of(same_recovery.step(conflict), Truncate) == [Truncate(1)]


def test_a_replica_that_has_only_what_the_recovered_leader_sent_does_not_begin_anew() -> None:
    fresh = replica()
    assert of(fresh.step(appended(0, 0, entry(1, 5), entry(2, 6, EpochStart(2)))), WriteEntries)
    fresh.step(Flushed(2, 6))
    effects = fresh.step(NodeRead(9, RECOVERED))
    assert not of(effects, StartOver), "what it acknowledged may be counted, and its log be named in a moment"
    assert of(effects, RecoveryAdopted) == [RecoveryAdopted(1)]

    without_session = replica()
    without_session.step(appended(0, 0, entry(1, 5), entry(2, 6, EpochStart(2))))
    without_session.step(Flushed(2, 6))
    without_session.step(SessionLost())
    effects = without_session.step(NodeRead(9, RECOVERED))
    assert of(effects, StartOver, RecoveryAdopted) == [RecoveryAdopted(1)], "its leader may name its log in a moment"

    longer = replica(entry(1, 5), entry(2, 5))
    longer.step(appended(1, 5))
    assert of(longer.step(NodeRead(9, RECOVERED)), StartOver), "nothing shows that the leader has entry 2"


def test_what_a_former_leader_proved_is_not_proved_to_be_of_the_recovered_log() -> None:
    follower = replica()
    follower.step(appended(0, 0, entry(1, 5), entry(2, 6, EpochStart(2))))
    assert of(follower.step(NodeRead(9, NodeState(OTHER, 7, ((2, "another"),), 1, "w"))), StartOver)


def test_a_snapshot_is_installed_only_once_the_node_was_read() -> None:
    snapshot = InstallSnapshot(2, 1, 6, 1, Snapshot(20, 6, 20, MachineState(next_offset=3)))
    fresh = replica(entry(1, 5))
    effects = fresh.step(snapshot)
    assert not of(effects, Install)
    assert of(effects, ReadNode)
    fresh.step(NodeRead(9, NodeState(OTHER, 6, ((2, "two"),), 0, "w")))
    assert of(fresh.step(snapshot), Install)


def test_a_snapshot_is_not_taken_for_what_one_of_a_former_recovery_stands_for() -> None:
    settings = ReplicaSettings((1, 2), 1)
    former = RecoveredLog((), Snapshot(1, 1, 1, MachineState()))
    behind = Replica("t", 0, Identity(1, 1, "one"), settings, former, 0)
    behind.step(NodeRead(8, NodeState(OTHER, 5, ((2, "two"),), 0, "w")))
    sent = InstallSnapshot(2, 1, 6, 1, Snapshot(1, 6, 1, MachineState(next_offset=1 << 40)))
    effects = behind.step(sent) + behind.step(TurnEnded(0))
    assert of(effects, ReadNode)
    acks = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendAck)]
    assert all(ack.matched_index == 0 for ack in acks), "they are not the same"
    assert of(behind.step(NodeRead(9, RECOVERED)), StartOver)

    same_recovery = Replica(
        "t", 0, Identity(1, 1, "one"), settings, RecoveredLog((), Snapshot(3, 5, 1, MachineState())), 0
    )
    same_recovery.step(NodeRead(9, NodeState(OTHER, 6, ((2, "two"),), 0, "w")))
    effects = same_recovery.step(sent) + same_recovery.step(TurnEnded(0))
    [ack] = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendAck)]
    assert ack.matched_index == 1, "what is committed before the end of its own snapshot it has"


def claims(state: NodeState, *, begins_empty: bool = True) -> list[Effect]:
    """What a broker does that alone is to have a partition in memory, and was restarted."""
    alone = replica(replicas=(1,), begins_empty=begins_empty)
    alone.step(BrokersSeen((LeaderName(1, 1), OTHER)))
    alone.step(NodeRead(9, state))
    alone.step(Tick(1_000))
    return of(alone.step(TurnEnded(1_000)), WriteNode)


def test_a_restart_empties_a_partition_in_memory_only_if_no_other_broker_is_named() -> None:
    [claim] = claims(NodeState(LeaderName(1, 0), 5, ((1, "before"),), 0, "w"))
    assert isinstance(claim, WriteNode)
    assert claim.state.isr == ((1, "one"),)
    assert not claims(NodeState(LeaderName(1, 0), 5, ((1, "before"),), 0, "w"), begins_empty=False), (
        "an operator is to say so"
    )
    assert not claims(NodeState(LeaderName(1, 0), 5, ((1, "before"), (2, "two")), 0, "w")), (
        "broker 2, moved away, has all of it"
    )


def test_only_a_topic_that_may_begin_empty_does_and_only_with_one_replica() -> None:
    alone = NodeState(LeaderName(1, 0), 5, ((1, "before"),), 3, "w", offset_floor=77)
    [claim] = claims(alone)
    assert isinstance(claim, WriteNode)
    assert (claim.state.leader_epoch, claim.state.recovery) == (6, 4)
    assert claim.state.offset_floor == next_life(77), "no offset that was given before is given again"
    two = replica(replicas=(1, 2), begins_empty=True)
    two.step(BrokersSeen((LeaderName(1, 1), OTHER)))
    two.step(NodeRead(9, alone))
    assert not of(two.step(TurnEnded(9_000)), WriteNode), "the other replica may have it"


def test_a_log_that_was_put_aside_takes_nothing_more() -> None:
    former = replica(entry(1, 5))
    assert StartOver(1) in former.step(NodeRead(9, RECOVERED))
    assert not former.step(appended(1, 5, entry(2, 6)))
    assert not former.step(TurnEnded(9_000))


def alarms(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in of(effects, Audit) if isinstance(effect, Audit) and effect.alarm]


def test_a_person_is_told_that_a_log_is_put_aside() -> None:
    [text] = alarms(replica(entry(1, 5)).step(NodeRead(9, RECOVERED)))
    assert "recovered from another log" in text


def test_a_recovery_is_adopted_once_and_known_from_then_on() -> None:
    chosen = replica(entry(1, 5))
    state = NodeState(None, 6, ((1, "one"),), 1, "w")
    assert of(chosen.step(NodeRead(9, state)), RecoveryAdopted) == [RecoveryAdopted(1)]
    assert chosen.identity == Identity(1, 1, "one", 1)
    assert not of(chosen.step(NodeRead(10, state)), RecoveryAdopted, StartOver)
    empty = replica()
    assert of(empty.step(NodeRead(9, RECOVERED)), RecoveryAdopted, StartOver) == [RecoveryAdopted(1)], (
        "it has nothing to put aside"
    )


def test_offsets_below_the_floor_are_given_to_nobody() -> None:
    """Records that had them are lost, and others must not be taken for them. What was there before stays readable."""
    machine = PartitionMachine(WindowBounds(100))
    machine.apply(Entry(1, 1, 1, Append(), bytes(16), 5))
    assert machine.apply(Entry(2, 2, 2, EpochStart(1, 5))) == []
    assert machine.apply(Entry(2, 2, 2, Trim(0))) == [], "nor are records dropped that are not there"
    assert machine.apply(Entry(3, 3, 3, EpochStart(1, 100))) == [OffsetsSkipped(5, 100)]
    assert (machine.log_start_offset, machine.next_offset) == (0, 100)
    assert machine.apply(Entry(4, 4, 4, EpochStart(1, 100))) == []

    emptied = PartitionMachine(WindowBounds(100), MachineState(next_offset=5, log_start_offset=5))
    assert emptied.apply(Entry(1, 1, 1, EpochStart(1, 100))) == [OffsetsSkipped(5, 100), Trimmed(100)]
    assert (emptied.log_start_offset, emptied.next_offset) == (100, 100), "the log begins where it goes on"


def test_offsets_may_be_given_up_to_what_the_tail_will_give() -> None:
    floor = replica(entry(1, 5), entry(2, 5, EpochStart(1, 40)), entry(3, 5))
    assert floor.next_offset_at_most == 41
    assert replica(entry(1, 5), entry(2, 5, EpochStart(1, 0))).next_offset_at_most == 1


def test_a_node_below_the_epoch_seen_is_asked_for_again_before_anybody_is_alarmed() -> None:
    """A new leader's message may overtake an answer that was under way."""
    ahead = replica(entry(1, 5))
    below = NodeState(None, 0, ((1, "one"),), 0, "w")
    effects = ahead.step(NodeRead(9, below))
    assert of(effects, ReadNode)
    assert not alarms(effects)
    [text] = alarms(ahead.step(NodeRead(9, below)))
    assert "Going on above that" in text
    assert ahead.leader_epoch == 6, "under which it asks the others how far they are"


def begins_later(*entries: Entry) -> Replica:
    """Broker 1's, of a log that begins after entry 20."""
    log = RecoveredLog(entries, Snapshot(20, 5, 20, MachineState()))
    return Replica("t", 0, Identity(1, 1, "one"), ReplicaSettings((1, 2), 1), log, 0)


def test_a_log_that_begins_later_does_not_go_on_after_a_recovery_that_was_not_from_it() -> None:
    """What let it begin there may be lost, so the recovered log may still need payloads that are not here."""
    former = begins_later(entry(21, 5))
    effects = former.step(appended(21, 5, entry(22, 6, EpochStart(2, 0, 1)))) + former.step(TurnEnded(0))
    assert not of(effects, WriteEntries)
    acks = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendAck)]
    assert [(ack.matched_index, ack.acknowledged_index) for ack in acks] == [(21, 21)], "nothing of the new life"
    assert of(effects, ReadNode)
    assert of(former.step(NodeRead(9, RECOVERED)), StartOver), "though all that it has is proved to be its leader's too"


def test_nothing_of_the_life_after_a_recovery_is_acknowledged_before_the_node_was_read() -> None:
    """A log that is counted, or named in a moment, must not be put aside."""
    whole = replica(entry(1, 5))
    start = appended(1, 5, entry(2, 6, EpochStart(2, 0, 1)))
    effects = whole.step(start)
    assert not of(effects, WriteEntries)
    assert of(effects, ReadNode)
    assert of(whole.step(NodeRead(9, RECOVERED)), StartOver, RecoveryAdopted) == [RecoveryAdopted(1)]
    assert of(whole.step(start), WriteEntries)


def test_a_new_life_is_noticed_wherever_in_a_message_it_begins() -> None:
    whole = replica(entry(1, 5))
    start = entry(3, 6, EpochStart(2, 0, 1))
    effects = whole.step(appended(1, 5, entry(2, 5), start, entry(4, 6))) + whole.step(TurnEnded(0))
    assert not of(effects, WriteEntries)
    assert of(effects, ReadNode)
    [ack] = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendAck)]
    assert (ack.matched_index, ack.acknowledged_index) == (1, 1)


def test_what_a_message_names_that_is_here_already_is_proved_though_what_follows_is_refused() -> None:
    whole = replica(entry(1, 5), entry(2, 5))
    sent = appended(0, 0, entry(1, 5), entry(2, 5), entry(3, 6, EpochStart(2, 0, 1)))
    effects = whole.step(sent) + whole.step(TurnEnded(0))
    assert not of(effects, WriteEntries)
    [ack] = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, AppendAck)]
    assert (ack.matched_index, ack.acknowledged_index) == (2, 2)
    assert of(whole.step(NodeRead(9, RECOVERED)), StartOver, RecoveryAdopted) == [RecoveryAdopted(1)]


def test_a_log_that_lacks_but_its_first_entry_is_not_whole() -> None:
    log = RecoveredLog((entry(2, 5),), Snapshot(1, 5, 1, MachineState()))
    former = Replica("t", 0, Identity(1, 1, "one"), ReplicaSettings((1, 2), 1), log, 0)
    former.step(appended(2, 5, entry(3, 6, EpochStart(2, 0, 1))))
    assert of(former.step(NodeRead(9, RECOVERED)), StartOver, RecoveryAdopted) == [StartOver(1)]


def test_the_log_that_a_partition_was_recovered_from_goes_on_wherever_it_begins() -> None:
    named = begins_later(entry(21, 5))
    assert of(named.step(NodeRead(9, replace(RECOVERED, isr=((1, "one"),)))), RecoveryAdopted) == [RecoveryAdopted(1)]
    start = entry(22, 6, EpochStart(2, 0, 1))
    [written] = of(named.step(appended(21, 5, start)), WriteEntries)
    assert isinstance(written, WriteEntries)
    assert written.entries == (start,)


def test_a_snapshot_is_installed_only_once_it_is_known_which_recovery_its_leader_goes_on_after() -> None:
    behind = replica(entry(1, 5))
    behind.step(NodeRead(8, NodeState(OTHER, 5, ((2, "two"),), 0, "w")))
    snapshot = InstallSnapshot(2, 1, 6, 1, Snapshot(20, 6, 20, MachineState(next_offset=3)))
    effects = behind.step(snapshot)
    assert not of(effects, Install)
    assert of(effects, ReadNode)
    behind.step(NodeRead(9, replace(RECOVERED, recovery=0)))
    assert of(behind.step(snapshot), Install)


def test_once_the_node_of_this_epoch_was_read_no_epoch_start_is_refused() -> None:
    """A coordination service that was restored from a backup may have counted fewer recoveries than the logs."""
    fresh = replica()
    fresh.step(NodeRead(9, RECOVERED))
    sent = appended(0, 0, entry(1, 5, EpochStart(2, 0, 2)), entry(2, 6, EpochStart(2, 0, 1)))
    assert of(fresh.step(sent), WriteEntries)


def test_nothing_is_cut_on_the_word_of_a_new_life_before_the_node_was_read() -> None:
    former = replica(entry(1, 5), entry(2, 5))
    former.step(NodeRead(8, NodeState(OTHER, 5, ((2, "two"),), 0, "w")))
    effects = former.step(appended(1, 5, entry(2, 6, EpochStart(2, 0, 1))))
    assert not of(effects, Truncate)
    assert of(effects, ReadNode)
    assert of(former.step(NodeRead(9, RECOVERED)), StartOver)


def test_who_begins_empty_goes_on_under_the_recovery_that_it_claimed() -> None:
    alone = replica(replicas=(1,), begins_empty=True)
    alone.step(BrokersSeen((LeaderName(1, 1), OTHER)))
    alone.step(NodeRead(9, NodeState(LeaderName(1, 0), 5, ((1, "before"),), 3, "w")))
    [claim] = of(alone.step(TurnEnded(1_000)), WriteNode)
    assert isinstance(claim, WriteNode)
    alone.step(CasAnswer(claim.state.token, CasOutcome.DONE, 10))
    assert alone.leading
    assert alone.identity.recovery == 4


def test_a_late_message_takes_nothing_back_of_what_was_proved() -> None:
    former = replica(entry(1, 5))
    former.step(appended(1, 5, entry(2, 6, EpochStart(2))))
    former.step(Flushed(2, 6))
    former.step(SessionLost())
    former.step(appended(1, 5))  # an earlier heartbeat, which comes late or again
    assert not of(former.step(NodeRead(9, RECOVERED)), StartOver)


def test_what_was_proved_in_one_epoch_is_not_proved_in_the_next() -> None:
    former = replica(entry(1, 5), entry(2, 5))
    former.step(appended(2, 5))
    former.step(AppendEntries(2, 1, 7, 1, 5, 1, 0, 2, ()))
    led = NodeState(OTHER, 7, ((2, "two"),), 1, "w")
    assert of(former.step(NodeRead(9, led)), StartOver), "nothing shows that the leader of epoch 7 has entry 2"


def test_a_person_is_told_that_the_coordination_service_was_restored_below_this_broker() -> None:
    """By whoever is told again of a version that is older than one that was read before."""
    running = replica(entry(1, 5))
    running.step(NodeRead(50, NodeState(OTHER, 5, ((1, "one"), (2, "two")), 0, "w")))
    older = NodeRead(31, NodeState(OTHER, 5, ((1, "one"), (2, "two")), 0, "earlier"))
    assert alarms(running.step(older)) == [], "once, it is an answer that a later one overtook"
    [text] = alarms(running.step(older))
    assert "version 31 and epoch 5" in text
    assert "was the coordination service restored" in text
    assert alarms(running.step(older)) == [], "once"


@pytest.mark.parametrize("epoch", [6, 9])
def test_a_node_of_a_higher_epoch_is_obeyed_whatever_its_version(epoch: int) -> None:
    """It is of a later leader, or of an operator, after the coordination service was put back."""
    running = replica(entry(1, 5))
    running.step(NodeRead(50, NodeState(OTHER, 5, ((1, "one"), (2, "two")), 0, "w")))
    assert alarms(running.step(NodeRead(31, NodeState(OTHER, epoch, ((1, "one"), (2, "two")), 0, "w")))) == []
    assert running.leader_epoch == epoch


@pytest.mark.parametrize("versions", [(50, 49, 51, 50, 52, 51), (50, 49, 51, 49), (50, 50, 49)])
def test_an_older_answer_between_two_newer_ones_alarms_nobody(versions: tuple[int, ...]) -> None:
    running = replica(entry(1, 5))
    for version in versions:
        effects = running.step(NodeRead(version, NodeState(OTHER, 5, ((1, "one"), (2, "two")), 0, "w")))
        assert not [effect for effect in effects if isinstance(effect, Audit) and effect.alarm]
