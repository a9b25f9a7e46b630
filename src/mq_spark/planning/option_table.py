"""Every option of the Spark source and sink, once: its name, its side, its default and what it means. Pure.

`options` parses by these names, and the documentation's reference is written from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

SOURCE: Final = "source"
SINK: Final = "sink"
BOTH: Final = "source and sink"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `side`: SOURCE, SINK or BOTH. `only`: "stream" or "batch", or empty for both. `default` is for
    people."""

    name: str
    side: str
    default: str
    meaning: str
    only: str = ""


BOOTSTRAP: Final = "bootstrap.servers"
FORWARD: Final = "forward"
STARTING: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""In the order in which they count when several are given, as with Kafka."""

PER_TRIGGER: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
WITHOUT_EFFECT: Final = ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
"""Kafka's connector tunes its waiting and asking again by these. Here requestTimeoutMs bounds both; no row depends on
them."""

_TIMES: Final = 'a time for each partition, as JSON: {"topic": {"0": 1700000000000}}'
_FOR_KAFKA: Final = "accepted so that a job for Kafka can stay; changes nothing"

OPTIONS: Final = (
    Option(
        BOOTSTRAP,
        BOTH,
        "required",
        "addresses of brokers, host:port, with commas between; kafka.bootstrap.servers is the same",
    ),
    Option(
        FORWARD, BOTH, "false", "reach no broker but those of bootstrap.servers: they pass on what is meant for others"
    ),
    Option(
        "requestTimeoutMs",
        BOTH,
        "30000; 120000 for the sink",
        "milliseconds for one request to the brokers, retries included",
    ),
    Option(
        "includeHeaders",
        BOTH,
        "false",
        "source: adds the column headers; sink: accepted, since the column is written if it is there",
    ),
    Option(
        "certs",
        BOTH,
        "plain text",
        "speak TLS: a directory with ca.crt and the client's certificate and key, on every machine",
    ),
    Option("user", BOTH, "the only one", "whose certificate in certs"),
    Option("kafka.security.protocol", BOTH, "SSL if any of these is given", "SSL, SASL_SSL for tokens, or PLAINTEXT"),
    Option("kafka.ssl.ca.location", BOTH, "none", "instead of certs: the authorities that are believed, in PEM"),
    Option("kafka.ssl.certificate.location", BOTH, "none", "instead of certs: the client's certificate, in PEM"),
    Option("kafka.ssl.key.location", BOTH, "none", "instead of certs: its key, in PEM and without a password"),
    Option("kafka.ssl.truststore.location", BOTH, "none", "the same as kafka.ssl.ca.location"),
    Option("kafka.ssl.keystore.location", BOTH, "none", "certificate and key in one file, in PEM"),
    Option("kafka.ssl.truststore.type", BOTH, "PEM", "PEM; stores of Java are refused with the command that converts"),
    Option("kafka.ssl.keystore.type", BOTH, "PEM", "the same"),
    Option("kafka.ssl.endpoint.identification.algorithm", BOTH, "https", "https: names of brokers are always checked"),
    Option("tritonmq.token.location", BOTH, "none", "instead of a certificate: a file with a token, on every machine"),
    Option("kafka.sasl.mechanism", BOTH, "PLAIN", "PLAIN or SCRAM-SHA-…: an API token's id and secret. OAUTHBEARER"),
    Option("kafka.sasl.username", BOTH, "none", "the id of an API token"),
    Option("kafka.sasl.password", BOTH, "none", "its secret, or the whole token; shown nowhere"),
    Option("kafka.sasl.jaas.config", BOTH, "none", "a line with both, of PlainLoginModule or ScramLoginModule"),
    Option("kafka.sasl.oauthbearer.token.endpoint.url", BOTH, "none", "file:///PATH of a token, with OAUTHBEARER"),
    Option("subscribe", SOURCE, "one of these three is required", "topics, with commas between"),
    Option("subscribePattern", SOURCE, "", "a regular expression (Python's) that matches whole names of topics"),
    Option("assign", SOURCE, "", 'single partitions, as JSON: {"topic": [0, 1]}'),
    Option(
        "startingTimestamp",
        SOURCE,
        "none",
        "begin with the first record that a broker appended at this time or later; milliseconds since 1970",
    ),
    Option("startingOffsetsByTimestamp", SOURCE, "none", _TIMES),
    Option(
        "startingOffsets",
        SOURCE,
        "latest for a stream, earliest for a batch",
        'earliest, latest, or offsets as JSON: {"topic": {"0": 23, "1": -2}}',
    ),
    Option(
        "endingTimestamp",
        SOURCE,
        "none",
        "end before the first record that a broker appended at this time or later",
        "batch",
    ),
    Option("endingOffsetsByTimestamp", SOURCE, "none", _TIMES, "batch"),
    Option("endingOffsets", SOURCE, "latest", "where the read ends: latest, or offsets as JSON", "batch"),
    Option(
        "startingOffsetsByTimestampStrategy",
        SOURCE,
        "error",
        "where no record is as new as the time: error, or latest to begin at the end",
    ),
    Option(
        "maxOffsetsPerTrigger",
        SOURCE,
        "no limit",
        "rows of a micro-batch at most, shared in proportion to the backlog",
        "stream",
    ),
    Option(
        "maxBytesPerTrigger",
        SOURCE,
        "no limit",
        "stored bytes of a micro-batch at most (512k, 64m), up to one record more",
        "stream",
    ),
    Option("minOffsetsPerTrigger", SOURCE, "none", "wait until there are so many rows", "stream"),
    Option("maxTriggerDelay", SOURCE, "15m", "how long to wait for minOffsetsPerTrigger", "stream"),
    Option(
        "filter",
        SOURCE,
        "all rows",
        "rows of a typed topic that leave the broker, e.g. delay > 60 AND carrier IN ('UA','AA')",
    ),
    Option("minPartitions", SOURCE, "the driver's cores", "split the offsets into at least so many tasks"),
    Option("maxRecordsPerPartition", SOURCE, "no limit", "rows of one task at most"),
    Option("failOnDataLoss", SOURCE, "true", "fail when rows that should be read are gone; false: continue after them"),
    Option(
        "includeMetadata",
        SOURCE,
        "false",
        "add _topic, _partition, _offset and _timestamp to the columns of a typed topic",
    ),
    Option("kafka.group.id", SOURCE, "spark-<query id>", "the group under which the query's progress is shown"),
    Option("groupIdPrefix", SOURCE, "spark", "the beginning of that name when no kafka.group.id is given"),
    Option("readFrom", SOURCE, "leader", "from which replica tasks read: leader or any"),
    Option("kafka.client.rack", SOURCE, "none", "with readFrom=any: replicas in this rack come first"),
    Option(
        "lease.group",
        SOURCE,
        "none",
        "work off this queue group: rows are lent, and settled when Spark commits; a batch read's by tritonmq.settle",
    ),
    Option("lease.rows", SOURCE, "no limit", "with lease.group: rows that a batch read is lent at most", "batch"),
    Option(
        "lease.member",
        SOURCE,
        "required with lease.group in a stream; a batch read has none",
        "this query's name in the group, the same at every start",
        "stream",
    ),
    Option("lease.ms", SOURCE, "3600000", "how long leases outlive a query that was killed, in milliseconds"),
    Option(
        "leaseLost",
        SOURCE,
        "fail",
        "when rows were lent to others meanwhile: fail, or skip to go on without them",
    ),
    *(Option(name, SOURCE, "", _FOR_KAFKA) for name in WITHOUT_EFFECT),
    Option("topic", SINK, "none", "where rows are written; without it each row names its topic in a column topic"),
    Option("keyColumn", SINK, "none", "of a typed topic: the column whose hash chooses the partition"),
    Option(
        "onReplayMismatch",
        SINK,
        "fail",
        "what to do when a micro-batch that was decided comes again with another row count: fail or keep",
        "stream",
    ),
    Option(
        "txnAppId",
        SINK,
        "none",
        "with txnVersion: makes a batch write idempotent; the writing application's name",
        "batch",
    ),
    Option("txnVersion", SINK, "none", "a number that grows with each write of that application", "batch"),
)


def names(side: str) -> tuple[str, ...]:
    """The names of the options of exactly that side, in the order of the table."""
    return tuple(option.name for option in OPTIONS if option.side == side)


# ------------------------------------------------------------------ Kafka's own clients, 4.1: consumer and producer

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
