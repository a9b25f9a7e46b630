"""What a group's settings make of its records: in which order they are lent, and which are lent to nobody. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

from mq_broker.broker.queues.policy.by_level import ByLevel
from mq_broker.broker.queues.policy.declared import Queue
from mq_broker.broker.queues.policy.dropping import Masks, Surplus
from mq_broker.broker.queues.policy.expiring import Expiring, Fate
from mq_broker.broker.queues.policy.group_filter import GroupFilter, Wanting
from mq_broker.broker.queues.policy.member_filters import MemberFilters
from mq_broker.broker.queues.policy.ordering import ByKey, Single
from mq_broker.broker.queues.policy.ready_records import ReadyRecords
from mq_broker.core.work.state import Mark, WorkState
from mq_broker.core.work.steps import Reason, Step
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queues.settings import DeadLetter, Dropped, Expired, Order, Overflow, Priority, QueueSettings

_Terms: TypeAlias = tuple[Order, str, Priority, str, tuple[int, Fate] | None, bool]


class Policy:
    """Owns where ready records are (`ready`), which of them nobody is lent (`group_filter`, `expiring`, `surplus`:
    `masks` together), and the filters of members. All of it is of one state and of these settings."""

    def __init__(self, state: WorkState, settings: QueueSettings, index: OffsetIndex) -> None:
        self._terms = _terms_of(settings, index)
        ordered = settings.order is not Order.NONE
        self.expiring, self.surplus, self.group_filter = None, None, None
        if self._terms[4] is not None:
            self.expiring = Expiring(state, index, *self._terms[4], ordered=ordered)
        if self._terms[5]:
            self.surplus = Surplus(state, ordered=ordered)
        if settings.filter:
            self.group_filter = GroupFilter(state, settings.filter, ordered=ordered)
        self.masks: Final = Masks(self.expiring, self.surplus, self.group_filter)
        self.ready: Final = _in_order(state, settings, self._terms[2], index, self.masks)
        self.filters: Final = MemberFilters(self.ready)

    def suits(self, settings: QueueSettings, index: OffsetIndex) -> bool:
        """Whether it would be made like this now, but for the `delivery_limit`."""
        return self._terms == _terms_of(settings, index)

    def begin_with(self, limit: int) -> None:
        """With that `delivery_limit`; the state is to be looked through anew."""
        if self.expiring is not None and limit != self.ready.limit:
            self.expiring.again()
        self.ready.limit = limit
        self.ready.begin()
        self.filters.begin()

    def written(self, steps: Collection[Step], now_ms: int) -> None:
        """They are in the state from now on. `now_ms`: of the monotonic clock."""
        self.masks.written(steps)
        self.ready.written(steps, now_ms)
        self.filters.written(steps)

    def of(self, text: str) -> ReadyRecords:
        """What members with this filter of their own are lent from; without one, all."""
        return self.filters.of(text)

    # ------------------------------------------------------------------ what is known of records

    def wanting(self) -> list[Wanting]:
        """Whoever wants rows to be compared with filters."""
        return [*([] if self.group_filter is None else [self.group_filter]), *self.filters.wanting()]

    def knows(self, end: int) -> bool:
        """Whether nothing of the records is to be read now. `end`: of the log."""
        return self.ready.knows(end) and all(each.knows(end) for each in self.wanting())

    def expire(self, now_us: int, now_ms: int) -> bool:
        """By the time since 1970 that is believed, and the monotonic clock. Returns whether all was found that has
        expired by then: so much is done in one turn, and the rest in another."""
        if self.expiring is None:
            return True
        self.expiring.look(now_us, now_ms)
        return not self.expiring.behind

    def expires(self, now_ms: int) -> bool:
        """Whether it is to be looked for what has expired, though nobody asks for records."""
        return self.expiring is not None and self.expiring.due(now_ms)

    def looked_to(self, text: str, end: int) -> int:
        """Up to there everything that members with this filter may be lent could have been, of a log that ends at
        `end`."""
        return self.masks.looked_to(self.of(text).looked_to(end), self.ready.limit)

    # ------------------------------------------------------------------ what becomes dead letters

    def take(self, most: int, reason: Reason | None) -> list[tuple[int, int, Mark]]:
        """Runs of records that are to become dead letters for that reason, None: since they failed; they are forgotten
        here until `doomed_again`."""
        return self.ready.take_doomed(most) if reason is None else self.masks.take(most, self.ready.limit, reason)

    def doomed_again(self, runs: list[tuple[int, int, Mark]]) -> None:
        """They were not sent, perhaps."""
        self.ready.doomed_again(runs)
        self.masks.give_back(runs)

    @property
    def sends(self) -> bool:
        """Whether something may have to become dead letters that go to a topic."""
        return self.ready.dooms or self.masks.sends


def _terms_of(settings: QueueSettings, index: OffsetIndex) -> _Terms:
    """What a policy depends on. Where all records have the usual priority, nothing is to be known of them."""
    ordered = settings.order is not Order.NONE
    priority = settings.priority if index.has_priorities and not ordered else Priority.IGNORE
    expires = (settings.ttl_ms, fate_of(settings)) if settings.ttl_ms or index.has_expiries else None
    letters = makes_letters_of_surplus(settings)
    return settings.order, settings.order_by, priority, settings.filter, expires, letters


def _in_order(
    state: WorkState, settings: QueueSettings, priority: Priority, index: OffsetIndex, masks: Masks
) -> ReadyRecords:
    match settings.order:
        case Order.NONE if priority is not Priority.IGNORE:
            return ByLevel(state, settings.delivery_limit, index, priority, masks)
        case Order.NONE:
            return ReadyRecords(state, settings.delivery_limit, masks)
        case Order.ALL:
            return Single(state, settings.delivery_limit, masks)
        case Order.KEY:
            return ByKey(state, settings.delivery_limit, settings.order_by, masks)


def fate_of(settings: QueueSettings) -> Fate:
    """What becomes of records that have expired."""
    if settings.expired is Expired.DROP or settings.dead_letter is DeadLetter.DROP:
        return Fate.DROPPED
    return Fate.PARKED if settings.dead_letter is DeadLetter.PARK else Fate.SENT


def makes_letters_of_surplus(settings: QueueSettings) -> bool:
    """Whether what is too much becomes dead letters in a topic."""
    drops = settings.overflow is Overflow.DROP_HEAD and settings.dropped is Dropped.DEAD
    return drops and not isinstance(settings.dead_letter, DeadLetter)


def goes_by_itself(queue: Queue | None, index: OffsetIndex) -> bool:
    """Whether what becomes readable may go though nobody asks: it may be too much for the group, or too old."""
    if queue is None:
        return False
    settings = queue.settings
    drops = settings.length_max and settings.overflow is Overflow.DROP_HEAD
    return bool(index.has_expiries or settings.ttl_ms or settings.bytes_max or drops)
