"""What the gate costs a call and a batch: name, right and every quota, in this process, without a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.security.ground import Row
from mq_broker.rpc.gate import Gate
from mq_broker.security.authority import Asker, Authority
from mq_broker.security.names import Principal
from mq_broker.security.quotas import Quotas
from mq_broker.security.revoked import Revoked
from mq_broker.security.rules import Effect, Rule, RuleBook
from mq_broker.security.tokens import Tokens
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.quotas import Quota
from mq_protocol.access.rights import Kind, Operation
from mq_protocol.methods import BROKER

RULES: Final = 200
CALL_US_MAX: Final = 5.0
BATCH_US_MAX: Final = 2.0


class _Connection:
    """What gRPC tells of a connection in plain text. What a certificate adds is what `auth_context` of gRPC takes."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"insecure"]}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()


def _authority() -> Authority:
    authority = Authority(on=True)
    rules = [
        Rule("User:ANONYMOUS", Effect.ALLOW, operation, Kind.TOPIC, f"orders-{number}", prefix)
        for number in range(RULES)
        for operation, prefix in ((Operation.READ, True), (Operation.WRITE, False))
    ]
    authority.take(1, RuleBook(rules), Revoked(), Tokens())
    return authority


LIMIT: Final = 1 << 40
"""Of everything, so that all quotas are counted and nobody waits."""


async def rows(count: int) -> list[Row]:
    gate = Gate(_authority(), quotas=Quotas(dict.fromkeys(Quota, LIMIT)))
    connection: Any = _Connection()
    door = gate.door(BROKER.methods["ListOffsets"])
    request = pb.ListOffsetsRequest(topic="orders-7-eu", partitions=[0])

    async def call() -> None:
        asker = door.greet(connection)
        with door.present(asker):
            await door.hold_back(asker, request)
            await door.admit(asker, request)

    async def over(number: int) -> float:
        begun = time.process_time()
        for _ in range(number):
            await call()
        return (time.process_time() - begun) / number

    await over(count // 10)
    unary_us = 1e6 * min([await over(count) for _ in range(3)])
    produce = gate.door(BROKER.methods["Produce"])
    asker = Asker(Principal("User", "ANONYMOUS"), "", gate.authority)
    with produce.under_way(asker) as stream:
        header = pb.ProduceHeader(topic="orders-7")
        assert produce.admit_batch(stream, header) is None
        batch_us = 1e6 * _each(lambda: produce.admit_batch(stream, header), count)
    return [
        Row("gate, a unary call", f"{unary_us:.1f} µs", f"≤ {CALL_US_MAX:.0f} µs", unary_us <= CALL_US_MAX),
        Row("gate, a batch of a stream", f"{batch_us:.2f} µs", f"≤ {BATCH_US_MAX:.0f} µs", batch_us <= BATCH_US_MAX),
    ]


def _each(ask: Callable[[], object], count: int) -> float:
    found = []
    for _ in range(3):
        begun = time.process_time()
        for _ in range(count):
            ask()
        found.append((time.process_time() - begun) / count)
    return min(found)


def measured(count: int) -> list[Row]:
    return asyncio.run(rows(count))
