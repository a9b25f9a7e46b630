"""The settings of a queue group: names, defaults, what is allowed, and what each is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from mq_protocol.errors import InvalidSetting, InvalidTopicName
from mq_protocol.limits import TTL_MS_MAX
from mq_protocol.names import (
    FOR_EVER,
    Setting,
    check_new_topic_name,
    check_topic_name,
    did_you_mean,
    parse_duration,
    parse_flag,
    parse_size,
)

T = TypeVar("T", int, float)
C = TypeVar("C", bound=Enum)

_HOUR_MS: Final = 3_600_000
LEASE_MS_FLOOR: Final = 1_000
LEASE_MS_CEILING: Final = 12 * _HOUR_MS
MEMBER_PRIORITY_MAX: Final = 31
"""Of a member of a queue group; the lowest is 0."""

RESUME_MS_CEILING: Final = 600_000
RETRY_MS_CEILING: Final = 7 * 24 * _HOUR_MS
LENGTH_MAX_CEILING: Final = 16_777_216
BYTES_MAX_CEILING: Final = 1 << 40
TTL_MS_FLOOR: Final = 1_000
IDLE_MS_FLOOR: Final = 60_000
"""A member that is started anew, on another machine perhaps, is to find its group."""

IDLE_MS_CEILING: Final = 365 * 24 * _HOUR_MS


class DeadLetter(Enum):
    """What becomes of a record that is lent no more, if it is not sent to a topic."""

    PARK = "park"
    DROP = "drop"


class Order(Enum):
    """Which records are worked on one after another: any at a time, those of one key, or all."""

    NONE = "none"
    KEY = "key"
    ALL = "all"


class Overflow(Enum):
    """What becomes of records beyond `length_max`: new ones are refused, or the oldest are dropped."""

    REJECT = "reject"
    DROP_HEAD = "drop_head"


class Dropped(Enum):
    """What becomes of records that `overflow=drop_head` drops: they are settled unworked, or become dead letters."""

    DROP = "drop"
    DEAD = "dead"


class Expired(Enum):
    """What becomes of records that are older than `ttl_ms`: they are settled unworked, or become dead letters."""

    DROP = "drop"
    DEAD = "dead"


class Priority(Enum):
    """What the priorities of records mean: the highest first, two records of 5 to 31 for one of 0 to 4, or nothing."""

    STRICT = "strict"
    WEIGHTED = "weighted"
    IGNORE = "ignore"


DEAD_SUFFIX: Final = ".dead"
"""Of the topic to which dead letters go where nothing else is said."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue group, every one with its value. Times in milliseconds. `dead_letter`: a topic's name, or
    what becomes of dead letters without one. `order_by`: the column whose values are the keys; empty for the record's
    key. `length_max`, `bytes_max`: of a partition; 0 for no bound. `filter`: text, which is compared with the topic's
    columns elsewhere; empty for none. `ttl_ms`, `idle_ms`: 0 for ever."""

    lease_ms: int = 30_000
    resume_ms: int = 3_000
    delivery_limit: int = 10
    retry_ms: int = 1_000
    retry_factor: float = 2.0
    retry_ms_max: int = 60_000
    dead_letter: DeadLetter | str = DeadLetter.PARK
    in_flight_max: int = 100_000
    paused: bool = False
    order: Order = Order.NONE
    order_by: str = ""
    length_max: int = 0
    overflow: Overflow = Overflow.REJECT
    filter: str = ""
    spill: bool = False
    priority: Priority = Priority.STRICT
    ttl_ms: int = 0
    expired: Expired = Expired.DROP
    idle_ms: int = 0
    bytes_max: int = 0
    dropped: Dropped = Dropped.DROP


QUEUE_SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "lease_ms",
            "30s",
            "1s to 12h",
            "how long a member may work on a record before others get it; the time runs while it is worked on, not "
            "while it waits in the member's memory",
            live=True,
        ),
        Setting(
            "resume_ms",
            "3s",
            "0 to 10m",
            "how long a member whose connection broke may take to come back before others get what it had; the records "
            "that it worked on count as failed then",
            live=True,
        ),
        Setting(
            "delivery_limit",
            "10",
            "0 to 1000",
            "how often a record may fail before it is lent no more; 0 for no limit",
            live=True,
        ),
        Setting("retry_ms", "1s", "0 to 7d", "how long a record waits after its first failure", live=True),
        Setting(
            "retry_factor", "2", "1 to 10", "how many times as long it waits after each further failure", live=True
        ),
        Setting("retry_ms_max", "60s", "0 to 7d", "how long it waits at most", live=True),
        Setting(
            "dead_letter",
            f"TOPIC{DEAD_SUFFIX}",
            "a topic's name, park or drop",
            "what becomes of a record that failed too often or was rejected: it goes to that topic, park keeps it for "
            "you to look at and send back, drop settles it",
            live=True,
        ),
        Setting(
            "in_flight_max",
            "100000",
            "1 to 1000000",
            "how many records of a partition all members together may have",
            live=True,
        ),
        Setting("paused", "false", "true or false", "whether nothing is lent for now", live=True),
        Setting(
            "order",
            "none",
            "none, key or all",
            "which records are worked on one after another: those of one key, or all; none for as many at a time as "
            "there are members",
            live=True,
        ),
        Setting(
            "order_by",
            "",
            "a column's name",
            "with order=key on a topic with columns: the column whose values are the keys; a record's key otherwise",
            live=True,
        ),
        Setting(
            "length_max",
            "0",
            "0 to 16777216",
            "how many records of a partition may be kept for the group, beside those that members have; 0 for no bound",
            live=True,
        ),
        Setting(
            "bytes_max",
            "0",
            "0 to 1024GiB",
            "the same in bytes, as they are stored; 0 for no bound",
            live=True,
        ),
        Setting(
            "overflow",
            "reject",
            "reject or drop_head",
            "what happens at length_max and bytes_max: reject refuses what is published until there is room, drop_head "
            "drops the oldest records",
            live=True,
        ),
        Setting(
            "dropped",
            "drop",
            "drop or dead",
            "what becomes of a record that overflow=drop_head drops: drop settles it, dead makes it a dead letter",
            live=True,
        ),
        Setting(
            "filter",
            "",
            "comparisons of columns with values, joined by AND, OR, NOT",
            "which records are worked on: others are settled unworked, for good; of records without columns, key and "
            "timestamp can be compared",
            live=True,
        ),
        Setting(
            "priority",
            "strict",
            "strict, weighted or ignore",
            "what the priorities of records mean: strict lends the highest first, weighted two of 5 to 31 for one of 0 "
            "to 4; records that are in order have none",
            live=True,
        ),
        Setting(
            "ttl_ms",
            FOR_EVER,
            f"1s to 365d, or {FOR_EVER}",
            "how old a record may be when it is lent; older ones are lent no more",
            live=True,
        ),
        Setting(
            "expired",
            "drop",
            "drop or dead",
            "what becomes of a record that is older than ttl_ms: drop settles it, dead makes it a dead letter",
            live=True,
        ),
        Setting(
            "idle_ms",
            FOR_EVER,
            f"1m to 365d, or {FOR_EVER}",
            "how long a group may be without any member before it is deleted; whether records wait in it does not "
            "matter",
            live=True,
        ),
        Setting(
            "spill",
            "false",
            "true or false",
            "whether members of a lower priority are lent records while all of a higher one have as many as they may "
            "hold; else they wait until no member of a higher one is there",
            live=True,
        ),
    )
}


def parse_queue_settings(given: Mapping[str, str], topic: str, *, partly: bool = False) -> QueueSettings:
    """The settings of a group of that topic, defaults filled in. Times are milliseconds, or a number with a unit, such
    as `30s`. `partly`: others of the group are not among these, so each is checked by itself.

    Raises `InvalidSetting`, which names the setting, what it was given and what is allowed; for an unknown name, the
    nearest right one.
    """
    for name in given:
        if name not in QUEUE_SETTINGS:
            raise InvalidSetting(
                f"unknown queue setting {name!r}{did_you_mean(name, QUEUE_SETTINGS)} (settings are: "
                f"{', '.join(QUEUE_SETTINGS)})"
            )
    usual = QueueSettings()
    _check_dropped(given, topic, partly=partly)
    order = _choice(given, "order", usual.order, Order)

    def time_ms(name: str, default: int, low: int, high: int) -> int:
        return _number(given, name, default, low, high, parse_duration)

    return QueueSettings(
        lease_ms=time_ms("lease_ms", usual.lease_ms, LEASE_MS_FLOOR, LEASE_MS_CEILING),
        resume_ms=time_ms("resume_ms", usual.resume_ms, 0, RESUME_MS_CEILING),
        delivery_limit=_number(given, "delivery_limit", usual.delivery_limit, 0, 1_000, _whole),
        retry_ms=time_ms("retry_ms", usual.retry_ms, 0, RETRY_MS_CEILING),
        retry_factor=_number(given, "retry_factor", usual.retry_factor, 1.0, 10.0, _factor),
        retry_ms_max=time_ms("retry_ms_max", usual.retry_ms_max, 0, RETRY_MS_CEILING),
        dead_letter=_dead_letter(given.get("dead_letter", usual_dead_letter(topic)), topic),
        in_flight_max=_number(given, "in_flight_max", usual.in_flight_max, 1, 1_000_000, _whole),
        paused=parse_flag(given, QUEUE_SETTINGS["paused"]),
        order=order,
        order_by=_order_by(given.get("order_by", ""), order, partly=partly and "order" not in given),
        length_max=_number(given, "length_max", usual.length_max, 0, LENGTH_MAX_CEILING, _whole),
        bytes_max=_number(given, "bytes_max", usual.bytes_max, 0, BYTES_MAX_CEILING, parse_size),
        overflow=_choice(given, "overflow", usual.overflow, Overflow),
        dropped=_choice(given, "dropped", usual.dropped, Dropped),
        filter=given.get("filter", ""),
        spill=_spill(given, order),
        priority=_priority(given, order),
        ttl_ms=_ms_or_for_ever(given, "ttl_ms", TTL_MS_FLOOR, TTL_MS_MAX),
        expired=_choice(given, "expired", usual.expired, Expired),
        idle_ms=_ms_or_for_ever(given, "idle_ms", IDLE_MS_FLOOR, IDLE_MS_CEILING),
    )


def _check_dropped(given: Mapping[str, str], topic: str, *, partly: bool) -> None:
    """Records that would be parked would be kept, and be too many still."""
    parked = given.get("dead_letter", "" if partly else usual_dead_letter(topic)) == DeadLetter.PARK.value
    if parked and given.get("dropped") == Dropped.DEAD.value:
        raise InvalidSetting(
            "dropped=dead needs a topic for dead letters, and dead_letter=park keeps them in the queue: give "
            "dead_letter=TOPIC too, or leave dropped out"
        )


def _ms_or_for_ever(given: Mapping[str, str], name: str, low: int, high: int) -> int:
    """0 for ever."""
    if given.get(name, "").strip().lower() == FOR_EVER:
        return 0
    return _number(given, name, 0, low, high, parse_duration)


def _choice(given: Mapping[str, str], name: str, default: C, choices: type[C]) -> C:
    if name not in given:
        return default
    try:
        return choices(given[name])
    except ValueError:
        allowed = QUEUE_SETTINGS[name].allowed
        near = did_you_mean(given[name], [each.value for each in choices])
        raise InvalidSetting(f"{name}={given[name]!r} is not allowed{near or ':'} give {allowed}") from None


def _order_by(text: str, order: Order, *, partly: bool) -> str:
    if text and order is not Order.KEY and not partly:
        raise InvalidSetting(
            f"order_by={text!r} says what the keys are, and order={order.value} has none: give order=key too, or leave "
            "order_by out"
        )
    return text


def _priority(given: Mapping[str, str], order: Order) -> Priority:
    priority = _choice(given, "priority", Priority.STRICT, Priority)
    if "priority" in given and priority is not Priority.IGNORE and order is not Order.NONE:
        raise InvalidSetting(
            f"priority={priority.value} says which records go first, and with order={order.value} those before do: "
            "leave one of the two out"
        )
    return priority


def _spill(given: Mapping[str, str], order: Order) -> bool:
    spill = parse_flag(given, QUEUE_SETTINGS["spill"])
    if spill and order is Order.ALL:
        raise InvalidSetting(
            "spill=true lends to several members at a time, and order=all to one: leave one of the two out"
        )
    return spill


def _whole(text: str) -> int:
    """Python would take `1_0` and digits of other scripts, too."""
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise ValueError(text)
    return int(text)


def _factor(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) is None:
        raise ValueError(text)
    return float(text)


def _number(given: Mapping[str, str], name: str, default: T, low: T, high: T, parse: Callable[[str], T]) -> T:
    if name not in given:
        return default
    setting = QUEUE_SETTINGS[name]
    try:
        value = parse(given[name])
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        unit = _seconds_meant(value, low, high) if parse is parse_duration else ""
        raise InvalidSetting(f"{name}={given[name]!r} is not allowed{unit}: give {setting.allowed}; {setting.reason}")
    return value


def _seconds_meant(value: T | None, low: T, high: T) -> str:
    """Of a time in milliseconds that is too short: what to write if seconds were meant and are allowed."""
    if value is None or not value < low <= 1_000 * value <= high:
        return ""
    return f" ({value} means {value} ms, write {value}s for seconds)"


def usual_dead_letter(topic: str) -> str:
    """What `dead_letter` is where nothing is said: a topic beside the queue's own. Records of a topic that has dead
    letters itself, or too long a name for that, are parked."""
    usual = f"{topic}{DEAD_SUFFIX}"
    try:
        check_new_topic_name(usual)
    except InvalidTopicName:
        return DeadLetter.PARK.value
    return DeadLetter.PARK.value if topic.endswith(DEAD_SUFFIX) else usual


def _dead_letter(text: str, topic: str) -> DeadLetter | str:
    words = [choice.value for choice in DeadLetter]
    if text in words:
        return DeadLetter(text)
    if text.lower() == "none":
        raise InvalidSetting(
            f"dead_letter={text!r} is not allowed: a record that failed too often has to go somewhere. Give a topic's "
            "name, park to keep it in the queue, or drop to settle it"
        )
    try:
        check_topic_name(text)
        check_new_topic_name(text)
    except InvalidTopicName as error:
        raise InvalidSetting(
            f"dead_letter={text!r} is not allowed: give a topic's name, {' or '.join(words)}; {error}"
        ) from error
    if text == topic:
        raise InvalidSetting(
            f"dead_letter={text!r} is the queue's own topic, so its dead letters would be its next records: give "
            f"another topic, {' or '.join(words)}"
        )
    if hint := did_you_mean(text, words):
        raise InvalidSetting(
            f"dead_letter={text!r} is too like {' or '.join(words)} to be taken for a topic{hint} To send dead letters "
            "to a topic, give it another name"
        )
    return text
