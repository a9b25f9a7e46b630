"""Names are made of what a handshake proved. Whatever is unclear names nobody."""

from __future__ import annotations

import pytest

from mq_broker.security.names import (
    ANONYMOUS,
    Principal,
    broker_uri,
    client_uri,
    is_anothers,
    kind_of_kept,
    member_of,
    of_auth_context,
    of_certificate,
)
from mq_protocol.errors import InvalidRequest, NotAuthenticated

ETL = Principal("User", "etl")


def shown(**changed: list[bytes] | None) -> dict[str, list[bytes]]:
    """What gRPC says of a connection with a client's certificate, with some of it changed; None leaves it out."""
    context = {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [b"etl"],
        "x509_pem_cert": [b"-----BEGIN"],
        "peer_uri": [b"tritonmq://client/etl"],
        "ssl_tls_version": [b"TLSv1.3"],
    }
    return {key: value for key, value in (context | changed).items() if value is not None}


@pytest.mark.parametrize("text", ["User:etl", "Group:data team", "Broker:3", "User:zoë"])
def test_a_principal_is_written_and_read_the_same(text: str) -> None:
    assert str(Principal.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["etl", "user:etl", "User:", ":etl", "User:a/b", "User:a,b", "User:a\nb", "User:zoe\u0308", "User:" + "x" * 256,
     "User:*", "User:etl-*", "Group:*",
     "Broker:", "Broker:0", "Broker:01", "Broker:1e3", "Broker:\u0661", "Broker:2147483648", "Root:x"],
)  # fmt: skip
def test_a_name_that_nobody_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Principal.parse(text)


def test_a_name_with_a_star_is_told_so_and_what_is_kept_of_one_can_be_read() -> None:
    for name in ("*", "etl-*"):
        with pytest.raises(
            InvalidRequest, match=r"no name of a user or group has a \*, as 'User:.*' has: choose another"
        ):
            Principal("User", name)
        assert (kind_of_kept(f"User:{name}"), kind_of_kept(f"Group:{name}")) == ("User", "Group")
    for text in ("User:", "User:a/*", "Broker:*", "etl", "*"):
        with pytest.raises(InvalidRequest):
            kind_of_kept(text)


def test_case_counts() -> None:
    assert Principal.parse("User:ETL") != ETL


@pytest.mark.parametrize("name", ["etl", "data team", "zoë", "100%", "a:b?c#d", "東京"])
def test_the_uri_of_a_user_is_ascii_and_is_read_back(name: str) -> None:
    uri = client_uri(name)
    assert uri.isascii()
    assert of_certificate([uri], "someone else") == Principal("User", name)


def test_a_certificate_of_a_broker_is_a_broker_and_no_user() -> None:
    assert of_certificate([broker_uri(7)], "etl") == Principal("Broker", "7")


def test_a_certificate_without_a_uri_of_ours_is_a_user_by_its_common_name() -> None:
    assert of_certificate(["https://example.test/etl"], "etl") == ETL


@pytest.mark.parametrize(
    "uris",
    [
        ["tritonmq://client/etl", "tritonmq://client/admin"],
        ["tritonmq://client/etl", "tritonmq://broker/1"],
        ["tritonmq://client/"],
        ["tritonmq://client/ANONYMOUS"],
        ["tritonmq://client/%61dmin"],  # a second way of writing admin
        ["tritonmq://client/etl?x"],
        ["tritonmq://client/etl/x"],
        ["tritonmq://client/%ff"],
        ["tritonmq://client/a%0ab"],
        ["tritonmq://CLIENT/etl"],
        ["TRITONMQ://client/etl"],
        ["tritonmq://broker/one"],
        ["tritonmq://broker/0"],
        ["tritonmq://somebody/etl"],
    ],
)
def test_a_uri_that_is_not_to_the_letter_names_nobody(uris: list[str]) -> None:
    with pytest.raises(NotAuthenticated):
        of_certificate(uris, "etl")


@pytest.mark.parametrize("common_name", ["", "ANONYMOUS", "a/b", " etl", "*", "*.example.com"])
def test_a_common_name_that_no_user_has_names_nobody(common_name: str) -> None:
    with pytest.raises(NotAuthenticated):
        of_certificate([], common_name)


def test_plain_text_is_anonymous() -> None:
    assert of_auth_context({"transport_security_type": [b"insecure"]}) == ANONYMOUS


def test_tls_with_a_certificate_gives_its_name() -> None:
    assert of_auth_context(shown()) == ETL
    assert of_auth_context(shown(peer_uri=[b"tritonmq://broker/2"])) == Principal("Broker", "2")
    assert of_auth_context(shown(peer_uri=None, x509_common_name=[b"ann"])) == Principal("User", "ann")


@pytest.mark.parametrize(
    "changed",
    [
        {"ssl_tls_version": [b"TLSv1.2"]},
        {"ssl_tls_version": None},
        {"ssl_tls_version": [b"TLSv1.3", b"TLSv1.2"]},
        {"x509_pem_cert": None},
        {"transport_security_type": None},
        {"transport_security_type": [b"ssl", b"insecure"]},
        {"transport_security_type": [b"local"]},
        {"peer_uri": None, "x509_common_name": None},
        {"peer_uri": None, "x509_common_name": [b"etl", b"admin"]},
        {"peer_uri": None, "x509_common_name": [b"\xff"]},
        {"peer_uri": [b"tritonmq://client/\xc3\xa9"]},
    ],
)
def test_what_is_unclear_about_a_connection_is_no_name(changed: dict[str, list[bytes] | None]) -> None:
    with pytest.raises(NotAuthenticated):
        of_auth_context(shown(**changed))


def test_a_member_is_anothers_if_it_has_a_users_name_and_that_is_not_the_same() -> None:
    mine, theirs, nobodys = (member_of(user, "m") for user in (ETL, Principal("User", "night"), ANONYMOUS))
    assert is_anothers(theirs, mine)
    assert is_anothers(theirs, nobodys)
    assert not is_anothers(mine, mine)
    assert not is_anothers(nobodys, mine)
    assert not is_anothers(nobodys, nobodys)
