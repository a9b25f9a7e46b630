"""Clients with names, without certificates: a broker in this process believes what a call's metadata say.

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
from mq_broker.security.names import ANONYMOUS, Principal
from mq_protocol import mq_pb2 as pb
from tests.mq_broker.broker.cluster import Broker

ROOT = "User:root"
_KEY = "principal-of-a-test"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of this process believe the names that `As` gives. Only gRPC can: clients leave stream ports alone."""
    monkeypatch.setenv("TRITONMQ_TRANSPORT", "grpc")
    real = callers.note_caller

    def note(context: Any) -> Principal:
        real(context)
        told = {key: value for key, value in context.invocation_metadata() if key == _KEY}
        found = Principal.parse(told[_KEY]) if told else ANONYMOUS
        callers._principal.set(found)
        return found

    monkeypatch.setattr(gate, "note_caller", note)


class _NamedChannel:
    """Adds the name to every call of a channel."""

    def __init__(self, broker: Broker, principal: str) -> None:
        self._broker = broker
        self._principal = principal

    def __getattr__(self, kind: str) -> Any:
        method = getattr(self._broker.channel, kind)

        def of(*arguments: Any) -> Any:
            call = method(*arguments)
            return lambda *given, **options: call(*given, metadata=((_KEY, self._principal),), **options)

        return of


class As(Broker):
    """What somebody asks of a broker that another `Broker` has started."""

    def __init__(self, broker: Broker, principal: str) -> None:
        super().__init__(broker.config)
        self.address = broker.address
        self._channel = _NamedChannel(broker, principal)  # type: ignore[assignment]

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
