"""The door for other languages: gRPC's calls as this project's. Nothing else of a broker imports gRPC, and this is
imported where such a port is opened.

Every method is held as a stream, of one request where it is a single one: gRPC reads no request then before it is
asked to, so a call is judged before anything of it is received. On the wire it is the same.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from grpc import aio

from mq_broker.rpc.call import Call, Conversation, let_go
from mq_broker.rpc.flight import READ_ONLY
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.service import is_envelope
from mq_broker.rpc.wire.certificates import Certificates
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InternalError, InvalidRequest, InvalidSetting, TritonMQError, shortened
from mq_protocol.limits import (
    CALL_METADATA_BYTES_MAX,
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_AGE_GRACE_MS,
    CONNECTION_IDLE_MS,
    CONNECTIONS_MAX,
    ERROR_STATUS_BYTES_MAX,
    HANDSHAKE_TIMEOUT_MS,
    MESSAGE_BYTES_MAX,
    PRODUCE_HEADER_BYTES_MAX,
    STREAMS_PER_CONNECTION_MAX,
)
from mq_protocol.methods import BROKER, Method
from mq_protocol.wire.call import Kind, Said
from mq_protocol.wire.envelope import Buffer, halves, joined
from mq_protocol.wire.error_messages import to_wire
from mq_protocol.wire.flight import SERVICE as FLIGHT

log = logging.getLogger(__name__)

EOF: Final = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

_AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "bearer "
_NO_TOKEN: Final = " "  # noqa: S105 - it is none
"""Said for several tokens, and for what is none: who verifies tokens refuses it as any other (entering.py)."""
_EMPTY: Final = memoryview(b"")


ERROR_METADATA: Final = "tritonmq-error-bin"
"""The trailing metadata of a call that carry its whole error. The status beside it is for people, and for tools that
know only gRPC."""

FORWARD_METADATA: Final = "tritonmq-forward"
"""Of a call to a broker that is to pass it on: the broker that is meant, by the address that it advertises."""

_UNENCODED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

MESSAGE_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A machine that vanished, and a process that is stopped, are noticed in 15 s; a killed process closes its
    # connection at once.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # for the far machine's TCP
    ("grpc.http2.ping_timeout_ms", 5_000),  # for the far process, which gRPC would wait a minute for
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),  # two brokers on one port: the second is told, not given half of the clients
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients may keep idle connections alive
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.max_metadata_size", CALL_METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", CALL_METADATA_BYTES_MAX),
)


def client_options(
    message_bytes_max: int = CLIENT_MESSAGE_BYTES_MAX, connections_max: int = CONNECTIONS_MAX
) -> tuple[tuple[str, int], ...]:
    """Of the port for clients, which anybody may reach."""
    return (
        *(option for option in SERVER_OPTIONS if option[0] != "grpc.max_receive_message_length"),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
    )


def aged(connection_age_ms: int) -> tuple[tuple[str, int], ...]:
    """Of a port for clients over TLS: a connection ends after about an hour, so that a certificate which has expired
    meanwhile is of no use for longer. Who had it open connects again, as after a connection that was lost."""
    return (
        ("grpc.max_connection_age_ms", connection_age_ms),
        ("grpc.max_connection_age_grace_ms", min(CONNECTION_AGE_GRACE_MS, connection_age_ms)),
    )


def listen(
    address: str,
    option: str = "--listen",
    options: Iterable[tuple[str, int]] = SERVER_OPTIONS,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[aio.Server, int]:
    """A server bound to `host:port` (port 0: a free one), without services and not yet started, and its port. Without
    `credentials` it serves in plain text.

    Raises `InvalidSetting` when the port cannot be had, naming the option that gives another.
    """
    server = aio.server(options=list(options))
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        port = 0
    if port == 0:
        raise InvalidSetting(
            f"cannot listen on {address}: it is taken, or no address of this machine; choose another {option}"
        )
    return server, port


def server_credentials(certificates: Certificates, *, demanded: bool) -> grpc.ServerCredentials:
    """For a port that serves none but those who show a certificate; each handshake takes what is in force. Unless it is
    `demanded`, nobody is asked for one: gRPC cannot leave it to the client."""

    def given() -> grpc.ServerCertificateConfiguration:
        pem = certificates.pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)

    generation = certificates.generation

    def newer() -> grpc.ServerCertificateConfiguration | None:  # in a thread of gRPC's
        nonlocal generation
        if generation == certificates.generation:
            return None
        generation = certificates.generation
        return given()

    # The stubs do not know that None means the same as before
    return grpc.dynamic_ssl_server_credentials(given(), newer, demanded)  # type: ignore[arg-type]


class GrpcCall:
    """Owns nothing: a context of gRPC, for one call of the method of that name. `method` None: one of another service
    than the broker's."""

    is_by_grpc = True

    def __init__(self, context: aio.ServicerContext[Any, Any], name: str, method: Method | None) -> None:
        self._context = context
        self._asks_envelopes = method is not None and is_envelope(method.request)
        self._answers_envelopes = method is not None and is_envelope(method.response)
        self.opened = opened_by(name, context.invocation_metadata() or ())

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._context.auth_context()

    def peer(self) -> str:
        return self._context.peer()

    def left_s(self) -> float | None:
        return self._context.time_remaining()

    def admit(self, present: Present) -> AbstractContextManager[object]:
        return present

    async def read(self) -> Said | None:
        data = await self._context.read()
        if data is EOF:
            return None
        if not self._asks_envelopes:
            return Said(Kind.MESSAGE, data, _EMPTY)
        return Said(Kind.MESSAGE, *halves(data, PRODUCE_HEADER_BYTES_MAX))

    async def write(self, body: bytes, parts: Sequence[Buffer] = ()) -> None:
        await self._context.write(joined(body, parts) if self._answers_envelopes else body)


def opened_by(method: str, metadata: Iterable[tuple[str, Any]]) -> pb.CallOpen:
    """What a call's metadata say, as it is said when a call is opened. Raises `InvalidRequest` for two brokers that are
    meant. What brokers alone say is not heard here."""
    opened = pb.CallOpen(method=method)
    for key, value in metadata:
        if key == FORWARD_METADATA:
            if opened.forward:
                raise InvalidRequest(f"a call has {FORWARD_METADATA} more than once: name one broker")
            opened.forward = str(value)
        elif key == _AUTHORIZATION:
            opened.token = _NO_TOKEN if opened.token else _token_of(value)
    return opened


def _token_of(value: object) -> str:
    if not isinstance(value, str) or value[: len(_SCHEME)].lower() != _SCHEME:
        return _NO_TOKEN
    return value[len(_SCHEME) :] or _NO_TOKEN


Enter: TypeAlias = Callable[[Call, str], Awaitable[None]]
"""Stands before every method: given the call and the method's name, it says whose the call is, or raises to refuse
it (entering.py)."""


class GrpcHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves the methods of a service by `conversations`, each by its name. `service`: its name on the wire."""

    def __init__(self, service: str, conversations: Mapping[str, Conversation], enter: Enter) -> None:
        self._handlers = {f"/{service}/{name}": _handler(name, hold, enter) for name, hold in conversations.items()}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(details.method)


def _handler(name: str, hold: Conversation, enter: Enter) -> grpc.RpcMethodHandler[Any, Any]:
    method = BROKER.methods.get(name)

    async def handle(_requests: object, context: aio.ServicerContext[Any, Any]) -> None:
        call = GrpcCall(context, name, method)
        await enter(call, name)
        await hold(call)

    return grpc.stream_stream_rpc_method_handler(edge(name, handle))


def edge(method: str, handle: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """The handler that gRPC is given: the edge of the process. Whatever is raised is answered, and the message of the
    call is free then.

    gRPC keeps in the context what a call was aborted with. What was raised holds the frames through which it went, and
    they hold the message and the context: a circle that only the collector of cycles would find, after hundreds of such
    calls. So neither is held here when that is raised.
    """

    async def guarded(message: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await handle(message, context)
        except Exception as error:  # noqa: BLE001 - _fail logs and answers, nothing is swallowed
            del message
            try:
                await _fail(context, method, error)
            except BaseException as aborted:  # noqa: BLE001 - raised below
                ended = aborted
                let_go(ended)
        del context
        try:
            raise ended
        finally:
            del ended

    return guarded


async def _fail(context: aio.ServicerContext[Any, Any], method: str, error: Exception) -> NoReturn:
    """Answer with the error. One that is not ours is a defect: logged with its traceback, told as INTERNAL, never
    swallowed."""
    if isinstance(error, aio.AbortError):
        raise error
    try:
        if isinstance(error, aio.InternalError):  # something could not be written to this client
            raise error
        if isinstance(error, TritonMQError):
            let_go(error)
            await abort(context, error)
        log.error("%s failed", method, exc_info=error)
        let_go(error)
        await abort(
            context, InternalError(f"{method} failed in the broker ({type(error).__name__}): see the broker's log")
        )
    except aio.InternalError as gone:  # the client has gone, or gRPC has ended the call
        log.debug("%s: an answer could not be written: %s", method, gone)
        raise asyncio.CancelledError from gone  # else gRPC logs a page for each


async def abort(context: aio.ServicerContext[Any, Any], error: TritonMQError) -> NoReturn:
    """End the call with the error. Never returns: gRPC raises."""
    wire = to_wire(error)
    metadata = ((ERROR_METADATA, wire.SerializeToString()),)
    status = grpc.StatusCode[error.grpc_status]
    await context.abort(status, shown_details(wire.message), trailing_metadata=metadata)
    raise AssertionError("gRPC's abort returned")


def shown_details(text: str) -> str:
    """The beginning of the text that fits the status as gRPC writes it, percent-encoded."""
    bytes_max = ERROR_STATUS_BYTES_MAX
    while len(urllib.parse.quote(short := shortened(text, bytes_max), safe=_UNENCODED)) > ERROR_STATUS_BYTES_MAX:
        bytes_max = bytes_max * 2 // 3
    return short


def flight_refused() -> grpc.GenericRpcHandler[Any, Any]:
    """Flight's methods that are not served. Nothing of what is said is looked at."""
    names = "PollFlightInfo", "DoAction", "ListActions", "Handshake", "DoPut", "DoExchange"
    return grpc.method_handlers_generic_handler(
        FLIGHT, {name: grpc.stream_stream_rpc_method_handler(_refuse) for name in names}
    )


async def _refuse(_said: object, context: aio.ServicerContext[Any, Any]) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, READ_ONLY)
    raise AssertionError("gRPC's abort returned")
