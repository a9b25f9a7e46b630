"""A call on which one thread sends and another one receives, each at any time."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from mq_client.cluster.client import Client
from mq_client.cluster.credentials import as_told, current
from mq_client.cluster.dialling import by_openssl, call_open, dial, note_open, unreachable
from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_protocol.wire.call import LOOK_S, Kind, Said, error_of, say
from mq_protocol.wire.envelope import Buffer

_PIECES_MAX: Final = 64
"""Of one call of the kernel."""

_JOINED_BYTES_MAX: Final = 16 << 10
"""As one record of TLS."""


class Duplex:
    """Owns a connection to the broker at `address`, and the call of that method on it. Raises `TritonMQError` if there
    is none.

    `send` never waits: what TCP does not take is sent by the thread that receives. Whoever sends bounds how much that
    is. A broker that takes nothing for long is no dead one while it says that it lives: so TCP has no timeout of its
    own. One lock stands around what is done with the socket where it is TLS, whose two directions share a state.
    """

    def __init__(self, address: str, method: str, client: Client) -> None:
        credentials = current(client.security)
        self._connection, self._machine = dial(address, client, credentials, by_openssl)
        self._connection.setblocking(False)
        self._client = client
        self._shown = client.shown(address)
        self._generation = credentials.generation
        self._secured = isinstance(self._connection, ssl.SSLSocket)
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
            note_open(end)
        self._closed = False
        self._look_at = time.monotonic() + LOOK_S
        self._push(self._machine.open(call_open(method, address, client, credentials)))

    def send(self, body: bytes, parts: Sequence[Buffer] = ()) -> None:
        """One request, in its turn; nothing once the connection is closed. That it is broken shows where it is
        received."""
        self._push(say(Kind.MESSAGE, body, parts))

    def end(self) -> None:
        """The last that this end says. Before anybody receives."""
        self._push(self._machine.say(Kind.END))

    def receive(self) -> Said | None:
        """The next answer; None once the broker has answered its last. Raises the broker's error, or `Unreachable` once
        the connection has ended, was closed, or the broker has been silent for long."""
        try:
            while (message := self._next()) is None:
                self._fill()
        except OSError as error:
            raise unreachable(self._shown, error) from error
        ended = error_of(message)
        if isinstance(ended, NotAuthenticated):
            raise as_told(ended, self._client.security, self._generation)
        if ended is not None:
            raise ended
        return None if message.kind is Kind.END else message

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

    def _next(self) -> Said | None:
        try:
            message = self._machine.next()
        except TritonMQError as error:
            raise unreachable(self._shown, error) from error
        if owed := self._machine.answer():
            self._push(owed)
        return message

    def _push(self, pieces: list[Buffer]) -> None:
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

    def _fill(self) -> None:
        """Receive some bytes, waiting for them."""
        buffer = self._machine.buffer()
        while (count := self._received(buffer)) is None:
            self._wait()
        if count == 0:
            raise ConnectionError("it has ended the connection")
        self._machine.received(count, time.monotonic())

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
                raise ConnectionError("it was closed here")
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.register(self._woken, select.POLLIN)
        if (now := time.monotonic()) >= self._look_at:
            self._look(now)
        for descriptor, event in poll.poll(max(self._look_at - now, 0.001) * 1000):
            if descriptor == self._woken.fileno():
                self._drain()
            elif event & ~select.POLLIN:
                with self._lock:
                    self._flush()

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_S
        try:
            self._push(self._machine.look(now, reads=True))
        except Unreachable as silent:
            raise ConnectionError(str(silent)) from silent

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
