"""The values that a partition's applied state is made of, and that state as one value: a `Snapshot`.

A snapshot stands for every entry up to an index: a journal that begins after that index begins with one, and so does a
replica that is too far behind to be sent entries (rule 13). It holds no payloads: those that it may still give offsets
to are in the journal that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.entries import USUAL, Attributes, TransactionKey
from mq_broker.core.machine.window import NO_UUIDS, SeenUuids
from mq_broker.core.work.state import FrozenGroups
from mq_protocol.manifest import StagedPart


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch without offsets. `due_us`: when a scheduled one is to be published, microseconds since 1970; 0 for those
    of transactions. `index`: the last entry that has its payload. `owner`: who staged it; empty where that has no
    name."""

    uuid: bytes
    key: TransactionKey
    batch_id: int
    run_id: str
    row_count: int
    index: int
    timestamp_us: int
    payload_bytes: int
    decoded_bytes: int
    due_us: int = 0
    attributes: Attributes = USUAL
    owner: str = ""


EPHEMERAL = "ephemeral"
"""Kind of the cursors of a group that ends some time after its last member."""

SPARK = "spark"
"""Kind of the cursors by which a Spark query shows how far it is."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A group's next offset. `moved_us`: when it was last moved, leader's wall clock. `owner`: the first who moved it
    and has a name. A query's is nobody else's then; a group of consumers counts for who has begun it, and others read
    in it as well."""

    offset: int
    kind: str
    moved_us: int
    owner: str = ""

    def is_anothers(self, owner: str) -> bool:
        """Whether it shows how far a query of another user is."""
        return self.kind == SPARK and self.owner not in ("", owner)

    def has_same_readers(self, kind: str) -> bool:
        """Whether a cursor of that kind is a query's too, or one of consumers too."""
        return (self.kind == SPARK) == (kind == SPARK)


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The last decided micro-batch of a key, -1 if there is none. `manifest` is emptied once everything is published
    (`finished`).

    `once`: the key is for this one decision. `aborted`: no other will be made. `changed_us`: when any of this changed
    last, by the leader's wall clock. `owner`: the first who has decided under the key and has a name, or to whom it was
    given since; nobody else decides then.
    """

    batch_id: int
    run_id: str
    row_count: int
    manifest: tuple[StagedPart, ...]
    finished: bool
    superseded: tuple[str, ...]
    once: bool = False
    aborted: bool = False
    changed_us: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class MachineState:
    """Everything that `PartitionMachine` knows, in the order in which it knows it (the oldest UUIDs are forgotten
    first). `fenced`: keys under which nothing is staged here any more. `work`: queue groups."""

    next_offset: int = 0
    log_start_offset: int = 0
    uuids: SeenUuids = NO_UUIDS
    staged: tuple[StagedBatch, ...] = ()
    published: tuple[tuple[TransactionKey, int], ...] = ()
    cursors: tuple[tuple[str, Cursor], ...] = ()
    transactions: tuple[tuple[TransactionKey, TransactionState], ...] = ()
    fenced: tuple[TransactionKey, ...] = ()
    work: FrozenGroups = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after applying entry `last_index`, which was of `last_epoch`; `timestamp_us` is the highest of any
    entry so far."""

    last_index: int
    last_epoch: int
    timestamp_us: int
    state: MachineState
