"""What clients do to a simulated cluster: chained producers, groups, readers, and queries (micro_batches.py).

Each client is a process in virtual time that retries as the real ones do: after an unknown outcome with the same UUID,
at another broker when told so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mq_broker.core.entries import (
    Append,
    Decide,
    DeleteGroup,
    MoveCursor,
    Operation,
    Publish,
)
from mq_broker.core.messages import Decided, Done, RecordsThere, Refused, Result, Wait
from mq_protocol.errors import (
    NotLeader,
    RefusedError,
)
from tests.simulation.loop import Process, Promise
from tests.simulation.micro_batches import MicroBatches, uuid_of

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

REQUEST_TIMEOUT_MS = (800, 3_000)
OPERATIONS_MAX = 1_500
"""Appends a seed makes at most, so that a quiet one does not take for ever."""


class Workload:
    """Owns the clients, and what they were promised."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.done: Counter[str] = Counter()
        self.stopped = False
        self._running: Counter[str] = Counter()
        self._chains: dict[str, tuple[int, list[bytes]]] = {}
        self._acked: list[tuple[int, bytes]] = []
        self._believed: dict[tuple[str, int], int] = {}
        self._seen_at: dict[tuple[int, int, int], int] = {}
        self._appends = 0
        self._micro_batches = MicroBatches(self)

    @property
    def coordinator(self) -> int:
        """The last partition also keeps the decisions."""
        return self.cluster.plan.partitions - 1

    def start(self) -> None:
        plan = self.cluster.plan
        for partition in range(plan.partitions):
            for number in range(plan.producers):
                self.spawn("producer", self._produce(partition, f"p{number}.{partition}"))
            self.spawn("reader", self._read(partition, f"r{partition}"))
            for group in (f"g{partition}", f"h{partition}"):  # two: what becomes of one leaves the other alone
                self.spawn("group", self._keep_group(partition, group))
            self.spawn("repeating producer", self._repeat_records(partition, f"u{partition}"))
            self.spawn("forgetful producer", self._ask_long_after(partition))
        self.spawn("query", self._micro_batches.query("q"))

    def spawn(self, kind: str, process: Process) -> None:
        def run() -> Process:
            self._running[kind] += 1
            yield from process
            self._running[kind] -= 1

        self.loop.spawn(run())

    def wind_up(self) -> None:
        """Begin nothing new; finish what was begun."""
        self.stopped = True

    def unanswered(self) -> list[tuple[int, str]]:
        return [
            (self.coordinator, f"{count} of kind {kind} still wait for an answer")
            for kind, count in self._running.items()
            if count
        ]

    # ------------------------------------------------------------------ asking

    def _request(self, number: int, partition: int, propose: dict[str, Any]) -> Promise:
        """One attempt at one broker; kept with a result, or None past the client's patience."""
        loop = self.loop
        promise = Promise()
        loop.after(loop.between(*REQUEST_TIMEOUT_MS), promise.keep, None)
        broker = self.cluster.brokers[number]
        life = broker.life

        def back(result: Result) -> None:
            if not loop.chance(self.cluster.network.condition.drop):
                loop.after(loop.often_short(0.2, 12.0), promise.keep, result)

        def take() -> None:
            host = broker.hosts.get(partition)
            if host is None:
                back(Refused(NotLeader("this replica is being opened: ask again")))
            else:
                broker.propose(host, propose, back)

        def arrive() -> None:
            if broker.life == life:
                broker.arrive("clients", take)

        loop.after(loop.often_short(0.2, 12.0), arrive)
        return promise

    def ask(
        self,
        who: str,
        partition: int,
        operation: Operation,
        *,
        only: Host | None = None,
        tries: int = 0,
        **propose: Any,
    ) -> Process:
        """Ask whom this client believes to lead, until there is a result or a refusal for good. With `only`, while that
        replica leads; with `tries`, so often.

        Ends with the result; with None if it gave up, not knowing; with a `Refused` if it gave up and surely nothing
        happened.
        """
        loop, believed, place = self.loop, self._believed, (who, partition)
        known = True
        while only is None or self.leads(only):
            number = believed.get(place) or loop.random.choice(self.cluster.plan.settings.replicas)
            if only is not None:
                number = only.broker.number
            result = yield self._request(number, partition, {"operation": operation, **propose})
            match result:
                case Done() | Decided() | RecordsThere():
                    believed[place] = number
                    return result
                case Refused(error):
                    if isinstance(error, RefusedError):
                        return result
                    believed[place] = error.leader if isinstance(error, NotLeader) else 0
                    if propose.get("after") in self.lost(partition):
                        propose["after"] = b""  # the application begins its chain anew
                    known = known and error.definite
                case _:
                    known = False
                    believed[place] = 0
            if tries == 1:
                return result if known else None
            tries -= 1
            yield loop.often_short(5, 600)
        return None

    def lost(self, partition: int) -> set[bytes]:
        """Batches that went with the logs that had them (rule 15)."""
        return self.cluster.oracle.truths[partition].lost

    def _recoveries(self, partition: int) -> int:
        return self.cluster.oracle.life(partition).recovery

    def believed(self, who: str, partition: int) -> int:
        """The broker that this client takes for the leader; 0: it knows none."""
        return self._believed.get((who, partition), 0)

    def leads(self, host: Host) -> bool:
        return not host.closed and host.life == host.broker.life and host.replica.leading

    # ------------------------------------------------------------------ producers

    def _produce(self, partition: int, name: str) -> Process:
        """Batches in a chain, several in flight, each naming the one before; or each for itself, some with weaker
        promises."""
        loop, random = self.loop, self.loop.random
        chained = loop.chance(0.6)
        window = random.choice((1, 2, 5))
        in_flight = 0
        sent: list[bytes] = []
        if chained:
            self._chains[name] = (partition, sent)

        def one(uuid: bytes, after: bytes) -> Process:
            nonlocal in_flight
            in_flight += 1
            wait = (
                Wait.COMMITTED
                if chained
                else random.choice((Wait.COMMITTED, Wait.COMMITTED, Wait.WRITTEN, Wait.NOTHING))
            )
            tries = 0 if chained or loop.chance(0.7) else random.randint(1, 3)
            rows = random.randint(1, 9)
            result = yield from self.ask(
                name,
                partition,
                Append(),
                uuid=uuid,
                after=after,
                record_count=rows,
                payload_bytes=rows * 20,
                wait=wait,
                tries=tries,
            )
            in_flight -= 1
            if isinstance(result, Done):
                self.done[f"batches, acks={wait.value}"] += 1
                if wait is Wait.COMMITTED:
                    self._acked.append((partition, uuid))
            elif isinstance(result, Refused):
                self.done["batches refused"] += 1
                self._never(partition, uuid)
            else:
                self.done["batches unknown"] += 1

        while not self.stopped and self._appends < OPERATIONS_MAX:
            yield loop.between(0, 2 * self.cluster.plan.pace_ms)
            if in_flight >= window:
                continue
            self._appends += 1
            uuid = uuid_of(f"{name}-{len(sent)}")
            self.spawn("batch", one(uuid, sent[-1] if chained and sent else b""))
            sent.append(uuid)

    def _never(self, partition: int, uuid: bytes) -> None:
        """It was refused for good, and was never asked for otherwise: it must not appear."""
        oracle = self.cluster.oracle
        index = oracle.life(partition).uuid_at.get(uuid)
        if index is not None:
            raise oracle.violation(partition, f"batch {uuid!r} was refused for good, and is at entry {index}")
        oracle.truths[partition].never.add(uuid)

    # ------------------------------------------------------------------ groups and readers

    def _repeat_records(self, partition: int, name: str) -> Process:
        """Records with UUIDs of their own, as of a program that restarts: some come again, in batches that are cut
        otherwise."""
        loop, random = self.loop, self.loop.random
        pending: list[bytes] = []
        sent: list[bytes] = []
        batches = 0
        while not self.stopped and self._appends < OPERATIONS_MAX:
            yield loop.between(0, 10 * self.cluster.plan.pace_ms)
            if not pending:
                fresh = [uuid_of(f"{name}:{len(sent) + n}") for n in range(random.randint(1, 4))]
                again = sent[-random.randint(1, 6) :] if loop.chance(0.5) else []
                pending = [*again, *fresh]
                sent += fresh
            self._appends += 1
            batches += 1
            records = list(pending)
            # Asked for at several brokers at once, as after an answer that came late: one of the two must wait for the
            # other.
            if loop.chance(0.3):
                self.spawn(
                    "batch", self._records(partition, f"{name}!", uuid_of(f"{name}!{batches}"), records[:-1] or records)
                )
            result = yield from self._records(partition, name, uuid_of(f"{name}-{batches}"), records)
            if isinstance(result, RecordsThere):
                there = {record.position for record in result.records}
                self.done["records recognised"] += len(there)
                pending = [uuid for n, uuid in enumerate(records) if n not in there]
            elif isinstance(result, Done):
                pending = []

    def _records(self, partition: int, who: str, uuid: bytes, records: list[bytes]) -> Process:
        """One batch of them. Ends as `ask`."""
        result = yield from self.ask(
            who,
            partition,
            Append(b"".join(records)),
            uuid=uuid,
            record_count=len(records),
            payload_bytes=20 * len(records),
            tries=self.loop.random.randint(1, 8),
        )
        if isinstance(result, Done):
            self.done["batches of records with UUIDs"] += not result.duplicate
            self._acked.append((partition, uuid))
        return result

    def _keep_group(self, partition: int, group: str) -> Process:
        """Move its cursor, and now and then delete it: it has none then, until it is moved again."""
        loop = self.loop
        while not self.stopped:
            yield loop.between(200, 2_000)
            if loop.chance(0.2):
                result = yield from self.ask(group, partition, DeleteGroup(group), tries=4)
                self.done["groups deleted"] += isinstance(result, Done)
                continue
            end, recoveries = max(self.cluster.oracle.life(partition).readable, default=0), self._recoveries(partition)
            result = yield from self.ask(
                group, partition, MoveCursor(group, loop.random.randint(0, end), "consumer"), tries=4
            )
            if isinstance(result, Done):
                self.done["cursors moved"] += 1
            elif (
                isinstance(result, Refused) and not result.error.retriable and recoveries == self._recoveries(partition)
            ):
                raise self.cluster.oracle.violation(
                    partition, f"offset {end} is readable, and a cursor is refused: {result.error}"
                )

    def _ask_long_after(self, partition: int) -> Process:
        """Send a batch again that was acknowledged long ago: the answer is the first one, wherever the journal begins
        (trap 13)."""
        loop = self.loop
        while not self.stopped:
            yield loop.between(500, 5_000)
            mine = [uuid for number, uuid in self._acked if number == partition and uuid not in self.lost(partition)]
            if self.cluster.plan.settings.dedup_ms is not None:
                kept = set(self.cluster.oracle.life(partition).window.newer_half())
                mine = [uuid for uuid in mine if uuid in kept]
            if mine:
                uuid = loop.random.choice(mine)
                result = yield from self.ask("forgetful", partition, Append(), uuid=uuid, record_count=1, tries=3)
                # While it asked, the window may have gone on
                outlived = self.cluster.plan.settings.dedup_ms is not None
                if isinstance(result, Done) and not (result.duplicate or outlived) and uuid not in self.lost(partition):
                    raise self.cluster.oracle.violation(
                        partition, f"batch {uuid!r} was acknowledged, and is taken for a new one"
                    )

    def _read(self, partition: int, name: str) -> Process:
        """Read on from a position at any broker, and remember what was where. Never something else than before."""
        loop = self.loop
        position, epoch, life = 0, 0, self.cluster.oracle.life(partition)
        while not self.stopped:
            yield loop.between(20, 600)
            if loop.chance(0.05):
                position = 0
            broker = self.cluster.brokers[loop.random.choice(self.cluster.plan.settings.replicas)]
            found = yield self._fetch(broker, partition, position)
            if found is None or found[0] < epoch:
                continue
            epoch, start, batches, gaps = found
            if self.cluster.oracle.truths[partition].life_in(epoch) is not life:
                life = self.cluster.oracle.truths[partition].life_in(epoch)
                position = 0  # it is told that records were lost
                continue
            if start > position:
                # In a life that is over, too: who says so may not know yet that it is.
                taken = max(each.log_start_offset for each in self.cluster.oracle.truths[partition].lives)
                if start > taken and life.has_between(position, start):
                    raise self.cluster.oracle.violation(
                        partition, f"reader {name} at {position} is told that the log begins at {start}"
                    )
                position = start
                self.done["readers overtaken by retention"] += 1
            for base_offset, record_count, index in batches:
                for gap in gaps:  # in order of offsets: one may follow another at once
                    position = gap.next_offset if gap.first <= position < gap.next_offset else position
                if self._seen_at.setdefault((partition, life.recovery, base_offset), index) != index or not (
                    base_offset <= position < base_offset + record_count
                ):
                    raise self.cluster.oracle.violation(
                        partition, f"reader {name} at {position} gets {base_offset} from entry {index}"
                    )
                position = base_offset + record_count
                self.done["records read"] += record_count

    def _fetch(self, broker: Broker, partition: int, position: int) -> Promise:
        """Kept with the broker's epoch, the first offset that it still has, its batches from the position on, the
        offsets that it skips."""
        promise = Promise()
        self.loop.after(1_500, promise.keep, None)

        def take() -> None:
            host = broker.hosts.get(partition)
            if host is not None and not host.closed:
                first = max(position, host.first_readable)
                batches = [batch for batch in host.readable if batch[0] + batch[1] > first]
                found = (host.replica.leader_epoch, host.first_readable, batches, list(host.skipped))
                self.loop.after(self.loop.often_short(0.2, 12.0), promise.keep, found)

        self.loop.after(self.loop.often_short(0.2, 12.0), broker.arrive, "clients", take)
        return promise

    # ------------------------------------------------------------------ micro-batches

    def decision_committed(self, host: Host, decide: Decide) -> None:
        """The coordinator's leader publishes what is decided."""
        self._micro_batches.decision_committed(host, decide)

    # ------------------------------------------------------------------ in the end

    def check(self) -> None:
        """What was promised to clients, once everything is quiet."""
        oracle = self.cluster.oracle
        for partition, uuid in self._acked:
            if uuid not in oracle.life(partition).uuid_at and uuid not in self.lost(partition):
                raise oracle.violation(partition, f"batch {uuid!r} was acknowledged, and is nowhere")
        for name, (partition, sent) in self._chains.items():
            places, lost = [oracle.life(partition).uuid_at.get(uuid) for uuid in sent], self.lost(partition)
            if any(place is None and uuid not in lost for place, uuid in zip(places, sent, strict=True)):
                raise oracle.violation(partition, f"the chain of {name} has gaps: {places}")
            # What was lost may come again, at any place
            for place, following, uuid in zip(places, places[1:], sent, strict=False):
                if place is not None and following is not None and place > following and uuid not in lost:
                    raise oracle.violation(partition, f"the chain of {name} is not in its order: {places}")
        for (key, batch_id), decide in oracle.life(self.coordinator).decided.items():
            for line in decide.manifest:
                truth = oracle.life(line.partition)
                places = [truth.placed.get(truth.uuid_at.get(uuid, 0)) for uuid in line.uuids]
                if None in places and not self._micro_batches.went_with_logs(
                    line.partition, Publish(key, batch_id, line.uuids)
                ):
                    raise oracle.violation(
                        line.partition, f"micro-batch {batch_id} of {key} was decided, and is not all readable: {line}"
                    )
