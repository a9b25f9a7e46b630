"""Counts requests: how many, how they ended, how long they took, how many there are now."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from mq_broker.measured import IN_FLIGHT, REQUEST_SECONDS, REQUESTS, STREAMS
from mq_process.measures import Counts
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import TritonMQError
from mq_protocol.wire.error_messages import code_of


class Measured:
    """Around one request or stream, with what it raises inside. A stream lasts as long as its client likes: only how
    long requests take is told."""

    __slots__ = ("_began", "_method", "_now")

    def __init__(self, method: str, *, stream: bool = False) -> None:
        self._method = method
        self._now: Counts = STREAMS if stream else IN_FLIGHT

    def __enter__(self) -> None:
        self._now.add(self._method)
        self._began = time.perf_counter()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._now.add(self._method, n=-1)
        if self._now is IN_FLIGHT:
            REQUEST_SECONDS.add(time.perf_counter() - self._began, self._method)
        REQUESTS.add(self._method, _code(error))


def _code(error: BaseException | None) -> str:
    """A closed list, whatever went wrong: a label must not be what a stranger makes up."""
    if error is None:
        return "OK"
    if isinstance(error, TritonMQError):
        return pb.ErrorCode.Name(code_of(error))
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"
