"""A produce stream between the sender and gRPC: what goes out, what is told, and how it ends. The test is the
broker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mq_client.cluster import streams
from mq_client.cluster.streams import NoStreamPort
from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_client.producing import produce_stream
from mq_client.producing.produce_stream import ProduceStream
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.streams import Kind, Said, say_envelope

WAIT_S = 30.0


class Broken(grpc.RpcError):
    """A stream that broke, as gRPC says it."""

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"


class Call:
    """The broker's end: it hears `requests`, and says what is put into `says`. None ends the stream."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self.requests = requests
        self.says: queue.Queue[Any] = queue.Queue()
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        while (said := self.says.get(timeout=WAIT_S)) is not None:
            if isinstance(said, Exception):
                raise said
            yield said

    def cancel(self) -> None:
        self.cancelled.set()
        self.says.put(Broken())


class Sender:
    """In the sender's place: what it is told."""

    def __init__(self) -> None:
        self.results: list[int] = []
        self.broken: queue.Queue[tuple[TritonMQError, bool]] = queue.Queue()

    def on_results(self, stream: ProduceStream, results: Any) -> None:
        self.results += [result.correlation for result in results]

    def on_broken(self, stream: ProduceStream, error: TritonMQError, reached: bool) -> None:
        self.broken.put((error, reached))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[Call]:
    """The calls that are opened."""
    opened: queue.Queue[Call] = queue.Queue()

    def open_produce(address: str, requests: Iterator[Any], client: Any) -> Call:
        call = Call(requests)
        opened.put(call)
        return call

    monkeypatch.setattr(produce_stream, "connected", lambda address, timeout_s, client: True)
    monkeypatch.setattr(produce_stream, "open_produce", open_produce)
    return opened


@pytest.fixture(autouse=True)
def _any_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(streams.VARIABLE, raising=False)


def begun(sender: Sender) -> ProduceStream:
    return ProduceStream("b:1", sender.on_results, sender.on_broken)


def results(*correlations: int) -> pb.ProduceResponse:
    return pb.ProduceResponse(results=[pb.ProduceResult(correlation=correlation) for correlation in correlations])


def test_a_broker_that_is_not_there_has_been_sent_nothing(
    calls: queue.Queue[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_stream, "connected", lambda address, timeout_s, client: False)
    sender = Sender()
    begun(sender)
    error, reached = sender.broken.get(timeout=WAIT_S)
    assert (type(error), reached) == (Unreachable, False)
    assert calls.empty()


# ---------------------------------------------------------------- over a stream port, or not


class SpokenDuplex:
    """A connection to a stream port. `dialled`: let go on once it may be made."""

    def __init__(self) -> None:
        self.dialled = threading.Event()
        self.sent: list[Any] = []
        self.says: queue.Queue[Any] = queue.Queue()
        self.released = False

    def send(self, pieces: Any) -> None:
        self.sent.append(b"".join(pieces))

    def receive(self) -> Any:
        said = self.says.get(timeout=WAIT_S)
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        self.says.put(Unreachable("it was closed here"))

    def release(self) -> None:
        self.released = True


@pytest.fixture
def duplex(monkeypatch: pytest.MonkeyPatch) -> SpokenDuplex:
    spoken = SpokenDuplex()

    def dial(address: str, client: Any) -> Any:
        spoken.dialled.wait(WAIT_S)
        return ()

    monkeypatch.setattr(streams, "_avoided", {})
    monkeypatch.delenv(streams.VARIABLE, raising=False)
    monkeypatch.setattr(streams, "dial", dial)
    monkeypatch.setattr(produce_stream, "Duplex", lambda *_: spoken)
    return spoken


def test_what_is_sent_before_the_connection_is_made_goes_out_first(
    calls: queue.Queue[Call], duplex: SpokenDuplex
) -> None:
    sender = Sender()
    stream = ProduceStream("b:1", sender.on_results, sender.on_broken, stream_address="b:2")
    requests = [Envelope(pb.ProduceHeader(correlation=n), (b"x" * n,)) for n in range(1, 5)]
    for request in requests[:2]:
        stream.send(request)
    duplex.dialled.set()
    until = time.monotonic() + WAIT_S
    while stream._duplex is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    for request in requests[2:]:
        stream.send(request)
    assert duplex.sent[1:] == [b"".join(say_envelope(request)) for request in requests]
    duplex.says.put(Said(Kind.MESSAGE, results(1, 2).SerializeToString(), memoryview(b"")))
    duplex.says.put(Said(Kind.MESSAGE, results(3).SerializeToString(), memoryview(b"")))
    duplex.says.put(NotAuthenticated("revoked"))
    error, reached = sender.broken.get(timeout=WAIT_S)
    assert (sender.results, type(error), reached) == ([1, 2, 3], NotAuthenticated, True)
    assert duplex.released
    assert calls.empty()


# ---------------------------------------------------------------- waiting for a connection


def test_a_stream_port_that_is_not_reached_is_left_alone_once_grpc_was(
    calls: queue.Queue[Call], duplex: SpokenDuplex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dial(address: str, client: Any) -> Any:
        raise NoStreamPort(address)

    monkeypatch.setattr(streams, "dial", dial)
    monkeypatch.setattr(produce_stream, "connected", lambda address, timeout_s, client: False)
    sender = Sender()
    ProduceStream("b:1", sender.on_results, sender.on_broken, stream_address="b:2")
    assert sender.broken.get(timeout=WAIT_S)[1] is False
    assert streams.usable("b:2")  # the broker is not there: its port may be as good as ever
    monkeypatch.setattr(produce_stream, "connected", lambda address, timeout_s, client: True)
    stream = ProduceStream("b:1", sender.on_results, sender.on_broken, stream_address="b:2")
    stream.send(Envelope(pb.ProduceHeader(correlation=7)))
    assert next(calls.get(timeout=WAIT_S).requests).header.correlation == 7
    assert not streams.usable("b:2")
    stream.close(WAIT_S)
