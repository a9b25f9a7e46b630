"""All that a member holds, over all partitions, and what that leaves of its credit. Pure; used under the keeper's
lock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mq_client.cluster.deadline import Backoff
from mq_client.consuming.slices import StoredSlice
from mq_client.queueing.leases import LOST, SETTLING, HeldLease, Indexes, LeaseId
from mq_client.queueing.settling import Line, Outbox, Tally, Word
from mq_client.queueing.shelf import OrderedShelf, Rows, Shelf
from mq_protocol import mq_pb2 as pb


def extends(line: Line) -> bool:
    """Whether it sets clocks anew, rather than saying what becomes of records."""
    return line.word.outcome == pb.OUTCOME_EXTEND


@dataclass(eq=False, slots=True)
class Call:
    """What was said to the leader at `address`. `lines`: the outcomes that it tells. Of a lease, `records` and `bytes`:
    the most that it may be; `rows`: that came with it; `losses`: those of its place when its leader had heard all."""

    address: str
    sent_at: float
    records: int = 0
    bytes: int = 0
    lines: list[Line] = field(default_factory=list)
    rows: Sequence[StoredSlice] = ()
    doubted_at: float = 0.0
    losses: int = 0


@dataclass(eq=False, slots=True)
class Place:
    """One partition.

    `losses`: how often its leaders have said that something is lost. `epoch`: of the leader that was known last.
    `number`: of the last ack with outputs, also of a former process of this member. `unsure`: leases may have run out,
    or another broker leads: it is to be told soon which leases this member holds. `ask_after`: when a session may be
    opened. Times: of the monotonic clock.
    """

    partition: int
    leases: dict[LeaseId, HeldLease] = field(default_factory=dict)
    settles: Outbox = field(default_factory=Outbox)
    extensions: Outbox = field(default_factory=Outbox)
    losses: int = 0
    epoch: int = 0
    number: int = 0
    unsure: bool = False
    ask_after: float = 0.0
    settle_after: float = 0.0
    extend_after: float = 0.0
    extend_at: float = math.inf
    check_at: float = math.inf
    ask_backoff: Backoff = field(default_factory=Backoff)
    settle_backoff: Backoff = field(default_factory=Backoff)

    @property
    def quiet(self) -> bool:
        """Nothing is to be said to its leader."""
        return not (self.settles or self.extensions)

    def put_back(self, lines: Sequence[Line], *, again: bool) -> None:
        """They are said again, before all others. `again`: nobody knows what came of the first time."""
        self.settles.put_back([line for line in lines if not extends(line)], again=again)
        self.extensions.put_back([line for line in lines if extends(line)], again=again)


@dataclass(frozen=True, slots=True)
class Credit:
    """How many records and bytes a member may hold."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Terms:
    """As whom and on which terms a member asks. `key`: random, and another one for each process. `working`: how many
    records the application works on at a time. `lease_ms` 0: as the group says. `accept`: records are settled by being
    lent. `filter`: they match it; empty: any."""

    topic: str
    group: str
    member: str
    key: bytes
    credit: Credit
    working: int
    lease_ms: int
    accept: bool
    priority: int = 0
    filter: str = ""


class Holdings:
    """Owns the leases, by partition, and the records that were read of them.

    `held`: records that are neither done nor lost; `settling`: those of them that have an outcome. `held_bytes`: what
    they take, as far as is known. `unread`: leases whose rows are still to be read, each with the place from which on.
    `extend_at`: when the first of the leases that were granted lately is to be extended, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.shelf = Shelf()
        self.ordered: OrderedShelf | None = None  # the same one, once a lease was in order
        self.unread: deque[tuple[HeldLease, int]] = deque()
        self.reading = False
        self.held = 0
        self.held_bytes = 0.0
        self.settling = 0
        self.extend_at = math.inf

    @property
    def hungry(self) -> bool:
        """Nothing waits to be worked on, or to be read."""
        return not (self.shelf or self.unread or self.reading)

    @property
    def all_have_outcomes(self) -> bool:
        return self.settling == self.held

    def grant(self, lease: HeldLease, *, settled: bool, rows: Sequence[Rows] = ()) -> None:
        """It was lent. `settled`: by being lent, so that nothing more is to be said of it. `rows`: all of its; none if
        they are still to be read."""
        if not settled:
            place = self.places[lease.partition]
            if not place.leases:
                place.extend_at, place.check_at = lease.extend_at, lease.extend_at + lease.lease_s
            place.extend_at = min(place.extend_at, lease.extend_at)
            self.extend_at = min(self.extend_at, lease.extend_at)
            place.leases[lease.id] = lease
        if lease.order != pb.ORDER_NONE and self.ordered is None:
            self.shelf = self.ordered = OrderedShelf(self.shelf)
        self.held += lease.open
        self.held_bytes += lease.open * lease.bytes_each
        if not rows:
            self.unread.append((lease, 0))
        for each in rows:
            self.put(each)

    def weigh(self, lease: HeldLease, bytes_each: float) -> None:
        """So much a record of it takes."""
        self.held_bytes += (bytes_each - lease.bytes_each) * lease.open
        lease.bytes_each = bytes_each

    def put(self, rows: Rows) -> None:
        """They were read. If something of their partition was lost since its leader was asked to lend them, so may be
        what they have of its key."""
        self.shelf.put(rows)
        if self.ordered is not None and self.places[rows.lease.partition].losses != rows.lease.losses:
            self.ordered.doubt(rows)

    def say_one(self, lease: HeldLease, index: int, word: Word, tally: Tally, now: float) -> None:
        """The outcome of a record that had none."""
        lease.settle_one(index)
        self.settling += 1
        if self.ordered is not None and word.outcome == pb.OUTCOME_ACK:
            self.ordered.acknowledge(lease, (index,))
        self.places[lease.partition].settles.add_one(lease, index, word, tally, now)

    def say(self, lease: HeldLease, indexes: Indexes, word: Word, tally: Tally | None, now: float) -> None:
        """The outcome of records that had none."""
        lease.take_outcome(indexes)
        self.settling += len(indexes)
        if self.ordered is not None and word.outcome == pb.OUTCOME_ACK:
            self.ordered.acknowledge(lease, indexes.tolist())
        self.places[lease.partition].settles.add(lease, indexes, word, tally, now)

    def finish(self, lease: HeldLease, index: int) -> None:
        """A record that was settled by being lent is handed out."""
        lease.finish(index)
        if self.ordered is not None:
            self.ordered.end(lease, (index,), doubt=False)
        self.held -= 1
        self.held_bytes -= lease.bytes_each

    def end(self, lease: HeldLease, indexes: Indexes, state: int, *, doubt: bool = False) -> None:
        """These are done, or lost. `doubt`: what comes after them in order may be lost, too."""
        if self.ordered is not None and len(indexes):
            doubt = doubt or state == LOST
            self.places[lease.partition].losses += doubt
            self.ordered.end(lease, indexes.tolist(), doubt=doubt)
        settling = lease.settling
        ended = lease.end(indexes, state)
        self.settling += lease.settling - settling
        self.held -= ended
        self.held_bytes = self.held_bytes - ended * lease.bytes_each if self.held else 0.0
        if not lease.open:
            self.places[lease.partition].leases.pop(lease.id, None)

    def read_later(self, lease: HeldLease, first: int) -> None:
        """Its rows could not be read now. Those of other partitions are read before, and where order counts nothing of
        its own partition is."""
        self.unread.append((lease, first))
        if lease.order != pb.ORDER_NONE:
            behind = [each for each in self.unread if each[0].partition == lease.partition]
            others = [each for each in self.unread if each[0].partition != lease.partition]
            self.unread = deque([*others, behind[-1], *behind[:-1]])

    def lose(self, place: Place, gone: Iterable[LeaseId]) -> None:
        """Nothing of these leases is this member's any more. What has an outcome waits for the answer to that."""
        for name in gone:
            lease = place.leases.get(name)
            if lease is not None:
                self.end(lease, lease.without_outcome(), LOST)

    def lose_what_is_open(self, lease: HeldLease, indexes: Indexes) -> None:
        """Of these records, those that have no outcome are lost."""
        self.end(lease, indexes[lease.states[indexes] < SETTLING], LOST)
