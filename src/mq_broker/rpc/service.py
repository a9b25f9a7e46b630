"""The service that clients call: how its requests are read, and how an answer or an error leaves.

What is here is the shape of the conversation. Which methods there are is in `mq_protocol/methods.py`. What a request
does is decided by the object given to `handlers`. It has a method for each row, named in snake case, which raises
`TritonMQError`:

    async def delete_topic(self, request: pb.DeleteTopicRequest, deadline: float) -> pb.DeleteTopicResponse
    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None
    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None

`deadline` is a time of the running loop's clock, in seconds. Messages that have a header and a payload come and go as
`Envelope`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar, assert_never

import grpc
from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc import pacing
from mq_broker.rpc.bounds import Bounded
from mq_broker.rpc.bounds import parse as parse  # of answers: requests are bounded
from mq_broker.rpc.gate import Door, Gate, Grant, UnderWay
from mq_broker.rpc.measuring import Measured
from mq_broker.rpc.pacing import Present, charge
from mq_broker.rpc.status import abort, let_go
from mq_broker.security.authority import Asker
from mq_broker.security.quotas import Meter
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import InternalError, InvalidRequest, Overloaded, TritonMQError
from mq_protocol.limits import PRODUCE_HEADER_BYTES_MAX, REQUEST_TIMEOUT_MS, STREAMS_MAX
from mq_protocol.methods import BROKER, Kind, Method
from mq_protocol.quotas import Quota

log = logging.getLogger(__name__)

EOF: Final = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

T = TypeVar("T")

Send: TypeAlias = Callable[[T], Awaitable[None]]
"""Writes one answer of a stream; waits while the receiver is slow (flow control)."""

ProduceRequests: TypeAlias = AsyncIterator[Envelope[pb.ProduceHeader]]
Batches: TypeAlias = Envelope[pb.BatchesHeader]


UNARY: Final = BROKER.unary
path: Final = BROKER.path


class Coding(NamedTuple):
    """How the messages of a call are, as its connection gives and takes them: bytes of gRPC, or messages of a stream
    port."""

    encode: Callable[[Envelope[Any]], Any]
    plain: Callable[[bytes], Any]  # of a message without payload, given its serialized form
    decode: Callable[[Any, type[pb.ProduceHeader], int], Envelope[pb.ProduceHeader]]
    body: Callable[[Any], bytes]  # serialized, of a message without payload
    size: Callable[[Any], int]
    place: Callable[[Any, Present], AbstractContextManager[None]]  # around a call that is admitted
    name: str


def _as_it_is(data: bytes) -> bytes:
    return data


def _while_it_lasts(_context: object, present: Present) -> Present:
    return present


BY_GRPC: Final = Coding(encode, _as_it_is, decode, _as_it_is, len, _while_it_lasts, "grpc")


class Incoming(Generic[T]):
    """The requests of one stream, in order; ends when the client has said its last."""

    def __init__(self, context: aio.ServicerContext[Any, Any], decoder: Callable[[Any], T]) -> None:
        self._context = context
        self._decoder = decoder

    def __aiter__(self) -> Incoming[T]:
        return self

    async def __anext__(self) -> T:
        data = await self._context.read()
        if data is EOF:
            raise StopAsyncIteration
        return self._decoder(data)


class _Produced(Incoming[T]):
    """The same of batches. Nothing is read while those that were are not paid for: what comes waits in TCP."""

    def __init__(
        self,
        context: aio.ServicerContext[Any, Any],
        decoder: Callable[[Any], T],
        meter: Meter | None,
        size: Callable[[Any], int],
    ) -> None:
        super().__init__(context, decoder)
        self._meter = meter
        self._size = size

    async def __anext__(self) -> T:
        await pacing.room(self._meter, Quota.PRODUCE)
        data = await self._context.read()
        if data is EOF:
            raise StopAsyncIteration
        charge(self._meter, Quota.PRODUCE, self._size(data))
        return self._decoder(data)


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


Conversation: TypeAlias = Callable[[aio.ServicerContext[Any, Any]], Awaitable[None]]


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


class Entrance(Protocol):
    """What stands before a method whose requests are single: the gate before clients', a proof before brokers'."""

    def greet(self, context: aio.ServicerContext[Any, Any]) -> Asker:
        """Who asks: before the request is looked at. Raises to refuse it."""

    async def admit(self, asker: Asker, request: Message) -> dict[Grant, None]:
        """The rights that the request uses. Raises to refuse it."""

    def lasts(self, request: Message) -> bool:
        """Whether it may be under way for long, and is to end when its rights are taken away."""

    def under_way(self, asker: Asker) -> UnderWay:
        """Around what lasts."""

    def present(self, asker: Asker) -> Present:
        """Around the call, while which it is counted. Raises `QuotaExceeded`."""

    async def hold_back(self, asker: Asker, request: Message) -> None:
        """Whoever is above a quota. Raises `Overloaded`."""


class Forwarder(Protocol):
    """Passes on what is meant for another broker, once the gate has let it through (broker/forwarding.py). Requests and
    answers go as the bytes that came. Each raises `TritonMQError`: what the other broker raised, or why it is not
    reached."""

    def to(self, context: aio.ServicerContext[Any, Any]) -> int:
        """The broker that a call is meant for; 0: this one."""

    async def ask(self, to: int, method: Method, data: bytes, deadline: float) -> bytes:
        """One request, one answer."""

    async def answers(self, to: int, method: Method, data: bytes, left_s: float | None, send: Send[bytes]) -> None:
        """One request, a stream of answers. `left_s`: how long the client waits; None: for ever."""

    async def converse(
        self,
        to: int,
        method: Method,
        requests: AsyncIterator[bytes | RefusedBatch],
        left_s: float | None,
        send: Send[bytes],
    ) -> None:
        """A stream both ways. A batch that the gate has refused is answered here."""


def unary_handler(
    method: Method, service: object, entrance: Entrance, forwarder: Forwarder | None = None
) -> grpc.RpcMethodHandler[Any, Any]:
    """One request, one answer, given by the method of `service`, or by the broker that it is meant for."""
    answer: Callable[[Message, float], Awaitable[Message]] = getattr(service, method.attribute)
    name = method.name
    bounded = Bounded(name, method.request)

    async def answered(request: Message, data: bytes, to: int, deadline: float) -> bytes:
        if to and forwarder is not None:
            return await forwarder.ask(to, method, data, deadline)
        return (await answer(request, deadline)).SerializeToString()

    async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
        asker = entrance.greet(context)
        to = 0 if forwarder is None else forwarder.to(context)
        remaining = context.time_remaining()
        allowed = REQUEST_TIMEOUT_MS / 1000
        deadline = asyncio.get_running_loop().time() + (allowed if remaining is None else min(remaining, allowed))
        with Measured(name), entrance.present(asker):
            request = await bounded.read(data)
            await entrance.hold_back(asker, request)
            grants = await entrance.admit(asker, request)
            if not entrance.lasts(request):
                return await answered(request, data, to, deadline)
            with entrance.under_way(asker) as call:  # such as a lease: its records count for the quota
                call.grants.update(grants)
                lent = await answered(request, data, to, deadline)
            charge(asker.meter, Quota.FETCH, len(lent))
            return lent

    return grpc.unary_unary_rpc_method_handler(edge(name, handle))


def _conversation_handler(name: str, hold: Conversation) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(_requests: object, context: aio.ServicerContext[Any, Any]) -> None:
        with Measured(name, stream=True):
            await hold(context)

    return grpc.stream_stream_rpc_method_handler(edge(name, handle))


def answers_handler(name: str, answer: Callable[[bytes, Any], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    """One request, a stream of answers."""

    async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        with Measured(name, stream=True):
            await answer(data, context)

    return grpc.unary_stream_rpc_method_handler(edge(name, handle))


def sender(
    context: aio.ServicerContext[Any, Any], method: Method, meter: Meter | None, coding: Coding = BY_GRPC
) -> Send[Any]:
    """What writes to the stream. Bytes of records count for the quota of whoever is sent them."""
    if not _is_envelope(method.response):

        async def send(message: Message) -> None:
            await context.write(coding.plain(message.SerializeToString()))

        return send

    async def send_records(message: Envelope[Any]) -> None:
        data = message.encoded(coding) if isinstance(message, SharedBatches) else coding.encode(message)
        charge(meter, Quota.FETCH, coding.size(data))
        await context.write(data)

    return send_records


def _sender_of_bytes(context: aio.ServicerContext[Any, Any], method: Method, meter: Meter | None) -> Send[bytes]:
    """The same of answers that another broker has given."""
    has_records = _is_envelope(method.response)

    async def send(data: bytes) -> None:
        if has_records:
            charge(meter, Quota.FETCH, len(data))
        await context.write(data)

    return send


def _is_envelope(kind: type[Message]) -> bool:
    """Whether a message carries a payload, which does not pass through protobuf."""
    return [each.name for each in kind.DESCRIPTOR.fields] == ["header", "payload"]


class SharedBatches(Envelope[pb.BatchesHeader]):
    """Batches that several streams are sent: encoded once for all that go the same way, not changed afterwards."""

    def encoded(self, coding: Coding) -> Any:
        """As `coding.encode` has it."""
        found = self.__dict__.get(coding.name)
        if found is None:
            found = self.__dict__[coding.name] = coding.encode(self)
        return found


class RefusedBatch(Envelope[pb.ProduceHeader]):
    """A batch that the gate refuses, without its payload: it is answered in its turn, with `error`."""

    error: TritonMQError


def _refused(header: pb.ProduceHeader, error: TritonMQError) -> RefusedBatch:
    refused = RefusedBatch(header)
    refused.error = error
    return refused


def handlers(
    service: object, gate: Gate, room: Room | None = None, forwarder: Forwarder | None = None
) -> grpc.GenericRpcHandler[Any, Any]:
    """The Broker service, answered by `service`: each of its methods behind the gate. `forwarder` None: all that is
    asked is asked of this broker."""
    room = room or Room()
    methods = {}
    for name, method in BROKER.methods.items():
        door = gate.door(method)
        match method.kind:
            case Kind.UNARY:
                methods[name] = unary_handler(method, service, door, forwarder)
            case Kind.ANSWERS:
                given = _answering(method, getattr(service, method.attribute), door, room, forwarder=forwarder)
                methods[name] = answers_handler(name, given)
            case Kind.CONVERSATION:
                held = _conversing(method, getattr(service, method.attribute), door, room, forwarder=forwarder)
                methods[name] = _conversation_handler(name, held)
            case _:
                assert_never(method.kind)
    return grpc.method_handlers_generic_handler(BROKER.name, methods)


def conversations(
    service: object, gate: Gate, room: Room, coding: Coding, methods: Iterable[str]
) -> dict[str, Conversation]:
    """The same of some streams, for a connection that is not gRPC's: each reads what it is asked from the context,
    counts as a stream, and raises what ends it."""
    return {name: _counted(name, _held(BROKER.methods[name], service, gate, room, coding)) for name in methods}


def _held(method: Method, service: object, gate: Gate, room: Room, coding: Coding) -> Conversation:
    serve, door = getattr(service, method.attribute), gate.door(method)
    if method.kind is Kind.CONVERSATION:
        return _conversing(method, serve, door, room, coding)
    give = _answering(method, serve, door, room, coding)

    async def hold(context: aio.ServicerContext[Any, Any]) -> None:
        await give(None, context)

    return hold


def _counted(name: str, hold: Conversation) -> Conversation:
    async def counted(context: aio.ServicerContext[Any, Any]) -> None:
        with Measured(name, stream=True):
            await hold(context)

    return counted


def _answering(
    method: Method,
    answer: Callable[..., Awaitable[None]],
    door: Door,
    room: Room,
    coding: Coding = BY_GRPC,
    forwarder: Forwarder | None = None,
) -> Callable[[bytes | None, Any], Awaitable[None]]:
    """The request is None where it is still to be read from the context."""
    bounded: Bounded[Any] = Bounded(method.name, method.request)
    alone = coding is not BY_GRPC

    async def give(data: bytes | None, context: aio.ServicerContext[Any, Any]) -> None:
        asker = door.greet(context)
        if data is None:
            door.check_any(asker)
        to = 0 if forwarder is None else forwarder.to(context)
        with door.under_way(asker) as call, room, coding.place(context, door.present(asker, stream=True, alone=alone)):
            if data is None:
                said: Any = await context.read()
                if said is EOF:
                    raise InvalidRequest(f"{method.name} was asked nothing: one request comes before the end")
                data = coding.body(said)
            request = await bounded.read(data)
            await door.hold_back(asker, request)
            call.grants.update(await door.admit(asker, request))
            if to and forwarder is not None:
                send = _sender_of_bytes(context, method, asker.meter)
                await forwarder.answers(to, method, data, context.time_remaining(), send)
            else:
                await answer(request, sender(context, method, asker.meter, coding))

    return give


def _conversing(
    method: Method,
    converse: Callable[..., Awaitable[None]],
    door: Door,
    room: Room,
    coding: Coding = BY_GRPC,
    forwarder: Forwarder | None = None,
) -> Conversation:
    bounded: Bounded[Any] = Bounded(method.name, method.request)
    alone = coding is not BY_GRPC

    async def admitted(messages: Incoming[bytes], call: UnderWay, *, as_they_came: bool) -> AsyncIterator[Any]:
        async for data in messages:
            request = await bounded.read(data)
            call.grants.update(await door.admit(call.asker, request))
            yield data if as_they_came else request

    async def hold(context: aio.ServicerContext[Any, Any]) -> None:
        asker = door.greet(context)
        door.check_any(asker)
        to = 0 if forwarder is None else forwarder.to(context)
        with door.under_way(asker) as call, room, coding.place(context, door.present(asker, stream=True, alone=alone)):
            await door.hold_back(asker, None)
            # Produce is the only one whose requests have a payload: what a batch may have is its topic's to say.
            if _is_envelope(method.request):
                read = _batches(door, call, coding, as_they_came=bool(to))
                requests: Any = _Produced(context, read, asker.meter, coding.size)
            else:
                requests = admitted(Incoming(context, coding.body), call, as_they_came=bool(to))
            if to and forwarder is not None:
                send = _sender_of_bytes(context, method, asker.meter)
                await forwarder.converse(to, method, requests, context.time_remaining(), send)
            else:
                await converse(requests, sender(context, method, asker.meter, coding))

    return hold


def _batches(door: Door, call: UnderWay, coding: Coding, *, as_they_came: bool) -> Callable[[Any], Any]:
    """Reads the batches of one stream, each judged by itself. `as_they_came`: gives their bytes, for another broker."""

    def read(data: Any) -> Any:
        batch = coding.decode(data, pb.ProduceHeader, PRODUCE_HEADER_BYTES_MAX)
        error = door.admit_batch(call, batch.header)
        if error is not None:
            return _refused(batch.header, error)
        return data if as_they_came else batch

    return read
