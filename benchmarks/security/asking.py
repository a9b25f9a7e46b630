"""Calls by hand, each on a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence

from mq_client import Security
from mq_client.cluster.client import Client
from mq_client.cluster.credentials import current
from mq_client.cluster.dialling import call_open
from mq_protocol.wire.connection import Connection, connect
from mq_protocol.wire.envelope import Buffer

CONNECT_S = 10.0


async def opened(
    address: str, security: Security | None, method: str, body: bytes, parts: Sequence[Buffer] = ()
) -> Connection:
    """A call of that method, which has asked this. Raises as `connect`."""
    credentials = current(security)
    connection = await connect(address, address, CONNECT_S, credentials.tls)
    connection.open(call_open(method, address, Client((address,), security), credentials))
    await connection.write(body, parts)
    return connection
