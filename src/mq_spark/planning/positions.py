"""Where a stream stands: every decision about offsets that Spark asks a reader for, made from the brokers' bounds and
nothing else.

Pure: the bounds are arguments. What makes it subtle is what Spark keeps and what it forgets: only the *end* of a
micro-batch is written down. So the end of micro-batch 0 says where that began (`Mark.begun`): asked again after a
crash, "latest" or a time would be another place. A partition that turns up later begins where it is first named.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mq_protocol.errors import DataLoss, InvalidSetting
from mq_protocol.limits import next_life
from mq_spark.planning.offsets import Mark, OffsetRange, Offsets, canonical, limited, ranges
from mq_spark.planning.option_values import EARLIEST, LATEST, AtTime, ByPartition, StartingAt, listed
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.subscription import Subscription

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition's committed log: first offset kept, next to be given."""

    log_start_offset: int
    log_end_offset: int


AllBounds: TypeAlias = Mapping[str, Mapping[int, Bounds]]
"""`{topic: {partition: Bounds}}` of every partition that is subscribed to."""

Found: TypeAlias = Mapping[str, Mapping[int, "int | None"]]
"""`{topic: {partition: first offset at or after the time asked about}}`, None where all is older."""


class BeyondTheEnd(DataLoss):
    """An offset above the log's end, or of a partition that is not there: it is gone, or who said so is behind. Ask
    again."""


class Positions:
    """One running stream's. Owns the end that AvailableNow has fixed, and when rows were last given."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._fixed: AllBounds | None = None
        self._given_at = -math.inf

    def initial(self, bounds: AllBounds, found: Found | None = None) -> Offsets:
        """Where a new query begins; `found` if it does so at a time. Asked at least twice, and again after a crash in
        micro-batch 0. Raises `InvalidSetting`.
        """
        return resolved("startingOffsets", self._options.starting, bounds, found, fail=self._options.fail_on_data_loss)

    def goes_on(self, last: Mark, bounds: AllBounds, topic_ids: Mapping[str, str], *, sure: bool = True) -> Offsets:
        """Where the next micro-batch begins: where the last one ended, and in a topic that was made again since, if
        losses are allowed, at its first record. Raises `DataLoss`; `sure` as below.
        """
        begin = dict(last.offsets)
        for topic, topic_id in last.topic_ids.items():
            if topic in begin and topic in bounds and topic_ids.get(topic, topic_id) != topic_id:
                if self._options.fail_on_data_loss or not sure:
                    raise made_again(topic)
                log.warning("topic %s was deleted and made again: it is read from its first record on", topic)
                begin[topic] = {number: bound.log_start_offset for number, bound in bounds[topic].items()}
        return begin

    def latest(
        self, start: Offsets, bounds: AllBounds, rows_max: int | None, *, sure: bool = True, now_s: float = math.inf
    ) -> Offsets:
        """The end of the next micro-batch: `start` itself if there is nothing new, or too little of it yet. Raises
        `DataLoss`.

        `now_s` is a monotonic clock's, for maxTriggerDelay. Unless the caller is `sure` of the bounds, a log that ends
        too early is always `BeyondTheEnd`, losses allowed or not.
        """
        bounds = self._with_fixed(bounds)
        begin = self._kept(start, bounds, sure)
        end: Offsets = {}
        for topic, partitions in bounds.items():
            end[topic] = {}
            for partition, bound in partitions.items():
                if partition in begin.get(topic, {}):
                    end[topic][partition] = self._within_life(topic, partition, begin[topic][partition], bound)
                else:
                    end[topic][partition] = bound.log_start_offset
        rows = sum(map(len, ranges(begin, end)))
        if 0 < rows < self._rows_min() and now_s - self._given_at < self._options.max_trigger_delay_s:
            return canonical(start)
        if rows:
            self._given_at = now_s
        return limited(begin, end, rows_max) if rows_max is not None else canonical(end)

    @property
    def end_is_fixed(self) -> bool:
        """AvailableNow: when nothing is left, the query ends."""
        return self._fixed is not None

    def fix_end(self, bounds: AllBounds) -> None:
        """AvailableNow: what is there now is all that there will be."""
        self._fixed = bounds

    def planned(self, start: Offsets, end: Offsets, bounds: AllBounds, *, sure: bool = True) -> list[OffsetRange]:
        """The rows of a micro-batch, the same for the same two offsets. Raises `DataLoss` if they are not all there;
        `sure` as above.
        """
        bounds = self._with_fixed(bounds)
        parts = ranges(start, end)
        for part in parts:
            bound = bounds.get(part.topic, {}).get(part.partition)
            for wanted in (part.start, part.end):
                if bound is None or not bound.log_start_offset <= wanted <= bound.log_end_offset:
                    self._lost(part.topic, part.partition, wanted, bound, sure)
        return [kept for part in parts if (kept := _clamped(part, bounds)) is not None]

    # -------------------------------------------------------------- private

    def _rows_min(self) -> int:
        """minOffsetsPerTrigger; AvailableNow takes what there is, or it would never end."""
        return self._options.min_offsets_per_trigger or 0 if self._fixed is None else 0

    def _within_life(self, topic: str, partition: int, begin: int, bound: Bounds) -> int:
        """The end; at most to where offsets went on after a loss, which is told first."""
        end = self._end(topic, partition, begin, bound.log_end_offset)
        if end < next_life(begin):
            return end
        if self._options.fail_on_data_loss:
            raise data_loss(topic, partition, begin, bound, self._options.subscription, next_life(begin))
        return next_life(begin)

    def _end(self, topic: str, partition: int, begin: int, log_end_offset: int) -> int:
        """AvailableNow's end, if it is fixed; a partition that has come since then stays where it is."""
        if self._fixed is None:
            return log_end_offset
        fixed = self._fixed.get(topic, {}).get(partition)
        return begin if fixed is None else max(begin, fixed.log_end_offset)

    def _with_fixed(self, bounds: AllBounds) -> AllBounds:
        """The bounds, nowhere behind those on which AvailableNow has fixed its end.

        Those were asked of the leaders; `bounds` is what they have pushed so far, and may be older or lack a partition.
        Believing it would end the query before it has read what was there when it began.
        """
        merged = {topic: dict(inner) for topic, inner in bounds.items()}
        for topic, inner in (self._fixed or {}).items():
            for partition, fixed in inner.items():
                pushed = merged.setdefault(topic, {}).get(partition, fixed)
                merged[topic][partition] = Bounds(
                    pushed.log_start_offset, max(pushed.log_end_offset, fixed.log_end_offset)
                )
        return merged

    def _kept(self, start: Offsets, bounds: AllBounds, sure: bool) -> Offsets:
        """`start`, or where losses are allowed the nearest place that is still there."""
        begin: Offsets = {}
        for topic, partitions in start.items():
            for partition, offset in partitions.items():
                bound = bounds.get(topic, {}).get(partition)
                if bound is None or not bound.log_start_offset <= offset <= bound.log_end_offset:
                    self._lost(topic, partition, offset, bound, sure)
                if bound is not None:
                    begin.setdefault(topic, {})[partition] = min(
                        max(offset, bound.log_start_offset), bound.log_end_offset
                    )
        return begin

    def _lost(self, topic: str, partition: int, wanted: int, bound: Bounds | None, sure: bool) -> None:
        """Raises `DataLoss` unless the user has said that losses may be passed over."""
        error = data_loss(topic, partition, wanted, bound, self._options.subscription)
        if self._options.fail_on_data_loss or (isinstance(error, BeyondTheEnd) and not sure):
            raise error


def made_again(topic: str) -> BeyondTheEnd:
    """The error for a topic that is another one than before, under the same name."""
    return BeyondTheEnd(
        f"data was lost: topic {topic} was deleted and made again since it was read; to read the new one from its "
        "first record on, set option failOnDataLoss=false, or begin with a new checkpoint"
    )


def data_loss(
    topic: str, partition: int, wanted: int, bound: Bounds | None, meant: Subscription, goes_on: int = -1
) -> DataLoss:
    """The error that names topic, partition, what was wanted, what there is, and what to do. `goes_on`: the first
    offset that is kept after the one wanted, if a broker said so."""
    first = f"data was lost: offset {wanted} of topic {topic} partition {partition} is wanted"
    subscribed = meant.covers(topic, partition)
    if not subscribed:
        there = (
            f"by the checkpoint, and {meant.option} no longer names that "
            f"{'partition' if topic in meant.topics else 'topic'}"
        )
    elif bound is None:
        there = "and that partition is gone"
    elif wanted < bound.log_start_offset:
        there = f"and only {bound.log_start_offset} to {bound.log_end_offset} is kept: retention has removed the rest"
    elif wanted < goes_on <= bound.log_end_offset:
        there = (
            f"and what came after it, up to offset {goes_on - 1}, was lost in part or whole when that partition was "
            "recovered"
        )
    else:
        there = (
            f"and only {bound.log_start_offset} to {bound.log_end_offset} is there (was the topic deleted and made "
            "again?)"
        )
    may_come = subscribed and (bound is None or wanted > bound.log_end_offset)
    remedy = "to continue without them, set option failOnDataLoss=false, or begin with a new checkpoint"
    return (BeyondTheEnd if may_come else DataLoss)(f"{first} {there}; {remedy}")


def ends(bounds: AllBounds) -> Offsets:
    """The log end of every partition."""
    return canonical(
        {topic: {p: bound.log_end_offset for p, bound in inner.items()} for topic, inner in bounds.items()}
    )


def times_wanted(at: AtTime, bounds: AllBounds) -> ByPartition:
    """The time at which each partition is to be looked up. Raises `InvalidSetting` for partitions that it forgets or
    invents."""
    if isinstance(at.times_us, int):
        return {topic: dict.fromkeys(inner, at.times_us) for topic, inner in bounds.items()}
    _check_partitions(at.option, at.times_us, bounds)
    return at.times_us


def resolved(name: str, at: StartingAt, bounds: AllBounds, found: Found | None = None, *, fail: bool) -> Offsets:
    """The offsets that the option `name` means now; `found` is what was found at the times that it names, if it does.

    Raises `InvalidSetting` for a partition that it forgets, invents, or puts outside what is kept (if not `fail`, the
    nearest offset that is kept serves), and for a time after which there is nothing, if the option's strategy is to say
    so.
    """
    if isinstance(at, dict):
        _check_partitions(name, at, bounds)

    def offset(topic: str, partition: int, bound: Bounds) -> int:
        if isinstance(at, AtTime):
            assert found is not None, "times are looked up first"
            return _at(at, topic, partition, found, bound)
        return (
            _word(at, bound)
            if isinstance(at, int)
            else _exact(name, topic, partition, _given(at[topic], partition), bound, fail)
        )

    return canonical(
        {topic: {p: offset(topic, p, bound) for p, bound in inner.items()} for topic, inner in bounds.items()}
    )


def _given(of_topic: int | dict[int, int], partition: int) -> int:
    return of_topic if isinstance(of_topic, int) else of_topic[partition]


def _check_partitions(name: str, given: Mapping[str, int | dict[int, int]], bounds: AllBounds) -> None:
    if sorted(given) != sorted(bounds):
        raise InvalidSetting(
            f"{name} names topics {listed(given)}, and there are {listed(bounds)}: name every one, once"
        )
    for topic, inner in bounds.items():
        named = given[topic]
        if not isinstance(named, int) and sorted(named) != sorted(inner):
            raise InvalidSetting(
                f"{name} names partitions {listed(named)} of topic {topic}, which has {listed(inner)}: name "
                "every one, once"
            )


def _at(at: AtTime, topic: str, partition: int, found: Found, bound: Bounds) -> int:
    offset = found[topic][partition]
    if offset is not None:
        return offset
    if not at.otherwise_latest:
        raise InvalidSetting(
            f"{at.option} finds nothing in topic {topic} partition {partition}, where all is older: give an earlier "
            "time, or set startingOffsetsByTimestampStrategy=latest to begin there at the end"
        )
    return bound.log_end_offset


def _word(word: int, bound: Bounds) -> int:
    return bound.log_start_offset if word == EARLIEST else bound.log_end_offset


def _exact(name: str, topic: str, partition: int, offset: int, bound: Bounds, fail: bool) -> int:
    if offset in (EARLIEST, LATEST):
        return _word(offset, bound)
    inside = min(max(offset, bound.log_start_offset), bound.log_end_offset)
    if fail and inside != offset:
        raise InvalidSetting(
            f"{name} has offset {offset} for topic {topic} partition {partition}, which keeps {bound.log_start_offset} "
            f"to {bound.log_end_offset}: choose one between, -2 for earliest or -1 for latest, or set "
            "failOnDataLoss=false"
        )
    return inside


def _clamped(part: OffsetRange, bounds: AllBounds) -> OffsetRange | None:
    bound = bounds.get(part.topic, {}).get(part.partition)
    if bound is None:
        return None
    start, end = max(part.start, bound.log_start_offset), min(part.end, bound.log_end_offset)
    return OffsetRange(part.topic, part.partition, start, end) if start < end else None
