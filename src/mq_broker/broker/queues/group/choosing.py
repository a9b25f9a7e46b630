"""Who of those that wait is lent what in one turn of a queue group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mq_broker.broker.host.partition import Partition
from mq_broker.broker.queues.group.draft import Draft, Lending
from mq_broker.broker.queues.group.holdings import INHERITED_LEASE_MS_MIN, Holdings
from mq_broker.broker.queues.group.requests import Asking, Lent
from mq_broker.broker.queues.group.waiting import Waiting
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.policy import Policy
from mq_broker.broker.queues.policy.ready_records import ReadyRecords, Wish, fitting
from mq_broker.core.work.state import WorkState
from mq_broker.core.work.steps import Step
from mq_protocol.errors import TritonMQError

HELD_AT_ONCE: Final = 20_000
"""Leases, of all members together, that are counted or compared in one turn."""


class Choosing:
    """Owns who is to hold nothing, so as to be lent a record alone, and until when that holds (`_reserved`)."""

    _state: WorkState

    def __init__(
        self,
        partition: Partition,
        asking: Waiting,
        wake: Callable[[], None],
        note: Callable[[Sequence[Step]], None],
    ) -> None:
        """`wake`: there is more to look at, in another turn. `note`: these steps are in the leader's view now."""
        self._partition = partition
        self._asking = asking
        self._wake = wake
        self._note = note
        self._reserved: tuple[str, int] | None = None

    def begin(self, state: WorkState) -> None:
        """A new life of the group."""
        self._state, self._reserved = state, None

    def choose(
        self,
        draft: Draft,
        queue: Queue,
        policy: Policy,
        holdings: Holdings,
        now_ms: int,
        now_us: int,
        error: TritonMQError | None,
    ) -> None:
        """Lend those who wait what is ready, by the draft; tell those who only want to know. `error`: why no entry can
        be written: whoever would be lent something is refused."""
        ready, looked, end = policy.ready, 0, policy.masks.upto(self._partition.next_offset)
        each_max = queue.settings.member_in_flight_max

        def full(member: str) -> bool:
            return holdings.full(member, ready.limit) or holdings.members.records(member) >= each_max

        for asking in self._asking.in_turn(spill=queue.settings.spill, full=full):
            room = queue.settings.in_flight_max - self._state.leased
            if room <= 0 or not draft.lends or looked > HELD_AT_ONCE:
                break
            if sum(each.choice.records for each in draft.lendings) >= ready.at_once:
                break
            if not asking.reconciled or asking.in_flight:
                continue
            members = holdings.members
            looked += 1 + len(members.leases(asking.member))
            records = members.records(asking.member)
            if full(asking.member):
                continue
            of = policy.of(asking.filter)
            if records and self._is_reserved(asking.member, of, queue, now_ms, now_us):
                continue
            wish = self.wish(asking, min(room, ready.most(records), each_max - records), now_ms, alone=not records)
            if not asking.records_max:
                if (
                    self._tell(draft, asking, of.is_ready(wish, now_us, end))
                    and of is ready
                    and not records
                    and of.order is None
                ):
                    break  # nobody else is lent anything
                continue
            if error is not None:
                self._refuse(asking, of.is_ready(wish, now_us, end), error)
                continue
            choice = of.choose(wish, now_us, end, fitting(self._partition.index))
            asking.looking = bool(asking.filter) and choice.unfinished
            if choice.unfinished:
                self._wake()
            if choice.runs:
                lease_ms = asking.lease_ms or queue.settings.lease_ms
                self._lend(draft, holdings, Lending(asking, choice, draft.next_lease, lease_ms))
            elif of is ready and not choice.unfinished and not records and ready.order is None:
                break  # who holds something is lent no more than who holds nothing

    def _lend(self, draft: Draft, holdings: Holdings, lending: Lending) -> None:
        asking, choice = lending.asking, lending.choice
        self._note(draft.lend(lending, self._state, self._partition.next_offset))
        if not asking.accept:
            holdings.lent(lending.lease, asking.member, choice.ranges, lending.lease_ms)
        if self._reserved is not None and self._reserved[0] == asking.member:
            self._reserved = None
        self._asking.leave(asking)
        asking.note_chosen(choice.records, choice.bytes)

    def _refuse(self, asking: Asking, is_ready: bool | None, error: TritonMQError) -> None:
        if is_ready:
            self._asking.leave(asking)
            asking.refuse(error)
        elif is_ready is None:
            self._wake()

    def _tell(self, draft: Draft, asking: Asking, is_ready: bool | None) -> bool:
        """Who only wants to know is told, once something is ready. Whether nothing is."""
        if is_ready:
            self._asking.leave(asking)
            draft.tell(asking, Lent(ready=True))
        elif is_ready is None:
            self._wake()
        return is_ready is False

    def _is_reserved(self, member: str, ready: ReadyRecords, queue: Queue, now_ms: int, now_us: int) -> bool:
        """Whether this member is to be lent nothing until it holds nothing, since a record waits that must be lent
        alone. One member at a time; another one, if it takes longer than a lease."""
        if not ready.waits_alone(now_us):
            return False
        if self._reserved is None or self._reserved[1] <= now_ms or self._reserved[0] not in self._asking:
            self._reserved = member, now_ms + max(queue.settings.lease_ms, INHERITED_LEASE_MS_MIN)
        return self._reserved[0] == member

    def wish(self, asking: Asking, most: int, now_ms: int, *, alone: bool) -> Wish:
        """What it may be lent: so many records at most."""
        return Wish(
            min(asking.records_max, most),
            asking.bytes_max,
            alone,
            asking.member,
            asking.accept,
            now_ms,
            self._asking,
        )
