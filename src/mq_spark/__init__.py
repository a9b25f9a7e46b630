"""TritonMQ for Spark. The data source itself is found by its name, `format("tritonmq")`: nothing has to be imported for it.

Whatever wants more than pyspark is imported when it is first asked for: Spark looks through this package for every Python source.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mq_spark.session import configure

if TYPE_CHECKING:
    from mq_spark.lag import LAG_SCHEMA, LagListener, QueryLag, TopicLag

__all__ = ["configure", "LagListener", "QueryLag", "TopicLag", "LAG_SCHEMA"]

_HOMES = {"LagListener": "lag", "QueryLag": "lag", "TopicLag": "lag", "LAG_SCHEMA": "lag"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
