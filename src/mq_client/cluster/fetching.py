"""Fetches: over a broker's stream port where it can be reached (streams.py), else by gRPC.

A connection to a stream port is kept for the next fetch. It is read by the thread that asks, straight into the memory
that Arrow is given, with one call of the kernel for a large message.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from mq_client.cluster import streams
from mq_client.cluster.channels import NOBODY, Client
from mq_client.cluster.channels import open_fetch as open_by_grpc
from mq_client.cluster.credentials import current
from mq_client.cluster.streams import ByGrpcInstead, NoStreamPort
from mq_client.errors import TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope
from mq_protocol.framing import Receiver
from mq_protocol.secured_socket import SecuredSocket
from mq_protocol.streams import SILENCE_S, Kind, Said, parsed, said, say
from mq_protocol.transport import MEANINGS

log = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""How long a connection is kept without a fetch. Brokers close it after twice that."""

KEPT_MAX: Final = 4
"""For each client and broker: so many may be read at once without making another connection."""


class Line:
    """Owns a connection that one thread at a time sends to and receives from, and waits."""

    def __init__(self, connection: socket.socket | SecuredSocket, receiver: Receiver, generation: int) -> None:
        self._connection = connection
        self._receiver = receiver
        self.generation = generation
        self.kept_at = 0.0
        connection.settimeout(None)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what is sent is small: a broker that lives takes it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))

    @property
    def is_quiet(self) -> bool:
        """Whether it still stands, as far as can be told: nobody speaks on it before it is asked."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        secured = self._connection if isinstance(self._connection, SecuredSocket) else None
        return self._receiver.is_empty and (secured is None or secured.is_empty) and not poll.poll(0)

    def ask(self, method: str, body: bytes, timeout_s: float | None) -> None:
        """A whole call with one request."""
        self._wait_at_most(timeout_s)
        opened = streams.open_message(method, 0 if timeout_s is None else max(1, int(timeout_s * 1000)))
        self._connection.sendall(b"".join((*opened, *say(Kind.MESSAGE, body), *say(Kind.END))))

    def hear(self, until: float | None) -> Said:
        """The next message. Raises the broker's error, `TimeoutError`, and `OSError` once the connection has ended."""
        while True:
            self._wait_at_most(None if until is None else until - time.monotonic())
            while (found := self._receiver.next()) is None:
                self._fill()
            message = said(found)
            if message.kind is Kind.PING:
                self._connection.sendall(b"".join(say(Kind.PONG)))
            elif message.kind is not Kind.PONG:
                streams.raise_error(message)
                return message

    def close(self) -> None:
        self._connection.close()

    def _fill(self) -> None:
        buffer = self._receiver.buffer()
        connection = self._connection
        try:
            if self._receiver.is_large and isinstance(connection, socket.socket):
                count = connection.recv_into(buffer, 0, socket.MSG_WAITALL)
            else:
                count = connection.recv_into(buffer)
        except BlockingIOError as late:
            raise TimeoutError from late
        if count == 0:
            raise ConnectionError("it has ended the connection")
        self._receiver.received(count)

    def _wait_at_most(self, seconds: float | None) -> None:
        """By the kernel where it can, which saves a call of it before each that receives."""
        if seconds is not None and seconds <= 0:
            raise TimeoutError
        limit = 0 if seconds is None else max(1, int(seconds * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", *divmod(limit, 1_000_000)))


_lock = threading.Lock()
_kept: dict[tuple[Client, str], list[Line]] = {}


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have. The connections are the parent's."""
    global _lock
    _lock = threading.Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    with _lock:
        lines = [line for kept in _kept.values() for line in kept]
        _kept.clear()
    for line in lines:
        line.close()


def _take(key: tuple[Client, str], generation: int) -> Line | None:
    """A connection that was kept."""
    now = time.monotonic()
    while True:
        with _lock:
            lines = _kept.get(key)
            if not lines:
                return None
            line = lines.pop()
        if line.generation == generation and now - line.kept_at < KEEP_S and line.is_quiet:
            return line
        line.close()


def _keep(key: tuple[Client, str], line: Line) -> None:
    line.kept_at = time.monotonic()
    with _lock:
        lines = _kept.setdefault(key, [])
        lines.append(line)
        over = [each for each in lines if line.kept_at - each.kept_at >= KEEP_S] or lines[:-KEPT_MAX]
        lines[:] = [each for each in lines if each not in over]
    for each in over:
        each.close()


class StreamFetch:
    """One fetch over a stream port, as a call of gRPC: iterated once for its answers, cancelled at the end."""

    def __init__(
        self, address: str, key: tuple[Client, str], request: pb.FetchRequest, timeout_s: float | None
    ) -> None:
        self._address = address
        self._key = key
        self._request = request
        self._by_grpc: Any = None
        self._cancelled = False
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._generation = current(key[0].security).generation
        self._line = _take(key, self._generation)
        self._reused = self._line is not None
        if self._line is None:
            self._line = self._dialled()

    def __iter__(self) -> Iterator[Envelope[pb.BatchesHeader]]:
        try:
            message = self._first_unless_by_grpc()
            if message is None:
                yield from self._by_grpc
                return
            while message.kind is Kind.MESSAGE:
                yield Envelope(parsed(message.body, pb.BatchesHeader), (message.payload,))
                message = self._up().hear(self._until)
        except TritonMQError:
            self._give_back()  # the broker ends the connection, if it does: it is looked at before it is used again
            raise
        except TimeoutError as late:
            meaning, text = MEANINGS["DEADLINE_EXCEEDED"]
            raise meaning(text.format(address=self._address)) from late
        except OSError as error:
            raise Unreachable(f"broker at {self._address} cannot be reached: {error}") from error
        else:
            self._give_back()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Let go of the connection, unless the call is over."""
        self._cancelled = True
        if self._by_grpc is not None:
            self._by_grpc.cancel()
        line, self._line = self._line, None
        if line is not None:
            line.close()

    # ------------------------------------------------------------------ private

    def _first_unless_by_grpc(self) -> Said | None:
        """The first answer; None if the stream port does not take the call, and gRPC has it (`_by_grpc`)."""
        try:
            return self._first()
        except TritonMQError as error:
            client, stream_address = self._key
            if not streams.is_for_grpc(error, stream_address):
                raise
            log.debug("%s; by gRPC instead", error)
            self._by_grpc = open_by_grpc(self._address, self._request, self._left_s, client)
            if self._cancelled:  # just now, when there was nothing to cancel yet
                self._by_grpc.cancel()
            return None

    def _first(self) -> Said:
        """The first answer. A connection that was kept may have ended meanwhile: then it is asked on another one."""
        try:
            return self._asked()
        except TimeoutError:
            raise
        except OSError:
            if not self._reused:
                raise
        self._up().close()
        try:
            self._line = self._dialled()
        except NoStreamPort as error:
            raise Unreachable(f"broker at {self._address} cannot be reached: {error}") from error
        return self._asked()

    def _asked(self) -> Said:
        self._up().ask("Fetch", self._request.SerializeToString(), self._left_s)
        return self._up().hear(self._until)

    @property
    def _left_s(self) -> float | None:
        return None if self._until is None else self._until - time.monotonic()

    def _dialled(self) -> Line:
        client, stream_address = self._key
        return Line(*streams.dial_to_read(stream_address, client), self._generation)

    def _give_back(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            _keep(self._key, line)

    def _up(self) -> Line:
        if self._line is None:
            raise Unreachable(f"the fetch from the broker at {self._address} was cancelled")
        return self._line


def open_fetch(
    address: str,
    request: pb.FetchRequest,
    timeout_s: float | None = None,
    client: Client = NOBODY,
    stream_address: str = "",
) -> Any:
    """A fetch from the broker at `address`, iterated for `Envelope[pb.BatchesHeader]`; `cancel` lets go of it. Raises
    `TritonMQError`, or what gRPC raises."""
    if streams.usable(stream_address):
        try:
            return StreamFetch(address, (client, stream_address), request, timeout_s)
        except NoStreamPort as error:
            log.debug("%s; by gRPC instead", error)
            streams.check_not_required(stream_address)
            return ByGrpcInstead(open_by_grpc(address, request, timeout_s, client), stream_address)
    return open_by_grpc(address, request, timeout_s, client)
