"""The broker process: an asyncio shell around the pure core.

    server          start to end: opens, joins, serves, leaves; each request goes to the part that owns it
    proxy           the role `proxy`: all is passed on
    groups          subscriptions, sharing of partitions among members, cursors
    data            batches in; batches out by offset
    transactions    the exactly-once sink's coordinator, aborted keys
    administration  topics, placement, moves, retention, recovery
    host            the replicas that this broker holds, and the loop that steps them
    metadata        the brokers and the topics, as last read
    runtime         memory, threads and streams: bounded

Each room imports only rooms below it. The one owner of state is the loop: nothing here takes a lock.
"""

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.server import serve

__all__ = ["BrokerConfig", "serve"]
