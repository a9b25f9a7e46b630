"""What members ask, read and checked before anything is done: a request that cannot be right is refused whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.host.shell import Shell
from mq_broker.broker.metadata.topics import Topics
from mq_broker.broker.queues.checked_filters import CheckedFilters
from mq_broker.broker.queues.group.requests import Extend, Item
from mq_broker.broker.queues.letters.outputs import outputs_of
from mq_broker.broker.queues.policy.declared import Declared
from mq_broker.broker.runtime.streams import in_turns
from mq_broker.core.work.ranges import RANGES_MAX, Ranges, from_gaps, why_wrong
from mq_broker.core.work.settling import Ack, Failed, Outcome, Rejected, Release, Settle
from mq_broker.core.work.steps import ERROR_BYTES_MAX, LeaseId
from mq_broker.rpc.callers import asker
from mq_broker.security.names import is_anothers
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.errors import InvalidRequest, NotLeader, UnknownTopic, shortened
from mq_protocol.names import check_member_id
from mq_protocol.queues.settings import LEASE_MS_CEILING, LEASE_MS_FLOOR, MEMBER_PRIORITY_MAX

DELAY_MS_MAX: Final = 365 * 86_400_000

NAMED_MAX: Final = 4
"""How often a request may name one record."""


class Asked:
    """Owns which filters were checked. Everything raises the error with which the request is refused."""

    def __init__(self, shell: Shell, topics: Topics, declared: Declared) -> None:
        self._shell = shell
        self._topics = topics
        self._declared = declared
        self._filters = CheckedFilters(topics)

    async def check_terms(self, partition: Partition, terms: pb.WorkTerms) -> None:
        if terms.lease_ms and not LEASE_MS_FLOOR <= terms.lease_ms <= LEASE_MS_CEILING:
            raise InvalidRequest(
                f"lease_ms of {terms.lease_ms} is not allowed: {LEASE_MS_FLOOR} to {LEASE_MS_CEILING}, or 0 for the "
                "group's"
            )
        if terms.priority > MEMBER_PRIORITY_MAX:
            raise InvalidRequest(f"priority {terms.priority} is not allowed: 0 to {MEMBER_PRIORITY_MAX}")
        if terms.filter:
            await self._filters.check(partition.topic, terms.filter)

    async def partition(self, opened: pb.WorkOpen) -> Partition:
        """Where the group is worked on."""
        check_member_id(opened.member)
        topic = await self._topics.get(opened.topic)
        if opened.topic_id not in ("", topic.spec.topic_id):  # this broker may not have heard of it yet
            topic = await self._topics.renewed(topic)
            if opened.topic_id != topic.spec.topic_id:
                raise UnknownTopic(
                    f"topic {opened.topic!r} was deleted and made again: what is leased of the former one is gone"
                )
        partition = self._shell.leader(topic, opened.partition)
        self._declared.get(partition, opened.group)
        return partition

    async def items(
        self, partition: Partition, group: str, member: str, settles: Collection[pb.SettleOne]
    ) -> list[Item]:
        if sum(len(settle.ranges) for settle in settles) > 2 * RANGES_MAX:
            raise InvalidRequest(f"a request settles at most {RANGES_MAX} ranges: settle fewer at once")
        end = partition.next_offset
        items = [_item(settle, member, end) async for settle in in_turns(settles)]
        _check_often(item.ranges for item in items if isinstance(item, Extend))
        _check_often(item.ranges for item in items if not isinstance(item, Extend))
        check_epochs(partition, [item.lease for item in items])
        _note_strangers(partition, group, member, items)
        return items

    @staticmethod
    async def claims(partition: Partition, held: Collection[pb.HeldLease]) -> dict[LeaseId, Ranges]:
        """What a member says that it has, by lease; no ranges for all of a lease."""
        if sum(len(each.ranges) for each in held) > 2 * RANGES_MAX:
            raise InvalidRequest(
                f"a member names at most {RANGES_MAX} ranges of what it has: name whole leases instead"
            )
        end = partition.next_offset
        claims: dict[LeaseId, Ranges] = {}
        async for each in in_turns(held):
            lease = lease_of(each.lease)
            if lease in claims:
                raise InvalidRequest(f"lease {lease} is named twice: name each once, with all that is held of it")
            claims[lease] = _ranges_of(each.ranges, end, "cannot be claimed")
        check_epochs(partition, claims.keys())
        return claims


def _item(settle: pb.SettleOne, member: str, end: int) -> Item:
    ranges = _ranges_of(settle.ranges, end, "cannot be settled")
    lease = lease_of(settle.lease)
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
    return Settle(lease, member, ranges, _outcome(settle))


def _outcome(settle: pb.SettleOne) -> Outcome:
    delay_us = settle.delay_ms * 1_000
    error = shortened(settle.error, ERROR_BYTES_MAX)
    match settle.outcome:
        case pb.OUTCOME_ACK:
            return Ack()
        case pb.OUTCOME_RELEASE:
            return Release(delay_us)
        case pb.OUTCOME_FAIL:
            return Failed(error, delay_us if settle.HasField("delay_ms") else None)
        case pb.OUTCOME_REJECT:
            return Rejected(error)
        case other:
            raise InvalidRequest(f"outcome {other} is not known: ack, release, fail, reject or extend (0 to 4)")


def _note_strangers(partition: Partition, group: str, member: str, items: Iterable[Item]) -> None:
    """In the audit log: who is not lent what it settles, since it is lent to another user's member. It is told that it
    has lost it, as ever."""
    state = partition.replica.machine.work.get(group)
    lent = [] if state is None else [state.leases.get(item.lease) for item in items]
    if any(held is not None and is_anothers(held.member, member) for held in lent):
        asker().note_denied(Operation.READ, Kind.GROUP, group, "the records are lent to a member of another user")


def _ranges_of(gaps: Sequence[int], end: int, why_not: str) -> Ranges:
    """`end`: of the log."""
    try:
        ranges = from_gaps(gaps)
    except ValueError as error:
        raise InvalidRequest(f"these records {why_not}: {error}") from error
    why = why_wrong(ranges, end)
    if why:
        raise InvalidRequest(f"these records {why_not}: {why}")
    return ranges


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


def lease_of(lease: pb.LeaseId) -> LeaseId:
    return LeaseId(lease.leader_epoch, lease.entry, lease.step)


def check_epochs(partition: Partition, leases: Collection[LeaseId]) -> None:
    """Raises `NotLeader` for a lease that a later leader has made."""
    epoch = partition.replica.leader_epoch
    later = max((lease.leader_epoch for lease in leases), default=0)
    if later > epoch:
        raise NotLeader(
            f"a lease of {partition.name} is of leader epoch {later}, and this broker leads epoch {epoch}: ask again, "
            "another broker may lead by now"
        )
