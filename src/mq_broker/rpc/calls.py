"""Calls of one broker to another, at its peer port: where a partition's leader is elsewhere.

Owns one channel an address and way of reaching it, made when first needed. Retries nothing: the caller knows whether
asking again makes sense.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from google.protobuf.message import Message
from grpc import aio

from mq_broker.rpc.dialling import Dialling, Way
from mq_broker.rpc.peer_proof import PeerProof
from mq_broker.rpc.peer_service import PEER_UNARY, peer_path
from mq_broker.rpc.service import parse
from mq_protocol.transport import from_call

Resp = TypeVar("Resp", bound=Message)


class Calls:
    """Owns the channels to other brokers. `proof` is what each call carries; `dialling` says how an address is
    reached."""

    def __init__(self, proof: PeerProof, dialling: Dialling | None = None) -> None:
        self._proof = proof
        self._dialling = dialling or Dialling()
        self._channels: dict[tuple[str, Way], aio.Channel] = {}
        self._methods: dict[tuple[str, Way, str], Any] = {}

    async def ask(self, address: str, method: str, request: Message, response: type[Resp], deadline: float) -> Resp:
        """The answer of the broker at `address`. Raises the `TritonMQError` that it raised, `Unreachable` or
        `OutcomeUnknown`."""
        assert PEER_UNARY[method].response is response
        way = self._dialling.way(address)
        call = self._methods.get((address, way, method))
        if call is None:
            channel = self._channels.get((address, way))
            if channel is None:
                channel = self._channels[address, way] = self._dialling.dial(address)
            call = self._methods[address, way, method] = channel.unary_unary(peer_path(method), None, None)
        timeout = max(0.001, deadline - asyncio.get_running_loop().time())
        try:
            data: bytes = await call(
                request.SerializeToString(), timeout=timeout, metadata=self._proof.call(peer_path(method))
            )
        except aio.AioRpcError as error:
            raise from_call(error, address) from error
        return parse(data, response)

    async def close(self) -> None:
        """End what is under way. Not for a single channel, whose callers would take that for their own cancellation."""
        channels, self._channels, self._methods = list(self._channels.values()), {}, {}
        for channel in channels:
            await channel.close(None)
