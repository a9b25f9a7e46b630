"""To which broker a call goes that a proxy passes on, and how long it waits for that broker.

A call goes to the broker that the client names, as at any broker that passes on (forwarding.py). Where none is named,
or that one cannot be reached, it goes to the leader of the first partition that it is about. While there is none, the
request is held. A call that is about no partition goes to any broker.

- **Held** is what has not been sent to anybody: the request of a unary call, or the first ones of a stream. What comes
  behind them waits in TCP. So nothing is sent twice, and the order is the client's. A unary call that a leader has
  refused because it does not lead is held as well.
- **What a broker has been sent** is not held. If it dies, the client is told so, and sends again under the same UUID.
- **Bounded**: by `Holding`, and by the time in which the client wants its answer. Beyond it the client is refused, as
  by a broker.
- **Rules that change by a call are in force here once it is answered**, as at the broker that has changed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from mq_broker.broker.forwarding import Forwarding
from mq_broker.broker.metadata.brokers import Cluster
from mq_broker.broker.proxy.fan_out import FanOut
from mq_broker.broker.proxy.holding import Holding, Turn
from mq_broker.broker.proxy.leaders import Leaders
from mq_broker.broker.runtime.memory import Held
from mq_broker.rpc.call import Call
from mq_broker.rpc.callers import caller
from mq_broker.rpc.service import RefusedBatch, Send
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.rights import RIGHTS, Kind, Operation
from mq_protocol.errors import CoordinationUnavailable, NotLeader, Unreachable
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.methods import Method
from mq_protocol.wire.call import Said

ANY: Final = -1
"""As a broker that is meant: the client has named none, or this process."""

GONE: Final = -2
"""The client has named one that is not there."""

FIRST_MAX: Final = 16
"""Requests of a stream among which the one is that names a partition."""

_SUBSCRIBES: Final = "Subscribe"
_ABOUT_RULES: Final = frozenset(
    name
    for name, row in RIGHTS.items()
    if any(need.kind is Kind.CLUSTER and need.operation is Operation.ACLS for need in row.needs)
)
"""Methods that change rights, tokens, quotas or what is revoked, and those that ask for them: a broker that is asked
reads them anew, and clients rely on that."""

Place = tuple[str, int]
T = TypeVar("T")


def place_of(method: Method, request: Said) -> Place | None:
    """The first partition that the request names; None if it names none, or any broker may be asked. The gate has read
    the request before."""
    if not method.led:
        return None
    if method.request is pb.ProduceRequest:
        header = pb.ProduceHeader.FromString(request.body)
        return header.topic, header.partition
    return _place(method.request.FromString(request.body))


def _place(message: Any) -> Place | None:
    fields = message.DESCRIPTOR.fields_by_name
    if "topic" in fields and "partition" in fields:
        return message.topic, message.partition
    for name in ("partitions", "positions", "spans", "sessions"):
        first = next(iter(getattr(message, name)), None) if name in fields else None
        if first is not None:
            if isinstance(first, int):
                return message.topic, first
            return (message.topic, first.partition) if name == "spans" else _place(first)
    return _place(message.open) if "open" in fields and message.HasField("open") else None


class Routing:
    """Is the `Forwarder` (rpc/service.py) of a proxy: every call goes to another process."""

    def __init__(
        self,
        cluster: Cluster,
        forwarding: Forwarding,
        leaders: Leaders,
        holding: Holding,
        held: Held,
        read_rules: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._read_rules = read_rules
        self._forwarding = forwarding
        self._leaders = leaders
        self._holding = holding
        self._fan_out = FanOut(self, forwarding, held)

    def to(self, call: Call) -> int:
        """The broker that a call is meant for, `ANY` or `GONE`. Raises `InvalidRequest`."""
        try:
            return self._forwarding.to(call) or ANY
        except Unreachable:
            return GONE

    async def ask(self, to: int, method: Method, request: Said, deadline: float) -> Said:
        """As `Forwarder.ask`."""

        async def asked(target: int) -> Said:
            return await self._forwarding.ask(target, method, request, deadline)

        answer = await self._led(to, method, request, deadline - asyncio.get_running_loop().time(), asked)
        if method.name in _ABOUT_RULES:
            with contextlib.suppress(CoordinationUnavailable):  # it is done all the same, and read here a little later
                await self._read_rules()
        return answer

    async def answers(self, to: int, method: Method, request: Said, left_s: float | None, send: Send[Said]) -> None:
        """As `Forwarder.answers`."""
        clock = asyncio.get_running_loop().time
        end = None if left_s is None else clock() + left_s
        begun = False

        async def first(answer: Said) -> None:
            nonlocal begun
            begun = True
            await send(answer)

        async def asked(target: int) -> None:
            left = None if end is None else max(0.001, end - clock())
            await self._forwarding.answers(target, method, request, left, first)

        await self._led(to, method, request, left_s, asked, lambda: not begun)

    async def converse(
        self,
        to: int,
        method: Method,
        requests: AsyncIterator[Said | RefusedBatch],
        left_s: float | None,
        send: Send[Said],
    ) -> None:
        """As `Forwarder.converse`."""
        first: list[Said | RefusedBatch] = []
        place = None
        # A client that names a broker opens another stream at the next leader while this one would be held. If the
        # older one came last, the leader would end the newer one for it
        may_hold = method.led and (to == ANY or not method.reopened)
        if method.name == _SUBSCRIBES or (may_hold and not await self._reaches(to)):
            async for request in requests:
                first.append(request)
                if isinstance(request, RefusedBatch):  # it is answered without a leader, before more is said
                    break
                place = place_of(method, request)
                if place is not None or len(first) == FIRST_MAX:
                    break
        in_order = _chained(first, requests)
        if method.name == _SUBSCRIBES and _shares(first):
            await self._fan_out.converse(to, in_order, send)
            return
        size = sum(request.nbytes for request in first if isinstance(request, Said))
        with self.turn(size, _patience(method, first, left_s)) as turn:
            target = await self.found(to, place, turn)
        await self._forwarding.converse(target, method, in_order, left_s, send)

    async def close(self) -> None:
        """End what is shared."""
        await self._fan_out.close()

    # ------------------------------------------------------------------ where to

    def turn(self, size: int, left_s: float | None) -> Turn:
        """Of a request of so many bytes, for which the client waits so long (None: for ever)."""
        allowed = REQUEST_TIMEOUT_MS / 1000
        left_s = allowed if left_s is None else min(left_s, allowed)
        return Turn(self._holding, size, asyncio.get_running_loop().time() + left_s)

    async def _led(
        self,
        to: int,
        method: Method,
        request: Said,
        left_s: float | None,
        ask: Callable[[int], Awaitable[T]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """What a broker answers that leads, if the request is about a partition."""
        place = None if await self._reaches(to) else place_of(method, request)
        with self.turn(request.nbytes, left_s) as turn:
            while True:
                target = await self.found(to, place, turn)
                turn.sent()
                try:
                    return await ask(target)
                except NotLeader:
                    place = place or place_of(method, request)
                    if place is None or not may_repeat() or not await turn.wait():
                        raise
                to = ANY

    async def found(self, to: int, place: Place | None, turn: Turn) -> int:
        """The broker to which a request goes, held until there is one. Raises `Unreachable` and `NotLeader`."""
        if await self._reaches(to):
            return to
        if place is None:
            return await self._unled(to)
        while True:
            leader = await self._leaders.of(*place)
            if leader is None:  # another broker says what is wrong
                return await self._unled(ANY)
            if await self._reaches(leader):
                return leader
            if not await turn.wait():
                raise NotLeader(
                    f"partition {place[0]}-{place[1]} has no leader that proxy {self._cluster.me.broker} reaches: ask "
                    "for the metadata again"
                )

    async def _unled(self, to: int) -> int:
        """The broker for a call that is about no partition. One that the client names is asked all the same: what it
        does, no other does."""
        if to == GONE:
            raise Unreachable("no broker of this cluster serves clients there now: ask for the metadata again")
        if to > 0:
            return to
        mine = caller().encode()  # each client has one of its own, as long as that is there
        for broker in sorted(self._cluster.brokers, key=lambda broker: zlib.crc32(mine + broker.to_bytes(4, "big"))):
            if await self._reaches(broker):
                return broker
        raise Unreachable(f"proxy {self._cluster.me.broker} reaches no broker of its cluster: see whether they run")

    async def _reaches(self, to: int | None) -> bool:
        return to is not None and to > 0 and await self._forwarding.reaches(to)


def _patience(method: Method, first: list[Said | RefusedBatch], left_s: float | None) -> float | None:
    """How long the client waits for what it has said first. Batches say that themselves."""
    last = first[-1] if first else None
    if method.request is not pb.ProduceRequest or not isinstance(last, Said):
        return left_s
    said_s = pb.ProduceHeader.FromString(last.body).timeout_ms / 1000
    return min(said_s, left_s or said_s)


def _shares(first: list[Said | RefusedBatch]) -> bool:
    """Whether it is a stream of a subscriber that is in no group."""
    last = first[-1] if first else None
    if not isinstance(last, Said):
        return False
    said = pb.SubscribeRequest.FromString(last.body)
    return said.HasField("open") and not (said.open.group or said.open.broadcast)


async def _chained(
    first: list[Said | RefusedBatch], rest: AsyncIterator[Said | RefusedBatch]
) -> AsyncIterator[Said | RefusedBatch]:
    while first:
        yield first.pop(0)
    async for request in rest:
        yield request
