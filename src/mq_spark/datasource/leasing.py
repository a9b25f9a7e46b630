"""The driver as a member of queue groups: it is lent records, keeps its leases alive, and settles.

Records are lent when Spark asks for a micro-batch, so the leases that are held are always those of micro-batches. One
thread names them to the leaders: a leader that has just begun to lead knows the leases, but not how long they are.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Final, TypeVar

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline
from mq_client.queueing.administration import describe, ensure_declared, list_queues
from mq_client.queueing.borrowing import Borrower
from mq_client.queueing.leases import from_gaps, spelled_out, to_gaps
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidSetting, LeaseLost, TritonMQError, UnknownQueue
from mq_protocol.names import quoted
from mq_spark.datasource.schemas import Topic
from mq_spark.planning.lease_options import LeaseOptions
from mq_spark.planning.leases import Lease, LeaseKey, Run, shares

log = logging.getLogger(__name__)

LEASES_PER_PARTITION: Final = 4
"""Of one micro-batch. The leader lends at most 1,000 ranges at once, so a checkpoint's line stays small."""

ROWS_PER_LEASE: Final = 250_000
_NAMED_S: Final = 2.0
"""How often leases are named: a new leader keeps them for ten seconds at least."""

_NAMED_MAX: Final = 10

T = TypeVar("T")

Place = tuple[str, int]
"""Topic and partition."""


_ASKED_AT_ONCE: Final = 8


class Leasing:
    """Owns the leases that are held, and the thread that keeps them alive. Every question ends within `timeout_ms`."""

    def __init__(
        self,
        connection: Connection,
        options: LeaseOptions,
        topics: Sequence[Topic],
        timeout_ms: int,
        *,
        declare: bool = True,
    ) -> None:
        """`declare`: make sure that the queue is there, and not in order. Who has leases of it knows."""
        self._connection = connection
        self._options = options
        self._topics = {topic.name: topic for topic in topics}
        self._partitions = {topic.name: topic.partitions for topic in topics}
        self._timeout_ms = timeout_ms
        self._key = hashlib.sha256(options.member.encode()).digest()
        """The same at every start: a driver that died is no failure of the records that it was lent."""

        self._held: dict[LeaseKey, Lease] = {}
        self._settled: set[LeaseKey] = set()
        self._members: dict[Place, Borrower] = {}
        self._turn = 0
        self._lock = threading.Lock()  # a member asks one question at a time
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(_ASKED_AT_ONCE, "tritonmq-leasing")
        self._thread: threading.Thread | None = None
        for topic in topics if declare else ():
            self._check_queue(topic.name)

    # -------------------------------------------------------------- for Spark's calls

    def grow(self, partitions: Mapping[str, int]) -> None:
        """Topics have so many partitions by now."""
        for name, count in partitions.items():
            self._partitions[name] = max(self._partitions[name], count)

    def lease(self, rows_max: int | None) -> list[Lease]:
        """Be lent up to so many records. What an earlier process of this member was lent, and is not held, goes back
        in the same turn."""
        with self._lock:
            places = self._places()
            left = rows_max if rows_max is not None else ROWS_PER_LEASE * LEASES_PER_PARTITION * len(places)
            lent: list[Lease] = []
            for _ in range(LEASES_PER_PARTITION):
                self._turn += 1
                wishes = {place: min(n, ROWS_PER_LEASE) for place, n in shares(left, places, self._turn).items()}
                more = self._lend(wishes)
                lent += [lease for lease, _ in more if lease is not None]
                left -= sum(lease.records for lease, _ in more if lease is not None)
                unasked = [place for place in places if place not in wishes]
                places = [place for place, (_, ready) in zip(wishes, more, strict=True) if ready] + unasked
                if left <= 0 or not places:
                    break
            self._ensure_started()
            return lent

    def ready(self) -> int:
        """How many records could be lent now, what goes back of an earlier process included."""
        with self._lock:
            self._name_all()
            deadline = self._deadline()
            found = [describe(self._connection, name, self._options.group, deadline) for name in self._topics]
            return sum(partition.ready for queue in found for partition in queue.partitions)

    def claim(self, leases: Iterable[Lease]) -> dict[LeaseKey, list[int]]:
        """Go on with leases that a former process of this member was lent. What is not its own any more."""
        with self._lock:
            wanted = [lease for lease in leases if lease.key not in self._held]
            lost = self._say(wanted, pb.OUTCOME_EXTEND)
            for lease in wanted:
                left = lease.without(lost.get(lease.key, ()))
                if left.runs:
                    self._held[lease.key] = left
            self._ensure_started()
            return lost

    def settle(self, leases: Iterable[Lease]) -> dict[LeaseKey, list[int]]:
        """They are done, for good. What others were lent meanwhile. Those that were settled before are passed over."""
        with self._lock:
            wanted = [lease for lease in leases if lease.key not in self._settled]
            lost = self._say([self._held.get(lease.key, lease) for lease in wanted], pb.OUTCOME_ACK)
            for lease in wanted:
                self._held.pop(lease.key, None)
            self._settled = {lease.key for lease in leases} if wanted else self._settled
            return lost

    def release(self, leases: Iterable[Lease]) -> None:
        """They go back, and nothing of them counts as failed."""
        with self._lock:
            self._say(list(leases), pb.OUTCOME_RELEASE)

    def why_lost(self, lost: dict[LeaseKey, list[int]], what: str) -> LeaseLost:
        """The error that names these records."""
        named = [
            f"topic {key.topic} partition {key.partition} offset {', '.join(map(str, offsets[:_NAMED_MAX]))}"
            + (", ..." if len(offsets) > _NAMED_MAX else "")
            for key, offsets in sorted(lost.items())
        ]
        count = sum(map(len, lost.values()))
        return LeaseLost(
            f"{count} records of {what} are not this query's any more: {'; '.join(named[:_NAMED_MAX])}. Their lease "
            "ran out while the query was away, and others may be lent them. Set leaseLost=skip to go on without them, "
            "and a longer lease.ms to be away for longer"
        )

    def close(self) -> None:
        """Leases stay as they are: the query finds them when it starts again."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for member in list(self._members.values()):
            member.close()

    # -------------------------------------------------------------- questions

    def _check_queue(self, topic: str) -> None:
        """Declare the queue if it is not there. Raises `InvalidSetting` for one that is in order."""
        deadline = self._deadline()
        group = self._options.group
        ensure_declared(self._connection, topic, group, deadline)
        queue = next((q for q in list_queues(self._connection, topic, deadline) if q.group == group), None)
        order = queue.settings.get("order", "none") if queue is not None else "none"
        if order != "none":
            raise InvalidSetting(
                f"lease.group={quoted(group)} has order={order}, which the parallel tasks of Spark cannot keep: use a "
                f"queue without order, or read topic {topic} without lease.group"
            )

    def _lend(self, wishes: dict[Place, int]) -> list[tuple[Lease | None, bool]]:
        """What was lent to each of these wishes, and whether more is ready there."""
        answers = self._ask_each(wishes, lambda place, member: self._lend_one(place, member, wishes[place]))
        found: list[tuple[Lease | None, bool]] = []
        for (topic, partition), wish in wishes.items():
            lent = answers[topic, partition]
            lease = self._lease_of(topic, partition, lent, wish)
            if lease is not None:
                self._held[lease.key] = lease
            found.append((lease, lent.ready))
        return found

    def _lend_one(self, place: Place, member: Borrower, records: int) -> pb.LeaseResponse:
        topic, partition = place
        held = [_wire(key) for key in self._held if (key.topic, key.partition) == place]
        try:
            return member.lend(records, held, self._deadline())
        except UnknownQueue:
            if partition < self._topics[topic].partitions:
                raise
            return pb.LeaseResponse()  # it was just added, and the queue begins there in a moment

    def _lease_of(self, topic: str, partition: int, lent: pb.LeaseResponse, wish: int) -> Lease | None:
        if not lent.HasField("lease"):
            return None
        ranges = from_gaps(lent.ranges, max(wish, 1))
        runs = tuple(
            Run(first, end, deliveries, failures)
            for (first, end), deliveries, failures in zip(ranges, lent.deliveries, lent.failures, strict=True)
        )
        at = lent.lease
        key = LeaseKey(topic, self._topics[topic].topic_id, partition, at.leader_epoch, at.entry, at.step)
        return Lease(key, runs)

    def _say(self, leases: Sequence[Lease], outcome: pb.Outcome.ValueType) -> dict[LeaseKey, list[int]]:
        """Tell the leaders, and what of it is lost."""
        by_place: dict[Place, list[Lease]] = {}
        lost: dict[LeaseKey, list[int]] = {}
        for lease in leases:
            topic = self._topics.get(lease.key.topic)
            if topic is None or topic.topic_id != lease.key.topic_id:  # deleted, and maybe made again
                lost[lease.key] = spelled_out([(run.first, run.end) for run in lease.runs]).tolist()
            else:
                by_place.setdefault((lease.key.topic, lease.key.partition), []).append(lease)
        answers = self._ask_each(
            by_place,
            lambda place, member: member.settle(
                [
                    pb.SettleOne(lease=_wire(lease.key), ranges=_gaps(lease.runs), outcome=outcome)
                    for lease in by_place[place]
                ],
                self._deadline(),
            ),
        )
        for place, said in by_place.items():
            for lease, answer in zip(said, answers[place], strict=True):
                gone: list[int] = spelled_out(from_gaps(answer.lost, lease.records)).tolist()
                if gone:
                    lost[lease.key] = gone
        return lost

    def _ask_each(self, places: Collection[Place], ask: Callable[[Place, Borrower], T]) -> dict[Place, T]:
        """Every place's answer, asked at the same time: each lease is a commit."""
        members = [self._member(place) for place in places]
        return dict(zip(places, self._pool.map(ask, places, members), strict=True))

    def _member(self, place: Place) -> Borrower:
        if place not in self._members:
            topic, partition = place
            opened = pb.WorkOpen(
                topic=topic,
                partition=partition,
                group=self._options.group,
                topic_id=self._topics[topic].topic_id,
                member=self._options.member,
                member_key=self._key,
                lasting=True,
            )
            terms = pb.WorkTerms(lease_ms=self._options.lease_ms)
            self._members[place] = Borrower(self._connection, opened, terms)
        return self._members[place]

    def _name_all(self) -> None:
        """Name what is held to all leaders, which give back what is not."""
        self._name(self._places())

    def _places(self) -> list[Place]:
        return [(name, p) for name, partitions in self._partitions.items() for p in range(partitions)]

    def _name(self, places: Collection[Place]) -> None:
        self._ask_each(places, lambda place, member: self._lend_one(place, member, 0))

    # -------------------------------------------------------------- the thread

    def _ensure_started(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tritonmq-leases", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        extend_s = self._options.lease_ms / 3000
        extended = time.monotonic()
        while not self._stopping.wait(min(_NAMED_S, extend_s)):
            due = time.monotonic() - extended >= extend_s
            try:
                with self._lock:
                    if self._stopping.is_set():
                        return
                    if due and self._held:
                        self._say(list(self._held.values()), pb.OUTCOME_EXTEND)
                    self._name({(key.topic, key.partition) for key in self._held})
            except TritonMQError as error:  # asked again in a moment, and what is lost is told when it is settled
                if not self._stopping.is_set():
                    log.warning("leases of %s could not be extended: %s", quoted(self._options.group), error)
            except CancelledError:  # closed meanwhile
                return
            except RuntimeError:  # the process ends, and starts no more threads
                return
            else:
                extended = time.monotonic() if due else extended

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)


def _wire(key: LeaseKey) -> pb.LeaseId:
    return pb.LeaseId(leader_epoch=key.leader_epoch, entry=key.entry, step=key.step)


def _gaps(runs: Iterable[Run]) -> list[int]:
    return to_gaps(spelled_out([(run.first, run.end) for run in runs]))
