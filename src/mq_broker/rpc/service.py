"""The service that clients call: its methods, their messages, and how an answer or an error leaves.

What is here is the shape of the conversation. What a request does is decided by the `BrokerService` given to `handlers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc.bounds import Gate
from mq_broker.rpc.bounds import parse as parse  # of answers: requests go through a gate
from mq_broker.rpc.callers import note_caller
from mq_broker.rpc.status import abort
from mq_protocol import mq_pb2 as pb
from mq_protocol.envelope import Envelope, decode, encode
from mq_protocol.errors import InternalError, Overloaded, TritonMQError
from mq_protocol.limits import PRODUCE_HEADER_BYTES_MAX, REQUEST_TIMEOUT_MS, STREAMS_MAX

log = logging.getLogger(__name__)

SERVICE: Final = "tritonmq.v1.Broker"

EOF: Final = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

T = TypeVar("T")
M = TypeVar("M", bound=Message)

Send: TypeAlias = Callable[[T], Awaitable[None]]
"""Writes one answer of a stream; waits while the receiver is slow (flow control)."""

ProduceRequests: TypeAlias = AsyncIterator[Envelope[pb.ProduceHeader]]
Batches: TypeAlias = Envelope[pb.BatchesHeader]


class BrokerService(Protocol):
    """What a broker answers. `deadline` is a time of the running loop's clock, in seconds; each method raises `TritonMQError`."""

    async def metadata(self, request: pb.MetadataRequest, deadline: float) -> pb.MetadataResponse: ...
    async def create_topic(self, request: pb.CreateTopicRequest, deadline: float) -> pb.CreateTopicResponse: ...
    async def delete_topic(self, request: pb.DeleteTopicRequest, deadline: float) -> pb.DeleteTopicResponse: ...
    async def alter_topic(self, request: pb.AlterTopicRequest, deadline: float) -> pb.AlterTopicResponse: ...
    async def plan_moves(self, request: pb.PlanMovesRequest, deadline: float) -> pb.PlanMovesResponse: ...
    async def start_moves(self, request: pb.StartMovesRequest, deadline: float) -> pb.StartMovesResponse: ...
    async def moves(self, request: pb.MovesRequest, deadline: float) -> pb.MovesResponse: ...
    async def lead(self, request: pb.LeadRequest, deadline: float) -> pb.LeadResponse: ...
    async def recover(self, request: pb.RecoverRequest, deadline: float) -> pb.RecoverResponse: ...
    async def list_offsets(self, request: pb.ListOffsetsRequest, deadline: float) -> pb.ListOffsetsResponse: ...
    async def move_cursors(self, request: pb.MoveCursorsRequest, deadline: float) -> pb.MoveCursorsResponse: ...
    async def groups(self, request: pb.GroupsRequest, deadline: float) -> pb.GroupsResponse: ...
    async def decide(self, request: pb.DecideRequest, deadline: float) -> pb.DecideResponse: ...
    async def transaction_status(self, request: pb.TransactionStatusRequest, deadline: float) -> pb.TransactionStatusResponse: ...
    async def staged(self, request: pb.StagedRequest, deadline: float) -> pb.StagedResponse: ...
    async def transactions(self, request: pb.TransactionsRequest, deadline: float) -> pb.TransactionsResponse: ...
    async def abort_transaction(self, request: pb.AbortTransactionRequest, deadline: float) -> pb.AbortTransactionResponse: ...

    async def produce(self, requests: ProduceRequests, send: Send[pb.ProduceResponse]) -> None: ...
    async def fetch(self, request: pb.FetchRequest, send: Send[Batches]) -> None: ...
    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], send: Send[Batches]) -> None: ...
    async def watch_offsets(self, request: pb.WatchOffsetsRequest, send: Send[pb.WatchOffsetsResponse]) -> None: ...
    async def lock(self, requests: AsyncIterator[pb.LockRequest], send: Send[pb.LockResponse]) -> None: ...


class Unary(NamedTuple):
    """A method with one request and one answer."""

    attribute: str
    request: type[Message]
    response: type[Message]


UNARY: Final[dict[str, Unary]] = {
    "Metadata": Unary("metadata", pb.MetadataRequest, pb.MetadataResponse),
    "CreateTopic": Unary("create_topic", pb.CreateTopicRequest, pb.CreateTopicResponse),
    "DeleteTopic": Unary("delete_topic", pb.DeleteTopicRequest, pb.DeleteTopicResponse),
    "AlterTopic": Unary("alter_topic", pb.AlterTopicRequest, pb.AlterTopicResponse),
    "PlanMoves": Unary("plan_moves", pb.PlanMovesRequest, pb.PlanMovesResponse),
    "StartMoves": Unary("start_moves", pb.StartMovesRequest, pb.StartMovesResponse),
    "Moves": Unary("moves", pb.MovesRequest, pb.MovesResponse),
    "Lead": Unary("lead", pb.LeadRequest, pb.LeadResponse),
    "Recover": Unary("recover", pb.RecoverRequest, pb.RecoverResponse),
    "ListOffsets": Unary("list_offsets", pb.ListOffsetsRequest, pb.ListOffsetsResponse),
    "MoveCursors": Unary("move_cursors", pb.MoveCursorsRequest, pb.MoveCursorsResponse),
    "Groups": Unary("groups", pb.GroupsRequest, pb.GroupsResponse),
    "DeleteGroup": Unary("delete_group", pb.DeleteGroupRequest, pb.DeleteGroupResponse),
    "Purge": Unary("purge", pb.PurgeRequest, pb.PurgeResponse),
    "Decide": Unary("decide", pb.DecideRequest, pb.DecideResponse),
    "TransactionStatus": Unary("transaction_status", pb.TransactionStatusRequest, pb.TransactionStatusResponse),
    "Staged": Unary("staged", pb.StagedRequest, pb.StagedResponse),
    "Transactions": Unary("transactions", pb.TransactionsRequest, pb.TransactionsResponse),
    "AbortTransaction": Unary("abort_transaction", pb.AbortTransactionRequest, pb.AbortTransactionResponse),
}


def path(method: str) -> str:
    """The method's name on the wire."""
    return f"/{SERVICE}/{method}"


class Incoming(Generic[T]):
    """The requests of one stream, in order; ends when the client has said its last."""

    def __init__(self, context: aio.ServicerContext[Any, Any], decoder: Callable[[bytes], T]) -> None:
        self._context = context
        self._decoder = decoder

    def __aiter__(self) -> Incoming[T]:
        return self

    async def __anext__(self) -> T:
        data = await self._context.read()
        if data is EOF:
            raise StopAsyncIteration
        return self._decoder(data)


class _Room:
    """Owns the number of streams that clients may have open at this broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0

    def __enter__(self) -> None:
        if self._open >= self._most:
            raise Overloaded(
                f"this broker has {self._most} streams open, as many as it serves: close some, or ask again; share one client "
                "among threads instead of making one for each"
            )
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1


Conversation: TypeAlias = Callable[[aio.ServicerContext[Any, Any]], Awaitable[None]]


async def _fail(context: aio.ServicerContext[Any, Any], method: str, error: Exception) -> NoReturn:
    """Answer with the error. One that is not ours is a defect: logged with its traceback, told as INTERNAL, never swallowed."""
    if isinstance(error, aio.AbortError):
        raise error
    try:
        if isinstance(error, aio.InternalError):  # something could not be written to this client
            raise error
        if isinstance(error, TritonMQError):
            await abort(context, error)
        log.error("%s failed", method, exc_info=error)
        await abort(context, InternalError(f"{method} failed in the broker ({type(error).__name__}): see the broker's log"))
    except aio.InternalError as gone:  # the client has gone, or gRPC has ended the call
        log.debug("%s: an answer could not be written: %s", method, gone)
        raise asyncio.CancelledError from gone  # else gRPC logs a page for each


def _let_in(_metadata: Any) -> None:
    """Clients need prove nothing."""


def unary_handler(
    name: str, method: Unary, service: object, gate: Callable[[Any], None] = _let_in
) -> grpc.RpcMethodHandler[Any, Any]:
    """One request, one answer, given by the method of `service`. `gate` sees the call's metadata before its request is parsed, and
    raises to refuse it."""
    answer: Callable[[Message, float], Awaitable[Message]] = getattr(service, method.attribute)
    bounded = Gate(name, method.request)

    async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
        try:
            gate(context.invocation_metadata())
            remaining = context.time_remaining()
            allowed = REQUEST_TIMEOUT_MS / 1000
            deadline = asyncio.get_running_loop().time() + (allowed if remaining is None else min(remaining, allowed))
            request = await bounded.read(data)
            return (await answer(request, deadline)).SerializeToString()
        except Exception as error:  # noqa: BLE001 - the edge of the process: _fail logs and answers, nothing is swallowed
            await _fail(context, name, error)

    return grpc.unary_unary_rpc_method_handler(handle)


def stream_handler(name: str, converse: Conversation) -> grpc.RpcMethodHandler[Any, Any]:
    """A bidirectional stream whose requests are read from the context."""

    async def handle(_requests: object, context: aio.ServicerContext[Any, Any]) -> None:
        try:
            note_caller(context)
            await converse(context)
        except Exception as error:  # noqa: BLE001 - as above
            await _fail(context, name, error)

    return grpc.stream_stream_rpc_method_handler(handle)


def _answers_handler(name: str, answer: Callable[[bytes, Any], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    """One request, a stream of answers."""

    async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        try:
            note_caller(context)
            await answer(data, context)
        except Exception as error:  # noqa: BLE001 - as above
            await _fail(context, name, error)

    return grpc.unary_stream_rpc_method_handler(handle)


def sender(context: aio.ServicerContext[Any, Any], encoder: Callable[[T], bytes]) -> Send[T]:
    """What writes to the stream."""

    async def send(message: T) -> None:
        await context.write(encoder(message))

    return send


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def handlers(service: BrokerService) -> grpc.GenericRpcHandler[Any, Any]:
    """The Broker service, answered by `service`."""

    Gate("Produce", pb.ProduceRequest)  # what a batch may have is its topic's to say
    subscribing, fetching = Gate("Subscribe", pb.SubscribeRequest), Gate("Fetch", pb.FetchRequest)
    watching, locking = Gate("WatchOffsets", pb.WatchOffsetsRequest), Gate("Lock", pb.LockRequest)

    room = _Room(STREAMS_MAX)

    async def produce(context: aio.ServicerContext[Any, Any]) -> None:
        requests = Incoming(context, lambda data: decode(data, pb.ProduceHeader, PRODUCE_HEADER_BYTES_MAX))
        with room:
            await service.produce(requests, sender(context, _serialized))

    async def subscribe(context: aio.ServicerContext[Any, Any]) -> None:
        requests = subscribing.read_all(Incoming(context, bytes))
        with room:
            await service.subscribe(requests, sender(context, encode))

    async def fetch(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        request = await fetching.read(data)
        with room:
            await service.fetch(request, sender(context, encode))

    async def watch_offsets(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        request = await watching.read(data)
        with room:
            await service.watch_offsets(request, sender(context, _serialized))

    async def lock(context: aio.ServicerContext[Any, Any]) -> None:
        requests = locking.read_all(Incoming(context, bytes))
        with room:
            await service.lock(requests, sender(context, _serialized))

    methods = {name: unary_handler(name, method, service) for name, method in UNARY.items()}
    methods["Produce"] = stream_handler("Produce", produce)
    methods["Subscribe"] = stream_handler("Subscribe", subscribe)
    methods["Lock"] = stream_handler("Lock", lock)
    methods["Fetch"] = _answers_handler("Fetch", fetch)
    methods["WatchOffsets"] = _answers_handler("WatchOffsets", watch_offsets)
    return grpc.method_handlers_generic_handler(SERVICE, methods)
