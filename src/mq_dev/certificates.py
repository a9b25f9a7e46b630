"""Certificates of a cluster: made, renewed and described. Needs `cryptography`, which the extra `security` brings.

One authority signs everything: a broker's certificate, with the hosts that others dial and its id, and a client's, with
its name (the URIs of mq_broker/security/names.py). Keys are ECDSA P-256. Files are written whole or not at all.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    from mq_protocol.errors import InvalidSetting

    raise InvalidSetting(
        "making certificates needs the package cryptography: pip install '.[security]' in a clone of TritonMQ"
    ) from error

from mq_broker.security.names import Principal, broker_uri, client_uri, of_certificate
from mq_protocol.access.pem import BROKER_NAME, CA_FILE, CLIENT_NAME
from mq_protocol.errors import InvalidSetting

CA_DAYS: Final = 3_650
LEAF_DAYS: Final = 365
CA_KEY_FILE: Final = "ca.key"
ADMIN: Final = "admin"
"""The user that is a superuser by default."""

_SKEW: Final = datetime.timedelta(minutes=5)
"""A certificate that was just made is good on a machine whose clock is a little behind."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when a certificate is valid."""

    start: datetime.datetime
    end: datetime.datetime

    @classmethod
    def of_days(cls, days: float) -> Span:
        """From now on. Raises `InvalidSetting` for none."""
        if not 0 < days <= CA_DAYS * 10:
            raise InvalidSetting(f"--days {days:g} is out of range: give 1 to {CA_DAYS * 10}")
        now = datetime.datetime.now(datetime.UTC)
        return cls(now - _SKEW, now + datetime.timedelta(days=days))


class Authority:
    """Owns an authority's key and certificate."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, certs: Path, key_path: Path, days: float = CA_DAYS) -> Authority:
        """A new one: `ca.crt` in `certs`, the key at `key_path`. Raises `InvalidSetting` if one is there already."""
        for path, option in ((certs / CA_FILE, "--dir"), (key_path, "--ca-key")):
            if path.exists():
                raise InvalidSetting(f"{path} is there already: an authority is made once. Choose another {option}")
        certs.mkdir(parents=True, exist_ok=True)
        key, span = ec.generate_private_key(ec.SECP256R1()), Span.of_days(days)
        name = _name(f"TritonMQ CA {secrets.token_hex(4)}")
        made = (
            _builder(name, name, key.public_key(), span)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(key_path, _key_pem(key))
        _write(certs / CA_FILE, made.public_bytes(serialization.Encoding.PEM), 0o644)
        return cls(made, key)

    @classmethod
    def open(cls, certs: Path, key_path: Path) -> Authority:
        """The one whose key that is: its certificate is among those of `ca.crt`. Raises `InvalidSetting`."""
        try:
            key = serialization.load_pem_private_key(_read(key_path), password=None)
        except (ValueError, TypeError) as error:
            raise InvalidSetting(f"{key_path} holds no key in PEM without a password: {error}") from error
        for certificate in certificates_of(certs / CA_FILE):
            if isinstance(key, ec.EllipticCurvePrivateKey) and certificate.public_key() == key.public_key():
                return cls(certificate, key)
        raise InvalidSetting(f"{key_path} is not the key of an authority in {certs / CA_FILE}")

    def broker(self, broker: int, hosts: Sequence[str], days: float = LEAF_DAYS, span: Span | None = None) -> Pair:
        """For that broker, which others reach at those hosts: names and IP addresses. Raises `InvalidSetting`."""
        if not hosts:
            raise InvalidSetting("give --host, the name or the IP address by which others reach the broker")
        names = [x509.UniformResourceIdentifier(broker_uri(broker)), *map(_host, hosts)]
        return self._sign(f"broker {broker}", names, span or Span.of_days(days), server=True)

    def client(self, name: str, days: float = LEAF_DAYS, span: Span | None = None) -> Pair:
        """For `User:<name>`. Raises `InvalidRequest` for a name that nobody can have."""
        uri = x509.UniformResourceIdentifier(client_uri(name))
        return self._sign(name[:_COMMON_NAME_MAX], [uri], span or Span.of_days(days), server=False)

    def again(self, certificate: x509.Certificate, days: float) -> Pair:
        """The same names with a new key and a new time."""
        principal = principal_of(certificate)
        if principal.kind == "Broker":
            return self.broker(int(principal.name), hosts_of(certificate), days)
        return self.client(principal.name, days)

    def _sign(self, common_name: str, names: Sequence[x509.GeneralName], span: Span, *, server: bool) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        made = (
            _builder(_name(common_name), self._certificate.subject, key.public_key(), span)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(made.public_bytes(serialization.Encoding.PEM), _key_pem(key))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """As `<name>.crt` and `<name>.key`, the key closed to others. Each file is replaced as a whole; a broker that
        reads between the two keeps the pair that it has."""
        directory.mkdir(parents=True, exist_ok=True)
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        write_private(key, self.key)
        _write(certificate, self.certificate, 0o644)
        return certificate, key


def broker_directory(certs: Path, broker: int) -> Path:
    """Where the files of a broker are, below those of its cluster: all of it goes to the broker's machine."""
    return certs / f"{BROKER_NAME}.{broker}"


def client_file(name: str) -> str:
    """The files of a client, without `.crt` and `.key`."""
    return f"{CLIENT_NAME}.{name}"


def write_broker(authority: Authority, certs: Path, broker: int, hosts: Sequence[str], days: float = LEAF_DAYS) -> Path:
    """`broker.<id>` with everything that `tritonmq broker --certs` needs."""
    pair = authority.broker(broker, hosts, days)
    directory = broker_directory(certs, broker)
    pair.write(directory, BROKER_NAME)
    _write(directory / CA_FILE, _read(certs / CA_FILE), 0o644)
    return directory


def write_client(authority: Authority, certs: Path, name: str, days: float = LEAF_DAYS) -> tuple[Path, Path]:
    """`client.<name>.crt` and `.key` in `certs`."""
    return authority.client(name, days).write(certs, client_file(name))


def authority_key(certs: Path) -> Path:
    """Where `make_missing` keeps the key of the authority: beside what goes to brokers and clients."""
    return certs.with_name(f"{certs.name}.{CA_KEY_FILE}")


def make_user(certs: Path, name: str) -> None:
    """A further user of a whole set; one that is there stays."""
    if not (certs / f"{client_file(name)}.crt").exists():
        write_client(Authority.open(certs, authority_key(certs)), certs, name)


def make_missing(certs: Path, host: str, brokers: Iterable[int]) -> None:
    """A whole set for a cluster on one machine: an authority with its key beside the directory, those brokers, and the
    user `admin`. What is there stays."""
    key_path = authority_key(certs)
    made = (certs / CA_FILE).exists()
    authority = Authority.open(certs, key_path) if made else Authority.create(certs, key_path)
    for broker in brokers:
        if not broker_directory(certs, broker).exists():
            write_broker(authority, certs, broker, [host, "localhost"])
    if not (certs / f"{client_file(ADMIN)}.crt").exists():
        write_client(authority, certs, ADMIN)


def certificates_of(path: Path) -> list[x509.Certificate]:
    """All in a file. Raises `InvalidSetting`."""
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError as error:
        raise InvalidSetting(f"{path} holds no certificate in PEM that can be read: {error}") from error


def principal_of(certificate: x509.Certificate) -> Principal:
    """Whose it is, as brokers will find. Raises `NotAuthenticated`."""
    uris: list[str] = []
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        pass
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return of_certificate(uris, str(common[0].value) if len(common) == 1 else "")


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The hosts that it is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def write_private(path: Path, data: bytes) -> None:
    """Readable by its owner alone, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, data, 0o600)


# ------------------------------------------------------------------ private

_COMMON_NAME_MAX: Final = 64


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _write(path: Path, data: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, span: Span
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(span.start)
        .not_valid_after(span.end)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise InvalidSetting(f"--host {text!r} is neither a name in ASCII nor an IP address") from error


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
