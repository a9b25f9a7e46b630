"""Who asks at the port for calls: what the handshake has proved, and judged by that."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from mq_broker.rpc.wire.certificates import Certificates
from mq_broker.security.authority import Authority
from mq_broker.security.revoked import Revoked
from mq_broker.security.rules import Effect, Rule, RuleBook
from mq_broker.security.tokens import Tokens
from mq_protocol.access.pem import context, read
from mq_protocol.access.rights import Kind as Resource
from mq_protocol.access.rights import Operation
from mq_protocol.errors import NotAuthenticated, PermissionDenied
from mq_protocol.methods import BROKER
from mq_protocol.methods import Kind as MethodKind
from mq_protocol.wire.call import PREAMBLE
from tests.coroutines import real_time
from tests.mq_broker.rpc.streaming import Served, batch, connected, opening, server_tls, serving
from tests.securing import Certs

STREAMS = [name for name, method in BROKER.methods.items() if method.kind is not MethodKind.UNARY]


def judged(*rules: Rule) -> Authority:
    authority = Authority(on=True)
    authority.take(1, RuleBook(rules), Revoked(), Tokens())
    return authority


def writes(topic: str) -> Rule:
    return Rule("User:etl", Effect.ALLOW, Operation.WRITE, Resource.TOPIC, topic, prefix=False)


@real_time
async def test_a_name_is_what_the_certificate_proves_and_each_batch_is_judged_by_it(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(certs.user("etl").files()), server=False)
    authority = judged(writes("mine"))
    served = Served(authority, tls=server_tls(certs))
    served.server.start()
    async with connected(served, tls) as client:
        client.say([PREAMBLE], opening(), batch(1, b"x", "mine"), batch(2, b"x", "theirs"))
        assert [await client.result() for _ in range(2)] == [(1, 1), (2, 0)]
        assert len(served.service.refusals) == 1  # answered in its turn, without its payload
        authority.take(2, RuleBook((writes("mine"),)), Revoked(names=frozenset({"User:etl"})), Tokens())
        assert isinstance(await client.refused(), NotAuthenticated)  # what is under way ends
    async with connected(served, tls) as client:
        client.say([PREAMBLE], opening())
        assert isinstance(await client.refused(), NotAuthenticated)
    await served.server.stop()


@pytest.mark.parametrize("method", STREAMS)
@real_time
async def test_who_has_no_right_to_a_stream_is_refused_before_anything_is_received(tmp_path: Path, method: str) -> None:
    certs = Certs(tmp_path / "certs", 1)
    tls = context(read(certs.user("etl").files()), server=False)
    served = Served(judged(), tls=server_tls(certs))
    served.server.start()
    async with connected(served, tls) as client:
        client.say([PREAMBLE], opening(method))  # and nothing else: it is judged without a request
        assert isinstance(await client.refused(), PermissionDenied)
    await served.server.stop()


@real_time
async def test_a_brokers_certificate_is_no_users_and_a_revoked_certificate_is_known_by_its_serial(
    tmp_path: Path,
) -> None:
    certs = Certs(tmp_path / "certs", 1)
    files = certs.user("etl").files()
    serial = ssl._ssl._test_decode_cert(str(files.certificate))["serialNumber"].lower().lstrip("0")  # type: ignore[attr-defined]
    tls = context(read(files), server=False)
    authority = judged(writes("mine"))
    served = Served(authority, tls=server_tls(certs))
    served.server.start()
    async with connected(served, Certificates(certs.path, 1).client_context()) as client:
        client.say([PREAMBLE], opening())
        assert "no user's" in str(await client.refused())
    authority.take(2, RuleBook((writes("mine"),)), Revoked(serials=frozenset({serial})), Tokens())
    async with connected(served, tls) as client:
        client.say([PREAMBLE], opening())
        assert isinstance(await client.refused(), NotAuthenticated)
    await served.server.stop()


@real_time
async def test_nobody_is_served_without_a_certificate_or_by_an_older_tls(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    nobody = ssl.create_default_context(cafile=str(certs.path / "ca.crt"))
    older = context(read(certs.user("etl").files()), server=False)
    older.minimum_version = ssl.TLSVersion.TLSv1_2
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(tls=server_tls(certs)) as served:
        async with connected(served) as plain:
            plain.say([PREAMBLE], opening())
            assert await plain.reader.read() == b"" or served.service.begun == 0
        async with connected(served, nobody) as client:
            client.say([PREAMBLE], opening())
            assert "neither a certificate nor a token" in str(await client.refused())
        with contextlib.suppress(OSError):
            async with connected(served, older) as client:
                client.say([PREAMBLE], opening())
                assert await client.hear() is None
        assert served.service.begun == 0


@real_time
async def test_who_may_not_ask_is_told_before_anything_is_asked_in_any_method() -> None:
    authority = judged()
    authority.take(2, RuleBook(()), Revoked(names=frozenset({"User:ANONYMOUS"})), Tokens())
    async with serving(authority) as served:
        for method in BROKER.methods:
            async with connected(served) as client:
                client.say([PREAMBLE], opening(method))
                assert isinstance(await client.refused(), NotAuthenticated)
