"""What a client in another language makes of a failed gRPC call (docs/protocol.md, "Errors")."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from mq_broker.rpc.grpc_door import ERROR_METADATA
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import InvalidRequest, OutcomeUnknown, TritonMQError, Unreachable
from mq_protocol.wire.error_messages import from_wire

_MEANINGS: dict[str, type[TritonMQError]] = {"DEADLINE_EXCEEDED": OutcomeUnknown, "UNIMPLEMENTED": InvalidRequest}


def from_call(error: Any, address: str) -> TritonMQError:
    """The error that the broker raised, if it gave one; else what the status means."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA:
            try:
                return from_wire(pb.Error.FromString(value))
            except DecodeError:
                break
    status = error.code().name
    return _MEANINGS.get(status, Unreachable)(f"broker at {address}: {status}: {error.details()}")
