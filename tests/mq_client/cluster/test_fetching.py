"""A fetch over a stream port: what is kept for the next one, and what is told when it fails. The test is the broker."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mq_client.cluster import fetching, streams
from mq_client.cluster.fetching import open_fetch
from mq_client.errors import (
    NotYetWritten,
    OutcomeUnknown,
    QuotaExceeded,
    Unreachable,
)
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.error_messages import to_wire
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.streams import PREAMBLE, Kind, parsed, said, say, say_envelope
from tests.cluster.harness import wait_until

HOST = "127.0.0.1"
WAIT_S = 30.0

Answer = Callable[[socket.socket, pb.FetchRequest], bool]
"""Answers one fetch. Whether the connection stays."""


class Broker:
    """A stream port that answers each fetch by `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.asked: list[pb.StreamOpen] = []
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.sendall(PREAMBLE)
        receiver = Receiver(1 << 20, 1 << 20, spoken=STREAM)
        request = pb.FetchRequest()
        with contextlib.suppress(OSError), connection:
            while count := connection.recv_into(receiver.buffer()):
                receiver.received(count)
                while (found := receiver.next()) is not None:
                    message = said(found)
                    if message.kind is Kind.OPEN:
                        self.asked.append(parsed(message.body, pb.StreamOpen))
                    elif message.kind is Kind.MESSAGE:
                        request = parsed(message.body, pb.FetchRequest)
                    elif message.kind is Kind.END and not self.answer(connection, request):
                        return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._accepting.join(WAIT_S)


def chunk(offset: int, payload: bytes) -> bytes:
    header = pb.BatchesHeader(batches=[pb.StoredBatch(base_offset=offset, payload_bytes=len(payload))])
    return b"".join(say_envelope(Envelope(header, (payload,))))


END = b"".join(say(Kind.END))


def two_chunks(connection: socket.socket, request: pb.FetchRequest) -> bool:
    whole = chunk(request.start_offset, b"x" * 300_000) + chunk(request.start_offset + 1, b"yz") + END
    for at in range(0, len(whole), 70_001):
        connection.sendall(whole[at : at + 70_001])
    return True


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(streams, "_avoided", {})
    monkeypatch.setenv(streams.VARIABLE, "stream")
    fetching._close_all()
    yield
    fetching._close_all()


@contextlib.contextmanager
def broker(answer: Answer) -> Iterator[Broker]:
    made = Broker(answer)
    try:
        yield made
    finally:
        made.close()


def fetch(at: Broker, start: int = 0, timeout_s: float | None = WAIT_S) -> Any:
    return open_fetch("b:1", pb.FetchRequest(start_offset=start), timeout_s, stream_address=at.address)


def chunks(call: Any) -> list[tuple[int, bytes]]:
    return [(message.header.batches[0].base_offset, bytes(message.payload)) for message in call]


def test_fetches_one_after_the_other_share_a_connection_and_two_at_once_do_not() -> None:
    with broker(two_chunks) as at:
        for start in (0, 5, 7):
            assert chunks(fetch(at, start)) == [(start, b"x" * 300_000), (start + 1, b"yz")]
        assert at.connections == 1
        assert at.asked[0].method == "Fetch"
        assert 0 < at.asked[0].timeout_ms <= WAIT_S * 1000
        one, other = iter(fetch(at, 1)), iter(fetch(at, 2))
        assert [next(each).header.batches[0].base_offset for each in (one, other, one, other)] == [1, 2, 2, 3]
        assert (list(one), list(other)) == ([], [])
        assert at.connections == 2


def test_a_fetch_that_is_broken_off_leaves_its_connection_to_nobody() -> None:
    with broker(two_chunks) as at:
        call = fetch(at)
        next(iter(call))
        call.cancel()
        assert len(chunks(fetch(at))) == 2
        assert at.connections == 2


def test_an_error_is_raised_as_it_was_and_the_connection_serves_the_next_fetch() -> None:
    def refuse(connection: socket.socket, request: pb.FetchRequest) -> bool:
        connection.sendall(b"".join(say(Kind.ERROR, to_wire(NotYetWritten("nothing there")).SerializeToString())))
        return True

    with broker(refuse) as at:
        for _ in range(2):
            with pytest.raises(NotYetWritten, match="nothing there"):
                chunks(fetch(at))
        assert at.connections == 1


def test_a_connection_that_ended_while_it_was_kept_is_made_anew() -> None:
    def once(connection: socket.socket, request: pb.FetchRequest) -> bool:
        two_chunks(connection, request)
        return False

    with broker(once) as at:
        for _ in range(3):
            assert len(chunks(fetch(at))) == 2
        assert at.connections == 3


@pytest.mark.parametrize("later", [False, True])
def test_what_a_broker_says_between_two_fetches_is_no_answer_to_the_second(later: bool) -> None:
    too_old = b"".join(say(Kind.ERROR, to_wire(Unreachable("the connection is too old")).SerializeToString()))

    def ends(connection: socket.socket, request: pb.FetchRequest) -> bool:
        connection.sendall(chunk(0, b"x") + END + (b"" if later else too_old))
        if later:
            connection.sendall(too_old)
        return False

    with broker(ends) as at:
        for _ in range(3):
            assert chunks(fetch(at)) == [(0, b"x")]
            [[line]] = fetching._kept.values()
            wait_until(lambda line=line: not line.is_quiet, "it came, with the last answer or a moment later")


def test_a_kept_connection_that_breaks_when_it_is_asked_is_asked_again_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = 0

    def first_alone(connection: socket.socket, request: pb.FetchRequest) -> bool:
        nonlocal answered
        answered += 1
        return answered != 2 and two_chunks(connection, request)

    with broker(first_alone) as at:
        assert len(chunks(fetch(at))) == 2
        assert len(chunks(fetch(at))) == 2  # the second was asked, and asked again
        assert (answered, at.connections) == (3, 2)


def test_a_connection_that_breaks_within_the_answers_is_unreachable() -> None:
    def half(connection: socket.socket, request: pb.FetchRequest) -> bool:
        connection.sendall(chunk(0, b"x") + chunk(1, b"y" * 100_000)[:50_000])
        return False

    with broker(half) as at, pytest.raises(Unreachable, match="broker at b:1 cannot be reached"):
        chunks(fetch(at))


def test_a_broker_that_has_stopped_is_waited_for_as_long_as_was_given() -> None:
    def stop(connection: socket.socket, request: pb.FetchRequest) -> bool:
        connection.sendall(chunk(0, b"x") + chunk(1, b"y" * 100_000)[:50_000])
        return True

    with broker(stop) as at:
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="did not answer in time"):
            chunks(fetch(at, timeout_s=0.3))
        assert time.monotonic() - began >= 0.2


def test_kept_connections_have_a_bound_and_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker(two_chunks) as at:
        calls = [iter(fetch(at)) for _ in range(fetching.KEPT_MAX + 2)]
        for call in calls:
            next(call)
        for call in calls:
            assert len(list(call)) == 1
        [lines] = fetching._kept.values()
        assert len(lines) == fetching.KEPT_MAX
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + fetching.KEEP_S + 1)
        connections = at.connections
        assert len(chunks(fetch(at, timeout_s=None))) == 2
        assert at.connections == connections + 1
        assert len(lines) == 1


def test_a_fetch_for_which_there_is_no_connection_more_goes_by_grpc_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(streams.VARIABLE)

    class ByGrpc(list[Any]):
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    instead = ByGrpc(["one", "two"])
    asked: list[Any] = []
    monkeypatch.setattr(fetching, "open_by_grpc", lambda *given: asked.append(given) or instead)
    refused = to_wire(QuotaExceeded("one connection too many"))

    def refuse(connection: socket.socket, request: pb.FetchRequest) -> bool:
        connection.sendall(b"".join(say(Kind.ERROR, refused.SerializeToString())))
        return False

    with broker(refuse) as at:
        assert list(fetch(at)) == ["one", "two"]
        assert (asked[0][0], instead.cancelled) == ("b:1", True)
        assert fetch(at) is instead, "nor is it tried again"
        assert at.connections == 1
