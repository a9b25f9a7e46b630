"""What a member holds over all its partitions: a walk on which its counts are those of its leases."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mq_client.queueing.holdings import Holdings, Place
from mq_client.queueing.leases import DONE, LOST, SETTLING, HeldLease, LeaseId
from mq_client.queueing.settling import ACK, RELEASE, Tally


def lease(entry: int, records: int, *, partition: int = 0, lease_s: float = 30.0, now: float = 0.0) -> HeldLease:
    made = HeldLease(partition, LeaseId(1, entry, 0), [(100 * entry, 100 * entry + records)], [1], [0], lease_s, now)
    made.bytes_each = 7.0
    return made


def holdings(partitions: int = 2) -> Holdings:
    made = Holdings()
    made.places = {number: Place(number) for number in range(partitions)}
    return made


def tally(records: int) -> Tally:
    return Tally(("t", 0), records)


@pytest.mark.parametrize("seed", range(4))
def test_the_counts_are_those_of_the_leases_whatever_happens_to_them(seed: int) -> None:
    rng = random.Random(seed)
    held = holdings()
    known: list[HeldLease] = []
    for step in range(200):
        if rng.random() < 0.2 or not known:
            known.append(lease(step + 1, rng.randrange(1, 9), partition=rng.randrange(2)))
            held.grant(known[-1], settled=False)
        one = rng.choice(known)
        open_ = one.without_outcome()
        some = open_[: rng.randrange(len(open_) + 1)]
        match rng.randrange(6):
            case 0 if len(some):
                held.say(one, some, rng.choice([ACK, RELEASE]), tally(len(some)), 0.0)
            case 1 if len(some):
                held.say_one(one, int(some[0]), ACK, tally(1), 0.0)
            case 2:
                chosen = np.flatnonzero(one.states == SETTLING)
                held.end(one, chosen, rng.choice([DONE, LOST]))
            case 3:
                held.weigh(one, float(rng.randrange(1, 50)))
            case 4 if rng.random() < 0.2:
                held.lose(held.places[one.partition], [one.id, LeaseId(9, 9, 9)])
            case _:
                held.lose_what_is_open(one, np.arange(len(one.states))[: rng.randrange(3)])
        assert held.held == sum(each.open for each in known)
        assert held.settling == sum(int(np.count_nonzero(each.states == SETTLING)) for each in known)
        assert held.held_bytes == pytest.approx(sum(each.open * each.bytes_each for each in known), abs=1e-6)
        assert held.all_have_outcomes == (held.held == held.settling)
        alive = {each.id for each in known if each.open}
        assert {name for place in held.places.values() for name in place.leases} == alive
        assert sum(place.settles.records for place in held.places.values()) >= held.settling
