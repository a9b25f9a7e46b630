"""TritonMQ for Spark. The data source itself is found by its name, `format("tritonmq")`: nothing has to be imported for
it.

Whatever wants more than pyspark is imported when it is first asked for: Spark looks through this package for every
Python source.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mq_spark.session import configure

if TYPE_CHECKING:
    from mq_spark.datasource.lease_readers import settle
    from mq_spark.decoding import dead_letters, or_dead_letter, try_decode, try_from_json
    from mq_spark.lag import LAG_SCHEMA, LagListener, QueryLag, TopicLag, lag_of

__all__ = [
    "configure",
    "LagListener",
    "QueryLag",
    "TopicLag",
    "LAG_SCHEMA",
    "lag_of",
    "try_from_json",
    "try_decode",
    "or_dead_letter",
    "dead_letters",
    "settle",
]

_HOMES = {
    "lag": ("LagListener", "QueryLag", "TopicLag", "LAG_SCHEMA", "lag_of"),
    "datasource.lease_readers": ("settle",),
    "decoding": ("try_from_json", "try_decode", "or_dead_letter", "dead_letters"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
