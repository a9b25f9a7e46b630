"""Connections to brokers' stream ports (mq_protocol/streams.py): the same calls as by gRPC, for a fraction of the
processor time.

A broker tells its stream port in metadata. Where there is none, or it cannot be reached, calls go by gRPC: a proxy that
serves gRPC alone, a firewall that does not let the port through. So do calls of who may have no connection more. A port
that was of no use is left alone for `AVOID_S`.

`TRITONMQ_TRANSPORT=grpc` leaves stream ports alone; `stream` refuses to do without them, which shows that they are
used.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from mq_client.cluster.channels import Client
from mq_client.cluster.credentials import current
from mq_client.errors import InvalidSetting, QuotaExceeded, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.addresses import parse_address
from mq_protocol.envelope import Buffer
from mq_protocol.error_messages import from_wire
from mq_protocol.framing import STREAM, Receiver
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.secured_socket import SecuredSocket
from mq_protocol.streams import PING_S, PREAMBLE, SILENCE_S, Kind, Said, parsed, said, say
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST

VARIABLE: Final = "TRITONMQ_TRANSPORT"
_AUTO: Final = ""
_GRPC: Final = "grpc"
_STREAM: Final = "stream"

CONNECT_S: Final = 1.0
"""How long a connection, with its handshake, may take to be made: a port that a firewall hides does not answer."""

AVOID_S: Final = 60.0

_PIECES_MAX: Final = 64
"""Of one call of the kernel."""

_JOINED_BYTES_MAX: Final = 16 << 10
"""As one record of TLS."""

_Connection = TypeVar("_Connection", bound=socket.socket | SecuredSocket)

_lock = threading.Lock()
_avoided: dict[str, float] = {}
"""Until when, by stream port."""


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def usable(stream_address: str) -> bool:
    """Whether a call is to be tried at that stream port. Raises `Unreachable` if it must be and there is none,
    `InvalidSetting` for a transport that there is not."""
    transport = os.environ.get(VARIABLE, _AUTO)
    if transport not in (_AUTO, _GRPC, _STREAM):
        raise InvalidSetting(f"{VARIABLE}={transport!r} is no transport: {_GRPC} or {_STREAM}, or leave it out")
    if transport == _STREAM and not stream_address:
        raise Unreachable(f"{VARIABLE}={_STREAM}, and the broker tells no stream port that is of use from here")
    if transport == _GRPC or not stream_address:
        return False
    with _lock:
        until = _avoided.get(stream_address, 0.0)
    return until <= time.monotonic() or transport == _STREAM


def is_required() -> bool:
    """Whether nothing but stream ports may be used."""
    return os.environ.get(VARIABLE) == _STREAM


def check_not_required(stream_address: str) -> None:
    """Before gRPC is tried instead. Raises `Unreachable` if nothing else than a stream port may be."""
    if is_required():
        raise Unreachable(f"{VARIABLE}={_STREAM}, and the stream port {stream_address} cannot be reached")


def avoid(stream_address: str) -> None:
    """It is of no use, and gRPC is: not to be tried again for a while. Raises `Unreachable` if nothing else may be
    tried."""
    check_not_required(stream_address)
    with _lock:
        _avoided[stream_address] = time.monotonic() + AVOID_S


def is_for_grpc(error: TritonMQError, stream_address: str) -> bool:
    """Whether a call that the stream port has ended with that error, before it did anything, is made by gRPC: the
    connection is one more than a quota allows. That port is left alone for a while then."""
    if not isinstance(error, QuotaExceeded) or is_required():
        return False
    avoid(stream_address)
    return True


class NoStreamPort(Exception):
    """Nothing at that address answers as a stream port does. Nothing was asked."""


class ByGrpcInstead:
    """A call by gRPC to a broker whose stream port could not be reached. Once gRPC has answered, that port is left
    alone for a while. A broker that nobody reaches may be starting, and its port is tried again."""

    def __init__(self, call: Any, stream_address: str) -> None:
        self._call = call
        self._stream_address = stream_address

    def __iter__(self) -> Iterator[Any]:
        answered = False
        for message in self._call:
            if not answered:
                answered = True
                avoid(self._stream_address)
            yield message

    def cancel(self) -> None:
        self._call.cancel()


def open_message(method: str, timeout_ms: int = 0) -> list[Buffer]:
    """What begins a call."""
    opened = pb.StreamOpen(method=method, protocol=PROTOCOL, protocol_oldest=PROTOCOL_OLDEST, timeout_ms=timeout_ms)
    return say(Kind.OPEN, opened.SerializeToString())


def dial(stream_address: str, client: Client, timeout_s: float = CONNECT_S) -> tuple[socket.socket, Receiver]:
    """A connection on which both ends have said what they speak, as a blocking socket, and what receives of it. Raises
    `NoStreamPort`."""
    return _dial(stream_address, client, timeout_s, _by_openssl)


def dial_to_read(stream_address: str, client: Client) -> tuple[socket.socket | SecuredSocket, Receiver]:
    """The same, for whoever receives large messages."""
    return _dial(stream_address, client, CONNECT_S, SecuredSocket)


def _by_openssl(connection: socket.socket, tls: ssl.SSLContext, name: str) -> socket.socket:
    return tls.wrap_socket(connection, server_hostname=name)


def _dial(
    stream_address: str,
    client: Client,
    timeout_s: float,
    wrap: Callable[[socket.socket, ssl.SSLContext, str], _Connection],
) -> tuple[socket.socket | _Connection, Receiver]:
    host, port = parse_address(stream_address)
    name = host.strip("[]")
    credentials = current(client.security)
    tls = credentials.tls
    if tls is None and credentials.channel is not None:
        raise NoStreamPort("a token is shown by gRPC alone")
    until = time.monotonic() + timeout_s
    plain: socket.socket | None = None
    connection: socket.socket | _Connection | None = None
    try:
        connection = plain = socket.create_connection((name, port), timeout=timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(max(until - time.monotonic(), 0.001))
        if tls is not None:
            connection = wrap(plain, tls, name)
        return connection, _greeted(connection, until)
    except (OSError, UnicodeError, TritonMQError) as error:
        if connection is not None:
            connection.close()
        raise NoStreamPort(f"stream port {stream_address}: {error or 'no answer'}") from error


def _greeted(connection: socket.socket | SecuredSocket, until: float) -> Receiver:
    connection.sendall(PREAMBLE)
    receiver = Receiver(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, spoken=STREAM)
    while receiver.version == 0:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        count = connection.recv_into(receiver.buffer())
        if count == 0:
            raise ConnectionError("it was closed without a word")
        receiver.received(count)
        if (early := receiver.next()) is not None:
            raise_error(said(early))
            raise ConnectionError("it speaks before it is asked")
    return receiver


def raise_error(message: Said) -> None:
    """Raises why the broker ends the call, if it does."""
    if message.kind is Kind.ERROR:
        raise from_wire(parsed(message.body, pb.Error))


class Duplex:
    """Owns a connection on which one thread sends and another one receives, each at any time.

    `send` never waits: what TCP does not take is sent by the thread that receives. Whoever sends bounds how much that
    is. A broker that takes nothing for long is no dead one while it says that it lives: so TCP has no timeout of its
    own. One lock stands around what is done with the socket where it is TLS, whose two directions share a state.
    """

    def __init__(self, connection: socket.socket, receiver: Receiver, address: str) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._secured = isinstance(connection, ssl.SSLSocket)
        self._receiver = receiver
        self._address = address
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._closed = False
        self._heard_at = time.monotonic()
        self._asked = False

    def send(self, pieces: list[Buffer]) -> None:
        """All of them, in order; nothing once the connection is closed. That it is broken shows where it is
        received."""
        with self._lock:
            if self._closed:
                return
            waiting = bool(self._unsent)
            self._unsent.extend(memoryview(piece).cast("B") for piece in pieces if len(piece))
            if not waiting:
                self._flush()
            left = bool(self._unsent) and not waiting
        if left:
            self._wake_up()

    def receive(self) -> Said:
        """The next message of the call. Raises the broker's error, or `Unreachable` once the connection has ended, was
        closed, or the far side has said nothing for `SILENCE_S`."""
        try:
            while True:
                found = self._receiver.next()
                if found is None:
                    self._fill()
                    continue
                message = said(found)
                if message.kind is Kind.PING:
                    self.send(say(Kind.PONG))
                elif message.kind is not Kind.PONG:
                    raise_error(message)
                    return message
        except OSError as error:
            raise self._broken(str(error)) from error

    def close(self) -> None:
        """`receive` raises from now on, in whatever thread it waits; that one calls `release`."""
        with self._lock:
            self._closed = True
        self._wake_up()

    def release(self) -> None:
        """Let go of the sockets: to be called by the thread that receives, last."""
        with self._lock:
            self._closed = True
            self._unsent.clear()
            self._connection.close()
            self._woken.close()
            self._wake.close()

    # ------------------------------------------------------------------ private

    def _fill(self) -> None:
        """Receive some bytes, waiting for them."""
        buffer = self._receiver.buffer()
        while (count := self._received(buffer)) is None:
            self._wait()
        if count == 0:
            raise self._broken("it has ended the connection")
        self._receiver.received(count)
        self._heard_at, self._asked = time.monotonic(), False

    def _received(self, buffer: memoryview) -> int | None:
        """How many bytes; 0 at the end, None if there are none now."""
        try:
            if not self._secured:
                return self._connection.recv_into(buffer)
            with self._lock:
                return self._connection.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def _wait(self) -> None:
        """Until there may be something to receive; sends what is left meanwhile."""
        poll = select.poll()
        with self._lock:
            if self._closed:
                raise self._broken("it was closed here")
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.register(self._woken, select.POLLIN)
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= SILENCE_S:
            raise self._broken(f"it has said nothing for {SILENCE_S:.0f} s")
        if silent_s >= PING_S and not self._asked:
            self._asked = True
            self.send(say(Kind.PING))
        until_s = (SILENCE_S if self._asked else PING_S) - silent_s
        for descriptor, event in poll.poll(max(until_s, 0.001) * 1000):
            if descriptor == self._woken.fileno():
                self._drain()
            elif event & ~select.POLLIN:
                with self._lock:
                    self._flush()

    def _flush(self) -> None:
        """Under the lock: as much as TCP takes."""
        unsent = self._unsent
        try:
            while unsent:
                if self._secured:
                    count = self._connection.send(self._joined())
                else:
                    count = self._connection.sendmsg([unsent[at] for at in range(min(len(unsent), _PIECES_MAX))])
                while count:
                    first = unsent[0]
                    if count < len(first):
                        unsent[0] = first[count:]
                        break
                    count -= len(first)
                    unsent.popleft()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            return  # the thread that receives meets it as well

    def _joined(self) -> Buffer:
        """What goes into one call of OpenSSL, which makes one message of TLS of each: small pieces together. It may be
        given more when it is tried again, and never less."""
        size = count = 0
        for piece in self._unsent:
            if count and size + len(piece) > _JOINED_BYTES_MAX:
                break
            count += 1
            size += len(piece)
        if count == 1:
            return self._unsent[0]
        return b"".join(self._unsent[at] for at in range(count))

    def _wake_up(self) -> None:
        try:
            self._wake.send(b"\0")
        except OSError:
            return  # it is full, so the other end is awake; or closed, so nobody is there to wake

    def _drain(self) -> None:
        try:
            while self._woken.recv(1 << 10):
                pass
        except BlockingIOError:
            return

    def _broken(self, why: str) -> Unreachable:
        return Unreachable(f"broker at {self._address} cannot be reached: {why}")
