"""OpenTelemetry, where a process has it: nothing of it is imported before somebody asks for spans.

An application sets up a tracer provider by itself, or by `opentelemetry-instrument`, and the clients in it then use
that one. A broker sets up one of its own where the standard's variables (`OTEL_…`) say where spans are to be sent.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

log = logging.getLogger(__name__)

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"

_LAST_SPANS_S: Final = 3.0
"""For so long a process that ends waits for its last spans to be sent."""


def tracer() -> Any | None:
    """The tracer of this process; None if nobody has set up a tracer provider so far."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("tritonmq")


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard's variables say that spans are to be sent. What this process cannot do is logged."""
    exporter = environment.get(EXPORTER, "").strip().lower()
    endpoint = any(environment.get(name, "").strip() for name in ENDPOINTS)
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if exporter not in ("", "otlp"):
        log.warning("%s=%s: brokers know otlp and none, and send no spans", EXPORTER, exporter)
        return False
    if not endpoint and not exporter:
        return False
    protocol = next((environment[name].strip() for name in PROTOCOLS if environment.get(name, "").strip()), PROTOCOL)
    if protocol != PROTOCOL:
        log.warning(
            "%s=%s: brokers send spans as %s, and now send none: set that, and the collector's port for it (4318)",
            PROTOCOLS[1],
            protocol,
            PROTOCOL,
        )
        return False
    return True


@contextmanager
def exporting(service: str, instance: str, environment: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, this process sends its spans to where the environment says, if it says so."""
    provider = _provider(service, instance, environment) if wanted(environment) else None
    try:
        yield
    finally:
        if provider is not None:
            # A collector that does not answer must not keep the process. What is not sent by then is lost.
            last = threading.Thread(target=provider.shutdown, name="tritonmq-last-spans", daemon=True)
            last.start()
            last.join(_LAST_SPANS_S)


def _provider(service: str, instance: str, environment: Mapping[str, str]) -> Any | None:
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "OTEL_… is set, and no spans are sent (%s): pip install '.[otel]' in a clone of TritonMQ, or unset it",
            error,
        )
        return None
    attributes = {"service.instance.id": instance}
    given = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        attributes["service.name"] = service
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    log.info("spans are sent by OpenTelemetry")
    return provider
