"""What a group's settings make of its ready records. Pure."""

from __future__ import annotations

from mq_broker.broker.queues.lending import Ready
from mq_broker.broker.queues.ordering import ByKey, Single
from mq_broker.broker.queues.sieve import Sieve
from mq_broker.core.work.state import WorkState
from mq_protocol.queue_settings import Order, QueueSettings


def ready_of(state: WorkState, settings: QueueSettings) -> Ready:
    """By the group's settings."""
    ready = _in_order(state, settings)
    ready.sieve = Sieve(state, settings.filter, ordered=ready.order is not None) if settings.filter else None
    return ready


def suits(ready: Ready, settings: QueueSettings) -> bool:
    """Whether it was made by such settings."""
    filtered = ready.sieve.text if ready.sieve is not None else ""
    return ready.ordered == (settings.order, settings.order_by) and filtered == settings.filter


def _in_order(state: WorkState, settings: QueueSettings) -> Ready:
    match settings.order:
        case Order.NONE:
            return Ready(state, settings.delivery_limit)
        case Order.ALL:
            return Single(state, settings.delivery_limit)
        case Order.KEY:
            return ByKey(state, settings.delivery_limit, settings.order_by)
