"""One trace from a program's `publish` through the leader to whoever works on the record: real processes, which send
their spans to a collector of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.harness import Cluster, wait_until
from tests.otlp import Collector, Span

ENDS_S = 120

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """What brokers and programs that are started from now on send their spans to."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with Collector() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


class Program:
    """Owns the program that traces. It publishes once `go` is called."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        cluster.admin.create_topic(topic, partitions=1, replicas=len(cluster.brokers))
        cluster.admin.create_topic(f"{topic}.rows", partitions=1, replicas=len(cluster.brokers), schema="n long")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.traced_program", cluster.bootstrap, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OTEL_SERVICE_NAME": "shop"},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        try:
            _, errors = self.process.communicate(timeout=ENDS_S)
        finally:
            self.process.kill()
        assert self.process.returncode == 0, errors


def spans_of(collector: Collector, root: str, *names: str) -> dict[str, list[Span]]:
    """Those of the root's trace, by name, once all with these names have come."""

    def come() -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        roots = [span for span in collector.spans if span.name == root]
        for span in collector.spans:
            if roots and span.trace == roots[0].trace:
                found.setdefault(span.name, []).append(span)
        return found if found.keys() >= {root, *names} else {}

    found: dict[str, list[Span]] = wait_until(come, f"the spans {names} of the trace {root!r}", ENDS_S)
    return found


def well(spans: list[Span]) -> list[Span]:
    """A leader that cannot write yet refuses, and is asked again."""
    return [span for span in spans if not span.failed]


def test_one_trace_goes_from_publish_through_the_leader_to_whoever_works_on_the_record(
    start_cluster: Callable[..., Cluster], collector: Collector
) -> None:
    cluster = start_cluster(brokers=2)
    program = Program(cluster, "orders")
    leaders = {str(cluster.leader("orders", 0))}
    program.go()
    program.finish()
    leaders.add(str(cluster.leader("orders", 0)))
    found = spans_of(collector, "order", "send orders", "append orders", "process orders")
    assert set(found) == {"order", "send orders", "append orders", "process orders"}
    (order,), (send,), (process,) = found["order"], found["send orders"], found["process orders"]
    (append,) = well(found["append orders"])
    assert (send.parent, append.parent, process.parent) == (order.id, send.id, send.id)
    assert append.events == ("checked", "committed")
    assert append.attributes["tritonmq.offset"] == send.attributes["tritonmq.offset"] == "1"
    assert process.attributes["tritonmq.offset"] == "1"
    assert append.resource["service.name"] == "tritonmq-broker"
    assert append.resource["service.instance.id"] in leaders
    assert (send.resource["service.name"], process.resource["service.name"]) == ("shop", "shop")


@pytest.mark.long
def test_a_trace_shows_the_leader_that_took_over(start_cluster: Callable[..., Cluster], collector: Collector) -> None:
    cluster = start_cluster(brokers=3)
    program = Program(cluster, "orders")
    old = cluster.leader("orders", 0)
    cluster.brokers[old].send_if_running(signal.SIGSTOP)  # its connections stay, and nothing that it is sent is written
    program.go()
    cluster.kill(old)
    program.finish()
    found = spans_of(collector, "order", "send orders", "append orders", "process orders")
    (append,), (send,) = well(found["append orders"]), found["send orders"]
    assert append.resource["service.instance.id"] != str(old)
    assert append.parent == send.id == found["process orders"][0].parent
    assert not send.failed


@pytest.mark.long
def test_a_broker_whose_collector_is_gone_serves_and_stops(
    start_cluster: Callable[..., Cluster], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as gone:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.url)
    cluster = start_cluster(brokers=1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    program = Program(cluster, "orders")
    program.go()
    program.finish()
    broker = cluster.brokers[1]
    broker.terminate()
    assert broker.wait(ENDS_S)
    assert broker.status == 0, broker.last_words()
    assert {span.resource["service.name"] for span in collector.spans} == {"shop"}
