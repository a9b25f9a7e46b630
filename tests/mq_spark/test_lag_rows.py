"""Which measurements of lag become rows of a topic, without Spark and without brokers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mq_client import BatchMetadata, Overloaded
from mq_protocol.sql.ddl import parse_schema
from mq_spark import lag
from mq_spark.lag import LAG_SCHEMA, QueryLag, TopicLag


class Producer:
    """Notes what is published. The test answers."""

    def __init__(self, *_: object, security: object = None, via: object = None) -> None:
        self.batches: list[int] = []
        self.answers: list[Future[BatchMetadata]] = []

    def publish_batch(self, _topic: str, table: pa.Table) -> Future[BatchMetadata]:
        self.batches.append(table.column("batch")[0].as_py())
        self.answers.append(Future())
        return self.answers[-1]


def measured(batch: int, *, running: bool = True) -> QueryLag:
    cursor: Any = SimpleNamespace(
        topic="t", partition=0, offset=1, log_end_offset=1, lag=0, lag_bytes=0, lag_us=0, group="g"
    )
    topics = (TopicLag("t", (cursor,)),)
    return QueryLag("q", "r", "n", "g", batch, running=running, measured_us=1, topics=topics)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lag, "Producer", Producer)
    admin: Any = SimpleNamespace(describe_topic=lambda _: SimpleNamespace(schema=parse_schema(LAG_SCHEMA)))
    return lag._LagTopic("b:1", "lag", admin, None, None)


def test_a_row_waits_for_the_one_before_but_the_last_of_a_run_is_always_written(topic: Any) -> None:
    for batch in (1, 2, 3):
        topic.write(measured(batch))
    topic.write(measured(4, running=False))
    assert topic._producer.batches == [1, 4]


def test_after_an_answer_the_next_row_is_written_and_a_failed_one_is_told(
    topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(measured(1))
    topic._producer.answers[0].set_exception(Overloaded("later"))
    topic.write(measured(2))
    assert topic._producer.batches == [1, 2]
    assert "lag was not written to topic lag: later" in caplog.text
