"""Random leases, hand-outs, outcomes and losses of a queue in order, against a look at every record that waits."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from mq_client.queueing.leases import DONE, LOST, WAITING, HeldLease, LeaseId
from mq_client.queueing.shelf import OrderedShelf, Rows, Shelf
from mq_protocol import mq_pb2 as pb

SCHEMA = pa.schema([("k", pa.string())])


class Model:
    """Of each record: its lease, its place there and its key. Records are in the order in which they came."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shelf = OrderedShelf(Shelf())
        self.leases: list[HeldLease] = []
        self.waiting: list[tuple[HeldLease, int, str]] = []
        self.begun: dict[tuple[HeldLease, int], str] = {}  # handed out, and without an outcome
        self.doubted: set[str] = set()  # the leader was not asked, or has not answered
        self.now = 0
        self.acked: dict[tuple[HeldLease, int], str] = {}

    def put(self) -> None:
        """A lease of a few records, in one batch or two."""
        keys = [self.rng.choice("ab ") for _ in range(self.rng.randrange(1, 6))]
        base = 100 * len(self.leases)
        lease = HeldLease(0, LeaseId(1, len(self.leases), 0), [(base, base + len(keys))], [1], [0], 30.0, 0.0)
        lease.order, lease.order_by = pb.ORDER_KEY, "k"
        cut = self.rng.randrange(len(keys) + 1)
        for first, end in ((0, cut), (cut, len(keys))):
            batch = pa.RecordBatch.from_pydict({"k": [None if k == " " else k for k in keys[first:end]]}, schema=SCHEMA)
            self.shelf.put(Rows(lease, first, batch, 7, "t", True))
        self.leases.append(lease)
        self.waiting += [(lease, index, key) for index, key in enumerate(keys)]

    def still(self) -> list[tuple[HeldLease, int, str]]:
        return [each for each in self.waiting if each[0].state(each[1]) == WAITING]

    def free(self) -> list[tuple[HeldLease, int, str]]:
        """What may be handed out now: the first of each key that nobody works on, and what has no key."""
        busy = {*self.begun.values(), *self.doubted}
        found = []
        for lease, index, key in self.still():
            if key == " " or key not in busy:
                found.append((lease, index, key))
                busy.add(key)
        return found

    def hand_out(self, lease: HeldLease, index: int) -> None:
        [mine] = [each for each in self.waiting if each[:2] == (lease, index)]
        self.waiting.remove(mine)
        lease.begin(index)
        if mine[2] != " ":
            self.begun[lease, index] = mine[2]

    def take(self) -> None:
        free = self.free()
        taken = self.shelf.take()
        assert (taken is None) == (not free)
        if taken is not None:
            lease, index, record = taken
            assert (lease, index) in [each[:2] for each in free]
            assert record.offset == lease.offsets[index]
            self.hand_out(lease, index)

    def take_rows(self) -> None:
        """Of one lease; of a key as many as follow one another."""
        most = self.rng.randrange(1, 5)
        free, still = self.free(), self.still()
        lent = self.shelf.take_rows(most)
        assert (lent is None) == (not free)
        if lent is None:
            return
        keys = {each[2] for each in free if each[0] is lent.lease}
        may = [(lease, index) for lease, index, key in still if lease is lent.lease and key in keys]
        places = [(lent.lease, int(index)) for index in lent.indexes]
        assert set(places) <= set(may)
        assert len(places) == len(set(places)) <= most
        for key in keys - {" "}:
            of_key = [place for place in may if (*place, key) in still]
            mine = [place for place in places if place in of_key]
            assert mine == of_key[: len(mine)], "a later record of a key is handed out and not an earlier one"
        wanted = [None if key == " " else key for place in places for *at, key in still if tuple(at) == place]
        assert lent.rows.column("k").to_pylist() == wanted
        for place in places:
            self.hand_out(*place)

    def acknowledge(self) -> None:
        if self.begun:
            place = self.rng.choice(list(self.begun))
            lease, index = place
            key = self.begun[place]
            later = [i for (each, i), k in self.begun.items() if each is lease and k == key and i > index]
            for other in later:
                assert self.shelf.overtaken(lease, np.array([other])) == min(
                    i for (each, i), k in self.begun.items() if each is lease and k == key
                )
            assert self.shelf.overtaken(lease, np.array(sorted([index, *later]))) in (
                None,
                *(i for (each, i), k in self.begun.items() if each is lease and k == key and i < index),
            )
            lease.settle_one(index)
            self.shelf.acknowledge(lease, [index])
            self.acked[place] = self.begun.pop(place)

    def answer(self) -> None:
        """The leader answers to an outcome: it is written, or the record was lost."""
        places = [*self.begun, *self.acked]
        if not places:
            return
        lease, index = place = self.rng.choice(places)
        doubt = self.rng.random() < 0.5
        self.shelf.end(lease, [index], doubt=doubt)
        key = self.begun.pop(place, None) or self.acked.pop(place)
        lease.end(np.array([index]), LOST if doubt else DONE)
        if doubt:
            self.doubted.add(key)

    def ask(self) -> None:
        """The leader is asked about what is doubted, and answers."""
        self.now += 1
        asked = self.shelf.take_doubts(self.now)
        told = {(lease, int(index)) for lease, indexes in asked for index in indexes}
        assert told == {(lease, index) for lease, index, key in self.still() if key in self.doubted}
        self.rng.shuffle(asked)
        for lease, indexes in asked:
            assert indexes.tolist() == sorted(indexes.tolist())
            gone = indexes[[self.rng.random() < 0.5 for _ in indexes]]
            lease.end(gone, LOST)
            self.shelf.checked(lease, indexes, self.now)
        self.doubted.clear()

    def hear_late(self) -> None:
        """An answer to a question from before all doubts: it ends none."""
        lease = self.rng.choice(self.leases)
        self.shelf.checked(lease, np.arange(len(lease.offsets)), 0)

    def lose(self) -> None:
        """What waits of a lease is not this member's any more."""
        lease = self.rng.choice(self.leases)
        gone = lease.waiting()[self.rng.randrange(3) :]
        self.shelf.end(lease, gone.tolist(), doubt=True)
        lease.end(gone, LOST)
        self.doubted |= {key for each, index, key in self.waiting if each is lease and index in gone and key != " "}


@pytest.mark.parametrize("seed", range(16))
def test_what_is_handed_out_is_what_a_look_at_every_record_allows(seed: int) -> None:
    model = Model(random.Random(seed))
    model.put()
    for _ in range(150):
        step = model.rng.choice(
            (model.put, model.take, model.take, model.take_rows, model.acknowledge, model.acknowledge, model.answer)
        )
        step()
        if model.rng.random() < 0.2:
            model.ask()
        if model.rng.random() < 0.05:
            model.lose()
        if model.rng.random() < 0.1:
            model.hear_late()
        assert bool(model.shelf) == bool(model.free())
    while model.begun:
        model.acknowledge()
    model.ask()
    while model.free():
        model.take()
        while model.begun:
            model.acknowledge()
    assert not model.still(), "a record was forgotten"
