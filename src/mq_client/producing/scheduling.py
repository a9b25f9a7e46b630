"""When a record or a table is to be published, as users say it; and taking it back before."""

from __future__ import annotations

import time
from datetime import datetime
from typing import NamedTuple

from mq_client.cluster.connection import Connection
from mq_client.cluster.deadline import Deadline, a_number
from mq_client.cluster.requests import ask_leaders
from mq_client.errors import InvalidSetting
from mq_client.producing.batches import to_timestamp_us
from mq_client.producing.lanes import NOT_SCHEDULED, Due
from mq_protocol import limits
from mq_protocol import mq_pb2 as pb


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
    at_us = to_timestamp_us(deliver_at)
    if at_us <= 0:
        raise InvalidSetting(f"deliver_at={deliver_at} is before 1970: give a datetime or microseconds since 1970")
    if at_us > time.time_ns() // 1000 + limits.DELAY_MS_MAX * 1000:
        raise InvalidSetting(f"deliver_at={deliver_at} is more than a year ahead: schedule it later")
    return Due(at_us=at_us)


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
