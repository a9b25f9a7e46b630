"""Connections to brokers through one address: an HTTP CONNECT tunnel, such as `tritonmq proxy`.

    Producer(brokers, via="gateway:7490")

Without `via` the environment's TRITONMQ_VIA counts. The tunnel resolves the brokers' names and moves bytes: TLS is
between this client and the broker, whose certificate is checked under the broker's own name.

gRPC is told so by two options of a channel, and not by `grpc.http_proxy`: with that one it leaves the tunnel out
wherever the environment's `no_proxy` has a word that fits the broker's name.

What a broken tunnel is told as: here the tunnel is named, and what to do about it. A broker is named only where the
tunnel has said that it does not reach that broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import time
from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Any, Final

from mq_client.errors import InvalidSetting, TritonMQError, Unreachable
from mq_protocol.addresses import parse_address

VARIABLE: Final = "TRITONMQ_VIA"

HEAD_BYTES_MAX: Final = 4 << 10
"""Of a tunnel's answer to a request for a connection."""

PROBE_S: Final = 2.0
"""For so long a tunnel is looked at that does not do its work. `tritonmq proxy` gives up a broker sooner."""

ADDRESSES_MAX: Final = 4
"""So many of a host's addresses are tried on an event loop."""

TUNNEL: Final = "the tunnel at "
"""So begins what is said of one."""

_SHOWN_MAX: Final = 40
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})[ \r]")
_GRPC_STATUS: Final = re.compile(r"HTTP proxy returned response code ([1-9][0-9]{2})")
_NOT_CONNECTED: Final = ("Failed to connect to remote host", "lookup error", "DNS resolution failed")
_HOW_SET: Final = f"--via, {VARIABLE}, via= or Spark's option via"


def checked_via(text: object) -> str:
    """`HOST:PORT` of a tunnel as it was given; empty: none. Raises `InvalidSetting`."""
    if not isinstance(text, str):
        raise InvalidSetting(f"via={text!r} is no text: give the tunnel's address as HOST:PORT")
    via = text.strip()
    if not via:
        return ""
    try:
        _, port = parse_address(via)
    except InvalidSetting as error:
        raise InvalidSetting(f"via: {error}; it is the address of an HTTP CONNECT tunnel") from None
    if port == 0:
        raise InvalidSetting(f"via: {via} has port 0: give the port that the tunnel listens on")
    return via


def given_via(via: str | None) -> str:
    """That, or what the environment says; empty: brokers are reached directly. Raises `InvalidSetting`."""
    return checked_via(os.environ.get(VARIABLE, "") if via is None else via)


Option = tuple[str, int | str]


def target(address: str, via: str, options: Sequence[tuple[str, int]]) -> tuple[str, list[Option]]:
    """What gRPC dials for the broker at `address`, and the options of that channel."""
    if not via:
        return address, list(options)
    # The authority is the broker's: its certificate is checked for that name.
    return via, [*options, ("grpc.http_connect_server", address), ("grpc.default_authority", address)]


def shown(address: str, via: str) -> str:
    """A broker's address in an error."""
    return f"{address} through the tunnel at {via}" if via else address


class What(Enum):
    """What is wrong."""

    DEAD = auto()  # nobody listens
    SILENT = auto()  # somebody listens, and has not answered
    FULL = auto()  # it takes no more connections
    REFUSED = auto()  # it does not want to reach that address
    OTHER = auto()  # it is no tunnel
    BROKER = auto()  # it is one, and does not reach the broker


class TunnelFault(OSError):
    """No connection came about, and why: told of the tunnel."""

    def __init__(self, what: What, text: str) -> None:
        super().__init__(text)
        self.what = what
        self.text = text

    @property
    def is_brokers(self) -> bool:
        """Whether the tunnel does its work, and has said that it does not reach the broker."""
        return self.what is What.BROKER

    @property
    def is_of_all(self) -> bool:
        """Whether nobody can be reached through it now."""
        return self.what in (What.DEAD, What.SILENT, What.FULL)

    def __str__(self) -> str:
        return self.text


def connect(address: str, via: str, timeout_s: float) -> socket.socket:
    """A connection to the broker at `HOST:PORT`, which blocks. Raises `OSError`; with a tunnel `TunnelFault`."""
    if not via:
        host, port = parse_address(address)
        return socket.create_connection((host.strip("[]"), port), timeout=timeout_s)
    until = time.monotonic() + timeout_s
    connection = _connected(via, timeout_s)
    try:
        connection.sendall(_request(address))
        _check_answer(_head(connection, until), address, via)
    except TunnelFault:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise _no_answer(error, address, via) from None
    connection.settimeout(max(until - time.monotonic(), 0.001))
    return connection


async def connect_on_loop(address: str, via: str, timeout_s: float) -> socket.socket:
    """The same on an event loop, without a thread; the socket does not block."""
    if not via:
        return await _dialled(address, timeout_s)
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    with contextlib.ExitStack() as unless_connected:
        try:
            connection = unless_connected.enter_context(await _dialled(via, timeout_s))
        except OSError as error:
            raise _not_reached(error, via) from None
        try:
            async with asyncio.timeout_at(until):
                await loop.sock_sendall(connection, _request(address))
                head = bytearray()
                while _goes_on(head):
                    piece = await loop.sock_recv(connection, HEAD_BYTES_MAX)
                    if not piece:
                        break
                    head += piece
            _check_answer(_some(head), address, via)
        except TunnelFault:
            raise
        except OSError as error:
            raise _no_answer(error, address, via) from None
        unless_connected.pop_all()
    return connection


async def _dialled(address: str, timeout_s: float) -> socket.socket:
    """A connection to one of the addresses that the host has, as `socket.create_connection` makes it: each is given
    that time. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    host, port = parse_address(address)
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    failed: OSError = ConnectionError("the host has no address")
    for family, _, _, _, where in found[:ADDRESSES_MAX]:
        try:
            async with asyncio.timeout(timeout_s):
                return await _dialled_one(family, where)
        except OSError as error:
            failed = error
    raise failed


async def _dialled_one(family: int, where: Any) -> socket.socket:
    with contextlib.ExitStack() as unless_connected:
        connection = unless_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, where)
        unless_connected.pop_all()
        return connection


def _request(address: str) -> bytes:
    return f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode("ascii")


def _connected(via: str, timeout_s: float) -> socket.socket:
    host, port = parse_address(via)
    try:
        return socket.create_connection((host.strip("[]"), port), timeout=timeout_s)
    except OSError as error:
        raise _not_reached(error, via) from None


def _not_reached(error: OSError, via: str) -> TunnelFault:
    what = What.SILENT if isinstance(error, TimeoutError) else What.DEAD
    why = "it does not answer" if what is What.SILENT else _words(error)
    return TunnelFault(what, f"{TUNNEL}{via} cannot be reached: {why}. {_see(via)}")


def _no_answer(error: OSError, address: str, via: str) -> TunnelFault:
    if isinstance(error, TimeoutError):
        return TunnelFault(What.SILENT, _silent(address, via))
    return TunnelFault(What.OTHER, _none_there(via, f"it ended the connection ({_words(error)})"))


def _head(connection: socket.socket, until: float) -> bytes:
    """Of the answer, with the empty line that ends it. Brokers do not speak before they are spoken to, so nothing comes
    behind it."""
    head = bytearray()
    while _goes_on(head):
        connection.settimeout(max(until - time.monotonic(), 0.001))
        piece = connection.recv(HEAD_BYTES_MAX)
        if not piece:
            break
        head += piece
    return _some(head)


def _goes_on(head: bytearray) -> bool:
    """Whether more of an answer is to come."""
    if len(head) > HEAD_BYTES_MAX and b"\r\n\r\n" not in head:
        raise ConnectionError("its answer does not end")
    return b"\r\n\r\n" not in head and b"HTTP/1.".startswith(bytes(head[:7]))


def _some(head: bytearray) -> bytes:
    if not head:
        raise ConnectionError("without an answer")
    return bytes(head)


def _check_answer(head: bytes, address: str, via: str) -> None:
    found = _STATUS.match(head)
    if found is None:
        raise TunnelFault(What.OTHER, _none_there(via, f"it answered {head[:_SHOWN_MAX]!r}"))
    status = int(found[1])
    if status != 200:
        raise _of_status(status, address, via)
    if not head.endswith(b"\r\n\r\n"):
        raise TunnelFault(What.OTHER, _none_there(via, "it speaks before the broker is spoken to"))


def _of_status(status: int, address: str, via: str) -> TunnelFault:
    """What an answer other than 200 means."""
    if status == 403:
        return TunnelFault(
            What.REFUSED,
            f"{TUNNEL}{via} refuses {address}: to it that is no address of a broker. Bootstrap addresses must be "
            "those that brokers advertise (`tritonmq cluster status` shows them), and the tunnel's --bootstrap names "
            "the same cluster. For clients with tokens the tunnel needs a token of its own (`tritonmq proxy "
            "--token-file`), and for those with certificates a certificate",
        )
    if status == 407:
        text = f"{TUNNEL}{via} wants a password, and this client sends none: use one without"
        return TunnelFault(What.OTHER, text)
    if status in (502, 504):
        text = f"{TUNNEL}{via} does not reach the broker at {address}: is that broker alive?"
        return TunnelFault(What.BROKER, text)
    if status in (429, 503):
        return TunnelFault(
            What.FULL,
            f"{TUNNEL}{via} takes no more connections now (HTTP {status}): start another one, or raise its "
            "--connections-max",
        )
    return TunnelFault(What.OTHER, _none_there(via, f"it refused to connect {address} with HTTP {status}"))


def _silent(address: str, via: str) -> str:
    return (
        f"{TUNNEL}{via} is silent: something listens there, and has not answered the request for {address}. See "
        f"whether it is an HTTP CONNECT tunnel (`tritonmq proxy`), and whether it has stopped"
    )


def _none_there(via: str, what: str) -> str:
    return (
        f"{TUNNEL}{via} is none that speaks HTTP CONNECT: {what}. Give the address of `tritonmq proxy`, or of a proxy "
        f"that allows CONNECT ({_HOW_SET})"
    )


def _see(via: str) -> str:
    return f"Start it (`tritonmq proxy --listen {via} --bootstrap …`), or correct its address ({_HOW_SET})"


def _words(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host" if error.errno == socket.EAI_NONAME else f"host not found ({error.strerror})"
    return (error.strerror or str(error)).lower()


def fault(address: str, via: str, timeout_s: float = PROBE_S) -> TunnelFault | None:
    """Tried once: why the broker at `address` cannot be reached through the tunnel; None if it can."""
    try:
        connect(address, via, timeout_s).close()
    except TunnelFault as found:
        return found
    return None


def is_tunnel(address: str, timeout_s: float) -> bool:
    """Whether something listens there that answers a request for a connection as a tunnel does."""
    found = fault(address, address, timeout_s)
    return found is None or found.what in (What.REFUSED, What.FULL, What.BROKER)


def fault_of_all(addresses: Collection[str], via: str, *, silence: bool = True) -> str | None:
    """Why none of the brokers can be reached, where the tunnel is to blame for it; else None. Takes `PROBE_S` at most:
    where the tunnel is silent, the others are not tried. `silence`: that it is silent counts; else half a second is
    enough."""
    until = time.monotonic() + (PROBE_S if silence else PROBE_S / 4)
    found: list[str] = []
    for address in addresses:
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        one = fault(address, via, left_s)
        if one is None or one.is_brokers or (one.what is What.SILENT and not silence):
            return None
        found.append(one.text)
    return "; ".join(dict.fromkeys(found)) or None


def named(error: TritonMQError, address: str, via: str) -> TritonMQError:
    """What gRPC says of a connection that did not come about, as what it means: all that it dials is the tunnel."""
    if not isinstance(error, Unreachable):
        return error
    text = str(error)
    if refused := _GRPC_STATUS.search(text):
        return Unreachable(_of_status(int(refused[1]), address, via).text)
    if any(each in text for each in _NOT_CONNECTED):
        why = text.rsplit(": ", 1)[-1].strip("[]").lower()
        return Unreachable(f"{TUNNEL}{via} cannot be reached: {why}. {_see(via)}")
    return error
