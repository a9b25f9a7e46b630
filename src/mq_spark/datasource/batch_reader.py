"""The batch source: `spark.read.format("tritonmq")`.

Spark plans it once for each `load()`, however often its DataFrame is used. So what is given as an offset or a time is
fixed then, and "earliest" and "latest" are found by the tasks, each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq_protocol.errors import InvalidSetting
from mq_spark.datasource.cluster import connect
from mq_spark.datasource.reading import Ranges, input_partitions, planned_tasks, read_ranges
from mq_spark.datasource.subscribed import check_topic, resolve, topics_meant
from mq_spark.planning.offsets import Offsets, ranges
from mq_spark.planning.option_values import EARLIEST, LATEST, is_word
from mq_spark.planning.options import SourceOptions
from mq_spark.planning.positions import data_loss


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
