"""A simulated broker: the shell of `mq_broker.broker`, in a few lines, around the real core.

It feeds events to its replicas and carries out their effects in order, as the real shell does: a turn ends when nothing
more is ready, a broker that is paused finds everything waiting when it wakes, and what was meant for a former life of
the process never arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mq_broker.broker.host.contacts import Contacts
from mq_broker.core.entries import Decide
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Audit,
    CasAnswer,
    CasOutcome,
    DecisionCommitted,
    DiskRefused,
    Effect,
    Event,
    HandedOver,
    HandOver,
    Identity,
    Install,
    InstallSnapshot,
    NodeRead,
    NodeState,
    OffsetsSkipped,
    PeerConnected,
    PeerDisconnected,
    PeerMessage,
    Propose,
    Published,
    ReadNode,
    RecoveryAdopted,
    Refused,
    Reopen,
    ReplicasChanged,
    Reply,
    RoleChanged,
    Send,
    SoFar,
    StartOver,
    Tick,
    Trimmed,
    Truncate,
    WriteEntries,
    WriteNode,
)
from mq_broker.core.replication.peer_admission import Verdict, judge, judge_snapshot
from mq_broker.core.replication.replica import Replica
from mq_protocol.errors import NotLeader
from tests.simulation.host import AUDIT_TICKS, REST_TICK_MS, Host, Kept, OnReply
from tests.simulation.journal import DiskCondition, Journal
from tests.simulation.registration import Registration

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


BEAT_MS = 200
BEAT_PATIENCE_MS = 2_000


class Broker:
    """Owns one machine: the process (and how many lives it had), its journals, its registration."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.loop = cluster.loop
        self.up = False
        self.starting = False
        self.stopping = False
        self.paused = False
        self.was_paused = False
        self.life = 0
        self.incarnation = 0
        self.late_ticks = 0.0
        self.disk = DiskCondition()
        self.journals = [
            Journal(self.loop, f"{number}:{p}", cluster.plan.durability, self.disk)
            for p in range(cluster.plan.partitions)
        ]
        self.hosts: dict[int, Host] = {}
        self.assigned: dict[int, tuple[int, tuple[int, ...]]] = {}
        """What this process knows of it: by partition, with the version. It may be late."""
        self.registration = Registration(self)
        self._opening: set[int] = set()
        self._closings: Counter[int] = Counter()  # of replicas that were moved away
        self._requests = 0
        self._backlog: dict[str, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {}
        self.contacts = Contacts(0)
        self._beaten_by: dict[int, int] = {}

    # ------------------------------------------------------------------ the process

    def start(self) -> None:
        """A new life. It needs the coordination service for its number and its registration."""
        assert not self.up
        self.starting = True
        self.stopping = False
        self.life += 1
        self._backlog.clear()
        self._try_to_begin(self.life)

    def _try_to_begin(self, life: int) -> None:
        if life != self.life:
            return
        coordination = self.cluster.coordination
        if not coordination.reaches(self.number):
            self.loop.after(500, self._try_to_begin, life)
            return
        self.up, self.starting, self.paused = True, False, False
        self.incarnation = coordination.begin_life(self.number)
        self.registration.begin()
        self.contacts = Contacts(self.loop.now_ms, BEAT_PATIENCE_MS)
        self._beaten_by = {}
        self.hosts = {}
        self.assigned = dict(enumerate(coordination.assigned))
        self._opening.clear()
        coordination.set_watcher(self.number, lambda: self.registration.hint(life))
        coordination.set_mover(self.number, lambda partition: self._look_up(life, partition))
        if self.loop.chance(0.5):  # which of the two comes first is the shell's own affair
            self.registration.open_session()
            self._open_all()
        else:
            self._open_all()
            self.registration.open_session()
        self.cluster.network.broker_changed(self.number)
        self.loop.after(self.loop.between(1, 80), self._tick, life)
        self.loop.after(self.loop.between(1, BEAT_MS), self._beat, life)

    def _open_all(self) -> None:
        for partition in range(len(self.journals)):
            self._open_soon(self.loop.often_short(1, 300), partition)
            if not self.is_assigned(partition):
                self.loop.after(self.loop.between(100, 2_000), self._leave, self.life, partition)

    def is_assigned(self, partition: int) -> bool:
        return self.number in self.assigned[partition][1]

    def _open_soon(self, ms: float, partition: int, *, again: bool = False) -> None:
        self._opening.add(partition)
        self.loop.after(ms, self.arrive, "disk", self._open_partition, self.life, partition, again)

    def _open_partition(self, life: int, partition: int, again: bool) -> None:
        if life != self.life:
            return
        self._opening.discard(partition)
        journal = self.journals[partition]
        if self.stopping or not (self.is_assigned(partition) or journal.present):
            return
        host = Host(self, partition, None, journal, life)  # type: ignore[arg-type]
        recovered = journal.open(host)
        identity = Identity(self.number, self.incarnation, journal.log_id, journal.recovery)
        settings = replace(self.cluster.plan.settings, replicas=self.assigned[partition][1])
        host.replica = Replica("t", partition, identity, settings, recovered, self.loop.now_ms)
        if recovered.snapshot is not None:
            host.first_readable = recovered.snapshot.state.next_offset
        self.hosts[partition] = host
        self.cluster.oracle.opened(host, recovered)
        if recovered.checkpoint is not None:
            host.goes_on_from(cast(Kept, journal.kept), recovered.checkpoint.snapshot.state)
        self.feed(host, self.registration.seen)
        for other in self.cluster.brokers.values():
            if other is not self and other.up:
                self.feed(host, PeerConnected(other.number))
        if again:
            self._speak(host)

    def crash(self, *, power: bool = False, emptied: bool = False) -> None:
        """kill -9, of the process or of the whole machine; `emptied`: it comes back with a new disk."""
        self.up = self.starting = self.paused = self.stopping = False
        self.life += 1
        for journal in self.journals:
            journal.crash(power=power)
            if emptied:
                journal.delete()
        self.hosts = {}
        self.registration.session = None
        self._backlog.clear()
        self.cluster.network.broker_changed(self.number)

    def stop_cleanly(self, deadline_ms: int) -> None:
        """Hand leadership over, close the journals, end the session, exit."""
        self.stopping = True
        self.was_paused = False
        life = self.life
        until = self.loop.now_ms + deadline_ms
        self.feed_all(HandOver(until))

        def wait() -> None:
            if life != self.life:
                return
            done = all(host.handed_over or host.closed for host in self.hosts.values())
            if self.paused or (not done and self.loop.now_ms < until + 1_000):
                self.loop.after(20, wait)
                return
            if not done and not self.was_paused:
                silent = [host.partition for host in self.hosts.values() if not host.handed_over and not host.closed]
                raise self.cluster.oracle.violation(
                    silent[0], f"broker {self.number} was never told that it has handed over"
                )
            for journal in self.journals:
                journal.close_cleanly()
            self.registration.leave()
            self.up = self.stopping = False
            self.life += 1
            self.hosts = {}
            self.registration.session = None
            self.cluster.network.broker_changed(self.number)

        wait()

    def pause(self) -> None:
        self.paused = self.was_paused = True

    def resume(self) -> None:
        """Everything that waited is there at once, in order of each source and in no order between them."""
        self.paused = False
        waiting = self._backlog
        self._backlog = {}
        while waiting and self.up:
            source = self.loop.random.choice(sorted(waiting))
            call, args = waiting[source].pop(0)
            if not waiting[source]:
                del waiting[source]
            call(*args)

    def arrive(self, source: str, call: Callable[..., object], *args: Any) -> None:
        """Something reaches this process from outside: it is taken in now, or when the process runs again."""
        if self.paused:
            self._backlog.setdefault(source, []).append((call, args))
        elif self.up:
            call(*args)

    def answers(self) -> bool:
        return self.up and not self.paused and self.cluster.coordination.reaches(self.number)

    # ------------------------------------------------------------------ moves

    def _look_up(self, life: int, partition: int) -> None:
        """The partition's assignment may have changed: read it, and again until the service answers."""
        if life != self.life:
            return
        coordination = self.cluster.coordination
        if not coordination.reaches(self.number):
            self.loop.after(500, self._look_up, life, partition)
            return
        read = coordination.assigned[partition]
        self.loop.after(
            self.loop.often_short(0.3, 40), self.arrive, "coordination", self._looked_up, life, partition, read
        )

    def _looked_up(self, life: int, partition: int, read: tuple[int, tuple[int, ...]]) -> None:
        if life != self.life or self.stopping or read[0] <= self.assigned[partition][0]:
            return
        self.assigned[partition] = read
        host = self.hosts.get(partition)
        if host is not None and not host.closed:
            self.feed(host, ReplicasChanged(read[1]))
        elif self.is_assigned(partition) and partition not in self._opening:
            self._open_soon(self.loop.often_short(1, 300), partition)
        if not self.is_assigned(partition):
            self.loop.after(self.loop.between(10, 500), self._leave, life, partition)

    def _leave(self, life: int, partition: int) -> None:
        """Not a replica any more: close the log, then delete it; neither while it is named, nor while it leads (trap
        19)."""
        if life != self.life or self.is_assigned(partition):
            return
        self.loop.after(self.loop.between(100, 1_500), self._leave, life, partition)
        if not self.paused and not self.stopping and partition not in self._opening:
            closings = self._closings[partition]
            self.cluster.coordination.read(
                self.number,
                partition,
                lambda found: self.arrive("coordination", self._may_leave, life, partition, closings, found),
            )

    def _may_leave(self, life: int, partition: int, closings: int, found: tuple[int, NodeState | None] | None) -> None:
        """`closings`: how often it had been closed when the node was asked for. Only what it said since counts (seed
        3109)."""
        if closings != self._closings[partition]:
            return
        if life != self.life or self.is_assigned(partition) or self.stopping or found is None or found[1] is None:
            return
        host, journal = self.hosts.get(partition), self.journals[partition]
        named = (self.number, journal.log_id) in found[1].isr
        if host is not None and not host.closed:
            if not named and not host.replica.leading:
                self._end(host)
                self._closings[partition] += 1
                del self.hosts[partition]
        elif partition not in self._opening and journal.present:
            if named:  # again, since it was closed
                self._open_soon(1, partition)
            else:
                self.cluster.faults["log deleted after a move"] += 1
                self.cluster.oracle.given_up(self.number, partition)
                journal.delete()

    # ------------------------------------------------------------------ events in

    def _tick(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        if not self.paused:
            for host in list(self.hosts.values()):
                self._tick_host(host)
            for host in list(self.hosts.values()):
                if self.loop.chance(self.cluster.plan.shortens):
                    self._shorten(host)
        late = self.loop.between(100, 3_000) if self.loop.chance(self.late_ticks) else 0.0
        self.loop.after(80 + self.loop.between(0, 10) + late, self._tick, life)

    def _tick_host(self, host: Host) -> None:
        now_ms = self.loop.now_ms
        if not host.rest.asleep:
            self.feed(host, Tick(now_ms))
        elif now_ms >= host.next_tick_ms:
            host.next_tick_ms = now_ms + REST_TICK_MS
            host.looks += 1
            if host.looks % AUDIT_TICKS == 0:
                self.feed(host, Tick(now_ms))

    def feed_all(self, event: Event) -> None:
        for host in list(self.hosts.values()):
            self.feed(host, event)

    def _shorten(self, host: Host) -> None:
        if not host.closed and host.life == self.life and not self._followed(host):
            host.shorten(wholly=self.loop.chance(0.5))

    def _followed(self, host: Host) -> bool:
        """As brokers do, a leader leaves its journal as it is while somebody is still to follow from its beginning, but
        for as long as things go wrong: two snapshots in a row happen too (a leader that is new shortens at once), and
        take as long as two."""
        if not (self.cluster.nemesis.healing and host.replica.leading):
            return False
        isr, assigned = host.replica.isr, self.cluster.coordination.assigned[host.partition][1]
        return any(name.broker not in isr for name in self.registration.seen.live if name.broker in assigned)

    # ------------------------------------------------------------------ contact

    def is_live(self, broker: int) -> bool:
        return self.registration.is_live(broker)

    def _beat(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        if not self.paused:
            for other in self.cluster.brokers:
                if other != self.number and self.number not in self.cluster.plan.former:
                    self.cluster.network.beat(self.number, other)
            for broker in self.contacts.silent(self.loop.now_ms):
                self.cluster.faults["silent link"] += 1
                self.link_made_anew(broker)
                other_end = self.cluster.brokers[broker]
                self.loop.after(
                    self.loop.often_short(1, 500), other_end.arrive, "links", other_end.link_made_anew, self.number
                )
        self.loop.after(BEAT_MS + self.loop.between(0, 20), self._beat, life)

    def hear_beat(self, sender: int, life: int, lost: bool) -> None:
        now_ms = self.loop.now_ms
        if self.number in self.cluster.plan.former:
            return
        if self._beaten_by.get(sender) != life:
            self.contacts.ended(sender)
            self._beaten_by[sender] = life
        self.contacts.beat(sender, now_ms, dropped=lost)
        if lost:
            for host in list(self.hosts.values()):
                if not host.closed and host.rest.asleep and host.replica.leader == sender:
                    self._step(host, host.rest.wake(now_ms))

    def hear_link(self, event: PeerConnected | PeerDisconnected) -> None:
        if isinstance(event, PeerDisconnected):
            self.contacts.ended(event.broker)
        self.feed_all(event)

    def link_made_anew(self, broker: int) -> None:
        self.hear_link(PeerDisconnected(broker))
        self.hear_link(PeerConnected(broker))

    def _speak(self, host: Host) -> None:
        """As `Partition.speak` of brokers does."""
        me, epoch = host.replica.identity, max(host.replica.leader_epoch, 1)
        ack = AppendAck(me.broker, me.incarnation, me.log_id, epoch, 0, 0, 0)
        for broker in host.replica.replicas:
            if broker != me.broker:
                self.cluster.network.send(self.number, broker, host.partition, ack)

    def hear(self, partition: int, message: PeerMessage, in_order: bool = True) -> None:
        """Through the admission that brokers have. It is never wrong of an honest broker; one that lies is
        (liar.py)."""
        host = self.hosts.get(partition)
        if host is None or host.closed:
            return
        verdict, why = judge(host.replica, message)
        if verdict is Verdict.ADMITTED and isinstance(message, InstallSnapshot):
            verdict, why = judge_snapshot(message)
        match verdict:
            case Verdict.ADMITTED if in_order or host.rest.asleep:
                self.feed(host, message)
            case Verdict.ADMITTED:  # no link of TCP does that, so it is no proof that the leader was heard in contact
                self._touch(host)
                self._step(host, message)
            case Verdict.NOT_REGISTERED:
                self.cluster.faults["message of an unread life"] += 1
                self.registration.hint(self.life)
            case Verdict.NONSENSE:
                self.cluster.oracle.nonsense(host, message, why)

    def feed(self, host: Host, event: Event) -> None:
        if host.closed or host.life != self.life:
            return
        self._touch(host)
        if isinstance(event, AppendAck) and host.rest.spoken_to(event, host):
            self._step(host, host.rest.wake(self.loop.now_ms))
        for told in host.rest.told(event, self.loop.now_ms):
            if not host.closed:
                self._step(host, told)

    def _touch(self, host: Host) -> None:
        if not host.touched:
            host.touched = True
            self.loop.after(self.loop.often_short(0.01, 6.0), self.arrive, "turn", self._end_turn, host)

    def _end_turn(self, host: Host) -> None:
        if host.closed or host.life != self.life:
            return
        host.touched = False
        now_ms = self.loop.now_ms
        self._step(host, host.rest.turn_ended(now_ms))
        if host.closed:
            return
        if not host.rest.asleep:
            if self.cluster.plan.rests and host.rest.settled(host, now_ms):
                self.cluster.faults["replica at rest"] += 1
                host.next_tick_ms, host.looks = now_ms + REST_TICK_MS, 0
        elif not host.at_rest:
            self._step(host, host.rest.wake(now_ms))

    def _step(self, host: Host, event: Event) -> None:
        oracle = self.cluster.oracle
        host.was_leading = host.replica.leading
        try:
            effects = host.replica.step(event)
        except Exception as error:
            oracle.saw(host, event, [])
            raise oracle.violation(
                host.partition, f"the core of broker {self.number} fails: {type(error).__name__} {error}"
            ) from error
        oracle.saw(host, event, effects)
        oracle.commits(host)
        for effect in effects:
            self._carry_out(host, event, effect)
        oracle.after(host)

    # ------------------------------------------------------------------ effects out

    def _carry_out(self, host: Host, event: Event, effect: Effect) -> None:  # noqa: C901 - one line an effect: a table
        oracle, journal = self.cluster.oracle, host.journal
        match effect:
            case WriteEntries(entries):
                oracle.written(host, entries)
                journal.append(entries)
            case Truncate(last_index):
                oracle.truncated(host, last_index, by_disk=isinstance(event, DiskRefused))
                journal.truncate(last_index)
            case Send(to, AppendEntries() as message):
                entries = journal.span(message.prev_index + 1, message.last_index)
                self.cluster.network.send(self.number, to, host.partition, replace(message, entries=entries))
            case Send(to, AppendAck() | SoFar() as message):
                oracle.said(host, message)
                self.cluster.network.send(self.number, to, host.partition, message)
            case Send(to, InstallSnapshot() as message):
                self.cluster.faults["snapshot sent"] += 1
                self.cluster.network.send(self.number, to, host.partition, replace(message, snapshot=journal.snapshot))
            case Reply(request, result):
                _, on_reply = oracle.answered(host, request, result)
                on_reply(result)
            case ReadNode():
                self._read_node(host)
            case WriteNode(version, state):
                oracle.proposed(host, state)
                self._write_node(host, version, state)
            case Published():
                oracle.published(host, effect)
                host.published(effect)
            case Trimmed(log_start_offset):
                oracle.trimmed(host, log_start_offset)
                host.trimmed(log_start_offset)
                self.loop.after(self.loop.often_short(0, 2_000), self.arrive, "disk", self._shorten, host)
            case OffsetsSkipped():
                oracle.skipped(host, effect)
                host.skipped.append(effect)
            case DecisionCommitted(decision):
                assert isinstance(decision, Decide)
                self.cluster.workload.decision_committed(host, decision)
            case RoleChanged():
                oracle.role_changed(host, effect)
                if host.led and not effect.leading:
                    self._speak(host)
                host.led = effect.leading
            case HandedOver():
                host.handed_over = True
            case Reopen():
                self._end(host)
                self._open_soon(self.loop.between(5, 400), host.partition, again=True)
            case Install(snapshot, recovery):
                self._end(host)
                self._begin_anew(host, recovery, snapshot)
            case StartOver(recovery):
                self._end(host)
                self._begin_anew(host, recovery, None)
            case RecoveryAdopted(recovery):
                journal.adopt(recovery)
            case Audit(text, alarm):
                oracle.audited(host, text, alarm=alarm)

    def _end(self, host: Host) -> None:
        host.closed = True
        host.journal.stop()
        for propose, _ in host.waiting.values():
            raise self.cluster.oracle.violation(
                host.partition, f"request {propose.request} was left unanswered at the end of a replica"
            )

    def _begin_anew(self, host: Host, recovery: int, snapshot: Snapshot | None) -> None:
        """Under a new log id. A crash before the snapshot is written leaves an empty log of that id."""
        journal, life = host.journal, self.life
        self._opening.add(host.partition)
        self.cluster.oracle.given_up(self.number, host.partition)
        journal.empty(recovery)
        self.cluster.faults["log begun anew" if snapshot is None else "snapshot installed"] += 1

        def write() -> None:
            if life == self.life:
                if snapshot is not None:
                    journal.begin_with(snapshot)
                self._open_soon(self.loop.between(5, 400), host.partition, again=True)

        self.loop.after(self.loop.often_short(1, 1_500), write)

    def propose(self, host: Host, propose: dict[str, Any], on_reply: OnReply) -> None:
        """A client's request, taken in by this process."""
        self._requests += 1
        request = Propose(self._requests, timestamp_us=1_000_000 + self.loop.now_us, **propose)
        if host.closed or host.life != self.life:
            on_reply(Refused(NotLeader("this replica is being opened: ask again")))
            return
        host.waiting[request.request] = (request, on_reply)
        self.feed(host, request)

    def _read_node(self, host: Host) -> None:
        if host.reading_node:
            return
        host.reading_node = True

        def answer(found: tuple[int, NodeState | None] | None) -> None:
            host.reading_node = False
            if found is not None:
                self.feed(host, NodeRead(*found))

        self.cluster.coordination.read(self.number, host.partition, lambda found: self._arrive_in(host, answer, found))

    def _write_node(self, host: Host, version: int, state: NodeState) -> None:
        def answer(outcome: CasOutcome, new_version: int) -> None:
            self.feed(host, CasAnswer(state.token, outcome, new_version))

        if self.cluster.nemesis.loses_write(host, state):
            self.cluster.loop.after(500, self._arrive_in, host, answer, CasOutcome.UNKNOWN, -1)
            return
        self.cluster.coordination.write(
            self.number,
            host.partition,
            version,
            state,
            lambda outcome, new: self._arrive_in(host, answer, outcome, new),
        )

    def _arrive_in(self, host: Host, call: Callable[..., object], *args: Any) -> None:
        """An answer to a life of the process that is over goes nowhere."""
        if host.life == self.life:
            self.arrive("coordination", call, *args)
