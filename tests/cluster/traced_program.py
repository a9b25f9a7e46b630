"""A program that traces: python -m tests.cluster.traced_program BOOTSTRAP TOPIC

It says a line once it is about to publish, and waits for a line. It publishes one record within a span, and a table and
a row to TOPIC.rows within another. Then it reads the records back and works on them. It ends once its spans are sent.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from mq_client import Consumer, Producer
from mq_client.tracing import process

WAIT_S = 90


def main(bootstrap: str, topic: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("shop")
    with Producer(bootstrap, timeout_ms=WAIT_S * 1_000) as producer:
        producer.publish(topic, b"before, and of no trace").result(WAIT_S)
        print("ready", flush=True)
        sys.stdin.readline()
        with tracer.start_as_current_span("order"):
            producer.publish(topic, b"one coffee", key=b"ann").result(WAIT_S)
        with tracer.start_as_current_span("load"):
            producer.publish_batch(f"{topic}.rows", pa.table({"n": [1, 2, 3]}), partition=0).result(WAIT_S)
            producer.publish(f"{topic}.rows", {"n": 4}).result(WAIT_S)
    with Consumer(bootstrap, group="kitchen", start="earliest", idle_ms=WAIT_S * 1_000) as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            with process(record, group="kitchen"):
                if record.value == b"one coffee":
                    break
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
