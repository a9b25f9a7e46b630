"""What a group's settings make of its ready records. Pure."""

from __future__ import annotations

from mq_broker.broker.queues.declared import Queue
from mq_broker.broker.queues.expiring import Expiring, Fate
from mq_broker.broker.queues.lending import Ready
from mq_broker.broker.queues.ordering import ByKey, Single
from mq_broker.broker.queues.sieve import Sieve
from mq_broker.broker.queues.sifting import ByLevelAndFilter, Unordered
from mq_broker.broker.queues.surplus import Surplus
from mq_broker.core.work.state import WorkState
from mq_broker.storage.offset_index import OffsetIndex
from mq_protocol.queue_settings import DeadLetter, Dropped, Expired, Order, Overflow, Priority, QueueSettings


def ready_of(state: WorkState, settings: QueueSettings, index: OffsetIndex) -> Ready:
    """By the group's settings. `index`: of the partition."""
    ready = _in_order(state, settings, index)
    ready.sieve = Sieve(state, settings.filter, ordered=ready.order is not None) if settings.filter else None
    if settings.ttl_ms or index.has_lives:
        ordered = ready.order is not None
        ready.expiring = Expiring(state, index, settings.ttl_ms, fate_of(settings), ordered=ordered)
    if makes_letters_of_surplus(settings):
        ready.surplus = Surplus(state, ordered=ready.order is not None)
    return ready


def suits(ready: Ready, settings: QueueSettings, index: OffsetIndex) -> bool:
    """Whether it would be made like this now."""
    if (ready.surplus is not None) is not makes_letters_of_surplus(settings):
        return False
    if ready.order is None and ready.priority is not _priority(settings, index):
        return False
    expiring = ready.expiring
    if (expiring is None) is bool(settings.ttl_ms or index.has_lives):
        return False
    if expiring is not None and (expiring.ttl_ms, expiring.fate) != (settings.ttl_ms, fate_of(settings)):
        return False
    filtered = ready.sieve.text if ready.sieve is not None else ""
    return ready.ordered == (settings.order, settings.order_by) and filtered == settings.filter


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
    return bool(index.has_lives or settings.ttl_ms or settings.bytes_max or drops)


def _priority(settings: QueueSettings, index: OffsetIndex) -> Priority:
    """Where all records have the usual one, nothing is to be known of them."""
    return settings.priority if index.has_priorities else Priority.IGNORE


def _in_order(state: WorkState, settings: QueueSettings, index: OffsetIndex) -> Ready:
    priority = _priority(settings, index)
    match settings.order:
        case Order.NONE if priority is not Priority.IGNORE:
            return ByLevelAndFilter(state, settings.delivery_limit, index, priority)
        case Order.NONE:
            return Unordered(state, settings.delivery_limit)
        case Order.ALL:
            return Single(state, settings.delivery_limit)
        case Order.KEY:
            return ByKey(state, settings.delivery_limit, settings.order_by)
