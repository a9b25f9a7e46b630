"""TritonMQ for Spark. The data source itself is found by its name, `format("tritonmq")`: nothing has to be imported for it."""

from mq_spark.session import configure

__all__ = ["configure"]
