"""A broker over TLS, met by real clients with certificates that are right, and wrong in one way each."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mq_broker.broker.config import BrokerConfig
from mq_broker.rpc import bounds, gate
from mq_client import Admin, Consumer, Producer, Reader, Security
from mq_client.errors import NotAuthenticated, PermissionDenied
from mq_protocol.errors import InvalidSetting, Unreachable
from mq_protocol.methods import BROKER
from mq_protocol.wire.call import PREAMBLE
from tests.coroutines import real_time
from tests.mq_broker.broker.by_token import over_tls
from tests.mq_broker.broker.channel import Channel
from tests.mq_broker.broker.cluster import DEADLINE_S, Broker
from tests.securing import EXPIRED, HOST, NOT_YET, Certs

TIMEOUT_MS = 30_000


def with_broker(certs: Certs, data: Path, job: Callable[[str], None], **fields: object) -> None:
    """Run the job, which is synchronous as clients are, beside a broker over TLS."""

    async def scenario() -> None:
        broker = await Broker(BrokerConfig(1, f"{HOST}:0", data, certs=certs.path, **fields)).start()  # type: ignore[arg-type]
        try:
            await asyncio.to_thread(job, broker.address)
        finally:
            await broker.stop()

    asyncio.run(scenario())


def topics(address: str, security: Security | None) -> list[str]:
    with Admin(address, timeout_ms=TIMEOUT_MS, security=security) as admin:
        return [topic.name for topic in admin.list_topics()]


def refusal(address: str, security: Security | None) -> str:
    try:
        topics(address, security)
    except NotAuthenticated as error:
        return str(error)
    return "none: it was let in"


def test_every_client_speaks_over_tls(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    security = certs.user("admin")

    def job(address: str) -> None:
        with Admin(address, security=security) as admin:
            admin.create_topic("t", partitions=1, replicas=1)
        with Producer(address, security=security) as producer:
            assert producer.publish("t", "hello").result().offset == 0
        with Reader(address, security=security) as reader:
            assert sum(batch.num_rows for batch in reader.read("t", 0, 0, 1)) == 1
        with Consumer(address, group="g", start="earliest", idle_ms=30_000, security=security) as consumer:
            consumer.subscribe("t")
            assert next(iter(consumer)).value == b"hello"

    with_broker(certs, tmp_path / "data", job)


def test_who_is_wrong_is_refused_and_told_why(tmp_path: Path) -> None:
    certs, others = Certs(tmp_path / "certs", 1), Certs(tmp_path / "others")
    make = certs.authority
    faults: dict[str, tuple[Security | None, str]] = {
        "plain text": (None, "it speaks TLS"),
        "expired": (
            certs.security_of(make.client("etl", span=EXPIRED), "expired"),
            "has expired, and `tritonmq cert renew`",
        ),
        "not yet valid": (certs.security_of(make.client("etl", span=NOT_YET), "notyet"), "not valid yet"),
        "both of another authority": (others.user("admin"), "the broker's certificate is not accepted: an authority"),
        "own of another authority": (
            certs.security_of(others.authority.client("etl"), "other"),
            "an authority signed it that is not in ca.crt",
        ),
        "a name that names nobody": (
            certs.security_of(make.client("etl"), "etl2", trusting=others.path),
            "the broker's certificate is not accepted",
        ),
    }

    def job(address: str) -> None:
        for name, (security, told) in faults.items():
            assert told in refusal(address, security), name
        assert topics(address, certs.user("admin")) == []

    with_broker(certs, tmp_path / "data", job)


def test_a_broker_for_another_host_is_not_believed(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1, hosts=("elsewhere.example", "10.0.0.1"))
    told = r"host \(elsewhere.example, 10.0.0.1\), and not for 127.0.0.1.*create-broker --id N --host 127.0.0.1`"

    def job(address: str) -> None:
        with pytest.raises(NotAuthenticated, match=told):
            topics(address, certs.user("admin"))

    with_broker(certs, tmp_path / "data", job)


@pytest.mark.parametrize("fields", [{}, {"also_plaintext": f"{HOST}:0"}], ids=["rights", "no_rights"])
def test_a_brokers_certificate_is_no_users_whether_rights_are_judged_or_not(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    certs = Certs(tmp_path / "certs", 1)
    security = certs.security_of(certs.authority.broker(1, [HOST]), "broker")

    def job(address: str) -> None:
        with pytest.raises(PermissionDenied, match="a broker's certificate is no user's"):
            topics(address, security)

    with_broker(certs, tmp_path / "data", job, **fields)


@real_time
async def test_every_method_refuses_who_is_no_user(tmp_path: Path) -> None:
    """Streams, too, and before a request is read."""
    certs = Certs(tmp_path / "certs", 1)
    broker = certs.tls(certs.security_of(certs.authority.broker(1, [HOST]), "broker"))
    async with over_tls(tmp_path, certs) as place:
        for shown, refused in ((broker, PermissionDenied), (certs.tls(), NotAuthenticated)):
            channel = Channel(place.address, shown)
            for method in BROKER.methods:
                assert isinstance(await channel.refusal(method), refused), method


def test_no_method_is_reached_with_a_certificate_that_is_not_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method, asked with another authority's, one that has expired, one of tomorrow, and TLS of an older
    version."""
    certs, others = Certs(tmp_path / "certs", 1), Certs(tmp_path / "others")
    make = certs.authority
    reached: list[object] = []
    monkeypatch.setattr(gate, "note_caller", reached.append)
    older = certs.tls(certs.user("admin"))
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    strangers = {
        "other authority": certs.tls(certs.security_of(others.authority.client("etl"), "other")),
        "expired": certs.tls(certs.security_of(make.client("etl", span=EXPIRED), "expired")),
        "not yet valid": certs.tls(certs.security_of(make.client("etl", span=NOT_YET), "notyet")),
        "older": older,
        "plain text": None,
    }

    async def scenario() -> None:
        async with over_tls(tmp_path, certs) as place:
            for name, tls in strangers.items():
                for method in BROKER.methods:
                    assert isinstance(await Channel(place.address, tls).refusal(method), Unreachable), (
                        name,
                        method,
                    )

    asyncio.run(scenario())
    assert reached == []


def test_random_bytes_reach_no_protobuf_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certs = Certs(tmp_path / "certs", 1)
    parsed: list[bytes] = []
    monkeypatch.setattr(bounds, "parse", lambda data, _kind: parsed.append(data))
    chance, me = random.Random(7), psutil.Process()

    def job(address: str) -> None:
        host, _, port = address.rpartition(":")

        def once() -> None:
            with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
                stranger.settimeout(5)
                try:
                    begin = chance.choice([b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", PREAMBLE])
                    stranger.sendall(begin + chance.randbytes(chance.randrange(1, 5_000)))
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4_096):
                        pass
                except OSError:
                    pass

        for _ in range(100):
            once()
        before = me.memory_info().rss
        for _ in range(400):
            once()
        assert me.memory_info().rss - before < 16 << 20
        assert not parsed

    with_broker(certs, tmp_path / "data", job)


def test_what_is_open_to_other_machines_needs_certificates_or_a_word(tmp_path: Path) -> None:
    def config(listen: str = f"{HOST}:0", **fields: object) -> BrokerConfig:
        return BrokerConfig(1, listen, tmp_path, **fields)  # type: ignore[arg-type]

    for loopback in ("127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "localhost:0"):
        assert not config(loopback).is_open_to_all
    for anywhere in ("0.0.0.0:7400", "[::]:7400", ":7400", "10.0.0.1:7400", "203.0.113.5:7400"):
        with pytest.raises(InvalidSetting, match=r"--certs DIR .*or --insecure"):
            config(anywhere)
        assert config(anywhere, insecure=True).is_open_to_all
        assert not config(anywhere, certs=tmp_path).is_open_to_all
    for option, fields in (
        ("--grpc", {"grpc": "0.0.0.0:1"}),
        ("--flight", {"flight": ":1"}),
        ("--http", {"http": ":1"}),
    ):
        with pytest.raises(InvalidSetting, match=option):
            config(**fields)
    for senseless in ({"certs": tmp_path, "insecure": True}, {"also_plaintext": "127.0.0.1:1"}):
        with pytest.raises(InvalidSetting):
            config(**senseless)
