"""A whole simulated cluster: made from a seed, run under faults, then left in peace until it must be whole again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from mq_broker.core.messages import NodeState, ReplicaSettings
from tests.simulation.broker import Broker
from tests.simulation.coordination import SLOWEST_HINT_MS, Coordination
from tests.simulation.liar import Careless, DeathsOnly, Liar
from tests.simulation.loop import Loop
from tests.simulation.nemesis import FAULTS, Nemesis
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.workload import Workload

CALM_DOWN_MS = 8_000
"""Once faults have stopped, everything must be whole within this, a session's time, and the time for which a leader
stands back if one did."""

REFUSED_MS_MAX = 60_000
"""A leader whose disk refuses entries again and again leaves it to others for so long at most."""

MOVING_MS = 2 * SLOWEST_HINT_MS + 8_000
"""A move under way then is finished: brokers learn of it twice, a log is copied, another deleted."""


@dataclass(frozen=True)
class Plan:
    """What a seed decides before anything happens: the cluster's shape, and which faults at what pace."""

    brokers: int
    partitions: int
    durability: str
    settings: ReplicaSettings
    session_ms: int
    trouble_ms: int
    fault_every_ms: float
    faults: tuple[str, ...]
    producers: int
    pace_ms: float
    leaders_hit: float = 0.0
    """How often a fault is aimed at a broker that leads, rather than at any."""
    rough: float = 0.0
    """Chance that a message between brokers is dropped, that it is repeated, that it is overtaken, while there is
    trouble."""
    answers_lost: float = 0.0
    """Chance that the coordination service's answer is lost, or the request itself, while there is trouble."""
    retains_ms: float = 0.0
    """How often retention drops records, in the mean; 0: never."""
    moves_ms: float = 0.0
    """How long a partition stays where it is, in the mean; 0: for ever, and on all brokers."""
    total_losses: int = 0
    """How often every log that is named is lost, and an operator has the partition go on from another (rule 15)."""
    rollbacks: int = 0
    """How often all brokers stop and one comes back with an older copy of its directory."""
    restores: int = 0
    """How often the coordination service is put back to an older copy."""
    shortens: float = 0.0
    """Chance a tick that a replica lets its journal begin later if it may; it does so some time after each drop of
    records too."""
    rests: bool = False
    """Replicas that have nothing to do are hardly ticked (`mq_broker.broker.host.quiescence`)."""
    former: tuple[int, ...] = ()
    """Brokers of a former version, which neither beat nor hear beats (`mq_broker.broker.host.contacts`)."""
    leaders_spared: bool = False
    """Faults that befall one broker befall one that does not lead."""
    service_ms: float = 0.0
    """So much slower, at most, the coordination service is all the time, in each direction."""
    joiners_hit: bool = False
    """A broker dies when it is named in sync by a write that nobody knows the outcome of."""
    hasty: bool = False
    """Whoever moves a partition leaves it to the leader to hand leadership to a broker that the partition is assigned
    to."""
    losses_partial: bool = False
    """In a total loss, what others than the one cut off lose is the ends of their logs."""
    publish_ms: float = 0.0
    """A decided micro-batch waits for so long, at most, until somebody begins to publish it."""
    aborts: float = 0.0
    """Chance a micro-batch that an administrator takes its query for dead, and aborts it."""

    thefts: float = 0.0
    """Chance a micro-batch that somebody else, who has learnt the query's key, decides under it."""
    gives: float = 0.0
    """Chance a micro-batch that an administrator gives the query's key to another user."""
    lies_ms: float = 0.0
    """How often a broker is told something that no broker would say, in the mean; 0: never. Then nothing is promised
    but that no broker dies of it (liar.py)."""
    profile: str = ""
    """The narrower kind of plan that this one is of (profiles.py)."""

    @property
    def fewest_replicas(self) -> int:
        """A partition is assigned to no fewer brokers. Of durability memory, one that is on one broker alone restarts
        empty."""
        return max(self.settings.min_insync_replicas, min(self.brokers, 2 if self.durability == "memory" else 1))

    def replicas_of(self, partition: int) -> tuple[int, ...]:
        """Which brokers a partition is assigned to at first, in order of rank."""
        everyone = self.settings.replicas
        if not self.moves_ms:
            return everyone
        chance = Random(f"replicas {partition} of {self.brokers}")
        return tuple(chance.sample(everyone, chance.randint(self.fewest_replicas, self.brokers)))

    @property
    def kinds(self) -> set[str]:
        """Everything that may go wrong under it."""
        lasting = {
            "rough_links": self.rough,
            "coordination_loses_answers": self.answers_lost,
            "retention": self.retains_ms,
            "moves": self.moves_ms,
            "total_losses": self.total_losses,
            "rollbacks": self.rollbacks,
            "restores": self.restores,
            "aborts": self.aborts,
            "thefts": self.thefts,
            "gives": self.gives,
        }
        return {*self.faults, *(kind for kind, chance in lasting.items() if chance)}

    @staticmethod
    def of(seed: int) -> Plan:
        chance = Random(f"plan {seed}")
        brokers = chance.choice((1, 2, 3, 3, 3, 3, 3, 4, 5))
        replicas = tuple(range(1, brokers + 1))
        minimum = chance.choice((1, brokers // 2 + 1, brokers // 2 + 1, brokers // 2 + 1))
        durability = chance.choice(("fsync", "fsync", "fsync", "os", "memory"))
        settings = ReplicaSettings(
            replicas,
            minimum,
            append_entries_max=chance.choice((1, 3, 50, 1_000)),
            append_bytes_max=chance.choice((300, 4 << 20)),
            append_in_flight_max=chance.choice((1, 2, 8, 8)),
            tail_entries_max=chance.choice((12, 20_000)),
            replica_lag_ms_max=(lag_ms := chance.choice((1_000, 4_000))),
            leader_stuck_ms=max(chance.choice((3_000, 10_000, 60_000)), lag_ms + 1_000),
            resend_ms=chance.choice((300, 1_000)),
            volatile=durability == "memory",
            begins_empty=durability == "memory",
        )
        kinds = [kind for kind in FAULTS if chance.random() < 0.45]
        plan = Plan(
            brokers=brokers,
            partitions=chance.choice((1, 2, 2, 3)),
            aborts=Random(f"aborts {seed}").choice((0.0, 0.0, 0.15)),
            thefts=Random(f"thefts {seed}").choice((0.0, 0.0, 0.0, 0.3)),
            gives=Random(f"gives {seed}").choice((0.0, 0.0, 0.0, 0.3)),
            durability=durability,
            settings=settings,
            session_ms=chance.choice((2_000, 4_000)),
            trouble_ms=chance.choice((15_000, 30_000, 60_000)),
            fault_every_ms=chance.choice((400, 1_000, 2_500)),
            faults=tuple(kinds),
            producers=chance.choice((1, 2, 3)),
            pace_ms=chance.choice((5, 30, 100, 1_000)),
            leaders_hit=chance.choice((0.0, 0.4, 0.8)),
            rough=chance.choice((0.0, 0.0, 0.0, 0.02, 0.2)),
            answers_lost=chance.choice((0.0, 0.0, 0.0, 0.05, 0.3)),
            retains_ms=chance.choice((0.0, 300.0, 2_000.0, 8_000.0)),
            shortens=chance.choice((0.0, 0.001, 0.02)),
            total_losses=chance.choice((0, 0, 0, 0, 0, 0, 1, 2)) if brokers > 1 else 0,
            moves_ms=chance.choice((0.0, 0.0, 1_000.0, 6_000.0)) if brokers > 1 else 0.0,
            rests=chance.random() < 0.5,
            former=tuple(broker for broker in replicas if Random(f"former {seed} {broker}").random() < 0.15),
        )
        survives = minimum > 1 and brokers > 2 and durability == "fsync" and not (plan.total_losses or plan.moves_ms)
        return replace(
            plan,
            rollbacks=Random(f"rollbacks {seed}").choice((0, 0, 1, 2)) if survives else 0,
            restores=Random(f"restores {seed}").choice((0, 0, 1, 2)) if survives else 0,
        )


@dataclass(frozen=True)
class Report:
    """What one seed came to. `violation` None: nothing was wrong. `trace` is the hash of everything that happened."""

    seed: int
    plan: Plan
    trace: int
    simulated_ms: int
    calls: int
    faults: Counter[str]
    done: Counter[str]
    calm_ms: int
    violation: Violation | None = None


class Cluster:
    """Owns everything that is simulated under one seed."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.loop = Loop(seed)
        self.faults: Counter[str] = Counter()
        assigned = [plan.replicas_of(partition) for partition in range(plan.partitions)]
        nodes = [NodeState(None, 0, tuple((b, "") for b in sorted(replicas)), 0, "created") for replicas in assigned]
        self.coordination = Coordination(self.loop, nodes, assigned, plan.session_ms, self.faults)
        self.network = Network(self.loop, self.faults)
        self.brokers: dict[int, Broker] = {}
        self.oracle = DeathsOnly(self) if plan.lies_ms else Oracle(self)
        self.brokers.update({number: Broker(self, number) for number in plan.settings.replicas})
        self.network.brokers = self.brokers
        self.operator = Operator(self)
        self.workload = Careless(self) if plan.lies_ms else Workload(self)
        self.nemesis = Nemesis(self)

    def start(self) -> None:
        """Brokers, clients, and what goes wrong."""
        for broker in self.brokers.values():
            self.loop.after(self.loop.often_short(0, 3_000), broker.start)
        self.workload.start()
        if self.plan.lies_ms:
            Liar(self).start()
        else:
            self.operator.start()
        self.nemesis.start()

    def run(self) -> None:
        """Trouble, then peace. Raises `Violation`."""
        self.start()
        self.loop.run(self.plan.trouble_ms)
        if self.plan.lies_ms:
            return
        self.nemesis.heal()
        self.workload.wind_up()
        calm_down_ms = (
            CALM_DOWN_MS + self.plan.session_ms + self._copying_ms() + (MOVING_MS if self.plan.moves_ms else 0)
        )
        self.loop.run(self.plan.trouble_ms + calm_down_ms, lambda: not self.unfinished())
        if self.unfinished():  # a leader that gave up gives others their time before it claims again
            stands_back_ms = max(self.plan.settings.leader_stuck_ms, REFUSED_MS_MAX)
            until_ms = self.oracle.stood_back_ms + stands_back_ms + calm_down_ms
            self.loop.run(until_ms, lambda: not self.unfinished())
        for partition, what in self.unfinished():
            since = (self.loop.now_ms - self.plan.trouble_ms) // 1000
            raise self.oracle.violation(partition, f"{since} s after the last fault {what}", changes_only=True)
        self.workload.check()

    def _copying_ms(self) -> int:
        """How long an emptied log takes where messages are so small that each carries an entry or two."""
        settings = self.plan.settings
        small = settings.append_entries_max < 10 or settings.append_bytes_max < 1_000
        return 25 * max(truth.present.end for truth in self.oracle.truths) if small else 0

    def unfinished(self) -> list[tuple[int, str]]:
        """What is not yet as it must be once faults have stopped: (partition, what)."""
        missing = [
            (partition, what) for partition in range(self.plan.partitions) for what in self._not_whole(partition)
        ]
        return missing + self.workload.unanswered()

    def _not_whole(self, partition: int) -> list[str]:
        assigned = self.coordination.assigned[partition][1]
        hosts = [broker.hosts.get(partition) for broker in self.brokers.values() if broker.number in assigned]
        if any(broker.journals[partition].present for broker in self.brokers.values() if broker.number not in assigned):
            return ["a broker has the log of a partition that is not assigned to it"]
        if any(host is None or host.closed for host in hosts):
            return ["a replica is not open"]
        open_hosts = [host for host in hosts if host is not None]
        leading = [host for host in open_hosts if host.replica.ready]
        if not leading:
            return ["nobody leads"]
        leader = max(leading, key=lambda host: host.replica.leader_epoch)
        state = self.coordination.nodes[partition].state
        named = tuple(sorted((host.broker.number, host.journal.log_id) for host in open_hosts))
        if state.isr != named:
            return [f"the ISR is {state.isr}, the logs are {named}"]
        committed = self.oracle.life(partition).end
        for host in open_hosts:
            replica = host.replica
            if not replica.high_watermark == replica.last_index == leader.replica.last_index == committed:
                return [f"broker {host.broker.number} has not everything"]
            if host.waiting:
                return [f"broker {host.broker.number} has not answered requests {sorted(host.waiting)}"]
            state, other = replica.machine.state(), leader.replica.machine.state()
            for part in ("next_offset", "uuids", "staged", "published", "cursors", "transactions", "log_start_offset"):
                if getattr(state, part) != getattr(other, part):
                    return [f"brokers {host.broker.number} and {leader.broker.number} differ in {part}"]
        return []


def simulate(seed: int, plan: Plan | None = None) -> Report:
    """Run one seed, under the plan that it makes itself or another."""
    plan = plan or Plan.of(seed)
    cluster = Cluster(seed, plan)
    violation = None
    try:
        cluster.run()
    except Violation as found:
        violation = found
    loop = cluster.loop
    calm_ms = max(0, loop.now_ms - plan.trouble_ms)
    return Report(
        seed,
        plan,
        cluster.oracle.trace,
        loop.now_ms,
        loop.calls_made,
        cluster.faults,
        cluster.workload.done,
        calm_ms,
        violation,
    )
