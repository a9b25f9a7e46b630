"""What both ends of the wire must agree on beside the messages: options of connections, errors, and what a gRPC status
means.

An error travels whole in the trailing metadata of a call; the status beside it is for people, and for tools that know
only gRPC. A call that ends without one was ended by gRPC itself, and `from_call` says what that means: the same for
clients and for brokers. Statuses are named here, not imported: nothing of this needs gRPC.
"""

from __future__ import annotations

import urllib.parse
from typing import Any, Final

from google.protobuf.message import DecodeError

from mq_protocol import errors, limits
from mq_protocol import mq_pb2 as pb
from mq_protocol.error_messages import from_wire, to_wire
from mq_protocol.errors import InternalError, InvalidRequest, OutcomeUnknown, TritonMQError, Unreachable

Option = tuple[str, int]

MESSAGE_OPTIONS: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    # A machine that vanished, and a process that is stopped, are noticed in 15 s; a killed process closes its
    # connection at once.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),  # for the far machine's TCP
    ("grpc.http2.ping_timeout_ms", 5_000),  # for the far process, which gRPC would wait a minute for
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Of every connection, at both ends."""

CHANNEL_OPTIONS: Final[tuple[Option, ...]] = (
    *MESSAGE_OPTIONS,
    # Each channel is a connection of its own: a failed one must not make the next wait out gRPC's shared back-off.
    ("grpc.use_local_subchannel_pool", 1),
    # Back-off is ours: gRPC's own would make a restarted broker wait minutes to be seen.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long an attempt may take: a busy broker greets late
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),  # brokers are reached directly, whatever the environment says
)
"""Of whoever dials, client or broker."""

ERROR_METADATA: Final = "tritonmq-error-bin"
"""The trailing metadata that carry the whole error."""


FORWARD_METADATA: Final = "tritonmq-forward"
"""Of a call to a broker that is to pass it on: the broker that is meant, by the address that it advertises."""


_UNENCODED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

_BROKEN: Final = "broker at {address} cannot be reached: {details}"
_LATE: Final = "broker at {address} did not answer in time: ask again"
_UNKNOWN: Final = (
    "broker at {address} does not know this request: it runs another version, or is no TritonMQ broker; "
    "`tritonmq cluster status` shows versions"
)
_TOO_LARGE: Final = "a message to or from the broker at {address} is too large: {details}"
_FAILED: Final = "broker at {address} failed with {status}: {details}"

MEANINGS: Final[dict[str, tuple[type[TritonMQError], str]]] = {
    # Ends of a connection, whatever has caused them. A request may have been heard.
    "UNAVAILABLE": (Unreachable, _BROKEN),
    "CANCELLED": (Unreachable, _BROKEN),
    "INTERNAL": (Unreachable, _BROKEN),
    "UNKNOWN": (Unreachable, _BROKEN),
    "ABORTED": (Unreachable, _BROKEN),
    "DEADLINE_EXCEEDED": (OutcomeUnknown, _LATE),
    "UNIMPLEMENTED": (InvalidRequest, _UNKNOWN),  # refused before anything was done
    # A message is above gRPC's bound. It may be the answer, so the request may have been carried out.
    "RESOURCE_EXHAUSTED": (InternalError, _TOO_LARGE),
    # gRPC makes none of these by itself, and a broker of ours none without its error: something else answers there.
    "OK": (InternalError, _FAILED),
    "INVALID_ARGUMENT": (InternalError, _FAILED),
    "NOT_FOUND": (InternalError, _FAILED),
    "ALREADY_EXISTS": (InternalError, _FAILED),
    "PERMISSION_DENIED": (InternalError, _FAILED),
    "UNAUTHENTICATED": (InternalError, _FAILED),
    "FAILED_PRECONDITION": (InternalError, _FAILED),
    "OUT_OF_RANGE": (InternalError, _FAILED),
    "DATA_LOSS": (InternalError, _FAILED),
}
"""What a status means that comes without an error of ours."""


def from_call(error: Any, address: str) -> TritonMQError:
    """What a failed gRPC call to the broker at `address` means: the error that the far side raised, if it gave one;
    else what its status means. `error`: what gRPC raised, synchronous or not."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            try:
                return from_wire(pb.Error.FromString(value))
            except DecodeError:
                break
    status = error.code().name
    meaning, text = MEANINGS.get(status, (InternalError, _FAILED))
    return meaning(text.format(address=address, status=status, details=error.details()))


def to_call(error: TritonMQError) -> tuple[str, str, tuple[tuple[str, bytes], ...]]:
    """How an error ends a call: the status's name, the text beside it, and the trailing metadata."""
    wire = to_wire(error)
    return error.grpc_status, _details(wire.message), ((ERROR_METADATA, wire.SerializeToString()),)


def _details(text: str) -> str:
    """The beginning of the text that fits the status as gRPC writes it, percent-encoded."""
    bytes_max = limits.ERROR_STATUS_BYTES_MAX
    while (
        len(urllib.parse.quote(short := errors.shortened(text, bytes_max), safe=_UNENCODED))
        > limits.ERROR_STATUS_BYTES_MAX
    ):
        bytes_max = bytes_max * 2 // 3
    return short
