"""What queries that start at once change together."""

from __future__ import annotations

from pyspark.sql import SparkSession

from mq_spark.session import SAFE


def test_variables_that_all_queries_put_are_in_a_map_made_for_threads(spark: SparkSession) -> None:
    for session in (spark, spark.newSession()):
        manager = session._jsparkSession.sessionState().dataSourceManager()
        variables = manager.lookupDataSource("tritonmq").dataSourceCls().envVars()
        assert variables.getClass().getName() == SAFE
        assert "PYTHONPATH" in dict(variables)
