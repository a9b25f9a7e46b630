"""A broker over TLS with a port for tokens, and clients there: real ones, and raw calls with any header."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from mq_broker.broker.config import BrokerConfig
from mq_client import Admin, NewApiToken, Security
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.pem import CA_FILE, read
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.cluster import Broker
from tests.securing import HOST, Certs

Header = tuple[str, str | bytes]


class Place:
    """`broker`: the address for those with a certificate. `tokens`: the one for those with a token."""

    def __init__(self, certs: Certs, data: Path, broker: str, tokens: str) -> None:
        self.certs, self.data, self.broker, self.tokens = certs, data, broker, tokens

    def admin(self) -> Admin:
        return Admin(self.broker, timeout_ms=10_000, security=self.certs.user("admin"))

    def made(self, user: str = "etl", valid_s: int = 3_600) -> NewApiToken:
        with self.admin() as admin:
            return admin.create_user(user, valid_s)

    def security(self, token: str | None = None, file: Path | None = None) -> Security:
        return Security(ca=self.certs.path / CA_FILE, token=token, token_file=file)

    def audited(self, method: str = "") -> list[str]:
        """Why strangers were refused, as far as it is written."""
        lines = map(json.loads, (self.data / "audit.log").read_text().splitlines())
        return [line["reason"] for line in lines if line.get("principal") == "" and method in ("", line.get("method"))]

    def wait_until_audited(self, why: str, method: str = "") -> None:
        """A thread of its own writes the audit log, after the answer at times."""
        wait_until(lambda: any(why in each for each in self.audited(method)), f"the audit log says {why!r}")


@contextlib.asynccontextmanager
async def broker_with_tokens(tmp_path: Path, certs: Certs | None = None, **fields: Any) -> AsyncIterator[Place]:
    certs = certs or Certs(tmp_path / "certs", 1)
    tokens = f"{HOST}:{free_port()}"
    config = BrokerConfig(1, f"{HOST}:0", tmp_path / "data", certs=certs.path, listen_token=tokens, **fields)
    broker = await Broker(config).start()
    try:
        yield Place(certs, tmp_path / "data", broker.address, tokens)
    finally:
        await broker.stop()


def beside(tmp_path: Path, job: Callable[[Place], None], **fields: Any) -> None:
    """Run the job, which is synchronous as clients are, beside such a broker."""

    async def scenario() -> None:
        async with broker_with_tokens(tmp_path, **fields) as place:
            await asyncio.to_thread(job, place)

    asyncio.run(scenario())


class _Headed:
    """Adds headers to every call of a channel."""

    def __init__(self, channel: aio.Channel, headers: Sequence[Header]) -> None:
        self._channel, self._headers = channel, headers

    def __getattr__(self, kind: str) -> Any:
        method = getattr(self._channel, kind)

        def of(*arguments: Any) -> Any:
            call = method(*arguments)
            return lambda *given, **options: call(*given, metadata=tuple(self._headers), **options)

        return of


class Shown(Broker):
    """Raw calls with these headers: at the port for tokens, or with a certificate at the other."""

    def __init__(self, certs: Certs, address: str, *headers: Header, security: Security | None = None) -> None:
        self.address = address
        pem = read(security.files()) if security is not None else None
        given = (pem.key, pem.certificate) if pem is not None else ()
        self._real = aio.secure_channel(address, grpc.ssl_channel_credentials(certs.ca, *given))
        self._channel = _Headed(self._real, headers)  # type: ignore[assignment]

    async def __aenter__(self) -> Shown:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._real.close(None)


def bearer(token: str) -> Header:
    return "authorization", f"Bearer {token}"
