"""Which messages of other brokers may reach a replica at all. Pure: the broker and the simulator ask the same
functions.

A broker of the cluster sends what the core made, so what the core could not have made is refused here: before it is an
event, and before an assertion of the core or of the journal could meet it. Nothing is said about truth. A broker is
believed what it says of itself, as replication must; it is not believed numbers that would end this process, or a
partition, for good.

Not here, since the core can be asked for what it lacks: a leader epoch far above the state node's. The core reads the
node first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias, assert_never

from mq_broker.core.entries import SCHEDULED, UUID_BYTES, Append, Carry, Entry, EpochStart, Schedule, Stage, Trim
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import AppendAck, AppendEntries, InstallSnapshot, PeerMessage, SoFar
from mq_broker.core.replication.replica import Replica
from mq_protocol.limits import EPOCH_MAX, MESSAGE_BYTES_MAX, OFFSETS_OF_A_LIFE

INDEX_MAX = (1 << 62) - 1
"""Indexes, offsets, sequence numbers and times: far beyond what any log comes to, and sums of them still fit 64
bits."""

OFFSET_MAX = INDEX_MAX - OFFSETS_OF_A_LIFE
BYTES_MAX = (1 << 32) - 1
"""What 32 bits in a frame hold: records, and the bytes that a payload says that it is in memory."""

BROKER_MAX = (1 << 31) - 1
LOG_ID_CHARACTERS_MAX = 64
QUESTION_CHARACTERS_MAX = 128


class Verdict(Enum):
    ADMITTED = "admitted"
    # That life of the sender has not been read in the registrations: dropped, they say more soon
    NOT_REGISTERED = "not registered"
    NONSENSE = "nonsense"  # no broker sends it


Judgement: TypeAlias = tuple[Verdict, str]
"""With the reason, for people."""

_ADMITTED: Judgement = (Verdict.ADMITTED, "")


def judge(replica: Replica, message: PeerMessage) -> Judgement:
    """Whether the message may be fed to the replica as it is now. Of a snapshot only what is beside it:
    `judge_snapshot` does the rest, which takes longer."""
    sender = sender_of(message)
    why = _wrong_sender(replica, sender, message)
    if not why:
        match message:
            case AppendEntries():
                why = _wrong_leader(replica, message) or _wrong_range(message) or _wrong_entries(message)
            case AppendAck():
                why = _wrong_ack(replica, message)
            case InstallSnapshot():
                why = _wrong_leader(replica, message)
            case SoFar():
                why = _wrong_end(message)
            case _:
                assert_never(message)
    if why:
        return Verdict.NONSENSE, f"{type(message).__name__} of broker {sender}: {why}"
    if message.incarnation > replica.newest_life(sender):
        return Verdict.NOT_REGISTERED, f"start {message.incarnation} of broker {sender} is not registered, as last read"
    return _ADMITTED


def sender_of(message: PeerMessage) -> int:
    """The broker that says it is of it."""
    match message:
        case AppendAck():
            return message.follower
        case SoFar():
            return message.broker
        case AppendEntries() | InstallSnapshot():
            return message.leader
        case _:
            assert_never(message)


def judge_snapshot(message: InstallSnapshot) -> Judgement:
    """Whether the snapshot in the message makes sense by itself. Looks at each UUID of it: do it in a thread."""
    snapshot = message.snapshot
    why = "there is none" if snapshot is None else _wrong_snapshot(snapshot, message.leader_epoch)
    return (Verdict.NONSENSE, f"snapshot of broker {message.leader}: {why}") if why else _ADMITTED


# ------------------------------------------------------------------ who says it


def _wrong_sender(replica: Replica, sender: int, message: PeerMessage) -> str:
    if not 0 < sender <= BROKER_MAX or sender == replica.identity.broker:
        return "no other broker has that id"
    if message.incarnation < 1:
        return f"lives are counted from 1, and this is {message.incarnation}"
    first = 0 if isinstance(message, SoFar) else 1  # nobody has led a new partition
    if not first <= message.leader_epoch <= EPOCH_MAX:
        return f"epoch {message.leader_epoch} is not between {first} and {EPOCH_MAX}"
    if not isinstance(message, SoFar) and not 0 <= message.sequence <= INDEX_MAX:
        return f"sequence number {message.sequence} is out of range"
    return ""


def _wrong_leader(replica: Replica, message: AppendEntries | InstallSnapshot) -> str:
    """One broker leads an epoch, and whoever is known to does."""
    if message.leader_epoch == replica.leader_epoch and replica.leader not in (0, message.leader):
        return f"broker {replica.leader} leads epoch {message.leader_epoch}"
    return ""


# ------------------------------------------------------------------ entries


def _wrong_range(message: AppendEntries) -> str:
    if not 0 <= message.prev_index <= INDEX_MAX or not 0 <= message.high_watermark <= INDEX_MAX:
        return f"index {message.prev_index} or high watermark {message.high_watermark} is out of range"
    if not 0 <= message.prev_epoch <= message.leader_epoch:
        return f"the entry before is of epoch {message.prev_epoch}, the leader of {message.leader_epoch}"
    if not 0 <= message.successor <= BROKER_MAX:
        return f"successor {message.successor} is no broker"
    if message.last_index != message.prev_index + len(message.entries):
        return f"{len(message.entries)} entries after {message.prev_index} do not end at {message.last_index}"
    return ""


def _wrong_entries(message: AppendEntries) -> str:
    """One pass, since there may be a thousand."""
    index, epoch = message.prev_index, max(message.prev_epoch, 1)
    for entry in message.entries:
        index += 1
        if entry.index != index:
            return f"entry {entry.index} stands where {index} should: entries follow one by one"
        if entry.leader_epoch < epoch:
            return f"entry {index} is of epoch {entry.leader_epoch}, what is before of {epoch}: epochs do not fall"
        epoch = entry.leader_epoch
        why = _wrong_entry(entry)
        if why:
            return f"entry {index} {why}"
    return (
        f"entries of epoch {epoch}, above the leader's {message.leader_epoch}" if epoch > message.leader_epoch else ""
    )


def _wrong_entry(entry: Entry) -> str:
    if not 0 <= entry.timestamp_us <= INDEX_MAX:
        return f"is of time {entry.timestamp_us}"
    if not 0 <= entry.payload_bytes <= MESSAGE_BYTES_MAX or not 0 <= entry.decoded_bytes <= BYTES_MAX:
        return f"has {entry.payload_bytes} bytes, {entry.decoded_bytes} decoded"
    if len(entry.uuid) != UUID_BYTES:
        return f"has a UUID of {len(entry.uuid)} bytes"
    operation = entry.operation
    if isinstance(operation, Append | Stage | Schedule | Carry) and not 0 < entry.record_count <= BYTES_MAX:
        return f"has {entry.record_count} records"
    if isinstance(operation, Schedule):
        return "" if 0 < operation.due_us <= INDEX_MAX else f"is due at {operation.due_us}"
    if isinstance(operation, Append):
        count = len(operation.record_uuids) / UUID_BYTES
        return "" if count in {0, entry.record_count} else f"has {count:g} UUIDs for {entry.record_count} records"
    if isinstance(operation, EpochStart | Trim):
        offset = operation.offset_floor if isinstance(operation, EpochStart) else operation.log_start_offset
        return "" if 0 <= offset <= OFFSET_MAX else f"names offset {offset}"
    return ""


# ------------------------------------------------------------------ acknowledgements


def _wrong_ack(replica: Replica, ack: AppendAck) -> str:
    if not 0 <= ack.acknowledged_index <= ack.matched_index <= INDEX_MAX:
        return f"{ack.acknowledged_index} is acknowledged, {ack.matched_index} matches"
    if not 0 <= ack.hint_index <= INDEX_MAX or not 0 <= ack.hint_epoch <= EPOCH_MAX:
        return f"the hint {ack.hint_index} of epoch {ack.hint_epoch} is out of range"
    if len(ack.log_id) > LOG_ID_CHARACTERS_MAX:
        return f"a log id of {len(ack.log_id)} characters"
    if not replica.leading or ack.leader_epoch != replica.leader_epoch:
        return ""
    last_index, sequence = replica.last_sent
    if ack.matched_index > last_index:
        return f"entry {ack.matched_index} matches, and {last_index} was the last one sent"
    if ack.sequence > sequence:
        return f"it answers message {ack.sequence}, and {sequence} was the last one sent"
    return ""


# ------------------------------------------------------------------ how far a log is


def _wrong_end(message: SoFar) -> str:
    if not 0 <= message.last_index <= INDEX_MAX or not 0 <= message.last_epoch <= message.leader_epoch:
        return f"its log ends with entry {message.last_index} of epoch {message.last_epoch}"
    if len(message.log_id) > LOG_ID_CHARACTERS_MAX or len(message.question) > QUESTION_CHARACTERS_MAX:
        return f"a log id of {len(message.log_id)} characters, a question of {len(message.question)}"
    return ""


# ------------------------------------------------------------------ snapshots


def _wrong_snapshot(snapshot: Snapshot, leader_epoch: int) -> str:
    state = snapshot.state
    if not 0 < snapshot.last_index <= INDEX_MAX or not 0 < snapshot.last_epoch <= leader_epoch:
        return f"it ends with entry {snapshot.last_index} of epoch {snapshot.last_epoch}"
    if not 0 <= snapshot.timestamp_us <= INDEX_MAX:
        return f"it is of time {snapshot.timestamp_us}"
    if not 0 <= state.log_start_offset <= state.next_offset <= OFFSET_MAX:
        return f"offsets {state.log_start_offset} to {state.next_offset}"
    if not all(
        _within(columns.indexes, 1, snapshot.last_index)
        and _within(columns.base_offsets, -1, state.next_offset)
        and _within(columns.timestamps_us, 0, INDEX_MAX)
        for columns in state.uuids.columns()
    ):
        return "a UUID is where no entry can be"
    if any(
        len(batch.uuid) != UUID_BYTES
        or not 0 < batch.index <= snapshot.last_index
        or not 0 < batch.row_count <= BYTES_MAX
        or not 0 <= batch.timestamp_us <= INDEX_MAX
        or not 0 <= batch.payload_bytes <= MESSAGE_BYTES_MAX
        or not 0 <= batch.decoded_bytes <= BYTES_MAX
        or not 0 <= batch.due_us <= INDEX_MAX
        or (batch.due_us > 0) is not (batch.key == SCHEDULED)
        for batch in state.staged
    ):
        return "a staged batch is where no entry can be, or of no size that a batch has"
    return ""


def _within(numbers: Sequence[int], low: int, high: int) -> bool:
    return not len(numbers) or (low <= min(numbers) and max(numbers) <= high)
