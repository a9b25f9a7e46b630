"""What operators do to a simulated cluster: retention, moves of partitions, recovery of one whose every named log is
lost.

None of them knows more than a real one could: what the coordination service has, what brokers answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.broker.administration.recovery import choose, describe, passed_over
from mq_broker.core.entries import Trim
from mq_broker.core.messages import Done, Refused, TransferLeadership
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Operator:
    """Owns what is under way by command. `asked`: by partition, the brokers that answered when it was last
    recovered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.asked: dict[int, list[int]] = {}

    def start(self) -> None:
        plan, workload = self.cluster.plan, self.cluster.workload
        for partition in range(plan.partitions):
            if plan.retains_ms:
                workload.spawn("retention", self._retain(partition))
            if plan.moves_ms:
                workload.spawn("move", self._move(partition))
            self.loop.spawn(self._recover(partition))

    def _retain(self, partition: int) -> Process:
        """Drop the oldest records, now and then all of them (trap 23)."""
        loop, oracle, workload = self.loop, self.cluster.oracle, self.cluster.workload
        while not workload.stopped:
            yield min(loop.random.expovariate(1 / self.cluster.plan.retains_ms), 5_000)
            life = oracle.life(partition)
            start = max(0, life.next_offset - loop.random.choice((0, 10, 100, 500)))
            result = yield from workload.ask("retention", partition, Trim(start), tries=6)
            if isinstance(result, Done):
                workload.done["trims"] += not result.duplicate
            elif isinstance(result, Refused) and not result.error.retriable and life is oracle.life(partition):
                raise oracle.violation(
                    partition, f"records below {start} are committed, and are not dropped: {result.error}"
                )

    # ------------------------------------------------------------------ moves

    def _move(self, partition: int) -> Process:
        """Assign the partition to other brokers while it is written to: to both sets first, to the new one once that is
        in sync and leads."""
        loop, coordination, workload = self.loop, self.cluster.coordination, self.cluster.workload
        while not workload.stopped:
            yield min(loop.random.expovariate(1 / self.cluster.plan.moves_ms), 5_000)
            _, present = coordination.assigned[partition]
            count = loop.random.randint(self.cluster.plan.fewest_replicas, self.cluster.plan.brokers)
            targets = tuple(loop.random.sample(self.cluster.plan.settings.replicas, count))
            self._assign(partition, present + tuple(broker for broker in targets if broker not in present))
            patience = loop.random.randint(5, 60)
            while not (yield from self._arrived(partition, targets)):
                patience -= 1
                if not patience and not workload.stopped:
                    targets = present  # it takes too long: everything back, which is a move too
            self._assign(partition, targets)
            workload.done["moves"] += 1

    def _assign(self, partition: int, replicas: tuple[int, ...]) -> None:
        self.cluster.oracle.story.note(self.loop.now_us, f"partition {partition} is assigned to {list(replicas)}")
        self.cluster.coordination.assign(partition, replicas)

    def _arrived(self, partition: int, targets: tuple[int, ...]) -> Process:
        """Whether all of them are in sync and one leads, as just read; what can be done for that is done."""
        yield self.loop.between(100, 1_000)
        state = self.cluster.coordination.nodes[partition].state
        if not self.cluster.coordination.up or not set(targets) <= {broker for broker, log_id in state.isr if log_id}:
            return False
        if self.cluster.plan.hasty or state.leader is None:
            return state.leader is not None
        broker = self.cluster.brokers[state.leader.broker]
        host = broker.hosts.get(partition)
        serves = host is not None and not host.closed and host.replica.ready
        if state.leader.broker in targets:
            return serves
        if serves:
            transfer = TransferLeadership(self.loop.random.choice(targets), self.loop.now_ms + 2_000)
            self.loop.after(self.loop.often_short(0.2, 12.0), broker.arrive, "clients", broker.feed, host, transfer)
        return False

    # ------------------------------------------------------------------ recovery

    def _recover(self, partition: int) -> Process:
        """Try again and again, as nobody should: it must be refused while a log that is named may be whole."""
        coordination, number = self.cluster.coordination, 0
        while True:
            yield self.loop.between(500, 3_000)
            version, state = coordination.nodes[partition].version, coordination.nodes[partition].state
            statuses = self._ask_all(
                partition, {*coordination.assigned[partition][1], *(broker for broker, _ in state.isr)}
            )
            number += 1
            left = any(
                self.cluster.brokers[broker].journals[partition].log_id == log_id for broker, log_id in state.isr
            )
            # A broker that is named and no replica any more opens nothing: its disk was looked at by hand. Who is one
            # may yet start, and open (seed 5368).
            assigned = set(coordination.assigned[partition][1])
            opening = any(not statuses[broker].open for broker in assigned)
            force = not left and not opening and state.leader_epoch > 0 and not assigned >= {b for b, _ in state.isr}
            try:
                choice = choose(f"t-{partition}", state, statuses, f"recover.{partition}.{number}", force=force)
            except InvalidRequest:
                continue
            # By rule 15, whatever the logs have of what was committed: the oracle, which knows, holds no lower epoch
            # against it. Nor a log that is about to be put aside, as the recovery before says.
            going = passed_over(state, statuses)
            best = max((s.last_epoch, s.last_index) for b, s in statuses.items() if s.open and b not in going)
            kept = choice.kept
            if (kept.last_epoch, kept.last_index) != best or not (
                force or all(each.open for each in statuses.values())
            ):
                raise self.cluster.oracle.violation(
                    partition,
                    f"it would be recovered from broker {kept.broker}, and another has {best}, or is yet to open",
                )
            if left:
                raise self.cluster.oracle.violation(
                    partition, f"it would be recovered though a named log is left: {state}"
                )
            yield self.loop.often_short(1, 500)
            if not self.cluster.plan.total_losses:
                continue  # this operator does not dare
            self.asked[partition] = sorted(statuses)
            if coordination.up and coordination.recover(partition, version, choice.state):
                self.cluster.faults["partition recovered"] += 1

    def _ask_all(self, partition: int, brokers: set[int]) -> dict[int, pb.ReplicaStatusResponse]:
        """What each says of its replica. Of one that does not answer: that it is not open."""
        statuses = {}
        for number in sorted(brokers):
            broker = self.cluster.brokers[number]
            host = broker.hosts.get(partition)
            status = statuses[number] = pb.ReplicaStatusResponse(broker=number)
            if broker.up and not broker.paused and host is not None and not host.closed:
                describe(host.replica, status)
        return statuses
