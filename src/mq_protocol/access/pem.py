"""A certificate, its key, and the authorities that are trusted: read from files, and tried out before they are used.

They are tried by a TLS handshake in memory, of the pair with itself. So what is found is what another machine would
find: a key of another certificate, another authority, a time that is over or has not begun. Only Python's `ssl` is
needed for it. `tritonmq cert` (mq_dev/certificates.py) makes them.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mq_protocol.errors import InvalidSetting

CA_FILE: Final = "ca.crt"
BROKER_NAME: Final = "broker"
CLIENT_NAME: Final = "client"

PEM_BYTES_MAX: Final = 256 << 10
"""Of one file. A chain of certificates has some thousand bytes."""

_TURNS: Final = 8
_ROOT: Final = 0

EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
WRONG_HOST: Final = frozenset({62, 64})
_WRONG_PURPOSE: Final = 26
_BAD_SIGNATURE: Final = 7


def generation_of(path: Path) -> tuple[int, int, int]:
    """Another value once the file was replaced or written. Raises `InvalidSetting` if it cannot be looked at."""
    try:
        info = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return info.st_mtime_ns, info.st_ino, info.st_size


@dataclass(frozen=True, slots=True)
class Files:
    """Where they are. Equal paths are equal files."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def all(self) -> tuple[Path, Path, Path]:
        return self.ca, self.certificate, self.key

    def generation(self) -> tuple[tuple[int, int, int], ...]:
        """Another value once a file was replaced or written. Raises `InvalidSetting` if one cannot be looked at."""
        return tuple(map(generation_of, self.all))


@dataclass(frozen=True, slots=True)
class Pem:
    """The same as bytes. A key is in no `repr`."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a certificate says. Times are seconds since 1970; `serial` is hexadecimal."""

    common_name: str
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    serial: str
    not_before: float
    not_after: float


def files_in(directory: Path) -> Files:
    """`broker.crt` and `broker.key` beside `ca.crt`."""
    return Files(directory / CA_FILE, directory / f"{BROKER_NAME}.crt", directory / f"{BROKER_NAME}.key")


def files_of_broker(directory: Path, broker: int) -> Files:
    """Those in the directory, or below it in `broker.<id>`. Raises `InvalidSetting` if it has no certificate of that
    broker."""
    below = directory / f"{BROKER_NAME}.{broker}"
    for files in (files_in(directory), files_in(below)):
        if files.certificate.exists():
            return files
    raise InvalidSetting(
        f"{directory} has no certificate of broker {broker}: neither {BROKER_NAME}.crt nor {below.name}/"
        f"{BROKER_NAME}.crt is there. `tritonmq cert create-broker --id {broker} --host ...` makes {below.name}"
    )


def read(files: Files) -> Pem:
    """Raises `InvalidSetting`, naming the file that cannot be read or holds something else."""
    return Pem(_read(files.ca, "CERTIFICATE"), _read(files.certificate, "CERTIFICATE"), _read(files.key, "PRIVATE KEY"))


def read_authorities(ca: Path) -> bytes:
    """Raises `InvalidSetting`, naming the file if it cannot be read or holds something else."""
    return _read(ca, "CERTIFICATE")


def open_to_others(key: Path) -> str:
    """What is wrong with who may read a key, and the command that mends it; empty if nothing is. Its owner may, who is
    this user or root; a group may read root's."""
    try:
        info = key.stat()
    except OSError as error:
        raise _unreadable(key, error) from error
    if info.st_uid not in (os.geteuid(), _ROOT):
        return f"{key} belongs to another user: chown {os.geteuid()} {key}"
    others = info.st_mode & 0o066 & ~(0o040 if info.st_uid == _ROOT else 0)
    if others:  # to read or to write: Spark makes what it brings executable for all
        return f"{key} can be read by others (mode {stat.S_IMODE(info.st_mode):04o}): chmod 600 {key}"
    return ""


def authorities_context(ca: bytes) -> ssl.SSLContext:
    """Of a client without a certificate: TLS 1.3 alone, which checks the host's name. Raises `InvalidSetting`."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(made, ca)
    return made


def context(pem: Pem, *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 alone, which demands a certificate of the other end that those authorities have signed. A client checks
    the host's name. Raises `InvalidSetting` for a pair that does not match."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    _trust(made, pem.ca)
    # Exactly these bytes, whatever is written to their files meanwhile, and on no disk.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(pem.certificate + b"\n" + pem.key)
        made.load_cert_chain(f"/proc/self/fd/{memory}", password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise InvalidSetting(_pair_fault(error)) from error
    finally:
        os.close(memory)
    if server:
        made.num_tickets = 0  # whoever resumes a session is not asked for its certificate, which may have expired
    return made


def examine(pem: Pem, *, server: bool) -> Shown:
    """What the certificate says, once it is found good: as a client's, and with `server` as a server's too. Raises
    `InvalidSetting` saying what is wrong."""
    accepting, dialling = context(pem, server=True), context(pem, server=False)
    dialling.check_hostname = False  # a broker does not know by which of its names it is called
    if not server:
        dialling.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = accepting.wrap_bio(to_server, to_client, server_side=True)
    other = dialling.wrap_bio(to_client, to_server, server_side=False)
    try:
        for _ in range(_TURNS):
            for end in (other, one):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        raise InvalidSetting(f"the certificate is of no use: {verdict(error)}") from error
    except ssl.SSLError as error:
        raise InvalidSetting(f"the certificate is of no use: {error.reason or error}") from error
    return _shown(one.getpeercert() or {})


def names_in(found: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The URIs and the common name of a certificate as Python gives it. The name is empty if there are several."""
    common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    uris = tuple(value for kind, value in found.get("subjectAltName", ()) if kind == "URI")
    return uris, common[0] if len(common) == 1 else ""


def hosts_in(found: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts that such a certificate is for."""
    return tuple(value for kind, value in found.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))


def verdict(error: ssl.SSLCertVerificationError) -> str:
    """Why a certificate was not accepted, in a few words."""
    match error.verify_code:
        case code if code == EXPIRED:
            return "it has expired, and `tritonmq cert renew` makes another"
        case code if code == NOT_YET_VALID:
            return "it is not valid yet (is the clock right?)"
        case code if code in _UNKNOWN_AUTHORITY:
            return f"an authority signed it that is not in {CA_FILE}"
        case code if code == _BAD_SIGNATURE:
            return f"its signature is not of the authority in {CA_FILE}"
        case code if code in WRONG_HOST:
            return "it is for another host"
        case code if code == _WRONG_PURPOSE:
            return "it is not made for this purpose (extended key usage)"
        case _:
            return error.verify_message


# ------------------------------------------------------------------ private


def _trust(made: ssl.SSLContext, ca: bytes) -> None:
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise InvalidSetting(f"{CA_FILE} holds no certificate in PEM that can be read: {error}") from error


def _no_password() -> str:
    """Else OpenSSL asks at the terminal."""
    return ""


def _read(path: Path, kind: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > PEM_BYTES_MAX:
        raise InvalidSetting(f"{path} has more than {PEM_BYTES_MAX} bytes: it is no {kind.lower()} in PEM")
    if b"ENCRYPTED PRIVATE KEY" in data or b"Proc-Type: 4,ENCRYPTED" in data:
        raise InvalidSetting(f"{path} is an encrypted key: write it without a password (openssl pkey -in {path})")
    if b"-----BEGIN " not in data or f"{kind}-----".encode() not in data:
        raise InvalidSetting(f"{path} holds no {kind.lower()} in PEM")
    return data


def _unreadable(path: Path, error: OSError) -> InvalidSetting:
    return InvalidSetting(f"{path} cannot be read: {(error.strerror or str(error)).lower()}")


def _pair_fault(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the certificate and the key do not belong together"
    return f"the certificate or the key cannot be read: {reason}"


def _shown(found: Any) -> Shown:
    uris, common_name = names_in(found)
    return Shown(
        common_name=common_name,
        uris=uris,
        hosts=hosts_in(found),
        serial=found.get("serialNumber", ""),
        not_before=ssl.cert_time_to_seconds(found["notBefore"]),
        not_after=ssl.cert_time_to_seconds(found["notAfter"]),
    )
