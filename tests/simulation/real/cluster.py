"""A simulated cluster of real brokers: machines, network, coordination service, clients and nemesis. One seed, start to
end.

boot      the brokers start, topics are made
chaos     clients work, the nemesis breaks things
calm      everything is repaired; within `Plan.calm_s` seconds every partition must be whole again, and every batch
          acknowledged
judgement the history, and what every replica holds
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import tempfile
import traceback
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.server import serve
from mq_broker.coordination.service import CoordinationService
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TopicExists, TritonMQError
from tests.history.checker import judge
from tests.simulation.real.clients import SCHEMA_BYTES, Client, Producer, Reader
from tests.simulation.real.disk import Disk
from tests.simulation.real.ending import in_silence, throw_away
from tests.simulation.real.idling import Visitor
from tests.simulation.real.loop import PROCESS, Killed, NumberedTask, Process, Stuck, VirtualLoop
from tests.simulation.real.nemesis import Nemesis
from tests.simulation.real.oracle import Oracle, Violation
from tests.simulation.real.plan import Plan
from tests.simulation.real.pushed_workers import Pushed
from tests.simulation.real.queue_truth import OUTPUTS
from tests.simulation.real.recoveries import Recoverer, declare_late, why_late_is_wrong, without_lost
from tests.simulation.real.scheduling import ScheduledTruth, Scheduler
from tests.simulation.real.substitutes import in_place_of, substitutes
from tests.simulation.real.transactors import Member, Transactor
from tests.simulation.real.wires import Network
from tests.simulation.real.workers import Alterer, Ledger, Worker, declare
from tests.simulation.real.zookeeper import Session, ZooKeeper

BOOT_S = 60.0
RECORDS_KEPT = 30
"""The nemesis purges no further than so many records before the end that it knows."""

NOTICED_S = 1.5
"""A broker that stood still for longer has to notice it."""

STORY_LINES = 120
MEMORY_HIGH = 1 << 30


@dataclass(slots=True)
class Report:
    """What came of one seed."""

    seed: int
    plan: Plan
    trace: int
    virtual_s: float
    calls: int
    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    story: str = ""


class Machine:
    """Owns one broker's disk and its lives."""

    def __init__(self, cluster: Cluster, broker: int, root: Path) -> None:
        self.cluster = cluster
        self.broker = broker
        self.name = f"b{broker}"
        self.disk = Disk(root / self.name / "data", root / self.name / "graves", cluster.loop, cluster.faults)
        self.disk.latency_s = cluster.plan.disk_latency_s
        self.disk.on_kill = self.kill
        self.process: Process | None = None
        self.ready = False
        self.lives = 0
        self._paused_at = 0.0
        self._stop: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        assert not self.up
        self.lives += 1
        self.ready = False
        process = self.process = Process(f"{self.name}#{self.lives}", self.broker, self.disk)
        process.oracle = self.cluster.oracle
        process.clock_ahead_s = self.cluster.loop.random.uniform(-2, 2)
        process.believable_s = max(0.0, process.clock_ahead_s)
        process.least_ahead_s = min(0.0, process.clock_ahead_s)
        config = BrokerConfig(
            self.broker,
            f"{self.name}:9000",
            self.disk.path,
            memory_high=MEMORY_HIGH,
            coordination=lambda: CoordinationService(Session(self.cluster.zookeeper)),
            stop_timeout_ms=5_000,
            balance_leaders_ms=500,
            insecure=True,
        )
        stop = self._stop = asyncio.Event()
        self.cluster.tell(f"{process} starts")
        serving = serve(config, ready=lambda address: self._is_ready(process), stop=stop)
        self._task = self.cluster.loop.spawn(process, serving, process.name)
        self._task.add_done_callback(lambda task: self._ended(process, task), context=Context())

    def _is_ready(self, process: Process) -> None:
        if process is self.process:
            self.ready = True

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        """The program has ended by itself."""
        if not process.alive:
            return
        error = None if task.cancelled() else task.exception()
        self.cluster.tell(f"{process} has ended: {error!r}")
        process.kill()
        self.disk.close_all_of(process)
        if error is not None:
            self.cluster.faults[f"ended: {type(error).__name__}"] += 1
            if not isinstance(error, TritonMQError):
                self.cluster.tell("".join(traceback.format_exception(error)))
                self.cluster.fail(f"{process} ended by itself: {error!r}")

    def kill(self, *, power: bool = False) -> None:
        """At once, in the middle of whatever it does."""
        process = self.process
        if process is None or not process.alive:
            return
        self.cluster.tell(f"{process} {'loses its power' if power else 'is killed'}")
        self.cluster.bury(process)
        process.power_lost = power
        process.kill()
        self.disk.close_all_of(process)
        if power:
            self.disk.lose_power()

    def stop(self) -> None:
        """Cleanly: it hands over what it leads, and ends."""
        if self.up and self._stop is not None:
            self.cluster.tell(f"{self.process} is asked to stop")
            self._stop.set()

    def pause(self) -> None:
        if self.up and self.process is not None and not self.process.paused:
            self.process.paused = True
            self._paused_at = self.cluster.loop.time()

    def resume(self) -> None:
        if self.process is not None and self.process.paused:
            if self.cluster.loop.time() - self._paused_at > NOTICED_S:
                self.process.woke_at = self.cluster.loop.time()
            self.cluster.loop.resume(self.process)


class Cluster:
    """Owns everything of one seed."""

    def __init__(self, seed: int, plan: Plan, root: Path) -> None:
        self.seed = seed
        self.plan = plan
        self.loop = VirtualLoop(Random(seed))
        self.done: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.trace = 0
        self.story: deque[str] = deque(maxlen=STORY_LINES)
        self.history: list[dict[str, Any]] = []
        self.values: dict[bytes, list[int]] = {}  # of batches, by UUID
        self.priorities: dict[bytes, int] = {}  # the same, of those that have one
        self.lives_ms: dict[bytes, int] = {}  # and of those that expire by themselves
        self.ledgers: dict[tuple[str, int], Ledger] = {}
        self.scheduled: dict[str, ScheduledTruth] = {}  # by the name of a partition
        self.unsaid: set[tuple[str, int]] = set()  # refusals that were lost: the process and the id of what it sent
        self.stopping = False
        self.over = False
        self._root = str(root)
        self._values = 0
        self._failure: str = ""
        self._graveyard: list[Any] = []
        self.loop.job_s = lambda: self.loop.often_short(0.0001, 0.02)
        self.network = Network(self.loop, self.tell)
        self.network.latency_s = plan.latency_s
        self.network.faults = self._count
        self.zookeeper = ZooKeeper(self.loop, self.faults, plan.session_s)
        self.machines = {broker: Machine(self, broker, root) for broker in range(1, plan.brokers + 1)}
        self.oracle = Oracle(self)
        self.nemesis: Nemesis | None = None  # before there is one, all goes well

    # ------------------------------------------------------------------ what everybody tells

    def _count(self, what: str) -> None:
        self.faults[what] += 1

    def tell(self, what: str) -> None:
        """For the story and the trace."""
        line = f"{self.loop.time():10.6f} {what.replace(self._root, '')}"
        self.story.append(line)
        self.trace = zlib.crc32(line.encode(), self.trace)

    def write(self, process: str, op: str, **fields: Any) -> None:
        """A line of the history."""
        line = {"at": round(self.loop.time() * 1e9), "process": process, "op": op, **fields}
        self.history.append(line)
        self.trace = zlib.crc32(repr(line).encode(), self.trace)

    def fail(self, what: str) -> None:
        if not self._failure:
            self._failure = what
            self.tell(f"VIOLATION {what}")
            self.loop.stop()

    def new_values(self, count: int) -> list[int]:
        self._values += count
        return list(range(self._values - count, self._values))

    def bury(self, process: Process) -> None:
        """Keep what a killed process leaves behind: nothing of it may be cleaned up."""
        for task in asyncio.all_tasks(self.loop):
            if isinstance(task, NumberedTask) and task.process is process:
                self._graveyard.append(task)

    # ------------------------------------------------------------------ one seed

    def run(self) -> None:
        """Raises `Violation`."""
        self.loop.set_exception_handler(self._broken)
        task = self.loop.create_task(self._run(), context=Context())
        task.add_done_callback(lambda _: self.loop.stop())
        try:
            self.loop.run_forever()
        except Stuck as error:
            raise Violation(str(error)) from error
        if self._failure:
            raise Violation(self._failure)
        try:
            task.result()
        except TritonMQError as error:
            raise Violation(f"a replica does not give what it has: {error!r}") from error

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed):  # in the middle of a disk operation of a callback
            return
        if error is not None and "was never retrieved" not in context["message"]:
            self.tell(f"{context['message']}: {error!r}")
            self.fail(f"{context['message']}: {error!r}")

    def _workers(self, ledger: Ledger, name: str, partition: int) -> list[Client]:
        """Of one partition's queue group. Some are pushed their records."""
        pushed = round(self.plan.pushed * self.plan.workers)
        kinds = [Pushed] * pushed + [Worker] * (self.plan.workers - pushed)
        return [
            kind(self, f"worker {number} of {name}-{partition}", name, partition, ledger)
            for number, kind in enumerate(kinds)
        ]

    async def _run(self) -> None:
        for machine in self.machines.values():
            machine.start()
        operator = Client(self, "operator")
        await self.until(lambda: all(m.ready for m in self.machines.values()), BOOT_S, "every broker serves")
        clients: list[Client] = [Recoverer(self, "operator who recovers")] if self.plan.recoveries else []
        for name, (partitions, settings) in self.plan.topics.items():
            await self._create(operator, name, partitions, settings)
            if self.plan.purges:
                self.write("operator", "retention", topic=name, records=RECORDS_KEPT)
            if self.plan.idles:
                clients.append(Visitor(self, f"visitor of {name}", name, partitions))
            if self.plan.workers:
                # Outputs that are lost are their members' to make again: the group waits for somebody who looks at it.
                await self._create(operator, name + OUTPUTS, 2, {**settings, "durability": "fsync"})
                await self.until(partial(declare, operator, name), BOOT_S, f"the queue group of {name} is declared")
        if self.plan.workers and (self.plan.filter or self.plan.priority):
            clients += [Alterer(self, f"who alters the group of {name}", name) for name in self.plan.topics]
        number = 0
        for name, (partitions, _) in self.plan.topics.items():
            for partition in range(partitions):
                for _ in range(self.plan.producers):
                    number += 1
                    at_once = self.loop.random.choice((1, 3, 8))
                    clients.append(Producer(self, f"producer {number}", name, partition, at_once))
                clients.append(Reader(self, f"reader of {name}-{partition}", name, partition))
                if self.plan.workers:
                    ledger = self.ledgers[name, partition] = Ledger(self, self.oracle.queue(f"{name}-{partition}"))
                    clients += self._workers(ledger, name, partition)
                if self.plan.schedules:
                    truth = self.scheduled[f"{name}-{partition}"] = ScheduledTruth(self, (name, partition))
                    clients.append(Scheduler(self, f"scheduler of {name}-{partition}", truth))
                if self.plan.groups:
                    clients.append(Member(self, f"member of {name}-{partition}", "g", name, partition))
            queries = [f"query {each} to {name}" for each in range(self.plan.transactors)]
            clients += [Transactor(self, query, name, partitions) for query in queries]
        tasks = [self.loop.create_task(client.run(), name=client.name) for client in clients]  # type: ignore[attr-defined]
        for task in tasks:
            task.add_done_callback(self._client_ended)
        nemesis = self.nemesis = Nemesis(self)
        await nemesis.run(self.plan.chaos_s)
        self.tell("calm")
        nemesis.repair()
        self.stopping = True
        await self.until(self.oracle.whole, self.plan.calm_s, self.oracle.why_not_whole)
        await self._finish(tasks, clients)

    async def _finish(self, tasks: list[asyncio.Task[None]], clients: list[Client]) -> None:
        producing = [
            task
            for task, client in zip(tasks, clients, strict=True)
            if isinstance(client, Producer | Transactor | Scheduler)
        ]
        await self.until(
            lambda: all(task.done() for task in producing),
            self.plan.calm_s,
            "every batch is acknowledged or refused, once all is well",
        )
        await self.until(self.oracle.whole, self.plan.calm_s, self.oracle.why_not_whole)
        oracle = self.oracle
        for why in (
            oracle.why_not_published,
            oracle.why_not_worked_off,
            oracle.why_not_swept,
            oracle.idle.why_not_gone,
        ):
            await self.until(lambda why=why: not why(), self.plan.calm_s, why)  # type: ignore[misc]
        if self.plan.recoveries and self.plan.workers:
            for name in self.plan.topics:
                await self.until(partial(declare_late, clients[0], name), BOOT_S, f"a late group of {name} is declared")
            await self.until(lambda: not why_late_is_wrong(self), BOOT_S, lambda: why_late_is_wrong(self))
        # Until now: a leader may have given way to the first replica meanwhile
        await self.until(self.oracle.whole, self.plan.calm_s, self.oracle.why_not_whole)
        gaps = self.oracle.conclude()
        finals = [line for line in self.history if line["op"] == "final"]
        ends = {(line["topic"], line["partition"]): max(line["offsets"], default=-1) + 1 for line in finals}
        readers = [client for client in clients if isinstance(client, Reader | Member)]
        await self.until(
            lambda: all(reader.at >= ends[reader.topic, reader.partition] for reader in readers),
            self.plan.calm_s,
            lambda: f"every reader is at the end, {ends}: {[(reader.name, reader.at) for reader in readers]}",
        )
        self.over = True
        for reader in readers:
            if isinstance(reader, Member):
                self.write(reader.name, "drained", group=reader.group, topic=reader.topic)
        verdict = judge(without_lost(self.history, gaps, self.unsaid) if gaps else self.history)
        if not verdict.clean:
            raise Violation(verdict.story())
        for machine in self.machines.values():
            machine.stop()
        await self.until(
            lambda: not any(m.up for m in self.machines.values()), BOOT_S, "every broker stops when asked to"
        )

    def _client_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.fail(f"{task.get_name()} failed: {task.exception()!r}")

    async def _create(self, operator: Client, name: str, partitions: int, settings: dict[str, str]) -> None:
        request = pb.CreateTopicRequest(
            name=name, partitions=partitions, replicas=self.plan.replicas, schema=SCHEMA_BYTES, settings=settings
        )

        async def create() -> bool:
            try:
                await operator.ask(operator.any_broker(), "CreateTopic", request)
            except TopicExists:
                return True
            return True

        await self.until(create, BOOT_S, f"topic {name} is made")

    async def until(
        self, condition: Callable[[], Any | Awaitable[Any]], seconds: float, what: str | Callable[[], str]
    ) -> None:
        """Wait until it holds. A `TritonMQError` counts as not yet. Raises `Violation`."""
        deadline = self.loop.time() + seconds
        last = ""
        while True:
            try:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return
            except TritonMQError as error:
                last = f" ({error!r})"
            if self.loop.time() > deadline:
                text = what if isinstance(what, str) else what()
                raise Violation(f"not within {seconds:g} s: {text}{last}")
            await asyncio.sleep(0.1)


class _StoryLog(logging.Handler):
    """The product's own log becomes part of the story."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                text += f": {record.exc_info[1]!r}"
            self._cluster.story.append(f"{self._cluster.loop.time():10.6f} {PROCESS.get()} {record.levelname}: {text}")


def simulate(seed: int, plan: Plan | None = None, *, verbose: bool = False) -> Report:
    """One seed, from start to end."""
    plan = plan or Plan.of(seed)
    root = Path(tempfile.mkdtemp(prefix="tritonmq-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    collecting = gc.isenabled()
    gc.disable()
    gc.collect()  # what the last cluster left when it was out of sight would be frozen, too
    gc.freeze()  # what is here already outlives the cluster: what is left of that is looked for in what came after it
    cluster = Cluster(seed, plan, root)
    if verbose:
        cluster.story = deque()
    logger = logging.getLogger("mq_broker")
    handler = _StoryLog(cluster)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    report = Report(seed, plan, 0, 0.0, 0, cluster.done, cluster.faults)
    try:
        table = substitutes(cluster.loop, cluster.network)
        with in_place_of(table, tight=plan.tight, narrow=plan.narrow, sweep_s=plan.sweep_s):
            try:
                cluster.run()
            except Violation as violation:
                report.violation = str(violation)
            report.trace, report.virtual_s, report.calls = cluster.trace, cluster.loop.time(), cluster.loop.calls
            if report.violation or verbose:
                report.story = "\n".join(cluster.story)
            logger.removeHandler(handler)
            with in_silence():
                _throw_away(cluster)
                there = weakref.ref(cluster)
                del cluster, handler
                for _ in range(5):  # what is thrown away may come to life once more on the way
                    gc.collect()
                    if there() is None:
                        break
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        gc.unfreeze()
        if collecting:
            gc.enable()
        shutil.rmtree(root, ignore_errors=True)
    return report


def _throw_away(cluster: Cluster) -> None:
    for machine in cluster.machines.values():
        if machine.process is not None:
            machine.process.kill()
            machine.disk.close_all_of(machine.process)
    throw_away(cluster.loop, cluster._graveyard)
