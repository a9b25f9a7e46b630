"""The lag of queries by name: as metrics of the driver, and asked once. No Spark and no broker runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mq_client import GroupCursor, GroupDescription, InvalidRequest, InvalidSetting, UnknownGroup
from mq_spark import asked_lag, lag
from mq_spark.asked_lag import lag_of
from mq_spark.lag import LagListener, QueryLag, TopicLag
from tests.mq_broker.broker.metrics.test_exposition import of, read


def cursor(topic: str, partition: int, *, label: str = "", leads: bool = True) -> GroupCursor:
    return GroupCursor(topic, partition, 3, 10, 70, 1_500_000, 5, (), "spark", leads, label)


def measured(query_id: str, name: str | None, *topics: str) -> QueryLag:
    found = tuple(TopicLag(topic, (cursor(topic, 0), cursor(topic, 1))) for topic in topics)
    return QueryLag(query_id, "run", name, f"spark-{query_id}", 4, running=True, measured_us=2_000_000, topics=found)


def listener(registry: CollectorRegistry) -> Any:
    return LagListener("127.0.0.1:1", registry=registry)


def started(listening: Any, query_id: str, name: str | None, *topics: str) -> None:
    """A query that runs, and was measured."""
    listening._queries[query_id] = lag._Query("run", name, phases_ms={"addBatch": 250, "triggerExecution": 400})
    listening._remember(measured(query_id, name, *topics))


def test_queries_that_run_are_metrics_by_their_names() -> None:
    registry = CollectorRegistry()
    with listener(registry) as listening:
        started(listening, "1-a", 'or"ders', "t", "u")
        started(listening, "2-b", None, "t")
        started(listening, "3-c", "ended", "t")
        listening._queries["3-c"].ended = True
        listening._queries["4-d"] = lag._Query("run", "not measured yet")
        seen = read(generate_latest(registry))
        places = [of(query='or"ders', topic="t"), of(query='or"ders', topic="u"), of(query="2-b", topic="t")]
        assert seen["query_lag_records"] == dict.fromkeys(places, 14.0)
        assert seen["query_lag_bytes"] == dict.fromkeys(places, 140.0)
        assert seen["query_lag_seconds"] == dict.fromkeys(places, 1.5)
        assert seen["query_measured_timestamp_seconds"] == {of(query='or"ders'): 2.0, of(query="2-b"): 2.0}
        assert seen["query_batch_seconds"][of(query="2-b", phase="addBatch")] == 0.25
    assert generate_latest(registry) == b"", "a listener that is closed leaves nothing"


def test_a_registry_takes_one_listener_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    first = listener(registry)
    with monkeypatch.context() as patched:
        patched.setattr(lag, "Connection", lambda *_, **__: pytest.fail("a client was made"))
        with pytest.raises(ValueError, match="Duplicated"):
            listener(registry)
    first.close()
    with pytest.raises(InvalidSetting):
        LagListener("no address", registry=registry)
    listener(registry).close()


def test_a_leader_that_has_just_begun_is_told_the_name_again_and_one_that_knows_no_names_is_not() -> None:
    query = lag._Query("run", "orders", told={"t": {0: 3, 1: 3, 2: 3}})
    lag._see_labels(query, [cursor("t", 0, label="orders"), cursor("t", 1, label="orders"), cursor("t", 2)])
    assert query.told == {"t": {0: 3, 1: 3, 2: 3}}
    lag._see_labels(query, [cursor("t", 0), cursor("t", 1, leads=False), cursor("t", 2)])
    assert query.told == {"t": {1: 3, 2: 3}}
    lag._see_labels(query, [cursor("t", 0)])
    assert query.labelled == {("t", 1)}


class Admin:
    """Knows these groups."""

    groups: tuple[GroupDescription, ...] = ()

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe_groups(self) -> list[GroupDescription]:
        return list(self.groups)

    def describe_group(self, name: str) -> GroupDescription:
        return next(group for group in self.groups if group.name == name)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    cursors = {
        "spark-1-a": (cursor("t", 0, label="orders"), cursor("u", 0)),
        "spark-2-b": (cursor("t", 0, label="twice"),),
        "spark-3-c": (cursor("t", 0, label="twice"),),
        "named": (cursor("t", 0),),
    }
    monkeypatch.setattr(Admin, "groups", tuple(GroupDescription(name, found) for name, found in cursors.items()))
    monkeypatch.setattr(asked_lag, "Admin", Admin)


@pytest.mark.usefixtures("known")
def test_a_query_is_asked_for_by_its_name_or_its_groups_name() -> None:
    found = lag_of("orders", "b:1")
    assert (found.query_id, found.name, found.group, found.run_id) == ("1-a", "orders", "spark-1-a", "")
    assert [(topic.topic, topic.records) for topic in found.topics] == [("t", 7), ("u", 7)]
    assert (found.running, found.batch_id) == (None, -1)
    assert "ended" not in found._repr_html_()
    assert lag_of("named", "b:1").records == 7
    with pytest.raises(UnknownGroup, match=r"did you mean 'orders'.*first micro-batch"):
        lag_of("order", "b:1")
    with pytest.raises(InvalidRequest, match=r"2 queries are called 'twice'.*spark-2-b, spark-3-c"):
        lag_of("twice", "b:1")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("progress", [None, SimpleNamespace(batchId=4)])
def test_a_query_is_found_by_its_id(progress: Any) -> None:
    query: Any = SimpleNamespace(id="1-a", runId="r", name="orders", isActive=True, lastProgress=progress)
    found = lag_of(query, "b:1")
    assert (found.group, found.records, found.run_id, found.running) == ("spark-1-a", 14, "r", True)
    assert found.batch_id == (-1 if progress is None else 4)
