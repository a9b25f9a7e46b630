"""Errors across gRPC: a `TritonMQError` becomes a status with the error beside it, and comes back as an equal exception.

The status is for people and for tools that know only gRPC; the trailing metadata `tritonmq-error-bin` carries the whole error.
"""

from __future__ import annotations

import urllib.parse
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from mq_protocol import errors
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import ERROR_STATUS_BYTES_MAX

ERROR_METADATA: Final = "tritonmq-error-bin"

_UNENCODED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


async def abort(context: aio.ServicerContext[Any, Any], error: TritonMQError) -> NoReturn:
    """End the call with the error. Never returns: gRPC raises."""
    wire = errors.to_wire(error)
    await context.abort(
        grpc.StatusCode[error.grpc_status],
        _details(wire.message),
        trailing_metadata=((ERROR_METADATA, wire.SerializeToString()),),
    )
    raise AssertionError("gRPC's abort returned")


def _details(text: str) -> str:
    """The beginning of the text that fits the status as gRPC writes it, percent-encoded."""
    bytes_max = ERROR_STATUS_BYTES_MAX
    while len(urllib.parse.quote(short := errors.shortened(text, bytes_max), safe=_UNENCODED)) > ERROR_STATUS_BYTES_MAX:
        bytes_max = bytes_max * 2 // 3
    return short


def from_call(error: aio.AioRpcError, address: str) -> TritonMQError:
    """The exception that the far side raised; where it said nothing (nobody there, cut off, too late), what that means here."""
    metadata: Any = error.trailing_metadata()  # pairs: the stubs call it something that cannot be iterated
    for key, value in metadata or ():
        if key == ERROR_METADATA:
            message = pb.Error()
            try:
                message.ParseFromString(value)
            except DecodeError:
                break
            return errors.from_wire(message)
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.OutcomeUnknown(f"broker at {address} did not answer in time: ask again")
        case grpc.StatusCode.UNIMPLEMENTED:
            return errors.InvalidRequest(f"broker at {address} does not know this request: it runs another version")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return errors.Unreachable(f"broker at {address} cannot be reached ({error.details()}): ask again")
        case code:
            return errors.InternalError(f"broker at {address} failed with {code.name}: {error.details()}")
