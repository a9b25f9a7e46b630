"""Whether a process makes spans, and where they go: what the standard's variables say, and what nobody said."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from mq_process import tracing

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
OFF = """
import sys
from mq_client import Consumer, Producer
from mq_client.tracing import process
from mq_client.consuming.record_queue import ConsumerRecord
from mq_broker.broker import server
from mq_broker.broker.data.produce import Tracing
from mq_process.tracing import exporting, tracer

Producer("127.0.0.1:9").close()
with exporting("broker", "1", {}), process(ConsumerRecord("t", 0, 0, None, b"", (), 0)) as span:
    assert span is None
    Tracing(tracer())
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "opentelemetry")
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    "environment",
    [
        ENDPOINT,
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "false"},
    ],
)
def test_spans_are_sent_where_the_variables_say_so(environment: dict[str, str]) -> None:
    assert tracing.wanted(environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ""),
        ({"OTEL_SERVICE_NAME": "x"}, ""),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, ""),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin: brokers know otlp and none"),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: brokers send spans as",
        ),
    ],
)
def test_otherwise_none_are_sent_and_what_cannot_be_done_is_logged(
    environment: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not tracing.wanted(environment)
    assert words in caplog.text
    assert bool(words) == bool(caplog.text)


def test_without_the_extra_a_broker_runs_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING), tracing.exporting("broker", "1", ENDPOINT):
        assert tracing.tracer() is None
    assert "pip install '.[otel]'" in caplog.text


def test_off_nothing_of_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_that_a_library_has_imported_the_api_switches_nothing_on() -> None:
    words = "import opentelemetry.trace; from mq_process.tracing import tracer; assert tracer() is None"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
