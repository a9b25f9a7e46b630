"""How far the records of a lease are."""

from __future__ import annotations

import numpy as np

from mq_client.queueing.leases import BEGUN, DONE, LOST, HeldLease, LeaseId


def lease(*ranges: tuple[int, int]) -> HeldLease:
    return HeldLease(0, LeaseId(1, 2, 0), ranges, [1 + at for at in range(len(ranges))], [0] * len(ranges), 30.0, 100.0)


def test_a_record_that_is_handed_out_is_extended_once_more_and_then_its_time_runs() -> None:
    held = lease((0, 3))
    assert held.extend_at == 110.0
    held.begin(0)
    assert held.to_extend().tolist() == [0, 1, 2]
    held.extended(110.0)
    assert held.extend_at == 120.0
    assert held.state(0) == BEGUN
    assert held.to_extend().tolist() == [1, 2]
    held.settle_one(0)  # its leader may not have heard of the outcome yet
    assert held.to_extend().tolist() == [0, 1, 2]


def test_what_ends_twice_is_counted_once() -> None:
    held = lease((0, 4))
    held.settle_one(1)
    held.take_outcome(np.array([2, 3]))
    assert (held.open, held.settling) == (4, 3)
    assert held.end(np.array([1, 2]), DONE) == 2
    assert held.end(np.array([1, 2]), LOST) == 0
    assert held.state(1) == DONE
    assert (held.open, held.settling) == (2, 1)
    assert held.without_outcome().tolist() == [0]
    assert held.waiting().tolist() == [0]
