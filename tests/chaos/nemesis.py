"""What is done to the cluster: each nemesis strikes some victims, holds, and heals. A seed gives kinds, victims and
times.

Only who leads, and which brokers hold what, is the cluster's own doing. A nemesis may be one of several that hold at
the same time.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from mq_client import PartitionDescription, TritonMQError
from tests.chaos.clients import ClientProcess
from tests.chaos.cluster import FireCluster
from tests.chaos.network import CLIENTS, ZOOKEEPER
from tests.cluster.harness import wait_until
from tests.cluster.key_commands import KeyCommands

LEADER_S: Final = 10.0
ROLL_S: Final = 60.0
"""In which everything is to be in sync again after one broker of a rolling restart; the next one is left running
otherwise."""

FULL: Final = "No space left"

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
    everything: Sequence[str]
    """All topics, those that are no victims among them."""
    replicas: int
    elastic: Counter[str]
    """What the cluster was asked to do to itself, and how far it came."""

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
                    found = wait_until(
                        lambda: self._partition(topic, number), f"a leader of {topic}-{number}", LEADER_S
                    )
                except AssertionError:  # another fault that still holds has left none
                    return "one", [otherwise]
                return how, [found.leader if how == "leader" else found.replicas[len(found.replicas) // 2]]
            case _:
                raise ValueError(f"{how!r} is no way to choose")

    def partition(self) -> tuple[random.Random, str, PartitionDescription]:
        """One that is led, and chance for what is to be done to it: how much of that is used depends on how the cluster
        is.

        Raises `TritonMQError` if nobody says, `AssertionError` if nobody leads it in time.
        """
        chance = random.Random(self.chance.getrandbits(64))
        topic = chance.choice(sorted(self.topics))
        number = chance.randrange(self.topics[topic])
        return (
            chance,
            topic,
            wait_until(lambda: self._partition(topic, number), f"a leader of {topic}-{number}", LEADER_S),
        )

    def _partition(self, topic: str, number: int) -> PartitionDescription | None:
        found = self.cluster.admin.describe_topic(topic).partitions[number]
        return found if found.leader else None

    def pair(self) -> tuple[str, str]:
        a, b = self.chance.sample(self.cluster.ids, 2)
        return str(a), str(b)


@dataclass(frozen=True, slots=True)
class Nemesis:
    """`hold`: how long it lasts, in sessions. `forgets`: a broker loses what it had only in memory. `needs_disks`: file
    systems of the test's own. `needs_keys`: brokers that seal. `needs`: a client role that must be there.
    `brokers`: how many there must be. `alone`: what is acknowledged outlives it only where nothing else is broken: all
    is in sync before it and after it, and nothing else holds meanwhile."""

    strike: Callable[[Ground], Strike]
    hold: Span
    forgets: bool = False
    needs_disks: bool = False
    needs_keys: bool = False
    needs: str = ""
    brokers: int = 1
    alone: bool = False


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


def _wires(
    ground: Ground, whom: str, what: str, pairs: list[tuple[str, str]], hurt: Callable[[str, str], None]
) -> Strike:
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
    return _wires(
        ground, "pair", f"what {a} sends does not reach {b}", [(a, b)], lambda a, b: network.cut(a, b, both_ways=False)
    )


def _reset_pair(ground: Ground) -> Strike:
    a, b = ground.pair()
    return _wires(
        ground, "pair", f"connections of {a} and {b} reset, new ones refused", [(a, b)], ground.cluster.network.reset
    )


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


def _pause_worker(ground: Ground) -> Strike:
    """For longer than a lease of a queue group: it goes on with records that others have been lent."""
    worker = ground.chance.choice([client for client in ground.clients if client.role == "worker"])
    worker.send(signal.SIGSTOP)
    return Strike("worker", f"{worker.name} stopped", partial(worker.send, signal.SIGCONT))


def _nothing() -> None:
    """What was asked for carries itself."""


def _asked(ask: Callable[[], Strike]) -> Strike:
    """What is asked of the cluster may be refused while something else is broken: that is no fault, and shows in the
    table."""
    try:
        return ask()
    except (TritonMQError, AssertionError) as error:
        return Strike("refused", str(error)[:300], _nothing)


def _lead(ground: Ground) -> Strike:
    chance, topic, found = ground.partition()
    others = [member for member in found.isr if member != found.leader]
    if not others:
        return Strike("refused", f"{topic}-{found.partition}: nobody but its leader is in sync", _nothing)
    to = chance.choice(others)
    ground.cluster.admin.transfer_leadership(topic, found.partition, to)
    ground.elastic["leaders handed over"] += 1
    return Strike("leader", f"{topic}-{found.partition} handed over from {found.leader} to {to}", _nothing)


def _move(ground: Ground) -> Strike:
    """One replica, to a broker that has none of the partition: the leader's as often as others'."""
    chance, topic, found = ground.partition()
    others = [number for number in ground.cluster.ids if number not in found.replicas]
    leaves = found.leader if chance.random() < 0.5 else chance.choice(found.replicas)
    if not others:
        return Strike("refused", f"{topic}-{found.partition} is on its way already, and on every broker", _nothing)
    stay = [member for member in found.replicas if member != leaves][: ground.replicas - 1]
    target = [*stay, chance.choice(others)]
    chance.shuffle(target)
    ground.cluster.admin.move_partition(topic, found.partition, target)
    ground.elastic["moves begun"] += 1
    whom = "leader" if leaves == found.leader else "follower"
    return Strike(whom, f"{topic}-{found.partition} moved from {list(found.replicas)} to {target}", _nothing)


def _drain(ground: Ground) -> Strike:
    """Everything off one broker; when it heals, the load is spread evenly again, whether the broker is empty by then or
    not."""
    admin, victim = ground.cluster.admin, ground.chance.choice(ground.cluster.ids)
    moves = admin.plan_drain(victim)
    admin.start_moves(moves)
    ground.elastic["drains begun"] += 1

    def balance() -> None:
        try:
            ground.elastic["drains over"] += admin.needed_by(victim) == 0
            back = admin.plan_balance()
            admin.start_moves(back)
            ground.elastic["moves to balance"] += len(back)
        except TritonMQError:  # something else holds still: the next one that is drained balances for both
            ground.elastic["balancing refused"] += 1

    return Strike("one", f"{victim} drained by {len(moves)} moves", balance)


def _roll(ground: Ground) -> Strike:
    """Every broker stopped cleanly and started again, each once everything is in sync after the one before."""
    cluster, order = ground.cluster, ground.chance.sample(ground.cluster.ids, len(ground.cluster.ids))
    for number, victim in enumerate(order):
        try:
            cluster.stop_broker(victim)
        except AssertionError as error:
            ground.problems.append(str(error))
        cluster.start_broker(victim)
        ground.elastic["brokers restarted in turn"] += 1
        try:
            wait_until(lambda: not cluster.missing(list(ground.everything)), "everything is in sync", ROLL_S)
        except AssertionError:  # another fault that holds keeps it from that
            return Strike("some", f"rolling restart of {order[: number + 1]}, broken off", _nothing)
    return Strike("all", f"rolling restart of {order}", _nothing)


def _keys(ground: Ground) -> KeyCommands:
    assert ground.cluster.keys is not None, "brokers have no keys"
    return ground.cluster.keys


def _rotate(ground: Ground) -> Strike:
    """Beside brokers that run."""
    _keys(ground).run("rotate")
    return Strike("keys", f"{_keys(ground).newest} is the newest key", _nothing)


def _rewrap(ground: Ground) -> Strike:
    """A broker's data keys wrapped anew while it is down, killed on the way; half of the times it is done to its end
    then."""
    whom, [victim] = ground.victims("one", "leader", "middle")
    cluster, keys = ground.cluster, _keys(ground)
    after_s, again = ground.chance.uniform(0.2, 3.0), ground.chance.random() < 0.5
    keys.run("rotate")  # so that there is something to do
    cluster.brokers[victim].kill()
    running = keys.start("rewrap", *cluster.data(victim))
    try:
        _, told = running.communicate(timeout=after_s)  # the fault's own length, given by the seed
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate(timeout=LEADER_S)
    else:
        if running.returncode and FULL not in told:
            ground.problems.append(f"keys rewrap of broker {victim}: {told}")
    if again:
        _tell(ground, lambda: keys.run("rewrap", *cluster.data(victim)))
    heal = partial(cluster.start_broker, victim)
    return Strike(whom, f"rewrap of {victim} killed{', and done again' if again else ''}", heal)


def _retire(ground: Ground) -> Strike:
    """Every broker killed, and every older key retired that nothing is sealed with. Half of the times nothing is sealed
    with any."""
    if ground.survivors:
        return _rotate(ground)
    cluster, keys = ground.cluster, _keys(ground)
    rewrapped = ground.chance.random() < 0.5
    for number in cluster.ids:
        cluster.brokers[number].kill()
    if rewrapped:
        _tell(ground, lambda: keys.run("rewrap", *cluster.data(*cluster.ids)))
    before = keys.older
    for key in before:
        _tell(ground, lambda key=key: keys.run("retire", key, *cluster.data(*cluster.ids), may_refuse=not rewrapped))  # type: ignore[misc]
    gone = len(before) - len(keys.older)
    return Strike("all", f"{gone} of {len(before)} keys retired", _each(ground, cluster.ids, cluster.start_broker))


def _tell(ground: Ground, command: Callable[[], str]) -> None:
    try:
        command()
    except AssertionError as error:
        if FULL not in str(error):  # another fault may hold
            ground.problems.append(str(error))


def _whole(ground: Ground) -> bool:
    """Everything is in sync, within a while."""
    try:
        wait_until(lambda: not ground.cluster.missing(list(ground.everything)), "everything is in sync", ROLL_S)
    except AssertionError:
        return False
    return True


def _end(ground: Ground, brokers: Sequence[int]) -> str:
    """Kill them all at once, or stop one after the other; how."""
    if ground.chance.random() < 0.5:
        for number in brokers:
            ground.cluster.brokers[number].send_if_running(signal.SIGKILL)
        for number in brokers:
            ground.cluster.brokers[number].kill()
        return "killed"
    for number in brokers:
        try:
            ground.cluster.stop_broker(number)
        except AssertionError as error:
            ground.problems.append(str(error))
    return "stopped"


def _directory_back(ground: Ground) -> Strike:
    """One broker's data directory becomes what it was a while ago, while that broker or all of them are down. Then it
    is the first to start, or the last one. Two disks of three have everything."""
    cluster, chance = ground.cluster, ground.chance
    whom, [victim] = ground.victims("one", "leader", "middle")
    running, first = chance.random() < 0.5, chance.random() < 0.5
    down = cluster.ids if chance.random() < 0.5 and not ground.survivors else [victim]
    if running:
        cluster.keep_copy(victim)
    else:
        _end(ground, [victim])
        cluster.keep_copy(victim)
        cluster.start_broker(victim)
    time.sleep(chance.uniform(0.5, 3.0))  # what is written meanwhile is what the copy lacks
    if not _whole(ground):
        return Strike("refused", f"{victim} is not in sync again: its copy is not put back", _nothing)
    how = _end(ground, down)
    cluster.put_back(victim)
    others = [number for number in down if number != victim]
    order = [victim, *others] if first else [*others, victim]
    what = f"{down} {how}, {victim} put back to a copy of when it was {'running' if running else 'down'}"
    return Strike(whom, f"{what}, started in the order {order}", _each(ground, order, cluster.start_broker))


def _zookeeper_back(ground: Ground) -> Strike:
    """ZooKeeper becomes what it was before somebody else led, and all brokers start again, as docs/backup.md
    asks."""
    cluster, chance = ground.cluster, ground.chance
    if ground.survivors:
        return Strike("refused", "somebody must keep its memory, and all brokers would be restarted", _nothing)
    cluster.keep_copy_of_zookeeper()
    topics = wait_until(cluster.admin.list_topics, "the names of topics", ROLL_S)
    if not _whole(ground):
        return Strike("refused", "not everything is in sync again after ZooKeeper's restart", _nothing)
    _, [victim] = ground.victims("leader")
    _end(ground, [victim])
    time.sleep(chance.uniform(0.5, 3.0))  # the others lead, and take what comes
    cluster.start_broker(victim)
    if not _whole(ground):
        return Strike("refused", f"{victim} is not in sync again: ZooKeeper's copy is not put back", _nothing)
    if wait_until(cluster.admin.list_topics, "the names of topics", ROLL_S) != topics:
        return Strike("refused", "a topic was made since ZooKeeper was copied: it would be forgotten", _nothing)
    order = chance.sample(cluster.ids, len(cluster.ids))
    how = _end(ground, order)
    cluster.stop_zookeeper(cleanly=chance.random() < 0.5)
    cluster.put_zookeeper_back()
    cluster.start_zookeeper()
    what = f"{order} {how}, ZooKeeper put back to before {victim} was down"
    return Strike("zookeeper", what, _each(ground, order, cluster.start_broker))


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
    "rotate": Nemesis(_rotate, (0.0, 0.2), needs_keys=True),
    "rewrap": Nemesis(_rewrap, (0.0, 1.0), forgets=True, needs_keys=True),
    "retire": Nemesis(_retire, (0.0, 0.5), forgets=True, needs_keys=True),
    "lead": Nemesis(lambda ground: _asked(partial(_lead, ground)), (0.0, 0.5)),
    "move": Nemesis(lambda ground: _asked(partial(_move, ground)), (0.0, 3.0), brokers=4),
    "drain": Nemesis(lambda ground: _asked(partial(_drain, ground)), (2.0, 5.0), brokers=4),
    "roll": Nemesis(_roll, (0.0, 0.0), forgets=True),
    "directory-back": Nemesis(_directory_back, (0.0, 2.0), forgets=True, brokers=3, alone=True),
    "zookeeper-back": Nemesis(_zookeeper_back, (0.0, 2.0), forgets=True, brokers=3, alone=True),
    "clients": Nemesis(_clients(("producer", "member", "transactor", "worker")), (0.0, 1.0)),
    "pause-worker": Nemesis(_pause_worker, (1.0, 2.0), needs="worker"),
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
        time.sleep(max(hold for *_, hold in struck))  # the fault's own length, given by the seed: nothing is waited for
    finally:
        done = []
        for name, strike, began, _ in struck:
            strike.heal()
            done.append(Applied(name, strike.whom, strike.what, began, time.monotonic_ns(), len(names) == 1))
    return done
