"""A broker that a test plays: it takes connections, says what it is to say, and hears what clients say. Each connection
has a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.message import Message

from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.wire.call import PREAMBLE, CallMachine, Kind, Said, Side, parsed, say
from mq_protocol.wire.envelope import Buffer

HOST = "127.0.0.1"
WAIT_S = 30.0


class Spoken:
    """A connection, as the broker has it. It answers PING by itself. `is_over`: the client has ended it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.opened = pb.CallOpen()
        self._machine = CallMachine(Side.BROKER, MESSAGE_BYTES_MAX, time.monotonic())

    def hear(self) -> Said | None:
        """What the client says next; None once it has ended the connection."""
        while (message := self._machine.next()) is None:
            if answer := self._machine.answer():
                self.socket.sendall(b"".join(answer))
            count = self.socket.recv_into(self._machine.buffer())
            if count == 0:
                return None
            self._machine.received(count, time.monotonic())
        if message.kind is Kind.OPEN:
            self.opened = parsed(message.body, pb.CallOpen)
        return message

    def hear_call(self) -> bytes | None:
        """A whole call with one request, which `opened` names; None once the connection was ended."""
        request = b""
        while (message := self.hear()) is not None:
            if message.kind is Kind.MESSAGE:
                request = message.body
            elif message.kind is Kind.END:
                return request
        return None

    def answer(self, message: Message, parts: Sequence[Buffer] = ()) -> None:
        self.say(Kind.MESSAGE, message.SerializeToString(), parts)

    def say(self, kind: Kind, body: bytes = b"", parts: Sequence[Buffer] = ()) -> None:
        self.socket.sendall(b"".join(self._machine.say(kind, body, parts)))

    def ping(self) -> None:
        self.socket.sendall(b"".join(say(Kind.PING)))

    def fail(self, error: TritonMQError) -> None:
        """The call; the connection is free."""
        self.socket.sendall(b"".join(self._machine.fail(error)))

    def close_with(self, error: TritonMQError | None) -> None:
        """The call, and the connection with it."""
        self.socket.sendall(b"".join(self._machine.close(error)))


Serve = Callable[[Spoken], None]
"""Speaks on a connection, which is closed after it."""


class PlayedBroker:
    """Owns a port. `connections`: how many were made. `opened`: all calls that began, once `serve` has heard them."""

    def __init__(self, serve: Serve, *, greeting: bytes = PREAMBLE, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self._serve = serve
        self._greeting = greeting
        self._tls = tls
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.add(connection)
                thread = threading.Thread(target=self._met, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _met(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                self._open.discard(connection)
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.add(connection)
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(self._greeting)
                self._serve(Spoken(connection))
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):  # so that what was said last is not lost by a reset
                        pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)


@contextlib.contextmanager
def played(serve: Serve, *, greeting: bytes = PREAMBLE, tls: ssl.SSLContext | None = None) -> Iterator[PlayedBroker]:
    made = PlayedBroker(serve, greeting=greeting, tls=tls)
    try:
        yield made
    finally:
        made.close()


class Handed:
    """Gives connections to the test's own thread."""

    def __init__(self) -> None:
        self._met: queue.Queue[Spoken] = queue.Queue()
        self._over = threading.Event()

    def __call__(self, spoken: Spoken) -> None:
        self._met.put(spoken)
        self._over.wait(WAIT_S)

    def next(self) -> Spoken:
        return self._met.get(timeout=WAIT_S)

    def let_go(self) -> None:
        """Of all connections, from now on."""
        self._over.set()
