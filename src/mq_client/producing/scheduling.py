"""When a record or a table is to be published, how urgent it is and for how long it is of use, as users say it; and
taking it back before."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, a_number
from mq_client.cluster.requests import ask_leaders
from mq_client.errors import InvalidRequest, InvalidSetting
from mq_client.producing.batches import Headers, one_record, to_timestamp_us
from mq_client.producing.lanes import NOT_SCHEDULED, Attributes, Due
from mq_client.producing.targets import Target
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb

_SECONDS_MIN: Final = 1_000_000_000
_MILLISECONDS_MIN: Final = 100_000_000_000
_MICROSECONDS_MIN: Final = 100_000_000_000_000
"""From here on a number is taken for a time since 1970 in this unit. As microseconds all below the last are before
1974, for which nobody schedules anything."""


class Cancellation(NamedTuple):
    """What became of a scheduled batch that was to be cancelled.

    `cancelled`: it is not published, and never will be. `published`: it came too late, the batch has its `offset` and
    stays. Neither: the partition knows nothing of the UUID (any more).
    """

    cancelled: bool
    published: bool
    offset: int


def due_of(deliver_at: int | datetime | None, delay_ms: float | None) -> Due:
    """What was asked for, checked. A delay counts from when the broker has the batch, by the broker's clock. Raises
    `InvalidSetting`."""
    if deliver_at is None and delay_ms is None:
        return NOT_SCHEDULED
    if deliver_at is not None and delay_ms is not None:
        raise InvalidSetting("deliver_at and delay_ms are both given: give the time or the delay")
    if delay_ms is not None:
        if not 0 <= a_number("delay_ms", delay_ms) <= limits.DELAY_MS_MAX:
            raise InvalidSetting(f"delay_ms={delay_ms} is not allowed: give 0 to {limits.DELAY_MS_MAX}, a year")
        return Due(delay_ms=max(1, round(delay_ms))) if delay_ms else NOT_SCHEDULED
    assert deliver_at is not None
    at_us = to_timestamp_us(deliver_at, "deliver_at")
    if at_us <= 0:
        raise InvalidSetting(f"deliver_at={deliver_at} is before 1970: give a datetime or microseconds since 1970")
    if isinstance(deliver_at, int) and _SECONDS_MIN <= deliver_at < _MICROSECONDS_MIN:
        unit = "seconds" if deliver_at < _MILLISECONDS_MIN else "milliseconds"
        raise InvalidSetting(
            f"deliver_at={deliver_at} looks like {unit}, and would be published at once: give a datetime or "
            "microseconds since 1970"
        )
    if at_us > time.time_ns() // 1000 + limits.DELAY_MS_MAX * 1000:
        raise InvalidSetting(f"deliver_at={deliver_at} is more than a year ahead: schedule it later")
    return Due(at_us=at_us)


def batch_of_one(
    target: Target,
    key: bytes | str | None,
    value: Any,
    headers: Headers | None,
    timestamp: int | datetime | None,
    serialize: Callable[[Any], bytes | None] | None,
) -> pa.RecordBatch:
    """One record, or one row of a typed topic. Raises `InvalidRequest` and `SchemaMismatch`."""
    if target.rows is None:
        return one_record(key, value if serialize is None or value is None else serialize(value), headers, timestamp)
    if not isinstance(value, Mapping) or headers is not None or timestamp is not None:
        raise InvalidRequest(
            f"topic {target.view.name!r} has its own schema: give a dict of its columns, without headers or timestamp"
        )
    values, _ = target.rows.fit(value)
    return target.rows.batch([values])


def checked_priority(priority: int) -> int:
    """Raises `InvalidSetting` unless it is one."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= limits.PRIORITY_MAX:
        raise InvalidSetting(f"priority={priority!r}: give a whole number from 0 to {limits.PRIORITY_MAX}")
    return priority


def attributes_of(priority: int, ttl_ms: float | None) -> Attributes:
    """What was asked for, checked. Raises `InvalidSetting`."""
    checked_priority(priority)
    if ttl_ms is None:
        return Attributes(priority)
    if not 1 <= a_number("ttl_ms", ttl_ms) <= limits.TTL_MS_MAX:
        raise InvalidSetting(
            f"ttl_ms={ttl_ms} is not allowed: give 1 to {limits.TTL_MS_MAX}, a year, or leave it out for records that "
            "are always of use"
        )
    return Attributes(priority, round(ttl_ms))


def cancel(connection: Connection, topic: str, partition: int, uuid: bytes, deadline: Deadline) -> Cancellation:
    """Ask the partition's leader to discard the batch. May be asked again."""
    found: list[Cancellation] = []

    def ask(address: str, numbers: list[int], limit: Deadline) -> list[pb.PartitionOffsets]:
        request = pb.CancelScheduledRequest(topic=topic, partition=partition, uuid=uuid)
        answer = connection.ask(address, "CancelScheduled", request, pb.CancelScheduledResponse, limit)
        offset = answer.offset if answer.published else -1
        found.append(Cancellation(answer.cancelled, answer.published, offset))
        return [pb.PartitionOffsets(partition=number) for number in numbers]

    ask_leaders(connection, topic, [partition], ask, deadline)
    return found[-1]
