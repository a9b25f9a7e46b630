"""A broker over TLS, and clients with certificates and tokens there: real ones, and calls by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from mq_broker.broker.config import BrokerConfig
from mq_client import Admin, NewApiToken, Security
from mq_protocol.access.pem import CA_FILE
from tests.cluster.harness import wait_until
from tests.mq_broker.broker.channel import Channel
from tests.mq_broker.broker.cluster import Broker
from tests.securing import HOST, Certs


class Place:
    """`address`: of the broker, which keeps what it has in `data`."""

    def __init__(self, certs: Certs, data: Path, address: str) -> None:
        self.certs, self.data, self.address = certs, data, address

    def admin(self) -> Admin:
        return Admin(self.address, timeout_ms=10_000, security=self.certs.user("admin"))

    def made(self, user: str = "etl", valid_s: int = 3_600) -> NewApiToken:
        with self.admin() as admin:
            return admin.create_user(user, valid_s)

    def security(self, token: str | None = None, file: Path | None = None) -> Security:
        return Security(ca=self.certs.path / CA_FILE, token=token, token_file=file)

    def shown(self, user: str = "", **shown: Any) -> Shown:
        """Calls with the certificate of that user, or none, and what else is shown."""
        return Shown(self.address, self.certs.tls(self.certs.user(user) if user else None), **shown)

    def audited(self, method: str = "") -> list[str]:
        """Why strangers were refused, as far as it is written."""
        lines = map(json.loads, (self.data / "audit.log").read_text().splitlines())
        return [line["reason"] for line in lines if line.get("principal") == "" and method in ("", line.get("method"))]

    def wait_until_audited(self, why: str, method: str = "") -> None:
        """A thread of its own writes the audit log, after the answer at times."""
        wait_until(lambda: any(why in each for each in self.audited(method)), f"the audit log says {why!r}")


@contextlib.asynccontextmanager
async def over_tls(tmp_path: Path, certs: Certs | None = None, **fields: Any) -> AsyncIterator[Place]:
    certs = certs or Certs(tmp_path / "certs", 1)
    broker = await Broker(BrokerConfig(1, f"{HOST}:0", tmp_path / "data", certs=certs.path, **fields)).start()
    try:
        yield Place(certs, tmp_path / "data", broker.address)
    finally:
        await broker.stop()


def beside(tmp_path: Path, job: Callable[[Place], None], **fields: Any) -> None:
    """Run the job, which is synchronous as clients are, beside such a broker."""

    async def scenario() -> None:
        async with over_tls(tmp_path, **fields) as place:
            await asyncio.to_thread(job, place)

    asyncio.run(scenario())


class Shown(Broker):
    """Calls by hand to a broker that somebody else has started. `shown`: what each carries, as fields of `CallOpen`."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, **shown: Any) -> None:
        self.address = address
        self._channel = Channel(address, tls, **shown)

    async def __aenter__(self) -> Shown:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close_channel()
