"""Names: who speaks at the other end of a connection.

A name is made of what the handshake of the connection has proved, and of nothing else: no header and no field of a
request can give one. A certificate says it by a URI among its subject's alternative names:

    tritonmq://client/<name>    a user; the name is percent-encoded UTF-8
    tritonmq://broker/<id>      a broker, which is no user

A certificate without such a URI is a user by its common name. In plain text everybody is `User:ANONYMOUS`.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias, get_args

from mq_protocol.errors import InvalidRequest, NotAuthenticated
from mq_protocol.names import check_user_name, quoted

Kind: TypeAlias = Literal["User", "Broker", "Group"]

SCHEME: Final = "tritonmq://"
CLIENT_URI: Final = f"{SCHEME}client/"
BROKER_URI: Final = f"{SCHEME}broker/"

TLS_VERSION: Final = "TLSv1.3"

_KINDS: Final = frozenset(get_args(Kind))
_ID: Final = re.compile("[1-9][0-9]{0,9}")
_ID_MAX: Final = (1 << 31) - 1
_REMEMBERED: Final = 4_096
"""So many certificates are read once."""

_VERSION: Final = 0xA0
_INTEGER: Final = 0x02

AuthContext: TypeAlias = Mapping[str, Iterable[bytes]]
"""What is proved of a connection, by names that are gRPC's: both kinds of calls have them (`Call.auth_context`)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who does something. Case counts. `str` gives `User:etl`, and `parse` reads it. Raises `InvalidRequest` for a name
    that nobody can have."""

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidRequest(
                f"{quoted(self.kind)} is no kind of principal: write User:NAME, Group:NAME or Broker:ID"
            )
        if self.kind == "Broker":
            if not _is_id(self.name):
                raise InvalidRequest(f"{quoted(self.name)} is no broker's id: write Broker:ID, such as Broker:1")
        else:
            if "*" in self.name:  # meant as a pattern, it would be one name
                raise InvalidRequest(f"no name of a user or group has a *, as {quoted(str(self))} has: choose another")
            check_user_name(self.name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """`User:etl` and its like. Raises `InvalidRequest`."""
        kind, _, name = text.partition(":")
        _check_kind(kind, text)
        return cls(kind, name)  # type: ignore[arg-type]  # just looked up


def kind_of_kept(text: str) -> Kind:
    """Of a principal in a document that is kept: as `Principal.parse`, but a name may have a `*`, as it could once. Who
    is called so is nobody, and what is kept of it can be listed and taken away. Raises `InvalidRequest`."""
    _check_kind(text.partition(":")[0], text)
    return Principal.parse(text.replace("*", "x")).kind


def _check_kind(kind: str, text: str) -> None:
    if kind not in _KINDS or ":" not in text:
        near = f". Did you mean {quoted(f'User:{text}')}?" if text and ":" not in text else ""
        raise InvalidRequest(f"{quoted(text)} names no principal: write User:NAME, Group:NAME or Broker:ID{near}")


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Everybody who comes in plain text."""


_OF: Final = "\x00"
"""Neither ids nor names have it. Members are in the order of their ids, which clients know."""


def member_of(user: Principal, member: str) -> str:
    """A member of a group as brokers know it: by its id, and by its user if that has a name. So it belongs to the user
    who joined with it. Under the same id another user is another member, which can neither take its place nor settle
    what it was lent."""
    return member if user == ANONYMOUS else f"{member}{_OF}{user}"


def member_shown(member: str) -> str:
    """The id of a member that brokers know as that."""
    return member.partition(_OF)[0]


def is_anothers(member: str, of: str) -> bool:
    """Whether two members as brokers know them are of two users that have names, or only the first is."""
    user = member.partition(_OF)[2]
    return user not in ("", of.partition(_OF)[2])


def client_uri(name: str) -> str:
    """The URI in the certificate of `User:<name>`. Raises `InvalidRequest` for a name that nobody can have."""
    if Principal("User", name) == ANONYMOUS:
        raise InvalidRequest(f"{ANONYMOUS} is everybody without a certificate: choose another name")
    return CLIENT_URI + urllib.parse.quote(name, safe="")


def broker_uri(broker: int) -> str:
    """The URI in the certificate of that broker. Raises `InvalidRequest` for what is no id."""
    return BROKER_URI + Principal("Broker", str(broker)).name


def of_certificate(uris: Iterable[str], common_name: str) -> Principal:
    """Whose certificate it is, which a CA of the cluster has signed. `uris`: those of the subject's alternative names,
    and no names of another type. Raises `NotAuthenticated` if it names nobody, or several."""
    ours = sorted({uri for uri in uris if uri.lower().startswith(SCHEME)})
    if len(ours) > 1:
        raise NotAuthenticated(f"the certificate has {len(ours)} URIs that begin with {SCHEME}: it must have one")
    try:
        if ours:
            return _of_uri(ours[0])
        found = Principal("User", common_name)
    except InvalidRequest as error:
        raise NotAuthenticated(f"the certificate names nobody: {error}") from error
    return _no_stranger(found)


def of_auth_context(context: AuthContext) -> Principal:
    """Whose connection it is, by what it has proved. Raises `NotAuthenticated` for TLS of another version than 1.3,
    and for a certificate that names nobody."""
    kind = _one(context, "transport_security_type")
    if not context or kind == b"insecure":
        return ANONYMOUS
    if kind != b"ssl":
        raise NotAuthenticated("the connection is neither in plain text nor TLS")
    if "x509_pem_cert" not in context:
        raise NotAuthenticated("neither a certificate nor a token was shown")
    check_tls(context)
    return _remembered(tuple(context.get("peer_uri", ())), _one(context, "x509_common_name"))


def check_tls(context: AuthContext) -> None:
    """Raises `NotAuthenticated` for a connection that is not TLS of the version that is demanded."""
    if _one(context, "transport_security_type") != b"ssl":
        raise NotAuthenticated("the connection is not TLS")
    version = _one(context, "ssl_tls_version").decode("ascii", "replace")
    if version != TLS_VERSION:
        raise NotAuthenticated(
            f"this broker speaks {TLS_VERSION} only, and the connection has {version or 'no'} version"
        )


def serial_of(context: AuthContext) -> str:
    """The serial number of the certificate of that connection: hexadecimal, without zeros before it, as `tritonmq cert
    show` tells it. Empty in plain text. Raises `NotAuthenticated` for a certificate in which it cannot be found."""
    pem = _one(context, "x509_pem_cert")
    return _serial_in(pem) if pem else ""


# ------------------------------------------------------------------ private


@lru_cache(_REMEMBERED)
def _serial_in(pem: bytes) -> str:
    """The number is the first in the certificate's first part, behind its version if that is told (RFC 5280, 4.1)."""
    try:
        armoured = pem.partition(b"-----BEGIN CERTIFICATE-----")[2].partition(b"-----END CERTIFICATE-----")[0]
        der = base64.b64decode(armoured)
        _, first, _ = _element(_element(der)[1])
        kind, value, rest = _element(first)
        if kind == _VERSION:
            kind, value, _ = _element(rest)
        if kind != _INTEGER or not value:
            raise ValueError("no number is where the serial should be")
    except (ValueError, IndexError) as error:
        raise NotAuthenticated(f"the certificate's serial number cannot be read: {error}") from error
    return f"{int.from_bytes(value, 'big'):x}"


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """The kind and contents of the first element, and what is behind it. Raises `ValueError` and `IndexError`."""
    kind, length, start = der[0], der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if length > len(der) - start:
        raise ValueError("it is cut off")
    return kind, der[start : start + length], der[start + length :]


@lru_cache(_REMEMBERED)
def _remembered(uris: tuple[bytes, ...], common_name: bytes) -> Principal:
    try:
        return of_certificate([uri.decode("ascii") for uri in uris], common_name.decode())
    except UnicodeDecodeError as error:
        raise NotAuthenticated("the certificate names nobody: a name in it is no text") from error


def _one(context: AuthContext, key: str) -> bytes:
    """The only value under that key; empty if there is none, or more."""
    values = list(context.get(key, ()))
    return values[0] if len(values) == 1 else b""


def _of_uri(uri: str) -> Principal:
    """Raises `InvalidRequest` for one that is not of this grammar, to the letter."""
    if uri.startswith(BROKER_URI):
        return Principal("Broker", uri.removeprefix(BROKER_URI))
    if uri.startswith(CLIENT_URI):
        try:
            name = urllib.parse.unquote(uri.removeprefix(CLIENT_URI), errors="strict")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{quoted(uri)} is not UTF-8 once it is decoded") from error
        if client_uri(name) == uri:  # one certificate's name is written in one way
            return Principal("User", name)
    raise InvalidRequest(f"{quoted(uri)} is neither {CLIENT_URI}NAME, percent-encoded, nor {BROKER_URI}ID")


def _no_stranger(found: Principal) -> Principal:
    if found == ANONYMOUS:
        raise NotAuthenticated(
            f"the certificate is in the name of {ANONYMOUS}, which is everybody without a certificate"
        )
    return found


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None and int(text) <= _ID_MAX
