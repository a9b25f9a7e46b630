"""What the core is told of a topic when a replica of it is opened."""

from __future__ import annotations

from mq_broker.broker.metadata.topics import Topic
from mq_broker.core.messages import ReplicaSettings
from mq_protocol.names import OnTotalLoss


def replica_settings(topic: Topic, number: int) -> ReplicaSettings:
    settings = topic.settings
    return ReplicaSettings(
        replicas=topic.spec.assignment[number],
        min_insync_replicas=settings.min_insync_replicas,
        dedup_uuids_max=settings.dedup_uuids_max,
        dedup_ms=settings.dedup_ms,
        volatile=topic.volatile,
        begins_empty=settings.on_total_loss is OnTotalLoss.RECOVER,
    )
