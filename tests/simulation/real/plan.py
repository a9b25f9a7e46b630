"""What one seed is going to be: decided by the seed alone, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

PRIORITY = "strict", "weighted", "ignore"
LENGTH = "reject", "drop_head"
EXPIRED = "drop", "dead"


@dataclass(slots=True)
class Plan:
    """`topics`: by name, how many partitions and which settings. Rates are events of the nemesis a second.
    `at_decisions`: how often somebody who is to publish goes when a micro-batch is decided.
    `slow_work`: how often a member goes on working on a record, instead of settling it.
    `impatient`: how often it does not wait for what it is lent, or dies of it. `away_s`: for how long one that died is
    away, at most. `sweep_s`: so often brokers look for what is staged and will not be decided.
    `pushed`: how many of the members are pushed their records, rather than asking for them.
    `narrow`: so little waits in a connection that its ends wait for each other, and what is large for it is small.
    `tight`: the bounds of queue groups are so low that they are reached. `order`: of queue groups.
    `schedules`: some batches are for later, at most by `later_s`.
    `filter`: groups have filters, which change. `sieves`: members have filters of their own. `priority`: of groups, if
    records and members have priorities. `length`: what happens at the bound that groups have then. `heavy`: it is
    one of bytes. `dropped`: what becomes of what is too much. `lives`: some batches have a time to live. `ttl_s`: of
    the groups, 0 for none. `expired`: what becomes of what has expired.
    `idles`: there is a group that goes when nobody has it open.
    `recoveries`: there is an operator who has partitions go on of which every named log is lost."""

    brokers: int = 3
    replicas: int = 3
    chaos_s: float = 25.0
    calm_s: float = 90.0
    session_s: float = 4.0
    latency_s: tuple[float, float] = (0.0002, 0.02)
    disk_latency_s: tuple[float, float] = (0.0001, 0.02)
    pause_s: float = 0.2
    producers: int = 1
    topics: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    bad_disk: int = 0
    transactors: int = 0
    at_decisions: float = 0.0
    groups: bool = False
    workers: int = 0
    slow_work: float = 0.1
    impatient: float = 0.05
    away_s: float = 0.0
    sweep_s: float = 15.0
    pushed: float = 0.0
    narrow: bool = False
    tight: bool = False
    order: str = "none"
    schedules: bool = False
    later_s: float = 8.0
    filter: bool = False
    sieves: bool = False
    priority: str = ""
    length: str = ""
    idles: bool = False
    recoveries: bool = False
    heavy: bool = False
    dropped: str = "drop"
    lives: bool = False
    ttl_s: float = 0.0
    expired: str = "drop"

    @property
    def purges(self) -> bool:
        return "purge" in self.rates

    @classmethod
    def short(cls, seed: int) -> Plan:
        """A few seconds of the same."""
        plan = cls.of(seed)
        plan.chaos_s, plan.pause_s = 6.0, 0.5
        plan.topics = {"t": (1, plan.topics["t"][1])}
        plan.rates = {kind: 2 * rate for kind, rate in plan.rates.items()}
        return plan

    @classmethod
    def aimed(cls, seed: int, needs: tuple[str, ...]) -> Plan:
        """A short seed in which much of that happens, and little else: for a fault that shows only where it does."""
        plan = cls.of(seed)
        random = Random(f"aimed {seed}")
        plan.brokers, plan.bad_disk = (4, 0) if "move" in needs else (3, 0)
        plan.chaos_s, plan.calm_s = random.uniform(6, 12) * (4 if "long" in needs else 1), 45.0
        plan.latency_s, plan.disk_latency_s = (0.0002, 0.005), (0.0001, random.choice((0.005, 0.05)))
        size = "3000" if "small segments" in needs else "20000"
        plan.topics = {"t": (random.choice((1, 2)), {"durability": "fsync", "segment_bytes_max": size})}
        plan.groups, plan.transactors = "groups" in needs, int("transactions" in needs)
        plan.at_decisions = 0.5 if "decisions" in needs else 0.0
        plan.workers, plan.slow_work, plan.impatient = 3 if "queue" in needs else 0, 0.4, 0.2
        if "busy" in needs:
            plan.producers, plan.pause_s, plan.disk_latency_s = 3, 0.05, (0.001, 0.05)
        plan.sweep_s = 0.2 if "sweeps" in needs else 15.0
        if "slow disk" in needs:
            plan.disk_latency_s = (0.02, 1.0)
        plan.away_s = 15.0 if "away" in needs else 0.0
        plan.tight = "tight" in needs
        plan.narrow = "narrow" in needs
        plan.pushed = 1.0 if "pushed" in needs else 0.0
        plan.order = "key" if "order" in needs else "none"
        plan.schedules = bool({"schedules", "carry"} & set(needs))
        plan.later_s = 20.0 if "carry" in needs else 8.0
        plan.filter, plan.sieves = "filter" in needs, "sieves" in needs
        plan.priority = next((each for each in PRIORITY if each in needs), "")
        plan.length = next((each for each in LENGTH if each in needs), "")
        plan.heavy, plan.dropped = "bytes" in needs, "dead" if "letters of length" in needs else "drop"
        plan.idles = "idles" in needs
        plan.lives, plan.ttl_s = "lives" in needs, 1.0 if "ttl" in needs else 0.0
        plan.expired = next((each for each in EXPIRED if each in needs), "drop")
        kinds = set(needs) - {
            *("small segments", "groups", "transactions", "queue", "busy", "tight", "order", "schedules", "carry"),
            *("narrow", "idles", "pushed", "filter", "sieves", "decisions", "long", "away", "sweeps", "slow disk"),
            *(*PRIORITY, *LENGTH),
            *("lives", "ttl", "bytes", "letters of length", *EXPIRED),
        }
        if kinds & {"sync fails", "read fails", "disk full"}:
            plan.bad_disk = random.randint(1, 3)
        plan.rates = {"kill": 0.2, "isolate": 0.2, **dict.fromkeys(sorted(kinds), 0.6)}
        plan.recoveries = "lose logs" in kinds
        if plan.recoveries:
            plan.rates, plan.topics = {"kill": 0.1, "lose logs": 0.5}, {"t": (1, plan.topics["t"][1])}
        if "carry" in needs:  # the journal begins later again and again, while batches wait
            plan.rates["purge"] = 3.0
        return plan

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"plan {seed}")
        plan = cls()
        plan.brokers = random.choice((3, 3, 3, 4))
        plan.chaos_s = random.uniform(6, 16)
        plan.latency_s = (0.0002, random.choice((0.005, 0.05, 0.5)))
        plan.disk_latency_s = (0.0001, random.choice((0.005, 0.05, 0.5)))
        plan.pause_s = random.choice((0.1, 0.3, 0.8))
        power = random.random() < 0.6
        plan.topics["t"] = random.choice((1, 1, 2)), {"durability": "fsync"}
        if not power:
            plan.topics["o"] = 1, {"durability": "os"}
        plan.bad_disk = random.choice((0, *range(1, plan.brokers + 1)))
        kinds = [
            "kill",
            "kill in a disk operation",
            "stop",
            "pause",
            "cut",
            "isolate",
            "session",
            "clock",
            "coordination",
        ]
        if power:
            kinds += ["power", "all power"]
        if plan.bad_disk:
            kinds += ["sync fails", "disk full", "read fails"]
        if plan.brokers > plan.replicas:
            kinds.append("move")
        kinds += ["lead", "topic", "purge"]
        plan.transactors = random.choice((0, 1))
        more = Random(f"more faults {seed}")
        plan.at_decisions = Random(f"decisions {seed}").choice((0.0, 0.1))
        plan.groups = random.random() < 0.5
        for _, settings in plan.topics.values():
            settings["segment_bytes_max"] = random.choice(("3000", "20000", "1000000"))
        chosen = [kind for kind in kinds if random.random() < 0.6]
        plan.rates = {kind: random.choice((0.1, 0.3)) for kind in chosen}
        if more.random() < 0.3:
            plan.rates["lost answers"] = 0.1
        if power and more.random() < 0.3:
            plan.rates["power in a disk operation"] = 0.1
        workers = Random(f"workers {seed}")
        plan.workers = workers.choice((0, 0, 1, 3))
        plan.tight = workers.random() < 0.3
        plan.sweep_s = Random(f"sweeps {seed}").choice((15.0, 15.0, 1.0, 0.2))
        plan.away_s = Random(f"away {seed}").choice((0.0, 0.0, 5.0, 15.0))
        plan.order = workers.choice(("none", "none", "key", "key", "all"))
        plan._lend(seed)
        plan._lose(seed, power=power)
        plan._choose_expiry(Random(f"expiry {seed}"))
        schedules = Random(f"schedules {seed}")
        plan.schedules, plan.later_s = schedules.random() < 0.5, schedules.choice((2.0, 8.0, 20.0))
        plan.idles = Random(f"idles {seed}").random() < 0.3 and not plan.recoveries
        if not (plan.priority or plan.sieves or plan.recoveries or plan.idles):
            plan.pushed = Random(f"pushed {seed}").choice((0.0, 0.5, 1.0))
        plan._put_back(seed)
        plan.narrow = Random(f"narrow {seed}").random() < 0.3
        return plan

    def _put_back(self, seed: int) -> None:
        """A directory, or the coordination service, is put back to an older copy. Not where logs get lost besides."""
        random = Random(f"backups {seed}")
        others = {"lose logs", "replace disk", "move", "lost answers"}
        if random.random() < 0.4 and not self.bad_disk and not others & set(self.rates):
            self.rates[random.choice(("old directory", "old coordination"))] = 0.15

    def _choose_expiry(self, random: Random) -> None:
        self.lives, self.ttl_s = random.random() < 0.4, random.choice((0.0, 0.0, 0.0, 1.5, 5.0))
        self.expired = random.choice(EXPIRED)
        self.heavy, self.dropped = random.random() < 0.4, random.choice(EXPIRED)

    def _lend(self, seed: int) -> None:
        """By which settings queue groups lend."""
        self.calm_s *= 2 if self.order == "all" else 1  # one lease after the other, each over slow disks and wires
        random = Random(f"lending {seed}")
        if random.random() < 0.6:
            self.filter = random.random() < 0.4
            self.sieves = self.order == "none" and random.random() < 0.5
            self.priority = random.choice(("", *PRIORITY) if self.order == "none" else ("", "ignore"))
            self.length = random.choice(("", "", *LENGTH))

    def _lose(self, seed: int, *, power: bool) -> None:
        """Logs are lost for good. `power`: all topics survive that of a machine, so the disk of one may be empty."""
        random = Random(f"losses {seed}")
        if random.random() < 0.2:  # queries publish to all partitions or none, which a recovery of one may undo
            self.recoveries, self.transactors = True, 0
            self.rates["lose logs"] = random.choice((0.1, 0.2))
        if not self.bad_disk and power and random.random() < 0.4:
            self.rates["replace disk"] = 0.1
