"""TritonMQ: a fault-tolerant message queue. All that applications use, under one name.

    from tritonmq import Admin, Producer, Consumer, Reader, Lock   # the client: needs no Spark and no Java
    from tritonmq import configure, LagListener                 # for Spark sessions: needs PySpark

Each name is imported from its own package (`mq_client`, `mq_spark`) when it is first asked for: a program that only
produces never loads PySpark. Spark finds `format("tritonmq")` by itself, with nothing imported.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, Final

import mq_client

if TYPE_CHECKING:
    from mq_client import *  # noqa: F403
    from mq_spark import (
        LAG_SCHEMA,
        LagListener,
        QueryLag,
        TopicLag,
        configure,
        dead_letters,
        lag_of,
        or_dead_letter,
        settle,
        try_decode,
        try_from_json,
    )

    __version__: str

_FOR_SPARK: Final = (
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
)

__all__ = [
    "LAG_SCHEMA",
    "LagListener",
    "QueryLag",
    "TopicLag",
    "__version__",
    "configure",
    "dead_letters",
    "lag_of",
    "or_dead_letter",
    "settle",
    "try_decode",
    "try_from_json",
]
__all__ += mq_client.__all__


if not TYPE_CHECKING:  # a type checker would take it to mean that every name exists

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            found: Any = metadata.version("tritonmq")
        elif name in _FOR_SPARK:
            found = _of_spark(name)
        elif name in mq_client.__all__:
            found = getattr(mq_client, name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def _of_spark(name: str) -> Any:
    try:
        return getattr(import_module("mq_spark"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ImportError(
            f"tritonmq.{name} is for Spark, and PySpark is not installed: pip install 'pyspark>=4.2'"
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
