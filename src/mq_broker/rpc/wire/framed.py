"""Links on TCP, or on TLS above it: one connection to another broker, dialled or accepted.

What is on the wire is in mq_protocol/wire/framing.py. What is received is heard within the callback that received it,
so nothing is queued, and a broker that is busy is not sent to: what it has not read stays in TCP. What is sent waits
in the connection up to `WRITE_BUFFER_BYTES`, then in the bounded buffer of the peer (outgoing.py).

A connection whose far machine is gone ends when what was sent is not acknowledged for `SILENCE_MS`; one whose far
process has stopped, by its beats (broker/host/contacts.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from mq_broker.security.names import ANONYMOUS, Principal, of_certificate
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import names_in
from mq_protocol.addresses import parse_address
from mq_protocol.errors import (
    IncompatibleVersion,
    InvalidRequest,
    NotAuthenticated,
    PeerRefused,
    RequestTooLarge,
    TritonMQError,
    Unreachable,
    shortened,
)
from mq_protocol.limits import HANDSHAKE_TIMEOUT_MS, LINK_HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from mq_protocol.wire.envelope import Buffer, Envelope
from mq_protocol.wire.error_messages import to_wire
from mq_protocol.wire.framing import Receiver, encode, preamble

log = logging.getLogger(__name__)

LinkMessage: TypeAlias = Envelope[pb.LinkHeader]
Hear: TypeAlias = Callable[[LinkMessage], None]

Tls: TypeAlias = Callable[[], ssl.SSLContext]
"""Called for each connection, so that certificates can be replaced."""

CONNECT_S: Final = 2.0
"""How long a connection may take to be made: a port that a firewall hides does not answer."""

HELLO_BYTES_MAX: Final = 1 << 10
"""Of each message before the far side has proved who it is: a hello has some hundred bytes. What is longer is not
parsed."""

SILENCE_MS: Final = 15_000
"""What was sent, and is not acknowledged by the far machine's TCP for so long, ends the connection."""

LINGER_S: Final = 1.0
"""How long the far side is given to read why a link ends."""

LINGER_BYTES_MAX: Final = 1 << 20
"""What it may go on sending meanwhile."""

WRITE_BUFFER_BYTES: Final = 256 << 10
"""What waits to be written, in a connection: beyond it messages gather."""

STRANGERS_MAX: Final = 256
"""Connections that have not proved who they are. Each is given ten seconds (`CONNECT_TIMEOUT_MS`). Of more than these
one ends: at the address (`origin`) that has most of them, the one that is there longest. A broker needs some
milliseconds and has one or two, so nobody at another address keeps it out, by staying or by coming often."""

ACCEPT_AGAIN_S: Final = 0.1
_BACKLOG: Final = 128
_LEFT: Final = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody listens to any more, of all connections. It is never read."""

_JOINED_BYTES_MAX: Final = 16 << 10
"""Pieces that are smaller are joined to one call of the kernel, which costs more than to copy them."""

_REASON_BYTES_MAX: Final = 500
"""Of an error that ends a link: it has to fit into a message of `HELLO_BYTES_MAX`."""


def no_hello() -> PeerRefused:
    return PeerRefused(
        "a link begins with hello: this is for the cluster's brokers alone, clients use the address given by --listen",
        pb.PEER_NO_HELLO,
    )


class FramedWire(asyncio.BufferedProtocol):
    """One connection to another broker, from its first message on."""

    def __init__(self) -> None:
        self._receiver = Receiver(HELLO_BYTES_MAX, HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._hear: Hear | None = None
        self._error: Exception | None = None
        self._over = asyncio.Event()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._left_bytes = LINGER_BYTES_MAX

    # ------------------------------------------------------------------ what links ask

    def speaker(self) -> Principal:
        """Whom the connection has proved to be at the other end; `User:ANONYMOUS` if it has proved nothing. Raises
        `PeerRefused` if that has no name."""
        secured: ssl.SSLObject | None = self._check_up().get_extra_info("ssl_object")
        if secured is None:
            return ANONYMOUS
        try:
            return of_certificate(*names_in(secured.getpeercert() or {}))
        except NotAuthenticated as error:
            raise PeerRefused(str(error), pb.PEER_NOT_ITSELF) from error

    async def hello(self) -> pb.LinkHello:
        """The next message, which must be one. Raises `PeerRefused` if it is another one, or longer than a hello is."""
        try:
            while (message := self._receiver.next()) is None:
                self._arrived.clear()
                self._check_up().resume_reading()
                await self._arrived.wait()
            header = pb.LinkHeader.FromString(message.header)
        except IncompatibleVersion as error:
            raise PeerRefused(str(error), pb.PEER_INCOMPATIBLE) from error
        except (InvalidRequest, RequestTooLarge, DecodeError) as error:
            raise no_hello() from error
        _check_error(header)
        if message.payload or not header.HasField("hello"):
            raise no_hello()
        return header.hello

    async def send(self, message: LinkMessage) -> None:
        """Waits while the far side is slow. Raises `Unreachable` once the connection has ended."""
        self._check_up()
        self.write(message)
        if not self._room.is_set():
            await self._room.wait()
            self._check_up()

    @property
    def has_room(self) -> bool:
        """A message can be written at once."""
        return self._room.is_set() and self._error is None

    def write(self, message: LinkMessage) -> None:
        """As `send`, without waiting: to be asked for where there is room. Nothing, once the connection has ended."""
        transport = self._transport
        if transport is None:
            return
        for piece in joined(encode(message.header.SerializeToString(), message.parts)):
            transport.write(piece)

    async def listen(self, hear: Hear) -> None:
        """`hear` is called with each message that comes from now on, on the event loop. Always raises: `Unreachable`
        where the far side has ended the connection, else what `hear` raised."""
        self._receiver.header_bytes_max = LINK_HEADER_BYTES_MAX
        self._receiver.message_bytes_max = MESSAGE_BYTES_MAX
        self._hear = hear
        transport = self._check_up()
        self._take()
        transport.resume_reading()
        await self._over.wait()
        self._check_up()

    def close(self, error: TritonMQError | None = None) -> None:
        """End the connection, once what was sent is written and `error`, if given, is told; `LINGER_S` later in any
        case."""
        transport = self._transport
        self._end(Unreachable("the link was ended here"))
        if transport is None or transport.is_closing():
            return
        if error is not None:
            told = to_wire(error)
            told.message = shortened(told.message, _REASON_BYTES_MAX)
            transport.write(b"".join(encode(pb.LinkHeader(error=told).SerializeToString())))
        # To close while there is something to read would reset the connection, and the far side might not read this
        if transport.can_write_eof():
            say_last(transport)
            transport.resume_reading()
        else:  # TLS cannot say its last and go on reading
            transport.close()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    # ------------------------------------------------------------------ what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        prepare(transport)
        transport.write(preamble())

    def get_buffer(self, sizehint: int) -> Any:
        return _LEFT if self._over.is_set() else self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._over.is_set():
            self._left_bytes -= nbytes
            if self._left_bytes < 0 and self._transport is not None:
                self._transport.abort()
            return
        self._receiver.received(nbytes)
        if self._hear is None:
            assert self._transport is not None
            self._transport.pause_reading()  # until it is asked for, one message after another
            self._arrived.set()
        else:
            self._take()

    def eof_received(self) -> None:
        self._end(Unreachable("the far side has ended the link"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Unreachable(f"the link broke: {exc}"))
        self._transport = None  # else the two hold each other until the collector of cycles comes

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    # ------------------------------------------------------------------ private

    def _take(self) -> None:
        """All that is whole."""
        hear = self._hear
        assert hear is not None
        try:
            while not self._over.is_set() and (message := self._receiver.next()) is not None:
                header = pb.LinkHeader.FromString(message.header)
                if header.HasField("error"):
                    _check_error(header)
                hear(Envelope(header, (message.payload,) if message.payload else ()))
        except DecodeError as error:
            self._end(InvalidRequest(f"malformed message: {error}"))
        except Exception as error:  # noqa: BLE001 - raised where the link is listened to
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._over.is_set():
            self._error = error
            self._over.set()
            self._arrived.set()
            self._room.set()

    def _check_up(self) -> asyncio.Transport:
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        return self._transport


def _check_error(header: pb.LinkHeader) -> None:
    """Raises if the far side says why it ends the link. What it refuses is no refusal of this broker's."""
    if header.HasField("error"):
        raise Unreachable(f"the far side has ended the link: {shortened(header.error.message, _REASON_BYTES_MAX)}")


def joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in fewer pieces: small ones are joined."""
    run: list[Buffer] = []
    size = 0
    for piece in pieces:
        nbytes = len(piece) if type(piece) is bytes else memoryview(piece).nbytes
        if run and size + nbytes > _JOINED_BYTES_MAX:
            yield b"".join(run) if len(run) > 1 else run[0]
            run, size = [], 0
        run.append(piece)
        size += nbytes
    yield b"".join(run) if len(run) > 1 else run[0]


# ---------------------------------------------------------------------- both ends


def say_last(transport: asyncio.Transport) -> None:
    """End the direction to the far side. It may have reset the connection just now, which nobody else would hear of
    while nothing is read."""
    try:
        transport.write_eof()
    except OSError:
        transport.abort()


def proved(transport: asyncio.BaseTransport) -> Mapping[str, Iterable[bytes]]:
    """What the handshake of a connection has proved, by the names of security/names.py."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if secured is None:
        return {"transport_security_type": [b"insecure"]}
    der = secured.getpeercert(binary_form=True)
    uris, common_name = names_in(secured.getpeercert() or {})
    found = {
        "transport_security_type": [b"ssl"],
        "ssl_tls_version": [(secured.version() or "").encode()],
        "peer_uri": [uri.encode() for uri in uris],
        "x509_common_name": [common_name.encode()],
    }
    return found if der is None else {**found, "x509_pem_cert": [ssl.DER_cert_to_PEM_cert(der).encode()]}


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Where a connection comes from, such as `ipv4:10.0.0.7:40312`."""
    host, port, *_ = transport.get_extra_info("peername") or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def prepare(transport: asyncio.Transport) -> None:
    """What every connection is set to."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # asyncio sets it only where the socket was made with the number of its protocol, which no accepted one was
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
    transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)


async def connect(address: str, tls: Tls | None = None) -> FramedWire:
    """A connection for a link to the broker at `address`. Raises `Unreachable` if there is none to be had."""
    host, port = parse_address(address)
    name = host.strip("[]")
    wire = FramedWire()
    try:
        async with asyncio.timeout(CONNECT_S if tls is None else HANDSHAKE_TIMEOUT_MS / 1000):
            await asyncio.get_running_loop().create_connection(
                lambda: wire, name, port, ssl=None if tls is None else tls(), server_hostname=name if tls else None
            )
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"broker at {address} cannot be reached: {error or 'no answer'}") from error
    return wire
