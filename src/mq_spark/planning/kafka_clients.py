"""The options of Kafka's own clients, `kafka.…`, that a job for Kafka's connector may have and that mean nothing here.

From the configuration of Kafka's consumer and producer, 4.1. Security's are in `security_options`. Pure.
"""

from __future__ import annotations

from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

ISOLATION: Final = "kafka.isolation.level"

_CLIENTS: Final = """
    client.dns.lookup client.id connections.max.idle.ms default.api.timeout.ms enable.metrics.push metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters auto.include.jmx.reporter
    metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""
_CONSUMER: Final = """
    allow.auto.create.topics auto.commit.interval.ms check.crcs exclude.internal.topics fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy
    session.timeout.ms
"""
_PRODUCER: Final = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delivery.timeout.ms enable.idempotence linger.ms max.block.ms max.in.flight.requests.per.connection
    max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.ignore.keys transaction.timeout.ms transactional.id
"""
PASSED_OVER: Final = frozenset(f"kafka.{name}" for name in (_CLIENTS + _CONSUMER + _PRODUCER).split())
"""No row depends on them here: how a client waits, buffers, compresses and asks again."""

_BYTES: Final = "keys and values are bytes, as with Kafka's connector: decode them with the DataFrame's functions"
REFUSED: Final = {
    "kafka.auto.offset.reset": "where a query begins is said by startingOffsets",
    "kafka.enable.auto.commit": "a query's place is in its checkpoint, and brokers are told of it by themselves",
    "kafka.interceptor.classes": "there is no Kafka client whose records a class could see",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.partitioner.class": "give the rows a column partition; without one the key's hash chooses, as with Kafka's "
    "default",
}
"""What must not be dropped in silence, and what to do instead: Kafka's connector refuses all but the last too."""

_LEVELS: Final = ("read_committed", "read_uncommitted")


def check_isolation(value: str) -> None:
    """Only committed rows are ever read. Raises `InvalidSetting` for no such level."""
    if value.strip().lower() not in _LEVELS:
        raise InvalidSetting(f"{ISOLATION}={value!r} is not known{did_you_mean(value, _LEVELS)} ({', '.join(_LEVELS)})")
