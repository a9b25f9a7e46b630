"""What a user may write in `.option(...)`: parsed whole, before anything is opened.

Names are those of Spark's own Kafka connector wherever it has one. Pure: nothing here talks to a broker, so an error costs nothing
and comes at once. What is *not* here: whether topics, partitions and offsets exist (the readers ask the brokers).

Every error is an `InvalidSetting` whose first words name the option, because those are what is left to see of it below Spark's own
words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mq_protocol import limits
from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

EARLIEST: Final = -2
LATEST: Final = -1
"""In offsets given as JSON, the numbers that Kafka's connector gives these two words."""

SINK_TIMEOUT_MS: Final = 120_000
"""A decision that has been asked for is worth waiting for: giving up costs the whole micro-batch."""

StartingAt: TypeAlias = "int | dict[str, dict[int, int]]"
"""`EARLIEST`, `LATEST`, or `{topic: {partition: offset}}` in which an offset may be one of the two."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was asked for. Counts are rows (`max_records_per_partition`: of a task).

    `timeout_ms` bounds every question to the brokers, retries included.
    """

    bootstrap: str
    topics: tuple[str, ...]
    starting: StartingAt
    ending: StartingAt
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


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was asked for. `topic` None: each row names its own. `keep_on_mismatch` is `onReplayMismatch=keep`."""

    bootstrap: str
    topic: str | None
    keep_on_mismatch: bool
    txn_app_id: str | None
    txn_version: int | None
    timeout_ms: int


# ------------------------------------------------------------------ the table of names

_BOOTSTRAP = "bootstrap.servers"
_SOURCE: Final = (
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "kafka.group.id",
    "groupIdPrefix",
)
_PER_TRIGGER: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SINK: Final = ("topic", "onReplayMismatch", "txnAppId", "txnVersion")
_BOTH: Final = (_BOOTSTRAP, "requestTimeoutMs")

_LATER: Final = {
    "subscribePattern": "name the topics in subscribe",
    "assign": "name whole topics in subscribe",
    "startingTimestamp": "use startingOffsets",
    "startingOffsetsByTimestamp": "use startingOffsets",
    "startingOffsetsByTimestampStrategy": "use startingOffsets",
    "endingTimestamp": "use endingOffsets",
    "endingOffsetsByTimestamp": "use endingOffsets",
    "maxBytesPerTrigger": "use maxOffsetsPerTrigger",
    "filter": "use .filter(...) on the DataFrame",
}
"""Names that are promised and not yet kept, each with what serves meanwhile: refused, because an option that is ignored lies."""

_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,9})\s*(?P<unit>ms|s|m|min|h)")

_ALIASES: Final = {"kafka.bootstrap.servers": _BOOTSTRAP}

_SPARKS_OWN: Final = ("checkpointLocation", "path", "queryName", "outputMode")
"""Spark puts these among a writer's options by itself; `path` is refused on its own, with a better word."""

_ASYNC_PROGRESS: Final = (
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
    "_asyncProgressTrackingOverrideSinkSupportCheck",
)

_KNOWN: Final = {name.lower(): name for name in (*_BOTH, *_SOURCE, *_SINK, *_LATER, *_ALIASES, *_SPARKS_OWN, *_ASYNC_PROGRESS)}


def parse_source(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """The options of `readStream` (`streaming`) or `read`; None while that is not yet known. Raises `InvalidSetting`."""
    options = _canonical(given, role="the source", allowed=(*_BOTH, *_SOURCE), other="the sink", others=_SINK)
    topics = _topics(options)
    starting_default = "latest" if streaming else "earliest"
    starting = _offsets("startingOffsets", options.get("startingOffsets", starting_default), topics)
    ending = _offsets("endingOffsets", options.get("endingOffsets", "latest"), topics)
    if streaming and "endingOffsets" in options:
        raise InvalidSetting("endingOffsets has no meaning in a stream: use trigger(availableNow=True), which ends, or spark.read")
    for name in _PER_TRIGGER:
        if streaming is False and name in options:
            raise InvalidSetting(f"{name} has no meaning in a batch read: leave it out, or use spark.readStream")
    if streaming is False and _mentions(starting, LATEST):
        raise InvalidSetting(
            "startingOffsets of a batch read cannot be latest, which leaves nothing to read: use earliest or offsets"
        )
    if _mentions(ending, EARLIEST):
        raise InvalidSetting("endingOffsets cannot be earliest, which leaves nothing to read: use latest or offsets")
    rows_min, rows_max = (_integer(options, name, 1) for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InvalidSetting(f"minOffsetsPerTrigger={rows_min} is above maxOffsetsPerTrigger={rows_max}: lower it")
    return SourceOptions(
        bootstrap=_bootstrap(options),
        topics=topics,
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=rows_max,
        min_offsets_per_trigger=rows_min,
        max_trigger_delay_s=_seconds("maxTriggerDelay", options.get("maxTriggerDelay", "15m")),
        min_partitions=_integer(options, "minPartitions", 1),
        max_records_per_partition=_integer(options, "maxRecordsPerPartition", 1),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        include_headers=_boolean(options, "includeHeaders", default=False),
        include_metadata=_boolean(options, "includeMetadata", default=False),
        group_id=options.get("kafka.group.id"),
        group_id_prefix=options.get("groupIdPrefix", "spark"),
        timeout_ms=_integer(options, "requestTimeoutMs", 1) or limits.REQUEST_TIMEOUT_MS,
    )


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of `writeStream` (`streaming`) or `write`. Raises `InvalidSetting`."""
    options = _canonical(given, role="the sink", allowed=(*_BOTH, *_SINK), other="the source", others=_SOURCE)
    for name in _ASYNC_PROGRESS:
        if options.get(name, "false").lower() != "false":
            raise InvalidSetting(
                f"{name} cannot be used with this sink: with it Spark forgets which micro-batches it has written, "
                "and exactly once rests on that; leave it out"
            )
    app_id, version = options.get("txnAppId"), _integer(options, "txnVersion", 0)
    if streaming and (app_id is not None or version is not None):
        raise InvalidSetting("txnAppId and txnVersion belong to df.write: a stream is exactly once without; leave them out")
    if (app_id is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise InvalidSetting(f"{missing} is missing: txnAppId and txnVersion make a write idempotent only together")
    if app_id == "":
        raise InvalidSetting("txnAppId is empty: name the writing application, the same at every try")
    mismatch = options.get("onReplayMismatch", "fail")
    if mismatch not in ("fail", "keep"):
        raise InvalidSetting(f"onReplayMismatch={mismatch!r} is not known{did_you_mean(mismatch, ('fail', 'keep'))} (fail or keep)")
    if options.get("topic") == "":
        raise InvalidSetting("topic is empty: name one, or leave the option out and give the rows a column 'topic'")
    return SinkOptions(
        bootstrap=_bootstrap(options),
        topic=options.get("topic"),
        keep_on_mismatch=mismatch == "keep",
        txn_app_id=app_id,
        txn_version=version,
        timeout_ms=_integer(options, "requestTimeoutMs", 1) or SINK_TIMEOUT_MS,
    )


# ------------------------------------------------------------------ names


def _canonical(given: Mapping[str, str], *, role: str, allowed: Iterable[str], other: str, others: Iterable[str]) -> dict[str, str]:
    """The options under the names that the documentation gives them (Spark hands them over in lower case)."""
    options: dict[str, str] = {}
    for written, value in given.items():
        name = _known_name(written, allowed)
        if name in _LATER:
            raise InvalidSetting(f"option {name} is not supported yet: {_LATER[name]}")
        if name in others:
            raise InvalidSetting(f"option {name} belongs to {other}, not to {role}: leave it out")
        if name == "path":
            raise InvalidSetting("a path has no meaning here: name topics by the options subscribe (source) or topic (sink)")
        name = _ALIASES.get(name, name)
        if options.get(name, value) != value:
            raise InvalidSetting(f"option {name} is given twice, as {options[name]!r} and {value!r}: leave one out")
        options[name] = value
    return options


def _known_name(written: str, allowed: Iterable[str]) -> str:
    name = _KNOWN.get(written.lower())
    if name is not None:
        return name
    if written.lower().startswith("kafka."):
        hint = did_you_mean(written, (*_ALIASES, "kafka.group.id")) or ": TritonMQ has no Kafka client to hand it to; leave it out"
    else:
        hint = did_you_mean(written, allowed) or f" (options are: {', '.join(sorted(allowed, key=str.lower))})"
    raise InvalidSetting(f"unknown option {written!r}{hint}")


def _bootstrap(options: Mapping[str, str]) -> str:
    text = options.get(_BOOTSTRAP)
    if text is None:
        raise InvalidSetting(f"{_BOOTSTRAP} is missing: .option('{_BOOTSTRAP}', 'host:port,…') names the brokers to begin with")
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidSetting(f"{_BOOTSTRAP} has {address!r}: write every broker as host:port, with commas between")
    if not addresses:
        raise InvalidSetting(f"{_BOOTSTRAP} is empty: write every broker as host:port, with commas between")
    return ",".join(addresses)


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("subscribe")
    if text is None:
        raise InvalidSetting("subscribe is missing: .option('subscribe', 'topic,…') names the topics to read")
    topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
    if not topics:
        raise InvalidSetting(f"subscribe={text!r} names no topic: write topic,topic,…")
    return topics


# ------------------------------------------------------------------ values


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidSetting(f"{name}={options[name]!r} is neither true nor false")
    return text == "true"


def _integer(options: Mapping[str, str], name: str, low: int) -> int | None:
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        raise InvalidSetting(f"{name}={options[name]!r} is not a whole number: give {low} or more") from None
    if not low <= value < 1 << 63:
        raise InvalidSetting(f"{name}={value} is out of range: give {low} or more")
    return value


def _seconds(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise InvalidSetting(f"{name}={text!r} is not a time: write e.g. 500ms, 30s, 15m or 1h")
    return int(found["number"]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[found["unit"]]


def _offsets(name: str, text: str, topics: tuple[str, ...]) -> StartingAt:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    shape = 'earliest, latest, or {"topic":{"0":23,"1":-2}} with -2 for earliest and -1 for latest'
    if not word.startswith("{"):
        raise InvalidSetting(f"{name}={text!r} is not understood{did_you_mean(text, ('earliest', 'latest'))} (it is {shape})")
    try:
        found = json.loads(text)
        by_topic = {topic: {int(number): offset for number, offset in inner.items()} for topic, inner in found.items()}
    except (ValueError, AttributeError) as error:
        raise InvalidSetting(f"{name} is not understood: {error} (it is {shape})") from None
    for topic, inner in by_topic.items():
        for number, offset in inner.items():
            if type(offset) is not int or offset < EARLIEST or number < 0:
                raise InvalidSetting(f"{name} has {offset!r} for partition {number} of {topic!r} (it is {shape})")
    if sorted(by_topic) != list(topics):
        raise InvalidSetting(f"{name} names {_listed(by_topic)}, subscribe names {_listed(topics)}: name the same topics in both")
    return by_topic


def _mentions(at: StartingAt, which: int) -> bool:
    if isinstance(at, int):
        return at == which
    return any(offset == which for inner in at.values() for offset in inner.values())


def _listed(topics: Iterable[str]) -> str:
    return ", ".join(sorted(topics)) or "no topic"
