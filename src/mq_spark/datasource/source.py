"""The data source that `format("tritonmq")` names: it hands options and schemas on, and owns nothing.

Spark unpickles this class in a process of its own for every role, and looks it up beside every other Python source at its first
use: so nothing but pyspark's own base class is imported at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from mq_spark.datasource.batch_reader import BatchReader
    from mq_spark.datasource.batch_writer import BatchWriter
    from mq_spark.datasource.stream_reader import StreamReader
    from mq_spark.datasource.stream_writer import StreamWriter


class TritonMQSource(DataSource):
    """`spark.readStream | read | writeStream | write .format("tritonmq")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "tritonmq"

    def schema(self) -> StructType:
        """The columns of the topics that are subscribed to. Raises `TritonMQError` within the option requestTimeoutMs."""
        from mq_spark.datasource.cluster import connect
        from mq_spark.datasource.subscribed import check_filter, topics_meant
        from mq_spark.options import parse_source
        from mq_spark.schemas import stream_schema

        options = parse_source(self.options, streaming=None)
        topics = topics_meant(connect(options.bootstrap, options.timeout_ms), options)
        for topic in topics:
            check_filter(topic, options)
        return stream_schema(topics, include_headers=options.include_headers, include_metadata=options.include_metadata)

    def reader(self, schema: StructType) -> BatchReader:
        from mq_spark.datasource.batch_reader import BatchReader
        from mq_spark.options import parse_source

        return BatchReader(parse_source(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        from mq_spark.datasource.stream_reader import StreamReader
        from mq_spark.options import parse_source

        return StreamReader(parse_source(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from mq_spark.datasource.batch_writer import BatchWriter
        from mq_spark.options import parse_sink

        return BatchWriter(parse_sink(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """`overwrite` is Spark's word for complete mode, which writes every result anew: as with Kafka, they are appended."""
        from mq_spark.datasource.stream_writer import StreamWriter
        from mq_spark.options import parse_sink

        return StreamWriter(parse_sink(self.options, streaming=True), schema)
