"""The span of a batch at its broker: what a client may say of its trace, and what is told of the batch's fate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from mq_broker.core.messages import Done, RecordsThere, RecordThere, Refused
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, QuotaExceeded
from mq_protocol.wire.error_messages import from_wire
from mq_protocol.wire.traceparent import TraceParent
from tests.mq_broker.broker.cluster import DEADLINE_S
from tests.mq_broker.broker.data.test_produce import UUID, World

PARENT = TraceParent(0xABC, 0xDEF)


class Exported:
    """Owns what a broker's tracer has recorded."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, **options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def spans(self) -> tuple[Any, ...]:
        return self._exporter.get_finished_spans()


async def answered(exported: Exported, answer: Any, **fields: Any) -> pb.ProduceResult:
    world = World(exported.tracer)
    await world.hear(world.request(1, **fields))
    for reply in world.replies:
        reply(answer)
    await asyncio.wait_for(world.stream.write(), DEADLINE_S)
    return world.results[0]


@pytest.mark.parametrize(
    ("answer", "fields", "event", "attributes"),
    [
        (Done(7, 40, 99), {}, "committed", {"tritonmq.offset": 40, "tritonmq.duplicate": False}),
        (Done(7, 40, 99, True), {"acks": pb.LEADER}, "written", {"tritonmq.offset": 40, "tritonmq.duplicate": True}),
        (Done(7, -1, 0), {"acks": pb.NONE}, "proposed", {"tritonmq.offset": -1}),
        (RecordsThere((RecordThere(0, 40, 5),)), {}, "there", {}),
    ],
)
def test_a_batch_that_names_a_recorded_span_has_a_child_of_it_until_it_is_answered(
    answer: Any, fields: dict[str, Any], event: str, attributes: dict[str, Any]
) -> None:
    exported = Exported()
    asyncio.run(answered(exported, answer, traceparent=bytes(PARENT), **fields))
    (span,) = exported.spans
    assert (span.name, span.kind) == ("append t", trace.SpanKind.SERVER)
    assert (span.context.trace_id, span.parent.span_id, span.parent.is_remote) == (0xABC, 0xDEF, True)
    assert [each.name for each in span.events] == ["checked", event]
    assert span.attributes["messaging.destination.partition.id"] == "0"
    assert (span.attributes["messaging.batch.message_count"], span.attributes["tritonmq.batch.uuid"]) == (1, UUID.hex())
    assert attributes.items() <= span.attributes.items()
    assert span.status.status_code is trace.StatusCode.UNSET


def test_a_refused_batch_tells_its_error() -> None:
    exported = Exported()
    asyncio.run(answered(exported, Refused(QuotaExceeded("too much")), traceparent=bytes(PARENT)))
    (span,) = exported.spans
    assert span.attributes["error.type"] == "QUOTA_EXCEEDED"
    assert span.status.status_code is trace.StatusCode.ERROR


def test_a_batch_that_a_broker_does_not_lead_has_a_span_that_says_so() -> None:
    exported = Exported()

    async def scenario() -> None:
        world = World(exported.tracer)
        world.replica.leading = False
        await world.hear(world.request(1, traceparent=bytes(PARENT)))

    asyncio.run(scenario())
    (span,) = exported.spans
    assert (span.attributes["error.type"], span.events) == ("NOT_LEADER", ())


def test_the_brokers_own_sampler_has_the_last_word() -> None:
    exported = Exported(sampler=ALWAYS_OFF)
    assert not asyncio.run(answered(exported, Done(7, 40, 99), traceparent=bytes(PARENT))).HasField("error")
    assert exported.spans == ()


@pytest.mark.parametrize("traces", [False, True])
@pytest.mark.parametrize("named", [b"\x01", bytes(25), b"x" * 26, b"x" * 5_000])
def test_what_names_no_span_is_refused_whether_or_not_this_broker_makes_spans(named: bytes, traces: bool) -> None:
    exported = Exported() if traces else None

    async def scenario() -> pb.ProduceResult:
        world = World(exported and exported.tracer)
        await world.hear(world.request(1, traceparent=named))
        await asyncio.wait_for(world.stream.write(), DEADLINE_S)
        assert not world.proposed
        return world.results[0]

    error = from_wire(asyncio.run(scenario()).error)
    assert isinstance(error, InvalidRequest)
    assert "`traceparent`" in str(error)
    assert exported is None or exported.spans == ()
