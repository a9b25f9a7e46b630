"""The exactly-once sink's coordinator, and the partitions' side of it (exactly-once.md).

A decision is an entry of the coordinators' topic, in the partition that the key hashes to. From its commit on, the
leader of that partition has every manifest line published by its leader, and goes on until all are, whatever becomes of
the driver; a successor finds the decision in its journal and goes on from there. Publishing is idempotent, so it is
simply asked again.

A reaper removes staged batches that no decision names any more: those whose micro-batch is at or below its key's last
published one. Age alone never removes any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from google.protobuf.message import Message

from mq_broker.broker.administration.topics import Admin
from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.broker.transactions.begun_groups import BegunGroups
from mq_broker.broker.transactions.owners import Owned, check_may_see, is_for_anybody, note_stranger, owner_of
from mq_broker.broker.transactions.requests import (
    check_manifest,
    check_publish_id,
    key_of,
    key_to_wire,
    listed_name,
    uuids_of,
)
from mq_broker.core.entries import Decide, Discard, Fence, Finish, Publish, TransactionKey
from mq_broker.core.machine.state import StagedBatch
from mq_broker.core.messages import AreStaged, Decided
from mq_broker.measured import SINK_DECISIONS
from mq_broker.rpc.callers import asker
from mq_broker.rpc.calls import Calls
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import (
    CoordinationUnavailable,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    PermissionDenied,
    StagedBatchMissing,
    TritonMQError,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from mq_protocol.limits import ANSWER_BYTES_MAX, DISCARD_UUIDS_MAX
from mq_protocol.manifest import StagedPart, by_partition
from mq_protocol.manifest_lines import line_from_wire
from mq_protocol.names import INTERNAL_PREFIX, TRANSACTIONS_TOPIC, quoted
from mq_protocol.partitioner import coordinator_partition
from mq_protocol.queues.work_keys import is_of_queue

log = logging.getLogger(__name__)

ATTEMPT_S: Final = 5.0
BACKOFF_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
ALARM_BACKOFF_S: Final = 5.0
REAP_AGE_S: Final = 60.0
STAGED_TOLD_BYTES: Final = 300
"""About what a staged batch takes in an answer, as an object, beside its names."""

Answer = TypeVar("Answer", bound=Message)


@dataclass(eq=False)
class _Publishing:
    """A decision on its way to its partitions. `drivers` wait for the end of it; `alarm` is what stands in its way."""

    partition: Partition
    decision: Decide
    drivers: list[asyncio.Future[None]] = field(default_factory=list)
    alarm: TritonMQError | None = None
    task: asyncio.Task[None] | None = None
    began_ns: int = field(default_factory=time.monotonic_ns)

    def tell(self, error: TritonMQError | None) -> None:
        drivers, self.drivers = self.drivers, []
        for driver in drivers:
            if not driver.done():
                if error is None:
                    driver.set_result(None)
                else:
                    driver.set_exception(error)


class Transactions:
    """Owns the publishing of every decision whose coordinator is led here, and counts of what each user has."""

    def __init__(self, shell: Shell, cluster: Cluster, topics: Topics, admin: Admin, calls: Calls) -> None:
        self._shell = shell
        clock = asyncio.get_running_loop().time
        self.owned = Owned(lambda: shell.partitions(), clock)
        self.begun = BegunGroups(lambda: shell.partitions(), lambda: topics.all(), clock)
        self._cluster = cluster
        self._topics = topics
        self._admin = admin
        self._calls = calls
        self._publishing: dict[tuple[Partition, TransactionKey], _Publishing] = {}
        shell.on_decision.append(self._decision_committed)
        shell.on_role.append(self._role_changed)

    # ------------------------------------------------------------------ decide

    async def decide(self, request: pb.DecideRequest, deadline: float) -> pb.DecideResponse:
        """Answers once everything is published. Past the deadline `OutcomeUnknown`: asking again gives the same
        answer."""
        key = key_of(request.key)
        check_manifest(request)
        self._check_topics(request)
        await self._admin.transactions_topic(deadline)
        partition = await self.coordinator(key)
        manifest = tuple(line_from_wire(line) for line in request.manifest if line.uuids)
        owner = owner_of(asker(), key)
        decide = Decide(key, request.batch_id, request.run_id, request.row_count, manifest, request.once, owner)
        if request.timeout_ms:
            deadline = min(deadline, asyncio.get_running_loop().time() + request.timeout_ms / 1000)
        known = partition.replica.machine.transactions.get(key)
        if known is None or (decide.batch_id > known.batch_id and known.finished and not known.aborted):
            await self._check_staged(decide, deadline)
        if known is None:
            self.owned.add(asker(), owner, {Quota.TRANSACTIONS: 1})
        try:
            result = await partition.ask(
                decide, deadline, keep_on_mismatch=request.keep_on_mismatch, for_anybody=is_for_anybody(asker())
            )
        except PermissionDenied:
            note_stranger(asker(), Operation.WRITE, key)
            raise
        assert isinstance(result, Decided)
        SINK_DECISIONS.add("repeated" if result.already else "decided")
        if result.already:
            self._discard_attempt(partition, decide)
        if not result.finished:
            await self.wait_until_published(partition, decide, deadline)
        return pb.DecideResponse(already_decided=result.already, row_count=result.row_count, published=True)

    def _check_topics(self, request: pb.DecideRequest) -> None:
        """What was staged in a topic that was deleted meanwhile went with it: another of that name has nothing of it
        (trap 29).

        Nor may a topic's lines differ: a partition publishes a micro-batch once, so what comes under another id would
        be left out.
        """
        ids: dict[str, str] = {}
        for line in request.manifest:
            topic = self._topics.find(line.topic)
            stale = topic is not None and line.topic_id not in ("", topic.spec.topic_id)
            if stale or ids.setdefault(line.topic, line.topic_id) != line.topic_id:
                raise UnknownTopic(
                    f"topic {line.topic!r} was deleted and made again while micro-batch {request.batch_id} was written "
                    "to it: start the query again, and the micro-batch goes into the new one"
                )

    async def _check_staged(self, decide: Decide, deadline: float) -> None:
        """Before it is decided: what the manifest names must be staged, by this query for this micro-batch. What was
        not could never be published, and the query would stand still. Raises `StagedBatchMissing`, or why a partition
        did not say in time."""
        asked = [self._check_line(decide, line, deadline) for line in by_partition(decide.manifest)]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            if error is not None:
                raise error

    async def _check_line(self, decide: Decide, line: StagedPart, deadline: float) -> None:
        request = pb.AreStagedRequest(
            topic=line.topic,
            partition=line.partition,
            key=key_to_wire(decide.key),
            batch_id=decide.batch_id,
            uuids=line.uuids,
            topic_id=line.topic_id,
            owner=None if is_for_anybody(asker()) else decide.owner,
        )
        attempt = 0
        while True:
            try:
                await self.ask_leader(
                    line.topic, line.partition, "AreStaged", request, pb.AreStagedResponse, self.are_staged
                )
                return
            except (UnknownTopic, UnknownPartition):
                if await self._is_gone(line):
                    return  # nothing is to be published there, and it holds up nothing else
                if asyncio.get_running_loop().time() + _backoff(attempt) >= deadline:
                    raise
            except TritonMQError as error:
                if not error.retriable or asyncio.get_running_loop().time() + _backoff(attempt) >= deadline:
                    raise
            await asyncio.sleep(_backoff(attempt))
            attempt += 1

    async def coordinator(self, key: TransactionKey) -> Partition:
        """The replica that decides for the key. Raises `NotLeader`, naming the broker whose it is."""
        topic = await self._topics.get(TRANSACTIONS_TOPIC)
        number = coordinator_partition(key.query_id, key.sink, topic.partitions)
        try:
            return self._shell.leader(topic, number)
        except NotLeader as error:
            if error.leader:
                raise
            leader = (await self._admin.partition_info(topic, number)).leader
            hint = f"ask broker {leader}" if leader else "it has no leader at the moment: ask again"
            raise NotLeader(
                f"broker {self._shell.broker} is not the coordinator of query {key.query_id!r}; {hint}", leader
            ) from error

    def unpublished(self) -> tuple[int, float]:
        """How many decisions are not published yet, and for how many seconds the oldest has been on its way here."""
        began_ns = [publishing.began_ns for publishing in self._publishing.values()]
        return len(began_ns), (time.monotonic_ns() - min(began_ns)) / 1e9 if began_ns else 0.0

    async def wait_until_published(self, partition: Partition, decide: Decide, deadline: float) -> None:
        """Raises `OutcomeUnknown` past the deadline, and what stands in its way if something does."""
        publishing = self._publishing.get((partition, decide.key))
        if publishing is None or publishing.decision.batch_id != decide.batch_id:
            known = partition.replica.machine.transactions.get(decide.key)
            if known is not None and (known.batch_id > decide.batch_id or known.finished):
                return
            raise OutcomeUnknown(f"micro-batch {decide.batch_id} is decided, its coordinator has changed: ask again")
        if publishing.alarm is not None:
            raise publishing.alarm
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        publishing.drivers.append(done)
        try:
            async with asyncio.timeout_at(deadline):
                await done
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"micro-batch {decide.batch_id} of query {decide.key.query_id!r} is decided and still being published: "
                "ask again"
            ) from error

    def _discard_attempt(self, partition: Partition, decide: Decide) -> None:
        """The micro-batch was decided before: what this attempt staged, and the decision does not name, is removed."""
        known = partition.replica.machine.transactions[decide.key]
        if known.batch_id != decide.batch_id:
            return
        kept = {uuid for line in known.manifest for uuid in line.uuids}
        for line in by_partition(decide.manifest):
            losers = [uuid for uuid in line.uuids if uuid not in kept]
            if losers:
                self._shell.spawn(
                    self._discard_once(line.topic, line.partition, decide.key, losers),
                    f"discard from {line.topic}-{line.partition}",
                )

    async def _discard_once(self, topic: str, number: int, key: TransactionKey, uuids: list[bytes]) -> None:
        """One attempt: what it does not reach, the reaper does."""
        wire = pb.TransactionKey(query_id=key.query_id, sink=key.sink)
        try:
            for first in range(0, len(uuids), DISCARD_UUIDS_MAX):
                some = uuids[first : first + DISCARD_UUIDS_MAX]
                request = pb.DiscardRequest(topic=topic, partition=number, key=wire, uuids=some)
                await self.ask_leader(topic, number, "Discard", request, pb.DiscardResponse, self.discard)
        except TritonMQError as error:
            log.info("%s-%d: %d staged batches are left to the reaper: %s", topic, number, len(uuids), error)

    # ------------------------------------------------------------------ publish what was decided

    def _decision_committed(self, partition: Partition, decision: Decide) -> None:
        place = (partition, decision.key)
        former = self._publishing.get(place)
        if former is not None:
            if former.decision.batch_id >= decision.batch_id:
                return
            self._stop(former, "a later decision has been made")
        publishing = self._publishing[place] = _Publishing(partition, decision)
        publishing.task = self._shell.spawn(
            self._publish_all(publishing), f"publish {decision.key.query_id} {decision.batch_id}"
        )

    def _role_changed(self, partition: Partition) -> None:
        if not partition.replica.leading:
            for publishing in [p for p in self._publishing.values() if p.partition is partition]:
                self._stop(publishing, "its coordinator has changed")

    def _stop(self, publishing: _Publishing, why: str) -> None:
        self._publishing.pop((publishing.partition, publishing.decision.key), None)
        if publishing.task is not None:
            publishing.task.cancel()
        publishing.tell(OutcomeUnknown(f"micro-batch {publishing.decision.batch_id} is decided, and {why}: ask again"))

    async def _publish_all(self, publishing: _Publishing) -> None:
        decision = publishing.decision
        lines = by_partition(decision.manifest)
        await asyncio.gather(*(self._publish_line(publishing, line) for line in lines))
        attempt = 0
        while True:
            deadline = asyncio.get_running_loop().time() + ATTEMPT_S
            try:
                await publishing.partition.ask(Finish(decision.key, decision.batch_id), deadline)
                break
            except TritonMQError as error:
                log.info(
                    "micro-batch %d of %s is published, not yet finished: %s",
                    decision.batch_id,
                    quoted(decision.key.query_id),
                    error,
                )
            await asyncio.sleep(_backoff(attempt))
            attempt += 1
        if self._publishing.get((publishing.partition, decision.key)) is publishing:
            del self._publishing[publishing.partition, decision.key]
        publishing.tell(None)

    async def _publish_line(self, publishing: _Publishing, line: StagedPart) -> None:
        """One partition's part, asked for until it is done. Cancelled when the coordinator's leadership ends."""
        decision = publishing.decision
        topic, number = line.topic, line.partition
        key = pb.TransactionKey(query_id=decision.key.query_id, sink=decision.key.sink)
        request = pb.PublishRequest(
            topic=topic, partition=number, key=key, batch_id=decision.batch_id, uuids=line.uuids, topic_id=line.topic_id
        )
        attempt = 0
        while True:
            try:
                await self.ask_leader(topic, number, "Publish", request, pb.PublishResponse, self.publish)
                return
            except (UnknownTopic, UnknownPartition) as error:
                if await self._is_gone(line):
                    log.warning(
                        "micro-batch %d of %s: %s; nothing to publish there",
                        decision.batch_id,
                        quoted(decision.key.query_id),
                        error,
                    )
                    return
                await asyncio.sleep(_backoff(attempt))
            except StagedBatchMissing as error:
                log.error(  # noqa: TRY400
                    "micro-batch %d of %s cannot be published: %s",
                    decision.batch_id,
                    quoted(decision.key.query_id),
                    error,
                )
                publishing.alarm = error
                publishing.tell(error)
                await asyncio.sleep(ALARM_BACKOFF_S)
            except TritonMQError as error:
                log.debug("publish %s-%d, attempt %d: %s", topic, number, attempt, error)
                await asyncio.sleep(_backoff(attempt))
            attempt += 1

    async def _is_gone(self, line: StagedPart) -> bool:
        """Only the coordination service may say so: by a broker's copy of the list, a moment old, rows that were
        decided would be given up."""
        try:
            return not await self._topics.exists(line.topic, line.partition, line.topic_id)
        except CoordinationUnavailable:
            return False

    async def ask_coordinator(
        self,
        key: TransactionKey,
        method: str,
        request: Message,
        response: type[Answer],
        here: Callable[..., Awaitable[Answer]],
        deadline: float,
    ) -> Answer:
        """One attempt at the key's coordinator, wherever it is. The coordinators' topic is made if there is none."""
        topic = await self._admin.transactions_topic(deadline)
        number = coordinator_partition(key.query_id, key.sink, topic.partitions)
        return await self.ask_leader(TRANSACTIONS_TOPIC, number, method, request, response, here, deadline)

    async def ask_leader(
        self,
        topic_name: str,
        number: int,
        method: str,
        request: Message,
        response: type[Answer],
        here: Callable[..., Awaitable[Answer]],
        deadline: float | None = None,
    ) -> Answer:
        """One attempt at the partition's leader, wherever it is: here through the same code as from afar."""
        deadline = deadline or asyncio.get_running_loop().time() + ATTEMPT_S
        topic = await self._topics.get(topic_name)
        partition = self._shell.hosted(topic, number)
        if partition is not None and partition.replica.leading:
            return await here(request, deadline)
        if not 0 <= number < topic.partitions:
            raise UnknownPartition(f"topic {topic_name} has partitions 0 to {topic.partitions - 1}, not {number}")
        leader = (await self._admin.partition_info(topic, number)).leader
        address = self._cluster.peer_address(leader) if leader else None
        if address is None:
            raise NotLeader(f"{topic_name}-{number} has no leader at the moment: ask again")
        return await self._calls.ask(address, method, request, response, deadline)

    async def ask_broker(
        self, broker: int, method: str, request: Message, response: type[Answer], deadline: float
    ) -> Answer:
        """One attempt at another broker."""
        address = self._cluster.peer_address(broker)
        if address is None:
            raise Unreachable(f"broker {broker} is not registered: start it, or ask again once it is gone for good")
        attempt = min(deadline, asyncio.get_running_loop().time() + ATTEMPT_S)
        return await self._calls.ask(address, method, request, response, attempt)

    # ------------------------------------------------------------------ what partitions' leaders answer

    async def publish(self, request: pb.PublishRequest, deadline: float) -> pb.PublishResponse:
        """Idempotent. The staged batches become readable together."""
        # It would publish nothing, and all that is staged under a lower micro-batch could not be any more
        if not request.uuids:
            raise InvalidRequest("a publish names the batches that become readable, and this one names none")
        key = key_of(request.key)
        check_publish_id(key, request.batch_id)
        partition = await self._led(request.topic, request.partition)
        _check_topic_id(partition, request)
        await partition.ask(Publish(key, request.batch_id, uuids_of(request)), deadline)
        return pb.PublishResponse(log_end_offset=partition.next_offset)

    async def are_staged(self, request: pb.AreStagedRequest, deadline: float) -> pb.AreStagedResponse:
        """Whether the micro-batch could publish these batches. Raises `StagedBatchMissing` if it could not."""
        partition = await self._led(request.topic, request.partition)
        _check_topic_id(partition, request)
        owner = request.owner if request.HasField("owner") else None
        await partition.ask(AreStaged(key_of(request.key), request.batch_id, uuids_of(request), owner), deadline)
        return pb.AreStagedResponse()

    async def discard(self, request: pb.DiscardRequest, deadline: float) -> pb.DiscardResponse:
        """Staged batches that are not here (any more), or not this key's, are fine. Answers how many were."""
        key, uuids = key_of(request.key), uuids_of(request)
        partition = await self._led(request.topic, request.partition)
        staged = partition.replica.machine.staged
        count = sum(uuid in staged and staged[uuid].key == key for uuid in uuids)
        await partition.ask(Discard(key, uuids), deadline)
        return pb.DiscardResponse(discarded=count)

    async def _led(self, topic: str, number: int) -> Partition:
        return self._shell.leader(await self._topics.get(topic), number)

    async def transaction_status(
        self, request: pb.TransactionStatusRequest, _deadline: float
    ) -> pb.TransactionStatusResponse:
        """The last decided micro-batch of a key."""
        key = key_of(request.key)
        known = (await self.coordinator(key)).replica.machine.transactions.get(key)
        if known is None:
            return pb.TransactionStatusResponse(known=False)
        check_may_see(asker(), key, known)
        return pb.TransactionStatusResponse(
            known=True,
            batch_id=known.batch_id,
            run_id=known.run_id,
            row_count=known.row_count,
            published=known.finished,
            aborted=known.aborted,
        )

    async def staged(self, request: pb.StagedRequest, _deadline: float) -> pb.StagedResponse:
        """What is staged on the partitions led here, of one topic or of all that the asker may describe; as much as
        fits one answer, `more` says whether some did not."""
        response = pb.StagedResponse()
        if request.topic:
            await self._topics.get(request.topic)
        may = asker().may
        partitions = [
            p
            for p in self._shell.partitions()
            if p.serving
            and request.topic in ("", p.topic.spec.name)
            and may(Operation.DESCRIBE, Kind.TOPIC, p.topic.spec.name)
        ]
        size = 0
        async for partition, batch in in_turns(_staged_after(partitions, request)):
            name = partition.topic.spec.name
            if size >= ANSWER_BYTES_MAX:
                response.more = True
                break
            size += STAGED_TOLD_BYTES + len(name) + len(batch.key.sink)
            response.staged.add(
                topic=name,
                partition=partition.number,
                query=listed_name(batch.key.query_id),
                sink=batch.key.sink,
                batch_id=batch.batch_id,
                row_count=batch.row_count,
                timestamp_us=batch.timestamp_us,
            )
            response.last.topic, response.last.partition, response.last_index = name, partition.number, batch.index
        return response

    # ------------------------------------------------------------------ the reaper

    async def reap(self) -> None:
        """Remove, on the partitions led here, old staged batches that no decision names any more."""
        before_us = int((time.time() - REAP_AGE_S) * 1_000_000)
        statuses: dict[TransactionKey, pb.TransactionStatusResponse | None] = {}
        async for partition in in_turns(self._shell.partitions()):
            if not partition.serving or partition.topic.spec.name.startswith(INTERNAL_PREFIX):
                continue
            old: dict[TransactionKey, list[tuple[int, bytes]]] = {}
            for batch in partition.replica.machine.staged.values():
                if batch.timestamp_us <= before_us and not batch.due_us and not is_of_queue(batch.key.query_id):
                    old.setdefault(batch.key, []).append((batch.batch_id, batch.uuid))
            for key, batches in old.items():
                if key not in statuses:
                    statuses[key] = await self._status_anywhere(key)
                status = statuses[key]
                if status is None or not status.known:
                    continue
                if status.aborted and status.published:
                    await self._reap_aborted(partition, key)
                    continue
                last = status.batch_id if status.published else status.batch_id - 1
                losers = tuple(uuid for batch_id, uuid in batches if batch_id <= last)
                if losers and partition.serving:
                    await self._reap_one(partition, key, losers)

    async def _reap_aborted(self, partition: Partition, key: TransactionKey) -> None:
        """Whoever aborted it could not reach this partition, or it was staged afterwards, where the key was not
        fenced."""
        try:
            await partition.ask(Fence(key), asyncio.get_running_loop().time() + ATTEMPT_S)
        except TritonMQError as error:
            log.info(
                "%s: what the aborted query %s staged stays for now: %s",
                partition.name,
                listed_name(key.query_id),
                error,
            )
            return
        log.info("%s: removed what the aborted query %s had staged", partition.name, listed_name(key.query_id))

    async def _reap_one(self, partition: Partition, key: TransactionKey, uuids: tuple[bytes, ...]) -> None:
        try:
            await partition.ask(Discard(key, uuids), asyncio.get_running_loop().time() + ATTEMPT_S)
        except TritonMQError as error:
            log.info(
                "%s: %d staged batches of %s stay for now: %s", partition.name, len(uuids), quoted(key.query_id), error
            )
            return
        log.info(
            "%s: removed %d staged batches of query %s that lost", partition.name, len(uuids), quoted(key.query_id)
        )

    async def _status_anywhere(self, key: TransactionKey) -> pb.TransactionStatusResponse | None:
        """What the key's coordinator says; None if it cannot be asked now."""
        request = pb.TransactionStatusRequest(key=pb.TransactionKey(query_id=key.query_id, sink=key.sink))
        topic = self._topics.find(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        number = coordinator_partition(key.query_id, key.sink, topic.partitions)
        try:
            return await self.ask_leader(
                TRANSACTIONS_TOPIC,
                number,
                "TransactionStatus",
                request,
                pb.TransactionStatusResponse,
                self.transaction_status,
            )
        except TritonMQError as error:
            log.debug("the coordinator of %s cannot be asked: %s", quoted(key.query_id), error)
            return None


def _check_topic_id(partition: Partition, request: pb.PublishRequest | pb.AreStagedRequest) -> None:
    if request.topic_id not in ("", partition.topic.spec.topic_id):
        raise UnknownTopic(
            f"topic {request.topic!r} was deleted and made again since these rows were staged: they went with it"
        )


def _staged_after(partitions: list[Partition], request: pb.StagedRequest) -> Iterator[tuple[Partition, StagedBatch]]:
    """In the order in which they are told, behind the one that was told last."""
    after = request.after.topic, request.after.partition
    for partition in sorted(partitions, key=lambda p: (p.topic.spec.name, p.number)):
        place = partition.topic.spec.name, partition.number
        if place < after:
            continue
        for batch in sorted(partition.replica.machine.staged.values(), key=lambda each: each.index):
            if not batch.due_us and (place > after or batch.index > request.after_index):
                yield partition, batch


def _backoff(attempt: int) -> float:
    return BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
