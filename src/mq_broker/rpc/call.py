"""One call of a client or another broker, however it came: by the protocol of TritonMQ (streams.py), or by gRPC
(grpc_door.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from mq_protocol import mq_pb2 as pb
from mq_protocol.wire.call import Said
from mq_protocol.wire.envelope import Buffer

if TYPE_CHECKING:
    from mq_broker.rpc.pacing import Present


class Call(Protocol):
    """What answers a call reads from it and writes to it. It raises `Unreachable` once nobody is there any more."""

    @property
    def opened(self) -> pb.CallOpen:
        """What was said when it was opened."""

    @property
    def is_by_grpc(self) -> bool:
        """It came by gRPC, whose connections carry several calls."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the connection has proved (security/names.py)."""

    def peer(self) -> str:
        """Where it comes from, such as `ipv4:10.0.0.7:40312`."""

    def left_s(self) -> float | None:
        """How long the client waits; None: for ever."""

    def admit(self, present: Present) -> AbstractContextManager[object]:
        """Around what is received and answered, once the gate has let the call in. Raises `QuotaExceeded`."""

    async def read(self) -> Said | None:
        """The next request; None once the client has said its last."""

    async def write(self, body: bytes, parts: Sequence[Buffer] = ()) -> None:
        """One answer: a message, or its header with the parts of its payload. Waits while the far side does not
        read."""


Conversation: TypeAlias = Callable[[Call], Awaitable[None]]
"""Answers a call to its end. Raises what ends it."""

_CHAIN_MAX: Final = 100
"""Errors that came one from another. They may be a ring."""


def let_go(error: BaseException) -> None:
    """Of the frames through which the error went, and those that it came from: they hold the request. Frames are not
    cleared, since one of them may be that of a task that goes on."""
    found: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
