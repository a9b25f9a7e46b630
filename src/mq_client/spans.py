"""Which offsets a read of several partitions is of: words, times and numbers, made offsets of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from mq_client.cluster.connection import Connection, TopicView
from mq_client.cluster.deadline import Deadline
from mq_client.cluster.requests import ask_offsets
from mq_client.errors import InvalidRequest, InvalidSetting, OffsetOutOfRange, UnknownPartition
from mq_client.producing.batches import to_timestamp_us
from mq_client.rows import Span
from mq_protocol import mq_pb2 as pb
from mq_protocol.names import did_you_mean

Place: TypeAlias = str | int | datetime
Bound: TypeAlias = Place | Mapping[int, Place]


def spans_of(
    connection: Connection, view: TopicView, partitions: Sequence[int], start: Bound, end: Bound, deadline: Deadline
) -> list[Span]:
    """The offsets from `start` to before `end` in each of the partitions, as the logs are now; partitions without any
    are left out.

    Raises `InvalidSetting` for a place that is none, `UnknownPartition`, `OffsetOutOfRange`, `InvalidRequest`.
    """
    starts = _of_each(view, "start", start, "earliest", partitions)
    ends = _of_each(view, "end", end, "latest", partitions)
    if not partitions:
        return []
    times = {to_timestamp_us(place) for place in (*starts.values(), *ends.values()) if isinstance(place, datetime)}
    at = {
        time_us: ask_offsets(connection, view.name, deadline, partitions=partitions, timestamp_us=time_us)
        for time_us in sorted(times)
    }
    logs = ask_offsets(connection, view.name, deadline, partitions=partitions, or_replicas=True)

    def offset_of(place: Place, number: int) -> int:
        if isinstance(place, datetime):
            return at[to_timestamp_us(place)][number].offset_at_timestamp
        if isinstance(place, str):
            return logs[number].log_start_offset if place == "earliest" else logs[number].log_end_offset
        return _within(view, logs[number], place)

    spans = []
    for number in partitions:
        first, last = offset_of(starts[number], number), offset_of(ends[number], number)
        if _is_behind(starts[number], ends[number]):
            raise InvalidRequest(
                f"topic {view.name!r} partition {number}: start {starts[number]} is behind end {ends[number]}"
            )
        if last > first:
            spans.append(Span(number, first, last))
    return spans


def _is_behind(start: Place, end: Place) -> bool:
    """Whether no log could be read from there to there."""
    if isinstance(start, datetime) and isinstance(end, datetime):
        return to_timestamp_us(start) > to_timestamp_us(end)
    return isinstance(start, int) and isinstance(end, int) and start > end


def _of_each(view: TopicView, which: str, bound: Bound, default: str, partitions: Sequence[int]) -> dict[int, Place]:
    if not isinstance(bound, Mapping):
        return dict.fromkeys(partitions, _checked(which, bound))
    for number in bound:
        if number not in partitions:
            raise UnknownPartition(
                f"{which} names partition {number!r} of {view.name!r}, and what is read is of {list(partitions)[:20]}"
            )
    return {number: _checked(which, bound.get(number, default)) for number in partitions}


def _checked(which: str, place: object) -> Place:
    if isinstance(place, datetime):
        return place
    if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
        return place
    if place in ("earliest", "latest"):
        return str(place)
    hint = did_you_mean(str(place), ("earliest", "latest"))
    raise InvalidSetting(
        f"{which}={place!r} is not known{hint or ':'} give 'earliest', 'latest', an offset, a datetime, or one of "
        "these for each partition"
    )


def _within(view: TopicView, log: pb.PartitionOffsets, offset: int) -> int:
    if log.log_start_offset <= offset <= log.log_end_offset:
        return offset
    raise OffsetOutOfRange(
        f"topic {view.name!r} partition {log.partition}: there is no offset {offset}, its log goes from "
        f"{log.log_start_offset} to {log.log_end_offset}; 'earliest' and 'latest' are what there is"
    )
