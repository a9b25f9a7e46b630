"""May this operation enter the journal? Asked by the leader, of the applied state and of the tail above it (rule 12).

The answer is one of three: an outcome at once (it happened before, or it must not happen), wait for an entry of the
tail and ask again, or append it. The tail is seen through an `Overlay` (overlay.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from mq_broker.core.entries import (
    SCHEDULED,
    Abort,
    Append,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.overlay import Overlay
from mq_broker.core.machine.state import SPARK, TransactionState
from mq_broker.core.messages import (
    AreStaged,
    Decided,
    Done,
    Propose,
    RecordsThere,
    RecordThere,
    Refused,
    Result,
    Room,
)
from mq_broker.core.work.steps import why_not_one_entry
from mq_protocol.errors import (
    FencedRun,
    InvalidRequest,
    OutOfOrder,
    Overloaded,
    PermissionDenied,
    QueueFull,
    ReplayMismatch,
    StagedBatchMissing,
    StaleMicroBatch,
    TooManyGroups,
    TooManyTransactions,
    TransactionAborted,
    TritonMQError,
    UnknownTransaction,
)
from mq_protocol.limits import GROUPS_PER_PARTITION_MAX, QUEUE_GROUPS_PER_PARTITION_MAX
from mq_protocol.queues.work_keys import WORK_PREFIX, is_of_queue

TRANSACTION_KEYS_MAX = 20_000
"""Keys that one partition of the coordinators' topic keeps: some 10 MB of names, and what eight partitions forget in an
hour is 40 atomic writes a second."""

ABORTED_KEYS_MAX = 2_000
"""So many more may be aborted that had decided nothing: a full coordinator must not keep a journal from being freed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing is written: this is the result. `of_absence`: it rests on something not being here, and so on this
    leader's still leading; one deposed unawares lacks what others have committed since."""

    result: Result
    of_absence: bool = False


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Ask again once the entry at `index` is committed."""

    index: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Write it; `operation` may be narrower than what was asked."""

    operation: Operation


Verdict: TypeAlias = Answer | WaitFor | Admit


def _refuse(error: TritonMQError, *, of_absence: bool = False) -> Answer:
    return Answer(Refused(error), of_absence)


def judge(propose: Propose, machine: PartitionMachine, overlay: Overlay, first_index: int) -> Verdict:
    """The verdict on one request. Pure: changes nothing. `first_index`: where the journal begins."""
    match propose.operation:
        case Append() | Stage() | Schedule() as batch:
            return _judge_batch(propose, batch, machine, overlay)
        case Carry() as carry:
            return _judge_carry(propose.uuid, carry, machine, overlay)
        case Publish() as publish:
            return _judge_publish(publish, machine, overlay, first_index)
        case Discard() as discard:
            return _judge_discard(discard, machine, overlay)
        case MoveCursor() as move:
            return _judge_move(move, machine, overlay, for_anybody=propose.for_anybody)
        case DeleteGroup() as delete:
            return Admit(delete)  # also where it has no cursor: one may be on its way in the tail
        case Trim(log_start_offset=start) as trim:
            if start <= machine.log_start_offset:
                return Answer(Done(0, duplicate=True))
            if start > machine.next_offset:
                return _refuse(
                    InvalidRequest(f"records below {start} cannot be dropped: the log ends at {machine.next_offset}"),
                    of_absence=True,
                )
            return Admit(trim)
        case Work() as work:
            return _judge_work(work, machine, overlay)
        case AreStaged(key, batch_id, uuids, owner):
            verdict = _judge_publish(Publish(key, batch_id, uuids), machine, overlay, first_index, owner)
            return Answer(Done(0)) if isinstance(verdict, Admit) else verdict
        case Decide() | Finish() | Give() | Abort() | Fence() | Forget() as operation:
            return _judge_for_coordinator(operation, propose, machine, overlay)
        case EpochStart():
            return _refuse(InvalidRequest("an epoch start is written by a new leader alone"))


def _judge_move(move: MoveCursor, machine: PartitionMachine, overlay: Overlay, *, for_anybody: bool) -> Verdict:
    """A query's cursor belongs to the first who moves it and has a name. Neither another query nor a consumer of
    another user moves it then. A group of consumers has no such owner: that it has been begun is noted once."""
    known = machine.cursors.get(move.group)
    if not for_anybody:
        pending = overlay.cursor_index(move)
        if pending is not None:
            return WaitFor(pending)
        if known is not None and known.is_anothers(move.owner):
            return _refuse(not_cursors_owner(move.group), of_absence=True)
    if not 0 <= move.offset <= machine.next_offset:
        return _refuse(
            InvalidRequest(
                f"group {move.group!r} cannot move to offset {move.offset}: the log ends at {machine.next_offset}"
            ),
            of_absence=True,
        )
    if machine.has_passed(move):
        return Answer(Done(0, duplicate=True))
    error = too_many_groups(move.group, machine)
    if error is not None:
        return _refuse(error, of_absence=True)
    noted = known is not None and known.owner != "" and known.has_same_readers(move.kind)
    return Admit(replace(move, owner="") if noted and move.kind != SPARK else move)


def not_cursors_owner(group: str) -> PermissionDenied:
    return PermissionDenied(
        f"group {group!r} shows how far the query of another user is, who moved it first: give the query another "
        "kafka.group.id, and a consumer another group. If that user is gone, an administrator deletes the group "
        "(tritonmq group delete)"
    )


def _judge_work(work: Work, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    """None behind a trim, which settles records: its steps were worked out without that, and might do something else
    than what those who asked are told. Entries of a group follow each other: each was worked out on what the ones
    before it leave. One without steps is never written: it is answered once this leader knows that it led when it was
    asked."""
    if not work.steps:
        return Answer(Done(0, duplicate=True), of_absence=True)
    if overlay.trims:
        return _refuse(
            OutOfOrder(
                f"records of queue group {work.group!r} are about to be dropped: gather again once that is committed"
            )
        )
    why = why_not_one_entry(work.steps)
    if why:
        return _refuse(InvalidRequest(f"the entry of queue group {work.group!r} is not written: {why}"))
    if work.group not in machine.work and len(machine.work) >= QUEUE_GROUPS_PER_PARTITION_MAX:
        return _refuse(
            TooManyGroups(
                f"the partition keeps {len(machine.work)} queue groups, as many as it takes, and {work.group!r} is not "
                "among them: use one of those, or delete unused groups"
            ),
            of_absence=True,
        )
    return Admit(work)


def too_many_groups(group: str, machine: PartitionMachine) -> TooManyGroups | None:
    """Why a group that has no cursor here cannot have one; None if it can, or has one. The tail does not count: it has
    few."""
    if group in machine.cursors or len(machine.cursors) < GROUPS_PER_PARTITION_MAX:
        return None
    return TooManyGroups(
        f"the partition keeps the cursors of {len(machine.cursors)} groups, as many as it takes, and group {group} is "
        "not among them: use one of those, or delete unused groups (Admin.delete_group)"
    )


def _judge_for_coordinator(
    operation: Decide | Finish | Give | Abort | Fence | Forget,
    propose: Propose,
    machine: PartitionMachine,
    overlay: Overlay,
) -> Verdict:
    if isinstance(operation, Decide | Give | Abort | Fence) and is_of_queue(operation.key.query_id):
        return _refuse(
            InvalidRequest(
                f"query ids that begin with {WORK_PREFIX!r} are of queue groups, whose leaders alone decide what is "
                "published: choose another one"
            )
        )
    match operation:
        case Decide() as decide:
            return _judge_decide(decide, propose, machine, overlay)
        case Finish() as finish:
            return _judge_finish(finish, machine, overlay)
        case Give() as give:
            return _judge_give(give, machine, overlay)
        case Abort() as abort:
            return _judge_abort(abort, machine, overlay)
        case Fence() as fence:
            return _judge_fence(fence, machine, overlay)
        case Forget(keys=keys):
            known = machine.transactions
            keys = tuple(
                key
                for key in keys
                if overlay.key_index(key) is None and key in known and known[key].once and _is_over(known[key])
            )
            return Admit(Forget(keys)) if keys else Answer(Done(0, duplicate=True))


def _judge_batch(
    propose: Propose, operation: Append | Stage | Schedule, machine: PartitionMachine, overlay: Overlay
) -> Verdict:
    placed = machine.uuids.get(propose.uuid)
    if placed is not None:
        return Answer(Done(placed.index, placed.base_offset, placed.timestamp_us, duplicate=True))
    staged = machine.staged.get(propose.uuid)
    if staged is not None:  # for as long as it is staged, though the window may have forgotten it
        return Answer(Done(staged.index, -1, staged.timestamp_us, duplicate=True))
    index = overlay.uuid_index(propose.uuid)
    if index is not None:
        return WaitFor(index)
    if isinstance(operation, Append) and operation.record_uuids:
        verdict = _judge_records(operation.uuids(), machine, overlay)
        if verdict is not None:
            return verdict
    if isinstance(operation, Stage):
        key = operation.key
        if key in machine.fenced:
            return _refuse(_aborted(key))
        fence = overlay.fence_index(key)
        if fence is not None:
            return WaitFor(fence)
    if isinstance(operation, Schedule) and len(machine.due_times) + overlay.scheduled >= propose.scheduled_max:
        return _refuse(_schedule_full(propose.scheduled_max))
    if propose.room is not None and isinstance(operation, Append):
        full = _why_full(propose.room, machine, overlay)
        if full:
            return _refuse(QueueFull(full))
    after = propose.after
    if after and after not in machine.uuids and overlay.uuid_index(after) is None:
        return _refuse(
            OutOfOrder(
                f"batch {propose.uuid.hex()} must follow batch {after.hex()}, which is not here: send that one first"
            )
        )
    return Admit(operation)


def _judge_records(uuids: list[bytes], machine: PartitionMachine, overlay: Overlay) -> Verdict | None:
    """None if no record of the batch is in the log, by its own UUID, or on its way there."""
    if len(set(uuids)) != len(uuids):
        return _refuse(
            InvalidRequest("two records of one batch have the same UUID: send the second one in a later batch")
        )
    known = [(position, machine.uuids.get(uuid)) for position, uuid in enumerate(uuids)]
    there = [
        RecordThere(position, placed.base_offset, placed.timestamp_us)
        for position, placed in known
        if placed is not None
    ]
    if there:
        return Answer(RecordsThere(tuple(there)))
    # The first of them: by the time the last is committed, the window may have forgotten it.
    index = min(filter(None, map(overlay.uuid_index, uuids)), default=None)
    return None if index is None else WaitFor(index)


def _judge_publish(
    publish: Publish, machine: PartitionMachine, overlay: Overlay, first_index: int, owner: str | None = None
) -> Verdict:
    if publish.key == SCHEDULED:
        return _judge_due(publish, machine, overlay, first_index)
    if publish.batch_id <= machine.published.get(publish.key, -1):
        return Answer(Done(0, machine.next_offset, duplicate=True))
    pending = overlay.key_index(publish.key)
    if pending is not None:
        return WaitFor(pending)
    wait = 0
    # The number under which a queue group publishes was not known yet when the batch was staged.
    any_id = is_of_queue(publish.key.query_id)
    for uuid in publish.uuids:
        batch = machine.staged.get(uuid)
        if (
            batch is not None
            and batch.index >= first_index
            and batch.key == publish.key
            and (any_id or batch.batch_id == publish.batch_id)
            and (owner is None or batch.owner in ("", owner))
        ):
            continue
        # Staged, and its payload gone: it was published and trimmed by entries that a recovery lost (rule 15, trap 32).
        index = overlay.uuid_index(uuid)
        if index is None and publish.key in machine.fenced:
            return _refuse(_aborted(publish.key))
        if index is None:
            return _refuse(
                StagedBatchMissing(
                    f"staged batch {uuid.hex()} of query {publish.key.query_id!r} micro-batch {publish.batch_id} is "
                    "not in this partition: it was discarded, or the manifest was not made by this query's tasks for "
                    "this micro-batch, in the name of the same user"
                ),
                of_absence=True,
            )
        wait = max(wait, index)
    return WaitFor(wait) if wait else Admit(publish)


def _judge_due(publish: Publish, machine: PartitionMachine, overlay: Overlay, first_index: int) -> Verdict:
    """Those of the batches that still wait, and are due by the time that the publish names."""
    pending = overlay.key_index(SCHEDULED)
    if pending is not None:
        return WaitFor(pending)
    named = (machine.staged[uuid] for uuid in dict.fromkeys(publish.uuids) if uuid in machine.due_times)
    uuids = tuple(b.uuid for b in named if b.due_us <= publish.batch_id and b.index >= first_index)
    if not uuids:
        return Answer(Done(0, machine.next_offset, duplicate=True))
    return Admit(Publish(SCHEDULED, publish.batch_id, uuids))


def _judge_carry(uuid: bytes, carry: Carry, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    """Only one that will still wait then: what is published or cancelled has no use for another copy."""
    waits = uuid in machine.due_times and overlay.key_index(SCHEDULED) is None
    return Admit(carry) if waits else Answer(Done(0, duplicate=True))


def _why_full(room: Room, machine: PartitionMachine, overlay: Overlay) -> str:
    """Why nothing more is taken in; empty if something is."""
    if machine.next_offset + overlay.appended >= room.end_max:
        group, kept, setting = room.group, f"{room.length_max} records", "length_max"
    elif room.heavy_group and overlay.appended_bytes >= room.bytes_left:
        group, kept, setting = room.heavy_group, f"{room.bytes_max} bytes", "bytes_max"
    else:
        return ""
    return (
        f"queue group {group!r} keeps {kept} of this partition, as many as its {setting} allows, or more: work some "
        f"off, purge it, or raise {setting} (`tritonmq queue alter`)"
    )


def _schedule_full(most: int) -> Overloaded:
    return Overloaded(
        f"{most} scheduled batches wait in this partition, as many as it keeps: send later, put more records into a "
        "batch, cancel some, or raise the topic's scheduled_max"
    )


def _judge_discard(discard: Discard, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    pending = overlay.key_index(discard.key)
    if pending is not None:
        return WaitFor(pending)
    uuids = tuple(u for u in discard.uuids if u in machine.staged and machine.staged[u].key == discard.key)
    if not uuids:
        coming = max(filter(None, map(overlay.uuid_index, discard.uuids)), default=0)
        if discard.key == SCHEDULED and coming:
            return WaitFor(coming)
        return Answer(Done(0, duplicate=True), of_absence=discard.key == SCHEDULED)
    return Admit(Discard(discard.key, uuids))


def _judge_decide(decide: Decide, propose: Propose, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    pending = overlay.key_index(decide.key)
    if pending is not None:
        return WaitFor(pending)
    known = machine.transactions.get(decide.key)
    if known is None:
        full = len(machine.transactions) + overlay.key_count >= TRANSACTION_KEYS_MAX
        return _refuse(_too_many(machine)) if full else Admit(decide)
    if known.owner not in ("", decide.owner) and not propose.for_anybody:
        # First: what stands there is not told to others. It may have been given since
        return _refuse(not_owner(decide.key), of_absence=True)
    if decide.run_id in known.superseded:
        return _refuse(
            FencedRun(
                f"run {decide.run_id!r} of query {decide.key.query_id!r} was replaced by run {known.run_id!r}: "
                "two drivers share one checkpoint; stop the older one"
            )
        )
    if decide.batch_id > known.batch_id:
        if known.aborted:
            return _refuse(_aborted(decide.key))
        if not known.finished:
            return _refuse(
                OutOfOrder(
                    f"micro-batch {known.batch_id} of query {decide.key.query_id!r} is still being published: ask again"
                )
            )
        return Admit(decide)
    if decide.batch_id < known.batch_id:
        return _refuse(_stale(decide, known))
    if decide.row_count != known.row_count and not propose.keep_on_mismatch:
        return _refuse(
            ReplayMismatch(
                f"micro-batch {decide.batch_id} of query {decide.key.query_id!r} was decided with {known.row_count} "
                f"rows and comes again with {decide.row_count}: its input changed between two runs (a nondeterministic "
                "source, or Spark's offset log was lost). Set onReplayMismatch=keep to keep what was decided, or use a "
                "new checkpoint"
            )
        )
    if decide.run_id != known.run_id and not known.aborted:
        return Admit(Decide(decide.key, decide.batch_id, decide.run_id, known.row_count, (), owner=decide.owner))
    return Answer(Decided(known.row_count, already=True, finished=known.finished))


def not_owner(key: TransactionKey) -> PermissionDenied:
    return PermissionDenied(
        f"query {key.query_id!r} is another user's, who decided under this key first: use a checkpoint, or a txnAppId, "
        "of your own"
    )


def _stale(decide: Decide, known: TransactionState) -> StaleMicroBatch:
    return StaleMicroBatch(
        f"micro-batch {decide.batch_id} of query {decide.key.query_id!r} is below the last decided one, "
        f"{known.batch_id}: the checkpoint went back. Start the query with a new checkpoint directory, or restore the "
        "one that it had"
    )


def _judge_finish(finish: Finish, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    pending = overlay.key_index(finish.key)
    if pending is not None:
        return WaitFor(pending)
    known = machine.transactions.get(finish.key)
    if known is None or known.batch_id != finish.batch_id or known.finished:
        return Answer(Done(0, duplicate=True))
    return Admit(finish)


def _judge_give(give: Give, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    """Whoever decides behind it is judged by the new owner: both are about one key, so that one waits for the other."""
    pending = overlay.key_index(give.key)
    if pending is not None:
        return WaitFor(pending)
    known = machine.transactions.get(give.key)
    if known is None:
        return _refuse(
            UnknownTransaction(
                f"nobody has decided anything under the key of query {give.key.query_id!r}, so it is nobody's: whoever "
                "decides first has it"
            ),
            of_absence=True,
        )
    if known.aborted:
        return _refuse(_aborted(give.key))
    return Answer(Done(0, duplicate=True, former=give.owner)) if known.owner == give.owner else Admit(give)


def _judge_abort(abort: Abort, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    """Always possible, whatever is decided and not yet published: that is still published, and nothing after it is
    decided."""
    pending = overlay.key_index(abort.key)
    if pending is not None:
        return WaitFor(pending)
    known = machine.transactions.get(abort.key)
    if known is None and len(machine.transactions) + overlay.key_count >= TRANSACTION_KEYS_MAX + ABORTED_KEYS_MAX:
        return _refuse(_too_many(machine))
    return Answer(Done(0, duplicate=True)) if known is not None and known.aborted else Admit(abort)


def _judge_fence(fence: Fence, machine: PartitionMachine, overlay: Overlay) -> Verdict:
    pending = overlay.key_index(fence.key)
    if pending is not None:
        return WaitFor(pending)
    over = fence.key in machine.fenced and not machine.undecided(fence)
    return Answer(Done(0, duplicate=True)) if over else Admit(fence)


def _is_over(known: TransactionState) -> bool:
    """Nothing of it need be known any more, but that it was."""
    return known.finished and not known.aborted


def _aborted(key: TransactionKey) -> TransactionAborted:
    return TransactionAborted(
        f"query {key.query_id!r} was aborted by an administrator (tritonmq transaction abort), and nothing is written "
        "under its key any more: start it with a new checkpoint directory; a batch write, with another txnAppId"
    )


def _too_many(machine: PartitionMachine) -> TooManyTransactions:
    return TooManyTransactions(
        f"this transaction coordinator keeps {len(machine.transactions)} keys and takes no more: use one txnAppId for "
        "an application, not one for each write; keys of writes without one are forgotten an hour after they are "
        "published"
    )
