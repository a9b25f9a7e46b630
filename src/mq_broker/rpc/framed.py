"""Links on TCP, or on TLS above it: the link port, and the connections to other brokers' link ports.

What is on the wire is in mq_protocol/framing.py. What is received is heard within the callback that received it, so
nothing is queued, and a broker that is busy is not sent to: what it has not read stays in TCP. What is sent waits in
the connection up to `WRITE_BUFFER_BYTES`, then in the bounded buffer of the peer (outgoing.py).

A connection whose far machine is gone ends when what was sent is not acknowledged for `SILENCE_MS`; one whose far
process has stopped, by its beats (broker/host/contacts.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from mq_broker.security.names import ANONYMOUS, Principal, of_certificate
from mq_protocol import mq_pb2 as pb
from mq_protocol.addresses import origin, parse_address
from mq_protocol.envelope import Buffer, Envelope
from mq_protocol.error_messages import to_wire
from mq_protocol.errors import (
    IncompatibleVersion,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    NotAuthenticated,
    PeerRefused,
    RequestTooLarge,
    TritonMQError,
    Unreachable,
    shortened,
)
from mq_protocol.framing import Receiver, encode, preamble
from mq_protocol.limits import HANDSHAKE_TIMEOUT_MS, LINK_HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from mq_protocol.pem import names_in

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
_TLS_HANDSHAKE: Final = b"\x16"
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
    """What the handshake of a connection has proved, as gRPC says it (security/names.py)."""
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
    """Where a connection comes from, as gRPC writes it."""
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
    """A connection to the link port at `address`. Raises `Unreachable` if there is none to be had."""
    host, port = parse_address(address)
    name = host.strip("[]")
    wire = FramedWire()
    try:
        async with asyncio.timeout(CONNECT_S if tls is None else HANDSHAKE_TIMEOUT_MS / 1000):
            await asyncio.get_running_loop().create_connection(
                lambda: wire, name, port, ssl=None if tls is None else tls(), server_hostname=name if tls else None
            )
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"link port {address} cannot be reached: {error or 'no answer'}") from error
    return wire


def bind(address: str, option: str) -> tuple[socket.socket, int]:
    """A socket that listens on `host:port` (port 0: a free one), and its port. Raises `InvalidSetting`, naming the
    option."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, where = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise InvalidSetting(
            f"cannot listen on {address}: it is taken, or no address of this machine; choose another {option}"
        ) from error
    listener.setblocking(False)
    return listener, listener.getsockname()[1]


Converse: TypeAlias = Callable[[FramedWire, Callable[[], None]], Awaitable[None]]
"""Holds a link over a connection until it ends. The second is to be called once it is proved who is there."""


class Accepting(ABC):
    """Owns a port, and a task for each connection that was made to it, of which `connections_max` are held at a time.
    `per_second`: so many are accepted at most; others wait in TCP."""

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        *,
        connections_max: float = math.inf,
        per_second: float = math.inf,
        strangers_max: int | None = None,
    ) -> None:
        self._listener = listener
        self._name = name
        self._connections_max = connections_max
        self._strangers_max = STRANGERS_MAX if strangers_max is None else strangers_max
        self._pause_s = 1 / per_second
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = Strangers()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept(), name=f"accept {self._name}s")
        self._accepting.add_done_callback(self._accepts_no_more)

    def _accepts_no_more(self, accepting: asyncio.Task[None]) -> None:
        if not accepting.cancelled() and (error := accepting.exception()) is not None:
            log.critical("no more %ss are accepted: restart this broker", self._name, exc_info=error)

    async def stop(self) -> None:
        """No connection is made or held any more."""
        if self._accepting is not None:
            # First, and awaited: a task that is cancelled before it has begun would leave its socket open
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    @abstractmethod
    async def _serve(self, connection: socket.socket) -> None:
        """One connection, from its handshake to its end. Calls `_known` once it is proved who is there."""

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("a %s cannot be accepted: %s", self._name, error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._tasks) >= self._connections_max:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._strangers.add(task, origin(str(peer[0])))
            task.add_done_callback(self._known)
            if len(self._strangers) > self._strangers_max:
                self._strangers.one_too_many().cancel()

    def _known(self, task: asyncio.Task[None]) -> None:
        self._strangers.discard(task)


class Strangers:
    """Owns which connections have not proved who they are, by address, each with its oldest first."""

    def __init__(self) -> None:
        self._address_of: dict[asyncio.Task[None], str] = {}
        self._at: dict[str, dict[asyncio.Task[None], None]] = {}

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, task: asyncio.Task[None], address: str) -> None:
        self._address_of[task] = address
        self._at.setdefault(address, {})[task] = None

    def discard(self, task: asyncio.Task[None]) -> None:
        address = self._address_of.pop(task, None)
        if address is not None:
            del self._at[address][task]
            if not self._at[address]:
                del self._at[address]

    def one_too_many(self) -> asyncio.Task[None]:
        """The oldest of the address that has most. There are so few that all are looked at."""
        most = max(self._at.values(), key=len)
        return next(iter(most))


class LinkServer(Accepting):
    """The link port. `also_plain`: while a cluster is being secured, brokers that speak no TLS yet are linked too."""

    def __init__(
        self, listener: socket.socket, converse: Converse, tls: Tls | None = None, *, also_plain: bool = False
    ) -> None:
        super().__init__(listener, "link")
        self._converse = converse
        self._tls = tls
        self._also_plain = also_plain

    async def _serve(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        wire = FramedWire()
        error: TritonMQError | None = None
        try:
            plain = self._also_plain and not await _begins_with_tls(connection)
            await begin(wire, connection, None if plain else self._tls)
            await self._converse(wire, partial(self._known, task))
        except Unreachable as gone:
            log.debug("a link has ended: %s", gone)
        except TritonMQError as refused:
            error = refused
        except Exception as failure:
            log.exception("a link failed")
            error = InternalError(f"a link failed in the broker ({type(failure).__name__}): see the broker's log")
        finally:
            wire.close(error)
            del task, error  # else what was raised holds this frame, and this frame what was raised


async def _begins_with_tls(connection: socket.socket) -> bool:
    """Whether whoever connected begins with a handshake of TLS. Nothing is taken from the connection. Raises
    `Unreachable` if nothing comes. Whatever is raised, it is closed then."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_MS / 1000):
            await _readable(connection)
        return connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
    except OSError as error:
        connection.close()
        raise Unreachable(f"a connection ended before it began: {error or 'nothing came'}") from error
    except asyncio.CancelledError:
        connection.close()
        raise


async def _readable(connection: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


async def begin(wire: asyncio.BaseProtocol, connection: socket.socket, tls: Tls | None) -> None:
    """The handshake of an accepted connection. Raises `Unreachable` if whoever connected has gone, or speaks no TLS."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: wire,
            connection,
            ssl=None if tls is None else tls(),
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_MS / 1000,
        )
    except OSError as error:
        traceback.clear_frames(error.__traceback__)  # they hold the error: 320 KiB until the collector of cycles comes
        raise Unreachable(f"a connection ended before it began: {error}") from error
    except asyncio.CancelledError as error:
        traceback.clear_frames(error.__traceback__)
        raise
