"""The broker process: an asyncio shell around the pure core.

    server        start to end: opens, joins, serves, leaves
    shell         the loop's turn, ticks, tasks; which partitions are open
    partition     one replica: events in, effects out
    topics        the list of topics, as last read
    cluster       the list of brokers, as last read; this one's registration
    produce       batches in
    fetch         reading by offset, watching ends
    delivery      pushed subscriptions; sharing: who of a group has a partition; groups: its cursor
    transactions  the sink's coordinator
    admin         metadata, topics; placement: where replicas go

The one owner of state is the loop: nothing here takes a lock.
"""

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.server import serve

__all__ = ["BrokerConfig", "serve"]
