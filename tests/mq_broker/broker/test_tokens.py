"""Tokens: who shows a good one is that user and no other, and who does not is told nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mq_broker.broker.administration.rights import acls
from mq_broker.broker.config import BrokerConfig
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.rpc import bounds
from mq_broker.security import oidc
from mq_broker.security.failures import DELAY_S, FAILURES
from mq_broker.security.names import ANONYMOUS
from mq_client import AclRule, Admin, Consumer, Producer, Reader, Security
from mq_client.errors import InvalidRequest, NotAuthenticated, PermissionDenied, Unreachable
from mq_protocol import mq_pb2 as pb
from mq_protocol.access.pem import CA_FILE
from mq_protocol.access.secrets import new_api_token
from mq_protocol.arrow import encode_batch
from mq_protocol.errors import TritonMQError
from mq_protocol.methods import BROKER, PEER
from mq_protocol.wire.call import PREAMBLE
from tests.coroutines import real_time
from tests.issuer import AUDIENCE, Issuer
from tests.mq_broker.broker.by_token import Place, beside, over_tls
from tests.mq_broker.broker.cluster import Broker, rows, until
from tests.mq_broker.broker.test_taking_rights_away import OPEN, watching
from tests.mq_broker.coordination.wire import LASTING_MS
from tests.securing import HOST, Certs

RULES = [AclRule("User:etl", each, "Topic", "t") for each in ("Describe", "Read", "Write")]
RULES += [AclRule("User:etl", "Read", "Group", "g"), AclRule("User:etl", "Write", "Lock", "l")]


def prepared(place: Place) -> str:
    """A topic `t`, and the token of `User:etl`, who may do what `RULES` say."""
    with place.admin() as admin:
        admin.create_topic("t", partitions=1, replicas=1)
        admin.alter_acls(add=RULES)
    return place.made().secret.reveal()


def test_every_client_speaks_by_a_token_in_a_file(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        file = tmp_path / "token"
        file.write_text(prepared(place) + "\n")
        security = place.security(file=file)
        with Producer(place.address, security=security) as producer:
            assert producer.publish("t", "hello").result(30).offset == 0
            with pytest.raises(PermissionDenied, match="User:etl"), Admin(place.address, security=security) as admin:
                admin.alter_topic("t", retention_ms="1000")
        with Reader(place.address, security=security) as reader:
            assert sum(batch.num_rows for batch in reader.read("t", 0, 0, 1)) == 1
        with Consumer(place.address, group="g", start="earliest", idle_ms=30_000, security=security) as consumer:
            consumer.subscribe("t")
            assert next(iter(consumer)).value == b"hello"

    beside(tmp_path, job)


def test_a_client_says_what_it_has_shown(tmp_path: Path) -> None:
    """The broker says no more than that who asks is not authenticated."""
    file, wrong = tmp_path / "etl.token", new_api_token()[1].reveal()
    file.write_text(wrong)

    def job(place: Place) -> None:
        told = {
            f"the token in {file} is wrong, expired or revoked": place.security(file=file),
            ": the token is wrong, expired or revoked": place.security(token=wrong),
        }
        for words, security in told.items():
            with pytest.raises(NotAuthenticated) as refused, Admin(place.address, security=security) as admin:
                admin.list_topics()
            assert words in str(refused.value)
            assert wrong not in str(refused.value)

    beside(tmp_path, job)


BAD = {
    "of another scheme": ("Basic eDp5", "characters that no token has"),
    "other characters": ("a b{c", "characters that no token has"),
    "of no kind": ("abc", "of a kind that is not known here"),
    "large": ("a" * 6_200, "too long"),
    "never made": (new_api_token()[1].reveal(), "is not known"),
    "nearly one": ("tmq_" + "a" * 60, "no API token"),
}


@real_time
async def test_who_has_no_good_token_is_told_nothing_by_any_method_and_the_audit_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(bounds, "parse", lambda data, _kind: parsed.append(data))
    monkeypatch.setattr("mq_broker.security.failures.FAILURES", 10_000)
    async with over_tls(tmp_path) as place:
        for user in ("", "admin"):  # a certificate does not stand in for a token that is not good
            for token, _ in BAD.values():
                async with place.shown(user, token=token) as stranger:
                    error = await stranger.channel.refusal("Metadata")
                    assert isinstance(error, NotAuthenticated)
                    assert str(error) == "not authenticated"
        async with place.shown(token="abc") as stranger:
            for method in BROKER.methods:
                assert isinstance(await stranger.channel.refusal(method), NotAuthenticated), method
            for method in PEER.methods.keys() - BROKER.methods.keys():
                assert isinstance(await stranger.channel.refusal(method), InvalidRequest), method
    for _, why in BAD.values():
        await asyncio.to_thread(place.wait_until_audited, why, "Metadata")
    assert not [line for line in (place.data / "audit.log").read_text().splitlines() if "a" * 40 in line]
    assert not parsed


@real_time
async def test_who_shows_a_token_and_a_certificate_is_the_tokens_user(tmp_path: Path) -> None:
    async with over_tls(tmp_path) as place:
        token = await asyncio.to_thread(prepared, place)
        request = pb.CreateTopicRequest(name="x", partitions=1, replicas=1)
        for user in ("", "admin"):
            async with place.shown(user, token=token) as etl:
                with pytest.raises(PermissionDenied, match="User:etl"):
                    await etl.ask("CreateTopic", request)


@pytest.mark.parametrize("how", ["revoked", "deleted"])
@real_time
async def test_what_a_token_has_open_ends_with_it(how: str, tmp_path: Path) -> None:
    async with over_tls(tmp_path) as place:
        token = await asyncio.to_thread(prepared, place)
        async with place.shown(token=token) as etl:
            calls = [await opening(etl) for opening, _ in OPEN.values()]
            for call in calls:
                assert await call.read() is not None
            async with etl.producing() as stream:
                await stream.send("t", encode_batch(rows(1)), 1)
                await stream.result()
                with place.admin() as admin:
                    if how == "revoked":
                        await asyncio.to_thread(admin.revoke_token, token[4:20])
                    else:
                        await asyncio.to_thread(admin.delete_user, "etl")
                for call in (*calls, stream.call):
                    error = await call.error()
                    assert isinstance(error, NotAuthenticated)
                    assert str(error) == "not authenticated"
            with pytest.raises(NotAuthenticated, match=r"^not authenticated$"):
                await etl.metadata("t")


@real_time
async def test_a_jwt_is_its_user_with_its_groups_and_its_streams_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "SKEW_S", 0.0)
    with Issuer(tmp_path / "issuer") as issuer:
        options = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_ca": issuer.ca}
        async with over_tls(tmp_path, **options) as place:
            await asyncio.to_thread(prepared, place)
            with place.admin() as admin:
                night = [AclRule("Group:night", "Read", "Topic", "night-", prefix=True)]
                no_day = [AclRule("Group:night", "Describe", "Topic", "t", deny=True)]
                await asyncio.to_thread(admin.alter_acls, [*night, *no_day])
                await asyncio.to_thread(admin.create_topic, "night-1", partitions=1, replicas=1)

            async def sees(token: str) -> list[str]:
                async with place.shown(token=token) as client:
                    answer = await client.ask("Metadata", pb.MetadataRequest(topics=["night-1", "t"]))
                    return sorted(topic.name for topic in answer.topics)

            async def opened_and_ended() -> bool:
                """Whether it was opened at all: else its time was over before, and a next one is asked for."""
                ends = int(time.time()) + 4
                async with place.shown(token=issuer.token(exp=ends)) as etl:
                    call = await watching(etl)
                    try:
                        assert await call.read() is not None
                    except NotAuthenticated:
                        return False
                    assert isinstance(await call.error(), NotAuthenticated)
                    assert time.time() >= ends
                    return True

            assert await sees(issuer.token()) == ["t"]
            assert await sees(issuer.token(groups=["night"])) == ["night-1"]
            assert await sees(issuer.token(sub="other", groups=["day"])) == []
            with pytest.raises(NotAuthenticated, match=r"^not authenticated$"):
                await sees(issuer.token(aud="others"))
            await until(opened_and_ended)
            await asyncio.to_thread(issuer.stop)
            assert await sees(issuer.token()) == ["t"], "the keys are known"
        await asyncio.to_thread(place.wait_until_audited, "the JWT is not good")


def test_a_token_is_gone_at_a_broker_that_was_not_asked(
    zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper tells it: nobody looks by himself meanwhile."""
    monkeypatch.setattr(acls, "SWEEP_S", 3_600.0)
    certs = Certs(tmp_path / "certs", 1)
    make = lambda: CoordinationService(ZooKeeperStore(zookeeper, LASTING_MS, root=f"/{tmp_path.name}"))  # noqa: E731

    async def main() -> None:
        async with over_tls(tmp_path / "1", certs, coordination=make) as first:
            asked = BrokerConfig(
                2, f"{HOST}:0", tmp_path / "2", authorize=True, superusers=(ANONYMOUS,), coordination=make
            )
            await asyncio.to_thread(prepared, first)  # first, so that what is watched is there
            second = await Broker(asked).start()
            try:
                await measured(first, second)
            finally:
                await second.stop()

    async def measured(first: Place, second: Broker) -> None:
        for _ in range(3):
            made = await asyncio.to_thread(new_token, first)
            async with first.shown(token=made.secret.reveal()) as etl:
                await until(lambda etl=etl: etl.metadata("t"))
                call = await watching(etl)
                assert await call.read() is not None
                await second.ask("AlterTokens", pb.AlterTokensRequest(revoke_token=made.id))
                assert isinstance(await call.error(), NotAuthenticated)

    def new_token(place: Place) -> Any:
        with place.admin() as admin:
            return admin.create_token("etl")

    asyncio.run(main())


@real_time
async def test_who_fails_often_waits_and_others_do_not(tmp_path: Path) -> None:
    async with over_tls(tmp_path) as place:
        token = await asyncio.to_thread(prepared, place)

        async def seconds(token: str) -> float:
            async with place.shown(token=token) as client:
                began = time.monotonic()
                with contextlib.suppress(NotAuthenticated):
                    await client.metadata("t")
                return time.monotonic() - began

        for _ in range(FAILURES):
            await seconds("x")
        many = await asyncio.gather(*(seconds("x") for _ in range(20)))
        assert min(many) >= DELAY_S
        assert min([await seconds(token) for _ in range(5)]) < DELAY_S, "with a good one nobody waits"


def test_a_token_is_never_sent_in_plain_text(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    heard: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                with contextlib.suppress(OSError):
                    connection.sendall(PREAMBLE)
                    while data := connection.recv(65_536):
                        heard.append(data)

    token = new_api_token()[1].reveal()
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        address = f"{HOST}:{listening.getsockname()[1]}"
        security = Security(ca=certs.path / CA_FILE, token=token)
        with pytest.raises(TritonMQError), Admin(address, timeout_ms=3_000, security=security) as admin:
            admin.list_topics()
        listening.shutdown(socket.SHUT_RDWR)
    assert heard
    assert token.encode() not in b"".join(heard)


def test_a_producer_goes_on_with_the_token_that_takes_the_place_of_the_former(tmp_path: Path) -> None:
    """The former is revoked right after the file is written: before anybody could have looked at it."""

    def job(place: Place) -> None:
        file = tmp_path / "token"
        file.write_text(prepared(place))
        former = file.read_text()[4:20]
        security = place.security(file=file)
        with place.admin() as admin, Producer(place.address, security=security, linger_ms=0) as producer:
            assert producer.publish("t", "before").result(30).offset == 0
            other = admin.create_token("etl")
            file.write_text(other.secret.reveal())
            admin.revoke_token(former)
            assert producer.publish("t", "after").result(30).offset == 1
            with Admin(place.address, security=security) as by_token:
                assert by_token.list_topics()
            admin.revoke_token(other.id)
            with pytest.raises((NotAuthenticated, Unreachable)):
                producer.publish("t", "never").result(60)

    beside(tmp_path, job)


def test_who_may_make_users_makes_no_superuser(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        prepared(place)
        with place.admin() as admin:
            admin.alter_acls(add=[AclRule("User:helpdesk", "Acls", "Cluster")])
            helpdesk = admin.create_user("helpdesk")
            root = admin.create_user("admin")
        with Admin(place.address, security=place.security(helpdesk.secret.reveal())) as admin:
            assert admin.create_user("bi").user == "bi"
            for made in (lambda: admin.create_token("admin"), lambda: admin.create_user("admin")):
                with pytest.raises(PermissionDenied, match="no token of a superuser"):
                    made()
            for locked_out in (lambda: admin.revoke_token(helpdesk.id), lambda: admin.delete_user("helpdesk")):
                with pytest.raises(InvalidRequest, match="lock out"):
                    locked_out()
        with Admin(place.address, security=place.security(root.secret.reveal())) as admin:
            admin.create_token("admin")
        etl = place.certs.user("bi")
        with Admin(place.address, security=etl) as admin, pytest.raises(PermissionDenied):
            admin.token_users()

    beside(tmp_path, job)


@real_time
async def test_a_request_that_was_answered_is_answered_again(tmp_path: Path) -> None:
    """The answer may have been lost."""
    async with over_tls(tmp_path) as place:
        root = (await asyncio.to_thread(place.made, "admin")).secret.reveal()
        async with place.shown(token=root) as admin:
            request = pb.AlterTokensRequest(
                create_user="etl", token=pb.NewApiToken(id="0" * 16, sha256=b"d" * 32, valid_s=60)
            )
            first = await admin.ask("AlterTokens", request)
            again = await admin.ask("AlterTokens", request)
            assert (first.changed, again.changed) == (True, False)
            assert first.expires_s == again.expires_s
            request.token.sha256 = b"e" * 32
            wrong = [
                request,
                pb.AlterTokensRequest(),
                pb.AlterTokensRequest(create_user="x"),
                pb.AlterTokensRequest(user="etl"),
                pb.AlterTokensRequest(delete_user="a", revoke_token="b"),
                pb.AlterTokensRequest(token=request.token),
                pb.AlterTokensRequest(delete_user="etl", token=request.token),
                pb.AlterTokensRequest(user="etl", token=pb.NewApiToken(id="1" * 16, sha256=b"d", valid_s=60)),
            ]
            for each in wrong:
                with pytest.raises(InvalidRequest):
                    await admin.ask("AlterTokens", each)
