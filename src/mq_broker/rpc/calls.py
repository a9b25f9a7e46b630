"""Calls of one broker to another, at its peer port: where a partition's leader is elsewhere.

Retries nothing: the caller knows whether asking again makes sense.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.lines import Lines
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.peer_service import PEER_UNARY, peer_path
from mq_broker.rpc.service import parse
from mq_protocol.transport import from_call

Resp = TypeVar("Resp", bound=Message)


class Calls:
    """Owns the channels to other brokers by which it calls. `proof` is what each call carries; `dialling` says how an
    address is reached."""

    def __init__(self, proof: PeerProof, dialling: Dialling | None = None) -> None:
        self._proof = proof
        self._lines = Lines(dialling or Dialling())

    async def ask(self, address: str, method: str, request: Message, response: type[Resp], deadline: float) -> Resp:
        """The answer of the broker at `address`. Raises the `TritonMQError` that it raised, `Unreachable` or
        `OutcomeUnknown`."""
        assert PEER_UNARY[method].response is response
        path = peer_path(method)
        async with self._lines.to(address) as line:
            timeout = max(0.001, deadline - asyncio.get_running_loop().time())
            try:
                data: bytes = await line.unary(path)(
                    request.SerializeToString(), timeout=timeout, metadata=self._proof.call(path)
                )
            except aio.AioRpcError as error:
                raise from_call(error, address) from error
        return parse(data, response)

    async def close(self) -> None:
        """End what is under way."""
        await self._lines.close()
