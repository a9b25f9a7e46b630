"""Who is revoked is refused, and what it has open ends: by name and by serial, at the broker that was asked and at
others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from mq_broker.broker import BrokerConfig
from mq_broker.broker.administration.rights import acls
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_cli.access.cert import cert
from mq_client import AclRule, Admin, Producer, Security
from mq_client.errors import InvalidRequest, NotAuthenticated
from mq_protocol import mq_pb2 as pb
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import PermissionDenied, RequestTooLarge
from mq_protocol.limits import REQUEST_RULES_MAX
from tests.coroutines import real_time, virtual_time
from tests.mq_broker.broker.cluster import Broker, rows, shared, until
from tests.mq_broker.broker.principals import ROOT, As, judging, named  # noqa: F401 - a fixture
from tests.mq_broker.broker.test_taking_rights_away import (
    ETL,
    OPEN,
    judging_second,
    rule,
    served,
    watching,
)
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.securing import HOST, Certs

RIGHTS = [rule("Describe"), rule("Read"), rule("Write"), rule("Read", "Group", "g"), rule("Write", "Lock", "l")]


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("what", OPEN)
@virtual_time
async def test_what_a_revoked_user_has_open_ends(what: str, tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.allow(*RIGHTS)
        call = await OPEN[what][0](etl)
        assert await call.read() is not None
        assert (await root.ask("Revoke", pb.RevokeRequest(add=[ETL]))).added == 1
        assert isinstance(await call.error(), NotAuthenticated)
        with pytest.raises(NotAuthenticated, match="administrator"):
            await etl.metadata("t")
        assert (await root.ask("Revoke", pb.RevokeRequest(add=[ETL]))).added == 0  # asked again
        assert list((await root.ask("Revoked", pb.RevokedRequest())).entries) == [ETL]
        assert (await root.ask("Revoke", pb.RevokeRequest(remove=[ETL]))).removed == 1
        assert (await etl.metadata("t")).topics


@pytest.mark.usefixtures("named")
@virtual_time
async def test_a_revoked_producers_stream_ends(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        await root.allow(rule("Write"))
        async with etl.producing() as stream:
            await stream.send("t", encode_batch(rows(1)), 1)
            assert not (await stream.result()).HasField("error")
            await root.ask("Revoke", pb.RevokeRequest(add=[ETL]))
            assert isinstance(await stream.call.error(), NotAuthenticated)
        assert await root.numbers("t") == [1]


@pytest.mark.usefixtures("named")
@virtual_time
async def test_a_user_is_refused_at_a_broker_that_was_not_asked(
    tmp_path: Path,
) -> None:
    """ZooKeeper tells it: it is over before anybody looks by himself."""
    loop = asyncio.get_running_loop()
    over = loop.time() + acls.SWEEP_S
    make = shared("", LASTING_MS, "/revoking")
    async with (
        judging(tmp_path / "1", coordination=make) as first,
        judging_second(tmp_path / "2", make) as second,
    ):
        root, etl = As(first, ROOT), As(second, ETL)
        await root.create_topic("t")
        await root.allow(rule("Describe"))

        async def known() -> bool:
            try:
                return bool((await etl.metadata("t")).topics)
            except NotAuthenticated:
                return False

        for _ in range(3):
            await until(known)
            call = await watching(etl)
            assert await call.read() is not None
            await root.ask("Revoke", pb.RevokeRequest(add=[ETL]))
            assert isinstance(await call.error(), NotAuthenticated)
            await root.ask("Revoke", pb.RevokeRequest(remove=[ETL]))
        assert loop.time() < over


@pytest.mark.usefixtures("named")
@virtual_time
async def test_who_asks_is_not_locked_out_by_itself_and_needs_a_right(tmp_path: Path) -> None:
    async with served(tmp_path) as (root, etl):
        with pytest.raises(InvalidRequest, match="lock out"):
            await root.ask("Revoke", pb.RevokeRequest(add=[ROOT]))
        for request in (pb.RevokeRequest(add=["User:x"]), pb.RevokeRequest(remove=["User:x"])):
            with pytest.raises(PermissionDenied, match="the cluster"):
                await etl.ask("Revoke", request)
        with pytest.raises(PermissionDenied):
            await etl.ask("Revoked", pb.RevokedRequest())
        for wrong in (["etl"], ["Broker:1"], ["User:ok", "nobody"], []):
            with pytest.raises(InvalidRequest):
                await root.ask("Revoke", pb.RevokeRequest(add=wrong))
        with pytest.raises(RequestTooLarge):
            await root.ask("Revoke", pb.RevokeRequest(add=["a"] * (REQUEST_RULES_MAX + 1)))
        assert list((await root.ask("Revoked", pb.RevokedRequest())).entries) == []
        await root.ask("Revoke", pb.RevokeRequest(add=["User:x", "aff01"]))
    lines = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    told = [(line["operation"], line["resource"]) for line in lines if line.get("method") == "Revoke"]
    assert ("add", "User:x") in told
    assert ("add", "aff01") in told


@pytest.mark.usefixtures("named")
@virtual_time
async def test_a_document_that_cannot_be_read_leaves_revoked_who_was_and_a_new_start_keeps_it(tmp_path: Path) -> None:
    store = CoordinationService(FileStore(tmp_path))
    async with served(tmp_path, coordination=lambda: store) as (root, etl):
        await root.allow(*RIGHTS)
        await root.ask("Revoke", pb.RevokeRequest(add=[ETL]))
        version = (await store.security.read()).documents["revoked"][0]
        await store.security.write({"revoked": (version, b"{")})
        await root.ask("Acls", pb.AclsRequest())
        with pytest.raises(NotAuthenticated):
            await etl.metadata("t")
        version = (await store.security.read()).documents["revoked"][0]
        await store.security.write({"revoked": (version, b'{"names":["User:etl"],"serials":[]}')})
    async with judging(tmp_path) as again:
        with pytest.raises(NotAuthenticated):
            await As(again, ETL).metadata("t")


@real_time
async def test_one_certificate_is_revoked_by_its_serial_and_its_user_may_have_another(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs", 1)
    admin, former = certs.user("admin"), certs.user("etl")
    renewed = certs.security_of(certs.authority.client("etl"), "renewed")
    pem = former.files().certificate.read_bytes()
    serial = f"{x509.load_pem_x509_certificate(pem).serial_number:X}"

    def topics(address: str, security: Security) -> list[str]:
        with Admin(address, timeout_ms=30_000, security=security) as mine:
            return list(mine.list_topics())

    def job(address: str) -> None:
        with Admin(address, security=admin) as root, Producer(address, security=former, linger_ms=0) as producer:
            root.create_topic("t", partitions=1, replicas=1)
            root.alter_acls(add=[AclRule("User:etl", "Write", "Topic", "t")])
            assert producer.publish("t", "before").result(30).offset == 0
            check = ["check", "--dir", str(certs.path), "--bootstrap", address, "--user", "etl"]
            assert f"{address}: good" in CliRunner().invoke(cert, check, standalone_mode=False).output
            done = root.revoke(serial)
            assert (done.added, done.late, done.not_judging) == (1, (), ())
            with pytest.raises(NotAuthenticated):
                producer.publish("t", "after").result(30)
            with pytest.raises(NotAuthenticated):
                topics(address, former)
            assert topics(address, renewed) == ["t"]
            checked = CliRunner().invoke(cert, check, standalone_mode=False)
            assert (checked.return_value, f"{address}: not authenticated: this user" in checked.output) == (1, True)
            assert root.revoked() == [serial.lower()]
            root.revoke("User:etl")
            with pytest.raises(NotAuthenticated):
                topics(address, renewed)
            root.revoke(serial, "User:etl", undo=True)
            assert topics(address, former) == topics(address, renewed) == ["t"]
            (own,) = (x509.load_pem_x509_certificate(admin.files().certificate.read_bytes()),)
            with pytest.raises(InvalidRequest, match="lock out"):
                root.revoke(f"{own.serial_number:x}")

    broker = await Broker(BrokerConfig(1, f"{HOST}:0", tmp_path / "data", certs=certs.path)).start()
    try:
        await asyncio.to_thread(job, broker.address)
    finally:
        await broker.stop()
