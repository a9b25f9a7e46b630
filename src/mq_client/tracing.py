"""Spans of what is published and of what is worked on, by OpenTelemetry.

    from mq_client.tracing import process

    for record in consumer:
        with process(record):
            …

A `Producer` that is made after the application has set up its tracer provider makes a span `send TOPIC` of each record
and table that is published within a recording span. The record's header `traceparent` names it, and so does the batch
towards its broker, whose span `append TOPIC` is a child of it. Without a provider nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from mq_client.consuming.record_queue import ConsumerRecord
from mq_client.errors import TritonMQError
from mq_client.producing.batches import Headers, to_header_pairs
from mq_client.producing.futures import BatchMetadata, RecordMetadata
from mq_process.tracing import tracer
from mq_protocol.wire.traceparent import HEADER, TraceParent, from_text

F = TypeVar("F", bound="Future[Any]")


@contextmanager
def process(record: ConsumerRecord, *, group: str = "") -> Iterator[Any]:
    """The span `process TOPIC` of what the block does with a record, of a consumer or of a queue. It belongs to the
    trace in which the record was published; within another span it belongs to that one's, and is linked to the
    publisher's. Gives the span, and None where nobody has set up a tracer provider.
    """
    made = tracer()
    if made is None:
        yield None
        return
    from opentelemetry import trace

    ambient = trace.get_current_span().get_span_context()
    told = _told(record.headers)
    context, links = None, []
    if told is not None:
        flags = trace.TraceFlags(told.flags)
        published = trace.SpanContext(told.trace_id, told.span_id, is_remote=True, trace_flags=flags)
        if ambient.is_valid:
            links = [trace.Link(published)]
        else:
            context = trace.set_span_in_context(trace.NonRecordingSpan(published))
    attributes = {
        **_attributes("process", record.topic),
        "messaging.destination.partition.id": str(record.partition),
        "tritonmq.offset": record.offset,
        **({"messaging.consumer.group.name": group} if group else {}),
    }
    kind = trace.SpanKind.CONSUMER
    with made.start_as_current_span(f"process {record.topic}", context, kind, attributes, links) as span:
        yield span


def _told(headers: tuple[tuple[str, bytes | None], ...]) -> TraceParent | None:
    """What the first header of that name says: a stranger may have written it."""
    return next((from_text(value) for name, value in headers if name == HEADER), None)


def sending() -> Sending | None:
    """What a producer needs to make spans; None where nobody has set up a tracer provider."""
    made = tracer()
    return None if made is None else Sending(made)


class Sending:
    """Owns the tracer of one producer."""

    def __init__(self, made: Any) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = made

    def traceparent(self) -> bytes:
        """Of a batch that begins with what is published now; empty where nobody records it."""
        found = self._current()
        return b"" if found is None else bytes(found)

    def record(self, topic: str, headers: Headers | None, typed: bool, publish: Callable[[Headers | None], F]) -> F:
        """`publish` a record, with a header that names its span. Columns of a typed topic have no place for one, and a
        header that the record has is left as it is."""

        def named() -> F:
            current = self._current()
            if typed or current is None:
                return publish(headers)
            pairs = [] if headers is None else to_header_pairs(headers)
            if not any(name == HEADER for name, _ in pairs):
                pairs.append((HEADER, str(current).encode()))
            return publish(pairs)

        if not self._trace.get_current_span().is_recording():
            return publish(headers)
        return self.send(topic, 1, named)

    def send(self, topic: str, count: int, publish: Callable[[], F]) -> F:
        """The span `send TOPIC` of `publish`, which ends when its future is done. None is made outside of a span that
        is recorded."""
        if not self._trace.get_current_span().is_recording():
            return publish()
        attributes = {**_attributes("send", topic), "messaging.batch.message_count": count}
        span = self._tracer.start_span(f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes)
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                future = publish()
        except BaseException as error:
            self._failed(span, error)
            span.end()
            raise
        # Not the future's own method: that would count as somebody who looks at its error.
        Future.add_done_callback(future, partial(self._done, span))
        return future

    def _done(self, span: Any, future: Future[Any]) -> None:
        error = Future.exception(future)
        if error is None:
            span.set_attributes(_place(Future.result(future)))
        else:
            self._failed(span, error)
        span.end()

    def _failed(self, span: Any, error: BaseException) -> None:
        span.set_attribute("error.type", type(error).__name__)
        said = str(error) if isinstance(error, TritonMQError) else ""
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, said))

    def _current(self) -> TraceParent | None:
        """None unless it is recorded."""
        found = self._trace.get_current_span().get_span_context()
        made = TraceParent(found.trace_id, found.span_id, int(found.trace_flags))
        return made if found.is_valid and made.sampled else None


def _attributes(operation: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "tritonmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _place(found: RecordMetadata | BatchMetadata) -> dict[str, Any]:
    """Of a table: where its first batch is."""
    if isinstance(found, BatchMetadata) and not found.places:
        return {}
    offset = found.base_offset if isinstance(found, BatchMetadata) else found.offset
    return {"messaging.destination.partition.id": str(found.partition), "tritonmq.offset": offset}
