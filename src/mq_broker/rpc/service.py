"""How the requests of a call are read, judged and answered, and how an answer leaves.

What is here is the shape of the conversation. Which methods there are is in `mq_protocol/methods.py`. What a request
does is decided by the object given to `served`. It has a method for each row, named in snake case, which raises
`TritonMQError`:

    async def delete_topic(self, request: pb.DeleteTopicRequest, deadline: float) -> pb.DeleteTopicResponse
    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None
    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None

`deadline` is a time of the running loop's clock, in seconds. Messages that have a header and a payload come and go as
`Envelope`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, assert_never

from google.protobuf.message import Message

from mq_broker.measured import IN_FLIGHT, REQUEST_SECONDS, REQUESTS, STREAMS
from mq_broker.rpc import pacing
from mq_broker.rpc.bounds import Bounded
from mq_broker.rpc.bounds import parse as parse  # of answers: requests are bounded
from mq_broker.rpc.call import Call, Conversation
from mq_broker.rpc.gate import Door, Gate, Grant, UnderWay
from mq_broker.rpc.pacing import Present, charge
from mq_broker.security.authority import Asker
from mq_broker.security.quotas import Meter
from mq_process.measures import Counts
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.errors import InvalidRequest, Overloaded, RequestTooLarge, TritonMQError
from mq_protocol.limits import PRODUCE_HEADER_BYTES_MAX, REQUEST_TIMEOUT_MS, STREAMS_MAX
from mq_protocol.methods import BROKER, Kind, Method
from mq_protocol.wire.call import Said, parsed
from mq_protocol.wire.envelope import Envelope
from mq_protocol.wire.error_messages import code_of

T = TypeVar("T")

Send: TypeAlias = Callable[[T], Awaitable[None]]
"""Writes one answer of a stream; waits while the receiver is slow (flow control)."""

ProduceRequests: TypeAlias = AsyncIterator[Envelope[pb.ProduceHeader]]
Batches: TypeAlias = Envelope[pb.BatchesHeader]

UNARY: Final = BROKER.unary
path: Final = BROKER.path


class Room:
    """Owns the number of streams that clients may have open at this broker."""

    def __init__(self, most: int | None = None) -> None:
        self._most = STREAMS_MAX if most is None else most
        self._open = 0

    def __enter__(self) -> None:
        if self._open >= self._most:
            raise Overloaded(
                f"this broker has {self._most} streams open, as many as it serves: close some, or ask again; share one "
                "client among threads instead of making one for each"
            )
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1


class Entrance(Protocol):
    """What stands before a method: the gate before clients', a proof before brokers'."""

    def greet(self, call: Call) -> Asker:
        """Who asks: before the request is looked at. Raises to refuse it."""

    async def admit(self, asker: Asker, request: Message) -> dict[Grant, None]:
        """The rights that the request uses. Raises to refuse it."""

    def present(self, asker: Asker, *, stream: bool = False) -> Present:
        """Around the call, while which it is counted. Raises `QuotaExceeded`."""

    async def hold_back(self, asker: Asker) -> None:
        """Whoever is above a quota. Raises `Overloaded`."""


class Forwarder(Protocol):
    """Passes on what is meant for another broker, once the gate has let it through (broker/forwarding.py). Requests and
    answers go as they came. Each raises `TritonMQError`: what the other broker raised, or why it is not reached."""

    def to(self, call: Call) -> int:
        """The broker that a call is meant for; 0: this one."""

    async def ask(self, to: int, method: Method, request: Said, deadline: float) -> Said:
        """One request, one answer."""

    async def answers(self, to: int, method: Method, request: Said, left_s: float | None, send: Send[Said]) -> None:
        """One request, a stream of answers. `left_s`: how long the client waits; None: for ever."""

    async def converse(
        self,
        to: int,
        method: Method,
        requests: AsyncIterator[Said | RefusedBatch],
        left_s: float | None,
        send: Send[Said],
    ) -> None:
        """A stream both ways. A batch that the gate has refused is answered here."""


class SharedBatches(Envelope[pb.BatchesHeader]):
    """Batches that several streams are sent: serialized once for all, not changed afterwards."""

    def serialized(self) -> bytes:
        """The header."""
        found = self.__dict__.get("_serialized")
        if found is None:
            found = self.__dict__["_serialized"] = self.header.SerializeToString()
        return bytes(found)


class RefusedBatch(Envelope[pb.ProduceHeader]):
    """A batch that the gate refuses, without its payload: it is answered in its turn, with `error`."""

    error: TritonMQError


def served(
    service: object, gate: Gate, room: Room | None = None, forwarder: Forwarder | None = None
) -> dict[str, Conversation]:
    """What answers a call of each method of the Broker service: `service`, behind the gate. `forwarder` None: all that
    is asked is asked of this broker."""
    room = room or Room()
    held: dict[str, Conversation] = {}
    for name, method in BROKER.methods.items():
        serve, door = getattr(service, method.attribute), gate.door(method)
        match method.kind:
            case Kind.UNARY:
                held[name] = asked(method, serve, door, forwarder)
            case Kind.ANSWERS:
                held[name] = _counted(name, _answering(method, serve, door, room, forwarder))
            case Kind.CONVERSATION:
                held[name] = _counted(name, _conversing(method, serve, door, room, forwarder))
            case _:
                assert_never(method.kind)
    return held


def asked(
    method: Method,
    answer: Callable[[Message, float], Awaitable[Message]],
    entrance: Entrance,
    forwarder: Forwarder | None = None,
) -> Conversation:
    """One request, one answer, given by `answer`, or by the broker that it is meant for."""
    name = method.name
    bounded = Bounded(name, method.request)

    async def answered(said: Said, request: Message, to: int, deadline: float) -> bytes:
        if to and forwarder is not None:
            return (await forwarder.ask(to, method, said, deadline)).body
        return (await answer(request, deadline)).SerializeToString()

    async def judged(call: Call, asker: Asker, to: int, deadline: float) -> bytes:
        said = await _only_request(call, name)
        request = await bounded.read(said.body)
        await entrance.hold_back(asker)
        await entrance.admit(asker, request)
        return await answered(said, request, to, deadline)

    async def hold(call: Call) -> None:
        asker = entrance.greet(call)
        to = 0 if forwarder is None else forwarder.to(call)
        left_s, allowed_s = call.left_s(), REQUEST_TIMEOUT_MS / 1000
        deadline = asyncio.get_running_loop().time() + (allowed_s if left_s is None else min(left_s, allowed_s))
        with Measured(name), call.admit(entrance.present(asker)):
            answer = await judged(call, asker, to, deadline)
        await call.write(answer)

    return hold


def _counted(name: str, hold: Conversation) -> Conversation:
    async def counted(call: Call) -> None:
        with Measured(name, stream=True):
            await hold(call)

    return counted


def _answering(
    method: Method,
    answer: Callable[..., Awaitable[None]],
    door: Door,
    room: Room,
    forwarder: Forwarder | None,
) -> Conversation:
    """One request, a stream of answers."""
    bounded: Bounded[Any] = Bounded(method.name, method.request)

    async def give(call: Call) -> None:
        asker = door.greet(call)
        door.check_any(asker)
        to = 0 if forwarder is None else forwarder.to(call)
        with door.under_way(asker) as lasting, room, _place(call, door, asker):
            said = await _only_request(call, method.name)
            request = await bounded.read(said.body)
            await door.hold_back(asker)
            lasting.grants.update(await door.admit(asker, request))
            if to and forwarder is not None:
                await forwarder.answers(to, method, said, call.left_s(), _passing_on(call, method, asker.meter))
            else:
                await answer(request, sender(call, method, asker.meter))

    return give


def _conversing(
    method: Method,
    converse: Callable[..., Awaitable[None]],
    door: Door,
    room: Room,
    forwarder: Forwarder | None,
) -> Conversation:
    """A stream of requests, a stream of answers."""
    bounded: Bounded[Any] = Bounded(method.name, method.request)

    async def admitted(call: Call, lasting: UnderWay, *, as_they_came: bool) -> AsyncIterator[Any]:
        while (said := await call.read()) is not None:
            request = await bounded.read(_without_payload(said).body)
            lasting.grants.update(await door.admit(lasting.asker, request))
            yield said if as_they_came else request

    async def hold(call: Call) -> None:
        asker = door.greet(call)
        door.check_any(asker)
        to = 0 if forwarder is None else forwarder.to(call)
        with door.under_way(asker) as lasting, room, _place(call, door, asker):
            await door.hold_back(asker)
            # Produce is the only one whose requests have a payload: what a batch may have is its topic's to say.
            read = _batches if is_envelope(method.request) else None
            requests: Any = (
                admitted(call, lasting, as_they_came=bool(to))
                if read is None
                else read(call, door, lasting, asker.meter, as_they_came=bool(to))
            )
            if to and forwarder is not None:
                send = _passing_on(call, method, asker.meter)
                await forwarder.converse(to, method, requests, call.left_s(), send)
            else:
                await converse(requests, sender(call, method, asker.meter))

    return hold


async def _batches(
    call: Call, door: Door, lasting: UnderWay, meter: Meter | None, *, as_they_came: bool
) -> AsyncIterator[Any]:
    """The batches of one stream, each judged by itself. Nothing is read while those that were are not paid for: what
    comes waits in TCP. `as_they_came`: for another broker."""
    while True:
        await pacing.room(meter, Quota.PRODUCE)
        said = await call.read()
        if said is None:
            return
        charge(meter, Quota.PRODUCE, said.nbytes)
        if len(said.body) > PRODUCE_HEADER_BYTES_MAX:
            raise RequestTooLarge(
                f"a message's header of {len(said.body)} bytes is above {PRODUCE_HEADER_BYTES_MAX}: only the payload "
                "may be large"
            )
        header = parsed(said.body, pb.ProduceHeader)
        error = door.admit_batch(lasting, header)
        if error is not None:
            refused = RefusedBatch(header)
            refused.error = error
            yield refused
        elif as_they_came:
            yield said
        else:
            yield Envelope(header, (said.payload,) if said.payload else ())


def _place(call: Call, door: Door, asker: Asker) -> AbstractContextManager[object]:
    return call.admit(door.present(asker, stream=True))


async def _only_request(call: Call, name: str) -> Said:
    said = await call.read()
    if said is None:
        raise InvalidRequest(f"{name} was asked nothing: one request comes before the end")
    return _without_payload(said)


def _without_payload(said: Said) -> Said:
    if said.payload:
        raise InvalidRequest("a request with a payload: this method has none")
    return said


def sender(call: Call, method: Method, meter: Meter | None) -> Send[Any]:
    """What writes to the stream. Bytes of records count for the quota of whoever is sent them."""
    if not is_envelope(method.response):

        async def send(message: Message) -> None:
            await call.write(message.SerializeToString())

        return send

    async def send_records(message: Envelope[Any]) -> None:
        body = message.serialized() if isinstance(message, SharedBatches) else message.header.SerializeToString()
        charge(meter, Quota.FETCH, len(body) + sum(memoryview(part).nbytes for part in message.parts))
        await call.write(body, message.parts)

    return send_records


def _passing_on(call: Call, method: Method, meter: Meter | None) -> Send[Said]:
    """The same of answers that another broker has given."""
    has_records = is_envelope(method.response)

    async def send(answer: Said) -> None:
        if has_records:
            charge(meter, Quota.FETCH, answer.nbytes)
        await call.write(answer.body, (answer.payload,) if answer.payload else ())

    return send


def is_envelope(kind: type[Message]) -> bool:
    """Whether a message carries a payload, which does not pass through protobuf."""
    return [each.name for each in kind.DESCRIPTOR.fields] == ["header", "payload"]


class Measured:
    """Counts requests: how many, how they ended, how long they took, how many there are now. Around one request or
    stream, with what it raises inside. A stream lasts as long as its client likes: only how long requests take is
    told."""

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
