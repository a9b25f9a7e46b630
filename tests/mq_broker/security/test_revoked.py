"""What is revoked: entries as people write them, the document, and the serial in a certificate."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from mq_broker.security.names import serial_of
from mq_broker.security.revoked import ENTRIES_MAX, Revoked, dump, entry_of, load, new_entry_of
from mq_protocol.errors import CoordinationUnavailable, InvalidRequest, NotAuthenticated
from tests.securing import Certs


def test_an_entry_is_a_user_or_a_serial_in_one_form() -> None:
    assert entry_of("User:etl") == "User:etl"
    assert {entry_of(text) for text in ("0A:FF:01", "aff01", "0x0AFF01", "AFF01")} == {"aff01"}


@pytest.mark.parametrize(
    "text", ["", "0", "etl", "User:", "User:ANONYMOUS", "Broker:1", "Group:g", "xyz", "a" * 41, "User:a\nb", "1 2"]
)
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        entry_of(text)


def test_a_pattern_is_not_revoked_and_what_is_kept_of_one_is_read_and_taken_back() -> None:
    kept = load(b'{"names":["User:etl-*"],"serials":[]}')
    assert kept.changed([], [entry_of("User:etl-*")]) == Revoked()
    with pytest.raises(InvalidRequest, match=r"no name of a user or group has a \*"):
        new_entry_of("User:etl-*")
    assert (new_entry_of("User:etl"), new_entry_of("0A:FF")) == ("User:etl", "aff")


def test_what_is_revoked_is_found_by_name_and_by_serial_and_can_be_taken_back() -> None:
    revoked = Revoked().changed(["User:etl", "aff01"], [])
    assert revoked.has("User:etl", "")
    assert revoked.has("User:other", "aff01")
    assert not revoked.has("User:other", "aff02")
    assert not revoked.has("User:other", "")
    assert load(dump(revoked)) == revoked
    assert revoked.changed([], ["User:etl"]).entries == ["aff01"]
    with pytest.raises(InvalidRequest, match="--undo"):
        revoked.changed([f"{number:x}" for number in range(1, ENTRIES_MAX + 5)], [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"names":["etl"],"serials":[]}',
        b'{"names":["aff01"],"serials":[]}',
        b'{"names":[],"serials":["AF"]}',
        b'{"names":[],"serials":[7]}',
        b'{"names":7,"serials":[]}',
        b'{"names":[],"serials":[],"more":1}',
        b"[" * 100_000,
    ],
)
def test_a_document_that_this_version_does_not_know_is_not_read(data: bytes) -> None:
    with pytest.raises(CoordinationUnavailable, match="revoked"):
        load(data)


def context_of(pem: bytes) -> dict[str, list[bytes]]:
    return {"x509_pem_cert": [pem]}


def test_the_serial_of_a_certificate_is_what_the_command_shows(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    for number in range(8):  # of random length
        pem = certs.authority.client(f"user-{number}").certificate
        assert serial_of(context_of(pem)) == f"{x509.load_pem_x509_certificate(pem).serial_number:x}"
    assert serial_of({}) == ""


def test_a_certificate_that_is_cut_or_changed_anywhere_has_a_serial_or_is_refused(tmp_path: Path) -> None:
    pem = Certs(tmp_path / "certs").authority.client("etl").certificate
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    changed = [der[:length] for length in range(60)]
    changed += [
        bytes([*der[:place], byte, *der[place + 1 :]]) for place in range(40) for byte in (0, 1, 0x7F, 0x80, 0xFF)
    ]
    for each in changed:
        armoured = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(each) + b"-----END CERTIFICATE-----\n"
        try:
            assert isinstance(serial_of(context_of(armoured)), str)
        except NotAuthenticated:
            continue
    with pytest.raises(NotAuthenticated):
        serial_of(context_of(b"no certificate"))
