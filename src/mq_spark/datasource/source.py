"""The data source that `format("tritonmq")` names: it hands options and schemas on, and owns nothing.

Spark unpickles this class in a process of its own for every role, and looks it up beside every other Python source at
its first use: so nothing but pyspark's own base class is imported at the top.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource

from mq_protocol.errors import InvalidSetting, TritonMQError
from mq_spark.supported import check_pyspark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from mq_spark.datasource.lease_readers import LeaseBatchReader, LeaseReader, Lent
    from mq_spark.datasource.readers import BatchReader, StreamReader
    from mq_spark.datasource.writers import BatchWriter, StreamWriter

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _without_our_frames(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Spark shows the traceback of what is raised here to the user: our frames would only hide the message, which says
    it all."""

    @functools.wraps(method)
    def called(*args: _P.args, **options: _P.kwargs) -> _R:
        try:
            return method(*args, **options)
        except TritonMQError as error:
            raise error.with_traceback(None) from None

    return called


class TritonMQSource(DataSource):
    """`spark.readStream | read | writeStream | write .format("tritonmq")`. Raises `ImportError` for a PySpark below
    4.2."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_pyspark()
        self.options = dict(options)
        self.lent: Lent | None = None

    def _settings(self, columns: StructType | None = None) -> dict[str, str]:
        """The options, with what this process's environment says: it is the driver's. `columns`: those of a table in
        Spark's catalog carry its options."""
        from mq_spark.datasource.schemas import options_of
        from mq_spark.datasource.securing import with_environment

        return with_environment({**options_of(columns), **self.options})

    @classmethod
    def name(cls) -> str:
        return "tritonmq"

    @_without_our_frames
    def schema(self) -> StructType:
        """The columns of the topics that are subscribed to. Of a batch read in lease mode they carry what it is lent:
        that is asked for here, once for each `load()`. Raises `TritonMQError` within the option requestTimeoutMs."""
        from mq_spark.datasource.cluster import connect
        from mq_spark.datasource.schemas import stream_schema
        from mq_spark.datasource.subscribed import check_filter, topics_meant
        from mq_spark.planning.options import parse_source

        options = parse_source(self._settings(), streaming=None)
        topics = topics_meant(connect(options), options)
        for topic in topics:
            check_filter(topic, options)
        plain = stream_schema(
            topics, include_headers=options.include_headers, include_metadata=options.include_metadata
        )
        if options.lease is None:
            from mq_spark.datasource.schemas import with_options

            return with_options(plain, self.options)
        from mq_spark.datasource.lease_readers import lease_schema

        wanted = lease_schema(plain, topics[0], include_metadata=options.include_metadata)
        if options.lease.member:  # a stream, which is lent micro-batches
            return wanted
        from mq_spark.datasource.lease_readers import Lent

        self.lent = Lent.lend(options, topics)
        return self.lent.marked(wanted)

    @_without_our_frames
    def reader(self, schema: StructType) -> BatchReader | LeaseBatchReader:
        from mq_spark.datasource.readers import BatchReader
        from mq_spark.planning.options import parse_source

        options = parse_source(self._settings(schema), streaming=False)
        if options.lease is None:
            return BatchReader(options, schema)
        from mq_spark.datasource.lease_readers import LeaseBatchReader

        if self.lent is None:
            raise InvalidSetting(
                "a batch read with lease.group takes its columns from the topic, since they say what it was lent: "
                "leave .schema(...) out, and select the columns that you want"
            )
        return LeaseBatchReader(options, schema, self.lent)

    @_without_our_frames
    def streamReader(self, schema: StructType) -> StreamReader | LeaseReader:  # noqa: N802 - Spark's name
        from mq_spark.planning.options import parse_source

        if self.lent is not None:  # it was taken for a batch read, since lease.member is missing
            self.lent.give_back()
        options = parse_source(self._settings(schema), streaming=True)
        if options.lease is not None:
            from mq_spark.datasource.lease_readers import LeaseReader

            return LeaseReader(options, options.lease, schema)
        from mq_spark.datasource.readers import StreamReader

        return StreamReader(options, schema)

    @_without_our_frames
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Called on the driver, once: the topic and the columns are checked here, before there is any task."""
        from mq_spark.datasource.staging import check_sink
        from mq_spark.datasource.writers import BatchWriter
        from mq_spark.planning.options import parse_sink

        options = parse_sink(self._settings(schema), streaming=False)
        writer = BatchWriter(options, schema, overwrite=overwrite)
        check_sink(options, schema)
        return writer

    @_without_our_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Called on the driver, before the tasks of each micro-batch and to commit it: the topic and the columns are
        checked here.

        `overwrite` is Spark's word for complete mode, which writes every result anew: as with Kafka, they are appended.
        """
        from mq_spark.datasource.staging import STREAM_AGE_S, check_sink
        from mq_spark.datasource.writers import StreamWriter
        from mq_spark.planning.options import parse_sink

        options = parse_sink(self._settings(), streaming=True)
        check_sink(options, schema, age_s_max=STREAM_AGE_S)
        return StreamWriter(options, schema)
