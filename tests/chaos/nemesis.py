"""What is done to the cluster: each nemesis strikes some victims, holds, and heals. A seed gives kinds, victims and times.

Only who leads at the moment is the cluster's own doing. A nemesis may be one of several that hold at the same time.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mq_client import PartitionDescription
from tests.chaos.clients import ClientProcess
from tests.chaos.cluster import FireCluster
from tests.chaos.network import CLIENTS, ZOOKEEPER
from tests.cluster.harness import wait_until

LEADER_S: Final = 10.0

Heal = Callable[[], None]
Span = tuple[float, float]
"""Shortest and longest, in sessions."""


class Strike(NamedTuple):
    """`whom` for the table: "leader", "all", …; `what` for the record; `heal` ends it and waits for nothing."""

    whom: str
    what: str
    heal: Heal


@dataclass(slots=True)
class Ground:
    """What nemeses may hurt."""

    cluster: FireCluster
    clients: list[ClientProcess]
    topics: Mapping[str, int]
    chance: random.Random
    survivors: bool
    """Whether somebody must keep its memory: then never all are killed."""
    problems: list[str]
    """What did not go as it must, whatever the clients see."""

    def victims(self, *choices: str) -> tuple[str, list[int]]:
        """Some brokers, chosen in one of these ways."""
        ids = self.cluster.ids
        how = self.chance.choice([choice for choice in choices if choice != "all" or not self.survivors])
        match how:
            case "one":
                return how, [self.chance.choice(ids)]
            case "minority":
                return how, sorted(self.chance.sample(ids, (len(ids) - 1) // 2))
            case "all":
                return how, ids
            case "leader" | "middle":
                topic = self.chance.choice(sorted(self.topics))
                number = self.chance.randrange(self.topics[topic])
                otherwise = self.chance.choice(ids)
                try:
                    found = wait_until(lambda: self._partition(topic, number), f"a leader of {topic}-{number}", LEADER_S)
                except AssertionError:  # another fault that still holds has left none
                    return "one", [otherwise]
                return how, [found.leader if how == "leader" else found.replicas[len(found.replicas) // 2]]
            case _:
                raise ValueError(f"{how!r} is no way to choose")

    def _partition(self, topic: str, number: int) -> PartitionDescription | None:
        found = self.cluster.admin.describe_topic(topic).partitions[number]
        return found if found.leader else None

    def pair(self) -> tuple[str, str]:
        a, b = self.chance.sample(self.cluster.ids, 2)
        return str(a), str(b)


@dataclass(frozen=True, slots=True)
class Nemesis:
    """`hold`: how long it lasts, in sessions. `forgets`: a broker loses what it had only in memory. `needs_disks`: file systems of
    the test's own. `needs`: a client role that must be there."""

    strike: Callable[[Ground], Strike]
    hold: Span
    forgets: bool = False
    needs_disks: bool = False
    needs: str = ""


EVERYONE: Final = ("one", "minority", "all", "leader", "leader", "middle")


def _each(ground: Ground, victims: list[int], do: Callable[[int], None]) -> Heal:
    def heal() -> None:
        for victim in victims:
            do(victim)

    return heal


def _kill(ground: Ground) -> Strike:
    whom, victims = ground.victims(*EVERYONE)
    for victim in victims:
        ground.cluster.brokers[victim].send_if_running(signal.SIGKILL)
    for victim in victims:
        ground.cluster.brokers[victim].kill()
    return Strike(whom, f"kill -9 of {victims}", _each(ground, victims, ground.cluster.start_broker))


def _stop(ground: Ground) -> Strike:
    whom, victims = ground.victims("one", "leader", "middle")
    for victim in victims:
        try:
            ground.cluster.stop_broker(victim)
        except AssertionError as error:
            ground.problems.append(str(error))
    return Strike(whom, f"clean stop of {victims}", _each(ground, victims, ground.cluster.start_broker))


def _pause(ground: Ground) -> Strike:
    whom, victims = ground.victims(*EVERYONE)
    for victim in victims:
        ground.cluster.pause(victim)
    return Strike(whom, f"SIGSTOP of {victims}", _each(ground, victims, ground.cluster.resume))


def _zookeeper_stop(ground: Ground) -> Strike:
    ground.cluster.stop_zookeeper(cleanly=ground.chance.random() < 0.5)
    return Strike("zookeeper", "ZooKeeper stopped", ground.cluster.start_zookeeper)


def _zookeeper_pause(ground: Ground) -> Strike:
    ground.cluster.pause_zookeeper()
    return Strike("zookeeper", "ZooKeeper paused", ground.cluster.resume_zookeeper)


def _wires(ground: Ground, whom: str, what: str, pairs: list[tuple[str, str]], hurt: Callable[[str, str], None]) -> Strike:
    def heal() -> None:
        for a, b in pairs:
            ground.cluster.network.mend(a, b)

    for a, b in pairs:
        hurt(a, b)
    return Strike(whom, what, heal)


def _cut_pair(ground: Ground) -> Strike:
    a, b = ground.pair()
    return _wires(ground, "pair", f"{a} and {b} cut from each other", [(a, b)], ground.cluster.network.cut)


def _cut_one_way(ground: Ground) -> Strike:
    a, b = ground.pair()
    network = ground.cluster.network
    return _wires(ground, "pair", f"what {a} sends does not reach {b}", [(a, b)], lambda a, b: network.cut(a, b, both_ways=False))


def _reset_pair(ground: Ground) -> Strike:
    a, b = ground.pair()
    return _wires(ground, "pair", f"connections of {a} and {b} reset, new ones refused", [(a, b)], ground.cluster.network.reset)


def _slow(ground: Ground) -> Strike:
    whom, [victim] = ground.victims("one", "leader", "middle")
    delay_s = ground.chance.uniform(0.02, 0.3)
    others = [*(str(number) for number in ground.cluster.ids if number != victim), ZOOKEEPER]
    pairs = [(str(victim), other) for other in others]
    what = f"{victim} slowed by {delay_s * 1000:.0f} ms"
    return _wires(ground, whom, what, pairs, lambda a, b: ground.cluster.network.slow(a, b, delay_s))


def _isolate(ground: Ground) -> Strike:
    """From brokers and ZooKeeper; clients still reach it, and it does not know that it has been replaced."""
    whom, [victim] = ground.victims("one", "leader", "leader", "middle")
    others = [*(str(number) for number in ground.cluster.ids if number != victim), ZOOKEEPER]
    pairs = [(str(victim), other) for other in others]
    return _wires(ground, whom, f"{victim} cut from brokers and ZooKeeper", pairs, ground.cluster.network.cut)


def _cut_zookeeper(ground: Ground) -> Strike:
    whom, victims = ground.victims("one", "leader", "all")
    pairs = [(str(victim), ZOOKEEPER) for victim in victims]
    one_way = ground.chance.random() < 0.3
    network = ground.cluster.network
    what = f"{victims} cut from ZooKeeper{', answers only' if one_way else ''}"
    return _wires(ground, whom, what, pairs, lambda a, b: network.cut(b, a, both_ways=not one_way))


def _cut_clients(ground: Ground) -> Strike:
    whom, victims = ground.victims("one", "leader", "minority")
    pairs = [(str(victim), CLIENTS) for victim in victims]
    return _wires(ground, whom, f"{victims} cut from clients", pairs, ground.cluster.network.cut)


def _disk(ground: Ground) -> Strike:
    whom, victims = ground.victims(*EVERYONE)
    for victim in victims:
        ground.cluster.fill_disk(victim)
    return Strike(whom, f"disks of {victims} full", _each(ground, victims, ground.cluster.free_disk))


def _clients(roles: tuple[str, ...]) -> Callable[[Ground], Strike]:
    def strike(ground: Ground) -> Strike:
        client = ground.chance.choice([client for client in ground.clients if client.role in roles])
        client.kill()
        return Strike(client.role, f"kill -9 of {client.name}", client.start)

    return strike


NEMESES: Final[dict[str, Nemesis]] = {
    "kill": Nemesis(_kill, (0.1, 2.0), forgets=True),
    "restart": Nemesis(_kill, (0.0, 0.0), forgets=True),
    "stop": Nemesis(_stop, (0.1, 1.0), forgets=True),
    "pause-short": Nemesis(_pause, (0.2, 0.8)),
    "pause-long": Nemesis(_pause, (1.5, 3.0)),
    "zookeeper-stop": Nemesis(_zookeeper_stop, (0.0, 3.0)),
    "zookeeper-pause": Nemesis(_zookeeper_pause, (0.3, 3.0)),
    "cut-pair": Nemesis(_cut_pair, (0.5, 3.0)),
    "cut-one-way": Nemesis(_cut_one_way, (0.5, 3.0)),
    "reset-pair": Nemesis(_reset_pair, (0.1, 2.0)),
    "slow": Nemesis(_slow, (0.5, 3.0)),
    "isolate": Nemesis(_isolate, (0.5, 3.0)),
    "cut-zookeeper": Nemesis(_cut_zookeeper, (0.5, 3.0)),
    "cut-clients": Nemesis(_cut_clients, (0.5, 2.0)),
    "disk": Nemesis(_disk, (0.3, 1.5), needs_disks=True),
    "clients": Nemesis(_clients(("producer", "member", "transactor")), (0.0, 1.0)),
    "spark": Nemesis(_clients(("spark",)), (0.0, 1.0), needs="spark"),
}


@dataclass(frozen=True, slots=True)
class Applied:
    """A fault as it was: monotonic nanoseconds from strike to heal."""

    kind: str
    whom: str
    what: str
    began: int
    healed: int
    alone: bool


def apply(ground: Ground, names: list[str], session_s: float) -> list[Applied]:
    """Strike with each, hold, heal in the order of striking."""
    struck: list[tuple[str, Strike, int, float]] = []
    try:
        for name in names:
            began = time.monotonic_ns()
            strike = NEMESES[name].strike(ground)
            struck.append((name, strike, began, ground.chance.uniform(*NEMESES[name].hold) * session_s))
        time.sleep(max(hold for *_, hold in struck))
    finally:
        done = []
        for name, strike, began, _ in struck:
            strike.heal()
            done.append(Applied(name, strike.whom, strike.what, began, time.monotonic_ns(), len(names) == 1))
    return done
