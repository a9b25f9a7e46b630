"""Calls with one request, by the thread that waits for their answers.

A connection is kept for the next call. It is read straight into the memory that Arrow is given, with one call of the
kernel for a large message.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, TypeVar

from google.protobuf.message import Message

from mq_client.cluster.client import NOBODY, Client
from mq_client.cluster.credentials import Credentials, as_told, current
from mq_client.cluster.dialling import call_open, dial, late, unreachable
from mq_client.errors import NotAuthenticated, TritonMQError, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import SILENCE_S, CallMachine, Kind, NotBegun, Said, State, error_of, parsed
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.secured_socket import SecuredSocket

KEEP_S: Final = 30.0
"""How long a connection is kept without a call. Brokers close it after twice that."""

KEPT_MAX: Final = 4
"""For each client and address: so many calls may be made at once without making another connection."""

_LONGEST_S: Final = 1e9

R = TypeVar("R", bound=Message)
H = TypeVar("H", bound=Message)


class Line:
    """Owns a connection that one thread at a time sends to and receives from, and waits. `generation`: of what it was
    made with."""

    def __init__(self, connection: socket.socket | SecuredSocket, machine: CallMachine, generation: int) -> None:
        self._connection = connection
        self._machine = machine
        self.generation = generation
        self.kept_at = 0.0
        connection.settimeout(None)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a broker that lives takes what is sent
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))

    @property
    def is_free(self) -> bool:
        """Whether another call may be made."""
        return self._machine.state is State.IDLE

    @property
    def is_quiet(self) -> bool:
        """Whether it still stands, as far as can be told: nobody speaks on it before it is asked."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        secured = self._connection if isinstance(self._connection, SecuredSocket) else None
        return self._machine.is_empty and (secured is None or secured.is_empty) and not poll.poll(0)

    def ask(self, opened: pb.CallOpen, body: bytes, until: float) -> None:
        """A whole call with one request. That the broker does not take it shows where it is heard."""
        machine, now = self._machine, time.monotonic()
        machine.goes_on(now)
        machine.look(now, reads=True)
        pieces = [*machine.open(opened), *machine.say(Kind.MESSAGE, body), *machine.say(Kind.END)]
        self._wait_at_most(until - now)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._send(pieces)

    def hear(self, until: float) -> Said:
        """The next message of the call: an answer, or END. Raises the broker's error, `TimeoutError`, and `OSError`
        once the connection has ended."""
        while (message := self._next()) is None:
            if answer := self._machine.answer():
                self._send(answer)
            self._fill(until)
        if (error := error_of(message)) is not None:
            raise error
        return message

    def close(self) -> None:
        self._connection.close()

    def _next(self) -> Said | None:
        try:
            return self._machine.next()
        except TritonMQError as error:
            raise ConnectionError(str(error)) from error

    def _send(self, pieces: list[Buffer]) -> None:
        try:
            self._connection.sendall(b"".join(pieces))
        except BlockingIOError as slow:
            raise TimeoutError from slow

    def _fill(self, until: float) -> None:
        self._wait_at_most(until - time.monotonic())
        machine, connection = self._machine, self._connection
        buffer = machine.buffer()
        try:
            if machine.missing_bytes and isinstance(connection, socket.socket):
                count = connection.recv_into(buffer, 0, socket.MSG_WAITALL)
            else:
                count = connection.recv_into(buffer)
        except BlockingIOError as slow:
            raise TimeoutError from slow
        if count == 0:
            raise ConnectionError("it has ended the connection")
        machine.received(count, time.monotonic())

    def _wait_at_most(self, seconds: float) -> None:
        """By the kernel, which saves a call of it before each that receives."""
        if seconds <= 0:
            raise TimeoutError
        limit = struct.pack("ll", *divmod(max(1, int(min(seconds, _LONGEST_S) * 1e6)), 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._connection.setsockopt(socket.SOL_SOCKET, option, limit)


Key = tuple[Client, str]
"""Whose connections, and what is dialled."""


class KeptLines:
    """Owns the connections of a process that no call is made on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Key, list[Line]] = {}
        self._sweep_at = 0.0

    def take(self, key: Key, generation: int) -> Line | None:
        """The one that was kept last."""
        while True:
            with self._lock:
                lines = self._lines.get(key)
                if not lines:
                    return None
                line = lines.pop()
            if line.generation == generation and time.monotonic() - line.kept_at < KEEP_S and line.is_quiet:
                return line
            line.close()

    def keep(self, key: Key, line: Line) -> None:
        line.kept_at = now = time.monotonic()
        with self._lock:
            lines = self._lines.setdefault(key, [])
            lines.append(line)
            over = [lines.pop(0)] if len(lines) > KEPT_MAX else []
            if now >= self._sweep_at:
                self._sweep_at = now + KEEP_S
                over += self._swept(now)
        for each in over:
            each.close()

    def close(self) -> None:
        with self._lock:
            lines = [line for lines in self._lines.values() for line in lines]
            self._lines.clear()
        for line in lines:
            line.close()

    def _swept(self, now: float) -> list[Line]:
        over = []
        for key, lines in list(self._lines.items()):
            over += [line for line in lines if now - line.kept_at >= KEEP_S]
            self._lines[key] = [line for line in lines if now - line.kept_at < KEEP_S]
            if not self._lines[key]:
                del self._lines[key]
        return over


kept = KeptLines()


@atexit.register
def _close_kept() -> None:
    kept.close()


def _after_fork() -> None:
    """The connections are the parent's."""
    global kept
    kept = KeptLines()


os.register_at_fork(after_in_child=_after_fork)


class Call:
    """One call to the broker at `address`: iterated once for its answers, let go of at the end. `repeats`: it may be
    made twice."""

    def __init__(
        self, address: str, method: str, request: Message, timeout_s: float, client: Client, *, repeats: bool = False
    ) -> None:
        assert isinstance(request, BROKER.methods[method].request)
        self._address = address
        self._method = method
        self._body = request.SerializeToString()
        self._until = time.monotonic() + max(timeout_s, 0.001)
        self._client = client
        self._key = client, client.dialled(address)
        self._repeats = repeats
        self._line: Line | None = None

    def __iter__(self) -> Iterator[Said]:
        """Raises the broker's error, `Unreachable`, or `OutcomeUnknown` once the time is over."""
        credentials = current(self._client.security)
        shown = self._client.shown(self._address)
        try:
            message = self._first(credentials)
            while message.kind is Kind.MESSAGE:
                yield message
                message = self._up().hear(self._until)
            self._give_back()
        except TimeoutError as error:
            raise late(shown) from error
        except OSError as error:
            raise unreachable(shown, error) from error
        except NotAuthenticated as error:
            self._give_back()
            raise as_told(error, self._client.security, credentials.generation) from error
        except TritonMQError as error:
            is_late = isinstance(error, Unreachable) and self._line is not None and time.monotonic() >= self._until
            self._give_back()
            if is_late:
                raise late(shown) from error
            raise
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Let go of the connection, unless the call is over."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    # ------------------------------------------------------------------ private

    def _first(self, credentials: Credentials) -> Said:
        """The first answer. A connection that was kept may have ended meanwhile: then it is asked on another one."""
        self._line = kept.take(self._key, credentials.generation)
        if self._line is not None:
            try:
                return self._asked(credentials)
            except NotBegun:
                self.cancel()
            except ConnectionError:
                if not self._repeats:
                    raise
                self.cancel()
        left_s = self._until - time.monotonic()
        made = dial(self._address, self._client, credentials, SecuredSocket, left_s)
        self._line = Line(*made, credentials.generation)
        return self._asked(credentials)

    def _asked(self, credentials: Credentials) -> Said:
        left_s = self._until - time.monotonic()
        opened = call_open(self._method, self._address, self._client, credentials, left_s)
        self._up().ask(opened, self._body, self._until)
        return self._up().hear(self._until)

    def _give_back(self) -> None:
        line = self._line
        if line is not None and line.is_free:
            self._line = None
            kept.keep(self._key, line)

    def _up(self) -> Line:
        if self._line is None:
            raise ConnectionError("the call was cancelled here")
        return self._line


def call_unary(
    address: str, method: str, request: Message, response: type[R], timeout_s: float, client: Client = NOBODY
) -> R:
    """One request, one answer. Raises the `TritonMQError` that the broker raised, `Unreachable` or `OutcomeUnknown`."""
    assert BROKER.methods[method].response is response
    answers = list(islice(Call(address, method, request, timeout_s, client), 2))
    if len(answers) != 1:
        raise unreachable(client.shown(address), "it has answered otherwise than once")
    return heard(answers[0], response, address, client)


class FetchCall:
    """A fetch from the broker at `address`: iterated once for what it gives, let go of at the end."""

    def __init__(self, address: str, request: pb.FetchRequest, timeout_s: float, client: Client = NOBODY) -> None:
        self._address = address
        self._client = client
        self._call = Call(address, "Fetch", request, timeout_s, client, repeats=True)

    def __iter__(self) -> Iterator[Envelope[pb.BatchesHeader]]:
        """Raises as a `Call`."""
        for message in self._call:
            yield Envelope(heard(message, pb.BatchesHeader, self._address, self._client), (message.payload,))

    def cancel(self) -> None:
        self._call.cancel()


def heard(message: Said, kind: type[H], address: str, client: Client) -> H:
    """What the broker at `address` has said. Raises `Unreachable` for what is no such message: what it did is not
    known."""
    try:
        return parsed(message.body, kind)
    except TritonMQError as error:
        raise unreachable(client.shown(address), error) from error
