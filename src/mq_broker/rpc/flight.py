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
from typing import Final, Protocol

from mq_broker.rpc.call import Call, Conversation
from mq_broker.rpc.gate import Door, Gate
from mq_broker.rpc.pacing import charge
from mq_broker.rpc.service import Measured, Room, Send
from mq_broker.security.quotas import Meter
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.errors import InvalidRequest
from mq_protocol.limits import REQUEST_TIMEOUT_MS
from mq_protocol.methods import BROKER
from mq_protocol.wire.flight import Wanted, descriptor_of, prefix_of, ticket_of

READ_ONLY: Final = (
    "TritonMQ's Flight is read only: it serves ListFlights, GetFlightInfo, GetSchema and DoGet (docs/flight.md)"
)


class Served(Protocol):
    """What answers. `deadline`: a time of the loop's clock."""

    async def flights(self, prefix: str, send: Send[bytes], deadline: float) -> None: ...
    async def info(self, wanted: Wanted, deadline: float) -> bytes: ...
    async def schema(self, wanted: Wanted, deadline: float) -> bytes: ...
    async def read(self, wanted: Wanted, send: Send[bytes]) -> None: ...


def flight_served(served: Served, gate: Gate, room: Room) -> dict[str, Conversation]:
    """What answers a call of each method of Flight: `served`, behind the gate. `room`: of all clients' streams."""

    def described(name: str, answer: Callable[[Wanted, float], Awaitable[bytes]]) -> Conversation:
        return _described(name, answer, gate.door(BROKER.methods["ListOffsets"], name))

    return {
        "GetFlightInfo": described("GetFlightInfo", served.info),
        "GetSchema": described("GetSchema", served.schema),
        "ListFlights": _listed("ListFlights", served, gate.door(BROKER.methods["Metadata"], "ListFlights"), room),
        "DoGet": _read("DoGet", served, gate.door(BROKER.methods["Fetch"], "DoGet"), room),
    }


def _described(name: str, answer: Callable[[Wanted, float], Awaitable[bytes]], door: Door) -> Conversation:
    async def hold(call: Call) -> None:
        asker = door.greet(call)
        deadline = _deadline(call)
        with Measured(name), call.admit(door.present(asker)):
            wanted = descriptor_of(await _asked(call, name))
            request = pb.ListOffsetsRequest(topic=wanted.topic)
            await door.hold_back(asker)
            await door.admit(asker, request)
            answered = await answer(wanted, deadline)
        await call.write(answered)

    return hold


def _listed(name: str, served: Served, door: Door, room: Room) -> Conversation:
    async def hold(call: Call) -> None:
        with Measured(name, stream=True):
            asker = door.greet(call)
            deadline = _deadline(call)
            prefix, request = prefix_of(await _asked(call, name)), pb.MetadataRequest(all_topics=True)
            with door.under_way(asker) as lasting, room, call.admit(door.present(asker, stream=True)):
                await door.hold_back(asker)
                lasting.grants.update(await door.admit(asker, request))
                await served.flights(prefix, call.write, deadline)

    return hold


def _read(name: str, served: Served, door: Door, room: Room) -> Conversation:
    async def hold(call: Call) -> None:
        with Measured(name, stream=True):
            asker = door.greet(call)
            wanted = ticket_of(await _asked(call, name))
            request = pb.FetchRequest(topic=wanted.topic)
            with door.under_way(asker) as lasting, room, call.admit(door.present(asker, stream=True)):
                await door.hold_back(asker)
                lasting.grants.update(await door.admit(asker, request))
                await served.read(wanted, _sender(call, asker.meter))

    return hold


async def _asked(call: Call, name: str) -> bytes:
    said = await call.read()
    if said is None:
        raise InvalidRequest(f"{name} was asked nothing")
    return said.body


def _sender(call: Call, meter: Meter | None) -> Send[bytes]:
    """Bytes of records count for the quota of whoever is sent them."""

    async def send(message: bytes) -> None:
        charge(meter, Quota.FETCH, len(message))
        await call.write(message)

    return send


def _deadline(call: Call) -> float:
    left_s, allowed_s = call.left_s(), REQUEST_TIMEOUT_MS / 1000
    return asyncio.get_running_loop().time() + (allowed_s if left_s is None else min(left_s, allowed_s))
