"""Random starts, extensions and looks, against a deadline for each record."""

from __future__ import annotations

import random

import pytest

from mq_broker.broker.queues.group.clocks import Clocks
from mq_broker.core.work.ranges import joined
from mq_broker.core.work.steps import LeaseId

LEASES = [LeaseId(1, entry, 0) for entry in range(4)]
RECORDS = 12


def deadline(now_ms: int, lease_ms: int) -> int:
    """A 64th of the time of a lease is the finest step."""
    step = max(lease_ms // 64, 1)
    until = now_ms + lease_ms
    return until if until % step == 0 else until + step - until % step


class Model:
    """Of each lease its time, and of each of its records when that is over."""

    def __init__(self) -> None:
        self.lease_ms: dict[LeaseId, int] = {}
        self.deadlines: dict[LeaseId, dict[int, int]] = {}
        self._over: dict[LeaseId, dict[int, int]] = {}  # the deadlines of what was looked at

    def out(self, now_ms: int) -> dict[LeaseId, set[int]]:
        found = {
            lease: {offset for offset, until in records.items() if until <= now_ms}
            for lease, records in self.deadlines.items()
        }
        return {lease: offsets for lease, offsets in found.items() if offsets}

    def looked_at(self, lease: LeaseId) -> set[int]:
        """The records of which somebody has heard that they ran out, and that have no new time since."""
        known = self._over.get(lease, {})
        return {offset for offset, until in self.deadlines[lease].items() if known.get(offset) == until}

    def over(self, lease: LeaseId, now_ms: int) -> None:
        records = self.deadlines.get(lease, {})
        self._over[lease] = {offset: until for offset, until in records.items() if until <= now_ms}
        if len(self._over[lease]) == len(records):
            self.deadlines.pop(lease, None)


def told(clocks: Clocks, now_ms: int) -> dict[LeaseId, set[int]]:
    found = {
        lease: {offset for first, end in ranges for offset in range(first, end)}
        for lease, ranges in clocks.expired(now_ms, 100)
    }
    return {lease: offsets for lease, offsets in found.items() if offsets}


@pytest.mark.parametrize("seed", range(10))
def test_each_record_runs_out_when_its_own_time_is_over(seed: int) -> None:
    rng = random.Random(seed)
    clocks, model, now_ms = Clocks(), Model(), rng.randrange(1_000)
    for _ in range(120):
        lease = rng.choice(LEASES)
        known = model.deadlines.get(lease)
        match rng.randrange(8):
            case 0 | 1 if known is None:
                lease_ms = rng.choice((30, 640, 6_400))
                first = rng.randrange(3)
                clocks.start(lease, [(first, RECORDS - 4), (RECORDS - 2, RECORDS)], lease_ms, now_ms)
                model.lease_ms[lease] = lease_ms
                records = [*range(first, RECORDS - 4), RECORDS - 2, RECORDS - 1]
                model.deadlines[lease] = dict.fromkeys(records, deadline(now_ms, lease_ms))
            case 2 | 3:
                some = joined((o, o + 1) for o in sorted(rng.sample(range(RECORDS), rng.randrange(1, 8))))
                if rng.random() < 0.3:
                    some = tuple(clocks.ranges(lease))
                clocks.extend(lease, list(some), now_ms)
                for offset in known or ():
                    if any(a <= offset < b for a, b in some):
                        model.deadlines[lease][offset] = deadline(now_ms, model.lease_ms[lease])
            case 4 if known is not None and rng.random() < 0.5:
                longer = rng.choice((20, 640, 6_400, 9_600))
                clocks.lengthen(lease, longer, now_ms)
                if longer > model.lease_ms[lease]:
                    model.lease_ms[lease] = longer
                    model.deadlines[lease] = dict.fromkeys(known, deadline(now_ms, longer))
            case 5 if rng.random() < 0.2:
                clocks.restart(now_ms)
                for each, records in model.deadlines.items():
                    model.deadlines[each] = dict.fromkeys(records, deadline(now_ms, model.lease_ms[each]))
            case 6 if known is not None:  # to the millisecond
                now_ms = max(now_ms, rng.choice(list(known.values())) - rng.randrange(2))
            case _:
                now_ms += rng.choice((1, 7, 100, 3_000))
        if rng.random() < 0.5:
            out, found = model.out(now_ms), told(clocks, now_ms)
            new = {lease for lease, offsets in out.items() if offsets - model.looked_at(lease)}
            assert new <= set(found), "these have run out and nobody has looked at them"
            assert found == {each: out[each] for each in found}
            assert clocks.due(now_ms) or not new
            for each in [*found, rng.choice(LEASES)]:
                clocks.over(each, now_ms)
                model.over(each, now_ms)
        assert len(clocks) == len(model.deadlines)
