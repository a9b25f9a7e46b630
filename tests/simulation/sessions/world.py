"""One seed: brokers, members and what goes wrong between them, and what is to hold meanwhile.

Safety: no member ever has more records without an outcome than it may hold. Progress: while a member has room, its
application waits and something is ready for it, it is lent something within a bound of time, counted from the last
fault; and it is not kept hungry by being lent crumbs. In the end everything is settled, and members close at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest

from mq_broker.broker.queues.policy.declared import Queue
from mq_client.cluster import deadline
from mq_client.queueing import work_streams
from mq_client.queueing.holdings import Credit
from mq_protocol.queues.settings import DeadLetter, Order, QueueSettings
from tests.simulation.real.loop import VirtualLoop
from tests.simulation.sessions.leaders import GROUP, Broker, Log, now_us
from tests.simulation.sessions.member import Member
from tests.simulation.sessions.wire import Wire

BOUND_S: Final = 4.0
"""A member whose application waits, and for which something is ready, is lent something within this time."""

SAMPLE_S: Final = 0.1
DRAIN_S: Final = 90.0
CLOSE_S: Final = 15.0
READY_ENOUGH: Final = 40
"""Of more records it is not counted how many are ready for a member."""

STARVED: Final = 0.8
"""If it is so for this part of the time that an application waits though much is ready, it is not lent crumbs."""


class Violation(AssertionError):
    """What a seed has shown."""


@dataclass(slots=True)
class Plan:
    """What a seed is going to be."""

    order: Order
    partitions: int
    brokers: int
    members: int
    credit: Credit
    keys: int
    size: int
    backlog: int
    trickle_s: float
    together: int
    skewed: bool
    hands: int
    batch: int
    accept: bool
    work_s: tuple[float, float]
    stuck: float
    lease_ms: int
    limit: int
    resume_ms: int
    delay_s: tuple[float, float]
    commit_s: tuple[float, float]
    faults: dict[str, float] = field(default_factory=dict)
    fails: float = 0.0
    chaos_s: float = 8.0
    narrows_s: float = math.inf  # from then on all is published to one partition

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"plan {seed}")
        choice = random.choice
        records = choice((1, 2, 5, 12, 12, 100, 600))
        size = choice((10, 10, 200, 5_000))
        faults = {kind: choice((0.1, 0.5)) for kind in FAULTS if random.random() < 0.35}
        batch = choice((1, 1, 1, 5, 50))
        return cls(
            order=choice((Order.NONE, Order.NONE, Order.KEY, Order.KEY, Order.ALL)),
            partitions=choice((1, 2, 3, 3, 6)),
            brokers=choice((1, 2, 3)),
            members=choice((1, 1, 2, 4)),
            credit=Credit(records, choice((1_000, 64 << 10, max(1 << 20, records * 3_400), 16 << 20))),
            keys=choice((2, 10, 50)),
            size=size,
            backlog=choice((0, 20, 200)),
            trickle_s=choice((0.02, 0.1, 0.5)),
            together=choice((1, 3, 10)),
            skewed=random.random() < 0.3,
            hands=choice((1, 2, 5)),
            batch=batch,
            accept=random.random() < 0.15,
            work_s=(0.0, choice((0.0, 0.01, 0.05))),
            stuck=choice((0.0, 0.0, 0.01)),
            lease_ms=choice((1_000, 3_000, 30_000)),
            limit=choice((0, 3, 10)),
            resume_ms=choice((300, 3_000)),
            delay_s=(0.0002, choice((0.002, 0.05))),
            commit_s=(0.001, choice((0.005, 0.05))),
            faults=faults,
            fails=choice((0.0, 0.05, 0.3)),
        )


FAULTS: Final = ("break", "move", "kill", "configure", "stall", "reopen")


class World:
    """Owns everything of one seed. `done`: how often what happened."""

    def __init__(self, seed: int, plan: Plan, loop: VirtualLoop) -> None:
        self.seed, self.plan, self.loop = seed, plan, loop
        self.random = Random(f"world {seed}")
        self.done: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=400)
        self.calm = False
        self.last_fault = 0.0
        self.violation: str | None = None
        self.logs = [Log(number, self.random) for number in range(plan.partitions)]
        settings = QueueSettings(
            order=plan.order,
            lease_ms=plan.lease_ms,
            resume_ms=plan.resume_ms,
            delivery_limit=plan.limit,
            retry_ms=100,
            retry_ms_max=400,
            dead_letter=DeadLetter.DROP,
        )
        self.queue = Queue(GROUP, 1, 0, settings)
        self.stalled_until = 0.0
        self.brokers = [Broker(n, self.logs, lambda: self.queue, self.keys_s) for n in range(1, plan.brokers + 1)]
        for log in self.logs:
            log.commit_s = self.commit_s
            log.settle_in(1 + log.number % plan.brokers)
        self.shared = self.wire()
        self.members: list[Member] = []
        self.names = 0
        self.watched: dict[Member, _Watched] = {}

    # ------------------------------------------------------------------ chance

    def chance_s(self, bounds: tuple[float, float]) -> float:
        return self.loop.often_short(*bounds) if bounds[0] else self.random.uniform(*bounds)

    def commit_s(self) -> float:
        return max(self.stalled_until - self.loop.time(), 0.0) + self.chance_s(self.plan.commit_s)

    def keys_s(self) -> float:
        return self.chance_s((0.0002, 0.01))

    def work_s(self) -> float:
        if not self.calm and self.random.random() < self.plan.stuck:
            return self.random.uniform(0, 2.5 * min(self.plan.lease_ms / 1000, 3.0))
        return self.chance_s(self.plan.work_s)

    def fails(self) -> bool:
        return self.random.random() < (self.plan.fails if not self.calm else 0.0)

    def wire(self) -> Wire:
        wire = Wire(self.random, lambda: self.chance_s(self.plan.delay_s))
        wire.busy_s = lambda: self.random.choice((0.0, 0.0005, 0.005))
        for broker in self.brokers:
            wire.brokers[broker.address] = broker.serve
        return wire

    # ------------------------------------------------------------------ what goes on

    def join(self) -> None:
        self.names += 1
        plan = self.plan
        wire = self.shared if self.random.random() < 0.5 else self.wire()
        member = Member(
            f"m{self.names}",
            self.logs,
            wire,
            plan.credit,
            self.random,
            hands=plan.hands,
            batch=plan.batch,
            lease_ms=0,
            accept=plan.accept,
            work_s=self.work_s,
            fault=self.fails,
            on_change=self.check_safety,
        )
        self.members.append(member)
        self.watched[member] = _Watched(self, member)

    def publish(self, count: int, log: Log | None = None) -> None:
        logs = self.logs[:1] if self.plan.skewed and self.random.random() < 0.9 else self.logs
        log = log or self.random.choice(logs if self.loop.time() < self.plan.narrows_s else self.logs[:1])
        names = [b"%d" % self.random.randrange(self.plan.keys) for _ in range(count)]
        log.publish([None if self.random.random() < 0.05 else name for name in names], self.plan.size)
        self.done["records"] += count

    def tell(self, what: str) -> None:
        self.done[what.split()[0]] += 1
        self.story.append(f"{self.loop.time():9.3f}  {what}")

    async def trickle(self) -> None:
        while not self.calm:
            await asyncio.sleep(self.random.expovariate(1 / self.plan.trickle_s))
            if self.calm:
                return
            self.publish(self.random.randint(1, self.plan.together))

    async def go_wrong(self, kind: str, rate: float) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(rate))
            if self.calm:
                return
            self.last_fault = self.loop.time()
            await getattr(self, f"_{kind}")()
            self.last_fault = self.loop.time()

    async def _break(self) -> None:
        wires = sorted({m.wire for m in self.members}, key=lambda w: min(m.name for m in self.members if m.wire is w))
        if wires:
            self.tell("break")
            self.random.choice(wires).break_one()

    async def _move(self) -> None:
        log = self.random.choice(self.logs)
        if log.home:
            self.tell(f"move of {log.name}")
            log.leave()
            await asyncio.sleep(self.random.random())
            self.lead(log, self.random.randint(1, self.plan.brokers))

    def lead(self, log: Log, broker: int) -> None:
        log.settle_in(broker)
        self.brokers[broker - 1].take_up()

    async def _kill(self) -> None:
        alone = [m for m in self.members if m.wire is not self.shared]
        if alone:
            member = self.random.choice(alone)
            self.tell(f"kill of {member.name}")
            self.members.remove(member)
            member.kill()
            for stream in list(member.wire.streams):
                stream.break_off()
            self.join()

    async def _configure(self) -> None:
        if self.members:
            member = self.random.choice(self.members)
            most = self.plan.credit.records
            records = self.random.choice((0, 1, most // 2, most, most))
            self.tell(f"configure {member.name} to {records}")
            member.configure(records)

    async def _stall(self) -> None:
        self.tell("stall")
        self.stalled_until = self.loop.time() + self.random.uniform(0, 2)
        await asyncio.sleep(self.stalled_until - self.loop.time())

    async def _reopen(self) -> None:
        if len(self.members) > 1:
            member = self.random.choice(self.members)
            self.tell(f"close of {member.name}")
            self.members.remove(member)
            member.close()
            self.join()

    # ------------------------------------------------------------------ what is to hold

    def fail(self, why: str) -> None:
        if self.violation is None:
            self.violation = f"seed {self.seed} at {self.loop.time():.3f}: {why}"

    def check_safety(self, member: Member) -> None:
        if member.held > self.plan.credit.records:
            self.fail(f"{member.name} has {member.held} records, and may hold {self.plan.credit.records}")

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            for member in self.members:
                self.watched[member].look()

    def quiet_since(self) -> float:
        return max(self.last_fault, self.stalled_until)

    async def until(self, condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        ends = self.loop.time() + seconds
        while not condition() and self.violation is None:
            if self.loop.time() >= ends:
                self.fail(what())
                return
            await asyncio.sleep(SAMPLE_S)

    def left(self) -> str:
        found = []
        for log in self.logs:
            left = log.work.settled.missing_count(log.work.base, log.next_offset)
            lent = {lease: held.member for lease, held in log.work.leases.items()}
            if left:
                found.append(f"{log.name} at broker {log.home} has {left} unsettled records, lent {lent}")
        return "; ".join(found)

    def accounts(self) -> str:
        lines = []
        for member in self.members:
            holdings, sessions = member.keeper.holdings, member.keeper._sessions
            assert sessions is not None
            lines.append(
                f"{member.name}: held {holdings.held}, settling {holdings.settling}, {holdings.held_bytes:.0f} bytes, "
                f"hungry {holdings.hungry}, waiting {member.waiting}, error {member.keeper.error}"
            )
            for number, each in sorted(sessions._sessions.items()):
                lines.append(f"    {number} at {each.call.address}: waits {len(each.waiting)} {each.account}")
        return "\n".join(lines)

    async def run(self) -> None:
        plan = self.plan
        for _ in range(0, plan.backlog, 20):
            self.publish(20)
        for _ in range(plan.members):
            self.join()
        tasks = [self.loop.create_task(self.trickle()), self.loop.create_task(self.watch())]
        tasks += [self.loop.create_task(self.go_wrong(kind, rate)) for kind, rate in plan.faults.items()]
        await self.until(lambda: self.loop.time() > plan.chaos_s, plan.chaos_s + 1, lambda: "")
        self.calm = True
        self.last_fault = self.loop.time()
        for member in self.members:
            member.configure(plan.credit.records)
        await self.until(lambda: not self.left(), DRAIN_S, lambda: f"not worked off: {self.left()}")
        self.done["settled"] = sum(log.work.base for log in self.logs)
        if self.violation is None:
            for member in self.members:
                member.close()
            over = lambda: all(member.keeper.over for member in self.members)  # noqa: E731
            await self.until(over, CLOSE_S, lambda: "members do not come to an end")
        if self.violation is not None:
            self.violation += "\n" + self.accounts()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
            task.cancel()
        for member in self.watched:
            member.kill()


class _Watched:
    """What is known of how one member gets on."""

    def __init__(self, world: World, member: Member) -> None:
        self._world = world
        self._member = member
        self._hungry_since: float | None = None
        self._received = 0
        self._samples: deque[tuple[float, bool, int, int]] = deque()

    def look(self) -> None:
        world, member = self._world, self._member
        now = world.loop.time()
        sessions = member.keeper._sessions
        assert sessions is not None
        received = member.received
        credit = member.keeper.terms.credit
        room = credit.records - member.keeper.holdings.held
        ready = self._ready(room) if member.idle and room > 0 else 0
        if not ready or received != self._received or self._hungry_since is None:
            self._hungry_since = now if ready else None
        self._received = received
        since = max(self._hungry_since if self._hungry_since is not None else now, world.quiet_since())
        if now - since > BOUND_S:
            world.fail(f"{member.name} waits for {now - since:.1f} s, and {ready} records are ready for it")
        enough = min(READY_ENOUGH, (credit.records + 1) // 2)
        starved = ready >= enough and room * 2 >= credit.records
        self._samples.append((now, starved, received, member.leases))
        while self._samples and self._samples[0][0] < max(now - BOUND_S, world.quiet_since()):
            self._samples.popleft()
        if not self._samples or now - self._samples[0][0] < BOUND_S - 2 * SAMPLE_S:
            return
        _, _, records, leases = self._samples[0]
        records, leases = received - records, member.leases - leases
        if sum(sample[1] for sample in self._samples) >= STARVED * len(self._samples) and records * 4 < leases * enough:
            world.fail(f"{member.name} is fed by crumbs: {records} records by {leases} leases in {BOUND_S} s")

    def _ready(self, room: int) -> int:
        world, plan = self._world, self._world.plan
        found = 0
        for log in world.logs:
            if not log.serving:
                continue
            led_group = world.brokers[log.home - 1].working.led_group(log, GROUP)
            if plan.order is Order.ALL and led_group.active not in ("", None, self._member.name):
                continue
            most = min(room, READY_ENOUGH) - found
            found += log.ready_for(self._member.name, plan.order, now_us(), plan.limit, most)
            if found >= min(room, READY_ENOUGH):
                break
        return found


@contextlib.contextmanager
def _same_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "random", SimpleNamespace(Random=lambda: Random("back-off")))
        yield


def _end(loop: VirtualLoop) -> None:
    """Nothing of it runs any more."""
    for _ in range(10):
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())


@dataclass(slots=True)
class Report:
    seed: int
    plan: Plan
    violation: str | None
    done: Counter[str]
    story: list[str]
    trace: str


def simulate(seed: int, plan: Plan | None = None) -> Report:
    """One seed, from start to end."""
    plan = plan or Plan.of(seed)
    loop = VirtualLoop(Random(f"loop {seed}"))
    asyncio.set_event_loop(loop)
    before = set(work_streams._of_loops)
    world: Any = None

    async def run() -> None:
        nonlocal world
        world = World(seed, plan, loop)
        await world.run()

    try:
        with _same_pauses():
            loop.run_until_complete(run())
            trace = f"{loop.calls} calls, {loop.time():.6f} s, {sorted(world.done.items())}"
            _end(loop)
    finally:
        for wire in set(work_streams._of_loops) - before:
            del work_streams._of_loops[wire]
        asyncio.set_event_loop(None)
        loop.close()
    return Report(seed, plan, world.violation, world.done, list(world.story), trace)
