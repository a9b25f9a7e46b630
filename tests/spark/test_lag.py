"""How far behind a query is: seen by operators at the brokers and by users inside Spark, at every moment of a query's
life."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mq_client import InvalidRequest, InvalidSetting, Reader, UnknownTopic
from mq_dev.local_cluster import LocalCluster
from mq_spark import LAG_SCHEMA, LagListener, QueryLag, lag_of
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.metrics.test_exposition import of, read
from tests.mq_cli.processes import tritonmq
from tests.spark.harness import Streams
from tests.spark.sink_driver import ENDS_S

Name = Callable[[str], str]


@pytest.fixture
def listen(spark: SparkSession, cluster: LocalCluster) -> Iterator[Callable[..., LagListener]]:
    """A listener that Spark has, taken away and closed when the test ends."""
    listeners: list[LagListener] = []

    def start(**options: object) -> LagListener:
        listener = LagListener(cluster.bootstrap, **options)  # type: ignore[arg-type]
        spark.streams.addListener(listener)
        listeners.append(listener)
        return listener

    yield start
    for listener in listeners:
        spark.streams.removeListener(listener)
        listener.close()


def start(frame: DataFrame, checkpoint: Path, *, once: bool = False, name: str = "") -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer = writer.queryName(name) if name else writer
    return (writer.trigger(availableNow=True) if once else writer).start()


def group_of(query: StreamingQuery) -> str:
    return f"spark-{query.id}"


def described(streams: Streams, group: str) -> dict[int, tuple[int, int]]:
    """As `tritonmq group describe` says it: offset and records behind, by partition."""
    found = tritonmq("group", "describe", group, "--json", "--bootstrap", streams.bootstrap)
    if found.returncode:
        return {}
    return {cursor["partition"]: (cursor["offset"], cursor["lag"]) for cursor in json.loads(found.stdout)["cursors"]}


def test_a_query_is_found_by_its_name_with_nothing_set_and_after_its_end(
    streams: Streams, name: Name, tmp_path: Path
) -> None:
    streams.create(2)
    streams.publish("a", "b", "c", partition=0)
    called = name("orders, by") + " day"
    frame = streams.stream(startingOffsets="earliest", maxOffsetsPerTrigger=2)
    query = start(frame, tmp_path / "c", once=True, name=called)
    assert query.awaitTermination(ENDS_S)
    wait_until(lambda: described(streams, group_of(query)).get(0) == (3, 0), "the last micro-batch is told")

    def listed() -> dict[str, str | None]:
        found = tritonmq("group", "list", "--json", "--bootstrap", streams.bootstrap)
        return {group["name"]: group["label"] for group in json.loads(found.stdout)}

    wait_until(lambda: listed().get(group_of(query)) == called, "its group is called as the query is")
    streams.publish("d", partition=0)
    by_name = lag_of(called, streams.bootstrap)
    assert (by_name.query_id, by_name.group, by_name.records) == (str(query.id), group_of(query), 1)
    by_query = lag_of(query, streams.bootstrap)
    assert (by_query.records, by_query.name, by_query.running, by_query.run_id) == (1, called, False, str(query.runId))


def test_a_listener_gives_the_lag_to_a_registry_to_a_topic_and_to_a_callback_that_may_fail(
    streams: Streams,
    listen: Callable[..., LagListener],
    name: Name,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[QueryLag] = []

    def fail(lag: QueryLag) -> None:
        calls.append(lag)
        raise ValueError("not today")

    registry = CollectorRegistry()
    streams.admin.create_topic(name("lag"), schema=LAG_SCHEMA)
    listener = listen(registry=registry, topic=name("lag"), on_lag=fail, interval_s=0.2)
    streams.create(1)
    streams.publish(*"abc")
    query = start(streams.stream(startingOffsets="earliest"), tmp_path / "c", name=name("counted"))
    place = of(query=name("counted"), topic=streams.topic)

    def lags() -> dict[tuple[tuple[str, str], ...], float]:
        return read(generate_latest(registry)).get("query_lag_records", {})

    try:
        wait_until(lambda: lags().get(place) == 0, "its lag is a metric")
        phases = {dict(labels)["phase"] for labels in read(generate_latest(registry))["query_batch_seconds"]}
        assert {"triggerExecution", "addBatch"} <= phases
        wait_until(lambda: len(calls) > 1, "the callback is called again")
    finally:
        query.stop()
    wait_until(lambda: not lags(), "it has ended")
    wait_until(lambda: not listener.latest()[query.id].running, "its end is measured")
    assert listener.latest()[str(query.id)].records == 0
    assert "not today" in caplog.text
    listener.close()
    with Reader(streams.bootstrap) as reader:
        _, end = streams.admin.offsets(name("lag"))[0]
        *_, last = (row for batch in reader.read(name("lag"), 0, 0, end) for row in batch.to_pylist())
    assert (last["query"], last["name"], last["topic"]) == (query.id, name("counted"), streams.topic)
    assert (last["partition"], last["offset"], last["records"], last["bytes"], last["seconds"]) == (0, 3, 0, 0, 0.0)


def test_with_a_listener_the_brokers_and_spark_agree_while_running_and_after_the_end(
    streams: Streams, listen: Callable[..., LagListener], tmp_path: Path
) -> None:
    seen: list[QueryLag] = []
    listener = listen(on_lag=seen.append, interval_s=0.5)
    streams.create(3)
    streams.publish(*"abcdef", partition=0)
    streams.publish("g", partition=1)
    frame = streams.stream(startingOffsets="earliest")
    query = start(frame, tmp_path / "c", name="running")
    group = group_of(query)
    # Also partition 2, which no task has read because it is empty.
    wait_until(
        lambda: described(streams, group) == {0: (6, 0), 1: (1, 0), 2: (0, 0)}, "all partitions are told while it runs"
    )
    running = wait_until(
        lambda: (found := listener.latest().get(query.id)) and found.records == 0 and found, "Spark agrees"
    )
    assert (running.name, running.group, running.running, running.records) == ("running", group, True, 0)
    query.stop()
    wait_until(lambda: not listener.latest()[query.id].running, "it is measured once more after its end")

    streams.publish(*"hijk", partition=2)
    wait_until(
        lambda: described(streams, group) == {0: (6, 0), 1: (1, 0), 2: (0, 4)}, "what comes while it is away is its lag"
    )
    again = start(streams.stream(startingOffsets="earliest", maxOffsetsPerTrigger=1), tmp_path / "c", once=True)
    assert again.awaitTermination(ENDS_S)
    assert again.id == query.id
    wait_until(lambda: described(streams, group)[2] == (4, 0), "its last micro-batch is told")
    wait_until(
        lambda: (listener.latest()[query.id].records, listener.latest()[query.id].running) == (0, False), "Spark agrees"
    )
    behind = [lag for lag in seen if lag.run_id == str(again.runId) and lag.records]
    assert all(lag.bytes > 0 and lag.seconds > 0 and lag.batch_id >= 0 for lag in behind)


def test_the_lag_of_a_query_that_hangs_grows_between_its_micro_batches(
    streams: Streams, listen: Callable[..., LagListener], tmp_path: Path
) -> None:
    listener = listen(interval_s=0.2)
    streams.create(1)
    streams.publish("a")
    holding = tmp_path / "hold"

    def hold(_frame: DataFrame, _batch: int) -> None:
        wait_until(lambda: not holding.exists(), "the test lets go")

    writer = streams.stream(startingOffsets="earliest").writeStream.foreachBatch(hold)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        first = "the first record is behind it"
        wait_until(
            lambda: (found := listener.latest().get(query.id)) and found.topics[0].partitions[0].offset == 1, first
        )
        holding.touch()
        streams.publish("b", "c")
        lag = wait_until(lambda: (found := listener.latest()[query.id]).records == 2 and found, "the lag is seen")
        wait_until(lambda: listener.latest()[query.id].seconds > lag.seconds, "and grows with time")
    finally:
        holding.unlink(missing_ok=True)
        query.stop()


def test_what_cannot_work_is_refused_at_once(streams: Streams, cluster: LocalCluster) -> None:
    with pytest.raises(UnknownTopic):
        LagListener(cluster.bootstrap, topic=streams.topic)
    streams.create(1)
    with pytest.raises(InvalidRequest, match="LAG_SCHEMA"):
        LagListener(cluster.bootstrap, topic=streams.topic)
    with pytest.raises(InvalidSetting, match="interval_s"):
        LagListener(cluster.bootstrap, interval_s=0)
