"""Calls of one broker to another: where a partition's leader is elsewhere.

Retries nothing: the caller knows whether asking again makes sense.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import Message

from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.peer_service import PEER_UNARY, peer_path
from mq_broker.rpc.service import parse
from mq_broker.rpc.wire.dialling import Dialling
from mq_broker.rpc.wire.lines import Lines
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST

Resp = TypeVar("Resp", bound=Message)


class Calls:
    """Owns the connections to other brokers by which it calls. `proof` is what each call carries; `dialling` says how
    an address is reached."""

    def __init__(self, proof: PeerProof, dialling: Dialling | None = None) -> None:
        self._proof = proof
        self._lines = Lines(dialling or Dialling())

    async def ask(self, address: str, method: str, request: Message, response: type[Resp], deadline: float) -> Resp:
        """The answer of the broker at `address`. Raises the `TritonMQError` that it raised, `Unreachable` or
        `OutcomeUnknown`."""
        assert PEER_UNARY[method].response is response
        timeout_s = max(0.001, deadline - asyncio.get_running_loop().time())
        opened = opening(method, timeout_s)
        opened.proof.CopyFrom(self._proof.call(peer_path(method)))
        try:
            async with asyncio.timeout(timeout_s), self._lines.to(address) as line:
                answer = await line.ask(opened, request.SerializeToString())
        except TimeoutError as late:
            raise OutcomeUnknown(f"broker at {address} did not answer in time: ask again") from late
        return parse(answer.body, response)

    async def close(self) -> None:
        """End what is under way."""
        await self._lines.close()


def opening(method: str, timeout_s: float | None) -> pb.CallOpen:
    """What begins a call of this broker."""
    timeout_ms = 0 if timeout_s is None else max(1, int(timeout_s * 1000))
    return pb.CallOpen(method=method, protocol=PROTOCOL, protocol_oldest=PROTOCOL_OLDEST, timeout_ms=timeout_ms)
