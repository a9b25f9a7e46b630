"""What goes wrong in a simulated cluster: each kind of fault, when it may happen, and how everything is put right in
the end.

Faults stay within what the design promises to survive: a log is lost only while the state node, whatever it may yet
become, names another one that exists. All else may happen at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.core.messages import TransferLeadership
from tests.simulation.journal import Journal
from tests.simulation.loop import Process
from tests.simulation.network import LinkCondition

if TYPE_CHECKING:
    from mq_broker.core.messages import NodeState
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

FAULTS = (
    "kill",
    "kill_all",
    "power_loss",
    "power_loss_of_all",
    "restart_at_once",
    "emptied_disk",
    "pause",
    "long_pause",
    "clean_stop",
    "cut_one_way",
    "cut_pair",
    "isolate",
    "isolate_from_coordination",
    "isolate_from_all",
    "blip",
    "slow_link",
    "rough_links",
    "coordination_outage",
    "coordination_loses_answers",
    "coordination_slow",
    "coordination_forgets",
    "session_expires",
    "disk_full",
    "disk_slow",
    "sync_fails",
    "damage",
    "late_ticks",
    "transfer_leadership",
)


class Nemesis:
    """Owns the faults under way."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.healing = False
        self.holds = False
        """Something has happened beside which nothing else may go wrong for a while."""

    def start(self) -> None:
        self._rough_no_more()
        self.cluster.coordination.lose_answers = self.cluster.plan.answers_lost
        self.cluster.coordination.slow_ms = self.cluster.plan.service_ms
        if self.cluster.plan.faults:
            self.loop.spawn(self._go_on())
        if self.cluster.plan.total_losses:
            self.loop.spawn(self._lose_all_named())
        if self.cluster.plan.rollbacks:
            self.loop.spawn(self._roll_back())
        if self.cluster.plan.restores:
            self.loop.spawn(self._restore())
        if self.cluster.plan.joiners_hit:
            self.loop.spawn(self._hit_joiners())

    def _go_on(self) -> Process:
        plan, random = self.cluster.plan, self.loop.random
        while True:
            yield random.expovariate(1 / plan.fault_every_ms)
            if self.healing:
                return
            if self.holds:
                continue
            kind = random.choice(plan.faults)
            getattr(self, "_" + kind)(self._victim())

    def _victim(self) -> Broker:
        brokers = list(self.cluster.brokers.values())
        if self.cluster.plan.leaders_spared:
            others = [broker for broker in brokers if not any(host.replica.leading for host in broker.hosts.values())]
            return self.loop.random.choice(others or brokers)
        if self.loop.chance(self.cluster.plan.leaders_hit):
            leading = [broker for broker in brokers if any(host.replica.leading for host in broker.hosts.values())]
            return self.loop.random.choice(leading or brokers)
        return self.loop.random.choice(brokers)

    def note(self, kind: str, text: str) -> None:
        self.cluster.faults[kind] += 1
        self.cluster.oracle.story.note(self.loop.now_us, f"FAULT {kind}: {text}")

    def _later(self, low: float, high: float, call: object, *args: object) -> None:
        """The end of a fault. When everything is put right before that, it has ended already."""

        def end() -> None:
            if not self.healing:
                call(*args)  # type: ignore[operator]

        self.loop.after(self.loop.often_short(low, high), end)

    def heal(self) -> None:
        """Everything that is wrong with the world ends here."""
        self.healing = True
        cluster = self.cluster
        cluster.oracle.story.note(self.loop.now_us, "faults stop here")
        cluster.network.condition = LinkCondition()
        cluster.network.mend_all()
        coordination = cluster.coordination
        coordination.set_up(True)
        coordination.slow_ms = coordination.lose_answers = coordination.forget = 0.0
        for broker in cluster.brokers.values():
            coordination.set_reach(broker.number, True)
            broker.late_ticks = 0.0
            broker.disk.full = broker.disk.fail_next_sync = False
            broker.disk.sync_ms = (0.5, 8.0)
            if broker.paused:
                broker.resume()
            self._revive(broker)

    def _revive(self, broker: Broker) -> None:
        """Start it if it is down; a clean stop under way is waited for."""
        if broker.stopping:
            self.loop.after(500, self._revive, broker)
        elif not broker.up and not broker.starting:
            broker.start()

    # ------------------------------------------------------------------ what may be lost

    def _may_lose(self, broker: Broker) -> bool:
        """Would every state that a node may be in still name a log that exists?"""
        cluster = self.cluster
        for partition, node in enumerate(cluster.coordination.nodes):
            for state in (node.state, *node.pending):
                if any(log_id for _, log_id in state.isr) and not any(
                    self._will_keep(cluster.brokers[number], partition, log_id)
                    for number, log_id in state.isr
                    if number != broker.number
                ):
                    return False
        return True

    def _will_keep(self, broker: Broker, partition: int, log_id: str) -> bool:
        """A broker that stops may leave the in-sync set to logs that it takes for whole (seed 5971)."""
        return broker.journals[partition].log_id == log_id and not broker.stopping

    def loses_write(self, host: Host, state: NodeState) -> bool:
        """A leader that is to name itself alone as in sync may have lost its log in this very millisecond, and is yet
        to hear of it. That would leave no named log, beyond what is survived, so such a write does not arrive
        (seed 4806)."""
        untold = host.replica.identity.log_id != host.journal.log_id
        alone = state.isr == ((host.broker.number, host.replica.identity.log_id),)
        if untold and alone and not self.cluster.plan.total_losses:
            self.note("write unanswered", f"broker {host.broker.number} names itself alone, and its log is lost")
            return True
        return False

    def _loses_by(self, *, power: bool) -> bool:
        """Does the death of a process, or of its machine, cost a log its identity?"""
        return self.cluster.plan.durability == "memory" or (power and self.cluster.plan.durability == "os")

    # ------------------------------------------------------------------ processes

    def _crash(self, kind: str, broker: Broker, *, power: bool = False, emptied: bool = False) -> None:
        if not broker.up or ((emptied or self._loses_by(power=power)) and not self._may_lose(broker)):
            return
        self.note(kind, f"broker {broker.number}")
        broker.crash(power=power, emptied=emptied)
        self._start_again(broker, 50, 15_000)

    def _hit_joiners(self) -> Process:
        """Kill whom a write names that may yet happen, long after it was sent, and that was not named before."""
        while True:
            yield self.loop.between(50, 300)
            if self.healing:
                return
            for node in self.cluster.coordination.nodes:
                for number in sorted(
                    {number for state in node.pending for number, _ in state.isr} - set(dict(node.state.isr))
                ):
                    self._kill(self.cluster.brokers[number])

    def _start_again(self, broker: Broker, low: float, high: float) -> None:
        def start() -> None:
            if not broker.up and not broker.starting:
                broker.start()

        self._later(low, high, start)

    def _kill(self, broker: Broker) -> None:
        self._crash("kill", broker)

    def _power_loss(self, broker: Broker) -> None:
        self._crash("power_loss", broker, power=True)

    def _emptied_disk(self, broker: Broker) -> None:
        self._crash("emptied_disk", broker, power=True, emptied=True)

    def _kill_all(self, _: Broker) -> None:
        for broker in self.cluster.brokers.values():
            self._crash("kill_all", broker)

    def _power_loss_of_all(self, _: Broker) -> None:
        for broker in self.cluster.brokers.values():
            self._crash("power_loss_of_all", broker, power=True)

    def _restart_at_once(self, broker: Broker) -> None:
        if not broker.up or (self._loses_by(power=False) and not self._may_lose(broker)):
            return
        self.note("restart_at_once", f"broker {broker.number}")
        broker.crash()
        self.loop.after(self.loop.between(1, 300), lambda: None if broker.up or broker.starting else broker.start())

    def _pause_for(self, kind: str, broker: Broker, low: float, high: float) -> None:
        if not broker.up or broker.paused:
            return
        self.note(kind, f"broker {broker.number}")
        broker.pause()
        life = broker.life

        def resume() -> None:
            if broker.life == life and broker.paused:
                self.cluster.oracle.story.note(self.loop.now_us, f"broker {broker.number} wakes up")
                broker.resume()

        self._later(low, high, resume)

    def _pause(self, broker: Broker) -> None:
        self._pause_for("pause", broker, 20, 3_000)

    def _long_pause(self, broker: Broker) -> None:
        session_ms = self.cluster.plan.session_ms
        self._pause_for("long_pause", broker, session_ms, 4 * session_ms)

    def _clean_stop(self, broker: Broker) -> None:
        if not broker.up or broker.paused or broker.stopping:
            return
        if self._loses_by(power=False) and (
            self.cluster.plan.settings.min_insync_replicas == 1 or not self._may_lose(broker)
        ):
            return  # the last member of a memory partition refuses to stop
        self.note("clean_stop", f"broker {broker.number}")
        broker.stop_cleanly(int(self.loop.between(500, 5_000)))
        life = broker.life

        def start_again() -> None:
            if broker.stopping and broker.life == life:
                self._later(200, 1_000, start_again)
            elif not broker.up and not broker.starting:
                broker.start()

        self._later(200, 8_000, start_again)

    def _late_ticks(self, broker: Broker) -> None:
        self.note("late_ticks", f"broker {broker.number}")
        broker.late_ticks = 0.2
        self._later(1_000, 10_000, setattr, broker, "late_ticks", 0.0)

    def _transfer_leadership(self, broker: Broker) -> None:
        """By an operator, to whomever: it need not be in sync, nor even live."""
        for host in list(broker.hosts.values()):
            if host.replica.leading and not broker.paused:
                to = self.loop.random.choice(host.replica.replicas)
                self.note("transfer_leadership", f"of partition {host.partition} from {broker.number} to {to}")
                broker.feed(host, TransferLeadership(to, self.loop.now_ms + int(self.loop.between(100, 5_000))))

    # ------------------------------------------------------------------ beyond the budget

    def _lose_all_named(self) -> Process:
        """Rule 15. One broker falls behind, cut off; once no ISR names it, all others lose their logs, or the ends of
        them."""
        cluster, plan = self.cluster, self.cluster.plan
        for _ in range(plan.total_losses):
            yield self.loop.between(0, plan.trouble_ms / plan.total_losses)
            behind = self.loop.random.choice(list(cluster.brokers.values()))
            if self.healing or not behind.up:
                continue
            others = [broker for broker in cluster.brokers.values() if broker is not behind]
            self.note("total_loss", f"broker {behind.number} is cut off until it is named nowhere")
            cluster.coordination.set_reach(behind.number, False)
            for other in others:
                cluster.network.cut(behind.number, other.number)
                cluster.network.cut(other.number, behind.number)
            for _ in range(60):
                if any(behind.number in dict(node.state.isr) for node in cluster.coordination.nodes):
                    yield 300
            if self.healing:
                return
            for broker in others:
                self._lose_log(broker)
            cluster.coordination.set_reach(behind.number, True)
            for other in others:
                cluster.network.mend(behind.number, other.number)
                cluster.network.mend(other.number, behind.number)

    def _roll_back(self) -> Process:
        """All brokers stop, the directory of one is put back to an older copy of itself, and they start in any order.
        Nothing else goes wrong until all logs are whole again: one old directory is what is survived."""
        brokers, random = list(self.cluster.brokers.values()), self.loop.random
        for _ in range(self.cluster.plan.rollbacks):
            old = random.choice(brokers)
            yield self.loop.between(1_000, self.cluster.plan.trouble_ms / self.cluster.plan.rollbacks / 2)
            copies = [journal.copy() for journal in old.journals]
            yield self.loop.between(500, self.cluster.plan.trouble_ms / self.cluster.plan.rollbacks / 2)
            if self.holds:
                continue
            self.holds = True
            for _ in range(60):
                if not self._all_named():
                    yield 300
            if self.healing or not self._all_named():
                self.holds = False
                continue
            self.note("roll_back", f"all stop, and broker {old.number} gets an older directory")
            for broker in brokers:
                broker.crash()
                broker.disk.full = broker.disk.fail_next_sync = False
            for partition, (journal, copy) in enumerate(zip(old.journals, copies, strict=True)):
                journal.put_back(copy)
                self.cluster.oracle.truths[partition].went_back_to[old.number] = journal.log_id
            random.shuffle(brokers)
            for broker in brokers:
                yield self.loop.often_short(1, 6_000)
                self._revive(broker)
            for _ in range(100):
                if self.healing or not self._all_named():
                    yield 300
            self.holds = not self._all_named()

    def _restore(self) -> Process:
        """The coordination service is put back to an older copy. Brokers go on, or one of them, or all, start anew.
        Nothing else goes wrong until all is whole."""
        coordination, plan = self.cluster.coordination, self.cluster.plan
        for _ in range(plan.restores):
            yield self.loop.between(1_000, plan.trouble_ms / plan.restores / 2)
            copy = coordination.copy()
            yield self.loop.between(500, plan.trouble_ms / plan.restores / 2)
            if self.healing or self.holds or any(node.state.leader is None for node in coordination.nodes):
                continue
            if not all(self._tells_or_serves(partition, state) for partition, (_, state) in enumerate(copy)):
                continue
            self.holds = True
            self.note("restore", "the coordination service is put back to an older copy")
            restarted = list(self.cluster.brokers.values())
            self.loop.random.shuffle(restarted)
            del restarted[self.loop.random.choice((0, 1, len(restarted))) :]
            for broker in restarted:
                broker.crash()
            coordination.put_back(copy)
            for truth, (_, state) in zip(self.cluster.oracle.truths, copy, strict=True):
                truth.put_back = True
                truth.unnamed = {broker for broker, log_id in state.isr if not log_id}
                for broker, log_id in state.isr:  # the copy's name, or that of the log which has come since
                    truth.newest_named[broker] = min(Journal.life_of(log_id), truth.newest_named.get(broker, 0))
            for broker in restarted:
                yield self.loop.often_short(1, 6_000)
                self._revive(broker)
            for _ in range(100):
                if self.healing or not self._all_named():
                    yield 300
            self.holds = not self._all_named()

    def _tells_or_serves(self, partition: int, state: NodeState) -> bool:
        """Whether an older node can be told by its epoch, which is in enough logs that whoever claims hears one. Where
        it has the same epoch, what it names serves: enough of those logs are whole that whoever claims hears one."""
        node, end = self.cluster.coordination.nodes[partition], self.cluster.oracle.life(partition).end
        named = [self.cluster.brokers[number].journals[partition] for number, _ in state.isr]
        lacking = [journal for journal in named if journal.durable_end < end]
        same = [journal for journal in named if journal.log_id in dict(state.isr).values()]
        settings = self.cluster.plan.settings
        if state.leader_epoch == node.state.leader_epoch:
            if len(same) - len(lacking) <= len(settings.replicas) - settings.min_insync_replicas:
                return False
            for journal in lacking:
                journal.lacks_up_to = end
            return True
        logs = [self.cluster.brokers[number].journals[partition] for number in settings.replicas]
        seen = [journal for journal in logs if journal.durable_epoch >= node.state.leader_epoch]
        return len(seen) > len(settings.replicas) - settings.min_insync_replicas

    def _all_named(self) -> bool:
        """Every partition names the log of every broker, and none lacks what it was once named for."""
        return all(
            node.state.leader is not None
            and not node.pending
            and not self.cluster.oracle.truths[partition].put_back
            and dict(node.state.isr)
            == {broker.number: broker.journals[partition].log_id for broker in self.cluster.brokers.values()}
            and not any(broker.journals[partition].lacks_up_to for broker in self.cluster.brokers.values())
            for partition, node in enumerate(self.cluster.coordination.nodes)
        )

    def _lose_log(self, broker: Broker) -> None:
        plan = self.cluster.plan
        emptied = plan.durability == "memory" or (not plan.losses_partial and self.loop.chance(0.5))
        self.note("total_loss", f"broker {broker.number} loses {'its logs' if emptied else 'the ends of its logs'}")
        if not emptied:
            for journal in broker.journals:
                journal.damage()
        if broker.up and (emptied or self.loop.chance(0.5)):
            broker.crash(power=True, emptied=emptied)
            self._start_again(broker, 50, 6_000)
        elif emptied and not broker.stopping:
            for journal in broker.journals:
                journal.delete()

    # ------------------------------------------------------------------ links

    def _other(self, broker: Broker) -> int:
        others = [number for number in self.cluster.brokers if number != broker.number]
        return self.loop.random.choice(others) if others else 0

    def _cut_links(self, kind: str, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        self.note(kind, ", ".join(f"{a} to {b}" for a, b in pairs))
        for a, b in pairs:
            self.cluster.network.cut(a, b)

        def mend() -> None:
            self.cluster.oracle.story.note(self.loop.now_us, "mended: " + ", ".join(f"{a} to {b}" for a, b in pairs))
            for a, b in pairs:
                self.cluster.network.mend(a, b)

        self._later(100, 20_000, mend)

    def _cut_one_way(self, broker: Broker) -> None:
        other = self._other(broker)
        self._cut_links("cut_one_way", [(broker.number, other)] if other else [])

    def _cut_pair(self, broker: Broker) -> None:
        other = self._other(broker)
        self._cut_links("cut_pair", [(broker.number, other), (other, broker.number)] if other else [])

    def _isolate(self, broker: Broker) -> None:
        others = [number for number in self.cluster.brokers if number != broker.number]
        pairs = [(broker.number, other) for other in others]
        if self.loop.chance(0.7):
            pairs += [(other, broker.number) for other in others]
        self._cut_links("isolate", pairs)

    def _isolate_from_all(self, broker: Broker) -> None:
        """From brokers and from coordination, not from clients: the one way to lead unawares for long."""
        others = [number for number in self.cluster.brokers if number != broker.number]
        number, lasts = broker.number, self.loop.often_short(1_000, 20_000)
        self.note("isolate_from_all", f"broker {number} for {lasts:.0f} ms")
        self.cluster.coordination.set_reach(number, False)
        for other in others:
            self.cluster.network.cut(number, other)
            self.cluster.network.cut(other, number)

        def mend() -> None:
            self.cluster.oracle.story.note(self.loop.now_us, f"broker {number} reaches all again")
            self.cluster.coordination.set_reach(number, True)
            for other in others:
                self.cluster.network.mend(number, other)
                self.cluster.network.mend(other, number)

        self._later(lasts, lasts, mend)

    def _blip(self, broker: Broker) -> None:
        other = self._other(broker)
        if other:
            self.note("blip", f"{broker.number} to {other}")
            self.cluster.network.blip(broker.number, other)

    def _slow_link(self, broker: Broker) -> None:
        other = self._other(broker)
        if other:
            pair = (broker.number, other)
            self.note("slow_link", f"{broker.number} to {other}")
            self.cluster.network.slow[pair] = self.loop.often_short(20, 3_000)
            self._later(500, 15_000, self.cluster.network.slow.pop, pair, None)

    def _rough_links(self, _: Broker) -> None:
        between = self.loop.between
        self.note("rough_links", "all")
        self.cluster.network.condition = LinkCondition(
            between(0, 0.2), between(0, 0.2), between(0, 0.2), (0.2, between(1, 200))
        )
        self._later(500, 15_000, self._rough_no_more)

    def _rough_no_more(self) -> None:
        rough = self.cluster.plan.rough
        self.cluster.network.condition = LinkCondition(rough / 4, rough, rough)

    # ------------------------------------------------------------------ coordination

    def _coordination_outage(self, _: Broker) -> None:
        self.note("coordination_outage", "")
        self.cluster.coordination.set_up(False)
        self._later(200, 15_000, self.cluster.coordination.set_up, True)

    def _isolate_from_coordination(self, broker: Broker) -> None:
        self.note("isolate_from_coordination", f"broker {broker.number}")
        self.cluster.coordination.set_reach(broker.number, False)
        self._later(200, 15_000, self.cluster.coordination.set_reach, broker.number, True)

    def _coordination_loses_answers(self, _: Broker) -> None:
        self.note("coordination_loses_answers", "")
        self.cluster.coordination.lose_answers = self.loop.between(0.05, 0.6)
        self._later(500, 15_000, setattr, self.cluster.coordination, "lose_answers", self.cluster.plan.answers_lost)

    def _coordination_slow(self, _: Broker) -> None:
        self.note("coordination_slow", "")
        self.cluster.coordination.slow_ms = self.loop.often_short(50, 3_000)
        self._later(500, 15_000, setattr, self.cluster.coordination, "slow_ms", self.cluster.plan.service_ms)

    def _coordination_forgets(self, _: Broker) -> None:
        """Missing metadata is not an order to delete (trap 18)."""
        self.note("coordination_forgets", "")
        self.cluster.coordination.forget = self.loop.between(0.1, 0.9)
        self._later(200, 8_000, setattr, self.cluster.coordination, "forget", 0.0)

    def _session_expires(self, broker: Broker) -> None:
        if broker.registration.session is not None and not broker.registration.session.expired:
            self.note("session_expires", f"broker {broker.number}")
            self.cluster.coordination.close_session(broker.registration.session)

    # ------------------------------------------------------------------ disks

    def _disk_full(self, broker: Broker) -> None:
        self.note("disk_full", f"broker {broker.number}")
        broker.disk.full = True
        if self.loop.chance(0.5):  # refused late: by then others may have been sent what is refused
            self._disk_slow(broker)
        self._later(100, 12_000, setattr, broker.disk, "full", False)

    def _disk_slow(self, broker: Broker) -> None:
        self.note("disk_slow", f"broker {broker.number}")
        broker.disk.sync_ms = (5, self.loop.often_short(50, 6_000))
        self._later(500, 15_000, setattr, broker.disk, "sync_ms", (0.5, 8.0))

    def _sync_fails(self, broker: Broker) -> None:
        if self.cluster.plan.durability != "memory":
            self.note("sync_fails", f"broker {broker.number}")
            broker.disk.may_lose = lambda: self._may_lose(broker)  # asked when it happens
            broker.disk.fail_next_sync = True

    def _damage(self, broker: Broker) -> None:
        if self.cluster.plan.durability == "memory" or not broker.up or not self._may_lose(broker):
            return
        self.note("damage", f"broker {broker.number}")
        self.loop.random.choice(broker.journals).damage()
