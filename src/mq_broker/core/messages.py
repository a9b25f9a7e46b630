"""The whole language of the replication core: every event that can go in, every effect that can come out.

One `Replica` (replica.py) is one broker's copy of one partition. The shell feeds it events and carries out the effects
it returns, in order. Times are milliseconds of a monotonic clock (`now_ms`) except `timestamp_us`, the wall clock that
is written into entries.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from mq_broker.core.entries import PRIORITY_USUAL, Entry, Operation, TransactionKey
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.machine.window import WindowBounds
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import SCHEDULED_MAX

RequestId: TypeAlias = int
"""Made by the shell, unique within the process; answered by exactly one `Reply`."""


@dataclass(frozen=True, slots=True)
class LeaderName:
    """A leader is a life of a process, not only a broker: a restarted broker is another leader."""

    broker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """A partition's state node in the coordination service. Changed only by compare-and-set on its version.

    `isr` is sorted by broker and names each broker once, by the log id that was in sync. `token` tells whose write this
    is, for a writer whose answer was lost. `recovery` counts how often it was said that no named log is left (rule 15);
    `offset_floor` is the first offset that nothing lost by that can have had. `unknown`: what only a newer version
    knows of, as the coordination service's text: it stays in every state that is made of this one.
    """

    leader: LeaderName | None
    leader_epoch: int
    isr: tuple[tuple[int, str], ...]
    recovery: int
    token: str
    offset_floor: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """This replica. `log_id` names one unbroken life of its log; `incarnation` one life of the process. `recovery` is
    that of the state node under which the log was begun, or which it was chosen to go on under (rule 15)."""

    broker: int
    incarnation: int
    log_id: str
    recovery: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """`replicas` in order of rank: the first is preferred as leader. Times in milliseconds. `volatile`:
    durability=memory; `begins_empty`: if that has one replica, a restart empties it without an operator's word (rule
    15).

    `silence_ms`: how long a follower waits for a word of its leader before it reads the node; `read_node_ms`: how often
    it reads it anyway; `resend_ms`: how long a leader waits for an answer before it sends again. `leader_stuck_ms`
    should be above `replica_lag_ms_max`: a leader then drops the member that keeps it from committing, and does not
    stand back for it.
    """

    replicas: tuple[int, ...]
    min_insync_replicas: int
    dedup_uuids_max: int = 100_000
    dedup_ms: int | None = None
    heartbeat_ms: int = 250
    replica_lag_ms_max: int = 4_000
    claim_delay_ms: int = 150
    leader_stuck_ms: int = 10_000
    append_entries_max: int = 1_000
    append_bytes_max: int = 4 << 20
    append_in_flight_max: int = 8
    tail_entries_max: int = 20_000
    tail_bytes_max: int = 128 << 20
    resend_ms: int = 1_000
    read_node_ms: int = 30_000
    silence_ms: int = 2_000
    volatile: bool = False
    begins_empty: bool = False

    @property
    def window(self) -> WindowBounds:
        """How far back a UUID is recognised."""
        return WindowBounds(self.dedup_uuids_max, self.dedup_ms)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was made of a log's entries in an earlier life of the replica, so that they need not be read again: all of
    them up to that of `snapshot` were committed, and came to its state. The journal has them still, from the one after
    the log's own snapshot on. Of those: `epochs`, each with its first entry, ascending; `sizes`, the bytes of each."""

    snapshot: Snapshot
    epochs: tuple[tuple[int, int], ...]
    sizes: array[int]


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """What storage found: every entry it kept, in order, all of it flushed. Empty for a new replica. With a `snapshot`
    the first entry is the one after it (rule 13); with a `checkpoint`, which has more, the one after that."""

    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    checkpoint: Checkpoint | None = None


class Wait(Enum):
    """When a `Propose` is answered: acks=all, acks=leader (flushed here), acks=none."""

    COMMITTED = "committed"
    WRITTEN = "written"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class AreStaged:
    """A question, which is never written: could micro-batch `batch_id` of the key publish these batches here? Answered
    by `Done` or `Refused`, as surely as what is written: a leader that was deposed unawares does not say that a batch
    is missing. `owner`: who asks; what somebody else has staged is missing for him. None: whoever has staged it."""

    key: TransactionKey
    batch_id: int
    uuids: tuple[bytes, ...]
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """How far batches may be appended. Queue group `group` keeps `length_max` records once the log ends at `end_max`.
    `heavy_group` keeps `bytes_max` bytes once `bytes_left` more are appended; empty if none has such a bound."""

    end_max: int
    group: str
    length_max: int
    heavy_group: str = ""
    bytes_left: int = 0
    bytes_max: int = 0


@dataclass(frozen=True, slots=True)
class Propose:
    """A client (or the shell) wants an operation in the journal, or the answer to a question.

    `uuid` deduplicates APPEND and STAGE. `after`, if not empty, is a UUID that must already be in the log or its tail,
    else the request is refused with OUT_OF_ORDER. `keep_on_mismatch` is for DECIDE (onReplayMismatch=keep).
    `for_anybody`: whoever asks may decide under keys of others, and move the cursors of their queries.
    `scheduled_max` is for SCHEDULE: how many such batches may wait. `room` is for APPEND: a batch that would begin
    beyond it is refused. `body` is the payload: the core hands it on with the entry and never looks at it.
    """

    request: RequestId
    operation: Operation | AreStaged
    timestamp_us: int
    uuid: bytes = bytes(16)
    record_count: int = 0
    payload_bytes: int = 0
    decoded_bytes: int = 0
    after: bytes = b""
    wait: Wait = Wait.COMMITTED
    keep_on_mismatch: bool = False
    scheduled_max: int = SCHEDULED_MAX
    room: Room | None = None
    for_anybody: bool = False
    body: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeRead:
    """The state node was read (after a sync). `state` None: it does not exist."""

    version: int
    state: NodeState | None


class CasOutcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CasAnswer:
    """The answer to `WriteNode`. `version` is the new one if DONE."""

    token: str
    outcome: CasOutcome
    version: int = -1


@dataclass(frozen=True, slots=True)
class BrokersSeen:
    """The registered brokers and their incarnations, as just read. Includes this broker if it is registered."""

    live: tuple[LeaderName, ...]


@dataclass(frozen=True, slots=True)
class SessionLost:
    """This broker's session ended: it is no longer registered and leads nothing by that registration."""


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """From a leader.

    As an effect (`Send`) it names the range `prev_index + 1 .. last_index`, and the shell adds the frames; as an event,
    `entries` holds their metadata and `bodies` the frame of each, which the core hands on and never looks at.
    `successor` not 0: the leader has stood back, and that broker should claim at once.
    """

    leader: int
    incarnation: int
    leader_epoch: int
    prev_index: int
    prev_epoch: int
    last_index: int
    high_watermark: int
    sequence: int
    entries: tuple[Entry, ...] = ()
    successor: int = 0
    bodies: tuple[object, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AppendAck:
    """From a follower. `acknowledged_index` is min(flushed, matched): never the end of its log (rule 2, trap 25).

    `conflict`: the entry before was not there; `hint_index`/`hint_epoch` name where its log last could match.
    """

    follower: int
    incarnation: int
    log_id: str
    leader_epoch: int
    acknowledged_index: int
    matched_index: int
    sequence: int
    conflict: bool = False
    hint_index: int = 0
    hint_epoch: int = 0


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """From a leader whose journal begins after what this follower lacks (rule 13).

    As an effect (`Send`) `snapshot` is None and the shell puts in the one that its journal begins with; as an event it
    is there.
    """

    leader: int
    incarnation: int
    leader_epoch: int
    sequence: int
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class SoFar:
    """How far a replica's log is: asked for (`asks`) by one that may claim, and answered with its `question` (rule 6).
    `last_index` and `last_epoch` are of the last entry that is flushed; of a leader that has stood back, committed."""

    broker: int
    incarnation: int
    log_id: str
    leader_epoch: int
    last_index: int
    last_epoch: int
    question: str
    asks: bool = False


PeerMessage: TypeAlias = AppendEntries | AppendAck | InstallSnapshot | SoFar


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The link to that broker is (again) up: whatever was in flight to it may be lost."""

    broker: int


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    broker: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything up to `index`, whose entry there is of `leader_epoch`, is as durable as the topic promises."""

    index: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class DiskRefused:
    """Entries from `first_index` on could not be written (no space) and are not in the journal. Reads go on."""

    first_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogReplaced:
    """The log may lack what it acknowledged (a failed fsync, damage): it has a new log id, durably (traps 16, 26)."""

    log_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class JournalBegins:
    """The journal on disk now begins with entry `first_index`, durably; a snapshot stands for what was before it. Never
    above what is applied (rule 13)."""

    first_index: int


@dataclass(frozen=True, slots=True)
class ReplicasChanged:
    """The partition is assigned to these brokers now, in order of rank (a move, a new broker). This one may not be
    among them. `min_insync_replicas` 0: as before."""

    replicas: tuple[int, ...]
    min_insync_replicas: int = 0


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Let broker `to` lead once it has everything; until the deadline writes are refused. If it cannot by then, lead
    on."""

    to: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    now_ms: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The shell has no more events for now: what was gathered goes out (one AppendEntries, one ack a peer)."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Clean stop: refuse writes, wait for a successor to have the end, then stand back. Ends with `HandedOver`."""

    deadline_ms: int


Event: TypeAlias = (
    Propose
    | NodeRead
    | CasAnswer
    | BrokersSeen
    | SessionLost
    | AppendEntries
    | AppendAck
    | InstallSnapshot
    | SoFar
    | PeerConnected
    | PeerDisconnected
    | Flushed
    | DiskRefused
    | LogReplaced
    | JournalBegins
    | ReplicasChanged
    | TransferLeadership
    | Tick
    | TurnEnded
    | HandOver
)


@dataclass(frozen=True, slots=True)
class Done:
    """`base_offset` is -1 where none was given (staged, control). `duplicate`: the UUID had been seen; this is the
    first answer. `former`: of a key that was given, whose it was; empty if it was nobody's who has a name."""

    index: int
    base_offset: int = -1
    timestamp_us: int = 0
    duplicate: bool = False
    former: str = ""


@dataclass(frozen=True, slots=True)
class RecordThere:
    """A record whose own UUID was in the log already: which of its batch it is, and where it is."""

    position: int
    offset: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class RecordsThere:
    """An APPEND's answer: nothing was written, as these of its records are there already. Send the others alone."""

    records: tuple[RecordThere, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """A DECIDE request's answer. `row_count` is that of the manifest that holds; `finished`: it is already published
    everywhere."""

    row_count: int
    already: bool
    finished: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """It did not and will not happen (`error.definite`), or it is unknown (`OutcomeUnknown`): rule 10."""

    error: TritonMQError


Result: TypeAlias = Done | RecordsThere | Decided | Refused


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Append these to the journal. `bodies`: what came with each of them, in the same order, from a client or from a
    leader."""

    entries: tuple[Entry, ...]
    bodies: tuple[object, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop every entry above `last_index`, durably before any later `Flushed`."""

    last_index: int


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: PeerMessage


@dataclass(frozen=True, slots=True)
class Reply:
    request: RequestId
    result: Result


@dataclass(frozen=True, slots=True)
class ReadNode:
    """Read the state node after a sync; answered by `NodeRead`."""


@dataclass(frozen=True, slots=True)
class WriteNode:
    """Compare-and-set; answered by `CasAnswer` with `state.token`."""

    expected_version: int
    state: NodeState


@dataclass(frozen=True, slots=True)
class Published:
    """A batch became readable: offsets `base_offset .. base_offset + record_count - 1` are the payload of entry
    `index`. `priority`: of its records. `expires_us`: from then on queue groups lend them no more, in microseconds
    since 1970; 0 for never."""

    base_offset: int
    record_count: int
    index: int
    timestamp_us: int
    payload_bytes: int
    decoded_bytes: int
    priority: int = PRIORITY_USUAL
    expires_us: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Retention took effect: records below `log_start_offset` are no longer to be read, and the journal may be
    shortened."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class OffsetsSkipped:
    """After a recovery (rule 15): offsets `first .. next_offset - 1` are given to nobody; records that had them are
    lost."""

    first: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class DecisionCommitted:
    """Coordinator's leader only: a decision is in the journal (or was found there, unfinished, on taking up
    leadership)."""

    decision: Operation


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """`leader` 0: nobody known. `leading`: this replica leads; `ready`: its epoch start is committed (rule 3)."""

    leader: int
    leader_epoch: int
    leading: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The answer to `HandOver`. `successor` 0: nobody could take over in time."""

    successor: int


@dataclass(frozen=True, slots=True)
class Reopen:
    """This replica is over: read the journal from disk again, under its new log id, and make a new one of it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Install:
    """This replica is over: forget its journal, which lacks what is committed, begin another, under a new log id, with
    this snapshot, and make a new replica of it."""

    snapshot: Snapshot
    recovery: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """This replica is over: the partition was recovered from another log (rule 15). Keep this journal aside for people,
    begin an empty one under a new log id and this `recovery`, and make a new replica of it."""

    recovery: int


@dataclass(frozen=True, slots=True)
class RecoveryAdopted:
    """The log goes on under this recovery number, which storage is to remember with it. Losing that costs a copy, never
    safety."""

    recovery: int


@dataclass(frozen=True, slots=True)
class Audit:
    """One line for the log: who claimed, shrank, expanded, truncated; which version; why. `alarm`: an operator must
    look."""

    text: str
    alarm: bool = False


Effect: TypeAlias = (
    WriteEntries
    | Truncate
    | Send
    | Reply
    | ReadNode
    | WriteNode
    | Published
    | Trimmed
    | OffsetsSkipped
    | DecisionCommitted
    | RoleChanged
    | HandedOver
    | Reopen
    | Install
    | StartOver
    | RecoveryAdopted
    | Audit
)
