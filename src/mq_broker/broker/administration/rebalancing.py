"""Where the replicas of partitions that exist should go: off a broker, evenly over all, more or fewer of each. Pure.

In: the racks of the live brokers and who is to hold each partition now, in order of rank. Out: who is to hold those
that change. Carrying a move out is moves.py's; where new topics go is placement.py's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, TypeAlias

from mq_protocol.errors import NotEnoughBrokers

Place: TypeAlias = tuple[str, int]
"""A topic's name and a partition's number."""

Members: TypeAlias = tuple[int, ...]
"""Brokers in order of rank: the first is to lead."""

Layout: TypeAlias = Mapping[Place, Members]

_EVEN: Final = 1
"""Brokers whose counts differ by no more are even: that many can be left over."""


def drained(broker: int, racks: Mapping[int, str], layout: Layout) -> dict[Place, Members]:
    """Every partition that `broker` holds, with another live broker in its stead: the least loaded, in a rack that the
    partition does not have yet as long as there is one. What it led goes to a replica that is there already. `racks`
    may name the broker itself or not: one that is dead is drained alike. Raises `NotEnoughBrokers` naming the topic
    that has too many replicas.
    """
    load = _Load({live: rack for live, rack in racks.items() if live != broker}, layout)
    changed: dict[Place, Members] = {}
    for place in sorted(layout):
        members = layout[place]
        if broker not in members:
            continue
        kept = tuple(member for member in members if member != broker)
        chosen = load.best(kept)
        if chosen is None:
            live = ", ".join(map(str, sorted(load.racks))) or "none"
            raise NotEnoughBrokers(
                f"topic {place[0]!r} has {len(members)} replicas and without broker {broker} only {len(load.racks)} "
                f"brokers are live ({live}): start another one, or give the topic fewer (`tritonmq topic alter "
                f"{place[0]} --replicas N`)"
            )
        if members[0] == broker:
            first = load.least_leading(kept) or chosen
            others = [member for member in (*kept, chosen) if member != first]
        else:
            first, others = members[0], [chosen if member == broker else member for member in members[1:]]
        load.replace(members, (first, *others))
        changed[place] = (first, *others)
    return changed


def resized(replicas: int, racks: Mapping[int, str], layout: Layout, topic: str) -> dict[Place, Members]:
    """The partitions of `topic` with that many replicas each: more on the least loaded brokers, or without those of the
    lowest rank. Raises `NotEnoughBrokers`."""
    load = _Load(racks, layout)
    changed: dict[Place, Members] = {}
    for place in sorted(place for place in layout if place[0] == topic):
        members = layout[place]
        wanted = members[:replicas]
        while len(wanted) < replicas:
            chosen = load.best(wanted)
            if chosen is None:
                raise NotEnoughBrokers(
                    f"{replicas} replicas of topic {topic!r} need {replicas} brokers and {len(racks)} are live: start "
                    "more, or ask for fewer"
                )
            wanted = (*wanted, chosen)
        if wanted != members:
            load.replace(members, wanted)
            changed[place] = wanted
    return changed


def balanced(racks: Mapping[int, str], layout: Layout) -> dict[Place, Members]:
    """Replicas, and then leaders, spread as evenly over the live brokers as can be without putting two replicas of a
    partition into one rack that were in two; with as few replicas moved as that takes. What is even already stays as it
    is."""
    load = _Load(racks, layout)
    now = dict(layout)
    _even_replicas(load, now)
    _even_leaders(load, now)
    return {place: now[place] for place in sorted(now) if now[place] != layout[place]}


class _Load:
    """Owns how much each live broker leads and holds."""

    def __init__(self, racks: Mapping[int, str], layout: Layout) -> None:
        self.racks = dict(racks)
        self.leads: Counter[int] = Counter()
        self.holds: Counter[int] = Counter()
        for members in layout.values():
            self._add(members)

    def _add(self, members: Members) -> None:
        self.leads.update(members[:1])
        self.holds.update(members)

    def replace(self, members: Members, others: Members) -> None:
        self.leads.subtract(members[:1])
        self.holds.subtract(members)
        self._add(others)

    def rack(self, broker: int) -> str:
        """ "" counts as a rack of its own, and so does that of a broker that is not live."""
        return self.racks.get(broker) or f"\0{broker}"

    def racks_of(self, members: Members) -> int:
        return len({self.rack(member) for member in members})

    def best(self, members: Members) -> int | None:
        """Who should be added to these; None if there is nobody else."""
        taken = Counter(self.rack(member) for member in members)
        free = [broker for broker in sorted(self.racks) if broker not in members]
        return min(free, key=lambda broker: (taken[self.rack(broker)], self.holds[broker], broker), default=None)

    def least_leading(self, members: Members) -> int | None:
        """The live one of these that leads least."""
        live = [member for member in members if member in self.racks]
        return min(live, key=lambda member: (self.leads[member], members.index(member)), default=None)


def _even_replicas(load: _Load, now: dict[Place, Members]) -> None:
    """Move replicas from brokers that hold more than the mean to those that hold less, as long as two differ by two;
    followers before leaders."""
    # Dictionaries as ordered sets: the same layout gives the same plan.
    on: dict[int, dict[Place, None]] = {broker: {} for broker in sorted(load.racks)}
    for place in sorted(now):
        for member in now[place]:
            if member in on:
                on[member][place] = None
    stuck = False
    while not stuck:
        stuck = True
        by_load = sorted(on, key=lambda broker: (load.holds[broker], broker))
        for full in reversed(by_load):
            for free in by_load:
                if _pour(load, now, on, full, free):
                    stuck = False


def _pour(load: _Load, now: dict[Place, Members], on: dict[int, dict[Place, None]], full: int, free: int) -> bool:
    """Move what may be moved from the one to the other until one of them is at the mean. Whether anything was."""
    total = sum(load.holds[broker] for broker in on)
    most, least = total // len(on), -(-total // len(on))
    moved = False
    for leading in (False, True):
        if load.holds[full] - load.holds[free] <= _EVEN or load.holds[full] <= most or load.holds[free] >= least:
            break
        for place in list(on[full]):
            members = now[place]
            if free in members or (members[0] == full) != leading:
                continue
            after = tuple(free if member == full else member for member in members)
            if load.racks_of(after) < load.racks_of(members):
                continue
            now[place] = after
            load.replace(members, after)
            del on[full][place]
            on[free][place] = None
            moved = True
            if load.holds[full] - load.holds[free] <= _EVEN or load.holds[full] <= most or load.holds[free] >= least:
                break
    return moved


def _even_leaders(load: _Load, now: dict[Place, Members]) -> None:
    """Let another replica of a partition lead where that evens out. A leadership that has nowhere better to go directly
    may push another one on: from broker to broker along a path."""
    heirs: dict[tuple[int, int], dict[Place, None]] = {}

    def note(place: Place) -> None:
        for member in now[place][1:]:
            heirs.setdefault((now[place][0], member), {})[place] = None

    for place in sorted(now):
        note(place)
    while path := _path(load, heirs):
        for leader, heir in path:
            place = next(iter(heirs[leader, heir]))
            members = now[place]
            for member in members[1:]:
                del heirs[leader, member][place]
            now[place] = (heir, *(member for member in members if member != heir))
            load.replace(members, now[place])
            note(place)


def _path(load: _Load, heirs: Mapping[tuple[int, int], Mapping[Place, None]]) -> list[tuple[int, int]]:
    """Who is to pass a leadership on to whom, last first, from one that leads much to one that leads less by at least
    two. `heirs[a, b]`: what a leads and b might."""
    brokers = sorted(load.racks)
    for full in sorted(brokers, key=lambda broker: (-load.leads[broker], broker)):
        came_from: dict[int, int] = {}
        waiting = deque([full])
        while waiting:
            broker = waiting.popleft()
            if load.leads[full] - load.leads[broker] > _EVEN:
                path: list[tuple[int, int]] = []
                while broker != full:
                    path.append((came_from[broker], broker))
                    broker = came_from[broker]
                return path
            for heir in brokers:
                if heir != full and heir not in came_from and heirs.get((broker, heir)):
                    came_from[heir] = broker
                    waiting.append(heir)
    return []
