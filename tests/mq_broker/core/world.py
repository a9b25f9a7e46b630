"""A world of replicas for golden scripts: each line of a script is one event or one delivery, its effects are printed
beneath. Nothing happens by itself: disks flush, links deliver and the coordination service answers when the script says
so. The core is the real one. Not a simulator: no chance, no virtual time but what `time` gives.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import assert_never

from mq_broker.core.entries import (
    SCHEDULED,
    Abort,
    Append,
    Carry,
    Decide,
    DeleteGroup,
    Discard,
    Entry,
    EpochStart,
    Fence,
    Finish,
    Forget,
    Give,
    MoveCursor,
    Operation,
    Publish,
    Schedule,
    Stage,
    TransactionKey,
    Trim,
    Work,
)
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.state import MachineState, Snapshot
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    AreStaged,
    Audit,
    BrokersSeen,
    CasAnswer,
    CasOutcome,
    DecisionCommitted,
    DiskRefused,
    Effect,
    Event,
    Flushed,
    HandedOver,
    HandOver,
    Identity,
    Install,
    InstallSnapshot,
    JournalBegins,
    LeaderName,
    LogReplaced,
    NodeRead,
    NodeState,
    OffsetsSkipped,
    PeerConnected,
    PeerDisconnected,
    PeerMessage,
    Propose,
    Published,
    ReadNode,
    RecoveredLog,
    RecoveryAdopted,
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
    Trimmed,
    Truncate,
    TurnEnded,
    Wait,
    WriteEntries,
    WriteNode,
)
from mq_broker.core.replication.replica import Replica
from mq_protocol.manifest import StagedPart
from tests.mq_broker.core import words
from tests.mq_broker.core.script_host import Host, Views
from tests.mq_broker.core.words import uuid, words_of_entry, words_of_message, words_of_result, words_of_state

KEY = TransactionKey("query", "out")


class World(Views):
    """Owns the hosts, the links between them (messages wait until delivered), the state node and the clock."""

    def __init__(self, brokers: int = 3, minimum: int = 2, **settings: int) -> None:
        self.now_ms = 0
        self.version = 0
        everyone = tuple(range(1, brokers + 1))
        self.settings = ReplicaSettings(everyone, minimum, **settings)  # type: ignore[arg-type]
        self.node = NodeState(None, 0, tuple((b, "") for b in everyone), 0, "created")
        self.before = self.backup = (self.version, self.node)
        self.late: list[tuple[int, CasAnswer]] = []
        self.links: dict[tuple[int, int], list[PeerMessage]] = {
            (a, b): [] for a, b in itertools.permutations(everyone, 2)
        }
        self.requests = itertools.count(1)
        self.out: list[str] = []
        self.live: dict[int, int] = {}
        self.asked = 0
        self.hosts = {b: self._host(b, 1, f"log{b}", []) for b in everyone}

    def _host(
        self,
        broker: int,
        incarnation: int,
        log_id: str,
        disk: list[Entry],
        snapshot: Snapshot | None = None,
        recovery: int = 0,
    ) -> Host:
        identity = Identity(broker, incarnation, log_id, recovery)
        replica = Replica("t", 0, identity, self.settings, RecoveredLog(tuple(disk), snapshot), self.now_ms)
        return Host(broker, replica, incarnation, log_id, list(disk), len(disk), snapshot=snapshot, recovery=recovery)

    # -- stepping

    def step(self, broker: int, event: Event) -> None:
        host = self.hosts[broker]
        for effect in host.replica.step(event):
            self._carry_out(host, effect)

    def _carry_out(self, host: Host, effect: Effect) -> None:  # noqa: C901 - one line an effect: a table
        match effect:
            case WriteEntries(entries):
                host.disk += entries
                self.say(host, "write " + " ".join(words_of_entry(e) for e in entries))
            case Truncate(last_index):
                del host.disk[last_index - host.base :]
                host.synced = min(host.synced, len(host.disk))
                self.say(host, f"truncate to {last_index}")
            case Send(to, message):
                if isinstance(message, AppendEntries):
                    first, last = message.prev_index, message.last_index
                    message = replace(message, entries=tuple(host.disk[first - host.base : last - host.base]))
                elif isinstance(message, InstallSnapshot):
                    message = replace(message, snapshot=host.snapshot)
                self.links[host.broker, to].append(message)
                self.asked += isinstance(message, SoFar)
                self.say(host, f"send to {to}: {words_of_message(message)}")
            case Reply(request, result):
                self.say(host, f"reply {request}: {words_of_result(result)}")
            case ReadNode():
                host.reading = True
                self.say(host, "read node")
            case WriteNode(version, state):
                host.writes.append(effect)
                self.say(host, f"write node if version {version}: {words_of_state(state)}")
            case Published(base, count, index):
                self.say(host, f"readable: offsets {base}..{base + count - 1} from entry {index}")
            case Trimmed(start):
                self.say(host, f"records below {start} are dropped")
            case Install(snapshot):
                self.say(host, f"begin anew with the snapshot up to entry {snapshot.last_index}")
                self._begin_anew(host, snapshot, effect.recovery)
            case StartOver(recovery):
                self.say(host, f"begin anew under recovery {recovery}")
                self._begin_anew(host, None, recovery)
            case RecoveryAdopted(recovery):
                host.recovery = recovery
                self.say(host, f"go on under recovery {recovery}")
            case OffsetsSkipped(first, following):
                self.say(host, f"offsets {first}..{following - 1} are given to nobody")
            case DecisionCommitted(decision):
                assert isinstance(decision, Decide)
                self.say(host, f"decision committed: micro-batch {decision.batch_id}")
            case RoleChanged(leader, epoch, leading, ready):
                role = ("leads, ready" if ready else "leads, not ready") if leading else f"follows {leader or 'nobody'}"
                self.say(host, f"{role} in epoch {epoch}")
            case HandedOver(successor):
                self.say(host, f"handed over to {successor or 'nobody'}")
            case Reopen():
                self.say(host, "reopen")
            case Audit(text, alarm):
                self.say(host, ("ALARM " if alarm else "audit: ") + text.partition(": ")[2])
            case _:
                assert_never(effect)

    def _begin_anew(self, host: Host, snapshot: Snapshot | None, recovery: int) -> None:
        self.hosts[host.broker] = self._host(host.broker, host.incarnation, host.log_id + "'", [], snapshot, recovery)
        self.step(host.broker, BrokersSeen(tuple(LeaderName(b, i) for b, i in self.live.items())))

    # -- what a script can say

    def command(self, line: str) -> list[str]:
        """Carry out one line; returns what came of it."""
        self.out = []
        said = line.split()
        options = dict(word.split("=", 1) for word in said if "=" in word)
        plain = [word for word in said if "=" not in word]
        getattr(self, "do_" + plain[0].replace("-", "_"))(*plain[1:], **options)
        return self.out or ["ok"]

    def do_seen(self, *brokers: str) -> None:
        """`seen 1 2 3`: these are registered, and everybody who is up learns it."""
        self.live = {int(b): self.hosts[int(b)].incarnation for b in brokers}
        names = tuple(LeaderName(b, i) for b, i in self.live.items())
        for host in self.hosts.values():
            if host.up and not host.deaf:
                self.step(host.broker, BrokersSeen(names))

    def do_unheard(self, broker: str) -> None:
        """From now on that broker learns nothing of who is registered (paused, or cut off from the coordination
        service)."""
        self.hosts[int(broker)].deaf = True

    def do_read(self, *brokers: str) -> None:
        for broker in brokers:
            self.hosts[int(broker)].reading = False
            self.step(int(broker), NodeRead(self.version, self.node))

    def do_read_missing(self, broker: str) -> None:
        """The node is not there."""
        self.hosts[int(broker)].reading = False
        self.step(int(broker), NodeRead(self.version, None))

    def do_recover(self, broker: str, floor: str = "0") -> None:
        """An operator says that the partition goes on from that log; offsets below `floor` may have been given."""
        self.before = (self.version, self.node)
        self.version += 1
        isr = ((int(broker), self.hosts[int(broker)].log_id),)
        self.node = NodeState(None, self.node.leader_epoch + 1, isr, self.node.recovery + 1, "operator", int(floor))

    def do_backup(self) -> None:
        self.backup = (self.version, self.node)

    def do_put_back(self) -> None:
        """The coordination service is put back to what it was at the `backup`."""
        self.version, self.node = self.backup

    def do_read_late(self, broker: str) -> None:
        """An answer that was under way arrives: what the node was before it changed last."""
        self.hosts[int(broker)].reading = False
        self.step(int(broker), NodeRead(*self.before))

    def do_turn(self, *brokers: str) -> None:
        for broker in brokers or [str(h.broker) for h in self.hosts.values() if h.up]:
            self.step(int(broker), TurnEnded(self.now_ms))

    def do_time(self, milliseconds: str, *brokers: str) -> None:
        self.now_ms += int(milliseconds)
        for broker in brokers or [str(h.broker) for h in self.hosts.values() if h.up]:
            self.step(int(broker), Tick(self.now_ms))

    def do_cas(self, broker: str, how: str = "done") -> None:
        """Answer that broker's oldest write: done (if the version allows), lost (it happened unanswered), dropped
        (neither), late (as done, but the answer comes with `answer`)."""
        host = self.hosts[int(broker)]
        write = host.writes.pop(0)
        happens = write.expected_version == self.version and how != "dropped"
        if happens:
            self.before = (self.version, self.node)
            self.version += 1
            self.node = write.state
        if how in {"lost", "dropped"}:
            answer = CasAnswer(write.state.token, CasOutcome.UNKNOWN)
        elif happens:
            answer = CasAnswer(write.state.token, CasOutcome.DONE, self.version)
        else:
            answer = CasAnswer(write.state.token, CasOutcome.REFUSED)
            self.say(host, "(refused)")
        if how == "late":
            self.late.append((host.broker, answer))
        else:
            self.step(host.broker, answer)

    def do_answer(self) -> None:
        """The oldest answer that was late arrives."""
        self.step(*self.late.pop(0))

    def do_flush(self, *brokers: str) -> None:
        for broker in brokers or [str(h.broker) for h in self.hosts.values() if h.up]:
            host = self.hosts[int(broker)]
            if host.disk and host.synced < len(host.disk):
                host.synced = len(host.disk)
                self.step(host.broker, Flushed(host.disk[-1].index, host.disk[-1].leader_epoch))

    def do_flushed(self, broker: str, index: str, epoch: str) -> None:
        self.step(int(broker), Flushed(int(index), int(epoch)))

    def do_deliver(self, sender: str, to: str, count: str = "all") -> None:
        queue = self.links[int(sender), int(to)]
        for _ in range(len(queue) if count == "all" else int(count)):
            message = queue.pop(0)
            if self.hosts[int(to)].up:
                self.step(int(to), message)

    def do_hear(self, *brokers: str) -> None:
        """Each asks how far the others are, all who are up answer, and it claims if it may. Words are not printed."""
        for broker in brokers:
            self.do_turn(broker)
            for asking in (True, False):
                for link, queue in self.links.items():
                    if link[not asking] == int(broker) and self.hosts[link[1]].up:
                        said = [message for message in queue if isinstance(message, SoFar)]
                        queue[:] = [message for message in queue if message not in said]
                        for message in said:
                            self.step(link[1], message)
            self.do_turn(broker)
        self.out = [line for line in self.out if "so far: " not in line and "how far are you?" not in line]

    def do_deliver_last(self, sender: str, to: str) -> None:
        """The newest message overtakes those before it."""
        self.step(int(to), self.links[int(sender), int(to)].pop())

    def do_claim_to_lead(self, sender: str, to: str) -> None:
        """That broker says that it leads the present epoch."""
        host = self.hosts[int(sender)]
        last, epoch = host.replica.last_index, host.replica.leader_epoch
        claim = AppendEntries(host.broker, host.incarnation, epoch, last, host.replica.last_epoch, last, 0, 1)
        self.step(int(to), claim)

    def do_forged_conflict(self, sender: str, to: str, index: str) -> None:
        """`forged-conflict 2 1 7`: broker 2 says to leader 1, and lies, that their logs may agree up to entry 7."""
        follower, leader = self.hosts[int(sender)], self.hosts[int(to)].replica
        epoch, sequence = leader.leader_epoch, leader.last_sent[1]
        ack = AppendAck(
            follower.broker,
            follower.incarnation,
            follower.log_id,
            epoch,
            0,
            0,
            sequence,
            conflict=True,
            hint_index=int(index),
            hint_epoch=epoch,
        )
        self.step(int(to), ack)

    def do_drop(self, sender: str, to: str) -> None:
        self.links[int(sender), int(to)].clear()

    def do_settle(self, *brokers: str) -> None:
        """Everything among those brokers happens: reads, writes, flushes, turns, deliveries; a little time passes."""
        chosen = [int(b) for b in brokers] or [h.broker for h in self.hosts.values() if h.up]
        for _ in range(200):
            before = self.fingerprint()
            self.now_ms += 10
            for broker in chosen:
                if self.hosts[broker].reading:
                    self.do_read(str(broker))
                if self.hosts[broker].writes:
                    self.do_cas(str(broker))
                self.do_flush(str(broker))
                self.do_turn(str(broker))
            for a, b in itertools.permutations(chosen, 2):
                self.do_deliver(str(a), str(b))
            if before == self.fingerprint():
                return
        raise AssertionError("the world does not settle")

    def do_quietly(self, *words: str, **options: str) -> None:
        """The rest of the line, without printing."""
        self.command(" ".join([*words, *(f"{k}={v}" for k, v in options.items())]))
        self.out = []

    def fingerprint(self) -> object:
        return (
            self.version,
            self.asked,
            [(h.synced, len(h.disk), len(h.writes), h.replica.high_watermark) for h in self.hosts.values()],
            [len(q) for q in self.links.values()],
        )

    def do_crash(self, *brokers: str) -> None:
        """kill -9: what was not synced is gone, links are cut."""
        for broker in brokers:
            host = self.hosts[int(broker)]
            host.up = False
            del host.disk[host.synced :]
            for a, b in self.links:
                if int(broker) in (a, b):
                    self.links[a, b].clear()

    def do_restart(self, broker: str, log: str = "") -> None:
        """A new life on the same disk; with log=NAME on an emptied one of that log id."""
        old = self.hosts[int(broker)]
        disk, snapshot, recovery = ([], None, 0) if log else (old.disk, old.snapshot, old.recovery)
        self.hosts[old.broker] = self._host(
            old.broker, old.incarnation + 1, log or old.log_id, disk, snapshot, recovery
        )
        for other in self.hosts.values():
            if other.up and other.broker != old.broker:
                self.step(other.broker, PeerConnected(old.broker))

    def do_old(self, broker: str, last_index: str) -> None:
        """The directory of that broker, which is down, is put back to a copy that ended there."""
        host = self.hosts[int(broker)]
        del host.disk[int(last_index) - host.base :]
        host.synced = len(host.disk)

    def do_cut(self, a: str, b: str) -> None:
        for x, y in ((int(a), int(b)), (int(b), int(a))):
            self.links[x, y].clear()
            if self.hosts[x].up:
                self.step(x, PeerDisconnected(y))

    def do_mend(self, a: str, b: str) -> None:
        for x, y in ((int(a), int(b)), (int(b), int(a))):
            self.step(x, PeerConnected(y))

    def do_session_lost(self, broker: str) -> None:
        self.step(int(broker), SessionLost())

    def do_disk_refuses(self, broker: str, first: str) -> None:
        self.step(int(broker), DiskRefused(int(first), "no space left"))

    def do_log_replaced(self, broker: str, log_id: str) -> None:
        self.step(int(broker), LogReplaced(log_id, "fsync failed"))

    def do_hand_over(self, broker: str, within: str = "1000") -> None:
        self.step(int(broker), HandOver(self.now_ms + int(within)))

    def do_transfer(self, broker: str, to: str, within: str = "1000") -> None:
        self.step(int(broker), TransferLeadership(int(to), self.now_ms + int(within)))

    def do_assigned(self, broker: str, *replicas: str) -> None:
        """`assigned 1 2 3`: broker 1 learns that the partition is on brokers 2 and 3 now."""
        self.step(int(broker), ReplicasChanged(tuple(map(int, replicas))))

    def do_begin(self, broker: str, first: str) -> None:
        """Its journal begins with that entry from now on; a snapshot stands for those before."""
        host, last = self.hosts[int(broker)], int(first) - 1
        gone = host.disk[: last - host.base]
        machine = PartitionMachine(
            self.settings.window, host.snapshot.state if host.snapshot is not None else MachineState()
        )
        for entry in gone:
            machine.apply(entry)
        del host.disk[: len(gone)]
        host.synced -= len(gone)
        host.snapshot = Snapshot(last, gone[-1].leader_epoch, gone[-1].timestamp_us, machine.state())
        self.step(host.broker, JournalBegins(int(first)))

    def do_trim(self, broker: str, start: str) -> None:
        self._propose(broker, Trim(int(start)))

    def _propose(self, broker: str, operation: Operation | AreStaged, at: str = "0", **fields: object) -> None:
        request = next(self.requests)
        self.step(int(broker), Propose(request, operation, int(at), **fields))  # type: ignore[arg-type]

    def do_append(
        self,
        broker: str,
        name: str,
        rows: str = "1",
        after: str = "",
        wait: str = "committed",
        at: str = "0",
        uuids: str = "",
    ) -> None:
        """`at`: the broker's wall clock then, in microseconds. `uuids`: those of the records, joined by commas."""
        records = [uuid(record) for record in uuids.split(",")] if uuids else []
        follows, count = uuid(after) if after else b"", len(records) or int(rows)
        append = Append(b"".join(records))
        self._propose(broker, append, at, uuid=uuid(name), record_count=count, after=follows, wait=Wait(wait))

    def do_stage(
        self, broker: str, name: str, batch: str, rows: str = "1", query: str = KEY.query_id, owner: str = ""
    ) -> None:
        stage = Stage(TransactionKey(query, KEY.sink), int(batch), "run1", owner=owner)
        self._propose(broker, stage, uuid=uuid(name), record_count=int(rows))

    def do_publish(self, broker: str, batch: str, *names: str) -> None:
        self._propose(broker, Publish(KEY, int(batch), tuple(uuid(n) for n in names)))

    def do_discard(self, broker: str, *names: str) -> None:
        self._propose(broker, Discard(KEY, tuple(uuid(n) for n in names)))

    def do_schedule(self, broker: str, name: str, due: str, rows: str = "1", most: str = "100") -> None:
        self._propose(broker, Schedule(int(due)), uuid=uuid(name), record_count=int(rows), scheduled_max=int(most))

    def do_due(self, broker: str, now: str) -> None:
        """What the leader does when it believes that it is `now`."""
        due = self.hosts[int(broker)].replica.machine.due_times.due(int(now), 1000)
        self._propose(broker, Publish(SCHEDULED, int(now), tuple(due)))

    def do_publish_due(self, broker: str, now: str, *names: str) -> None:
        self._propose(broker, Publish(SCHEDULED, int(now), tuple(map(uuid, names))))

    def do_carry(self, broker: str, name: str, rows: str = "1") -> None:
        self._propose(broker, Carry(), uuid=uuid(name), record_count=int(rows))

    def do_cancel(self, broker: str, name: str) -> None:
        self._propose(broker, Discard(SCHEDULED, (uuid(name),)))

    def do_cursor(
        self, broker: str, group: str, offset: str, forward: str = "no", kind: str = "consumer", owner: str = ""
    ) -> None:
        self._propose(broker, MoveCursor(group, int(offset), kind, forward == "yes", owner))

    def do_delete_group(self, broker: str, group: str) -> None:
        self._propose(broker, DeleteGroup(group))

    def do_work(self, broker: str, what: str, *named: str, member: str = "m", life: str = "1", n: str = "0") -> None:
        """`work 1 lease 2-4 7-8`: one step of queue group q. `n`: the number in the outbox of what is sent."""
        self._propose(broker, Work("q", int(life), (words.step_of(what, named, member, int(n)),)))

    def do_queue(self, *brokers: str) -> None:
        """What brokers know of queue group q."""
        for broker in brokers:
            host = self.hosts[int(broker)]
            self.say(host, words.queue_words(host.replica.machine.work.get("q")))

    def do_begin_epoch(self, broker: str) -> None:
        """No client may ask for that: a leader does it by itself."""
        self._propose(broker, EpochStart(int(broker)))

    def do_decide(
        self,
        broker: str,
        batch: str,
        rows: str = "10",
        run: str = "run1",
        keep: str = "no",
        once: str = "no",
        staged: str = "s",
        owner: str = "",
    ) -> None:
        manifest = (StagedPart("t", 0, (uuid(staged),), int(rows)),)
        decide = Decide(KEY, int(batch), run, int(rows), manifest, once=once == "yes", owner=owner)
        self._propose(broker, decide, keep_on_mismatch=keep == "yes")

    def do_are_staged(self, broker: str, batch: str, *names: str, owner: str = "anybody") -> None:
        whose = None if owner == "anybody" else owner
        self._propose(broker, AreStaged(KEY, int(batch), tuple(uuid(n) for n in names), whose))

    def do_give(self, broker: str, owner: str) -> None:
        self._propose(broker, Give(KEY, owner))

    def do_abort(self, broker: str) -> None:
        self._propose(broker, Abort(KEY))

    def do_fence(self, broker: str, *kept: str) -> None:
        self._propose(broker, Fence(KEY, tuple(uuid(n) for n in kept)))

    def do_forget(self, broker: str, *queries: str) -> None:
        self._propose(broker, Forget(tuple(TransactionKey(query, KEY.sink) for query in queries or [KEY.query_id])))

    def do_rest(self, *brokers: str) -> None:
        """Whether ticks may be few, as far as that replica is concerned."""
        for broker in brokers or map(str, self.hosts):
            host = self.hosts[int(broker)]
            self.say(host, "is at rest" if host.replica.at_rest else "is not at rest")

    def do_finish(self, broker: str, batch: str) -> None:
        self._propose(broker, Finish(KEY, int(batch)))

    def do_show(self, *brokers: str) -> None:
        for broker in brokers or map(str, self.hosts):
            host = self.hosts[int(broker)]
            replica = host.replica
            role = "leader" if replica.leading else "follower"
            log = (f"snapshot({host.base}) " if host.base else "") + (
                " ".join(words_of_entry(e) for e in host.disk) or "empty"
            )
            offsets = f"offsets {replica.machine.log_start_offset}..{replica.machine.next_offset}"
            cursors = "".join(f" {group}={cursor.offset}" for group, cursor in replica.machine.cursors.items())
            log += cursors and " cursors" + cursors
            self.say(host, f"{role} epoch {replica.leader_epoch} hw {replica.high_watermark} {offsets} log {log}")
        self.out.append(f"node version {self.version}: {words_of_state(self.node)}")

    def do_start(self) -> None:
        """All brokers registered, a leader elected, every log in sync."""
        self.do_seen(*map(str, self.hosts))
        self.do_read(*map(str, self.hosts))
        self.do_settle()
