"""What a shell may look at of a replica, and what a replica does not hear: words of former lives and of strangers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mq_broker.core.entries import Append, Entry, EpochStart
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    BrokersSeen,
    CasAnswer,
    CasOutcome,
    Effect,
    Flushed,
    HandedOver,
    HandOver,
    Identity,
    InstallSnapshot,
    JournalBegins,
    LeaderName,
    LogReplaced,
    NodeRead,
    NodeState,
    PeerDisconnected,
    Propose,
    ReadNode,
    RecoveredLog,
    Refused,
    ReplicasChanged,
    ReplicaSettings,
    Reply,
    RoleChanged,
    Send,
    SessionLost,
    SoFar,
    Tick,
    TransferLeadership,
    TurnEnded,
    WriteNode,
)
from mq_broker.core.replication.replica import Replica
from mq_protocol.errors import NotLeader

LIVE = BrokersSeen((LeaderName(1, 5), LeaderName(2, 5), LeaderName(3, 5)))
NODE = NodeState(LeaderName(2, 5), 3, ((1, "one"), (2, "two"), (3, "three")), 0, "w")


def entry(index: int, epoch: int = 2) -> Entry:
    return Entry(index, epoch, index, Append(), bytes([index]) * 16, 1, 10, 10)


def follower(*entries: Entry) -> Replica:
    """Broker 1's. Broker 2 leads epoch 3, as the node says."""
    replica = Replica("t", 0, Identity(1, 5, "one"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(entries), 0)
    for event in (Tick(0), LIVE, NodeRead(1, NODE)):
        replica.step(event)
    return replica


def leader() -> Replica:
    """Broker 1's, which leads epoch 4 with nothing but its epoch start."""
    replica = follower()
    replica.step(NodeRead(2, NodeState(None, 3, NODE.isr, 0, "x")))
    [claim] = claims(replica, 1)
    replica.step(CasAnswer(claim.state.token, CasOutcome.DONE, 3))
    assert (replica.leading, replica.leader_epoch) == (True, 4)
    return replica


def claims(replica: Replica, now_ms: int, last_index: int = 0, last_epoch: int = 0) -> list[WriteNode]:
    """What it writes at that time, if others are asked before and answer that they have no more than that."""
    effects = replica.step(TurnEnded(now_ms))
    for asked in [sent for sent in of(effects, Send) if isinstance(sent.message, SoFar)]:
        log_id = dict(NODE.isr)[asked.to]
        epoch, question = asked.message.leader_epoch, asked.message.question
        replica.step(SoFar(asked.to, 5, log_id, epoch, last_index, last_epoch, question))
    return of(effects + replica.step(TurnEnded(now_ms)), WriteNode)


def of(effects: list[Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(*entries: Entry, incarnation: int = 5, epoch: int = 3, **fields: Any) -> AppendEntries:
    """After entry 1, of epoch 2."""
    return AppendEntries(2, incarnation, epoch, 1, 2, 1 + len(entries), 0, 1, entries, **fields)


def answer(follower: int, **fields: Any) -> AppendAck:
    given = {
        "incarnation": 5,
        "log_id": "two",
        "leader_epoch": 4,
        "acknowledged_index": 1,
        "matched_index": 1,
        "sequence": 1,
    }
    return AppendAck(follower, **{**given, **fields})


def test_a_replica_says_how_far_its_log_is() -> None:
    replica = follower(entry(1), entry(2))
    assert (replica.first_index, replica.last_index, replica.last_epoch) == (1, 2, 2)
    replica.step(sent(entry(2), entry(3, 3)))
    assert (replica.last_index, replica.last_epoch, replica.flushed, replica.applied_index) == (3, 3, 2, 0)
    replica.step(Flushed(3, 2))
    assert replica.flushed == 2, "of an entry that is not there"
    replica.step(Flushed(3, 3))
    replica.step(AppendEntries(2, 5, 3, 3, 3, 3, 2, 2))
    assert (replica.flushed, replica.applied_index, replica.high_watermark) == (3, 2, 2)
    replica.step(JournalBegins(3))
    assert (replica.first_index, replica.last_index) == (3, 3)
    assert replica.next_offset_at_most == 3
    assert replica.window_bytes == replica.machine.uuids.memory_bytes


def test_a_replica_says_who_leads_and_who_is_in_sync_as_far_as_it_knows() -> None:
    new = Replica("t", 0, Identity(1, 5, "one"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
    assert (new.leader, new.isr, new.leader_epoch, new.leading, new.ready) == (0, (), 0, False, False)
    known = follower()
    assert (known.leader, known.isr, known.replicas) == (2, (1, 2, 3), (1, 2, 3))
    known.step(ReplicasChanged((3, 1)))
    assert known.replicas == (3, 1)
    own = leader()
    assert (own.leader, own.isr, own.ready) == (1, (1, 2, 3), False)
    assert (own.newest_life(2), own.newest_life(9)) == (5, 0)


def test_whoever_is_asked_and_does_not_lead_names_the_leader_if_it_knows_one() -> None:
    def asked(replica: Replica) -> NotLeader:
        [reply] = of(replica.step(Propose(7, Append(), 0)), Reply)
        assert reply.request == 7
        assert isinstance(reply.result, Refused)
        assert isinstance(reply.result.error, NotLeader)
        return reply.result.error

    assert "ask broker 2" in str(asked(follower()))
    unknown = Replica("t", 0, Identity(1, 5, "one"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
    assert "no leader is known" in str(asked(unknown))
    over = follower()
    over.step(LogReplaced("another", "fsync"))
    assert "no leader is known" in str(asked(over)), "what it knew is of its former life"
    stopping = leader()
    stopping.step(HandOver(9_000))
    assert "handing leadership over" in str(asked(stopping))


def test_a_former_life_of_a_broker_is_not_heard() -> None:
    """Rule 1. Nor is it answered: what it led is over."""
    replica = follower(entry(1))
    assert replica.step(sent(entry(2, 3), incarnation=4)) == []
    assert replica.step(InstallSnapshot(2, 4, 3, 1, Snapshot(9, 3, 0, MachineState()))) == []
    assert replica.last_index == 1
    assert leader().step(answer(2, incarnation=4)) == []
    assert of(leader().step(answer(2, incarnation=4, leader_epoch=9)), ReadNode) == []


def test_who_is_of_a_former_epoch_is_told_the_present_one() -> None:
    [told] = of(follower(entry(1)).step(sent(entry(2, 2), epoch=2)), Send)
    assert told == Send(2, AppendAck(1, 5, "one", 3, 0, 0, 0))


def test_an_answer_of_a_later_epoch_sends_a_leader_to_the_node_and_one_of_a_former_means_nothing() -> None:
    assert of(leader().step(answer(2, leader_epoch=5)), ReadNode) == [ReadNode()]
    replica = leader()
    replica.step(answer(2, leader_epoch=3))
    assert replica.step(Flushed(1, 4)) == []
    replica.step(TurnEnded(2))
    replica.step(answer(3, log_id="three"))
    assert not of(replica.step(TurnEnded(3)), RoleChanged), "broker 2 has not answered this leader"
    replica.step(answer(2))
    assert of(replica.step(TurnEnded(4)), RoleChanged) == [RoleChanged(1, 4, leading=True, ready=True)]


def test_a_broker_that_is_no_replica_is_not_heard_by_a_leader() -> None:
    replica = leader()
    assert replica.step(BrokersSeen((*LIVE.live, LeaderName(9, 1)))) == []
    assert replica.step(answer(9, incarnation=1)) == []


def test_a_later_leader_is_followed_and_ends_ones_own_leadership() -> None:
    replica = leader()
    replica.step(AppendEntries(2, 5, 5, 0, 0, 1, 0, 1, (Entry(1, 5, 1, EpochStart(2)),)))
    assert (replica.leading, replica.leader, replica.leader_epoch, replica.last_epoch) == (False, 2, 5, 5)
    replica = leader()
    replica.step(NodeRead(4, NodeState(LeaderName(3, 5), 5, NODE.isr, 0, "y")))
    assert (replica.leading, replica.leader, replica.leader_epoch) == (False, 3, 5)
    replica = leader()
    replica.step(NodeRead(4, NodeState(None, 4, NODE.isr, 0, "y")))
    assert (replica.leading, replica.leader) == (False, 0)


def test_an_older_answer_about_the_node_changes_nothing() -> None:
    """Rule 7."""
    replica = leader()
    assert replica.step(NodeRead(2, NodeState(LeaderName(3, 5), 4, NODE.isr, 0, "y"))) == [ReadNode()]
    assert replica.leading


def test_a_leader_that_is_not_registered_is_not_named_as_one() -> None:
    replica = follower()
    replica.step(NodeRead(2, NodeState(LeaderName(3, 4), 4, NODE.isr, 0, "y")))
    assert (replica.leader, replica.leader_epoch) == (0, 4)
    replica.step(NodeRead(3, NodeState(LeaderName(1, 4), 5, NODE.isr, 0, "y")))
    assert replica.leader == 0, "one's own former life"


def test_the_node_is_read_when_the_leader_may_be_gone_and_not_for_others() -> None:
    quiet = follower()
    quiet.step(sent())
    assert of(quiet.step(PeerDisconnected(3)), ReadNode) == []
    assert of(quiet.step(PeerDisconnected(2)), ReadNode) == [ReadNode()]
    quiet = follower()
    quiet.step(sent())
    assert of(quiet.step(BrokersSeen(LIVE.live[:2])), ReadNode) == []
    assert of(quiet.step(BrokersSeen(LIVE.live[:1])), ReadNode) == [ReadNode()]
    assert of(leader().step(PeerDisconnected(2)), ReadNode) == []
    assert of(leader().step(BrokersSeen(LIVE.live[:1])), ReadNode) == []
    assert of(follower().step(SessionLost()), ReadNode) == [ReadNode()]


def test_time_never_goes_back() -> None:
    """Trap 21: a shell whose clock fell back would let a wait begin anew."""
    for first, second in ((Tick(100), TurnEnded(50)), (TurnEnded(100), Tick(50))):
        replica = Replica("t", 0, Identity(2, 5, "two"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
        for event in (LIVE, NodeRead(1, NodeState(None, 0, NODE.isr, 0, "y")), TurnEnded(0), first, second):
            replica.step(event)
        assert not claims(replica, 149)
        assert claims(replica, 150), "a candidate of the second rank"


def test_a_follower_that_was_chosen_asks_for_the_node_until_it_may_claim() -> None:
    replica = follower(entry(1))
    effects = replica.step(sent(successor=1))
    assert of(effects, ReadNode) == [ReadNode()]
    replica.step(NodeRead(1, NODE))
    assert of(replica.step(Tick(1)), ReadNode) == [ReadNode()], "the former leader has not written yet"
    other = follower(entry(1))
    assert of(other.step(sent(successor=3)), ReadNode) == [ReadNode()]
    other.step(NodeRead(1, NODE))
    assert of(other.step(Tick(1)), ReadNode) == []


def test_a_role_is_told_when_it_changes_and_only_then() -> None:
    replica = follower()
    assert of(replica.step(sent(epoch=4)), RoleChanged) == [RoleChanged(2, 4, leading=False, ready=False)]
    assert of(replica.step(sent(epoch=4)), RoleChanged) == []


def test_a_follower_is_not_asked_to_let_another_lead() -> None:
    assert follower().step(TransferLeadership(3, 9_000)) == []
    replica = leader()
    replica.step(TransferLeadership(1, 9_000))
    assert not of(replica.step(Propose(1, Append(), 0, uuid=b"x" * 16, record_count=1)), Reply), (
        "it takes writes as before"
    )


def test_a_follower_that_stops_does_not_lead_any_more() -> None:
    nobody = NodeRead(2, NodeState(None, 3, NODE.isr, 0, "x"))
    replica = follower()
    replica.step(nobody)
    assert claims(replica, 1), "it is the first that may claim"
    stopping = follower()
    assert of(stopping.step(HandOver(9_000)), HandedOver) == [HandedOver(0)]
    stopping.step(nobody)
    for now_ms in (1, 5_000, 60_000):
        stopping.step(Tick(now_ms))
        assert not claims(stopping, now_ms)


def test_a_leader_that_has_sent_nothing_yet_says_so() -> None:
    replica = leader()
    assert replica.last_sent == (0, 0)
    replica.step(TurnEnded(1))
    assert replica.last_sent == (1, 2), "its epoch start, to two followers"


def test_who_was_chosen_is_chosen_once() -> None:
    """It led, and was deposed: others come before it again, by their rank."""
    replica = Replica("t", 0, Identity(3, 5, "three"), ReplicaSettings((1, 2, 3), 2), RecoveredLog((entry(1),)), 0)
    for event in (LIVE, NodeRead(1, NODE), sent(successor=3), NodeRead(2, NodeState(None, 3, NODE.isr, 0, "x"))):
        replica.step(event)
    [claim] = claims(replica, 1)
    replica.step(CasAnswer(claim.state.token, CasOutcome.DONE, 3))
    assert replica.leading
    replica.step(NodeRead(4, NodeState(None, 5, NODE.isr, 0, "y")))
    assert not claims(replica, 2, 2, 4)
    assert not claims(replica, 300, 2, 4)
    assert claims(replica, 302, 2, 4)


def test_a_rank_is_that_of_the_replicas_as_they_are_now() -> None:
    replica = Replica("t", 0, Identity(3, 5, "three"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
    for event in (LIVE, NodeRead(2, NodeState(None, 3, NODE.isr, 0, "x")), TurnEnded(1), ReplicasChanged((3, 1, 2))):
        assert not of(replica.step(event), WriteNode)
    assert claims(replica, 2)


def test_a_reading_that_is_not_answered_is_asked_again_when_it_is_late() -> None:
    replica = Replica("t", 0, Identity(1, 5, "one"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
    assert of(replica.step(Tick(0)), ReadNode)
    assert not of(replica.step(Tick(1_999)), ReadNode)
    assert of(replica.step(Tick(2_000)), ReadNode)


def test_what_was_acknowledged_is_not_sought_again_whatever_is_said_later() -> None:
    """An answer that was overtaken may name an older place."""
    replica = leader()
    replica.step(TurnEnded(2))
    replica.step(answer(2))
    replica.step(answer(2, sequence=9, acknowledged_index=0, matched_index=0, conflict=True))
    [sent_to_2] = [send for send in of(replica.step(TurnEnded(900)), Send) if send.to == 2]
    assert sent_to_2.message.prev_index == 1


def test_what_others_said_before_the_node_or_who_lives_has_changed_lets_nobody_claim() -> None:
    """A log that was no further then may be by now."""
    nobody = replace(NODE, leader=None)
    fewer = BrokersSeen((LeaderName(1, 5), LeaderName(3, 5)))
    for news in ((fewer, NodeRead(2, nobody)), (NodeRead(3, replace(nobody, token="y")),)):
        replica = follower()
        replica.step(NodeRead(2, nobody))
        questions = [sent for sent in of(replica.step(TurnEnded(1)), Send) if isinstance(sent.message, SoFar)]
        for asked in questions:
            replica.step(SoFar(asked.to, 5, dict(NODE.isr)[asked.to], 3, 0, 0, asked.message.question))
        for event in news:
            replica.step(event)
        assert of(replica.step(TurnEnded(1)), WriteNode) == [], "they are asked anew"
        assert claims(replica, 200), "and say so again"
