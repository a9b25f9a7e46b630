"""Errors across gRPC, as `mq_protocol/transport.py` has them: how a call of ours ends with one."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from mq_protocol.errors import TritonMQError
from mq_protocol.transport import to_call

_CHAIN_MAX: Final = 100
"""Errors that came one from another. They may be a ring."""


async def abort(context: aio.ServicerContext[Any, Any], error: TritonMQError) -> NoReturn:
    """End the call with the error. Never returns: gRPC raises."""
    status, details, metadata = to_call(error)
    await context.abort(grpc.StatusCode[status], details, trailing_metadata=metadata)
    raise AssertionError("gRPC's abort returned")


def let_go(error: BaseException) -> None:
    """Of the frames through which the error went, and those that it came from: they hold the request. Frames are not
    cleared, since one of them may be that of a task that goes on."""
    found: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
