"""How golden scripts print entries, messages, states and results."""

from __future__ import annotations

from typing import assert_never

from mq_broker.core.entries import (
    Abort,
    Append,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Publish,
    Schedule,
    Stage,
    Trim,
    Work,
)
from mq_broker.core.messages import (
    AppendEntries,
    Decided,
    Done,
    InstallSnapshot,
    NodeState,
    PeerMessage,
    RecordsThere,
    Refused,
    Result,
    SoFar,
)
from mq_broker.core.work import steps
from mq_broker.core.work.state import Mark, WorkState


def uuid(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def name_of(identifier: bytes) -> str:
    return identifier.rstrip(b"\0").decode() or "-"


def words_of_entry(entry: Entry) -> str:
    match entry.operation:
        case EpochStart():
            what = "epoch-start"
        case Append() as append:
            records = "".join(f" {name_of(u)}" for u in append.uuids())
            what = f"append({name_of(entry.uuid)}{':' if records else ''}{records})"
        case Stage(batch_id=batch_id):
            what = f"stage({name_of(entry.uuid)} of {batch_id})"
        case Schedule() | Carry():
            what = _scheduled_words(entry)
        case Publish(uuids=uuids) | Discard(uuids=uuids):
            what = f"{type(entry.operation).__name__.lower()}({','.join(name_of(u) for u in uuids)})"
        case MoveCursor(group, offset, forward=forward, owner=owner):
            what = f"cursor({group}{'>' if forward else ''}={offset}{f' of {owner}' if owner else ''})"
        case DeleteGroup(group):
            what = f"delete-group({group})"
        case Work(group, _, made):
            what = f"work({group}: {', '.join(map(step_words, made))})"
        case Trim(start):
            what = f"trim({start})"
        case Give() | Abort() as of_key:
            what = f"give(to {of_key.owner})" if isinstance(of_key, Give) else "abort"
        case Fence(kept=kept):
            what = f"fence(keeps {','.join(name_of(u) for u in kept) or 'nothing'})"
        case Forget(keys):
            what = f"forget({','.join(key.query_id for key in keys)})"
        case Decide(batch_id=batch_id) | Finish(batch_id=batch_id):
            what = f"{type(entry.operation).__name__.lower()}({batch_id})"
        case _:
            assert_never(entry.operation)
    return f"{entry.index}/{entry.leader_epoch}:{what}"


def _scheduled_words(entry: Entry) -> str:
    if isinstance(entry.operation, Schedule):
        return f"schedule({name_of(entry.uuid)} at {entry.operation.due_us})"
    return f"carry({name_of(entry.uuid)})"


def words_of_message(message: PeerMessage) -> str:
    if isinstance(message, InstallSnapshot):
        assert message.snapshot is not None
        return f"epoch {message.leader_epoch} snapshot up to entry {message.snapshot.last_index}"
    if isinstance(message, SoFar):
        end = f"{message.last_index}/{message.last_epoch}"
        return f"how far are you? here {end}" if message.asks else f"so far: {end}"
    if isinstance(message, AppendEntries):
        entries = " ".join(words_of_entry(e) for e in message.entries) or "nothing"
        after = f"after {message.prev_index}/{message.prev_epoch}"
        heir = f" successor {message.successor}" if message.successor else ""
        return f"epoch {message.leader_epoch} {after}: {entries}, hw {message.high_watermark}{heir}"
    verdict = (
        f"conflict, try {message.hint_index}/{message.hint_epoch}"
        if message.conflict
        else f"ack {message.acknowledged_index}"
    )
    return f"epoch {message.leader_epoch} {verdict}"


def words_of_state(state: NodeState) -> str:
    leader = f"{state.leader.broker}.{state.leader.incarnation}" if state.leader else "none"
    isr = ",".join(f"{b}:{log_id or '?'}" for b, log_id in state.isr)
    return f"leader {leader} epoch {state.leader_epoch} isr {isr}"


def words_of_result(result: Result) -> str:
    match result:
        case Done(index, base_offset, _, duplicate):
            return f"done at entry {index}, offset {base_offset}" + (", duplicate" if duplicate else "")
        case RecordsThere(records):
            return "nothing written, there are " + ", ".join(
                f"record {r.position} at offset {r.offset}" for r in records
            )
        case Decided(row_count, already, finished):
            return f"decided {row_count} rows" + (", already" if already else "") + (", finished" if finished else "")
        case Refused(error):
            return type(error).__name__
        case _:
            assert_never(result)


def step_words(step: steps.Step) -> str:
    """`return 2-4` is of records 2 and 3."""
    ranges = " ".join(f"{first}-{end}" for first, end in steps.ranges_of(step))
    if isinstance(step, steps.Begin) and ranges:
        return f"begin without {ranges}"
    return f"{type(step).__name__.lower()} {ranges}".rstrip()


def step_of(what: str, named: tuple[str, ...], member: str, n: int) -> steps.Step:
    """As a script writes it: `begin 0`, `begin 0 5-10` with lost offsets, `lease 2-4 7-8`, `send 2-3 n=5` as dead
    letters, `sent n=5`."""
    ranges = tuple((int(low), int(high)) for low, _, high in (name.partition("-") for name in named if "-" in name))
    if what == "begin":
        return steps.Begin(int(named[0]), lost=ranges)
    if what == "sent":
        return steps.Sent(n)
    if what == "send":
        line = steps.OutputLine("dead", 0, (uuid("letter"),))
        return steps.Send(ranges, steps.Reason.REJECTED, n, (line,))
    made: dict[str, steps.Step] = {
        "lease": steps.Lease(ranges, member),
        "accept": steps.Accept(ranges),
        "fail": steps.Return(ranges, charged=True),
        "release": steps.Return(ranges),
        "reject": steps.Reject(ranges),
        "drop": steps.Drop(ranges, steps.Reason.PURGED),
        "park": steps.Park(ranges),
        "reset": steps.Reset(ranges),
        "end": steps.End(),
    }
    return made[what]


def queue_words(state: WorkState | None) -> str:
    """What is known of a queue group: `3-9:m@2` is lent to member m by a leader of epoch 2, `0-3:2/1` was lent twice
    and failed once, `0-3:2/1 rejected` or `parked` too. What is decided and not published yet is in the outbox."""
    if state is None:
        return "knows no queue group"
    lent = " ".join(f"{low}-{end}:{state.leases[by].member}@{by.leader_epoch}" for low, end, by in state.lent)
    marks = " ".join(f"{low}-{end}:{_mark_words(mark)}" for low, end, mark in state.marks)
    outbox = " outbox " + " ".join(map(str, state.outbox)) if state.outbox else ""
    return f"base {state.base} leased {lent or 'nothing'} came back {marks or 'nothing'}{outbox}"


def _mark_words(mark: Mark) -> str:
    flags = " rejected" * mark.rejected + " parked" * mark.parked
    return f"{mark.deliveries}/{mark.failures}{flags}"
