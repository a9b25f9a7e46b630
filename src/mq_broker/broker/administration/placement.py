"""Where the replicas of a new topic go. Pure: the brokers and what they hold already, in; who holds each partition,
out.

Not here: moving replicas of topics that exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from mq_protocol.errors import NotEnoughBrokers

Assignment = tuple[tuple[int, ...], ...]
"""For each partition its brokers in order of rank."""


class Placing:
    """Owns how much each broker has, while several topics are placed one after the other.

    `racks`: the rack of every live broker ("" counts as a rack of its own). `existing`: the replica lists of all
    partitions there are.
    """

    def __init__(self, racks: Mapping[int, str], existing: Iterable[tuple[int, ...]]) -> None:
        existing = list(existing)
        self._racks = racks
        self._leads = Counter(members[0] for members in existing)
        self._holds = Counter(chain.from_iterable(existing))

    def place(self, partitions: int, replicas: int, *, start: int = 0) -> Assignment:
        """As the function `place`. What it gives counts for the topics placed after it."""
        racks, leads, holds = self._racks, self._leads, self._holds
        if len(racks) < replicas:
            live = ", ".join(map(str, sorted(racks))) or "none"
            raise NotEnoughBrokers(
                f"{replicas} replicas need {replicas} live brokers and there are {len(racks)} ({live}): start more, or "
                "ask for fewer"
            )
        order = sorted(racks)
        turn = start % len(order)
        rank = {broker: place for place, broker in enumerate(order[turn:] + order[:turn])}
        rack_of = {broker: racks[broker] or f"\0{broker}" for broker in order}
        assignment: list[tuple[int, ...]] = []
        for _ in range(partitions):
            chosen = [min(order, key=lambda broker: (leads[broker], holds[broker], rank[broker]))]
            while len(chosen) < replicas:
                taken = Counter(rack_of[broker] for broker in chosen)
                free = [broker for broker in order if broker not in chosen]
                chosen.append(min(free, key=lambda broker: (taken[rack_of[broker]], holds[broker], rank[broker])))
            leads[chosen[0]] += 1
            holds.update(chosen)
            assignment.append(tuple(chosen))
        return tuple(assignment)


def place(
    partitions: int, replicas: int, racks: Mapping[int, str], existing: Iterable[tuple[int, ...]], *, start: int = 0
) -> Assignment:
    """Brokers for each partition of a new topic. `racks` and `existing` as for `Placing`.

    Leaders go where fewest lead, followers where fewest replicas are, in racks that the partition
    does not have yet as long as there are any. `start` turns the order among equals, so that small topics do not all
    begin at the same broker. The brokers of a partition are distinct. Raises `NotEnoughBrokers`.
    """
    return Placing(racks, existing).place(partitions, replicas, start=start)
