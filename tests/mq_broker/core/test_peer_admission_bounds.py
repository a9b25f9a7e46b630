"""Each number of another broker's message is admitted up to its bound and refused beyond: a line a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mq_broker.core.entries import Append, Entry, EpochStart, Stage, TransactionKey, Trim
from mq_broker.core.machine.state import MachineState, Snapshot, StagedBatch
from mq_broker.core.machine.window import Placed, SeenUuids
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    BrokersSeen,
    CasAnswer,
    CasOutcome,
    Identity,
    InstallSnapshot,
    LeaderName,
    NodeRead,
    NodeState,
    RecoveredLog,
    ReplicaSettings,
    TurnEnded,
    WriteNode,
)
from mq_broker.core.replication.peer_admission import (
    BROKER_MAX,
    BYTES_MAX,
    INDEX_MAX,
    LOG_ID_CHARACTERS_MAX,
    OFFSET_MAX,
    PeerMessage,
    Verdict,
    judge,
    judge_snapshot,
)
from mq_broker.core.replication.replica import Replica
from mq_protocol.limits import EPOCH_MAX, MESSAGE_BYTES_MAX

UUID = bytes(range(16))
KEY = TransactionKey("query", "sink")
ENTRY = Entry(1, 3, 1_000, Append(), UUID, 1, 10, 10)


def follower(broker: int = 2) -> Replica:
    """With an empty log, and nobody known to lead."""
    replica = Replica("t", 0, Identity(broker, 1, "log"), ReplicaSettings((1, 2, 3), 2), RecoveredLog(), 0)
    replica.step(BrokersSeen((LeaderName(1, 1), LeaderName(2, 1), LeaderName(3, 1))))
    return replica


def leader() -> Replica:
    """Broker 2's, which leads epoch 4 and has sent its first entry, in messages 1 and 2."""
    replica = follower()
    replica.step(NodeRead(0, NodeState(None, 3, ((2, "log"),), 0, "t")))
    [claim] = [effect for effect in replica.step(TurnEnded(1_000)) if isinstance(effect, WriteNode)]
    replica.step(CasAnswer(claim.state.token, CasOutcome.DONE, 1))
    replica.step(TurnEnded(1_001))
    assert (replica.leading, replica.leader_epoch, replica.last_sent) == (True, 4, (1, 2))
    return replica


def sent(**fields: Any) -> AppendEntries:
    """By the leader of epoch 3."""
    given = {
        "leader": 1,
        "incarnation": 1,
        "leader_epoch": 3,
        "prev_index": 0,
        "prev_epoch": 0,
        "high_watermark": 0,
        "sequence": 1,
    }
    given |= fields
    return AppendEntries(**{"last_index": given["prev_index"] + len(given.get("entries", ())), **given})


def entry(**fields: Any) -> AppendEntries:
    return sent(entries=(replace(ENTRY, **fields),))


def answer(**fields: Any) -> AppendAck:
    given = {
        "follower": 1,
        "incarnation": 1,
        "log_id": "one",
        "leader_epoch": 4,
        "acknowledged_index": 0,
        "matched_index": 0,
    }
    return AppendAck(**{**given, "sequence": 1, **fields})


def is_nonsense(replica: Replica, message: PeerMessage) -> bool:
    return judge(replica, message)[0] is Verdict.NONSENSE


@pytest.mark.parametrize(
    ("lowest", "below"),
    [
        (sent(leader=1), sent(leader=0)),
        (sent(incarnation=1), sent(incarnation=0)),
        (sent(leader_epoch=1), sent(leader_epoch=0)),
        (sent(sequence=0), sent(sequence=-1)),
        (sent(prev_index=0), sent(prev_index=-1)),
        (sent(high_watermark=0), sent(high_watermark=-1)),
        (sent(prev_epoch=0), sent(prev_epoch=-1)),
        (sent(successor=0), sent(successor=-1)),
        (entry(timestamp_us=0), entry(timestamp_us=-1)),
        (entry(payload_bytes=0), entry(payload_bytes=-1)),
        (entry(decoded_bytes=0), entry(decoded_bytes=-1)),
        (entry(record_count=1), entry(record_count=0)),
        (entry(operation=Stage(KEY, 0, "run"), record_count=1), entry(operation=Stage(KEY, 0, "run"), record_count=0)),
        (entry(operation=EpochStart(1, 0)), entry(operation=EpochStart(1, -1))),
        (entry(operation=Trim(0)), entry(operation=Trim(-1))),
        (entry(leader_epoch=1), entry(leader_epoch=0)),
        (entry(index=1), entry(index=0)),
        (answer(matched_index=0), answer(matched_index=-1, acknowledged_index=-1)),
        (answer(hint_index=0), answer(hint_index=-1)),
        (answer(hint_epoch=0), answer(hint_epoch=-1)),
    ],
)
def test_the_lowest_number_of_each_field_is_admitted_and_none_below_it(lowest: PeerMessage, below: PeerMessage) -> None:
    assert judge(follower(), lowest) == (Verdict.ADMITTED, "")
    assert is_nonsense(follower(), below)


@pytest.mark.parametrize(
    ("highest", "above"),
    [
        (sent(leader=BROKER_MAX), sent(leader=BROKER_MAX + 1)),
        (sent(leader_epoch=EPOCH_MAX), sent(leader_epoch=EPOCH_MAX + 1)),
        (sent(sequence=INDEX_MAX), sent(sequence=INDEX_MAX + 1)),
        (sent(prev_index=INDEX_MAX), sent(prev_index=INDEX_MAX + 1)),
        (sent(high_watermark=INDEX_MAX), sent(high_watermark=INDEX_MAX + 1)),
        (sent(prev_epoch=3), sent(prev_epoch=4)),
        (sent(successor=BROKER_MAX), sent(successor=BROKER_MAX + 1)),
        (entry(timestamp_us=INDEX_MAX), entry(timestamp_us=INDEX_MAX + 1)),
        (entry(payload_bytes=MESSAGE_BYTES_MAX), entry(payload_bytes=MESSAGE_BYTES_MAX + 1)),
        (entry(decoded_bytes=BYTES_MAX), entry(decoded_bytes=BYTES_MAX + 1)),
        (entry(record_count=BYTES_MAX), entry(record_count=BYTES_MAX + 1)),
        (entry(operation=EpochStart(1, OFFSET_MAX)), entry(operation=EpochStart(1, OFFSET_MAX + 1))),
        (entry(operation=Trim(OFFSET_MAX)), entry(operation=Trim(OFFSET_MAX + 1))),
        (entry(operation=Append(UUID)), entry(operation=Append(UUID + UUID))),
        (entry(leader_epoch=3), entry(leader_epoch=4)),
        (entry(index=1), entry(index=2)),
        (answer(matched_index=INDEX_MAX), answer(matched_index=INDEX_MAX + 1)),
        (answer(matched_index=5, acknowledged_index=5), answer(matched_index=5, acknowledged_index=6)),
        (answer(hint_index=INDEX_MAX), answer(hint_index=INDEX_MAX + 1)),
        (answer(hint_epoch=EPOCH_MAX), answer(hint_epoch=EPOCH_MAX + 1)),
        (answer(log_id="x" * LOG_ID_CHARACTERS_MAX), answer(log_id="x" * (LOG_ID_CHARACTERS_MAX + 1))),
    ],
)
def test_the_highest_number_of_each_field_is_admitted_and_none_above_it(
    highest: PeerMessage, above: PeerMessage
) -> None:
    assert not is_nonsense(follower(), highest)
    assert is_nonsense(follower(), above)


def test_no_follower_has_more_than_its_leader_sent_or_answers_more() -> None:
    assert not is_nonsense(leader(), answer(matched_index=1, sequence=2))
    assert is_nonsense(leader(), answer(matched_index=2, sequence=2))
    assert is_nonsense(leader(), answer(matched_index=1, sequence=3))
    assert not is_nonsense(leader(), answer(matched_index=9, sequence=9, leader_epoch=3)), (
        "what a former leader sent is not known"
    )
    assert not is_nonsense(leader(), answer(matched_index=9, sequence=9, leader_epoch=5)), "nor what the next one sends"
    assert not is_nonsense(follower(), answer(matched_index=9, sequence=9, leader_epoch=1))
    assert follower().last_sent == (0, 0)


def test_nobody_but_the_leader_of_an_epoch_sends_in_it_once_it_is_known() -> None:
    replica = follower()
    replica.step(NodeRead(0, NodeState(None, 3, (), 0, "t")))
    snapshot = InstallSnapshot(3, 1, 3, 1, None)
    assert not is_nonsense(replica, sent())
    assert not is_nonsense(replica, snapshot)
    replica.step(sent())
    assert not is_nonsense(replica, sent())
    assert is_nonsense(replica, snapshot)
    assert is_nonsense(replica, sent(leader=3))
    assert not is_nonsense(replica, replace(snapshot, leader_epoch=4)), "another may lead the next"


STAGED = StagedBatch(UUID, KEY, 1, "run", 1, 5, 1_000, 10, 20)
SNAPSHOT = Snapshot(5, 3, 1_000, MachineState(9, 2))


def snapshot_with(state: MachineState | None = None, **fields: Any) -> InstallSnapshot:
    return InstallSnapshot(1, 1, 3, 1, replace(SNAPSHOT, state=state or SNAPSHOT.state, **fields))


def offsets(next_offset: int, log_start_offset: int) -> InstallSnapshot:
    return snapshot_with(MachineState(next_offset, log_start_offset))


def placed(index: int, base_offset: int, timestamp_us: int) -> InstallSnapshot:
    return snapshot_with(MachineState(9, 2, SeenUuids.of([(UUID, Placed(index, base_offset, timestamp_us))])))


def staged(**fields: Any) -> InstallSnapshot:
    return snapshot_with(MachineState(9, 2, staged=(replace(STAGED, **fields),)))


@pytest.mark.parametrize(
    ("at", "beyond"),
    [
        (snapshot_with(last_index=1), snapshot_with(last_index=0)),
        (snapshot_with(last_index=INDEX_MAX), snapshot_with(last_index=INDEX_MAX + 1)),
        (snapshot_with(last_epoch=1), snapshot_with(last_epoch=0)),
        (snapshot_with(last_epoch=3), snapshot_with(last_epoch=4)),
        (snapshot_with(timestamp_us=0), snapshot_with(timestamp_us=-1)),
        (snapshot_with(timestamp_us=INDEX_MAX), snapshot_with(timestamp_us=INDEX_MAX + 1)),
        (offsets(0, 0), offsets(0, -1)),
        (offsets(9, 9), offsets(9, 10)),
        (offsets(OFFSET_MAX, 0), offsets(OFFSET_MAX + 1, 0)),
        (placed(1, 0, 0), placed(0, 0, 0)),
        (placed(5, 0, 0), placed(6, 0, 0)),
        (placed(1, -1, 0), placed(1, -2, 0)),
        (placed(1, 9, 0), placed(1, 10, 0)),
        (placed(1, 0, 0), placed(1, 0, -1)),
        (placed(1, 0, INDEX_MAX), placed(1, 0, INDEX_MAX + 1)),
        (staged(uuid=UUID), staged(uuid=UUID[1:])),
        (staged(index=1), staged(index=0)),
        (staged(index=5), staged(index=6)),
        (staged(row_count=1), staged(row_count=0)),
        (staged(row_count=BYTES_MAX), staged(row_count=BYTES_MAX + 1)),
        (staged(timestamp_us=0), staged(timestamp_us=-1)),
        (staged(timestamp_us=INDEX_MAX), staged(timestamp_us=INDEX_MAX + 1)),
        (staged(payload_bytes=0), staged(payload_bytes=-1)),
        (staged(payload_bytes=MESSAGE_BYTES_MAX), staged(payload_bytes=MESSAGE_BYTES_MAX + 1)),
        (staged(decoded_bytes=0), staged(decoded_bytes=-1)),
        (staged(decoded_bytes=BYTES_MAX), staged(decoded_bytes=BYTES_MAX + 1)),
    ],
)
def test_each_number_of_a_snapshot_is_admitted_up_to_its_bound(at: InstallSnapshot, beyond: InstallSnapshot) -> None:
    assert judge_snapshot(at) == (Verdict.ADMITTED, "")
    assert judge_snapshot(beyond)[0] is Verdict.NONSENSE


def test_the_first_broker_is_a_broker() -> None:
    assert is_nonsense(follower(1), sent(leader=1)), "nobody else speaks in one's own name"
    assert not is_nonsense(follower(1), sent(leader=2))
    assert is_nonsense(follower(1), answer(follower=0))
