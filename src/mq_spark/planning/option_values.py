"""The values that options can have: numbers, durations, sizes, topics, offsets and times, each read or refused by name.
Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean
from mq_spark.planning.offsets import BESIDE
from mq_spark.planning.subscription import Assigned, Subscription

EARLIEST: Final = -2
LATEST: Final = -1
"""In offsets given as JSON, the numbers that Kafka's connector gives these two words."""

ByPartition: TypeAlias = dict[str, dict[int, int]]
"""`{topic: {partition: …}}`."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first offset at or after a time, by `option`: one time for all partitions, or one for each. Microseconds
    since 1970.

    `otherwise_latest`: where all is older, the end; if not, that is an error.
    """

    option: str
    times_us: int | ByPartition
    otherwise_latest: bool


ByTopic: TypeAlias = "dict[str, int | dict[int, int]]"
"""`{topic: {partition: offset}}`, in which an offset may be `EARLIEST` or `LATEST`, and so may be a whole topic."""

StartingAt: TypeAlias = "int | ByTopic | AtTime"
"""`EARLIEST`, `LATEST`, offsets, or times."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,9})\s*(?P<unit>ms|s|m|min|h)")
_DIGITS_MAX: Final = 30
_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,18})\s*(?P<unit>b|kb?|mb?|gb?|tb?|)")
_LONG_MAX: Final = (1 << 63) - 1
_MILLISECONDS_MAX: Final = 1 << 53
"""What is later is taken for this: never. For that Kafka's users write Long.MaxValue."""


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidSetting(f"{name}={options[name]!r} is neither true nor false")
    return text == "true"


def integer(options: Mapping[str, str], name: str, low: int) -> int | None:
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        raise InvalidSetting(f"{name}={options[name]!r} is not a whole number: give {low} or more") from None
    if not low <= value < 1 << 63:
        raise InvalidSetting(f"{name}={value} is out of range: give {low} or more")
    return value


def size(options: Mapping[str, str], name: str) -> int | None:
    """Bytes, as Spark writes sizes: 1048576, 1024k, 1m."""
    if name not in options:
        return None
    found = _SIZE.fullmatch(options[name].strip().lower())
    value = (
        int(found["number"]) << {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found["unit"][:1]] if found else 0
    )
    if not 0 < value < 1 << 63:
        raise InvalidSetting(f"{name}={options[name]!r} is not a number of bytes: write e.g. 1048576, 512k or 64m")
    return value


def seconds(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise InvalidSetting(f"{name}={text!r} is not a time: write e.g. 500ms, 30s, 15m or 1h")
    return int(found["number"]) * {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}[found["unit"]]


# ------------------------------------------------------------------ which topics


def subscription(options: Mapping[str, str]) -> Subscription:
    """The one of subscribe, subscribePattern and assign that is given. Raises `InvalidSetting` for none, several, or
    none right."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if not given:
        raise InvalidSetting(
            "subscribe is missing: .option('subscribe', 'topic,…') names the topics to read (or subscribePattern, or "
            "assign)"
        )
    if len(given) > 1:
        raise InvalidSetting(f"{' and '.join(given)} are given together: each says which topics to read, leave one out")
    (name,) = given
    if name == "subscribePattern":
        return Subscription(name, pattern=_pattern(options[name]))
    if name == "assign":
        assigned = _assigned(options[name])
        return Subscription(name, tuple(assigned), assigned=assigned)
    topics = tuple(sorted({topic.strip() for topic in options[name].split(",") if topic.strip()}))
    if not topics:
        raise InvalidSetting(f"subscribe={options[name]!r} names no topic: write topic,topic,…")
    return Subscription(name, topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidSetting(f"subscribePattern={text!r} is no regular expression: {error}") from None
    if not text:
        raise InvalidSetting("subscribePattern is empty: write a regular expression for whole names, e.g. orders-.*")
    return text


def _assigned(text: str) -> Assigned:
    shape = '{"topic":[0,1],"other":[2]}'
    found = _json("assign", text, shape)
    if not isinstance(found, dict) or not found:
        raise InvalidSetting(f"assign={text!r} names no partition (it is {shape})")
    for topic, numbers in found.items():
        if (
            not isinstance(numbers, list)
            or not numbers
            or not all(type(number) is int and number >= 0 for number in numbers)
        ):
            raise InvalidSetting(f"assign has {numbers!r} for topic {topic!r}: list its partitions (it is {shape})")
    return {topic: tuple(sorted(set(found[topic]))) for topic in sorted(found)}


# ------------------------------------------------------------------ where to begin and end


def offsets(name: str, text: str, meant: Subscription) -> int | ByTopic:
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    shape = 'earliest, latest, or {"topic":{"0":23,"1":-2},"other":"latest"} with -2 for earliest and -1 for latest'
    if not word.startswith("{"):
        raise InvalidSetting(
            f"{name}={text!r} is not understood{did_you_mean(text, ('earliest', 'latest'))} (it is {shape})"
        )
    found = _json(name, text, shape)
    words: dict[str, int] = {}
    if isinstance(found, dict):
        found.pop(BESIDE, None)  # as a checkpoint or a query's progress shows offsets
        words = {
            topic: _WORDS[inner.lower()]
            for topic, inner in found.items()
            if isinstance(inner, str) and inner.lower() in _WORDS
        }
        found = {topic: inner for topic, inner in found.items() if topic not in words}
    by_topic: ByTopic = {**_by_partition(name, found, shape, lambda offset: offset >= EARLIEST), **words}
    _check_topics(name, by_topic, meant)
    return by_topic


def time(name: str, text: str) -> int:
    """Microseconds, of milliseconds since 1970 as Kafka's connector has them."""
    if not text.strip().isdecimal() or len(text) > _DIGITS_MAX or int(text) > _LONG_MAX:
        raise InvalidSetting(f"{name}={text!r} is not a time: write milliseconds since 1970, e.g. 1767225600000")
    return min(int(text), _MILLISECONDS_MAX) * 1000


def times(name: str, text: str, meant: Subscription) -> ByPartition:
    shape = '{"topic":{"0":1767225600000}}, milliseconds since 1970 for every partition'
    found = _by_partition(name, _json(name, text, shape), shape, lambda time_ms: 0 <= time_ms <= _LONG_MAX)
    _check_topics(name, found, meant)
    return {
        topic: {partition: min(time_ms, _MILLISECONDS_MAX) * 1000 for partition, time_ms in inner.items()}
        for topic, inner in found.items()
    }


def mentions(at: StartingAt, which: int) -> bool:
    """Whether it is, or has among its offsets, the word `EARLIEST` or `LATEST`."""
    if isinstance(at, AtTime):
        return False
    if isinstance(at, int):
        return at == which
    return any(which in ((inner,) if isinstance(inner, int) else inner.values()) for inner in at.values())


def is_word(at: StartingAt, topic: str, partition: int, which: int) -> bool:
    """Whether it says `EARLIEST` or `LATEST` of the partition."""
    if isinstance(at, AtTime):
        return False
    inner = at if isinstance(at, int) else at[topic]
    return which == (inner if isinstance(inner, int) else inner[partition])


def listed(things: Iterable[object], nothing: str = "none") -> str:
    """For an error: sorted, with commas."""
    return ", ".join(map(str, sorted(things))) or nothing  # type: ignore[type-var]  # all strings, or all numbers


def _by_partition(name: str, found: Any, shape: str, right: Callable[[int], bool]) -> ByPartition:
    try:
        by_topic = {topic: {int(number): value for number, value in inner.items()} for topic, inner in found.items()}
    except (ValueError, AttributeError) as error:
        raise InvalidSetting(f"{name} is not understood: {error} (it is {shape})") from None
    for topic, inner in by_topic.items():
        for number, value in inner.items():
            if type(value) is not int or not right(value) or number < 0:
                raise InvalidSetting(f"{name} has {value!r} for partition {number} of {topic!r} (it is {shape})")
    return by_topic


def _check_topics(name: str, by_topic: Iterable[str], meant: Subscription) -> None:
    if meant.pattern is None and sorted(by_topic) != list(meant.topics):
        there, here = listed(by_topic, "no topic"), listed(meant.topics, "no topic")
        raise InvalidSetting(f"{name} names {there}, {meant.option} names {here}: name the same topics in both")


def _json(name: str, text: str, shape: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"{name} is not understood: {error} (it is {shape})") from None
