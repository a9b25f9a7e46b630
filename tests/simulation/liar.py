"""A broker that lies: messages that no broker would send, mutated, forged and said again, through the admission that
brokers have.

Nothing can be promised of the data then: brokers believe each other. What is promised is that no broker dies of it: no
assertion of the core, of the journal or of the offset index can be reached by a message, and nothing that cannot be
written to a disk or a link. So there is an oracle of its own, which holds only that.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mq_broker.core.entries import (
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
)
from mq_broker.core.machine.state import Cursor, MachineState, Snapshot, StagedBatch, TransactionState
from mq_broker.core.machine.window import NO_UUIDS, Placed, SeenUuids
from mq_broker.core.messages import (
    AppendAck,
    AppendEntries,
    Effect,
    Event,
    InstallSnapshot,
    NodeState,
    OffsetsSkipped,
    PeerMessage,
    Propose,
    Published,
    RecoveredLog,
    Result,
    RoleChanged,
    Send,
    SoFar,
)
from mq_broker.storage.codec.frame import Place, encode
from mq_broker.storage.codec.snapshot import encode_snapshot
from mq_protocol.limits import next_life
from mq_protocol.manifest import StagedPart
from tests.simulation.loop import Process
from tests.simulation.oracle import Oracle
from tests.simulation.workload import Workload, uuid_of

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host, OnReply

KEY = TransactionKey("q", "s")
PLACE = Place("t", 0)
FAR = (0, 1, -1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
"""Numbers at which something may go over: they all fit the wire."""

MENDS_MS = 1_500
PATIENCE_MS = 3_000

Lie = PeerMessage


class DeathsOnly(Oracle):
    """Holds that brokers live, and that what they write and say can be written and said. What is true does not interest
    it."""

    def opened(self, host: Host, recovered: RecoveredLog) -> None:
        host.high_watermark = host.journal.base
        host.next_offset = recovered.snapshot.state.next_offset if recovered.snapshot is not None else 0

    def check_snapshot(self, host: Host, snapshot: Snapshot) -> None:
        self._bears(host, "write its snapshot", lambda: encode_snapshot(PLACE, snapshot))

    def saw(self, host: Host, event: Event, effects: list[Effect]) -> None:
        super().saw(host, replace(event, log_id="1.1") if isinstance(event, AppendAck) else event, effects)
        for effect in effects:
            if isinstance(effect, Send):
                self._check_said(host, effect)

    def _check_said(self, host: Host, sent: Send) -> None:
        message = sent.message
        numbers = [value for field in fields(message) if isinstance(value := getattr(message, field.name), int)]
        if min(numbers) < 0 or max(numbers) >= 1 << 63:
            raise self.violation(host.partition, f"broker {host.broker.number} says {self.story.message(message)}")

    def _bears(self, host: Host, what: str, do: Any) -> None:
        try:
            do()
        except Exception as error:
            raise self.violation(host.partition, f"broker {host.broker.number} cannot {what}: {error!r}") from error

    def written(self, host: Host, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            self._bears(host, f"write {entry}", lambda entry=entry: encode(PLACE, replace(entry, payload_bytes=0)))

    def published(self, host: Host, batch: Published) -> None:
        """As the offset index asserts it."""
        if batch.base_offset != host.next_offset or batch.record_count <= 0:
            raise self.violation(
                host.partition, f"broker {host.broker.number}, at offset {host.next_offset}, publishes {batch}"
            )
        host.next_offset += batch.record_count

    def skipped(self, host: Host, gap: OffsetsSkipped) -> None:
        if gap.first != host.next_offset:
            raise self.violation(
                host.partition, f"broker {host.broker.number}, at offset {host.next_offset}, skips {gap}"
            )
        host.next_offset = gap.next_offset

    def trimmed(self, host: Host, log_start_offset: int) -> None:
        if log_start_offset > host.next_offset:
            raise self.violation(
                host.partition,
                f"broker {host.broker.number} trims to {log_start_offset}, the end is {host.next_offset}",
            )

    def nonsense(self, host: Host, message: Lie, why: str) -> None:
        self.cluster.faults["lie refused"] += 1

    def answered(self, host: Host, request: int, result: Result) -> tuple[Propose, OnReply]:
        waiting = host.waiting.pop(request, None)
        if waiting is None:
            raise self.violation(
                host.partition, f"broker {host.broker.number} answers request {request}, which does not wait"
            )
        return waiting

    def commits(self, host: Host) -> None: ...
    def given_up(self, broker: int, partition: int) -> None: ...
    def check_named(self, partition: int) -> None: ...
    def truncated(self, host: Host, last_index: int, *, by_disk: bool) -> None: ...
    def said(self, host: Host, ack: AppendAck | SoFar) -> None: ...
    def role_changed(self, host: Host, role: RoleChanged) -> None: ...
    def audited(self, host: Host, text: str, *, alarm: bool) -> None: ...
    def proposed(self, host: Host, state: NodeState) -> None: ...
    def node_written(self, partition: int) -> None: ...


class Careless(Workload):
    """Clients that ask for all kinds of things and look at no answer."""

    def start(self) -> None:
        for partition in range(self.cluster.plan.partitions):
            self.spawn("careless", self._ask(partition))

    def decision_committed(self, host: Host, decision: object) -> None:
        pass

    def _ask(self, partition: int) -> Process:
        number, chance = 0, self.loop.random
        while True:
            yield self.loop.between(1, 2 * self.cluster.plan.pace_ms)
            number += 1
            uuid = uuid_of(f"c{number}")
            earlier = tuple(uuid_of(f"c{chance.randint(1, number)}") for _ in range(2))
            operations: list[Operation] = [Append()] * 4
            operations += [Stage(KEY, number, "r"), Publish(KEY, number, earlier), Discard(KEY, earlier)]
            operations += [Trim(chance.randint(0, number)), MoveCursor("g", number, "consumer")]
            operation = chance.choice(operations)
            sized = {"uuid": uuid, "record_count": 2} if isinstance(operation, (Append, Stage, Schedule, Carry)) else {}
            broker = self.cluster.brokers[chance.choice(sorted(self.cluster.brokers))]
            host = broker.hosts.get(partition)
            if host is not None and broker.up and not broker.paused:
                broker.propose(host, {"operation": operation, **sized}, lambda result: None)


class Liar:
    """Owns what is said that is not so. Also heals, as an operator with `--force`: else the partition would soon have
    no leader."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.chance = cluster.loop.random
        self._token = 0

    def start(self) -> None:
        self.loop.spawn(self._lie())
        for partition in range(self.cluster.plan.partitions):
            self.loop.spawn(self._heal(partition))

    # ------------------------------------------------------------------ what is said

    def _lie(self) -> Process:
        while True:
            yield self.chance.expovariate(1 / self.cluster.plan.lies_ms)
            broker = self.cluster.brokers[self.chance.choice(sorted(self.cluster.brokers))]
            open_hosts = [host for host in broker.hosts.values() if not host.closed]
            if not open_hosts or not broker.up or broker.paused:
                continue
            host = self.chance.choice(open_hosts)
            lie = self._forged(host)
            if self.chance.random() < 0.3:
                lie = self._mutated(host, lie)
            self.cluster.faults["lie"] += 1
            broker.arrive("liar", broker.hear, host.partition, lie)

    def _forged(self, host: Host) -> Lie:
        seen = [message for partition, message in self.cluster.network.seen if partition == host.partition]
        kind = self.chance.choice(("said again", "entries", "entries", "ack", "so far", "snapshot"))
        if kind == "said again" and seen:
            return self.chance.choice(seen)
        if kind == "so far":
            return self._so_far(host, [message.question for message in seen if isinstance(message, SoFar)])
        if kind == "ack" or (host.replica.leading and self.chance.random() < 0.5):
            return self._ack(host)
        return self._snapshot(host) if kind == "snapshot" else self._entries(host)

    def _number(self, *likely: int) -> int:
        """Mostly what would be right, often almost, now and then far off."""
        dice = self.chance.random()
        if dice < 0.94:
            return self.chance.choice(likely)
        return self.chance.choice(likely) + self.chance.choice((-1, 1)) if dice < 0.97 else self.chance.choice(FAR)

    def _speaker(self, host: Host, leader: bool) -> tuple[int, int]:
        others = [number for number in sorted(self.cluster.brokers) if number != host.broker.number] or [99]
        known = host.replica.leader
        number = known if leader and known not in (0, host.broker.number) else self.chance.choice(others)
        speaker = self.cluster.brokers.get(number)
        return number, speaker.incarnation if speaker is not None else 1

    def _epoch(self, host: Host) -> int:
        """The present one for the most part: an epoch that is seen is not given up, and an old one is not heard."""
        epoch = host.replica.leader_epoch
        dice = self.chance.random()
        return epoch if dice < 0.9 else epoch + 1 if dice < 0.95 else self._number(epoch, epoch + (1 << 20))

    def _entries(self, host: Host) -> AppendEntries:
        replica, log = host.replica, host.replica._shared.log
        leader, incarnation = self._speaker(host, leader=True)
        epoch = self._epoch(host)
        previous = self._number(
            replica.last_index, replica.last_index, replica.high_watermark, log.base_index, log.flushed
        )
        before = self._number(log.epoch_at(previous), log.epoch_at(previous), epoch)
        entries, at, last = [], previous, before
        for _ in range(self.chance.randint(0, 4)):
            at, last = self._number(*[at + 1] * 9), self._number(last, last, epoch)
            entries.append(self._entry(at, last))
        last_index = previous + len(entries) if self.chance.random() < 0.9 else self._number(at)
        high_watermark = self._number(last_index, replica.high_watermark, replica.last_index + 1)
        sequence = self.chance.randint(1, 1_000) if self.chance.random() < 0.9 else self._number(1)
        successor = self._number(0, 0, 0, host.broker.number)
        return AppendEntries(
            leader,
            incarnation,
            epoch,
            previous,
            before,
            last_index,
            high_watermark,
            sequence,
            tuple(entries),
            successor,
        )

    def _entry(self, index: int, epoch: int) -> Entry:
        uuid = uuid_of(f"c{self.chance.randint(1, 50)}")
        offset = self._number(0, 5, 100)
        if self.chance.random() < 0.3:
            operation = self._of_a_transaction(uuid)
        else:
            operation = self.chance.choice(
                (
                    Append(),
                    Append(uuid + uuid_of("own")[: self.chance.choice((0, 5, 16, 16))]),
                    Stage(KEY, self._number(1), "r"),
                    Publish(KEY, self._number(1), (uuid, uuid_of(f"c{self.chance.randint(1, 50)}"))),
                    Discard(KEY, (uuid,)),
                    Trim(offset),
                    EpochStart(1, offset),
                    MoveCursor("g", offset, "consumer"),
                    DeleteGroup(self.chance.choice(("g", "nobody", ""))),
                )
            )
        count = self._number(1, 2, 2) if isinstance(operation, (Append, Stage, Schedule, Carry)) else 0
        return Entry(
            index,
            epoch,
            self._number(self.loop.now_us),
            operation,
            uuid,
            count,
            self._number(0, 100),
            self._number(0, 100),
        )

    def _of_a_transaction(self, uuid: bytes) -> Operation:
        """What coordinators and the partitions of a sink have in their journals. Any partition may be sent it."""
        key = self.chance.choice((KEY, KEY, TransactionKey("another", "s"), TransactionKey("", "")))
        batch_id, run_id = self._number(1, 2, 3), self.chance.choice(("r", "another", ""))
        operations: tuple[Operation, ...] = (
            Decide(key, batch_id, run_id, self._count(), self._manifest(uuid), once=self.chance.random() < 0.5),
            Finish(key, batch_id),
            Abort(key),
            Give(key, self.chance.choice(("User:etl", ""))),
            Fence(key, (uuid,) * self.chance.randint(0, 2)),
            Fence(key, (uuid[:5], b"")),
            Forget((key, KEY)[: self.chance.randint(0, 2)]),
        )
        return self.chance.choice(operations)

    def _count(self) -> int:
        """A number that is 64 bits without a sign on the wire."""
        return self._number(0, 2, 5) % (1 << 64)

    def _manifest(self, uuid: bytes) -> tuple[StagedPart, ...]:
        lines = (
            StagedPart("t", 0, (uuid,), self._count()),
            StagedPart("", self.chance.choice((-1, 7, (1 << 31) - 1)), (uuid[:5], uuid, uuid), self._count()),
            StagedPart("t", 0, (), 0),
        )
        return tuple(self.chance.choice(lines) for _ in range(self.chance.randint(0, 2)))

    def _ack(self, host: Host) -> AppendAck:
        replica, log = host.replica, host.replica._shared.log
        follower, incarnation = self._speaker(host, leader=False)
        last_index, sequence = replica.last_sent
        matched = self._number(last_index, last_index, replica.high_watermark, log.base_index)
        acknowledged = self._number(matched, matched, replica.high_watermark)
        hint = self._number(log.base_index, replica.last_index, 0)
        return AppendAck(
            follower,
            incarnation,
            self.chance.choice((f"{follower}:0.1", "another.7", "x" * 100)),
            self._epoch(host),
            acknowledged,
            matched,
            self._number(sequence, sequence, 1),
            self.chance.random() < 0.4,
            hint,
            self._number(log.epoch_at(hint), replica.leader_epoch, 0),
        )

    def _so_far(self, host: Host, asked: list[str]) -> SoFar:
        """As an answer to what was asked, or as a question."""
        replica = host.replica
        broker, incarnation = self._speaker(host, leader=False)
        last_index = self._number(replica.last_index, replica.last_index + 1, 0)
        last_epoch = self._number(replica.last_epoch, replica.leader_epoch, 0)
        question = self.chance.choice([*asked[-3:], "x", "x" * 200])
        log_id = self.chance.choice((f"{broker}:0.1", "another.7", "x" * 100))
        asks = self.chance.random() < 0.5
        return SoFar(broker, incarnation, log_id, self._epoch(host), last_index, last_epoch, question, asks)

    def _snapshot(self, host: Host) -> InstallSnapshot:
        replica = host.replica
        leader, incarnation = self._speaker(host, leader=True)
        epoch = self._epoch(host)
        last = self._number(replica.last_index + 5, replica.last_index, replica.high_watermark, replica.first_index)
        ends = self._number(20, replica.machine.next_offset)
        placed = tuple(
            (uuid_of(f"c{n}"), Placed(self._number(last), self._number(0, -1, ends), self._number(5))) for n in range(5)
        )
        staged = StagedBatch(
            uuid_of("c9"),
            KEY,
            1,
            "r",
            self._number(1),
            self._number(last),
            self._number(5),
            self._number(10),
            self._number(10),
        )
        try:
            seen = SeenUuids.of(placed[: self.chance.randint(0, 5)])
        except OverflowError:  # brokers find that when they read the snapshot: it is dropped there
            seen = NO_UUIDS
        state = MachineState(
            ends,
            self._number(0, ends),
            seen,
            (staged,) * self.chance.randint(0, 1),
            published=((KEY, self._number(1)),) * self.chance.randint(0, 1),
            cursors=(("g", Cursor(self._number(5), "consumer", self._count())),) * self.chance.randint(0, 1),
            transactions=((KEY, self._transaction()),) * self.chance.randint(0, 1),
            fenced=(KEY, KEY)[: self.chance.randint(0, 2)],
        )
        snapshot = Snapshot(last, self._number(epoch, replica.last_epoch), self._number(self.loop.now_us), state)
        return InstallSnapshot(leader, incarnation, epoch, self.chance.randint(1, 1_000), snapshot)

    def _transaction(self) -> TransactionState:
        decided, finished, aborted = (self.chance.random() < 0.5 for _ in range(3))
        return TransactionState(
            self._number(1, -1),
            self.chance.choice(("r", "")),
            self._count(),
            self._manifest(uuid_of("c9")) if decided else (),
            finished,
            ("r",) * self.chance.randint(0, 2),
            aborted=aborted,
            changed_us=self._count(),
        )

    def _mutated(self, host: Host, lie: Lie) -> Lie:
        """One number is another."""
        names = [field.name for field in fields(lie) if isinstance(getattr(lie, field.name), int)]
        name = self.chance.choice(names)
        return replace(lie, **{name: self._number(getattr(lie, name), getattr(lie, name) + 1, host.replica.last_index)})

    # ------------------------------------------------------------------ what an operator does about it

    def _heal(self, partition: int) -> Process:
        """Where the node is below an epoch that was seen, or no named log is left: another log, a higher epoch (rule
        15)."""
        coordination = self.cluster.coordination
        while True:
            yield MENDS_MS
            node = coordination.nodes[partition]
            hosts = [
                host for broker in self._up() if (host := broker.hosts.get(partition)) is not None and not host.closed
            ]
            if not hosts or not coordination.up:
                continue
            seen = max(host.replica.leader_epoch for host in hosts)
            named = {(host.broker.number, host.journal.log_id) for host in hosts} & set(node.state.isr)
            if seen <= node.state.leader_epoch and (named or not node.state.leader_epoch):
                continue
            kept = max(hosts, key=lambda host: (host.replica.last_epoch, host.replica.last_index))
            self._token += 1
            state = NodeState(
                None,
                max(seen, node.state.leader_epoch) + 1,
                ((kept.broker.number, kept.journal.log_id),),
                node.state.recovery + 1,
                f"heal.{self._token}",
                min(next_life(node.state.offset_floor), 1 << 60),
            )
            if coordination.recover(partition, node.version, state):
                self.cluster.faults["partition recovered"] += 1

    def _up(self) -> list[Broker]:
        return [broker for broker in self.cluster.brokers.values() if broker.up and not broker.paused]
