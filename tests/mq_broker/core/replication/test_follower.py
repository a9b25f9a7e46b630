"""A follower: what it takes for committed (rule 2), where logs part, what is cut, when a snapshot replaces a log."""

from __future__ import annotations

import itertools

from mq_broker.core.entries import Append, Entry
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Audit,
    BrokersSeen,
    DiskRefused,
    Effect,
    Flushed,
    Identity,
    Install,
    InstallSnapshot,
    LeaderName,
    NodeRead,
    NodeState,
    Published,
    ReadNode,
    RecoveredLog,
    ReplicaSettings,
    Send,
    Tick,
    Truncate,
    TurnEnded,
    WriteEntries,
)
from mq_broker.core.replication.replica import Replica


def entry(index: int, epoch: int) -> Entry:
    return Entry(index, epoch, index, Append(), bytes([index, epoch]) * 8, 1, 10, 10)


def published(*steps: list[Effect]) -> list[int]:
    return [effect.index for effect in itertools.chain(*steps) if isinstance(effect, Published)]


def test_no_more_is_committed_than_a_message_of_this_epoch_proved_to_match() -> None:
    """A message names what comes before it, and how far the leader's log is committed, which may be further than
    that."""
    settings = ReplicaSettings((1, 2, 3), 2)
    follower = Replica(
        "t", 0, Identity(1, 1, "one"), settings, RecoveredLog((entry(1, 5), entry(2, 5), entry(3, 5))), 0
    )
    follower.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"), (3, "three")), 0, "w")))
    told = AppendEntries(2, 1, 6, prev_index=1, prev_epoch=5, last_index=1, high_watermark=3, sequence=1)
    assert published(follower.step(told), follower.step(TurnEnded(1))) == [1]  # 2 and 3 are of a former leader alone
    instead = AppendEntries(2, 1, 6, 1, 5, 2, 3, 2, (entry(2, 6),))
    assert published(follower.step(instead), follower.step(TurnEnded(2))) == []  # this disk may refuse it yet
    assert published(follower.step(Flushed(2, 6)), follower.step(TurnEnded(3))) == [2]
    assert follower.machine.next_offset == 2


def of(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def shortened() -> Replica:
    """Broker 1's, of a log that begins after entry 20. Broker 2 leads epoch 6, and the node was read."""
    settings = ReplicaSettings((1, 2, 3), 2)
    log = RecoveredLog((entry(21, 5),), Snapshot(20, 5, 20, MachineState()))
    replica = Replica("t", 0, Identity(1, 1, "one"), settings, log, 0)
    replica.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"), (3, "three")), 0, "w")))
    return replica


def looking(previous: int, sequence: int, epoch: int = 5) -> AppendEntries:
    """The leader looks for the entry that both logs have."""
    return AppendEntries(2, 1, 6, previous, epoch, previous, 0, sequence)


def test_a_leader_that_looks_below_the_beginning_of_a_log_is_told_where_that_is() -> None:
    [answer] = of(shortened().step(looking(10, 1)), Send)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, AppendAck)
    assert (answer.message.conflict, answer.message.hint_index, answer.message.hint_epoch) == (True, 20, 5)
    assert (answer.message.acknowledged_index, answer.message.matched_index) == (0, 0), "nothing was proved to match"


SILENCE_MS = ReplicaSettings((1,), 1).silence_ms


def test_a_leader_that_goes_on_looking_there_lacks_what_is_committed_and_a_person_is_told() -> None:
    """What it sent before it was told may be under way for long: the fifth is news. One that comes twice counts
    once."""
    replica = shortened()
    for sequence in range(1, 5):
        for _ in range(2):
            assert not of(replica.step(looking(10, sequence)), Audit)
        replica.step(Tick(sequence * SILENCE_MS - 1))
        assert not of(replica.step(looking(10, sequence)), Audit), "a message of before says nothing new"
        replica.step(Tick(sequence * SILENCE_MS))
    [alarm] = of(replica.step(looking(10, 5)), Audit)
    assert isinstance(alarm, Audit)
    assert alarm.alarm
    assert "lacks what is committed here" in alarm.text


def test_what_a_leader_had_sent_to_the_log_before_this_one_is_no_alarm_however_much_comes_at_once() -> None:
    replica = shortened()
    for turn in range(4):
        replica.step(Tick(turn * SILENCE_MS))
        for sequence in range(100 * turn + 1, 100 * turn + 100):
            assert not of(replica.step(looking(10, sequence)), Audit)


def test_a_leader_that_looks_there_without_a_pause_is_an_alarm_as_soon_as_one_that_is_slow() -> None:
    replica = shortened()
    told = 0
    for turn in range(4 * 10):
        replica.step(Tick(turn * SILENCE_MS // 10))
        told += len(of(replica.step(looking(10, turn + 1)), Audit))
    assert not told
    replica.step(Tick(4 * SILENCE_MS))
    assert of(replica.step(looking(10, 41)), Audit)


def test_a_leader_that_found_where_both_logs_agree_is_patiently_told_again_later() -> None:
    replica = shortened()
    for sequence in range(1, 5):
        replica.step(looking(10, sequence))
        replica.step(Tick(sequence * SILENCE_MS))
    replica.step(looking(20, 5))
    for sequence in range(6, 10):
        assert not of(replica.step(looking(19, sequence)), Audit)
        replica.step(Tick(sequence * SILENCE_MS))
    assert of(replica.step(looking(19, 10)), Audit)
    assert not of(shortened().step(looking(20, 1)), Audit)


def test_a_leader_without_an_entry_that_is_committed_here_is_an_alarm_and_the_node_is_read() -> None:
    """A recovery from another log would explain it, and the node would say so."""
    replica = shortened()
    effects = replica.step(looking(20, 1, epoch=4))
    assert of(effects, Audit)
    assert of(effects, ReadNode) == [ReadNode()]
    elsewhere = shortened()
    assert not of(elsewhere.step(looking(21, 1, epoch=4)), Audit), "entry 21 is not committed, as far as is known here"


def test_committed_entries_are_never_cut() -> None:
    replica = shortened()
    replica.step(AppendEntries(2, 1, 6, 20, 5, 21, 21, 1, (entry(21, 5),)))
    assert replica.high_watermark == 21
    effects = replica.step(AppendEntries(2, 1, 6, 20, 5, 21, 21, 2, (entry(21, 6),)))
    assert not of(effects, Truncate)
    [alarm] = of(effects, Audit)
    assert isinstance(alarm, Audit)
    assert (alarm.alarm, "would cut committed entry 21" in alarm.text) == (True, True)
    assert of(effects, ReadNode) == [ReadNode()]
    assert (replica.last_index, replica.last_epoch) == (21, 5)


def test_what_is_there_already_is_not_written_again_and_what_is_new_is() -> None:
    replica = shortened()
    effects = replica.step(AppendEntries(2, 1, 6, 20, 5, 23, 0, 1, (entry(21, 5), entry(22, 6), entry(23, 6))))
    assert of(effects, WriteEntries) == [WriteEntries((entry(22, 6), entry(23, 6)))]
    assert not of(effects, Truncate)
    assert not of(replica.step(AppendEntries(2, 1, 6, 20, 5, 22, 0, 2, (entry(21, 5), entry(22, 6)))), WriteEntries)
    assert replica.last_index == 23


def test_what_came_with_an_entry_is_written_with_it() -> None:
    replica = shortened()
    entries = (entry(21, 5), entry(22, 6), entry(23, 6))
    replica.step(AppendEntries(2, 1, 6, 20, 5, 21, 0, 1, entries[:1], bodies=("first",)))
    effects = replica.step(AppendEntries(2, 1, 6, 20, 5, 23, 0, 2, entries, bodies=("again", "second", "third")))
    assert [effect.bodies for effect in effects if isinstance(effect, WriteEntries)] == [("second", "third")]


def test_only_what_conflicts_and_what_follows_it_is_cut() -> None:
    settings = ReplicaSettings((1, 2, 3), 2)
    log = RecoveredLog((entry(1, 4), entry(2, 5), entry(3, 5)))
    replica = Replica("t", 0, Identity(1, 1, "one"), settings, log, 0)
    replica.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"), (3, "three")), 0, "w")))
    effects = replica.step(AppendEntries(2, 1, 6, 0, 0, 2, 0, 1, (entry(1, 4), entry(2, 6))))
    assert of(effects, Truncate) == [Truncate(1)]
    assert of(effects, WriteEntries) == [WriteEntries((entry(2, 6),))]
    [audit] = of(effects, Audit)
    assert isinstance(audit, Audit)
    assert "cut 2 entries above 1" in audit.text
    assert not audit.alarm


def snapshot(last_index: int, last_epoch: int, sequence: int = 1) -> InstallSnapshot:
    return InstallSnapshot(2, 1, 6, sequence, Snapshot(last_index, last_epoch, 9, MachineState(next_offset=3)))


def matched(replica: Replica, message: InstallSnapshot) -> int:
    """What the follower says that it has of its leader's log."""
    effects = replica.step(message) + replica.step(TurnEnded(0))
    assert not of(effects, Install)
    acks = [
        effect.message
        for effect in of(effects, Send)
        if isinstance(effect, Send) and isinstance(effect.message, AppendAck)
    ]
    return max((ack.matched_index for ack in acks), default=-1)


def test_a_snapshot_begins_a_log_anew_only_where_it_lacks_what_the_snapshot_stands_for() -> None:
    assert matched(shortened(), snapshot(21, 5)) == 21, "it has that entry"
    assert matched(shortened(), snapshot(20, 5)) == 20, "so does its own snapshot"
    assert matched(shortened(), snapshot(10, 4)) == 10, "and what that stands for"
    [install] = of(shortened().step(snapshot(22, 6)), Install)
    assert install == Install(Snapshot(22, 6, 9, MachineState(next_offset=3)), 0)
    assert of(shortened().step(snapshot(21, 6)), Install), "another entry 21"
    empty = shortened()
    assert not of(empty.step(InstallSnapshot(2, 1, 6, 1, None)), Install)
    assert of(empty.step(snapshot(22, 6, 2)), Install), "it goes on, and takes the next"


def test_a_log_that_is_being_replaced_by_a_snapshot_takes_nothing_more() -> None:
    replica = shortened()
    assert of(replica.step(snapshot(22, 6)), Install)
    assert replica.step(AppendEntries(2, 1, 6, 21, 5, 22, 0, 4, (entry(22, 6),))) == []
    assert replica.step(TurnEnded(0)) == []


def test_a_snapshot_that_is_not_needed_is_answered_each_time_and_takes_nothing_back() -> None:
    """The answer may have been lost."""
    replica = shortened()
    replica.step(AppendEntries(2, 1, 6, 20, 5, 21, 0, 4, (entry(21, 5),)))
    replica.step(TurnEnded(0))
    for sequence in (5, 6):
        replica.step(snapshot(20, 5, sequence))
        [said] = of(replica.step(TurnEnded(0)), Send)
        assert isinstance(said, Send)
        assert isinstance(said.message, AppendAck)
        assert (said.message.matched_index, said.message.sequence) == (21, sequence)


def test_a_log_that_is_named_in_sync_is_not_replaced_by_a_snapshot() -> None:
    """It has all that is committed. The leader may have dropped it since, and the node says so."""
    replica = shortened()
    replica.step(NodeRead(2, NodeState(LeaderName(2, 1), 6, ((1, "one"), (2, "two")), 0, "w")))
    effects = replica.step(snapshot(22, 6))
    assert not of(effects, Install)
    assert of(effects, ReadNode)
    replica.step(NodeRead(3, NodeState(LeaderName(2, 1), 6, ((2, "two"),), 0, "w")))
    assert of(replica.step(snapshot(22, 6, 2)), Install)


def test_what_its_disk_refused_a_follower_does_not_have_any_more() -> None:
    replica = shortened()
    replica.step(AppendEntries(2, 1, 6, 20, 5, 23, 0, 1, (entry(21, 5), entry(22, 6), entry(23, 6))))
    replica.step(TurnEnded(1))
    effects = replica.step(DiskRefused(23, "no space"))
    assert of(effects, Truncate) == [Truncate(22)]
    [said] = of(replica.step(TurnEnded(2)), Send)
    assert isinstance(said, Send)
    assert isinstance(said.message, AppendAck)
    assert (said.message.matched_index, said.message.acknowledged_index) == (22, 21)


def test_a_snapshot_of_a_former_epoch_or_life_is_not_installed() -> None:
    replica = shortened()
    replica.step(NodeRead(2, NodeState(LeaderName(3, 1), 7, ((3, "three"),), 0, "w")))
    assert not of(replica.step(snapshot(22, 6)), Install)
    replica = shortened()
    replica.step(BrokersSeen((LeaderName(2, 2),)))
    assert not replica.step(snapshot(22, 6))


def test_a_leader_that_does_not_say_anything_is_looked_up_and_one_that_does_is_not() -> None:
    """The node is read on silence, and every so often anyway; not for each tick of a healthy partition."""
    replica = shortened()
    assert of(replica.step(Tick(0)), ReadNode), "once, to begin with"
    replica.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"),), 0, "w")))
    for now_ms in range(500, 29_001, 500):
        replica.step(looking(20, now_ms))
        assert not of(replica.step(Tick(now_ms)), ReadNode)
    for now_ms in (29_500, 30_000):
        replica.step(looking(20, now_ms))
        readings = len(of(replica.step(Tick(now_ms)), ReadNode))
    assert readings == 1, "its time has come"
    replica.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"),), 0, "w")))
    assert not of(replica.step(Tick(31_500)), ReadNode)
    assert of(replica.step(Tick(32_500)), ReadNode), "it is silent"


def test_a_leader_that_sends_a_snapshot_is_not_silent() -> None:
    replica = shortened()
    replica.step(Tick(0))
    replica.step(NodeRead(1, NodeState(LeaderName(2, 1), 6, ((2, "two"),), 0, "w")))
    replica.step(Tick(1_500))
    replica.step(snapshot(20, 5))
    assert not of(replica.step(Tick(3_000)), ReadNode)
    assert of(replica.step(Tick(3_501)), ReadNode)
