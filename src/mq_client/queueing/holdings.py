"""All that a member holds, over all partitions, and what that leaves of its credit. Pure; used under the keeper's
lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mq_client.queueing.leases import LOST, SETTLING, HeldLease, Indexes, LeaseId
from mq_client.queueing.ordered_shelf import OrderedShelf
from mq_client.queueing.places import Place
from mq_client.queueing.settling import Tally, Word
from mq_client.queueing.shelf import Rows, Shelf
from mq_protocol import mq_pb2 as pb


class Holdings:
    """Owns the leases, by partition, and the records that were read of them.

    `held`: records that are neither done nor lost; `settling`: those of them that have an outcome. `held_bytes`: what
    they take, as far as is known. `unread`: leases whose rows are still to be read, each with the place from which on.
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
