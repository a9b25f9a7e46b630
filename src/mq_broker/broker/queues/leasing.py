"""The methods by which members work: Lease and Settle. What they are told is decided elsewhere (gathering.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.checked_filters import CheckedFilters
from mq_broker.broker.queues.declared import Declared
from mq_broker.broker.queues.lent_rows import lent_rows
from mq_broker.broker.queues.outputs import Outputs, last_number, outputs_of
from mq_broker.broker.queues.requests import Asking, Extend, Item, Lent
from mq_broker.broker.queues.working import Working
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.core.work.ranges import RANGES_MAX, Ranges, from_gaps, to_gaps, why_wrong
from mq_broker.core.work.settling import Ack, Answer, Failed, Outcome, Rejected, Release, Settle
from mq_broker.core.work.steps import ERROR_BYTES_MAX, LeaseId
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import to_wire
from mq_protocol.errors import InvalidRequest, NotLeader, TritonMQError, UnknownTopic, shortened
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.names import check_member_id, check_member_key
from mq_protocol.queue_settings import LEASE_MS_CEILING, LEASE_MS_FLOOR, MEMBER_PRIORITY_MAX, Order

DELAY_MS_MAX: Final = 365 * 86_400_000

NAMED_MAX: Final = 4
"""How often a request may name one record."""

_ORDERS: Final = {Order.NONE: pb.ORDER_NONE, Order.KEY: pb.ORDER_KEY, Order.ALL: pb.ORDER_ALL}

_BEFORE_DEADLINE_S: Final = 0.5
"""So long before a request's deadline it is answered that nothing was ready: the answer takes its time, too."""


class Leasing:
    """What members ask. Owns nothing."""

    def __init__(
        self,
        shell: Shell,
        topics: Topics,
        declared: Declared,
        working: Working,
        outputs: Outputs,
        now_us: Callable[[], int],
    ) -> None:
        self._shell = shell
        self._topics = topics
        self._declared = declared
        self._working = working
        self._outputs = outputs
        self._filters = CheckedFilters(topics)
        self._now_us = now_us

    async def lease(self, request: pb.LeaseRequest, deadline: float) -> pb.LeaseResponse:
        """Lend the member what is ready, once the lease is committed. What it settles and its leases that it does not
        name are settled and returned first."""
        check_member_key(request.member_key)
        if request.lease_ms and not LEASE_MS_FLOOR <= request.lease_ms <= LEASE_MS_CEILING:
            raise InvalidRequest(
                f"lease_ms of {request.lease_ms} is not allowed: {LEASE_MS_FLOOR} to {LEASE_MS_CEILING}, or 0 for the "
                "group's"
            )
        if request.priority > MEMBER_PRIORITY_MAX:
            raise InvalidRequest(f"priority {request.priority} is not allowed: 0 to {MEMBER_PRIORITY_MAX}")
        partition = await self._partition(request)
        held = frozenset(map(_lease_of, request.held))
        _check_epochs(partition, held)
        if request.filter:
            await self._filters.check(partition.topic, request.filter)
        asking = Asking(
            request.member,
            request.member_key,
            request.records_max,
            bytes_max=request.bytes_max,
            lease_ms=request.lease_ms,
            accept=request.accept,
            held=held,
            working=request.working,
            priority=request.priority,
            watches=bool(request.wait_ms),
            leaving=request.leaving,
            filter_text=request.filter,
        )
        answers: Sequence[Answer] = ()
        if request.settles:
            if any(each.outputs or each.number or each.outcome == pb.OUTCOME_EXTEND for each in request.settles):
                raise InvalidRequest("outputs and extensions go by Settle: leave them out of Lease")
            items = await self._items(partition, request)
            answers, lent = await self._working.settled_and_lent(partition, request.group, items, asking, deadline)
        else:
            now = asyncio.get_running_loop().time()
            wait_until = min(now + request.wait_ms / 1000, deadline - _BEFORE_DEADLINE_S)
            lent = await self._working.lent(partition, request.group, asking, wait_until, deadline)
        # A process that took the place of another goes on with its numbers. That one's leases have ended by now, so it
        # has no further ones.
        response = _told(lent, last_number(partition, request.group, request.member))
        response.answers.extend(map(_answer, answers))
        rows = lent_rows(partition, [(run.first, run.end) for run in lent.runs], request.rows_bytes_max)
        response.batches.extend(described for described, _ in rows)
        response.payload = b"".join(payload for _, payload in rows)
        return response

    async def settle(self, request: pb.SettleRequest, deadline: float) -> pb.SettleResponse:
        """What became of each of these, once it is committed. A request that cannot be right is refused whole. Outputs
        that cannot be published are refused by themselves."""
        partition = await self._partition(request)
        items = await self._items(partition, request)
        timeout_ms = min(request.timeout_ms or REQUEST_TIMEOUT_MS, REQUEST_TIMEOUT_MS)
        until = min(deadline, asyncio.get_running_loop().time() + timeout_ms / 1000)
        refused: dict[int, Answer] = {}
        for number, settle in enumerate(request.settles):
            if settle.outputs:
                try:
                    await self._outputs.check(partition, request.group, request.member, settle, until)
                except TritonMQError as error:
                    refused[number] = Answer(error=error)
        judged = [item for number, item in enumerate(items) if number not in refused]
        answers = iter(await self._working.settled(partition, request.group, judged, until))
        return pb.SettleResponse(
            answers=[_answer(refused[n] if n in refused else next(answers)) for n in range(len(items))]
        )

    async def _partition(self, request: pb.LeaseRequest | pb.SettleRequest) -> Partition:
        """Where the group is worked on. Raises the error with which the request is refused."""
        check_member_id(request.member)
        topic = await self._topics.get(request.topic)
        if request.topic_id not in ("", topic.spec.topic_id):  # this broker may not have heard of it yet
            topic = await self._topics.renewed(topic)
            if request.topic_id != topic.spec.topic_id:
                raise UnknownTopic(
                    f"topic {request.topic!r} was deleted and made again: what is leased of the former one is gone"
                )
        partition = self._shell.leader(topic, request.partition)
        self._declared.get(partition, request.group)
        return partition

    async def _items(self, partition: Partition, request: pb.LeaseRequest | pb.SettleRequest) -> list[Item]:
        """Raises the error with which the request is refused."""
        if sum(len(settle.ranges) for settle in request.settles) > 2 * RANGES_MAX:
            raise InvalidRequest(f"a request settles at most {RANGES_MAX} ranges: settle fewer at once")
        end = partition.next_offset
        items = [self._item(settle, request.member, end) async for settle in in_turns(request.settles)]
        _check_often(item.ranges for item in items if isinstance(item, Extend))
        _check_often(item.ranges for item in items if not isinstance(item, Extend))
        _check_epochs(partition, [item.lease for item in items])
        return items

    def _item(self, settle: pb.SettleOne, member: str, end: int) -> Item:
        """Raises `InvalidRequest`."""
        try:
            ranges = from_gaps(settle.ranges)
        except ValueError as error:
            raise InvalidRequest(f"these records cannot be settled: {error}") from error
        why = why_wrong(ranges, end)
        if why:
            raise InvalidRequest(f"these records cannot be settled: {why}")
        lease = _lease_of(settle.lease)
        if settle.outcome not in (pb.OUTCOME_FAIL, pb.OUTCOME_REJECT) and settle.error:
            raise InvalidRequest("only records that failed or are rejected have an error: leave it out")
        if settle.outcome not in (pb.OUTCOME_FAIL, pb.OUTCOME_RELEASE) and settle.HasField("delay_ms"):
            raise InvalidRequest("only records that are released or failed come back after a delay: leave it out")
        if settle.delay_ms > DELAY_MS_MAX:
            raise InvalidRequest(f"a delay of {settle.delay_ms} ms is too long: at most {DELAY_MS_MAX} ms are allowed")
        if settle.outputs or settle.number:
            return Settle(lease, member, ranges, outputs_of(settle))
        if settle.outcome == pb.OUTCOME_EXTEND:
            return Extend(lease, member, ranges)
        return Settle(lease, member, ranges, self._outcome(settle))

    def _outcome(self, settle: pb.SettleOne) -> Outcome:
        due_us = self._now_us() + settle.delay_ms * 1_000 if settle.delay_ms else 0
        error = shortened(settle.error, ERROR_BYTES_MAX)
        match settle.outcome:
            case pb.OUTCOME_ACK:
                return Ack()
            case pb.OUTCOME_RELEASE:
                return Release(due_us)
            case pb.OUTCOME_FAIL:
                return Failed(error, due_us if settle.HasField("delay_ms") else None)
            case pb.OUTCOME_REJECT:
                return Rejected(error)
            case other:
                raise InvalidRequest(f"outcome {other} is not known: ack, release, fail, reject or extend (0 to 4)")


def _check_often(several: Iterable[Ranges]) -> None:
    """Raises `InvalidRequest` if a record is named too often: each range may be compared with all that is lent, so a
    small request that names everything again and again would cost much. A member may name one that came back to it."""
    ranges = list(chain.from_iterable(several))
    ends = sorted(end for _, end in ranges)
    over = 0
    for begun, first in enumerate(sorted(first for first, _ in ranges), 1):
        while ends[over] <= first:
            over += 1
        if begun - over > NAMED_MAX:
            raise InvalidRequest(
                f"a request names a record at most {NAMED_MAX} times, and offset {first} more often: settle fewer at "
                "once"
            )


def _lease_of(lease: pb.LeaseId) -> LeaseId:
    return LeaseId(lease.leader_epoch, lease.entry, lease.step)


def _check_epochs(partition: Partition, leases: Sequence[LeaseId] | frozenset[LeaseId]) -> None:
    """Raises `NotLeader` for a lease that a later leader has made."""
    epoch = partition.replica.leader_epoch
    later = max((lease.leader_epoch for lease in leases), default=0)
    if later > epoch:
        raise NotLeader(
            f"a lease of {partition.name} is of leader epoch {later}, and this broker leads epoch {epoch}: ask again, "
            "another broker may lead by now"
        )


def _told(lent: Lent, number: int) -> pb.LeaseResponse:
    ranges: Ranges = tuple((run.first, run.end) for run in lent.runs)
    response = pb.LeaseResponse(
        ranges=to_gaps(ranges),
        deliveries=[run.deliveries for run in lent.runs],
        failures=[run.failures for run in lent.runs],
        lease_ms=lent.lease_ms,
        ready=lent.ready,
        number=number,
        order=_ORDERS[lent.order],
        order_by=lent.order_by,
        gone=[pb.LeaseId(leader_epoch=epoch, entry=entry, step=step) for epoch, entry, step in lent.gone],
    )
    if lent.lease is not None:
        epoch, entry, step = lent.lease
        response.lease.CopyFrom(pb.LeaseId(leader_epoch=epoch, entry=entry, step=step))
    return response


def _answer(answer: Answer) -> pb.SettleAnswer:
    told = pb.SettleAnswer(lost=to_gaps(answer.lost))
    for (epoch, entry, step), ranges in answer.pulled:
        lease = pb.LeaseId(leader_epoch=epoch, entry=entry, step=step)
        told.pulled.add(lease=lease, ranges=to_gaps(ranges))
    if answer.error is not None:
        told.error.CopyFrom(to_wire(answer.error))
    return told
