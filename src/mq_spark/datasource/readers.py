"""The sources without a queue group: `spark.read` and `spark.readStream`. Decisions about offsets are positions.py's;
here they meet the brokers and Spark's calls.

Spark plans a batch read once for each `load()`, however often its DataFrame is used. So what is given as an offset or a
time is fixed then, and "earliest" and "latest" are found by the tasks, each time.

A stream's reader lives in a process on the driver as long as the query does, and copies of it, never used there, go to
the tasks: what the driver's needs is therefore made on first use.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidSetting
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.reading import Ranges, input_partitions, planned_tasks, read_ranges
from mq_spark.datasource.subscribed import Subscribed, check_topic, resolve, topics_meant
from mq_spark.planning.offsets import Mark, Offsets, byte_shares, canonical, cut_to_shares, from_json, ranges, to_json
from mq_spark.planning.option_values import EARLIEST, LATEST, AtTime, is_word
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.positions import AllBounds, BeyondTheEnd, Positions, data_loss, ends, times_wanted


class BatchReader(DataSourceReader):
    """Owns the options and the columns that are wanted; can be pickled."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self._options = options
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; one without ranges if there is nothing to read, because Spark makes one of its own otherwise."""
        cluster = connect(self._options)
        topics = topics_meant(cluster, self._options)
        for topic in topics:
            check_topic(topic, self._options, self._wanted)
        bounds = cluster.bounds((topic.name for topic in topics), self._options.subscription.assigned)
        start = resolve(
            cluster, "startingOffsets", self._options.starting, bounds, fail=self._options.fail_on_data_loss
        )
        end = resolve(cluster, "endingOffsets", self._options.ending, bounds, fail=self._options.fail_on_data_loss)
        _check_order(start, end)
        lives = [part.lives() for part in ranges(start, end)]
        for first, *more in lives:
            if (more or first.is_rest) and self._options.fail_on_data_loss:
                bound = bounds[first.topic][first.partition]
                raise data_loss(first.topic, first.partition, first.start, bound, self._options.subscription, first.end)
        tasks = planned_tasks(self._options, [part for parts in lives for part in parts])
        planned = input_partitions(tasks, {topic.name: topic.topic_id for topic in topics}) or [
            Ranges(topic_ids={topic.name: topic.topic_id for topic in topics})
        ]
        self._late_bound(planned, end)
        return planned

    def _late_bound(self, planned: list[Ranges], end: Offsets) -> None:
        """Give each open end to the task that has what lies before it, and those of partitions that had nothing to the
        tasks in turn."""
        holders = {(each.topic, each.partition): work for work in planned for each in work.ranges}
        turn = itertools.cycle(planned)
        for topic, inner in end.items():
            for partition, offset in inner.items():
                if is_word(self._options.ending, topic, partition, LATEST):
                    work = holders.get((topic, partition)) or next(turn)
                    work.tails = (*work.tails, (topic, partition, offset))
        earliest = frozenset(
            (topic, partition)
            for topic, inner in end.items()
            for partition in inner
            if is_word(self._options.starting, topic, partition, EARLIEST)
        )
        for work in planned:
            work.from_earliest = earliest

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)
        return read_ranges(self._options, self._wanted, partition)


def _check_order(start: Offsets, end: Offsets) -> None:
    for topic, inner in start.items():
        for partition, offset in inner.items():
            if offset > end[topic][partition]:
                raise InvalidSetting(
                    f"the read begins at offset {offset} of topic {topic} partition {partition} and ends at "
                    f"{end[topic][partition]}: let the ending offsets or times be after the starting ones"
                )


_BELIEVED_AFTER_SECONDS: Final = 10.0
_ASKED_AGAIN_AFTER_SECONDS: Final = 0.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _OnDriver:
    """What only the driver's copy has: the topics and their ends as the brokers push them, and where the stream
    stands."""

    cluster: Cluster
    subscribed: Subscribed
    positions: Positions

    def ids(self, offsets: Offsets) -> dict[str, str]:
        """Of those that are there."""
        ids = self.subscribed.topic_ids
        return {topic: ids[topic] for topic in offsets if topic in ids}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("tritonmq")`. Every method retries inside, within the option requestTimeoutMs, and then
    raises: an error that gets out ends the query.
    """

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self._options = options
        self._wanted = wanted
        self._opened: _OnDriver | None = None

    # -------------------------------------------------------------- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        driver = self._driver()
        starting, bounds = self._options.starting, driver.subscribed.bounds()
        found = driver.cluster.find_times(times_wanted(starting, bounds)) if isinstance(starting, AtTime) else None
        begin = driver.positions.initial(bounds, found)
        return to_json(Mark(begin, driver.ids(begin), begin))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark hands it back to `latestOffset`. It knows no limit of rows and bytes together: the first is told, both
        are kept."""
        rows_max, bytes_max = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if rows_max is not None:
            return ReadMaxRows(rows_max)
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Called every 12 ms by an idle query: answered from what the brokers have pushed, without asking anybody (with
        maxBytesPerTrigger the leaders are asked, when there is something new).
        """
        driver = self._driver()
        last = from_json(start)
        limited = not isinstance(limit, ReadAllAvailable)
        rows_max = self._options.max_offsets_per_trigger if limited else None
        self._report(last.offsets)
        now_s = time.monotonic()

        def decided(bounds: AllBounds, sure: bool) -> tuple[Offsets, Offsets]:
            begin = driver.positions.goes_on(last, bounds, driver.subscribed.topic_ids, sure=sure)
            return begin, driver.positions.latest(begin, bounds, rows_max, sure=sure, now_s=now_s)

        begin, end = self._believed(decided)
        if limited and self._options.max_bytes_per_trigger is not None:
            end = self._within_bytes(begin, end, self._options.max_bytes_per_trigger)
        mark = _mark(last, begin, end, driver.ids(end))
        if driver.positions.end_is_fixed and mark == last:
            driver.cluster.flush_reports()  # Spark now ends the query, and this process without another word
        return to_json(mark)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(Mark(ends(self._driver().subscribed.bounds())))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        driver = self._driver()
        driver.positions.fix_end(driver.subscribed.asked())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        driver = self._driver()
        mark = from_json(end)
        begin = mark.starts(from_json(start))
        parts = self._believed(lambda bounds, sure: driver.positions.planned(begin, mark.offsets, bounds, sure=sure))
        return input_partitions(planned_tasks(self._options, parts), {**driver.subscribed.topic_ids, **mark.topic_ids})

    def commit(self, end: dict[str, Any]) -> None:
        self._report(from_json(end).offsets)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.subscribed.close()
            self._opened = None

    def _driver(self) -> _OnDriver:
        if self._opened is None:
            cluster = connect(self._options)
            subscribed = Subscribed(cluster, self._options, self._wanted)
            self._opened = _OnDriver(cluster, subscribed, Positions(self._options))
        return self._opened

    def _believed(self, decision: Callable[[AllBounds, bool], _T]) -> _T:
        """The decision on what the brokers have pushed. A log that ends too early is believed only when it has been
        said for some seconds: within them a broker that has lost its leadership without knowing it is overruled.
        """
        driver = self._driver()
        bounds = driver.subscribed.bounds()
        deadline = time.monotonic() + min(self._options.timeout_ms / 1000, _BELIEVED_AFTER_SECONDS)
        while True:
            sure = time.monotonic() >= deadline
            try:
                return decision(bounds, sure)
            except BeyondTheEnd:
                if sure:
                    raise
            time.sleep(_ASKED_AGAIN_AFTER_SECONDS)
            bounds = driver.subscribed.asked()

    def _within_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """The end of a micro-batch of at most so many stored bytes, measured by the leaders."""
        parts = ranges(start, end)
        if not parts:
            return end
        cluster = self._driver().cluster
        sizes = {(part.topic, part.partition): size for part, size, _ in cluster.measure((part, 0) for part in parts)}
        shares = byte_shares(start, end, sizes, bytes_max)
        if shares is None:
            return end
        asked = [(part, shares[part.topic, part.partition]) for part in parts if (part.topic, part.partition) in shares]
        reached = {(part.topic, part.partition): reach for part, _, reach in cluster.measure(asked)}
        return cut_to_shares(start, end, sizes, shares, reached)

    def _report(self, committed: Offsets) -> None:
        """Progress under the group that the user has named; without a name the tasks report (reading.py says why)."""
        if self._options.group_id is not None:
            positions = [(topic, p, offset) for topic, inner in committed.items() for p, offset in inner.items()]
            self._driver().cluster.report(self._options.group_id, positions)

    # -------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)
        return read_ranges(self._options, self._wanted, partition)


def _mark(last: Mark, begin: Offsets, end: Offsets, topic_ids: Mapping[str, str]) -> Mark:
    """The end of the micro-batch that begins at `begin`, which is `last` unless topics were made again; `last` itself
    if there is nothing new."""
    if end == last.offsets and last.topic_ids.items() <= topic_ids.items():
        return last
    again = {topic: inner for topic, inner in begin.items() if inner != last.offsets[topic]}
    return Mark(end, topic_ids, canonical({**(last.offsets if last.is_first else {}), **again}))
