"""What a `LagListener` knows, as metrics of the driver's process, for whoever scrapes it.

The one module of Spark's side that knows prometheus_client: a worker of Spark does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from mq_spark.lag import QueryLag, TopicLag

Registry: TypeAlias = CollectorRegistry

_LAGS: Final[tuple[tuple[str, str, Callable[[TopicLag], float]], ...]] = (
    ("tritonmq_query_lag_records", "Records that the query has not read.", lambda topic: topic.records),
    ("tritonmq_query_lag_bytes", "Their bytes as stored.", lambda topic: topic.bytes),
    ("tritonmq_query_lag_seconds", "How old the oldest of them is.", lambda topic: topic.seconds),
)


class Running(NamedTuple):
    """A running query: its newest measurement, and how long each phase of its last micro-batch took, in
    milliseconds."""

    lag: QueryLag
    phases_ms: Mapping[str, int]


class LagMetrics(Collector):
    """Owns the place of a listener's metrics in a registry. `queries`: those that run now. A query is called by its
    name, or by its id if it has none."""

    def __init__(self, queries: Callable[[], list[Running]], registry: CollectorRegistry) -> None:
        """Raises `ValueError` if the registry has these metrics already: one listener may have them."""
        self._queries = queries
        self._registry = registry
        registry.register(self)

    def close(self) -> None:
        self._registry.unregister(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families(self._queries())

    @staticmethod
    def _families(queries: list[Running]) -> Iterator[GaugeMetricFamily]:
        by_name = {each.lag.name or each.lag.query_id: each for each in queries}
        for metric, text, value in _LAGS:
            family = GaugeMetricFamily(metric, text, labels=("query", "topic"))
            for name, running in by_name.items():
                for topic in running.lag.topics:
                    family.add_metric((name, topic.topic), value(topic))
            yield family
        measured = GaugeMetricFamily(
            "tritonmq_query_measured_timestamp_seconds", "When its lag was measured, since 1970.", labels=("query",)
        )
        phases = GaugeMetricFamily(
            "tritonmq_query_batch_seconds", "How long a phase of its last micro-batch took.", labels=("query", "phase")
        )
        for name, running in by_name.items():
            measured.add_metric((name,), running.lag.measured_us / 1e6)
            for phase, took_ms in running.phases_ms.items():
                phases.add_metric((name, phase), took_ms / 1000)
        yield measured
        yield phases
