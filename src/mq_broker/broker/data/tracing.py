"""Spans of batches that arrive, for those that say which trace they belong to, where this broker sends spans."""

from __future__ import annotations

from typing import Any, Final

from mq_broker.core.messages import Decided, Done, RecordsThere, Refused, Result
from mq_process.tracing import tracer
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.error_messages import code_of
from mq_protocol.wire.traceparent import from_bytes

_TOLD: Final = {pb.ALL: "committed", pb.LEADER: "written", pb.NONE: "proposed"}


class Tracing:
    """Owns the broker's tracer, if it has one."""

    def __init__(self) -> None:
        self._tracer = tracer()

    def begin(self, header: pb.ProduceHeader, payload_bytes: int) -> Any | None:
        """The span of a batch, `append T`; None where it is of no trace, or of one that nobody records. Raises
        `InvalidRequest` for a `traceparent` that is none."""
        if not header.traceparent:
            return None
        parent = from_bytes(header.traceparent)
        if self._tracer is None or not parent.sampled:
            return None
        from opentelemetry import trace

        context = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=trace.TraceFlags(1))
        span = self._tracer.start_span(
            f"append {header.topic}",
            trace.set_span_in_context(trace.NonRecordingSpan(context)),
            trace.SpanKind.SERVER,
            {
                "messaging.system": "tritonmq",
                "messaging.operation.name": "append",
                "messaging.destination.name": header.topic,
                "messaging.destination.partition.id": str(header.partition),
                "messaging.batch.message_count": header.record_count,
                "messaging.message.body.size": payload_bytes,
                "tritonmq.batch.uuid": header.uuid[:16].hex(),
            },
        )
        return span if span.is_recording() else None


def end(span: Any, header: pb.ProduceHeader, result: Result) -> None:
    """The batch has its answer."""
    match result:
        case Done(_, base_offset, _, duplicate):
            # What is staged or scheduled waits for the in-sync replicas, whatever it asks for.
            at_once = base_offset >= 0 or header.acks == pb.NONE
            span.add_event(_TOLD[header.acks if at_once else pb.ALL])
            span.set_attributes({"tritonmq.offset": base_offset, "tritonmq.duplicate": duplicate})
        case RecordsThere(records):
            span.add_event("there", {"tritonmq.records": len(records)})
        case Refused(error):
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute("error.type", pb.ErrorCode.Name(code_of(error)))
            span.set_status(Status(StatusCode.ERROR, str(error)))
        case Decided():
            raise AssertionError(f"a batch cannot be answered with {result}")
    span.end()
