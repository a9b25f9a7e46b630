"""A pair is found good or bad by a handshake with itself, before anybody else meets it."""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

import pytest

from mq_protocol.access.pem import Files, Pem, context, examine, open_to_others, read
from mq_protocol.errors import InvalidSetting
from tests.securing import EXPIRED, NOT_YET, Certs


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


def pem_of(certs: Certs, certificate: bytes, key: bytes) -> Pem:
    return Pem(certs.ca, certificate, key)


def test_what_a_good_certificate_says_is_told(certs: Certs) -> None:
    pair = certs.authority.broker(7, ["127.0.0.1", "one.example"])
    shown = examine(pem_of(certs, pair.certificate, pair.key), server=True)
    assert shown.uris == ("tritonmq://broker/7",)
    assert sorted(shown.hosts) == ["127.0.0.1", "one.example"]
    assert shown.not_after - shown.not_before > 364 * 86_400


@pytest.mark.parametrize(("name", "told"), [("expired", "has expired"), ("not_yet", "not valid yet")])
def test_a_time_that_is_over_or_has_not_begun_is_named(certs: Certs, name: str, told: str) -> None:
    pair = certs.authority.client("etl", span={"expired": EXPIRED, "not_yet": NOT_YET}[name])
    with pytest.raises(InvalidSetting, match=told):
        examine(pem_of(certs, pair.certificate, pair.key), server=False)


def test_a_certificate_of_another_authority_is_named(certs: Certs, tmp_path: Path) -> None:
    pair = Certs(tmp_path / "others").authority.client("etl")
    with pytest.raises(InvalidSetting, match=r"an authority signed it that is not in ca\.crt"):
        examine(pem_of(certs, pair.certificate, pair.key), server=False)


def test_a_clients_certificate_is_no_servers(certs: Certs) -> None:
    pair = certs.authority.client("etl")
    examine(pem_of(certs, pair.certificate, pair.key), server=False)
    with pytest.raises(InvalidSetting, match="not made for this purpose"):
        examine(pem_of(certs, pair.certificate, pair.key), server=True)


def test_a_key_of_another_certificate_is_named(certs: Certs) -> None:
    one, other = certs.authority.client("etl"), certs.authority.client("etl")
    with pytest.raises(InvalidSetting, match="do not belong together"):
        context(pem_of(certs, one.certificate, other.key), server=False)


@pytest.mark.parametrize("name", ["ca.crt", "client.etl.crt", "client.etl.key"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", b"-----BEGIN FLOWERS-----", b"x" * (300 << 10)])
def test_a_file_that_holds_something_else_is_named(certs: Certs, name: str, content: bytes | None) -> None:
    files = certs.user().files()
    path = certs.path / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InvalidSetting, match=name):
        read(files)


@pytest.mark.parametrize("garbage", [b"AAAA", b"", b"\xff\xfe"])
def test_pem_with_garbage_within_is_refused(certs: Certs, garbage: bytes) -> None:
    pair = certs.authority.client("etl")
    bad = b"-----BEGIN CERTIFICATE-----\n" + garbage + b"\n-----END CERTIFICATE-----\n"
    for pem in (Pem(bad, pair.certificate, pair.key), Pem(certs.ca, bad, pair.key)):
        with pytest.raises(InvalidSetting):
            context(pem, server=False)


def test_an_encrypted_key_is_refused_with_the_command_that_opens_it(certs: Certs) -> None:
    files = certs.user().files()
    files.key.write_bytes(files.key.read_bytes().replace(b"BEGIN PRIVATE", b"BEGIN ENCRYPTED PRIVATE"))
    with pytest.raises(InvalidSetting, match="openssl pkey"):
        read(files)


def test_a_session_cannot_be_resumed_so_that_a_certificate_is_always_asked_for(certs: Certs) -> None:
    pair = certs.authority.broker(1, ["127.0.0.1"])
    pem = pem_of(certs, pair.certificate, pair.key)
    dialling = context(pem, server=False)
    dialling.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = dialling.wrap_bio(to_client, to_server)
    server = context(pem, server=True).wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    server.do_handshake()
    server.write(b"x")
    assert client.read(1) == b"x"
    assert client.session is None or not client.session.has_ticket


def test_a_key_is_in_no_repr(certs: Certs) -> None:
    pair = certs.authority.client("etl")
    assert "PRIVATE" not in repr(pem_of(certs, pair.certificate, pair.key))


@pytest.mark.parametrize(("mode", "good"), [(0o600, True), (0o711, True), (0o604, False), (0o660, False)])
def test_a_key_that_others_read_is_found_with_the_command_that_mends_it(tmp_path: Path, mode: int, good: bool) -> None:
    key = tmp_path / "broker.key"
    key.touch()
    key.chmod(mode)
    assert ("chmod 600" not in open_to_others(key)) == good


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_found(tmp_path: Path) -> None:
    key = tmp_path / "broker.key"
    key.touch(0o600)
    os.chown(key, 12_345, 12_345)
    assert "chown" in open_to_others(key)


def test_files_that_were_replaced_are_another_generation(certs: Certs) -> None:
    files: Files = certs.user().files()
    before = files.generation()
    assert files.generation() == before
    certs.authority.client("etl").write(certs.path, "client.etl")
    assert files.generation() != before
