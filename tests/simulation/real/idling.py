"""A queue group that is deleted when nobody has it open, in the simulated cluster: its members, and what must hold.

Visitors open the group now and then, hold leases for longer than it may be idle, stay away for longer, and declare it
again if it is gone. A leader may say that the group is idle only if nobody used it, there or at a later leader. The
group goes only after all leaders have said so to the one that deletes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mq_broker.broker.queues.idle import Idle
from mq_broker.coordination.interface import TopicSpec
from mq_broker.core.entries import Work
from mq_broker.core.work.steps import Lease
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import Overloaded, TritonMQError, UnknownQueue
from tests.simulation.real.clients import ANSWER_S, Client
from tests.simulation.real.loop import PROCESS

if TYPE_CHECKING:
    from tests.simulation.real.cluster import Cluster
    from tests.simulation.real.loop import Process

VISITS = "visits"
IDLE_S = 3.0
SETTINGS = {
    "idle_ms": f"{round(IDLE_S * 1000)}ms",
    "lease_ms": "1s",
    "delivery_limit": "0",
    "retry_ms": "0",
    "dead_letter": "drop",
}


class IdleTruth:
    """Owns when records of the group were lent, and what leaders have said of it since."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._written: dict[tuple[str, int, int], float] = {}
        self._used: dict[str, list[float]] = {}
        self._agreed: dict[str, list[float]] = {}  # by partition: when a leader said that it was idle
        self._asking: dict[object, tuple[str, float]] = {}  # who asks the leaders: about which topic, since when
        before = cluster.zookeeper.on_topic

        def on_topic(former: TopicSpec, now: TopicSpec) -> None:
            before(former, now)
            if VISITS in former.queues and VISITS not in now.queues:
                self._deleted(former)

        cluster.zookeeper.on_topic = on_topic

    def stepped(self, process: Process, replica: Any, before: int) -> None:
        """Take in which leases this replica has written and committed since; `before`: the high watermark as it
        was."""
        log, place = replica._shared.log, replica._shared.name
        if replica.leading:
            for index in range(max(log.last_index - log.tail_count, 0) + 1, log.last_index + 1):
                key = place, index, log.epoch_at(index)
                if key not in self._written and index in log._tail and _lends(log.entry(index).operation):
                    self._written[key] = self.cluster.loop.time()
        for index in range(before + 1, replica.high_watermark + 1):
            at = self._written.pop((place, index, log.epoch_at(index)), None)
            if at is not None:
                self._used.setdefault(place, []).append(at)
                self.cluster.done["visits"] += 1

    def says(self, process: Process, partition: Any, asked_at: float, idle_ms: int) -> None:
        """A leader that was asked then has answered."""
        if idle_ms < IDLE_S * 1000:
            self.cluster.done["in use, say leaders"] += 1
            return
        now, place = self.cluster.loop.time(), partition.name
        self.cluster.done["idle, say leaders"] += 1
        since = now - IDLE_S
        if used := [at for at in self._used.get(place, ()) if since < at < asked_at]:
            self.cluster.fail(f"{place}: {process} says that it is idle since {since:.6f}, and it was used at {used}")
        state = partition.replica.machine.work.get(VISITS)
        if state is not None and state.leases:
            self.cluster.fail(f"{place}: {process} says that it is idle, and it has leases: {dict(state.leases)}")
        if process.woke_at > since:
            self.cluster.fail(f"{place}: {process} says that it is idle, and stood still until {process.woke_at:.6f}")
        self._agreed.setdefault(place, []).append(now)

    def asks(self, topic: str) -> object:
        """The leaders are about to be asked."""
        who = object()
        self._asking[who] = topic, self.cluster.loop.time()
        return who

    def asked(self, who: object) -> None:
        self._asking.pop(who, None)

    def _deleted(self, former: TopicSpec) -> None:
        self.cluster.done["groups that nobody had open"] += 1
        for topic, since in self._asking.values():
            places = [f"{topic}-{number}" for number in range(len(former.assignment))]
            if topic == former.name and all(max(self._agreed.get(place, [-1.0])) >= since for place in places):
                return
        self.cluster.fail(f"{former.name}: a group is deleted, and not all leaders had said that it is idle")

    def why_not_gone(self) -> str:
        """Which group is there still; empty if none."""
        topics = self.cluster.zookeeper.topics.items()
        left = [name for name, (_, spec) in topics if VISITS in spec.queues]
        return f"nobody has the group {VISITS} of {left} open" if left else ""


def _lends(operation: object) -> bool:
    of_group = isinstance(operation, Work) and operation.group == VISITS
    return of_group and any(isinstance(step, Lease) for step in operation.steps)  # type: ignore[attr-defined]


class WatchedIdle(Idle):
    """What leaders say, and who asks them, known to the truth."""

    async def queue_idle(self, request: pb.QueueIdleRequest, deadline: float) -> pb.QueueIdleResponse:
        process = PROCESS.get()
        assert process is not None
        asked_at = process.oracle.cluster.loop.time()
        answer = await super().queue_idle(request, deadline)
        partition = self._shell.hosted(await self._topics.get(request.topic), request.partition)
        process.oracle.idle.says(process, partition, asked_at, answer.idle_ms)
        return answer

    async def _end_if_all_agree(self, partition: Any, group: str, watched: Any) -> int:
        process = PROCESS.get()
        assert process is not None
        truth = process.oracle.idle
        who = truth.asks(partition.topic.spec.name)
        try:
            return await super()._end_if_all_agree(partition, group, watched)
        finally:
            truth.asked(who)


class Visitor(Client):
    """Has the group open now and then."""

    def __init__(self, cluster: Cluster, name: str, topic: str, partitions: int) -> None:
        super().__init__(cluster, name)
        self.topic = topic
        self._partitions = partitions

    async def run(self) -> None:
        while not self.cluster.stopping:
            try:
                await self._visit(self.random.randrange(self._partitions))
            except UnknownQueue:
                await self._declare()
            except (TritonMQError, TimeoutError) as error:
                self.cluster.done[f"visit again: {type(error).__name__}"] += 1
                if isinstance(error, Overloaded):
                    await self._declare()
            await self.pause(self.random.choice((0.1, IDLE_S * 0.5, IDLE_S * 3)))

    async def _declare(self) -> None:
        request = pb.AlterQueueRequest(topic=self.topic, group=VISITS, settings=SETTINGS)
        try:
            await self.ask(self.any_broker(), "AlterQueue", request)
        except TritonMQError as error:
            self.cluster.done[f"declare again: {type(error).__name__}"] += 1

    async def _visit(self, partition: int) -> None:
        broker = await self.leader(self.topic, partition)
        if not broker:
            return
        request = pb.SessionRequest(credit=pb.WorkCredit(records=self.random.randint(1, 5), once=True))
        lent, _ = await self.lent(broker, self._opened(partition), pb.WorkTerms(), request, ANSWER_S)
        if not lent.HasField("lease"):
            return
        for _ in range(self.random.choice((0, 0, 8))):  # for longer than the group may be idle
            await self.pause(0.5)
            await self._say(partition, lent, pb.OUTCOME_EXTEND)
        if self.random.random() < 0.8:
            await self._say(partition, lent, pb.OUTCOME_ACK)

    async def _say(self, partition: int, lent: pb.LeaseResponse, outcome: pb.Outcome.ValueType) -> None:
        broker = await self.leader(self.topic, partition)
        settle = pb.SettleOne(lease=lent.lease, ranges=lent.ranges, outcome=outcome)
        if broker:
            await self.answered(broker, self._opened(partition), [settle])

    def _opened(self, partition: int) -> pb.WorkOpen:
        return pb.WorkOpen(topic=self.topic, partition=partition, group=VISITS, member=self.name, member_key=b"k" * 16)
