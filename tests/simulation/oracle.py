"""The invariants of replication, checked after every event, each as cheaply as it can be.

The oracle sees everything at once, which no broker can: every journal, what each is sure to keep through a crash, the
state nodes. Each check is incremental: what was found to hold is not looked at again. By induction over (index, epoch)
of single entries whole logs are compared.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from mq_broker.core.entries import Append, Carry, Decide, Entry, Fence, Publish, Schedule, Stage
from mq_broker.core.machine.state import Snapshot
from mq_broker.core.messages import (
    AppendAck,
    Done,
    Effect,
    Event,
    LeaderName,
    NodeState,
    OffsetsSkipped,
    PeerMessage,
    Propose,
    Published,
    RecoveredLog,
    Refused,
    Result,
    RoleChanged,
    SoFar,
    Wait,
)
from tests.simulation.journal import Journal
from tests.simulation.promises import check_promise, check_written, is_of_the_world
from tests.simulation.story import Line, Story
from tests.simulation.truth import STATES_COMPARED_EVERY, Life, PartitionTruth

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host, OnReply

NOTHING_HEARD = (0, -1, 0)


class Violation(AssertionError):
    """An invariant does not hold. `story`: the events that led there, for people."""

    def __init__(self, partition: int, what: str, story: str) -> None:
        super().__init__(f"partition {partition}: {what}")
        self.partition, self.what, self.story = partition, what, story

    def __reduce__(self) -> tuple[type[Violation], tuple[int, str, str]]:
        """Reports come from other processes too."""
        return Violation, (self.partition, self.what, self.story)


class Oracle:
    """Owns the truth, the story and the trace's hash."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.truths = [PartitionTruth(cluster.plan.settings.window) for _ in range(cluster.plan.partitions)]
        self.story = Story(cluster.plan.partitions)
        self.trace = 0
        self.stood_back_ms = -1 << 40
        cluster.coordination.on_written = self.node_written

    def life(self, partition: int) -> Life:
        """What is true of the partition now."""
        return self.truths[partition].present

    def life_of(self, host: Host) -> Life:
        """What is true as far as this replica can know: in the epoch that it is or was in, or its log was begun for."""
        truth, journal = self.truths[host.partition], host.journal
        known = journal.recovery, truth.believed_in.get(journal.log_id, 0)
        return truth.lives[max(truth.life_in(host.replica.leader_epoch).recovery, *known)]

    def violation(self, partition: int, what: str, *, changes_only: bool = False) -> Violation:
        return Violation(partition, what, self.story.tell(partition, self.views(partition), changes_only=changes_only))

    def views(self, partition: int) -> list[str]:
        """Each broker's view of the partition, and the state node, a line each."""
        node = self.cluster.coordination.nodes[partition]
        lines = [f"node version {node.version}: {self.story.state(node.state)}"]
        lines += [f"  may yet be written: {self.story.state(state)}" for state in node.pending]
        lines.append(f"committed up to {self.life(partition).end}")
        for broker in self.cluster.brokers.values():
            journal = broker.journals[partition]
            process = "paused" if broker.paused else f"life {broker.incarnation}" if broker.up else "down"
            line = f"broker {broker.number} ({process}): log {journal.log_id}, durable {journal.durable_end}"
            host = broker.hosts.get(partition)
            if host is not None:
                replica = host.replica
                role = "leads" if replica.leading else f"follows {replica.leader}"
                line += (
                    f", {role} in epoch {replica.leader_epoch}, hw {replica.high_watermark}, flushed "
                    f"{replica.flushed}, end {replica.last_index}" + (", closed" if host.closed else "")
                )
            after = f"snapshot up to {journal.base}, " if journal.base else ""
            lines.append(line + ": " + after + self.story.epochs(journal.entries))
        return lines

    # ------------------------------------------------------------------ one step of one replica

    def opened(self, host: Host, recovered: RecoveredLog) -> None:
        self.story.add(
            host.partition, Line(self.cluster.loop.now_us, host.broker.number, f"opens its log {host.journal.log_id}")
        )
        host.high_watermark = host.journal.base
        truth = self.truths[host.partition]
        for entry in recovered.entries[-1:]:
            if truth.positions.get((entry.index, entry.leader_epoch), (None, 0))[0] != entry:
                raise self.violation(
                    host.partition, f"broker {host.broker.number} recovered an entry that nobody wrote: {entry}"
                )
        if recovered.snapshot is not None:
            host.next_offset = recovered.snapshot.state.next_offset
            self.check_snapshot(host, recovered.snapshot)
        self.check_named(host.partition)

    def check_snapshot(self, host: Host, snapshot: Snapshot) -> None:
        """It is of what is committed, the same whoever made it, and no payload that is still needed is before its
        end."""
        lives = (self.life_of(host), self.life(host.partition))  # it may be sent one before it knows of a recovery
        wrong = [self._wrong(life, snapshot) for life in lives]
        if all(wrong):
            raise self.violation(
                host.partition,
                f"broker {host.broker.number} has a snapshot up to entry {snapshot.last_index}: {wrong[0]}",
            )

    def _wrong(self, life: Life, snapshot: Snapshot) -> str:
        last = snapshot.last_index
        if last > life.end or life.committed[last - 1].leader_epoch != snapshot.last_epoch:
            return f"of epoch {snapshot.last_epoch}, which is not committed"
        if life.snapshots.setdefault(last, snapshot) != snapshot:
            return f"it differs from another: {snapshot}, {life.snapshots[last]}"
        return f"the payload of entry {life.first_kept()} is still needed" if life.first_kept() <= last else ""

    def saw(self, host: Host, event: Event, effects: list[Effect]) -> None:
        replica = host.replica
        if isinstance(event, AppendAck) and replica.leading and event.leader_epoch == replica.leader_epoch:
            heard = event.incarnation, event.sequence, Journal.life_of(event.log_id)
            host.heard[event.follower] = max(host.heard.get(event.follower, NOTHING_HEARD), heard)
        self.story.add(
            host.partition,
            Line(
                self.cluster.loop.now_us,
                host.broker.number,
                event,
                effects,
                (replica.leader_epoch, replica.high_watermark, replica.flushed, replica.last_index),
            ),
        )
        self.trace = zlib.crc32(
            b"%d %d %d %d %d %d %d %d"
            % (
                self.cluster.loop.now_us,
                host.broker.number,
                host.partition,
                replica.leader_epoch,
                replica.high_watermark,
                replica.flushed,
                replica.last_index,
                len(effects),
            ),
            self.trace,
        )

    def after(self, host: Host) -> None:
        """The effects of a step were carried out."""
        replica, journal = host.replica, host.journal
        if (replica.first_index, replica.last_index) != (journal.base + 1, journal.last_index) and not host.closed:
            raise self.violation(
                host.partition,
                f"the core of broker {host.broker.number} has {replica.first_index}..{replica.last_index}, its journal "
                f"{journal.base + 1}..{journal.last_index}",
            )
        if replica.machine.next_offset != host.next_offset and not host.closed:
            raise self.violation(
                host.partition,
                f"the next offset of broker {host.broker.number} is {replica.machine.next_offset}, told were "
                f"{host.next_offset}",
            )

    def commits(self, host: Host) -> None:
        """A step was made: what does its replica now believe to be committed?"""
        journal = host.journal
        if host.replica.leader_epoch < host.epoch:
            raise self.violation(
                host.partition, f"the epoch of broker {host.broker.number} fell to {host.replica.leader_epoch}"
            )
        # It may commit and stand back in one step; one that hears of a new leader in it has committed nothing as a
        # leader.
        led = host.replica.leading or (host.was_leading and host.replica.leader_epoch == host.epoch)
        host.epoch = host.replica.leader_epoch
        high_watermark = host.replica.high_watermark
        if high_watermark == host.high_watermark:
            return
        if high_watermark < host.high_watermark:
            raise self.violation(
                host.partition,
                f"high watermark of broker {host.broker.number} fell from {host.high_watermark} to {high_watermark}",
            )
        life = self.life_of(host)
        self.truths[host.partition].go_on(life, journal, host.high_watermark, host.epoch)
        for index in range(host.high_watermark + 1, high_watermark + 1):
            entry = journal.entry(index)
            if index > life.end:
                self._committed(host, life, entry, led=led)
            elif life.committed[index - 1] is not entry and life.committed[index - 1] != entry:
                here, there = self.story.entry(entry), self.story.entry(life.committed[index - 1])
                raise self.violation(
                    host.partition, f"broker {host.broker.number} believes {here} committed, but {there} was"
                )
        host.high_watermark = high_watermark
        if host.replica.leading and journal.entry(high_watermark).leader_epoch != host.replica.leader_epoch:
            raise self.violation(
                host.partition,
                f"broker {host.broker.number} commits {high_watermark}, before the start of its own epoch",
            )
        if high_watermark == life.end:
            self.check_named(host.partition)
        self._compare_state(host, life, high_watermark)

    def _compare_state(self, host: Host, life: Life, high_watermark: int) -> None:
        """What the machine holds after entry `high_watermark` is what the journal says, and what every other has."""
        cursors = {group: cursor.offset for group, cursor in host.replica.machine.cursors.items()}
        if cursors != life.cursors[high_watermark]:
            raise self.violation(
                host.partition,
                f"at entry {high_watermark} groups are at {cursors} on broker {host.broker.number}; the journal says "
                f"{life.cursors[high_watermark]}",
            )
        if high_watermark % STATES_COMPARED_EVERY == 0:
            state = host.replica.machine.state()
            seen = tuple(uuid for uuid, _ in state.uuids)
            if seen != life.remembered[high_watermark]:
                raise self.violation(
                    host.partition,
                    f"at entry {high_watermark} broker {host.broker.number} remembers {len(seen)} UUIDs from "
                    f"{seen[:1]} on; the journal says {len(life.remembered[high_watermark])}",
                )
            if life.states.setdefault(high_watermark, state) != state:
                raise self.violation(
                    host.partition,
                    f"at entry {high_watermark} broker {host.broker.number} is at {state}, another was at "
                    f"{life.states[high_watermark]}",
                )

    def _committed(self, host: Host, life: Life, entry: Entry, *, led: bool) -> None:
        """For the first time anywhere. `led`: whoever commits it led the epoch that it is in."""
        if not led:
            raise self.violation(
                host.partition, f"broker {host.broker.number} follows, and commits {self.story.entry(entry)} first"
            )
        if isinstance(entry.operation, (Append, Stage, Schedule, Carry)):
            if entry.uuid in life.uuid_at and life.remembers(entry.uuid):
                raise self.violation(
                    host.partition,
                    f"batch {entry.uuid!r} is at entry {life.uuid_at[entry.uuid]} and again at {entry.index}",
                )
            if entry.uuid in self.truths[host.partition].never:
                raise self.violation(
                    host.partition, f"batch {entry.uuid!r} was refused for good, and is at entry {entry.index}"
                )
        if isinstance(entry.operation, Append):
            twice = [uuid for uuid in entry.operation.uuids() if uuid in life.window]
            if twice:
                raise self.violation(
                    host.partition, f"{self.story.entry(entry)} writes records again that are remembered: {twice}"
                )
        self._check_aborted(host.partition, life, entry)
        if (
            isinstance(entry.operation, Publish)
            and entry.leader_epoch >= life.first_epoch
            and life.names_missing(entry.operation)
        ):
            raise self.violation(host.partition, f"{self.story.entry(entry)} is published, and its payload is nowhere")
        life.commit(entry, host.epoch)
        if entry.leader_epoch >= life.first_epoch and life.next_offset < life.offset_floor:
            raise self.violation(
                host.partition,
                f"epoch {entry.leader_epoch} begins with offset {life.next_offset}, below {life.offset_floor}",
            )
        if isinstance(entry.operation, Publish):
            self._check_publish(host.partition, entry.operation)

    def _check_aborted(self, partition: int, life: Life, entry: Entry) -> None:
        """Under a key that was aborted nothing more is staged or decided; and what was decided is not forgotten. One
        alone decides under a key."""
        match entry.operation:
            case Decide(key, owner=owner) if life.owners.setdefault(key, owner) != owner:
                raise self.violation(partition, f"{self.story.entry(entry)} is decided, and its key is another's")
            case Stage(key) if key in life.fenced:
                raise self.violation(partition, f"{self.story.entry(entry)} is staged, and its key was fenced")
            case Decide(key, batch_id) if key in life.aborted and (key, batch_id) not in life.decided:
                raise self.violation(partition, f"{self.story.entry(entry)} is decided, and its key was aborted")
            case Fence(key) as fence if (
                len(self.truths[-1].lives) == 1
            ):  # else the abort may be lost, or what was decided
                decided = {
                    uuid
                    for (decided_key, _), decide in self.truths[-1].present.decided.items()
                    if decided_key == key
                    for line in decide.manifest
                    if line.partition == partition
                    for uuid in line.uuids
                }
                lost = decided & set(life.fenced_off(fence))
                if lost:
                    raise self.violation(partition, f"{self.story.entry(entry)} forgets {lost}, which was decided")
            case _:
                pass

    def _check_publish(self, partition: int, publish: Publish) -> None:
        place = (publish.key, publish.batch_id)
        decided = [life.decided[place] for life in self.truths[-1].lives if place in life.decided]
        lines = [line for decide in decided for line in decide.manifest if line.partition == partition]
        if all(publish.uuids != line.uuids for line in lines):
            raise self.violation(partition, f"{publish} is not what was decided: {decided}")

    def check_named(self, partition: int) -> None:
        """Every log that the node names, and that exists, surely keeps everything committed."""
        life = self.life(partition)
        end = life.end
        if not end or self.truths[partition].put_back:
            return
        state = self.cluster.coordination.nodes[partition].state
        for broker, log_id in state.isr:
            journal = self.cluster.brokers[broker].journals[partition]
            if journal.lacks_up_to:
                agrees = min(journal.durable_end, life.agrees_with(journal.durable_base, journal.durable))
                if agrees < min(journal.lacks_up_to, end):
                    continue  # an older copy was put back; whoever leads sends it what it lacks
                if agrees >= journal.lacks_up_to:  # else what it was named for may be committed yet
                    journal.lacks_up_to = 0
            if journal.log_id != log_id:
                if not log_id and broker not in self.truths[partition].unnamed:
                    raise self.violation(
                        partition, f"entry {end} is committed, and broker {broker} is named without a log"
                    )
                continue
            if journal.durable_base >= end:
                kept = self.truths[partition].made_of(journal.durable_base, journal.durable_snapshot, life) is not None
            elif journal.durable_end >= end:
                kept = (
                    journal.durable_entry(end) is life.committed[-1] or journal.durable_entry(end) == life.committed[-1]
                )
            else:
                kept = False
            if not kept:
                raise self.violation(
                    partition, f"log {log_id} is in the ISR and does not surely keep entry {end}, which is committed"
                )

    def given_up(self, broker: int, partition: int) -> None:
        """A broker is about to drop its log, for a snapshot, another log or nothing: not one that is counted on."""
        log_id, state = (
            self.cluster.brokers[broker].journals[partition].log_id,
            self.cluster.coordination.nodes[partition].state,
        )
        if (broker, log_id) in state.isr and not self.truths[partition].put_back:
            raise self.violation(partition, f"broker {broker} drops log {log_id}, which is in the ISR")

    # ------------------------------------------------------------------ effects

    def written(self, host: Host, entries: tuple[Entry, ...]) -> None:
        """Log matching: an entry of the same index and epoch is the same everywhere, and so is the one before it."""
        positions = self.truths[host.partition].positions
        log, snapshot = host.journal.entries, host.journal.snapshot
        before = log[-1].leader_epoch if log else snapshot.last_epoch if snapshot is not None else 0
        withdrawn = self.truths[host.partition].withdrawn
        for entry in entries:
            if withdrawn and withdrawn.get((entry.index, entry.leader_epoch)) == entry:
                if not host.replica.leading or host.replica.leader_epoch != entry.leader_epoch:
                    raise self.violation(
                        host.partition,
                        f"{self.story.entry(entry)}, which its leader took back, reached broker {host.broker.number}",
                    )
                # It was asked for again, within the same millisecond (seed 1675)
                del withdrawn[entry.index, entry.leader_epoch]
            known = positions.setdefault((entry.index, entry.leader_epoch), (entry, before))
            if known[0] is not entry and known[0] != entry:
                raise self.violation(
                    host.partition, f"two entries at {entry.index}/{entry.leader_epoch}: {known[0]} and {entry}"
                )
            if known[1] != before:
                where = f"at broker {host.broker.number} after epoch {before}, elsewhere after {known[1]}"
                raise self.violation(host.partition, f"{self.story.entry(entry)} is {where}")
            before = entry.leader_epoch

    def truncated(self, host: Host, last_index: int, *, by_disk: bool) -> None:
        if last_index < host.high_watermark:
            raise self.violation(
                host.partition, f"broker {host.broker.number} cuts to {last_index}, below its high watermark"
            )
        if by_disk and host.replica.leading:
            self._withdrawn(host, last_index)
        life = self.life_of(host)
        if by_disk or last_index >= min(life.end, host.journal.last_index):
            return
        # A log that is not named may, in an epoch before that in which the entry was committed: a leader that is over
        # may be heard late, and nobody counts on that log (seed 6495). Whoever leads in that epoch or a later one has
        # the entry.
        named = (host.broker.number, host.journal.log_id) in self.cluster.coordination.nodes[host.partition].state.isr
        since = host.replica.leader_epoch >= life.committed_in[last_index]
        if (named or since) and host.journal.entry(last_index + 1) == life.committed[last_index]:
            what = self.story.entry(life.committed[last_index])
            raise self.violation(host.partition, f"broker {host.broker.number} cuts {what}, which is committed")

    def _withdrawn(self, host: Host, last_index: int) -> None:
        """A leader whose disk refused an entry may write another in its place, if nobody was ever sent that one."""
        truth = self.truths[host.partition]
        for entry in host.refused_entries:
            truth.withdrawn[entry.index, entry.leader_epoch] = entry
            truth.positions.pop((entry.index, entry.leader_epoch), None)
            for broker in self.cluster.brokers.values():
                journal = broker.journals[host.partition]
                if broker is not host.broker and entry in journal.span(last_index + 1, entry.index):
                    raise self.violation(
                        host.partition, f"{self.story.entry(entry)} is taken back, and is at broker {broker.number}"
                    )

    def said(self, host: Host, ack: AppendAck | SoFar) -> None:
        """What is acknowledged is durable, and is what the leader of that epoch has."""
        journal = host.journal
        if isinstance(ack, SoFar) or Journal.life_of(ack.log_id) < Journal.life_of(journal.log_id):
            return  # the log was damaged a moment ago, and its replica is about to hear of it
        if ack.acknowledged_index > journal.durable_end:
            raise self.violation(
                host.partition,
                f"broker {host.broker.number} acknowledges {ack.acknowledged_index}, durable is {journal.durable_end}",
            )
        if ack.leader_epoch < host.acknowledged_epoch:
            raise self.violation(
                host.partition, f"broker {host.broker.number} acknowledges in epoch {ack.leader_epoch} again"
            )
        host.acknowledged_epoch = ack.leader_epoch
        if not ack.acknowledged_index:
            return
        for broker in self.cluster.brokers.values():
            other = broker.hosts.get(host.partition)
            if other is None or not other.replica.leading or other.replica.leader_epoch != ack.leader_epoch:
                continue
            index = ack.acknowledged_index
            if index <= journal.base:
                continue  # a snapshot stands for it: it is committed
            mine, its = journal.entry(index), other.journal.span(index, index)
            if index <= other.journal.base:
                its = tuple(self.life_of(other).committed[index - 1 : index])
            if not its or (its[0] is not mine and its[0] != mine):
                raise self.violation(
                    host.partition,
                    f"broker {host.broker.number} acknowledges {self.story.entry(mine)}, which its leader has not",
                )

    def answered(self, host: Host, request: int, result: Result) -> tuple[Propose, OnReply]:
        waiting = host.waiting.pop(request, None)
        if waiting is None:
            raise self.violation(
                host.partition, f"broker {host.broker.number} answers request {request}, which does not wait"
            )
        propose = waiting[0]
        if propose.wait is Wait.COMMITTED and not isinstance(result, Refused):
            check_promise(self, host, propose, result)
        elif propose.wait is Wait.WRITTEN and isinstance(result, Done) and not result.duplicate:
            check_written(self, host, propose, result.index)
        return waiting

    def published(self, host: Host, batch: Published) -> None:
        """Offsets are dense, what is at one never changes, whoever is asked, and what may be read is here (trap 32)."""
        life, who = self.life_of(host), f"broker {host.broker.number}"
        if batch.base_offset != host.next_offset:
            raise self.violation(host.partition, f"{who} gives offset {batch.base_offset}, next was {host.next_offset}")
        end = host.next_offset = host.next_offset + batch.record_count
        there = life.readable.get(batch.base_offset)
        if there != (batch.index, batch.record_count):
            raise self.violation(
                host.partition, f"offset {batch.base_offset} is {there}; at {who} it is entry {batch.index}"
            )
        if batch.index <= host.journal.base and end > life.log_start_offset and not life.missing(batch.index):
            raise self.violation(
                host.partition, f"{who} makes {batch.base_offset} readable, and entry {batch.index} is not here"
            )

    def skipped(self, host: Host, gap: OffsetsSkipped) -> None:
        host.next_offset = gap.next_offset
        if self.life_of(host).skipped.get(gap.first) != gap.next_offset:
            raise self.violation(host.partition, f"broker {host.broker.number} skips offsets that nobody lost: {gap}")

    def trimmed(self, host: Host, log_start_offset: int) -> None:
        if log_start_offset > self.life_of(host).log_start_offset:
            raise self.violation(
                host.partition, f"broker {host.broker.number} drops records that were not to go: {log_start_offset}"
            )

    def role_changed(self, host: Host, role: RoleChanged) -> None:
        if not role.leading:
            return
        truth = self.truths[host.partition]
        name = LeaderName(host.broker.number, host.broker.incarnation)
        known = truth.leaders.setdefault(role.leader_epoch, (name, id(host)))
        if known != (name, id(host)):
            raise self.violation(
                host.partition, f"epoch {role.leader_epoch} has two leaders: {known[0]} and {name}, or one twice"
            )
        if host.led_epoch == role.leader_epoch:
            return
        host.led_epoch = role.leader_epoch
        host.heard.clear()
        state = self.cluster.coordination.nodes[host.partition].state
        newest = state.leader_epoch == role.leader_epoch
        journal, committed = host.journal, self.life_of(host).committed
        end = len(committed)
        if newest and end > journal.base and (journal.last_index < end or journal.entry(end) != committed[-1]):
            raise self.violation(
                host.partition,
                f"broker {host.broker.number} leads epoch {role.leader_epoch} without entry {end}, which is committed",
            )

    def audited(self, host: Host, text: str, *, alarm: bool) -> None:
        if "standing back" in text or "its disk refused an entry" in text:
            self.stood_back_ms = self.cluster.loop.now_ms
        stale = (
            self.life_of(host) is not self.life(host.partition)
            or host.journal.recovery < self.life(host.partition).recovery
        )
        if alarm and not is_of_the_world(text, recovered=stale, restored=self.cluster.plan.restores > 0):
            raise self.violation(host.partition, f"broker {host.broker.number} raises the alarm: {text}")

    def nonsense(self, host: Host, message: PeerMessage, why: str) -> None:
        """What a broker of the cluster sent was refused as what none sends: its link would end again and again."""
        raise self.violation(
            host.partition, f"broker {host.broker.number} refuses {self.story.message(message)}: {why}"
        )

    # ------------------------------------------------------------------ the state node

    def proposed(self, host: Host, state: NodeState) -> None:
        """Whoever is newly named is named by the newest log that the proposer has heard of: the one that answered last
        (rule 5)."""
        known = host.replica._shared.node
        for member in state.isr:
            newest = host.heard.get(member[0], NOTHING_HEARD)[-1]
            if known is not None and member not in known.state.isr and Journal.life_of(member[1]) < newest:
                raise self.violation(
                    host.partition, f"broker {host.broker.number} names {member}, and has heard of a newer log"
                )

    def node_written(self, partition: int) -> None:
        node = self.cluster.coordination.nodes[partition]
        self.story.add(
            partition, Line(self.cluster.loop.now_us, 0, f"node version {node.version}: {self.story.state(node.state)}")
        )
        if self.truths[partition].still_put_back(node.state):
            return
        size, before = len({broker for broker, _ in node.state.isr}), self.truths[partition].isr_size
        self.truths[partition].isr_size = size
        if node.state.recovery > self.life(partition).recovery:
            self._recovered(partition, node.state)
        elif size < min(before, self.cluster.plan.settings.min_insync_replicas) or not size:
            raise self.violation(partition, f"the node names fewer than min_insync_replicas: {node.state}")
        truth = self.truths[partition]
        for broker, log_id in node.state.isr:
            number, newest = Journal.life_of(log_id), truth.newest_named.get(broker, 0)
            if number < newest and log_id != truth.went_back_to.get(broker):
                raise self.violation(
                    partition,
                    f"the node names a log of broker {broker} that it had replaced by a newer one: {node.state}",
                )
            if number != newest:  # that one, at last, or one begun since
                truth.went_back_to.pop(broker, None)
            truth.newest_named[broker] = number
        self.check_named(partition)

    def _recovered(self, partition: int, state: NodeState) -> None:
        """Rule 15: what the chosen log has stays as it is; what is lost is known to be."""
        truth = self.truths[partition]
        [(chosen, log_id)] = state.isr
        journal = self.cluster.brokers[chosen].journals[partition]
        there = journal.log_id == log_id
        kept = (journal.durable_base, journal.surely_kept) if there else (0, [])
        life = truth.recover(state.recovery, state.leader_epoch, *kept)
        self.cluster.workload.done["records lost in recoveries"] += sum(
            count for index, count in truth.lives[-2].readable.values() if index > life.end
        )
        life.offset_floor = state.offset_floor
        given = max(each.next_offset for each in truth.lives)  # by logs that were lost, too
        if state.offset_floor < given:
            raise self.violation(
                partition, f"offsets up to {given} were given, and new ones begin at {state.offset_floor}"
            )
        reach = truth.known(journal.base, journal.entries)[1] if there else 0
        for number in self.cluster.operator.asked[partition]:
            other = self.cluster.brokers[number].journals[partition]
            former, end = truth.known(other.durable_base, other.durable)
            # A log whose end was lost or damaged may have more of what was committed than one of a higher epoch that
            # led nobody: of two such the rule takes the higher epoch, and promises nothing (seed 4796).
            comparable = other.durable_epoch >= journal.durable_epoch
            if there and comparable and former is truth.lives[-2] and end > max(life.end, reach):
                raise self.violation(
                    partition,
                    f"the partition goes on from {log_id}, up to entry {life.end}; broker {number} had up to {end}",
                )
