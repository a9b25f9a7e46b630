"""What the driver checks of a write before any task begins: that the topic is there, and that the rows' columns fit it.

The tasks check the same again, since a topic may change while a query runs. But there each task tells its error by
itself, tries again, and Spark logs every try: the one line that says what to do is lost among a hundred.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from pyspark.sql.types import StructType

from mq_protocol.errors import SchemaMismatch, UnknownTopic
from mq_protocol.names import nearest
from mq_spark.datasource.cluster import Cluster, connect
from mq_spark.datasource.rows import Fit
from mq_spark.planning.options import SinkOptions

STREAM_AGE_S: Final = 5.0
"""A stream's micro-batches may follow each other by the hundred milliseconds: what was heard of the topic so long ago
will do."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCHEMA_CHARACTERS_MAX: Final = 500


def check_sink(options: SinkOptions, columns: StructType, *, age_s_max: float = 0.0) -> None:
    """Ask the brokers of the topic that is written to, and hold the rows' columns against it. Where each row names its
    own topic, only that there is such a column can be checked.

    `age_s_max`: what was heard of the topic within so many seconds is believed. Raises `UnknownTopic` with the command
    that makes the topic, `SchemaMismatch` naming the column and both types, `Unreachable`.
    """
    if options.topic is None:
        topic_column(columns)
        return
    cluster, name = connect(options), options.topic
    try:
        cluster.topic_that_fits(
            name, lambda topic: Fit(topic, columns, routed=False, key_column=options.key_column), age_s_max=age_s_max
        )
    except UnknownTopic:
        raise UnknownTopic(_create_it_first(cluster, name, columns)) from None


def topic_column(columns: StructType) -> int:
    """Where the rows say to which topic they go. Raises `SchemaMismatch` if they do not."""
    for at, column in enumerate(columns):
        if column.name.lower() == "topic":
            if column.dataType.typeName() != "string":
                raise SchemaMismatch(f"column 'topic' is {column.dataType.simpleString()}: make it a string")
            return at
    raise SchemaMismatch("no topic is named: set option topic, or give the rows a column 'topic'")


def _create_it_first(cluster: Cluster, name: str, columns: StructType) -> str:
    command = f"tritonmq topic create {shlex.quote(name)}{_schema_option(columns)}"
    near = nearest(name, cluster.topic_names())
    meant = f"; or did you mean {near!r}?" if near else ""
    return f"unknown topic {name!r}: create it first, `{command}` or Admin.create_topic{meant}{cluster.or_no_right}"


def _schema_option(columns: StructType) -> str:
    """For rows that are no records (without a column `value`): columns of the topic's own, as the rows have them."""
    if any(column.name.lower() == "value" for column in columns):
        return ""
    text = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in columns)
    if len(text) > _SCHEMA_CHARACTERS_MAX or not all(_PLAIN_NAME.fullmatch(column.name) for column in columns):
        return " --schema 'NAME TYPE, …'"
    return f" --schema '{text}'"
