"""Quotas: what one principal may use of each broker, or have in the cluster, so that others are left theirs.

Whoever is above a *rate* waits. What is above a *count* is refused (`QuotaExceeded`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean, parse_size, quoted


class Quota(StrEnum):
    PRODUCE = "produce"
    FETCH = "fetch"
    REQUESTS = "requests"
    CONNECTIONS = "connections"
    STREAMS = "streams"
    TOPICS = "topics"
    PARTITIONS = "partitions"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    STAGED = "staged"
    STAGED_BYTES = "staged_bytes"


MEANINGS: Final[Mapping[Quota, str]] = {
    Quota.PRODUCE: "Bytes a second that a broker takes in batches.",
    Quota.FETCH: "Bytes a second that a broker sends in batches of records.",
    Quota.REQUESTS: "Requests a second that a broker answers, and streams that it opens.",
    Quota.CONNECTIONS: "Connections to a broker on which something is asked at the same time.",
    Quota.STREAMS: "Streams at a broker at the same time.",
    Quota.TOPICS: "Topics in the cluster that it has made.",
    Quota.PARTITIONS: "Partitions of these topics, in all.",
    Quota.GROUPS: "Groups that it has begun at partitions that a broker leads, and queue groups that it has declared.",
    Quota.TRANSACTIONS: "Keys of transactions that a broker keeps.",
    Quota.STAGED: "Batches that are staged at a broker and not decided.",
    Quota.STAGED_BYTES: "Bytes of these batches.",
}

IN_BYTES: Final = frozenset((Quota.PRODUCE, Quota.FETCH, Quota.STAGED_BYTES))
RATES: Final = (Quota.PRODUCE, Quota.FETCH, Quota.REQUESTS)

EVERYBODY: Final = "*"
"""The principal of what holds where nothing else is set."""

UNLIMITED: Final = -1

MOST: Final = 1 << 50
"""More is no limit, but a mistake."""

SECURED: Final[Mapping[Quota, int]] = {
    Quota.CONNECTIONS: 200,
    Quota.STREAMS: 1_000,
    Quota.TOPICS: 1_000,
    Quota.PARTITIONS: 4_000,
    Quota.GROUPS: 1_000,
    Quota.TRANSACTIONS: 10_000,
    Quota.STAGED: 100_000,
    Quota.STAGED_BYTES: 4 << 30,
}
"""What holds where everybody has a name, and nothing is set: nobody can use up by mistake what all need."""


def parse_quota(text: str) -> Quota:
    """Raises `InvalidSetting`."""
    try:
        return Quota(text)
    except ValueError:
        raise InvalidSetting(
            f"{quoted(text)} is no quota{did_you_mean(text, map(str, Quota))} (quotas are {', '.join(Quota)})"
        ) from None


def check_limit(quota: Quota, limit: int) -> int:
    """The limit, or `UNLIMITED`. Raises `InvalidSetting`."""
    if limit != UNLIMITED and not 1 <= limit <= MOST:
        raise InvalidSetting(f"{quota}={limit} is out of range: give 1 to {MOST}, or unlimited")
    return limit


def parse_limit(quota: Quota, text: str) -> int:
    """What somebody has written: `50MiB/s`, `500/s`, `1000`, `unlimited`. Raises `InvalidSetting`."""
    if text == "unlimited":
        return UNLIMITED
    number = text.removesuffix("/s") if quota in RATES else text
    try:
        limit = parse_size(number) if quota in IN_BYTES else _count(number)
    except ValueError:
        example = "50MiB" if quota in IN_BYTES else "500" if quota in RATES else "1000"
        example += "/s" if quota in RATES else ""
        raise InvalidSetting(f"{quota}={quoted(text)} is no limit: write {example} or unlimited") from None
    return check_limit(quota, limit)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def limit_text(quota: Quota, limit: int) -> str:
    """As `parse_limit` reads it."""
    if limit == UNLIMITED:
        return "unlimited"
    text = str(limit)
    if quota in IN_BYTES:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)):
            if limit % size == 0:
                text = f"{limit // size}{unit}"
                break
    return f"{text}/s" if quota in RATES else text


def set_command(principal: str, quota: Quota, limit: int) -> str:
    """The command by which an administrator sets that."""
    option = f"--{quota.replace('_', '-')}"
    return shlex.join(["tritonmq", "quota", "set", principal, option, limit_text(quota, limit)])
