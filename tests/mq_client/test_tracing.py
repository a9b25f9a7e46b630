"""Spans of a producer and of whoever works on its records: the SDK's own, kept in memory. Their brokers are in
tests/cluster/test_tracing.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from mq_client import Admin, OutgoingRecord, Producer, Reader, tracing
from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import NotLeader
from mq_client.producing.futures import BatchMetadata, BatchOutcome, BatchPlace, RecordFuture
from mq_client.tracing import Sending, process
from mq_protocol.wire.traceparent import HEADER, from_bytes, from_text

Sent = Callable[..., RecordFuture]


class Traced:
    """Owns a tracer provider of its own, and what was made with it."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False, **options)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")
        self.sending = Sending(self.tracer)
        self.outcome = BatchOutcome("t")
        self.headers: Any = None
        self.batch = b""

    def publish(self, headers: Any) -> RecordFuture:
        self.headers, self.batch = headers, self.sending.traceparent()
        return RecordFuture(self.outcome, 0)

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    made = Traced()
    monkeypatch.setattr(tracing, "tracer", lambda: made.tracer)
    return made


def received(headers: tuple[tuple[str, bytes | None], ...] = ()) -> ConsumerRecord:
    return ConsumerRecord("t", 2, 40, None, b"v", headers, 0)


def test_a_record_that_is_published_within_a_span_carries_its_own_until_it_has_its_answer(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("order") as order:
        future = traced.sending.record("t", {"a": b"1"}, False, traced.publish)
        assert trace.get_current_span() is order
    assert "send t" not in traced.spans
    traced.outcome.settle(BatchPlace(3, 7, 1, 99, False), None)
    assert future.result(0).offset == 7
    span = traced.spans["send t"]
    assert span.parent.span_id == order.get_span_context().span_id
    assert span.kind is trace.SpanKind.PRODUCER
    assert span.attributes["messaging.destination.name"] == "t"
    assert (span.attributes["messaging.destination.partition.id"], span.attributes["tritonmq.offset"]) == ("3", 7)
    (one, (name, text)) = traced.headers
    assert (one, name) == (("a", b"1"), HEADER)
    named = from_text(text)
    assert named == from_bytes(traced.batch)
    assert named is not None
    assert (named.trace_id, named.span_id, named.sampled) == (span.context.trace_id, span.context.span_id, True)


def test_an_error_is_told_and_still_counts_as_one_that_nobody_has_looked_at(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("order"):
        traced.sending.record("t", None, False, traced.publish)
    traced.outcome.settle(None, NotLeader("ask broker 2"))
    assert not traced.outcome.observed  # so `flush` raises it
    span = traced.spans["send t"]
    assert span.attributes["error.type"] == "NotLeader"
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "ask broker 2" in span.status.description


def test_what_publish_raises_ends_the_span(traced: Traced) -> None:
    def full(_headers: Any) -> RecordFuture:
        raise ValueError("a stranger's secret")

    with traced.tracer.start_as_current_span("order"), pytest.raises(ValueError, match="secret"):
        traced.sending.record("t", None, False, full)
    span = traced.spans["send t"]
    assert (span.attributes["error.type"], span.status.description, span.events) == ("ValueError", "", ())


def test_a_header_of_the_callers_own_and_a_topic_with_columns_are_left_as_they_are(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("order"):
        own = ((HEADER, b"theirs"),)
        traced.sending.record("t", own, False, traced.publish)
        assert traced.headers == [(HEADER, b"theirs")]
        traced.sending.record("t", None, True, traced.publish)
        assert traced.headers is None
        assert from_bytes(traced.batch).sampled


@pytest.mark.parametrize("sampler", [None, ALWAYS_OFF])
def test_outside_of_a_recorded_span_nothing_is_added(sampler: Any) -> None:
    traced = Traced() if sampler is None else Traced(sampler=sampler)
    if sampler is None:
        traced.sending.record("t", None, False, traced.publish)
    else:
        with traced.tracer.start_as_current_span("order"):
            traced.sending.record("t", None, False, traced.publish)
    assert (traced.headers, traced.batch) == (None, b"")
    traced.outcome.settle(BatchPlace(0, 0, 1, 0, False), None)
    assert traced.spans == {}


@pytest.mark.parametrize(("places", "offset"), [((BatchPlace(1, 50, 9, 0, False),), 50), ((), None)])
def test_a_table_has_one_span_with_the_place_of_its_first_batch(
    traced: Traced, places: tuple[BatchPlace, ...], offset: int | None
) -> None:
    future: Future[BatchMetadata] = Future()
    with traced.tracer.start_as_current_span("load"):
        assert traced.sending.send("t", 9, lambda: future) is future
    future.set_result(BatchMetadata("t", 9, places))
    span = traced.spans["send t"]
    assert span.attributes["messaging.batch.message_count"] == 9
    assert span.attributes.get("tritonmq.offset") == offset


def test_work_on_a_record_belongs_to_the_trace_in_which_it_was_published(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("order"):
        traced.sending.record("t", None, False, traced.publish)
    sent = from_bytes(traced.batch)
    with process(received(tuple(traced.headers)), group="g") as span:
        assert trace.get_current_span() is span
    done = traced.spans["process t"]
    assert (done.context.trace_id, done.parent.span_id) == (sent.trace_id, sent.span_id)
    assert done.parent.is_remote
    assert (done.kind, done.links) == (trace.SpanKind.CONSUMER, ())
    assert done.attributes["messaging.consumer.group.name"] == "g"
    assert (done.attributes["messaging.destination.partition.id"], done.attributes["tritonmq.offset"]) == ("2", 40)


def test_within_another_span_work_belongs_to_that_and_is_linked_to_the_publishers(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("order"):
        traced.sending.record("t", None, False, traced.publish)
    sent = from_bytes(traced.batch)
    with traced.tracer.start_as_current_span("night shift") as shift, process(received(tuple(traced.headers))):
        pass
    done = traced.spans["process t"]
    assert done.parent.span_id == shift.get_span_context().span_id
    assert [(link.context.trace_id, link.context.span_id) for link in done.links] == [(sent.trace_id, sent.span_id)]


@pytest.mark.parametrize("value", [b"", b"no", None, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"x" * 100_000])
def test_a_header_that_names_no_span_begins_a_trace_of_its_own(traced: Traced, value: bytes | None) -> None:
    with process(received(((HEADER, value), (HEADER, b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01")))):
        pass
    done = traced.spans["process t"]
    assert (done.parent, done.links) == (None, ())


def test_a_producer_names_the_span_of_each_record_behind_what_interceptors_made_of_it(
    traced: Traced, admin: Admin, bootstrap: str, topic: str
) -> None:
    seen: list[OutgoingRecord] = []

    def see(record: OutgoingRecord) -> OutgoingRecord:
        seen.append(record)
        return record._replace(headers={"a": b"1"})

    admin.create_topic(topic)
    with Producer(bootstrap, interceptors=[see]) as made, traced.tracer.start_as_current_span("order"):
        made.publish(topic, b"v").result(30)
    assert [record.headers for record in seen] == [None]
    with Reader(bootstrap) as reader:
        [row] = [row for batch in reader.read(topic, 0) for row in batch.to_pylist()]
    given, (name, text) = [(pair["key"], pair["value"]) for pair in row["headers"]]
    assert (given, name) == (("a", b"1"), HEADER)
    named = from_text(text)
    assert named is not None
    assert named.span_id == traced.spans[f"send {topic}"].context.span_id
