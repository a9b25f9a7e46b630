"""The batch source: `spark.read.format("tritonmq")`. Where it begins and ends is fixed once, on the driver, when it is
planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mq_spark.datasource.cluster import connect
from mq_spark.datasource.reading import Ranges, input_partitions, planned_tasks, read_ranges
from mq_spark.datasource.subscribed import check_topic, resolve, topics_meant
from mq_spark.planning.offsets import ranges
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
        lives = [part.lives() for part in ranges(start, end)]
        for first, *more in lives:
            if (more or first.is_rest) and self._options.fail_on_data_loss:
                bound = bounds[first.topic][first.partition]
                raise data_loss(first.topic, first.partition, first.start, bound, self._options.subscription, first.end)
        tasks = planned_tasks(self._options, [part for parts in lives for part in parts])
        return input_partitions(tasks, {topic.name: topic.topic_id for topic in topics}) or [Ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)
        return read_ranges(self._options, self._wanted, partition)
