"""What other brokers say is looked at before the core hears it: each number that no broker would say is refused by its
reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mq_broker.core.entries import Append, Entry, EpochStart, TransactionKey, Trim
from mq_broker.core.machine.state import MachineState, Snapshot, StagedBatch
from mq_broker.core.machine.window import Placed, SeenUuids
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    BrokersSeen,
    CasAnswer,
    CasOutcome,
    Event,
    Flushed,
    Identity,
    InstallSnapshot,
    LeaderName,
    NodeRead,
    NodeState,
    ReadNode,
    RecoveredLog,
    ReplicaSettings,
    Send,
    SoFar,
    Tick,
    TurnEnded,
    WriteNode,
)
from mq_broker.core.replication.peer_admission import Verdict, judge, judge_snapshot
from mq_broker.core.replication.replica import Replica
from mq_protocol.limits import EPOCH_MAX, EPOCHS_AHEAD_MAX

LIVE = BrokersSeen((LeaderName(1, 5), LeaderName(2, 7), LeaderName(3, 1)))
NODE = NodeState(LeaderName(2, 7), 3, ((1, "a"), (2, "b"), (3, "c")), 0, "t")


def entry(index: int, epoch: int = 3, **fields: Any) -> Entry:
    fields = {"operation": Append(), "record_count": 1, "payload_bytes": 10, **fields}
    return Entry(index, epoch, 1_000, uuid=bytes([index] * 16), **fields)


def follower(*, epoch_in_log: int = 2) -> Replica:
    """Of broker 1, with entries 1 and 2; broker 2 leads epoch 3."""
    log = RecoveredLog((entry(1, epoch_in_log), entry(2, epoch_in_log)))
    replica = Replica("t", 0, Identity(1, 5, "a"), ReplicaSettings((1, 2, 3), 2), log, 0)
    replica.step(LIVE)
    return replica


def fed(replica: Replica, *events: Event) -> list[Any]:
    return [effect for event in events for effect in replica.step(event)]


def append(*entries: Entry, **fields: Any) -> AppendEntries:
    given = {
        "leader": 2,
        "incarnation": 7,
        "leader_epoch": 3,
        "prev_index": 2,
        "prev_epoch": 2,
        "high_watermark": 0,
        "sequence": 1,
    }
    given = {**given, "last_index": given["prev_index"] + len(entries), **fields}
    return AppendEntries(entries=entries, **given)


def leader() -> Replica:
    """Of broker 1, which leads epoch 4 and has sent entry 3 to nobody but who asks."""
    replica = follower()
    fed(replica, NodeRead(0, replace(NODE, leader=None)), Tick(1_000))
    [asked] = {effect.message.question for effect in fed(replica, TurnEnded(2_000)) if isinstance(effect, Send)}
    answers = [SoFar(broker, life, log_id, 3, 2, 2, asked) for broker, life, log_id in ((2, 7, "b"), (3, 1, "c"))]
    [claim] = [effect for effect in fed(replica, *answers, TurnEnded(2_000)) if isinstance(effect, WriteNode)]
    fed(replica, CasAnswer(claim.state.token, CasOutcome.DONE, 1), TurnEnded(2_001))
    assert replica.leading
    return replica


def ack(**fields: Any) -> AppendAck:
    given = {
        "follower": 2,
        "incarnation": 7,
        "log_id": "b",
        "leader_epoch": 4,
        "acknowledged_index": 0,
        "matched_index": 0,
    }
    return AppendAck(**{**given, "sequence": 1, **fields})


def test_what_a_leader_says_is_admitted_and_taken() -> None:
    replica = follower()
    message = append(entry(3), entry(4))
    assert judge(replica, message)[0] is Verdict.ADMITTED
    replica.step(message)
    assert replica.last_index == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (append(entry(4), last_index=3), "follow one by one"),
        (append(entry(3), entry(5), last_index=4), "follow one by one"),
        (append(entry(3), entry(3), last_index=4), "follow one by one"),
        (append(entry(3), last_index=9), "do not end at"),
        (append(entry(3, 1)), "epochs do not fall"),
        (append(entry(3, 4)), "above the leader's 3"),
        (append(entry(3, 3), entry(4, 2), last_index=4), "epochs do not fall"),
        (append(entry(3, 3), entry(4, 2), entry(5, 3), last_index=5), "epochs do not fall"),
        (append(entry(3, (1 << 32) - 1), leader_epoch=(1 << 32) - 1), "is not between"),
        (append(leader_epoch=EPOCH_MAX + 1), "is not between"),
        (append(leader_epoch=0), "is not between"),
        (append(entry(10), prev_index=9, prev_epoch=-1, last_index=10), "of epoch -1"),
        (append(prev_epoch=4), "of epoch 4"),
        (append(prev_index=-1, last_index=-1), "out of range"),
        (append(high_watermark=1 << 63), "out of range"),
        (append(sequence=1 << 63), "out of range"),
        (append(successor=-1), "successor"),
        (append(leader=1), "no other broker"),
        (append(leader=0), "no other broker"),
        (append(incarnation=0), "counted from 1"),
        (append(entry(3, record_count=0)), "0 records"),
        (append(entry(3, payload_bytes=1 << 32)), "bytes"),
        (append(entry(3, operation=Append(bytes(15)))), "UUIDs for 1 records"),
        (append(entry(3, operation=Append(bytes(32)))), "2 UUIDs for 1 records"),
        (append(replace(entry(3), uuid=b"short")), "UUID of 5 bytes"),
        (append(entry(3, operation=Trim(1 << 62))), "names offset"),
        (append(entry(3, operation=EpochStart(2, -1))), "names offset"),
        (append(replace(entry(3), timestamp_us=-1)), "of time"),
    ],
)
def test_what_no_leader_says_is_refused(message: AppendEntries, why: str) -> None:
    verdict, said = judge(follower(), message)
    assert verdict is Verdict.NONSENSE
    assert why in said


def test_an_epoch_has_one_leader() -> None:
    replica = follower()
    replica.step(append())
    assert judge(replica, append(leader=3, incarnation=1)) == (
        Verdict.NONSENSE,
        "AppendEntries of broker 3: broker 2 leads epoch 3",
    )
    assert judge(replica, append(leader=3, incarnation=1, leader_epoch=4))[0] is Verdict.ADMITTED


def test_a_life_above_the_registered_one_waits_for_the_registration() -> None:
    replica = follower()
    assert judge(replica, append(incarnation=8))[0] is Verdict.NOT_REGISTERED
    assert judge(replica, append(leader=9, incarnation=1))[0] is Verdict.NOT_REGISTERED
    replica.step(BrokersSeen((LeaderName(2, 8),)))
    assert judge(replica, append(incarnation=8))[0] is Verdict.ADMITTED


def test_an_epoch_far_above_the_node_is_not_obeyed_until_the_node_explains_it() -> None:
    replica = follower()
    fed(replica, NodeRead(0, NODE))
    far = append(entry(3, 4 + EPOCHS_AHEAD_MAX), leader_epoch=4 + EPOCHS_AHEAD_MAX)
    assert [type(effect) for effect in fed(replica, Tick(1_000), far)] == [ReadNode]
    assert (replica.leader_epoch, replica.last_index) == (3, 2)
    fed(replica, InstallSnapshot(2, 7, 4 + EPOCHS_AHEAD_MAX, 1, Snapshot(9, 3, 0, MachineState())))
    assert replica.leader_epoch == 3
    fed(replica, NodeRead(1, replace(NODE, leader_epoch=4 + EPOCHS_AHEAD_MAX)), far)
    assert replica.last_index == 3


def test_a_node_below_the_epoch_seen_is_told_of_once_and_read_no_more_than_others() -> None:
    replica = follower(epoch_in_log=9)
    readings = alarms = 0
    waiting = False
    for now_ms in range(0, 60_000, 20):
        effects = fed(replica, Tick(now_ms), TurnEnded(now_ms))
        if waiting:
            effects += fed(replica, NodeRead(0, NODE))
        waiting = any(isinstance(effect, ReadNode) for effect in effects)
        readings += waiting
        alarms += sum(getattr(effect, "alarm", False) for effect in effects)
    assert 2 <= readings <= 40
    assert alarms == 1
    fed(replica, Tick(66_000), NodeRead(1, replace(NODE, leader_epoch=11)))
    assert replica.leader_epoch == 11, "a repair is noticed"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"last_index": -1}, "its log ends with"),
        ({"last_epoch": 4}, "its log ends with"),
        ({"leader_epoch": -1}, "is not between 0"),
        ({"log_id": "x" * 65}, "a log id of 65"),
        ({"question": "x" * 129}, "a question of 129"),
        ({"broker": 1}, "no other broker"),
    ],
)
def test_what_no_replica_says_of_its_log_is_refused(fields: dict[str, Any], why: str) -> None:
    said = SoFar(2, 7, "b", 3, 2, 3, "question", asks=True)
    assert judge(follower(), said) == (Verdict.ADMITTED, "")
    assert judge(follower(), replace(said, leader_epoch=0, last_epoch=0))[0] is Verdict.ADMITTED, "of a new partition"
    verdict, reason = judge(follower(), replace(said, **fields))
    assert verdict is Verdict.NONSENSE
    assert why in reason


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (ack(matched_index=100), "100 matches"),
        (ack(acknowledged_index=2, matched_index=1), "is acknowledged"),
        (ack(acknowledged_index=-1), "is acknowledged"),
        (ack(sequence=1_000), "answers message"),
        (ack(hint_index=-1, conflict=True), "hint"),
        (ack(hint_epoch=1 << 31, conflict=True), "hint"),
        (ack(log_id="x" * 65), "log id"),
        (ack(follower=1), "no other broker"),
        (ack(leader_epoch=1 << 31), "is not between"),
    ],
)
def test_what_no_follower_says_is_refused(message: AppendAck, why: str) -> None:
    replica = leader()
    assert judge(replica, ack(matched_index=2, acknowledged_index=2))[0] is Verdict.ADMITTED
    verdict, said = judge(replica, message)
    assert verdict is Verdict.NONSENSE
    assert why in said


STAGED = StagedBatch(bytes(16), TransactionKey("q", "s"), 1, "r", 1, 4, 1_000, 10, 20)
STATE = MachineState(9, 2, SeenUuids.of([(bytes(16), Placed(4, 8, 1_000))]), (STAGED,))
SNAPSHOT = Snapshot(5, 3, 1_000, STATE)


def snapshot(**fields: Any) -> InstallSnapshot:
    return InstallSnapshot(2, 7, 3, 1, replace(SNAPSHOT, **fields))


@pytest.mark.parametrize(
    "message",
    [
        snapshot(last_index=0),
        snapshot(last_index=1 << 63),
        snapshot(last_epoch=4),
        snapshot(last_epoch=0),
        snapshot(timestamp_us=-1),
        snapshot(state=replace(STATE, next_offset=1 << 62)),
        snapshot(state=replace(STATE, log_start_offset=10)),
        snapshot(state=replace(STATE, uuids=SeenUuids.of([(bytes(16), Placed(6, 0, 0))]))),
        snapshot(state=replace(STATE, uuids=SeenUuids.of([(bytes(16), Placed(4, 10, 0))]))),
        snapshot(state=replace(STATE, uuids=SeenUuids.of([(bytes(16), Placed(4, 0, -1))]))),
        snapshot(state=replace(STATE, staged=(replace(STAGED, index=6),))),
        snapshot(state=replace(STATE, staged=(replace(STAGED, row_count=0),))),
        snapshot(state=replace(STATE, staged=(replace(STAGED, uuid=b"short"),))),
        snapshot(state=replace(STATE, staged=(replace(STAGED, payload_bytes=1 << 40),))),
        InstallSnapshot(2, 7, 3, 1, None),
    ],
)
def test_a_snapshot_that_is_of_no_log_is_refused(message: InstallSnapshot) -> None:
    assert judge_snapshot(snapshot()) == (Verdict.ADMITTED, "")
    assert judge_snapshot(message)[0] is Verdict.NONSENSE


def test_the_beginning_of_a_log_is_dropped_no_further_than_its_end() -> None:
    replica = follower()
    fed(replica, append(entry(3, operation=Trim(1 << 40)), high_watermark=3), TurnEnded(1))
    fed(replica, Flushed(3, 3), TurnEnded(2))
    assert (replica.machine.next_offset, replica.machine.log_start_offset) == (2, 2)
