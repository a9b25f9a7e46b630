"""The settings of a queue group: names, defaults, what is allowed, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mq_protocol.errors import InvalidSetting, InvalidTopicName
from mq_protocol.limits import TTL_MS_MAX
from mq_protocol.names import (
    FLAG,
    FOR_EVER,
    Setting,
    Values,
    check_new_topic_name,
    check_topic_name,
    did_you_mean,
    factors,
    one_of,
    or_for_ever,
    read_settings,
    setting,
    settings_of,
    sizes,
    times,
    whole,
)

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
LEASE_MS_FLOOR: Final = 1_000
LEASE_MS_CEILING: Final = 12 * _HOUR_MS
MEMBER_PRIORITY_MAX: Final = 31
"""Of a member of a queue group; the lowest is 0."""


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


def _dead_letter(text: str) -> DeadLetter | str:
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
    if hint := did_you_mean(text, words):
        raise InvalidSetting(
            f"dead_letter={text!r} is too like {' or '.join(words)} to be taken for a topic{hint} To send dead letters "
            "to a topic, give it another name"
        )
    return text


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue group, every one with its value. Times in milliseconds, 0 for ever. `dead_letter`: a
    topic's name, or what becomes of dead letters without one. `order_by`: empty for the record's key. `filter`: text,
    which is compared with the topic's columns elsewhere; empty for none."""

    lease_ms: int = setting(
        times(LEASE_MS_FLOOR, LEASE_MS_CEILING),
        "30s",
        "how long a member may work on a record before others get it; the time runs while it is worked on, not while "
        "it waits in the member's memory",
    )
    resume_ms: int = setting(
        times(0, 600_000),
        "3s",
        "how long a member whose connection broke may take to come back before others get what it had; the records "
        "that it worked on count as failed then",
    )
    delivery_limit: int = setting(
        whole(0, 1_000), "10", "how often a record may fail before it is lent no more; 0 for no limit"
    )
    retry_ms: int = setting(times(0, 7 * _DAY_MS), "1s", "how long a record waits after its first failure")
    retry_factor: float = setting(factors(1, 10), "2", "how many times as long it waits after each further failure")
    retry_ms_max: int = setting(times(0, 7 * _DAY_MS), "60s", "how long it waits at most")
    dead_letter: DeadLetter | str = setting(
        Values("a topic's name, park or drop", _dead_letter),
        "park",
        "what becomes of a record that failed too often or was rejected: it goes to that topic, park keeps it for you "
        "to look at and send back, drop settles it",
        shown=f"TOPIC{DEAD_SUFFIX}",
    )
    in_flight_max: int = setting(
        whole(1, 1_000_000), "100000", "how many records of a partition all members together may have"
    )
    member_in_flight_max: int = setting(
        whole(1, 1_000_000),
        "1000000",
        "how many records of a partition one member may have, whatever it asks for, so that others get their share",
    )
    paused: bool = setting(FLAG, "false", "whether nothing is lent for now")
    order: Order = setting(
        one_of(Order),
        "none",
        "which records are worked on one after another: those of one key, or all; none for as many at a time as there "
        "are members",
    )
    order_by: str = setting(
        Values("a column's name", str),
        "",
        "with order=key on a topic with columns: the column whose values are the keys; a record's key otherwise",
    )
    length_max: int = setting(
        whole(0, 16_777_216),
        "0",
        "how many records of a partition may be kept for the group, beside those that members have; 0 for no bound",
    )
    bytes_max: int = setting(sizes(0, 1 << 40), "0", "the same in bytes, as they are stored; 0 for no bound")
    overflow: Overflow = setting(
        one_of(Overflow),
        "reject",
        "what happens at length_max and bytes_max: reject refuses what is published until there is room, drop_head "
        "drops the oldest records",
    )
    dropped: Dropped = setting(
        one_of(Dropped),
        "drop",
        "what becomes of a record that overflow=drop_head drops: drop settles it, dead makes it a dead letter",
    )
    filter: str = setting(
        Values("comparisons of columns with values, joined by AND, OR, NOT", str),
        "",
        "which records are worked on: others are settled unworked, for good; of records without columns, key and "
        "timestamp can be compared",
    )
    priority: Priority = setting(
        one_of(Priority),
        "strict",
        "what the priorities of records mean: strict lends the highest first, weighted two of 5 to 31 for one of 0 to "
        "4; records that are in order have none",
    )
    ttl_ms: int = setting(
        or_for_ever(times(1_000, TTL_MS_MAX), 0),
        FOR_EVER,
        "how old a record may be when it is lent; older ones are lent no more",
    )
    expired: Expired = setting(
        one_of(Expired),
        "drop",
        "what becomes of a record that is older than ttl_ms: drop settles it, dead makes it a dead letter",
    )
    idle_ms: int = setting(
        or_for_ever(times(60_000, 365 * _DAY_MS), 0),  # a member that is started anew is to find its group
        FOR_EVER,
        "how long a group may be without any member before it is deleted; whether records wait in it does not matter",
    )
    spill: bool = setting(
        FLAG,
        "false",
        "whether members of a lower priority are lent records while all of a higher one have as many as they may hold; "
        "else they wait until no member of a higher one is there",
    )


QUEUE_SETTINGS: Mapping[str, Setting] = settings_of(QueueSettings)


def parse_queue_settings(given: Mapping[str, str], topic: str, *, partly: bool = False) -> QueueSettings:
    """The settings of a group of that topic, defaults filled in. Times are milliseconds, or a number with a unit, such
    as `30s`. `partly`: others of the group are not among these, so each is checked by itself.

    Raises `InvalidSetting`, which names the setting, what it was given and what is allowed; for an unknown name, the
    nearest right one.
    """
    usual = {"dead_letter": _dead_letter(usual_dead_letter(topic))}
    settings = read_settings(QueueSettings, QUEUE_SETTINGS, given, "queue", **usual)
    if settings.dead_letter == topic:
        raise InvalidSetting(
            f"dead_letter={topic!r} is the queue's own topic, so its dead letters would be its next records: give "
            f"another topic, {' or '.join(each.value for each in DeadLetter)}"
        )
    _check_order(settings, given, partly=partly)
    _check_dropped(settings, given, partly=partly)
    return settings


def _check_order(settings: QueueSettings, given: Mapping[str, str], *, partly: bool) -> None:
    order = settings.order
    if settings.order_by and order is not Order.KEY and not (partly and "order" not in given):
        raise InvalidSetting(
            f"order_by={settings.order_by!r} says what the keys are, and order={order.value} has none: give order=key "
            "too, or leave order_by out"
        )
    if "priority" in given and settings.priority is not Priority.IGNORE and order is not Order.NONE:
        raise InvalidSetting(
            f"priority={settings.priority.value} says which records go first, and with order={order.value} those "
            "before do: leave one of the two out"
        )
    if settings.spill and order is Order.ALL:
        raise InvalidSetting(
            "spill=true lends to several members at a time, and order=all to one: leave one of the two out"
        )


def _check_dropped(settings: QueueSettings, given: Mapping[str, str], *, partly: bool) -> None:
    """Records that would be parked would be kept, and be too many still."""
    parked = settings.dead_letter is DeadLetter.PARK and not (partly and "dead_letter" not in given)
    if parked and settings.dropped is Dropped.DEAD:
        raise InvalidSetting(
            "dropped=dead needs a topic for dead letters, and dead_letter=park keeps them in the queue: give "
            "dead_letter=TOPIC too, or leave dropped out"
        )


def usual_dead_letter(topic: str) -> str:
    """What `dead_letter` is where nothing is said: a topic beside the queue's own. Records of a topic that has dead
    letters itself, or too long a name for that, are parked."""
    usual = f"{topic}{DEAD_SUFFIX}"
    try:
        check_new_topic_name(usual)
    except InvalidTopicName:
        return DeadLetter.PARK.value
    return DeadLetter.PARK.value if topic.endswith(DEAD_SUFFIX) else usual
