"""What brokers ask of each other: the calls of one to another, where a partition's leader is elsewhere, and what
answers them.

Nothing of it is served to clients. Every call carries a proof when it is opened (peer_proof.py). Over TLS the
certificate must be that of the broker, too. Nothing is tried again: the caller knows whether that makes sense.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from google.protobuf.message import Message

from mq_broker.rpc.call import Call, Conversation
from mq_broker.rpc.callers import check_is_broker, note_caller
from mq_broker.rpc.gate import Grant
from mq_broker.rpc.pacing import Present
from mq_broker.rpc.peer_proof import PeerProof, Refusals
from mq_broker.rpc.service import asked, parse
from mq_broker.rpc.wire.lines import Dialling, Lines
from mq_broker.rpc.wire.links import Links
from mq_broker.security.authority import NOBODY_ASKS, Asker
from mq_protocol import mq_pb2 as pb
from mq_protocol.errors import OutcomeUnknown, PeerRefused
from mq_protocol.methods import PEER
from mq_protocol.versions import PROTOCOL, PROTOCOL_OLDEST

PEER_UNARY: Final = PEER.unary
peer_path: Final = PEER.path

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


class _ProofDemanded:
    """What stands before a method that brokers call. What a broker asks needs no right."""

    def __init__(self, method: str, links: Links, proof: PeerProof, refusals: Refusals) -> None:
        self._path = peer_path(method)
        self._links = links
        self._proof = proof
        self._refusals = refusals

    def greet(self, call: Call) -> Asker:
        speaker, said = note_caller(call), call.opened.proof
        try:
            self._proof.check_call(self._path, said)
            check_is_broker(said.broker, speaker)
        except PeerRefused as error:
            self._refusals.note(error)
            raise
        if self._links.is_former(said.broker, said.incarnation):
            former = PeerRefused(f"broker {said.broker} has been started again since this one", pb.PEER_FORMER_LIFE)
            self._refusals.note(former, said.broker)
            raise former
        return NOBODY_ASKS

    async def admit(self, _asker: Asker, _request: Message) -> dict[Grant, None]:
        return {}

    def present(self, asker: Asker, *, stream: bool = False) -> Present:
        return Present(None, asker.address, stream=stream)

    async def hold_back(self, _asker: Asker) -> None:
        """Nobody: brokers have no quota."""


def served_to_brokers(service: object, links: Links, proof: PeerProof, refusals: Refusals) -> dict[str, Conversation]:
    """What answers a call of each method of the Peer service: `service`, as it does the Broker service's
    (service.py)."""
    return {
        name: asked(method, getattr(service, method.attribute), _ProofDemanded(name, links, proof, refusals))
        for name, method in PEER_UNARY.items()
    }
