"""Exactly-once micro-batches in a simulated cluster: queries that stage and decide, the coordinator that publishes, and
the administrator who aborts, and gives keys to other users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mq_broker.core.entries import (
    Abort,
    Decide,
    Discard,
    Fence,
    Finish,
    Give,
    Publish,
    Stage,
    TransactionKey,
)
from mq_broker.core.messages import Decided, Done, Refused
from mq_protocol.errors import (
    FencedRun,
    ReplayMismatch,
    StagedBatchMissing,
    TransactionAborted,
    TritonMQError,
)
from mq_protocol.manifest import StagedPart
from tests.simulation.loop import Process, Promise

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.workload import Workload


def uuid_of(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


class MicroBatches:
    """Owns which queries were aborted. `workload` asks, and counts what was done."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._loop = workload.loop
        self._aborted: set[TransactionKey] = set()

    def query(self, query: str) -> Process:
        """A streaming query: stage, decide, wait until it is published; now and then the driver dies and another begins
        again. One that was aborted begins as another query."""
        loop, random = self._loop, self._loop.random
        key, first, queries = TransactionKey(query, "t"), query, 0
        owner = f"User:{first}"
        batch_id, run, attempt, rows = 0, 1, 0, 0
        while not self._workload.stopped:
            yield loop.between(0, 800)
            if self._cluster.plan.aborts and loop.chance(self._cluster.plan.aborts):
                self._workload.spawn("administrator", self._abort(key))
            if key in self._aborted:
                queries += 1
                # Micro-batch 0 of it must not be taken for another's in the names of batches
                query = f"{first}{queries}_"
                key, batch_id, attempt = TransactionKey(query, "t"), 0, 0
            attempt += 1
            rows = rows if attempt > 1 and not loop.chance(0.3) else random.randint(1, 50)
            stage = Stage(key, batch_id, f"run{run}", owner=owner)
            manifest = yield from self._stage(stage, f"{query}{batch_id}.{attempt}", rows)
            if manifest is None or loop.chance(0.1):
                run += 1  # the driver dies before it decides; a new run does the same micro-batch again
                continue
            decide = Decide(key, batch_id, f"run{run}", rows, manifest, owner=owner)
            # This driver is only thought to be dead: another decides the same micro-batch at the same time
            if loop.chance(0.15):
                run += 1
                rows = rows if loop.chance(0.5) else random.randint(1, 50)
                stage = Stage(key, batch_id, f"run{run}", owner=owner)
                others = yield from self._stage(stage, f"{query}{batch_id}.{attempt}z", rows)
                self._workload.spawn("driver", self._decide(decide, again=True))
                if others is None:
                    continue
                decide = Decide(key, batch_id, f"run{run}", rows, others, owner=owner)
            result = yield from self._decide(decide, again=loop.chance(0.1))
            if result is None or loop.chance(0.1):
                run += 1  # it dies after; Spark runs the micro-batch again
                continue
            if isinstance(result, Refused) and isinstance(result.error, FencedRun):
                # The one thought to be dead was heard of later than this one: this one fails, loudly, and begins again
                run += 1
                continue
            if isinstance(result, Refused) and not isinstance(result.error, ReplayMismatch):
                if not result.error.retriable and key not in self._aborted:
                    raise self._cluster.oracle.violation(
                        self._workload.coordinator, f"micro-batch {batch_id} is refused: {result.error}"
                    )
                continue
            if isinstance(result, Decided):
                self._workload.done["micro-batches decided"] += 1
                # Where all logs may be lost, so may be whose a key is
                plan = self._cluster.plan
                if plan.thefts and not plan.total_losses and loop.chance(plan.thefts):
                    self._workload.spawn("thief", self._steal(key, batch_id, "User:thief"))
                if plan.gives and not plan.total_losses and loop.chance(plan.gives):
                    owner = yield from self._hand_over(key, batch_id, result.row_count, owner)
                batch_id, attempt = batch_id + 1, 0
            else:
                rows = self._decided_rows(key, batch_id, rows)

    def _decided_rows(self, key: TransactionKey, batch_id: int, rows: int) -> int:
        decide = self._cluster.oracle.life(self._workload.coordinator).decided.get((key, batch_id))
        if decide is None and any(
            (key, batch_id) in life.decided for life in self._cluster.oracle.truths[self._workload.coordinator].lives
        ):
            return rows  # it was, and that went with the logs that had it
        if decide is None:
            raise self._cluster.oracle.violation(
                self._workload.coordinator, f"micro-batch {batch_id} is said to be decided, and is not"
            )
        return decide.row_count

    def _hand_over(self, key: TransactionKey, batch_id: int, rows: int, former: str) -> Process:
        """An administrator gives the key to another user. Meanwhile a run of the former one, which somebody has
        forgotten, asks for the same micro-batch again. Once the key is given that user is as any thief. Returns whose
        it is."""
        loop, owner = self._loop, f"{former}+"
        stray = Decide(key, batch_id, f"stray {loop.random.randint(0, 1 << 30)}", rows, (), owner=former)
        self._workload.spawn("driver", self._decide(stray, again=True))
        while not self._workload.stopped:
            result = yield from self._workload.ask("admin", self._workload.coordinator, Give(key, owner), tries=20)
            if isinstance(result, Done):
                self._workload.done["keys given"] += 1
                self._workload.spawn("thief", self._steal(key, batch_id, former))
                return owner
            if isinstance(result, Refused) and isinstance(result.error, TransactionAborted):
                self._aborted.add(key)
                return former
            if isinstance(result, Refused) and not result.error.retriable:
                raise self._cluster.oracle.violation(
                    self._workload.coordinator, f"the key of {key.query_id} cannot be given: {result.error}"
                )
            yield loop.between(50, 500)
        return former

    def _steal(self, key: TransactionKey, batch_id: int, thief: str) -> Process:
        """Somebody else knows the key: the same micro-batch again, in a run that would fence the owner's, and one after
        it, which would make the owner's rows vanish."""
        for wanted in (batch_id, batch_id + 1):
            yield self._loop.between(0, 1_000)
            decide = Decide(key, wanted, "stolen", 0, (), owner=thief)
            result = yield from self._workload.ask("thief", self._workload.coordinator, decide, tries=5)
            if isinstance(result, Decided):
                raise self._cluster.oracle.violation(
                    self._workload.coordinator, f"micro-batch {wanted} of {key.query_id} is decided by a thief"
                )
            self._workload.done["thefts refused"] += isinstance(result, Refused)

    def _stage(self, stage: Stage, name: str, rows: int) -> Process:
        """Every task stages its rows, some twice (speculation: the loser's are in no manifest). None: the job
        failed."""
        loop = self._loop
        promises = []
        lines = []
        for partition in range(self._cluster.plan.partitions):
            attempts = 2 if loop.chance(0.2) else 1
            uuids = tuple(uuid_of(f"{name}.{partition}.{task}") for task in range(loop.random.randint(1, 2)))
            lines.append(StagedPart("t", partition, uuids, rows))
            for uuid in uuids:
                for again in range(attempts):
                    own = uuid if not again else uuid_of(uuid.rstrip(b"\0").decode() + "x")
                    promise = Promise()
                    promises.append((promise, again))
                    self._workload.spawn("stage", self._stage_one(partition, stage, own, rows, promise))
        for promise, again in promises:
            result = yield promise
            if not again and not isinstance(result, Done):
                return None
        return tuple(lines)

    def _stage_one(self, partition: int, stage: Stage, uuid: bytes, rows: int, promise: Promise) -> Process:
        result = yield from self._workload.ask(
            "tasks", partition, stage, uuid=uuid, record_count=rows, payload_bytes=rows * 20, tries=12
        )
        if isinstance(result, Refused) and isinstance(result.error, TransactionAborted):
            self._aborted.add(stage.key)
        promise.keep(result)

    def _decide(self, decide: Decide, *, again: bool) -> Process:
        """Ask until it is decided and finished: the coordinator publishes meanwhile. None: the driver died while it
        waited."""
        loop = self._loop
        while True:
            result = yield from self._workload.ask("driver", self._workload.coordinator, decide, tries=20)
            if isinstance(result, Refused) and isinstance(result.error, TransactionAborted):
                self._aborted.add(decide.key)
            if not isinstance(result, Decided):
                return result
            if result.finished:
                return result
            if again and loop.chance(0.3):
                return None
            if self._workload.stopped and loop.chance(0.2):
                return result
            yield loop.between(20, 300)

    def _abort(self, key: TransactionKey) -> Process:
        """An administrator takes the query for dead: its key is fenced at the coordinator, then in every partition. The
        command may die between any two of these, and be given again."""
        loop = self._loop
        yield loop.between(0, 1_500)
        while not self._workload.stopped:
            result = yield from self._workload.ask("admin", self._workload.coordinator, Abort(key), tries=20)
            number = self._workload.believed("admin", self._workload.coordinator)
            host = self._cluster.brokers[number].hosts.get(self._workload.coordinator) if number else None
            known = host.replica.machine.transactions.get(key) if host is not None else None
            if isinstance(result, Done) and known is not None and known.aborted:
                yield from self._fence_all(key, known.manifest)
                if not loop.chance(0.3):
                    return
            yield loop.between(50, 1_000)

    def _fence_all(self, key: TransactionKey, manifest: tuple[StagedPart, ...]) -> Process:
        for partition in range(self._cluster.plan.partitions):
            if self._loop.chance(0.1):
                return
            kept = tuple(uuid for line in manifest if line.partition == partition for uuid in line.uuids)
            result = yield from self._workload.ask("admin", partition, Fence(key, kept), tries=20)
            self._workload.done["partitions fenced"] += isinstance(result, Done)

    def decision_committed(self, host: Host, decide: Decide) -> None:
        """The coordinator's leader publishes what is decided, and goes on until all is, or until it leads no longer."""
        self._workload.spawn("publisher", self._publish(host, decide))

    def _publish(self, host: Host, decide: Decide) -> Process:
        me = f"broker {host.broker.number}"
        if self._cluster.plan.publish_ms:
            yield self._loop.between(0, self._cluster.plan.publish_ms)
        if self._loop.chance(0.1):
            yield self._loop.between(0, 1_000)
        for line in decide.manifest:
            operation = Publish(decide.key, decide.batch_id, line.uuids)
            while True:
                if not self._workload.leads(host):
                    return
                result = yield from self._workload.ask(me, line.partition, operation, tries=3)
                if isinstance(result, Done) or not self._must_retry(line.partition, operation, result):
                    break
        result = yield from self._workload.ask(
            me, self._workload.coordinator, Finish(decide.key, decide.batch_id), only=host
        )
        if isinstance(result, Done):
            self._workload.done["micro-batches published"] += 1
            yield from self._discard_losers(host, decide)

    def _must_retry(self, partition: int, operation: Publish, result: Refused | None) -> bool:
        """False if there is nothing left to publish: its batches went with the logs that had them."""
        error: TritonMQError | None = result.error if result is not None else None
        if isinstance(error, (StagedBatchMissing, TransactionAborted)):
            if self.went_with_logs(partition, operation):
                return False
            raise self._cluster.oracle.violation(
                partition, f"{operation} was decided, and its batches are gone: {error}"
            )
        return True

    def went_with_logs(self, partition: int, publish: Publish) -> bool:
        """Why a decided batch may never be published (rule 15): some of it, or that it was published once, or what had
        been decided of this micro-batch or a later one, or that its key was aborted, was in logs that were lost."""
        oracle = self._cluster.oracle
        *former, present = oracle.truths[partition].lives
        for uuid in publish.uuids:
            if uuid in present.uuid_at:
                gone = present.missing(present.uuid_at[uuid])
            else:
                gone = any(uuid in life.uuid_at for life in former)
            if gone or any(life.uuid_at.get(uuid) in life.placed for life in former):
                return True
        *former, present = oracle.truths[self._workload.coordinator].lives
        decided = any((publish.key, publish.batch_id) in life.decided for life in former)
        if not decided and any(publish.key in life.aborted for life in former):
            return True  # it is fenced where its batches were, and its coordinator has decided since
        return any(
            key == publish.key and batch_id >= publish.batch_id and present.decided.get((key, batch_id)) != decide
            for life in former
            for (key, batch_id), decide in life.decided.items()
        )

    def _discard_losers(self, host: Host, decide: Decide) -> Process:
        """What was staged under a finished micro-batch and is in no manifest is forgotten."""
        for line in decide.manifest:
            broker = host.broker.hosts.get(line.partition)
            if broker is None or not self._workload.leads(host):
                return
            staged = broker.replica.machine.staged.values()
            losers = tuple(
                batch.uuid for batch in staged if batch.key == decide.key and batch.batch_id <= decide.batch_id
            )
            if losers:
                result = yield from self._workload.ask(
                    f"broker {host.broker.number}", line.partition, Discard(decide.key, losers), tries=3
                )
                self._workload.done["staged batches discarded"] += len(losers) if isinstance(result, Done) else 0
