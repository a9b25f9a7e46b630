"""The options that say with which certificate the brokers are spoken with: this package's names, and Kafka's.

No option holds a secret: all are paths, and the files are read on each machine. Kafka's options that would hold one are
refused by name, and an error never shows their values. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

CERTS: Final = "certs"
USER: Final = "user"
PROTOCOL: Final = "kafka.security.protocol"
CA: Final = "kafka.ssl.ca.location"
CERTIFICATE: Final = "kafka.ssl.certificate.location"
KEY: Final = "kafka.ssl.key.location"
TRUSTSTORE: Final = "kafka.ssl.truststore.location"
KEYSTORE: Final = "kafka.ssl.keystore.location"
TRUSTSTORE_TYPE: Final = "kafka.ssl.truststore.type"
KEYSTORE_TYPE: Final = "kafka.ssl.keystore.type"
HOST_CHECK: Final = "kafka.ssl.endpoint.identification.algorithm"

SECURITY: Final = (
    CERTS,
    USER,
    PROTOCOL,
    CA,
    CERTIFICATE,
    KEY,
    TRUSTSTORE,
    KEYSTORE,
    TRUSTSTORE_TYPE,
    KEYSTORE_TYPE,
    HOST_CHECK,
)

_PLAINTEXT: Final = "PLAINTEXT"
_SSL: Final = "SSL"
_PROTOCOLS: Final = (_PLAINTEXT, _SSL)
_GIVE_LOCATIONS: Final = f"give {CERTS}, or {KEY} and {CERTIFICATE}: paths, so that no plan and no log can hold the key"
_OPEN_KEY: Final = (
    "keys are read without a password: `openssl pkey -in KEY -out OPEN_KEY` opens one; keep it at mode 0600"
)

_REFUSED: Final = {
    "kafka.ssl.key.password": _OPEN_KEY,
    "kafka.ssl.keystore.password": _OPEN_KEY,
    "kafka.ssl.truststore.password": "a file of authorities in PEM has no password: leave it out",
    "kafka.ssl.keystore.key": _GIVE_LOCATIONS,
    "kafka.ssl.keystore.certificate.chain": _GIVE_LOCATIONS,
    "kafka.ssl.truststore.certificates": f"give {CA}, a path",
}
_SASL: Final = "kafka.sasl."
_NO_SASL: Final = f"brokers know clients by certificates alone: give {CERTS} and leave kafka.sasl.* out"


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Where the files are: all in the directory `certs`, of `user` if there are several; or each by itself. Paths are
    as they were given: relative ones are looked for on each machine."""

    certs: str = ""
    user: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""


def parse_security(options: Mapping[str, str]) -> SecurityOptions | None:
    """What a connection is secured with; None for plain text. `options` are under their documented names. Raises
    `InvalidSetting`."""
    given = [name for name in SECURITY if name in options and name != PROTOCOL]
    protocol = options.get(PROTOCOL, _SSL if given else _PLAINTEXT).strip().upper()
    if protocol.startswith("SASL_"):
        raise InvalidSetting(f"{PROTOCOL}={protocol[:20]}: {_NO_SASL}")
    if protocol not in _PROTOCOLS:
        raise InvalidSetting(
            f"{PROTOCOL}={protocol[:20]!r} is not known{did_you_mean(protocol, _PROTOCOLS)} (PLAINTEXT or SSL)"
        )
    if protocol == _PLAINTEXT:
        if given:
            raise InvalidSetting(f"{PROTOCOL}={_PLAINTEXT} and {given[0]} contradict each other: leave one out")
        return None
    _check_types(options)
    for name in given:
        if not options[name].strip():
            raise InvalidSetting(f"{name} is empty: give a path, or leave it out")
    return _of_directory(options) if CERTS in options else _of_files(options)


def why_refused(written: str) -> str | None:
    """What to do instead of a Kafka option that would hold a secret; None for any other."""
    lower = written.lower()
    return _REFUSED.get(lower) or (_NO_SASL if lower.startswith(_SASL) else None)


# ------------------------------------------------------------------ private


def _check_types(options: Mapping[str, str]) -> None:
    for name in (TRUSTSTORE_TYPE, KEYSTORE_TYPE):
        if options.get(name, "PEM").strip().upper() != "PEM":
            raise InvalidSetting(
                f"{name} must be PEM: `keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 "
                "-deststoretype PKCS12`, then `openssl pkcs12 -in STORE.p12 -nodes -out STORE.pem`"
            )
    if options.get(HOST_CHECK, "https").strip().lower() != "https":
        raise InvalidSetting(f"{HOST_CHECK} can only be https: the names of brokers are always checked")


def _of_directory(options: Mapping[str, str]) -> SecurityOptions:
    for name in (CA, CERTIFICATE, KEY, TRUSTSTORE, KEYSTORE):
        if name in options:
            raise InvalidSetting(f"{CERTS} and {name} are given: {CERTS} is a directory with all files; leave one out")
    return SecurityOptions(certs=options[CERTS], user=options.get(USER, ""))


def _of_files(options: Mapping[str, str]) -> SecurityOptions:
    if USER in options:
        raise InvalidSetting(f"{USER} chooses among the certificates in {CERTS}: give {CERTS}, or leave it out")
    store = options.get(KEYSTORE)
    for one, other in ((CA, TRUSTSTORE), (CERTIFICATE, KEYSTORE), (KEY, KEYSTORE)):
        if one in options and other in options:
            raise InvalidSetting(f"{one} and {other} say the same: leave one out")
    ca = options.get(CA, options.get(TRUSTSTORE))
    certificate, key = options.get(CERTIFICATE, store), options.get(KEY, store)
    if ca is None or certificate is None or key is None:
        missing = next(name for name, value in ((CA, ca), (CERTIFICATE, certificate), (KEY, key)) if value is None)
        raise InvalidSetting(
            f"{missing} is missing: a secured connection needs {CERTS}, or {CA}, {CERTIFICATE} and {KEY}"
        )
    return SecurityOptions(ca=ca, certificate=certificate, key=key)
