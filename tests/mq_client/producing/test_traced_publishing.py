"""Which span each batch of a producer names: that of its first record that has one, while spans are made. Nothing is
sent: the test looks at what waits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from mq_client import producer as producer_module
from mq_client.interceptors import OutgoingRecord
from mq_client.producer import Producer
from mq_client.producing.lanes import OutgoingBatch
from mq_client.tracing import Sending
from mq_protocol.arrow import decode_batch
from mq_protocol.sql.ddl import parse_schema
from mq_protocol.traceparent import HEADER, from_bytes, from_text
from tests.mq_client.cluster.scripted import topic_info
from tests.mq_client.producing.test_publishing import Publishing, publishing

__all__ = ["publishing"]


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> trace.Tracer:
    """That of an application: producers made from now on make spans with it."""
    made = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    monkeypatch.setattr(producer_module, "sending", lambda: Sending(made))
    return made


def batches(producer: Producer) -> list[OutgoingBatch]:
    producer._accumulator.close_all(0.0)
    return [batch for lane in producer._accumulator.busy() for batch in lane.batches]


def headers(batch: OutgoingBatch) -> list[dict[str, bytes]]:
    """Of each record."""
    assert batch.schema is not None
    rows = decode_batch(batch.encoded(), batch.schema).to_pylist()
    return [{pair["key"]: pair["value"] for pair in row["headers"] or ()} for row in rows]


def test_a_batch_names_the_span_of_its_first_record_that_has_one(publishing: Publishing, tracer: trace.Tracer) -> None:
    producer = publishing.producer()
    producer.publish("t", b"before", partition=0)
    for _ in range(2):
        with tracer.start_as_current_span("order"):
            producer.publish("t", b"v", partition=0)
    producer.publish("t", b"after", partition=0)
    (batch,) = batches(producer)
    before, first, second, after = (found.get(HEADER) for found in headers(batch))
    assert (before, after) == (None, None)
    assert from_text(first) == from_bytes(batch.traceparent)
    assert first != second
    assert producer._sender._header(batch, 1, b"", 0.0).traceparent == batch.traceparent


def test_a_batch_of_records_that_were_published_outside_of_spans_names_none(
    publishing: Publishing, tracer: trace.Tracer
) -> None:
    producer = publishing.producer()
    producer.publish("t", b"v", partition=0)
    (batch,) = batches(producer)
    assert (batch.traceparent, headers(batch)) == (b"", [{}])
    sent = producer._sender._header(batch, 1, b"", 0.0)
    assert "traceparent" not in [field.name for field, _ in sent.ListFields()]


def test_rows_and_tables_and_what_is_scheduled_name_their_spans(publishing: Publishing, tracer: trace.Tracer) -> None:
    publishing.say(topic_info(1, schema=parse_schema("n long")))
    producer = publishing.producer()
    with tracer.start_as_current_span("row"):
        producer.publish("t", {"n": 1}, partition=0)
    (row,) = batches(producer)
    with tracer.start_as_current_span("table"):
        producer.publish_batch("t", pa.table({"n": [1, 2]}), partition=0)
        producer.publish_many("t", [{"n": 1}], partition=0)
        producer.publish("t", {"n": 1}, partition=0, delay_ms=1_000)
    _, table, many, later = sorted(batches(producer), key=lambda batch: batch.due.delay_ms)
    named = [from_bytes(batch.traceparent) for batch in (row, table, many, later)]
    assert len({each.span_id for each in named}) == 4
    assert len({each.trace_id for each in named}) == 2


def test_interceptors_see_a_record_once_and_before_it_is_traced(publishing: Publishing, tracer: trace.Tracer) -> None:
    seen: list[OutgoingRecord] = []

    def see(record: OutgoingRecord) -> OutgoingRecord:
        seen.append(record)
        return record._replace(headers={"a": b"1"})

    producer = publishing.producer(interceptors=[see])
    with tracer.start_as_current_span("order"):
        producer.publish("t", b"v", partition=0)
    assert [record.headers for record in seen] == [None]
    (batch,) = batches(producer)
    (found,) = headers(batch)
    assert set(found) == {"a", HEADER}


def test_without_a_tracer_provider_records_take_the_quick_way(publishing: Publishing) -> None:
    producer = publishing.producer()
    assert producer._quick is producer._targets
    assert producer._accumulator.traceparent is None
    with trace.use_span(
        trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    ):
        producer.publish("t", b"v", partition=0)
    (batch,) = batches(producer)
    assert (batch.traceparent, headers(batch)) == (b"", [{}])
