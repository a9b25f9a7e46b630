"""Spark finds `format("tritonmq")` here by itself: it looks into every top-level package whose name begins with
`pyspark_`.

Nothing else lives here, and nothing heavy is imported: if this package failed to import, Spark would see no Python
source at all.
"""

from mq_spark.datasource.source import TritonMQSource as DefaultSource

__all__ = ["DefaultSource"]
