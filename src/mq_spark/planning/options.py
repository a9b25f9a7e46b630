"""What a user may write in `.option(...)`: parsed whole, before anything is opened.

Names are those of Spark's own Kafka connector wherever it has one. Pure: nothing here talks to a broker, so an error
costs nothing and comes at once. What is *not* here: whether topics, partitions and offsets exist (the readers ask the
brokers).

Every error is an `InvalidSetting` whose first words name the option, because those are what is left to see of it below
Spark's own words.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mq_protocol import limits
from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean, nearest
from mq_protocol.queues.work_keys import WORK_PREFIX, is_of_queue
from mq_spark.planning.lease_options import LeaseOptions, parse_lease
from mq_spark.planning.option_table import (
    BOOTSTRAP,
    BOTH,
    ENDING,
    FORWARD,
    ISOLATION,
    PASSED_OVER,
    PER_TRIGGER,
    REFUSED,
    SINK,
    SOURCE,
    STARTING,
    WITHOUT_EFFECT,
    check_isolation,
    names,
)
from mq_spark.planning.option_values import (
    EARLIEST,
    LATEST,
    AtTime,
    StartingAt,
    boolean,
    integer,
    mentions,
    offsets,
    seconds,
    size,
    subscription,
    time,
    times,
)
from mq_spark.planning.security_options import SECURITY, SecurityOptions, parse_security, why_refused
from mq_spark.planning.subscription import Subscription

log = logging.getLogger(__name__)


SINK_TIMEOUT_MS: Final = 120_000
"""A decision that has been asked for is worth waiting for: giving up costs the whole micro-batch."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was asked for. Counts are rows (`max_records_per_partition`: of a task), before any filter.

    `max_bytes_per_trigger` counts bytes as they are stored. `filter` is text in the grammar of
    `mq_protocol.sql.row_filter`, or empty. `timeout_ms` bounds every question to the brokers, retries included.
    `read_from`: "leader" or "any"; `rack`: whose replicas come first with "any". `lease`: of which queue group the
    query is a member; None: it reads the topics. `security` None: in plain text.
    `forward`: only the brokers of `bootstrap` are reached, and pass on what is meant for others.
    """

    bootstrap: str
    subscription: Subscription
    starting: StartingAt
    ending: StartingAt
    filter: str
    max_bytes_per_trigger: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_metadata: bool
    group_id: str | None
    group_id_prefix: str
    timeout_ms: int
    read_from: str
    rack: str
    lease: LeaseOptions | None = None
    security: SecurityOptions | None = None
    forward: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was asked for. `topic` None: each row names its own. `key_column`: of typed topics, chooses the
    partition. `keep_on_mismatch` is `onReplayMismatch=keep`. `security` None: in plain text.
    `forward`: only the brokers of `bootstrap` are reached, and pass on what is meant for others.
    """

    bootstrap: str
    topic: str | None
    key_column: str | None
    keep_on_mismatch: bool
    txn_app_id: str | None
    txn_version: int | None
    timeout_ms: int
    security: SecurityOptions | None = None
    forward: bool = False


# ------------------------------------------------------------------ the table of names

_SOURCE: Final = names(SOURCE)
_SINK: Final = names(SINK)
_BOTH: Final = names(BOTH)

_ALIASES: Final = {"kafka.bootstrap.servers": BOOTSTRAP}

_SPARKS_OWN: Final = ("checkpointLocation", "path", "queryName", "outputMode")
"""Spark puts these among a writer's options by itself; `path` is refused on its own, with a better word."""

_ASYNC_PROGRESS: Final = (
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)

_KNOWN: Final = {name.lower(): name for name in (*_BOTH, *_SOURCE, *_SINK, *_ALIASES, *_SPARKS_OWN, *_ASYNC_PROGRESS)}


_OF_KAFKA: Final = tuple(
    name.removeprefix("kafka.") for name in (*_KNOWN.values(), *sorted(PASSED_OVER)) if name.startswith("kafka.")
)


def parse_source(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """The options of `readStream` (`streaming`) or `read`; None while that is not yet known. Raises
    `InvalidSetting`."""
    options = _canonical(given, role="the source", allowed=(*_BOTH, *_SOURCE), other="the sink", others=_SINK)
    if streaming is not None:
        _tell_of_passed_over(options)
    _check_meaning(options, streaming)
    lease = parse_lease(options, streaming)
    meant = subscription(options)
    starting = _starting(options, meant, "latest" if streaming else "earliest")
    ending = _ending(options, meant)
    if streaming is False and mentions(starting, LATEST):
        raise InvalidSetting(
            "startingOffsets of a batch read cannot be latest, which leaves nothing to read: use earliest or offsets"
        )
    if mentions(ending, EARLIEST):
        raise InvalidSetting("endingOffsets cannot be earliest, which leaves nothing to read: use latest or offsets")
    rows_min, rows_max = (integer(options, name, 1) for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InvalidSetting(f"minOffsetsPerTrigger={rows_min} is above maxOffsetsPerTrigger={rows_max}: lower it")
    if "filter" in options and not options["filter"].strip():
        raise InvalidSetting("filter is empty: write e.g. delay > 60 AND carrier IN ('UA','AA'), or leave it out")
    return SourceOptions(
        bootstrap=_bootstrap(options),
        subscription=meant,
        starting=starting,
        ending=ending,
        filter=options.get("filter", ""),
        max_bytes_per_trigger=size(options, "maxBytesPerTrigger"),
        max_offsets_per_trigger=rows_max,
        min_offsets_per_trigger=rows_min,
        max_trigger_delay_s=seconds("maxTriggerDelay", options.get("maxTriggerDelay", "15m")),
        min_partitions=integer(options, "minPartitions", 1),
        max_records_per_partition=integer(options, "maxRecordsPerPartition", 1),
        fail_on_data_loss=boolean(options, "failOnDataLoss", default=True),
        include_headers=boolean(options, "includeHeaders", default=False),
        include_metadata=boolean(options, "includeMetadata", default=False),
        group_id=options.get("kafka.group.id"),
        group_id_prefix=options.get("groupIdPrefix", "spark"),
        timeout_ms=integer(options, "requestTimeoutMs", 1) or limits.REQUEST_TIMEOUT_MS,
        read_from=_read_from(options),
        rack=options.get("kafka.client.rack", ""),
        lease=lease,
        security=parse_security(options),
        forward=boolean(options, FORWARD, default=False),
    )


def _read_from(options: Mapping[str, str]) -> str:
    given = options.get("readFrom", "leader").strip().lower()
    if given not in ("leader", "any"):
        raise InvalidSetting(f"readFrom={given} is not known: give leader or any")
    return given


def _check_meaning(options: Mapping[str, str], streaming: bool | None) -> None:
    """What only a stream can keep to, or only a batch read."""
    for name in ENDING:
        if streaming and name in options:
            raise InvalidSetting(
                f"{name} has no meaning in a stream: use trigger(availableNow=True), which ends, or spark.read"
            )
    for name in PER_TRIGGER:
        if streaming is False and name in options:
            raise InvalidSetting(f"{name} has no meaning in a batch read: leave it out, or use spark.readStream")


def _tell_of_passed_over(options: Mapping[str, str]) -> None:
    _told(tuple(sorted(name for name in options if name in PASSED_OVER or name in WITHOUT_EFFECT)))


@functools.cache
def _told(names: tuple[str, ...]) -> None:
    """Once in a process: Spark asks one for the same query again and again."""
    if names:
        log.warning(
            "options of Kafka's client that mean nothing here are passed over: %s (requestTimeoutMs bounds every "
            "question to the brokers, and only committed rows are read)",
            ", ".join(names),
        )


def _starting(options: Mapping[str, str], meant: Subscription, default: str) -> StartingAt:
    strategy = options.get("startingOffsetsByTimestampStrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        known = did_you_mean(strategy, ("error", "latest"))
        raise InvalidSetting(f"startingOffsetsByTimestampStrategy={strategy!r} is not known{known} (error or latest)")
    return _place(options, STARTING, meant, default, otherwise_latest=strategy == "latest")


def _ending(options: Mapping[str, str], meant: Subscription) -> StartingAt:
    return _place(options, ENDING, meant, "latest", otherwise_latest=True)


def _place(
    options: Mapping[str, str],
    names: tuple[str, str, str],
    meant: Subscription,
    default: str,
    *,
    otherwise_latest: bool,
) -> StartingAt:
    one_time, time_each, offset_each = names
    if one_time in options:
        return AtTime(one_time, time(one_time, options[one_time]), otherwise_latest)
    if time_each in options:
        return AtTime(time_each, times(time_each, options[time_each], meant), otherwise_latest)
    return offsets(offset_each, options.get(offset_each, default), meant)


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of `writeStream` (`streaming`) or `write`. Raises `InvalidSetting`."""
    options = _canonical(given, role="the sink", allowed=(*_BOTH, *_SINK), other="the source", others=_SOURCE)
    _tell_of_passed_over(options)
    for name in _ASYNC_PROGRESS:
        if options.get(name, "false").lower() != "false":
            raise InvalidSetting(
                f"{name} cannot be used with this sink: with it Spark forgets which micro-batches it has written, "
                "and exactly once rests on that; leave it out"
            )
    app_id, version = options.get("txnAppId"), integer(options, "txnVersion", 0)
    if streaming and (app_id is not None or version is not None):
        raise InvalidSetting(
            "txnAppId and txnVersion belong to df.write: a stream is exactly once without; leave them out"
        )
    if (app_id is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise InvalidSetting(f"{missing} is missing: txnAppId and txnVersion make a write idempotent only together")
    if app_id == "":
        raise InvalidSetting("txnAppId is empty: name the writing application, the same at every try")
    if app_id is not None and is_of_queue(app_id):
        raise InvalidSetting(
            f"txnAppId={app_id[:100]!r} begins with {WORK_PREFIX!r}, which is kept for queue groups: choose another"
        )
    mismatch = options.get("onReplayMismatch", "fail")
    if mismatch not in ("fail", "keep"):
        raise InvalidSetting(
            f"onReplayMismatch={mismatch!r} is not known{did_you_mean(mismatch, ('fail', 'keep'))} (fail or keep)"
        )
    boolean(options, "includeHeaders", default=True)
    if options.get("keyColumn") == "":
        raise InvalidSetting("keyColumn is empty: name a column of the topic, or leave it out to spread the rows")
    if options.get("topic") == "":
        raise InvalidSetting("topic is empty: name one, or leave the option out and give the rows a column 'topic'")
    return SinkOptions(
        bootstrap=_bootstrap(options),
        topic=options.get("topic"),
        key_column=options.get("keyColumn"),
        keep_on_mismatch=mismatch == "keep",
        txn_app_id=app_id,
        txn_version=version,
        timeout_ms=integer(options, "requestTimeoutMs", 1) or SINK_TIMEOUT_MS,
        security=parse_security(options),
        forward=boolean(options, FORWARD, default=False),
    )


# ------------------------------------------------------------------ names


def _canonical(
    given: Mapping[str, str], *, role: str, allowed: Iterable[str], other: str, others: Iterable[str]
) -> dict[str, str]:
    """The options under the names that the documentation gives them (Spark hands them over in lower case). Those of a
    table in Spark's catalog serve both sides."""
    options: dict[str, str] = {}
    table = of_table(given, _KNOWN)
    for written, value in (given if table is None else table).items():
        name = _known_name(written, allowed)
        if name in others:
            if table is not None:
                continue
            raise InvalidSetting(f"option {name} belongs to {other}, not to {role}: leave it out")
        if name == "path":
            raise InvalidSetting(
                "a path has no meaning here: name topics by the options subscribe (source) or topic (sink)"
            )
        name = _ALIASES.get(name, name)
        if name == ISOLATION:
            check_isolation(value)
        if options.get(name, value) != value:
            # A key or a token may stand in any of those by mistake.
            values = "" if name in SECURITY else f", as {options[name]!r} and {value!r}"
            raise InvalidSetting(f"option {name} is given twice{values}: leave one out")
        options[name] = value
    return options


def _known_name(written: str, allowed: Iterable[str]) -> str:
    lower = written.lower()
    name = lower if lower in PASSED_OVER else _KNOWN.get(lower)
    if name is not None:
        return name
    if instead := REFUSED.get(lower) or why_refused(written):
        raise InvalidSetting(f"option {written} cannot be used: {instead}")
    if lower.startswith("kafka."):
        near = nearest(lower.removeprefix("kafka."), _OF_KAFKA)
        none = ": Kafka's clients have none of this name, and TritonMQ has no Kafka client to hand it to; leave it out"
        hint = f": did you mean 'kafka.{near}'?" if near else none
    else:
        hint = did_you_mean(written, allowed) or f" (options are: {', '.join(sorted(allowed, key=str.lower))})"
    raise InvalidSetting(f"unknown option {written!r}{hint}")


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536)


def _bootstrap(options: Mapping[str, str]) -> str:
    text = options.get(BOOTSTRAP)
    if text is None:
        raise InvalidSetting(
            f"{BOOTSTRAP} is missing: .option('{BOOTSTRAP}', 'host:port,…') names the brokers to begin with"
        )
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    for address in addresses:
        if not _is_address(address):
            raise InvalidSetting(f"{BOOTSTRAP} has {address!r}: write every broker as host:port, with commas between")
    if not addresses:
        raise InvalidSetting(f"{BOOTSTRAP} is empty: write every broker as host:port, with commas between")
    return ",".join(addresses)


_MARK: Final = "provider"
_PREFIX: Final = "option."


def is_of_table(name: str) -> bool:
    """Whether it is one of the OPTIONS of a table, or the mark by which a table is known."""
    return name.lower() == _MARK or name.lower().startswith(_PREFIX)


def of_table(given: Mapping[str, str], known: Container[str]) -> dict[str, str] | None:
    """The options of a table in Spark's catalog, `CREATE TABLE … USING tritonmq OPTIONS (…)`; None if `given` are no
    table's. `known`: names of options, in lower case. Spark adds properties of its own, and the user's TBLPROPERTIES;
    each of the OPTIONS it hands over twice, once with a prefix.

    The OPTIONS are all there, misspelt ones too; of what stands beside them only what is an option (from `WITH (…)`, or
    `spark.read.option(…).table(…)`). A table that names one topic to read is written to the same.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if _MARK not in lower:
        return None
    options = {name.removeprefix(_PREFIX): value for name, value in lower.items() if name.startswith(_PREFIX)}
    options |= {name: value for name, value in lower.items() if name in known and name != "path"}
    topic = options.get("subscribe", "")
    if topic and "," not in topic:
        options.setdefault("topic", topic)
    return options
