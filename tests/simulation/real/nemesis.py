"""What breaks things, and repairs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from tests.simulation.real.backups import old_coordination, old_directory
from tests.simulation.real.clients import Client
from tests.simulation.real.recoveries import lose_logs, open_logs, recoverable, replace_disk

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster, Machine

LONG_S = 8.0


class Nemesis:
    """Owns nothing: what it broke is found out again when it is repaired."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.random = cluster.loop.random
        self._operator = Client(cluster, "operator of the nemesis")
        self._topics = 0
        self._holds = False  # nothing else goes wrong for now

    async def run(self, seconds: float) -> None:
        """Break things for so long, each for some time."""
        until = self.loop.time() + seconds
        rates = sorted(self.cluster.plan.rates.items())
        total = sum(rate for _, rate in rates)
        while self.loop.time() < until:
            await asyncio.sleep(
                min(self.random.expovariate(total) if total else seconds, until - self.loop.time()) + 1e-3
            )
            if rates and self.loop.time() < until:
                [kind] = self.random.choices([kind for kind, _ in rates], [rate for _, rate in rates])
                self.cluster.faults[kind] += 1
                lasting = getattr(self, "_" + kind.replace(" ", "_"))()
                if lasting is not None:
                    self._holds = True
                    await lasting
                    self._holds = False

    def repair(self) -> None:
        """All is well from now on."""
        network, zookeeper = self.cluster.network, self.cluster.zookeeper
        for pair in sorted(map(sorted, network.cuts)):
            network.heal(pair[0], pair[1])
        zookeeper.up, zookeeper.lose = True, 0.0
        zookeeper.cut_off.clear()
        for machine in self.cluster.machines.values():
            self._mend(machine)
            if machine.process is not None:
                machine.process.clock_ahead_s = 0.0  # half a minute apart, brokers answer each other nothing
            machine.resume()
            if not machine.up:
                machine.start()
        # Those that are on their way down at this moment are started again.
        self.loop.call_later(1.0, self._start_all)

    def _start_all(self) -> None:
        if not self.cluster.over:
            for machine in self.cluster.machines.values():
                if not machine.up:
                    machine.start()
            self.loop.call_later(1.0, self._start_all)

    # ------------------------------------------------------------------ helpers

    def _one(self) -> Machine:
        return self.random.choice([self.cluster.machines[broker] for broker in sorted(self.cluster.machines)])

    def _after(self, action: object, *args: object) -> None:
        """Undo it later."""
        self.loop.call_later(self.loop.often_short(0.05, LONG_S), action, *args)

    def _start_later(self, machine: Machine) -> None:
        def start() -> None:
            if not machine.up and not self.cluster.over:
                machine.start()

        self._after(start)

    # ------------------------------------------------------------------ processes and machines

    def _kill(self, machine: Machine | None = None) -> None:
        machine = machine or self._one()
        machine.kill()
        self._start_later(machine)

    def _power_in_a_disk_operation(self) -> None:
        self._kill_in_a_disk_operation(power=True)

    def _kill_in_a_disk_operation(self, *, power: bool = False) -> None:
        machine = self._one()
        if machine.up:
            disk = machine.disk
            disk.kill_at = disk.ops + self.random.randint(1, 30)

            def kill() -> None:
                if disk.kill_at:  # neither killed by an operation nor repaired meanwhile
                    disk.kill_at = 0
                    machine.kill(power=power)
                self._start_later(machine)

            disk.on_kill = partial(machine.kill, power=power)
            self.loop.call_later(2.0, kill)

    def _power(self) -> None:
        machine = self._one()
        machine.kill(power=True)
        self._start_later(machine)

    def _all_power(self) -> None:
        for machine in self.cluster.machines.values():
            machine.kill(power=True)
            self._start_later(machine)

    def _stop(self) -> None:
        machine = self._one()
        machine.stop()
        self._start_later(machine)
        self.loop.call_later(LONG_S * 2, lambda: None if machine.up or self.cluster.over else machine.start())

    def _pause(self) -> None:
        machine = self._one()
        self.cluster.tell(f"{machine.process} is paused")
        machine.pause()
        self._after(machine.resume)

    def _clock(self) -> None:
        machine = self._one()
        if machine.process is not None and machine.ready:  # a broker believes the clock that it starts with
            jump_s = self.random.choice((-3600.0, -1.0, 1.0, 60.0, 86400.0))
            machine.process.clock_ahead_s += jump_s
            machine.process.believable_s += jump_s if jump_s == 1.0 else 0.0
            machine.process.least_ahead_s = min(machine.process.least_ahead_s, machine.process.clock_ahead_s)

    def decided(self, decision: Any) -> None:
        """A micro-batch is decided, and nothing of it is published: one of those who are to publish it goes."""
        if (
            self.cluster.stopping
            or self._holds
            or not decision.manifest
            or not self.loop.chance(self.cluster.plan.at_decisions)
        ):
            return
        line = self.random.choice(decision.manifest)
        found = self.cluster.zookeeper.topics.get(line.topic)
        leader = self._leader_of(found[1], line.partition) if found is not None else 0
        if leader:
            self.cluster.faults["at a decision"] += 1
            act = self.random.choice((self._kill, self._isolate))
            self.loop.call_soon(act, self.cluster.machines[leader], context=Context())

    # ------------------------------------------------------------------ what is put back to an older copy

    def _old_directory(self) -> Awaitable[None]:
        return old_directory(self.cluster)

    def _old_coordination(self) -> Awaitable[None]:
        return old_coordination(self.cluster)

    # ------------------------------------------------------------------ logs that are lost for good

    def _lose_logs(self) -> None:
        """Of a partition: those that the in-sync set names, and perhaps others."""
        name, number = self.random.choice(recoverable(self.cluster))
        spec = self.cluster.zookeeper.topics[name][1]
        found = self.cluster.zookeeper.states.get((spec.topic_id, number))
        there = open_logs(self.cluster, f"{name}-{number}")
        named = [broker for broker, _ in found[1].isr] if found is not None else []
        if found is None or not set(named) <= set(there):
            return
        more = [broker for broker in sorted(there) if broker not in named and self.random.random() < 0.3]
        lose_logs(self.cluster, f"{name}-{number}", [*named, *more])
        for broker in (*named, *more):
            self._start_later(self.cluster.machines[broker])

    def _replace_disk(self) -> None:
        machine = self._one()
        if replace_disk(self.cluster, machine):
            self.cluster.faults["disk replaced"] += 1
            self._start_later(machine)

    # ------------------------------------------------------------------ networks

    def _cut(self) -> None:
        one, other = self.random.sample([*sorted(m.name for m in self.cluster.machines.values()), "clients"], 2)
        self.cluster.tell(f"{one} and {other} are cut off from each other")
        self.cluster.network.cut(one, other)
        self._after(self.cluster.network.heal, one, other)

    def _isolate(self, machine: Machine | None = None) -> None:
        machine = machine or self._one()
        self.cluster.tell(f"{machine.name} is cut off from the other brokers")
        with_service = self.random.random() < 0.5
        if with_service:
            self.cluster.zookeeper.cut_off.add(machine.name)
        others = [each.name for each in self.cluster.machines.values() if each is not machine]
        for other in others:
            self.cluster.network.cut(machine.name, other)

        def heal() -> None:
            self.cluster.zookeeper.cut_off.discard(machine.name)
            for other in others:
                self.cluster.network.heal(machine.name, other)

        self._after(heal)

    def _session(self) -> None:
        machine = self._one()
        self.cluster.tell(f"the session of {machine.name} is cut off")
        self.cluster.zookeeper.cut_off.add(machine.name)
        self._after(self.cluster.zookeeper.cut_off.discard, machine.name)

    def _lost_answers(self) -> None:
        self.cluster.tell("the coordination service does what it is asked, and few hear of it")
        self.cluster.zookeeper.lose = 0.7
        self._after(setattr, self.cluster.zookeeper, "lose", 0.0)

    def _coordination(self) -> None:
        zookeeper = self.cluster.zookeeper
        if self.random.random() < 0.4:
            self.cluster.tell("the coordination service is down")
            zookeeper.up = False
        else:
            zookeeper.lose = 0.2

        def up() -> None:
            zookeeper.up, zookeeper.lose = True, 0.0

        self._after(up)

    # ------------------------------------------------------------------ what operators do

    def _ask(self, broker: int, method: str, request: Any) -> None:
        """What comes of it is nobody's business."""

        async def ask() -> None:
            try:
                await self._operator.ask(broker or self._operator.any_broker(), method, request, 10.0)
                self.cluster.done[f"operator: {method}"] += 1
            except TritonMQError as error:
                self.cluster.done[f"operator: {method}: {type(error).__name__}"] += 1

        self.loop.create_task(ask(), name=f"operator: {method}")

    def _place(self) -> tuple[str, int, Any]:
        """Some partition, and its topic as the coordination service has it."""
        topics = self.cluster.zookeeper.topics
        name = self.random.choice(sorted(topics))
        spec = topics[name][1]
        return name, self.random.randrange(len(spec.assignment)), spec

    def _leader_of(self, spec: Any, number: int) -> int:
        found = self.cluster.zookeeper.states.get((spec.topic_id, number))
        return found[1].leader.broker if found is not None and found[1].leader is not None else 0

    def _lead(self) -> None:
        name, number, spec = self._place()
        leader = self._leader_of(spec, number)
        broker = self.random.choice(spec.assignment[number])
        self.cluster.tell(f"broker {broker} is to lead {name}-{number}")
        self._ask(leader, "Lead", pb.LeadRequest(topic=name, partition=number, broker=broker, timeout_ms=5_000))

    def _move(self) -> None:
        name, number, spec = self._place()
        target = self.random.sample(
            sorted(self.cluster.machines), len(spec.assignment[number]) if not spec.moving else 3
        )
        move = pb.PartitionMove(topic=name, partition=number, target=target)
        self.cluster.tell(f"{name}-{number} is to move to {target}")
        cancel = self.random.random() < 0.2
        self._ask(0, "StartMoves", pb.StartMovesRequest(moves=[move], cancel=cancel))

    def _topic(self) -> None:
        """One is made, or the last that was made so is deleted."""
        self._topics += 1
        name = f"passing{self._topics // 2}"
        if self._topics % 2 == 0:
            self._ask(0, "CreateTopic", pb.CreateTopicRequest(name=name, partitions=2, replicas=3))
        else:
            self._ask(0, "DeleteTopic", pb.DeleteTopicRequest(name=name))

    def _purge(self) -> None:
        name, number, spec = self._place()
        ends = [
            line["offsets"][-1] + 1
            for line in self.cluster.history
            if line["op"] == "poll" and (line["topic"], line["partition"]) == (name, number)
        ]
        if not ends or name not in self.cluster.plan.topics:
            return
        offset = max(0, max(ends) - 40)
        position = pb.CursorPosition(topic=name, partition=number, offset=offset)
        self._ask(self._leader_of(spec, number), "Purge", pb.PurgeRequest(positions=[position]))

    # ------------------------------------------------------------------ disks

    def _bad(self) -> Machine:
        return self.cluster.machines[self.cluster.plan.bad_disk]

    def _mend(self, machine: Machine) -> None:
        machine.disk.sync_fails = machine.disk.read_fails = 0.0
        machine.disk.full = False
        machine.disk.kill_at = 0

    def _sync_fails(self) -> None:
        self.cluster.tell(f"syncs of {self._bad().name} fail")
        self._bad().disk.sync_fails = 0.3
        self._after(self._mend, self._bad())

    def _read_fails(self) -> None:
        self._bad().disk.read_fails = 0.1
        self._after(self._mend, self._bad())

    def _disk_full(self) -> None:
        self.cluster.tell(f"the disk of {self._bad().name} is full")
        self._bad().disk.full = True
        self._after(self._mend, self._bad())
