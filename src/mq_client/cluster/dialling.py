"""How a connection to a broker is made by a thread that waits for it, and why one cannot be made.

A process that is forked has none of its parent's connections: each makes its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from mq_client.cluster.client import Client
from mq_client.cluster.credentials import Credentials, current
from mq_client.errors import InvalidRequest, InvalidSetting, OutcomeUnknown, TritonMQError, Unreachable
from mq_client.security import Security
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import WRONG_HOST, authorities_context, examine, hosts_in, read, read_authorities, verdict
from mq_protocol.addresses import parse_address
from mq_protocol.limits import MESSAGE_BYTES_MAX
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST
from mq_protocol.wire.call import GREETING_S, PREAMBLE, CallMachine, Side, error_of
from mq_protocol.wire.envelope import Buffer

CONNECT_S: Final = 2.0
"""How long a connection may take to be made, in plain text with the first word. Over TLS it has `GREETING_S`: a busy
broker greets late."""

_PROBE_S: Final = 1.0
_TIMEOUT_MS_MAX: Final = (1 << 32) - 1
_PLAIN_TEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"})
_OTHER_PORT: Final = (
    "something else than a broker answers there, so it is another port: a broker's --http, --grpc or --flight, the "
    "console's, or ZooKeeper's. Give the address of the broker's --listen"
)


class Socket(Protocol):
    """A connection, in plain text or over TLS. One thread at a time receives."""

    def recv_into(self, buffer: memoryview) -> int: ...
    def sendall(self, data: Buffer) -> None: ...
    def settimeout(self, seconds: float | None) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class HasFile(Protocol):
    """A connection, as far as the operating system knows of it. -1: it is closed."""

    def fileno(self) -> int: ...


S = TypeVar("S", bound=Socket)

_open: WeakSet[HasFile] = WeakSet()


def note_open(connection: HasFile) -> None:
    """It is this process's alone."""
    _open.add(connection)


def _after_fork() -> None:
    """What the child holds open would not end when the parent closes it. Nothing is said to the broker: what stands for
    a connection in the child leads nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_open):
        if (file := connection.fileno()) >= 0:
            os.dup2(nowhere, file, inheritable=False)
    os.close(nowhere)
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def call_open(
    method: str, address: str, client: Client, credentials: Credentials, timeout_s: float | None = None
) -> pb.CallOpen:
    """What begins a call to the broker at `address`. `timeout_s` None: it ends when the client ends it."""
    return pb.CallOpen(
        method=method,
        protocol=PROTOCOL,
        protocol_oldest=PROTOCOL_OLDEST,
        timeout_ms=0 if timeout_s is None else max(1, min(math.ceil(timeout_s * 1000), _TIMEOUT_MS_MAX)),
        token=credentials.token.reveal() if credentials.token is not None else "",
        forward=address if client.passed_on(address) else "",
    )


def unreachable(shown: str, why: object) -> Unreachable:
    return Unreachable(f"broker at {shown} cannot be reached: {why}")


def late(shown: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"broker at {shown} did not answer in time: ask again")


def by_openssl(connection: socket.socket, tls: ssl.SSLContext, name: str) -> socket.socket:
    """TLS as Python has it."""
    return tls.wrap_socket(connection, server_hostname=name)


def dial(
    address: str,
    client: Client,
    credentials: Credentials,
    wrap: Callable[[socket.socket, ssl.SSLContext, str], S],
    timeout_s: float = math.inf,
) -> tuple[socket.socket | S, CallMachine]:
    """A connection for calls to the broker at `address`, on which both ends have said what they speak. `wrap` makes its
    TLS. Raises `Unreachable`, `IncompatibleVersion`, and what the broker has ended the connection with:
    nothing was asked."""
    dialled, shown = client.dialled(address), client.shown(address)
    tls = credentials.tls
    until = time.monotonic() + min(timeout_s, CONNECT_S if tls is None else max(CONNECT_S, GREETING_S))
    with contextlib.ExitStack() as unless_made:
        try:
            name, port = _parsed(dialled)
            plain = socket.create_connection((name, port), timeout=max(min(timeout_s, CONNECT_S), 0.001))
            unless_made.callback(plain.close)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection: socket.socket | S = plain
            if tls is not None:
                plain.settimeout(_left_s(until))
                connection = wrap(plain, tls, name)
                unless_made.callback(connection.close)
            machine = _greeted(connection, until)
        except (OSError, UnicodeError, InvalidRequest, InvalidSetting) as error:
            client.note_unreachable(dialled)
            raise unreachable(shown, str(error) or "no answer") from error
        unless_made.pop_all()
    note_open(connection)
    return connection, machine


class _Closed(ConnectionError):
    """The far side has ended a connection before its first word. `alert`: TLS says why it has."""

    alert = False


def _greeted(connection: Socket, until: float) -> CallMachine:
    machine = CallMachine(Side.CLIENT, MESSAGE_BYTES_MAX, time.monotonic())
    try:
        connection.sendall(PREAMBLE)
        while not machine.is_greeted:
            connection.settimeout(_left_s(until))
            count = connection.recv_into(machine.buffer())
            if count == 0:
                raise _Closed("it was closed without a word")
            machine.received(count, time.monotonic())
            if (early := machine.next()) is not None:
                raise error_of(early) or ConnectionError("it speaks before it is asked")
    except TimeoutError:
        raise
    except (ssl.SSLError, ConnectionError) as error:
        closed = _Closed(str(error))
        closed.alert = isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")
        raise closed from error
    return machine


def _left_s(until: float) -> float:
    return max(until - time.monotonic(), 0.001)


# ------------------------------------------------------------------ why one cannot be made


def why_none(address: str, client: Client) -> str | None:
    """Tries to make a connection. As `fault` of what came of it."""
    try:
        connection, _ = dial(address, client, current(client.security), by_openssl)
    except TritonMQError as error:
        return fault(error, address, client)
    connection.close()
    return None


def fault(error: TritonMQError, address: str, client: Client) -> str | None:
    """What is wrong with the certificates, or with the kind of the port, that dialling has failed with; None if it may
    pass by itself. Asks once more where the error does not say it, a second for each question."""
    cause, security = error.__cause__, client.security
    try:
        if isinstance(cause, InvalidRequest):
            return _OTHER_PORT
        if isinstance(cause, _Closed):
            if security is None:
                return _of_plain(client.dialled(address))
            return _of_shown(security) if cause.alert else f"{_OTHER_PORT}. Or {_of_shown(security)}"
        if isinstance(cause, ssl.SSLError) and security is not None:
            return _of_tls(cause, client.dialled(address), security)
    except InvalidSetting as unusable:
        return str(unusable)
    except OSError:  # nobody listens, and may again soon
        return None
    return None


def _of_plain(dialled: str) -> str | None:
    """Whether it was plain text that was not understood."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    probe.check_hostname = False
    probe.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed, but that somebody answers in TLS
    try:
        _shake_hands(dialled, probe)
    except ssl.SSLError as error:
        if not (error.reason or "").startswith(("TLSV1", "SSLV3", "TLSV13")):  # not what another end says in TLS
            return None
    return (
        "it speaks TLS, and this client plain text: give the certificates by --certs DIR, TRITONMQ_CERTS, "
        "Security(certs=) or Spark's option certs"
    )


def _of_shown(security: Security) -> str:
    """A broker has looked at what this client shows, and has closed the connection without a word."""
    if security.has_token:
        return "it demands a certificate, and a token was to be shown: give a certificate (--certs, Security(certs=))"
    files = security.files()
    try:
        examine(read(files), server=False)
    except InvalidSetting as error:
        return f"{files.certificate}: {error}"
    return (
        f"the broker does not accept {files.certificate}: an authority signed it that is not in the broker's ca.crt "
        "(`tritonmq cert check` compares them)"
    )


def _of_tls(error: ssl.SSLError, dialled: str, security: Security) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in WRONG_HOST:
            return _of_wrong_host(dialled, security)
        return f"the broker's certificate is not accepted: {verdict(error)} ({_host(dialled)})"
    if error.reason not in _PLAIN_TEXT:
        return f"TLS failed: {error.reason or error}"
    if security.has_token:
        return "it speaks plain text, and a token is sent over TLS alone: use a port with TLS"
    return "it speaks plain text, and this client TLS: use the port with TLS, or leave the certificates out"


def _of_wrong_host(dialled: str, security: Security) -> str:
    """Looks for which hosts the certificate is. An authority that is believed has signed it, and nothing is sent."""
    probe = authorities_context(read_authorities(security.authorities()))
    probe.check_hostname = False
    hosts, host = hosts_in(_shake_hands(dialled, probe)), _host(dialled)
    return (
        f"the broker's certificate is not accepted: it is for another host ({', '.join(hosts) or 'none'}), and not for "
        f"{host}. Use an address that it is for, or make one for this host too: `tritonmq cert create-broker --id N "
        f"--host {host}`, with --host for each of the others"
    )


def _shake_hands(dialled: str, probe: ssl.SSLContext) -> dict[str, Any]:
    """What the broker's certificate says."""
    with (
        socket.create_connection(_parsed(dialled), timeout=_PROBE_S) as plain,
        probe.wrap_socket(plain, server_hostname=_host(dialled)) as secured,
    ):
        return secured.getpeercert() or {}


def _host(address: str) -> str:
    return _parsed(address)[0]


def _parsed(address: str) -> tuple[str, int]:
    """Raises `InvalidSetting` for what a broker has told and is no address."""
    host, port = parse_address(address)
    return host.strip("[]"), port
