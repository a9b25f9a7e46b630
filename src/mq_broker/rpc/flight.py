"""The Flight port: Arrow's Flight service, for readers in any language. It is read only.

Flight is a gRPC service, so what stands before a call is what stands before every other: the name that a certificate or
a token has proved, the gate with its rights, quotas and audit log, and a bound of each message. Arrow's own server
(pyarrow.flight) is not used: it bounds no message, does not tell whose certificate it was shown, and reads what a
stranger uploads with native code before anybody can refuse it.

What is asked is judged as the method of TritonMQ that does the same: `DoGet` as Fetch, `GetFlightInfo` and `GetSchema`
as ListOffsets, `ListFlights` as Metadata. What would change anything is refused unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol

import grpc
from grpc import aio

from mq_broker.rpc.gate import Door, Gate
from mq_broker.rpc.measuring import Measured
from mq_broker.rpc.pacing import charge
from mq_broker.rpc.service import Room, Send, answers_handler, edge
from mq_broker.security.quotas import Meter
from mq_protocol import mq_pb2 as pb
from mq_protocol.flight import SERVICE, Wanted, descriptor_of, prefix_of, ticket_of
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.methods import BROKER
from mq_protocol.quotas import Quota

READ_ONLY: Final = (
    "TritonMQ's Flight is read only: it serves ListFlights, GetFlightInfo, GetSchema and DoGet (docs/flight.md)"
)


class Served(Protocol):
    """What answers. `deadline`: a time of the loop's clock."""

    async def flights(self, prefix: str, send: Send[bytes], deadline: float) -> None: ...
    async def info(self, wanted: Wanted, deadline: float) -> bytes: ...
    async def schema(self, wanted: Wanted, deadline: float) -> bytes: ...
    async def read(self, wanted: Wanted, send: Send[bytes]) -> None: ...


def flight_handlers(served: Served, gate: Gate, room: Room) -> grpc.GenericRpcHandler[Any, Any]:
    """The Flight service, answered by `served`: each method behind the gate. `room`: of all clients' streams."""

    def described(name: str, answer: Callable[[Wanted, float], Awaitable[bytes]]) -> grpc.RpcMethodHandler[Any, Any]:
        return _described(name, answer, gate.door(BROKER.methods["ListOffsets"], name))

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetFlightInfo": described("GetFlightInfo", served.info),
        "GetSchema": described("GetSchema", served.schema),
        "ListFlights": _listed("ListFlights", served, gate.door(BROKER.methods["Metadata"], "ListFlights"), room),
        "DoGet": _read("DoGet", served, gate.door(BROKER.methods["Fetch"], "DoGet"), room),
        "PollFlightInfo": grpc.unary_unary_rpc_method_handler(_refuse),
        "DoAction": grpc.unary_stream_rpc_method_handler(_refuse),
        "ListActions": grpc.unary_stream_rpc_method_handler(_refuse),
        "Handshake": grpc.stream_stream_rpc_method_handler(_refuse),
        "DoPut": grpc.stream_stream_rpc_method_handler(_refuse),
        "DoExchange": grpc.stream_stream_rpc_method_handler(_refuse),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


async def _refuse(_said: object, context: aio.ServicerContext[Any, Any]) -> NoReturn:
    """Nothing of what is said is looked at."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, READ_ONLY)
    raise AssertionError("gRPC's abort returned")


def _described(
    name: str, answer: Callable[[Wanted, float], Awaitable[bytes]], door: Door
) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> bytes:
        asker = door.greet(context)
        deadline = _deadline(context)
        with Measured(name), door.present(asker):
            wanted = descriptor_of(data)
            request = pb.ListOffsetsRequest(topic=wanted.topic)
            await door.hold_back(asker, request)
            await door.admit(asker, request)
            return await answer(wanted, deadline)

    return grpc.unary_unary_rpc_method_handler(edge(name, handle))


def _listed(name: str, served: Served, door: Door, room: Room) -> grpc.RpcMethodHandler[Any, Any]:
    async def give(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        asker = door.greet(context)
        deadline = _deadline(context)
        prefix, request = prefix_of(data), pb.MetadataRequest(all_topics=True)
        with door.under_way(asker) as call, room, door.present(asker, stream=True):
            await door.hold_back(asker, request)
            call.grants.update(await door.admit(asker, request))
            await served.flights(prefix, context.write, deadline)

    return answers_handler(name, give)


def _read(name: str, served: Served, door: Door, room: Room) -> grpc.RpcMethodHandler[Any, Any]:
    async def give(data: bytes, context: aio.ServicerContext[Any, Any]) -> None:
        asker = door.greet(context)
        wanted = ticket_of(data)
        request = pb.FetchRequest(topic=wanted.topic)
        with door.under_way(asker) as call, room, door.present(asker, stream=True):
            await door.hold_back(asker, request)
            call.grants.update(await door.admit(asker, request))
            await served.read(wanted, _sender(context, asker.meter))

    return answers_handler(name, give)


def _sender(context: aio.ServicerContext[Any, Any], meter: Meter | None) -> Send[bytes]:
    """Bytes of records count for the quota of whoever is sent them."""

    async def send(message: bytes) -> None:
        charge(meter, Quota.FETCH, len(message))
        await context.write(message)

    return send


def _deadline(context: aio.ServicerContext[Any, Any]) -> float:
    remaining, allowed = context.time_remaining(), REQUEST_TIMEOUT_MS / 1000
    return asyncio.get_running_loop().time() + (allowed if remaining is None else min(remaining, allowed))
