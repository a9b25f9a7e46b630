"""Errors across gRPC, as `mq_protocol/transport.py` has them: how a call of ours ends with one."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from grpc import aio

from mq_protocol.errors import TritonMQError
from mq_protocol.transport import to_call


async def abort(context: aio.ServicerContext[Any, Any], error: TritonMQError) -> NoReturn:
    """End the call with the error. Never returns: gRPC raises."""
    status, details, metadata = to_call(error)
    await context.abort(grpc.StatusCode[status], details, trailing_metadata=metadata)
    raise AssertionError("gRPC's abort returned")
