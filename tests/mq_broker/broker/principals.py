"""Clients with names, without certificates: a broker in this process believes what a call says.

Only a test makes it believe so. In a broker a name is made of what the connection has proved, and of nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.rpc import callers, gate
from mq_broker.rpc.call import Call
from mq_broker.rpc.wire.entering import TokenDoor
from mq_broker.security.names import ANONYMOUS, Principal
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.channel import Channel
from tests.mq_broker.broker.cluster import Broker

ROOT = "User:root"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of this process believe the names that `As` gives, where a client would show a token."""
    real = callers.note_caller

    async def verify_nothing(_door: TokenDoor, _call: Call, _method: str) -> None:
        return None

    def note(call: Call) -> Principal:
        real(call)
        found = Principal.parse(call.opened.token) if call.opened.token else ANONYMOUS
        callers._principal.set(found)
        return found

    monkeypatch.setattr(TokenDoor, "verify", verify_nothing)
    monkeypatch.setattr(gate, "note_caller", note)


class As(Broker):
    """What somebody asks of a broker that another `Broker` has started."""

    def __init__(self, broker: Broker, principal: str) -> None:
        super().__init__(broker.config)
        self.broker = broker
        self.address = broker.address
        self._channel = Channel(broker.address, token=principal)

    async def allow(self, *rules: pb.AclRule) -> None:
        for first in range(0, len(rules), 500):
            await self.ask("AlterAcls", pb.AlterAclsRequest(add=rules[first : first + 500]))

    async def take_away(self, *rules: pb.AclRule) -> None:
        await self.ask("AlterAcls", pb.AlterAclsRequest(remove=rules))


@contextlib.asynccontextmanager
async def judging(data: Path, superusers: Iterable[str] = (ROOT,), **settings: Any) -> AsyncIterator[Broker]:
    """A broker that stands alone and judges rights."""
    names = tuple(map(Principal.parse, superusers))
    config = BrokerConfig(1, "127.0.0.1:0", data, authorize=True, superusers=names, **settings)
    broker = Broker(config)
    await broker.start()
    try:
        yield await broker.until_ready()
    finally:
        await broker.stop()
