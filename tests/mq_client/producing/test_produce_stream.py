"""A produce stream between the sender and a broker: what goes out, what is told, and how it ends. The test is the
broker."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_client.producing.sender import ProduceStream
from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.call import Kind
from mq_protocol.wire.envelope import Envelope
from tests.played_broker import HOST, WAIT_S, PlayedBroker, Spoken, played


class Sender:
    """What a stream tells."""

    def __init__(self) -> None:
        self.results: queue.Queue[int] = queue.Queue()
        self.broken: queue.Queue[tuple[TritonMQError, bool]] = queue.Queue()

    def on_results(self, stream: ProduceStream, results: Any) -> None:
        for result in results:
            self.results.put(result.correlation)

    def on_broken(self, stream: ProduceStream, error: TritonMQError, reached: bool) -> None:
        self.broken.put((error, reached))


class Broker:
    """Answers what it hears. `last`: after how many it ends the call, and with what."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.last: tuple[int, TritonMQError | None] = 1 << 30, None

    def __call__(self, spoken: Spoken) -> None:
        while (message := spoken.hear()) is not None:
            if message.kind is Kind.MESSAGE:
                correlation = pb.ProduceHeader.FromString(message.body).correlation
                self.heard.append((correlation, bytes(message.payload)))
                spoken.answer(pb.ProduceResponse(results=[pb.ProduceResult(correlation=correlation)]))
                if len(self.heard) == self.last[0]:
                    spoken.close_with(self.last[1])
                    return


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def at(broker: Broker) -> Iterator[PlayedBroker]:
    with played(broker) as made:
        yield made


def request(correlation: int) -> Envelope[pb.ProduceHeader]:
    return Envelope(pb.ProduceHeader(correlation=correlation), (b"x" * correlation, b"y"))


def test_a_broker_that_is_not_there_has_been_sent_nothing() -> None:
    with socket.create_server((HOST, 0)) as taken:
        closed = f"{HOST}:{taken.getsockname()[1]}"
    sender = Sender()
    stream = ProduceStream(closed, sender.on_results, sender.on_broken)
    stream.send(request(1))
    error, reached = sender.broken.get(timeout=WAIT_S)
    assert (type(error), reached) == (Unreachable, False)


def test_what_is_sent_before_the_connection_is_made_goes_out_first(at: PlayedBroker, broker: Broker) -> None:
    sender = Sender()
    stream = ProduceStream(at.address, sender.on_results, sender.on_broken)
    for number in range(1, 200):
        stream.send(request(number))
    assert [sender.results.get(timeout=WAIT_S) for _ in range(1, 200)] == list(range(1, 200))
    assert broker.heard == [(number, b"x" * number + b"y") for number in range(1, 200)]
    stream.close(WAIT_S)
    error, reached = sender.broken.get(timeout=WAIT_S)
    assert (type(error), reached) == (Unreachable, True)
    assert sender.broken.empty()


@pytest.mark.parametrize("last", [NotAuthenticated("revoked"), None])
def test_what_the_broker_ends_it_with_is_told_once_after_all_answers(
    at: PlayedBroker, broker: Broker, last: TritonMQError | None
) -> None:
    broker.last = 3, last
    sender = Sender()
    stream = ProduceStream(at.address, sender.on_results, sender.on_broken)
    for number in (1, 2, 3):
        stream.send(request(number))
    error, reached = sender.broken.get(timeout=WAIT_S)
    assert isinstance(error, Unreachable if last is None else type(last))
    assert reached
    assert list(sender.results.queue) == [1, 2, 3]
    stream.send(request(4))  # too late, and no harm
    stream.close(WAIT_S)
    assert sender.broken.empty()
