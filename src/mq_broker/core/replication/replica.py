"""One broker's copy of one partition: the door of the core. `step(event) -> list[effect]`, synchronous and total.

This module only routes: what a leader does is in leader.py, a follower in follower.py, claims in election.py. See the
package's docstring for the protocol in prose.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

from mq_broker.core.entries import EpochStart, Schedule, Stage, offsets_given
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    BrokersSeen,
    CasAnswer,
    DiskRefused,
    Effect,
    Event,
    Flushed,
    HandedOver,
    HandOver,
    Identity,
    InstallSnapshot,
    JournalBegins,
    LeaderName,
    LogReplaced,
    NodeRead,
    NodeState,
    PeerConnected,
    PeerDisconnected,
    Propose,
    RecoveredLog,
    RecoveryAdopted,
    Refused,
    Reopen,
    ReplicasChanged,
    ReplicaSettings,
    Reply,
    RoleChanged,
    Send,
    SessionLost,
    SoFar,
    StartOver,
    Tick,
    TransferLeadership,
    Truncate,
    TurnEnded,
)
from mq_broker.core.replication.election import Election
from mq_broker.core.replication.follower import Follower
from mq_broker.core.replication.leader import Leader
from mq_broker.core.replication.replica_state import Node, Shared
from mq_protocol.errors import NotLeader, TritonMQError
from mq_protocol.limits import EPOCHS_AHEAD_MAX


class Replica:
    """Owns one replica's protocol state. Feed it every event; carry out every effect, in order."""

    def __init__(
        self, topic: str, partition: int, identity: Identity, settings: ReplicaSettings, log: RecoveredLog, now_ms: int
    ) -> None:
        self._shared = Shared(topic, partition, identity, settings, log, now_ms)
        self._election = Election(self._shared)
        self._role: Follower | Leader = Follower(self._shared)
        self._told = RoleChanged(0, -1, leading=False, ready=False)
        self._doubt: tuple[Node | None, int] | None = None  # what was known when a node was read that is older
        self._stopping = False
        self._closed = False

    # ------------------------------------------------------------------ what the shell may look at

    @property
    def leading(self) -> bool:
        return isinstance(self._role, Leader)

    @property
    def ready(self) -> bool:
        """Leads, and its epoch start is committed: the end of the log is known."""
        return isinstance(self._role, Leader) and self._role.ready

    @property
    def epoch_start(self) -> int:
        """The first entry of its leadership; 0 while it does not lead."""
        return self._role.epoch_start if isinstance(self._role, Leader) else 0

    @property
    def trimming(self) -> bool:
        """Leads, and has records that are about to be dropped."""
        return isinstance(self._role, Leader) and self._role.trimming

    def why_not(self) -> TritonMQError | None:
        """What it would refuse any operation with now that is to be committed; None if one is written at once, as the
        entry after `last_index`, unless something is known against that one."""
        return self._role.why_not() if isinstance(self._role, Leader) else self._not_leader()

    @property
    def leader(self) -> int:
        """The broker believed to lead; 0 if nobody is known to."""
        return self._shared.me.broker if isinstance(self._role, Leader) else self._role.leader

    @property
    def leader_epoch(self) -> int:
        return self._shared.epoch

    @property
    def high_watermark(self) -> int:
        """The last index known to be committed."""
        return self._shared.high_watermark

    @property
    def last_index(self) -> int:
        return self._shared.log.last_index

    @property
    def flushed(self) -> int:
        return self._shared.log.flushed

    @property
    def first_index(self) -> int:
        """Where the journal begins: 1, or the entry after the snapshot that stands for what was before (rule 13)."""
        return self._shared.log.base_index + 1

    @property
    def last_epoch(self) -> int:
        """The epoch of the last entry."""
        return self._shared.log.last_epoch

    @property
    def applied_index(self) -> int:
        return self._shared.log.applied

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers that the partition is assigned to, in order of rank."""
        return self._shared.settings.replicas

    @property
    def identity(self) -> Identity:
        """`recovery` is the one that the log goes on under now, whatever it was opened under."""
        return dataclasses.replace(self._shared.me, recovery=self._shared.recovery)

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync brokers as last known: exact at the leader, as last read elsewhere."""
        if isinstance(self._role, Leader):
            return self._role.membership.brokers()
        node = self._shared.node
        return tuple(broker for broker, _ in node.state.isr) if node is not None else ()

    @property
    def last_heard_ms(self) -> dict[int, int]:
        """While it leads: when it last heard of each replica that is not in sync. No durations: its own time stands
        still at rest."""
        if not isinstance(self._role, Leader):
            return {}
        in_sync, replicas = self.isr, self._shared.settings.replicas
        return {
            broker: progress.last_heard_ms
            for broker, progress in self._role.followers.items()
            if broker not in in_sync and broker in replicas
        }

    @property
    def at_rest(self) -> bool:
        """Until the next event time alone brings nothing about here but heartbeats and the reading of the node: ticks
        may be few. A follower counts on its leader for that: it must go on hearing of it."""
        if self._closed or self._stopping:
            return False
        return self._role.at_rest and (isinstance(self._role, Leader) or self._election.at_rest)

    @property
    def last_sent(self) -> tuple[int, int]:
        """While it leads: the last index that a follower of this epoch can have, and the sequence number of the last
        message."""
        return self._role.last_sent if isinstance(self._role, Leader) else (0, 0)

    def newest_life(self, broker: int) -> int:
        """The newest incarnation of that broker that is known; 0 if none is."""
        return self._shared.incarnations.get(broker, 0)

    @property
    def window_bytes(self) -> int:
        """The memory that the UUIDs take which it remembers."""
        return self._shared.machine.uuids.memory_bytes

    @property
    def window_turned_over_us(self) -> int:
        """When its window last turned over within a minute, in microseconds of the entries' time; 0 if it never did."""
        return self._shared.machine.uuids.pushed_out_young_us

    @property
    def next_offset_at_most(self) -> int:
        """No record in this log, what is not committed included, has an offset at or above it (rule 15)."""
        machine = self._shared.machine
        offset = machine.next_offset
        staged = {uuid: batch.row_count for uuid, batch in machine.staged.items()}
        for entry in self._shared.log.tail():
            offset += offsets_given(entry, lambda uuid: staged.pop(uuid, 0))
            if isinstance(entry.operation, Stage | Schedule):
                staged[entry.uuid] = entry.record_count
            elif isinstance(entry.operation, EpochStart):
                offset = max(offset, entry.operation.offset_floor)
        return offset

    @property
    def machine(self) -> PartitionMachine:
        """The applied state. Read it; never change it."""
        return self._shared.machine

    def applied_state(self) -> Snapshot:
        """That state as a value, as it is now."""
        log = self._shared.log
        return Snapshot(log.applied, log.epoch_at(log.applied), log.last_timestamp_us, self._shared.machine.state())

    # ------------------------------------------------------------------ events

    def step(self, event: Event) -> list[Effect]:
        """Take in one event; returns what must be done, in this order."""
        shared = self._shared
        if self._closed:
            if isinstance(event, Propose):
                return [Reply(event.request, Refused(self._not_leader()))]
            return [HandedOver(0)] if isinstance(event, HandOver) else []
        self._dispatch(event)
        told = RoleChanged(self.leader, shared.epoch, self.leading, self.ready)
        if told != self._told:
            self._told = told
            shared.emit(told)
        effects, shared.effects = shared.effects, []
        return effects

    def _dispatch(self, event: Event) -> None:  # noqa: C901 - one line an event: a table, not a tangle
        shared = self._shared
        match event:
            case Propose():
                if isinstance(self._role, Leader):
                    self._role.propose(event)
                else:
                    shared.emit(Reply(event.request, Refused(self._not_leader())))
            case TurnEnded(now_ms):
                shared.now_ms = max(shared.now_ms, now_ms)
                self._turn_ended()
            case Tick(now_ms):
                shared.now_ms = max(shared.now_ms, now_ms)
                self._tick()
            case AppendEntries():
                self._append(event)
            case AppendAck():
                self._acknowledged(event)
            case SoFar():
                self._so_far(event)
            case Flushed(index, epoch):
                self._flushed(index, epoch)
            case DiskRefused():
                self._disk_refused(event)
            case LogReplaced():
                self._log_replaced(event)
            case NodeRead(version, state):
                self._node_read(version, state)
            case CasAnswer():
                self._cas_answered(event)
            case BrokersSeen(live):
                shared.live = {name.broker: name.incarnation for name in live}
                for name in live:
                    shared.sender_is_current(name.broker, name.incarnation)
                self._election.reconsider()
                if not self.leading and self.leader not in shared.live:
                    shared.read_node()
            case SessionLost():
                shared.live.pop(shared.me.broker, None)
                self._step_down("its session with the coordination service ended")
                shared.read_node()
            case PeerConnected(broker):
                self._peer_connected(broker, up=True)
            case PeerDisconnected(broker):
                self._peer_connected(broker, up=False)
            case HandOver(deadline_ms):
                self._hand_over(deadline_ms)
            case TransferLeadership(to, deadline_ms):
                if isinstance(self._role, Leader) and to != shared.me.broker:
                    self._role.standing_back.transfer(to, deadline_ms)
            case InstallSnapshot():
                self._install(event)
            case JournalBegins(first_index):
                shared.log.begin_after(first_index - 1)
            case ReplicasChanged():
                self._replicas_changed(event)
            case _:
                assert_never(event)

    def _not_leader(self) -> NotLeader:
        leader = 0 if self._closed or self.leading else self.leader
        hint = f"ask broker {leader}" if leader else "no leader is known now: ask again in a moment"
        return NotLeader(
            f"broker {self._shared.me.broker} does not lead {self._shared.name}; {hint}", leader, self._shared.epoch
        )

    # ------------------------------------------------------------------ roles

    def _step_down(self, why: str, leader: int = 0) -> None:
        """Whatever the role was: it is a follower's now, of the present epoch (rule 8)."""
        if isinstance(self._role, Leader):
            self._shared.audit(f"no longer leading: {why}")
            self._role.end(why)
        self._role = Follower(self._shared, leader)

    def _take_up(self, state: NodeState) -> None:
        self._election.prefer(False)
        if state.recovery > self._shared.recovery:  # it begins empty, by its own claim
            self._shared.recovery = state.recovery
            self._shared.emit(RecoveryAdopted(state.recovery))
        self._role = Leader(self._shared, state)

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        shared = self._shared
        if isinstance(self._role, Leader):
            self._role.tick()
        else:
            silent = shared.now_ms - self._role.heard_ms > shared.settings.silence_ms
            since_read = shared.now_ms - (shared.next_read_ms - shared.settings.read_node_ms)
            if shared.node is None or self._election.preferred or (silent and since_read > shared.settings.silence_ms):
                shared.read_node()
        if shared.now_ms >= shared.next_read_ms:
            shared.read_node()

    def _turn_ended(self) -> None:
        if isinstance(self._role, Leader):
            self._role.turn_ended()
            if self._role.standing_back.done:
                self._election.stand_back(self._role.standing_back.pause_ms)
                self._step_down("it stood back")
        else:
            self._role.turn_ended()
            if not self._stopping:
                self._election.tick()

    def _hand_over(self, deadline_ms: int) -> None:
        self._stopping = True
        if isinstance(self._role, Leader):
            self._role.hand_over(deadline_ms)
        else:
            self._shared.emit(HandedOver(0))

    # ------------------------------------------------------------------ other brokers

    def _peer_connected(self, broker: int, *, up: bool) -> None:
        if isinstance(self._role, Leader):
            self._role.peer_connected(broker, up=up)
        elif up:
            self._election.company.ask_again(broker)
        elif broker == self._role.leader:
            self._shared.read_node()

    def _append(self, message: AppendEntries) -> None:
        shared = self._shared
        if not shared.sender_is_current(message.leader, message.incarnation):
            # Whether it is one of the replicas is the node's to say: it leads this epoch, and hands over if it is not
            return
        if message.leader_epoch < shared.epoch:
            # Tell it that it is no longer the leader (rule 1). It may lead the present epoch by now, in which nothing
            # was answered.
            ack = AppendAck(shared.me.broker, shared.me.incarnation, shared.me.log_id, shared.epoch, 0, 0, sequence=0)
            shared.emit(Send(message.leader, ack))
            return
        if self._far_ahead(message.leader_epoch):
            return
        if message.leader_epoch > shared.epoch:
            shared.epoch = message.leader_epoch
            self._step_down(f"broker {message.leader} leads epoch {message.leader_epoch}", message.leader)
        if isinstance(self._role, Leader):
            shared.audit(
                f"broker {message.leader} claims to lead epoch {message.leader_epoch}, as this one does", alarm=True
            )
            return
        shared.restored = False  # somebody leads, above all that was seen
        self._role.append(message)
        if message.successor:
            self._election.prefer(message.successor == shared.me.broker)
            shared.reading_since_ms = None
            shared.read_node()

    def _far_ahead(self, epoch: int) -> bool:
        """Whether no node that was read explains that epoch. It is not obeyed then, and the node is read: an epoch that
        was once seen is never given up, so one that no leader can have would end the partition."""
        node = self._shared.node
        if epoch <= (node.state.leader_epoch if node is not None else 0) + EPOCHS_AHEAD_MAX:
            return False
        self._shared.read_node()
        return True

    def _acknowledged(self, ack: AppendAck) -> None:
        shared = self._shared
        if not shared.sender_is_current(ack.follower, ack.incarnation):
            return
        if ack.leader_epoch > shared.epoch:
            shared.read_node()
        elif ack.leader_epoch == shared.epoch and isinstance(self._role, Leader):
            self._role.acknowledged(ack)

    def _so_far(self, message: SoFar) -> None:
        """Somebody that may claim asks how far this log is, or answers how far its own is."""
        shared, company = self._shared, self._election.company
        if not shared.sender_is_current(message.broker, message.incarnation) or self._far_ahead(message.leader_epoch):
            return
        if message.leader_epoch > shared.epoch:  # as of the node, or of a node that was put back: lower ones are over
            shared.epoch = message.leader_epoch
            self._step_down(f"broker {message.broker} has seen epoch {message.leader_epoch}")
            self._election.reconsider()
            shared.read_node()
        if not message.asks:
            company.answered(message)
            return
        answer = shared.so_far(message.question, asks=False, committed=self._election.stands_back)
        shared.emit(Send(message.broker, answer))
        if isinstance(self._role, Follower):
            if not self._election.knows_none:
                shared.read_node()  # that one has read that nobody leads
            company.ask_again(message.broker)

    def _install(self, message: InstallSnapshot) -> None:
        shared = self._shared
        if not shared.sender_is_current(message.leader, message.incarnation) or self._far_ahead(message.leader_epoch):
            return
        if message.leader_epoch > shared.epoch:
            shared.epoch = message.leader_epoch
            self._step_down(f"broker {message.leader} leads epoch {message.leader_epoch}", message.leader)
        if message.leader_epoch == shared.epoch and isinstance(self._role, Follower):
            shared.restored = False
            self._closed = self._role.install(message)

    def _replicas_changed(self, event: ReplicasChanged) -> None:
        shared = self._shared
        floor = event.min_insync_replicas or shared.settings.min_insync_replicas
        shared.audit(
            f"assigned to brokers {list(event.replicas)}, before to {list(shared.settings.replicas)}; at least {floor} "
            "in sync"
        )
        shared.settings = dataclasses.replace(shared.settings, replicas=event.replicas, min_insync_replicas=floor)
        self._election.reconsider()
        if isinstance(self._role, Leader):
            self._role.replicas_changed()

    # ------------------------------------------------------------------ the disk

    def _flushed(self, index: int, epoch: int) -> None:
        log = self._shared.log
        if log.epoch_at(index) != epoch:
            return  # that entry was cut since (rule 2, trap 24)
        log.flushed = max(log.flushed, index)
        self._election.flushed(index)
        if isinstance(self._role, Leader):
            self._role.flushed()
        else:
            self._role.advance()

    def _disk_refused(self, event: DiskRefused) -> None:
        shared, log = self._shared, self._shared.log
        shared.audit(f"the disk refused entries from {event.first_index} on: {event.reason}", alarm=True)
        if isinstance(self._role, Leader) and self._role.disk_refused(event):
            return
        if event.first_index <= log.last_index:
            log.truncate(event.first_index - 1)
            shared.emit(Truncate(event.first_index - 1))
        if isinstance(self._role, Leader):
            self._election.disk_refused(event.first_index)
            self._step_down(f"its disk refused an entry ({event.reason})")
        if isinstance(self._role, Follower):
            self._role.disk_refused()

    def _log_replaced(self, event: LogReplaced) -> None:
        """The log may lack what it acknowledged: nothing of this life of the replica may be believed (traps 16, 26)."""
        shared = self._shared
        shared.audit(f"the log has a new id, {event.log_id}: {event.reason}", alarm=True)
        self._step_down(f"its log was damaged ({event.reason})")
        shared.emit(Reopen(event.reason))
        self._closed = True

    # ------------------------------------------------------------------ the state node

    def _node_read(self, version: int, state: NodeState | None) -> None:
        shared = self._shared
        shared.reading_since_ms = None
        if state is None:
            return  # missing metadata is not an order to delete (trap 18)
        if self._put_back(version, state):
            return
        known = shared.node
        if known is not None and version <= known.version and state.leader_epoch <= known.state.leader_epoch:
            return  # the version known settles nothing (rule 7)
        if self._recovered_elsewhere(state):
            return
        risen = state.leader_epoch > shared.epoch
        shared.take_node(Node(version, state))
        if isinstance(self._role, Leader):
            if not risen and state.leader == shared.my_name:
                self._role.node_confirmed(state)
                return
            self._step_down(f"the node names another leader, in epoch {state.leader_epoch}", self._named(state.leader))
        elif risen:
            self._role = Follower(shared, self._named(state.leader))
        taken = self._election.node_changed()
        if taken is not None:
            self._take_up(taken)

    def _recovered_elsewhere(self, state: NodeState) -> bool:
        """Rule 15. Whether the partition goes on from another log, so that this one, which may have more, is of no use
        to it."""
        shared = self._shared
        if state.recovery <= shared.recovery:
            return False
        # What a message of this epoch proved to be the leader's too is of the recovered log, or of what came after it.
        # That stays proved when a session ends, though this replica follows nobody then. It says nothing of payloads
        # that the journal has no more: what had let it begin later may be lost.
        epoch, index = shared.proved
        matches = epoch == state.leader_epoch and index >= shared.log.last_index
        proved = not shared.log.base_index and matches
        # Nor one whose broker alone is named: it is the log that was chosen, of another id since. No other is in sync.
        chosen = {broker for broker, _ in state.isr} == {shared.me.broker}
        if shared.my_member in state.isr or chosen or shared.log.last_index == 0 or proved:
            shared.recovery = state.recovery
            shared.emit(RecoveryAdopted(state.recovery))
            return False
        if state.leader is None:
            return False  # nobody leads with that other log yet: until then this one may be chosen after all
        shared.audit(f"the partition was recovered from another log ({state.isr}): begin anew", alarm=True)
        self._step_down("the partition was recovered from another log")
        shared.emit(StartOver(state.recovery))
        self._closed = True
        return True

    def _put_back(self, version: int, state: NodeState) -> bool:
        """Whether the node is older than what was seen (rule 1). Once, that is an answer which a leader's message, or a
        later answer, overtook. Asked again, it must not be: the coordination service was put back to an older copy. The
        partition goes on then, above all that live replicas have seen."""
        shared, known = self._shared, self._shared.node
        if shared.restored and known is not None and (version, state) == (known.version, known.state):
            return True
        if not _is_older(version, state, known, shared.epoch):
            self._doubt = None
            return False
        if self._doubt is None or not _is_older(version, state, *self._doubt):
            self._doubt = known, shared.epoch
            shared.read_node()
            return True
        self._doubt = None
        text = f"the node has version {version} and epoch {state.leader_epoch}, and epoch {shared.epoch} was seen"
        if shared.epoch > state.leader_epoch + EPOCHS_AHEAD_MAX:  # no leader can have had it, and none could follow
            shared.audit(f"{text}: not obeyed; see `tritonmq partition recover --force`", alarm=True)
            return True
        shared.audit(f"{text}: was the coordination service restored? Going on above that", alarm=True)
        shared.put_back(Node(version, state))
        self._step_down("the state node is older than what was seen")
        self._election.reconsider()
        return True

    def _named(self, leader: LeaderName | None) -> int:
        """The leader's broker, if it is another one that lives; a follower learns the rest from its messages."""
        if leader is None or leader.broker == self._shared.me.broker or not self._shared.is_registered(leader):
            return 0
        return leader.broker

    def _cas_answered(self, answer: CasAnswer) -> None:
        if isinstance(self._role, Leader):
            if not self._role.membership.answered(answer):
                self._role.refused_by_node()
            return
        taken = self._election.answered(answer)
        if taken is not None:
            self._take_up(taken)


def _is_older(version: int, state: NodeState, known: Node | None, epoch: int) -> bool:
    """Whether a node says less than what was seen. A higher epoch is newer whatever its version. A version is written
    once, so one that says something else is of another history."""
    if known is None or state.leader_epoch != known.state.leader_epoch:
        return state.leader_epoch < epoch
    other = version == known.version and state.token != known.state.token
    return state.leader_epoch < epoch or version < known.version or other
