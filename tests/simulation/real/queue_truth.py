"""What is committed about a queue group in one partition, applied entry by entry to a model that keeps every record by
itself (tests/mq_broker/core/work/model.py), and what must hold of it.

Each step of an entry must have a cause: a request that some member made, a lease whose time was over, a process that
took another's place. What members are told must be what the entries say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mq_broker.core.entries import Entry, EpochStart, Trim, Work
from mq_broker.core.machine.machine import PartitionMachine
from mq_broker.core.machine.window import WindowBounds
from mq_broker.core.messages import OffsetsSkipped, Published
from mq_broker.core.work import state as work_state
from mq_broker.core.work.endings import How
from mq_broker.core.work.state import NO_MARK, WorkState
from mq_broker.core.work.steps import Accept, Begin, Drop, Lease, LeaseId, Reason, Reject, Return, Send, Step
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.core.work.model import Model, Record, offsets_of
from tests.simulation.real.lending_truth import LendingTruth
from tests.simulation.real.lives import Life
from tests.simulation.real.order_truth import OrderTruth

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process

GROUP = "work"
DEAD, OUTPUTS = ".dead", ".out"
"""How the names of the topics end in which dead letters and outputs of members are published."""

ACK_WITH_OUTPUT = 100
"""Beside the outcomes of the protocol: an ack with one record that is to be published."""

HOWS = {
    pb.OUTCOME_ACK: How.ACCEPTED,
    pb.OUTCOME_RELEASE: How.RELEASED,
    pb.OUTCOME_FAIL: How.FAILED,
    pb.OUTCOME_REJECT: How.REJECTED,
}
LEASE_S = 3.0
RESUME_S = 1.0
DELIVERY_LIMIT = 4
INHERITED_S = 10.0
"""A lease that a new leader finds lives at least for so long."""

RAN_OUT, REPLACED, FAILED = "the lease ran out", "the process that held it ended", "it failed"
LOST = "the connection of the member that held it broke, and it did not come back"
MODEL_EVERY = 10
"""Entries of the group after which the whole state is compared with the model."""

Asked = tuple[LeaseId, int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """An entry, when its leader put it into the journal, who that was, and when that had last been woken."""

    entry: Entry
    at: float
    by: Process
    woke_at: float


class QueueTruth:
    """Owns the model of one partition's queue group, and what members have asked."""

    def __init__(self, cluster: Cluster, place: str) -> None:
        self.cluster = cluster
        self.place = place
        self.delivery_limit = DELIVERY_LIMIT
        self.recoveries = 0
        self._written: dict[tuple[int, int], Written] = {}
        self._asked: set[Asked] = set()
        self._lives: Counter[str] = Counter()
        self._extended: dict[tuple[LeaseId, int], tuple[float, int]] = {}
        self._heard: dict[str, list[tuple[float, float]]] = {}  # of each session: when it was opened, and first heard
        self._opened: set[str] = set()
        self._led_from: dict[int, float] = {}
        self._lent_at: dict[LeaseId, float] = {}
        self._lent: dict[tuple[LeaseId, int], tuple[int, int]] = {}
        self._ended: dict[tuple[LeaseId, int], int] = {}
        self._ended_at: dict[tuple[LeaseId, int], int] = {}
        self._replaced: Counter[str] = Counter()
        self._works = 0
        self._checked: set[tuple[int, int]] = set()
        self.order = OrderTruth(self, cluster.plan.order)
        self.lending = LendingTruth(self, GROUP)
        self.lost_decisions: dict[str, Counter[int]] = {DEAD: Counter(), OUTPUTS: Counter()}
        """By the ending of a topic's name: offsets of which something was decided to be published there, by an entry
        that a recovery lost."""
        self._begin()

    def _begin(self) -> None:
        """With the first entry of a life of the partition."""
        self.at = 0
        self._epochs: dict[int, int] = {}
        self._machine = PartitionMachine(WindowBounds(1_000))
        self._model = Model({})
        self._former: dict[int, dict[LeaseId, How]] = {}  # of records that the model has forgotten, as they have ended
        self._life = 0
        self._recovery = 0  # the last that ended the leases of the group
        self._gaps: list[tuple[int, int]] = []  # offsets that are nobody's, each (first, next)
        self._next = 0  # offsets below are in the model, or settled for long
        self.dead: set[int] = set()
        """Offsets that were settled as dead letters."""
        self.outputs: dict[int, LeaseId] = {}
        """Offsets of which an output was decided, and by which lease."""

    def _go_on(self, life: Life) -> None:
        """The partition was recovered: what its log had is true, and what came after it is not any more."""
        dead, outputs = self.dead, set(self.outputs)
        self._begin()
        self.recoveries = life.recovery
        self._take_up(life)
        self.lost_decisions[DEAD].update(dead - self.dead)
        self.lost_decisions[OUTPUTS].update(outputs - set(self.outputs))

    def _take_up(self, life: Life) -> None:
        while self.at + 1 in life.committed:
            self._commit(self.at + 1, life.committed[self.at + 1])

    def is_old(self, asked_at: float) -> bool:
        """What was answered to a request of that time may be lost."""
        return asked_at <= self.cluster.oracle.recoveries.at(self.place)

    def _fail(self, what: str) -> None:
        self.cluster.fail(f"{self.place}: {what}")

    # ------------------------------------------------------------------ entries

    def stepped(self, process: Process, replica: Any, before: int) -> None:
        """Take in what this replica has written and committed since; `before`: the high watermark as it was."""
        log = replica._shared.log
        self.lending.see(process, replica)
        for index in range(max(log.last_index - log.tail_count, 0) + 1, log.last_index + 1):
            key = index, log.epoch_at(index)
            known = self._written.get(key)
            # A leader whose disk refused an entry may write another one in its place in the same epoch
            anew = known is not None and known.by is process and index > self.at
            if (known is None or anew) and index in log._tail:
                entry = log.entry(index)
                if known is None or known.entry != entry:
                    self._written[key] = Written(entry, self.cluster.loop.time(), process, process.woke_at)
                    self.lending.wrote(process, replica, index, entry)
        high_watermark = replica.high_watermark
        if high_watermark == before:
            return
        life = self.cluster.oracle.recoveries.lives(self.place).present
        if life.recovery > self.recoveries:
            self._go_on(life)
        self._take_up(life)
        if replica.applied_index == self.at and log.epoch_at(self.at) == self._epochs[self.at]:
            mine, its = self._machine.work.get(GROUP), replica.machine.work.get(GROUP)
            if (mine is None) != (its is None) or (mine and its and mine.frozen() != its.frozen()):
                self._fail(f"{process} has another state of the queue group at entry {self.at} than a replay")

    def _commit(self, index: int, epoch: int) -> None:
        written = self._written[index, epoch]
        entry, operation = written.entry, written.entry.operation
        self.at, self._epochs[index] = index, epoch
        if isinstance(operation, EpochStart):
            self._led_from[epoch] = written.at
            self._recover(operation.recovery)
        if isinstance(operation, Work) and operation.group == GROUP:
            self._work(operation, index, written)
        self._note_keys(self._machine.apply(entry))
        state = self._machine.work.get(GROUP)
        if state is None or not self._life:
            return
        self._follow_log(entry, state)
        if isinstance(operation, Work):
            self.order.check(self._model, index)
            self._check_beginning(operation, state)
        if isinstance(operation, Work):
            self._works += 1
            if state.span > work_state.SPAN_MAX:
                self._fail(f"{state.span} records from base to frontier are more than {work_state.SPAN_MAX}")
            if self._works % MODEL_EVERY == 0:
                self.compare()

    def _work(self, work: Work, index: int, written: Written) -> None:
        """What was committed before a recovery has been looked at then."""
        epoch = written.entry.leader_epoch
        state = self._machine.work.get(GROUP)
        runs = state.runs if state is not None else 0
        ahead = state.copy() if state is not None and self.cluster.plan.tight else None
        fresh = (index, epoch) not in self._checked
        self._checked.add((index, epoch))
        if fresh:
            self.lending.begin(index, epoch, work, self._model, runs)
        for number, step in enumerate(work.steps):
            if isinstance(step, Begin):
                self._begins(work.life, step.recovery)
            elif work.life == self._life:
                at = LeaseId(epoch, index, number)
                if fresh:
                    self._check(step, at, written, ahead.runs if ahead is not None else 0)
                if ahead is not None:
                    ahead.apply(step, at, self._machine.next_offset)
                self._note_outputs(step)
                self._model.apply(step, at)
                if isinstance(step, Lease):
                    self._note_lent(at)
                elif isinstance(step, Send) and self._model.last_n == step.n and not step.member:
                    self.dead.update(offsets_of(step.ranges))
        if fresh:
            self.lending.end(index, epoch, self._model)

    def _recover(self, recovery: int) -> None:
        """The first leadership after a recovery ends every lease, and charges nobody."""
        if not self._life or recovery <= self._recovery:
            return
        self._recovery = recovery
        for record in self._model.records.values():
            if record.lease is not None:
                self._model.give_back(record)

    def _check_beginning(self, work: Work, state: WorkState) -> None:
        """A group that is worked off from the earliest record on begins where the log does."""
        start = self._machine.log_start_offset
        begins = work.group == GROUP and any(isinstance(step, Begin) for step in work.steps)
        if begins and state.begun[1] == self.at and state.base != start:
            self._fail(f"the queue group begins at offset {state.base}, and the log at {start}")

    def _note_keys(self, changes: list[Any]) -> None:
        for change in changes:
            if isinstance(change, OffsetsSkipped):
                self._gaps.append((change.first, change.next_offset))
            elif isinstance(change, Published):
                uuid = self._written[change.index, self._epochs[change.index]].entry.uuid
                values = self.cluster.values.get(uuid, ())
                self.order.published(change.base_offset, values)
                self.lending.published(change, uuid, values)

    def _begins(self, life: int, recovery: int) -> None:
        if life > self._life:
            self._life, self._model, self._next, self._recovery = life, Model({}), -1, recovery
            self._former = {}

    def _follow_log(self, entry: Entry, state: WorkState) -> None:
        """New records, and those that no one can be lent any more."""
        operation = entry.operation
        records = self._model.records
        if self._next < 0:
            self._next = state.base
        for offset in range(self._next, self._machine.next_offset):
            if not any(first <= offset < after for first, after in self._gaps):
                records[offset] = Record()
            elif offset + 1 == self._machine.next_offset:
                records[offset] = Record(settled=True)  # for the others that are nobody's
        self._next = max(self._next, self._machine.next_offset)
        if isinstance(operation, Trim):
            for offset, record in records.items():
                if offset < self._machine.log_start_offset:
                    self._model.drop(record, Reason.RETENTION)

    def compare(self) -> None:
        """The state is what the model says, of each record."""
        state = self._machine.work.get(GROUP)
        if state is None or not self._model.records:
            return
        try:
            self._model.agrees_with(state)
            self._model.agrees_with(WorkState.thawed(state.frozen()))  # as one that opens with a snapshot has it
        except AssertionError as error:
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_next is not None:
                traceback = traceback.tb_next
            line = traceback.tb_lineno if traceback is not None else 0
            self._fail(f"the state at entry {self.at} is not what the model says (line {line}): {error}")
        keep = max(self._model.records)
        for offset in [each for each in self._model.records if each < min(state.base, keep)]:
            self._former[offset] = self._model.records.pop(offset).ended

    # ------------------------------------------------------------------ each step has a cause

    def _check(self, step: Step, at: LeaseId, written: Written, runs: int) -> None:
        match step:
            case Drop():
                self.lending.check(step, at, self._model, full=runs >= work_state.RUNS_MAX)
            case Lease(ranges, _):
                self.lending.check(step, at, self._model, full=runs >= work_state.RUNS_MAX)
                # Where records are lent out of their order, what was left behind may be lent.
                lent_to = self._lent_to() if self.cluster.plan.sieves or self.cluster.plan.priority else 0
                fresh = [o for o in offsets_of(ranges) if (r := self._model.records.get(o)) is None or r.mark is None]
                fresh = [o for o in fresh if o >= lent_to]
                if fresh and runs >= work_state.RUNS_MAX:
                    self._fail(f"fresh records {fresh} are lent while {runs} runs are kept")
            case Accept(ranges, late):
                self.order.accepts(ranges, self._model)
                for offset, record in self._unsettled(ranges):
                    if record.lease is not None and record.lease[:2] != at[:2]:
                        self._has_cause(record.lease, offset, pb.OUTCOME_ACK, "is settled")
                    elif record.lease is None and (late is None or (late, offset, pb.OUTCOME_ACK) not in self._asked):
                        self._fail(f"offset {offset} is settled, and no member has acknowledged it")
                    elif late is not None and not record.welcomes(late, How.ACCEPTED, DELIVERY_LIMIT):
                        self._fail(f"offset {offset} is settled late, and {late} is not its last lease: {record}")
            case Send():
                self._check_send(step, at)
            case Return() | Reject():
                leases = {o: record.lease for o, record in self._unsettled(step.ranges) if record.lease is not None}
                self.order.gives_back(step, leases, self._model, at.entry)
                for offset, lease in leases.items():
                    self._check_return(step, lease, offset, written)

    def _lent_to(self) -> int:
        state = self._machine.work.get(GROUP)
        return max(state.frontier, state.marks.end()) if state is not None else 0

    def _check_send(self, step: Send, at: LeaseId) -> None:
        if step.n <= self._model.last_n:
            self._fail(f"number {step.n} of the outbox does not come after {self._model.last_n}")
        if step.n >> 32 != at.leader_epoch:
            self._fail(f"number {step.n} of the outbox does not begin with epoch {at.leader_epoch}")
        if step.member:
            self.order.accepts(step.ranges, self._model)
        for offset, record in self._unsettled(step.ranges):
            if step.member and record.lease is not None:
                self._has_cause(record.lease, offset, ACK_WITH_OUTPUT, "is settled with an output")
            elif record.lease is not None:
                self._fail(f"offset {offset} is sent as a dead letter, and is in {record.lease}")
            elif step.reason is Reason.EXPIRED:
                self.lending.check_expired({offset}, at, "dead")
            elif step.reason is Reason.LENGTH:
                self.lending.check_surplus(offset, at)
            elif not (record.mark or NO_MARK).doomed(DELIVERY_LIMIT):
                self._fail(f"offset {offset} is sent as a dead letter, and is not doomed: {record}")

    def _note_outputs(self, step: Step) -> None:
        if isinstance(step, Send) and step.member:
            leases = {offset: record.lease for offset, record in self._unsettled(step.ranges)}
            self.outputs.update({offset: lease for offset, lease in leases.items() if lease is not None})

    def _unsettled(self, ranges: Any) -> list[tuple[int, Record]]:
        found = ((offset, self._model.records.get(offset)) for offset in offsets_of(ranges))
        return [(offset, record) for offset, record in found if record is not None and not record.settled]

    def _has_cause(self, lease: LeaseId, offset: int, outcome: int, what: str) -> None:
        if (lease, offset, outcome) not in self._asked:
            member = self._model.members[lease]
            self._fail(f"offset {offset} {what} while {member} has it in {lease} and did not ask for that")

    def _check_return(self, step: Return | Reject, lease: LeaseId, offset: int, written: Written) -> None:
        outcome = -1
        if isinstance(step, Reject):
            outcome = pb.OUTCOME_REJECT
            self._has_cause(lease, offset, outcome, "is rejected")
        elif step.charged and step.error == RAN_OUT:
            self._check_ran_out(lease, offset, written)
        elif step.charged and step.error == REPLACED:
            member = self._model.members[lease]
            self._replaced[member] += 1
            if self._replaced[member] > self._lives[member] - 1:
                self._fail(f"offset {offset} is charged, and {member} was not replaced so often")
        elif step.charged and step.error == LOST:
            self._check_lost(self._model.members[lease], lease, offset, written)
        elif step.charged:
            outcome = pb.OUTCOME_FAIL
            self._has_cause(lease, offset, outcome, "is charged")
        elif step.said:
            outcome = pb.OUTCOME_RELEASE
            self._has_cause(lease, offset, outcome, "is released")
        self._ended[lease, offset] = outcome
        self._ended_at[lease, offset] = self.at

    def _check_lost(self, member: str, lease: LeaseId, offset: int, written: Written) -> None:
        """A member is taken for lost only some time after its session broke, which its leader may have known alone. One
        that its leader had heard of lived at least until it was opened."""
        heard = [opened for opened, heard_at in self._heard.get(member, ()) if heard_at <= written.at]
        if member not in self._opened:
            self._fail(f"offset {offset} of {lease} is charged, as if a session of {member} broke, and it had none")
        elif heard and written.at < max(heard) + RESUME_S:
            self._fail(f"offset {offset} of {lease} is charged, and {member} has just opened a session")

    def _check_ran_out(self, lease: LeaseId, offset: int, written: Written) -> None:
        """Nobody is charged before the time is over: of the lease, an extension, a new leader, one that woke."""
        epoch = written.entry.leader_epoch
        if lease.leader_epoch == epoch:
            until, why = self._lent_at[lease] + LEASE_S, "it was lent"
        else:
            until, why = self._led_from.get(epoch, 0.0) + INHERITED_S, "its leader was a new one"
        extended_at, broker = self._extended.get((lease, offset), (0.0, 0))
        if broker == written.by.broker and extended_at + LEASE_S > until:
            until, why = extended_at + LEASE_S, "it was extended"
        if written.woke_at + LEASE_S > until:
            until, why = written.woke_at + LEASE_S, "its leader had stood still"
        if written.at < until:
            self._fail(f"the lease {lease} of offset {offset} ran out {until - written.at:.3f} s early, since {why}")

    def _note_lent(self, lease: LeaseId) -> None:
        self._lent_at.setdefault(lease, self.cluster.loop.time())
        for offset, record in self._model.records.items():
            if record.lease == lease:
                mark = record.mark or NO_MARK
                self._lent[lease, offset] = mark.deliveries + 1, mark.failures

    # ------------------------------------------------------------------ what members ask and are told

    def lives(self, member: str) -> None:
        """Another process begins under this name."""
        self._lives[member] += 1

    def asks(self, lease: LeaseId, offset: int, outcome: int) -> None:
        """A member is about to settle it."""
        self._asked.add((lease, offset, outcome))

    def was_asked(self, lease: LeaseId, offset: int) -> bool:
        """Whether its member has asked for its lease to end."""
        back = (pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE, pb.OUTCOME_REJECT)
        return any((lease, offset, outcome) in self._asked for outcome in back)

    def received(self, lease: LeaseId, offset: int, asked_at: float, counts: tuple[int, int]) -> None:
        """A member was lent the record by an answer to what it asked at that time, with these counts of deliveries and
        failures."""
        lent = self._lent.get((lease, offset))
        if lent is None:
            self._fail(f"offset {offset} came in {lease}, and no committed entry has lent it so")
        elif lent != counts:
            self._fail(f"offset {offset} came in {lease} with counts {counts}, and the entries say {lent}")
        else:
            written = self._written[lease.entry, lease.leader_epoch]
            if written.at < asked_at:
                self._fail(f"offset {offset} came in {lease}, which was made before the request that it answers")

    def written_at(self, lease: LeaseId) -> float:
        """When its entry was put into the journal."""
        return self._written[lease.entry, lease.leader_epoch].at

    def opens(self, member: str) -> None:
        """It has asked for a session. Whether its leader hears of it is not known."""
        self._opened.add(member)

    def hears(self, member: str, opened_at: float) -> None:
        """It was told something by the session that it opened then, for the first time."""
        self._heard.setdefault(member, []).append((opened_at, self.cluster.loop.time()))

    def not_claimed(self, member: str, claimed: dict[LeaseId, set[int]], lease: LeaseId) -> None:
        """A session that began with these claims pushed this lease: what else the member had has gone back."""
        for offset, record in self._model.records.items():
            its = record.lease
            mine = its is not None and its < lease and self._model.members[its] == member
            if its is not None and mine and offset not in claimed.get(its, ()):
                self._fail(f"offset {offset} is in {its} still, though {member} did not claim it before {lease}")

    def gave_back(self, lease: LeaseId, offset: int, outcome: int, entry: int) -> bool:
        """Whether that outcome has ended the lease by that entry, as far as is committed."""
        known = self._ended.get((lease, offset)) == outcome
        return known and self._ended_at[lease, offset] <= entry

    def was_said(self, item: Asked) -> bool:
        """Whether somebody has asked for that before."""
        return item in self._asked

    def not_named(self, member: str, named: set[LeaseId], lease: LeaseId) -> None:
        """The member was lent this lease by a request that named others: the rest has gone back."""
        for offset, record in self._model.records.items():
            its = record.lease
            if its is not None and its < lease and its not in named and self._model.members[its] == member:
                self._fail(f"offset {offset} is in {its} still, though {member} did not name it before {lease}")

    def answered(self, lease: LeaseId, offset: int, outcome: int, lost: bool, asked_at: float, broker: int) -> None:
        """What a member was told of its request is so: what is said to be done is what has ended this lease."""
        record = self._model.records.get(offset)
        if self.is_old(asked_at):
            return
        held = record is not None and not record.settled and record.lease == lease
        how = (record.ended if record is not None else self._former.get(offset, {})).get(lease)
        if outcome == ACK_WITH_OUTPUT:
            if lost == (self.outputs.get(offset) == lease):
                self._fail(f"the output of offset {offset} was said to be {'lost' if lost else 'decided'}, and is not")
        elif lost and held:
            self._fail(f"offset {offset} was said to be lost, and is in {lease} still")
        elif outcome == pb.OUTCOME_EXTEND:
            if not lost:
                self._extended[lease, offset] = asked_at, broker
        elif lost == (how is HOWS[outcome]):
            state = self._machine.work.get(GROUP)
            if not lost or (state is not None and state.endings.is_whole(lease)):
                told = "lost" if lost else "done"
                self._fail(f"outcome {outcome} of offset {offset} was said to be {told}, and {lease} ended so: {how!r}")
