"""The pages that programs watch a broker by, with a certificate: HTTPS, and who may see numbers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq_broker.broker import BrokerConfig
from mq_broker.security.names import Principal
from mq_client import AclRule, Admin
from mq_dev.certificates import ADMIN, broker_directory, client_file
from mq_dev.embedded_zookeeper import free_port
from mq_protocol.access.pem import CA_FILE
from mq_protocol.access.rights import CLUSTER_NAME, Kind, Operation
from tests.coroutines import real_time
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker
from tests.securing import HOST, Certs

LINE = b"GET /livez HTTP/1.1\r\nhost: b\r\n\r\n"


def shown(certs: Certs, user: str = "") -> ssl.SSLContext:
    """As a client: with that user's certificate, or without any."""
    made = ssl.create_default_context(cafile=certs.path / CA_FILE)
    if user:
        certs.user(user)
        pair = certs.path / client_file(user)
        made.load_cert_chain(f"{pair}.crt", f"{pair}.key")
    return made


async def get(port: int, path: str, tls: ssl.SSLContext | None) -> tuple[int, str]:
    """The status and the body."""
    name = HOST if tls is not None else None
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=tls, server_hostname=name)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


@contextlib.asynccontextmanager
async def secured(directory: Path, certs: Certs, **settings: bool) -> AsyncIterator[tuple[Broker, int]]:
    """A broker that serves metrics, and the port where it does."""
    port = free_port(HOST)
    config = BrokerConfig(
        1,
        f"{HOST}:0",
        directory / "data",
        certs=certs.path,
        http=f"{HOST}:{port}",
        superusers=(Principal.parse(f"User:{ADMIN}"),),
        **settings,
    )
    broker = await Broker(config).start()
    try:
        yield broker, port
    finally:
        await broker.stop()


@real_time
async def test_numbers_need_the_right_and_whether_the_broker_lives_is_told_to_everybody(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    nobody, etl, admin = shown(certs), shown(certs, "etl"), shown(certs, ADMIN)

    def alter(broker: Broker, rule: AclRule) -> None:
        with Admin(broker.address, security=certs.user(ADMIN)) as client:
            client.alter_acls([rule])

    async def until_answered(port: int, tls: ssl.SSLContext, status: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while (await get(port, "/metrics", tls))[0] != status:
                pass

    async with secured(tmp_path, certs) as (broker, port):
        for page in ("/livez", "/readyz"):
            assert await get(port, page, nobody) == (200, "ok\n")
        for page in ("/metrics", "/observation?detail=partition"):
            status, told = await get(port, page, nobody)
            assert (status, told) == (
                401,
                "show the certificate of a user who has the right Metrics on the cluster\n",
            )
            status, told = await get(port, page, etl)
            assert status == 403
            assert "tritonmq acl allow User:etl --metrics --cluster" in told
            assert (await get(port, page, admin))[0] == 200
        await asyncio.to_thread(
            alter, broker, AclRule("User:etl", Operation.METRICS, Kind.CLUSTER, CLUSTER_NAME, prefix=False)
        )
        await until_answered(port, etl, 200)
        assert "tritonmq_broker_info" in (await get(port, "/metrics", etl))[1]
        assert (await get(port, "/metrics", nobody))[0] == 401
        await asyncio.to_thread(
            alter, broker, AclRule("User:ANONYMOUS", Operation.METRICS, Kind.CLUSTER, CLUSTER_NAME, prefix=False)
        )
        await until_answered(port, nobody, 200)
    lines = (tmp_path / "data" / "audit.log").read_text().splitlines()
    denied = [line for line in lines if '"denied"' in line and '"/metrics"' in line]
    assert any('"User:etl"' in line for line in denied)
    assert any('"User:ANONYMOUS"' in line for line in denied)


@real_time
async def test_a_brokers_certificate_is_no_users(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, 2)
    made = shown(certs)
    own = broker_directory(certs.path, 2)
    made.load_cert_chain(own / "broker.crt", own / "broker.key")
    async with secured(tmp_path, certs) as (_, port):
        status, told = await get(port, "/metrics", made)
        assert (status, "no user's" in told) == (403, True)
        assert (await get(port, "/livez", made))[0] == 200


@real_time
async def test_plain_text_an_older_tls_and_a_strangers_certificate_are_not_answered(tmp_path: Path) -> None:
    certs, others = Certs(tmp_path / "certs", 1), Certs(tmp_path / "others", 1)
    others.user("etl")
    older, stranger = shown(certs), shown(certs)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    stranger.load_cert_chain(others.path / f"{client_file('etl')}.crt", others.path / f"{client_file('etl')}.key")
    async with secured(tmp_path, certs) as (_, port):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await get(port, "/livez", older)
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):  # it shows at the first byte that is read
            await get(port, "/livez", stranger)
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(LINE)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await reader.read()
            writer.close()
        assert await get(port, "/livez", shown(certs)) == (200, "ok\n")
