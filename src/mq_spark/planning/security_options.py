"""The options that say with which certificate or token the brokers are spoken with: this package's names, and Kafka's.

Nearly all are paths, and the files are read on each machine. So is Kafka's address of a token (`TOKEN_URL`). Those that
hold a token (`SECRETS`) are kept as a `Secret`, and no error shows their values. Kafka's options that would hold a key
are refused by name. Pure.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from mq_protocol.access.secrets import API_TOKEN_PREFIX, Secret, api_token, api_token_id, is_no_path
from mq_protocol.errors import InvalidSetting
from mq_protocol.names import did_you_mean

log = logging.getLogger(__name__)

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
TOKEN_LOCATION: Final = "tritonmq.token.location"  # noqa: S105 - a name
MECHANISM: Final = "kafka.sasl.mechanism"
USERNAME: Final = "kafka.sasl.username"
PASSWORD: Final = "kafka.sasl.password"  # noqa: S105 - a name
JAAS: Final = "kafka.sasl.jaas.config"
TOKEN_URL: Final = "kafka.sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name

_OF_TOKENS: Final = (TOKEN_LOCATION, MECHANISM, USERNAME, PASSWORD, JAAS, TOKEN_URL)
_OF_CERTIFICATES: Final = (USER, CERTIFICATE, KEY, KEYSTORE, KEYSTORE_TYPE)

SECRETS: Final = (PASSWORD, JAAS)
"""Their values are shown nowhere."""

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
    *_OF_TOKENS,
)

_PATHS: Final = (CERTS, CA, CERTIFICATE, KEY, TRUSTSTORE, KEYSTORE, TOKEN_LOCATION)

_PLAINTEXT: Final = "PLAINTEXT"
_SSL: Final = "SSL"
_SASL_SSL: Final = "SASL_SSL"
_PROTOCOLS: Final = (_PLAINTEXT, _SSL, _SASL_SSL)
_OAUTHBEARER: Final = "OAUTHBEARER"
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", _OAUTHBEARER)
_JAAS_CLASS: Final = re.compile(
    r"(kafkashaded\.)?org\.apache\.kafka\.common\.security\.(plain\.PlainLoginModule|scram\.ScramLoginModule)"
)
_JAAS_OF_OAUTHBEARER: Final = re.compile(
    r"(kafkashaded\.)?org\.apache\.kafka\.common\.security\.oauthbearer\.OAuthBearerLoginModule\s+required\s*;?"
)
"""As Kafka's users have it, where the token is in a file: it says nothing more."""

_JAAS_VALUE: Final = re.compile(r"""\s+(username|password)\s*=\s*(?:"([^"\\]*)"|'([^'\\]*)')""")
_JAAS_MAX: Final = 4_096
_GIVE_LOCATIONS: Final = f"give {CERTS}, or {KEY} and {CERTIFICATE}: paths, so that no plan and no log can hold the key"
_OPEN_KEY: Final = (
    "keys are read without a password: `openssl pkey -in KEY -out OPEN_KEY` opens one; keep it at mode 0600"
)
_CONVERTED: Final = (
    "`keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12`, then `openssl pkcs12 "
    "-in STORE.p12 -nodes -out STORE.pem`"
)
_OF_STORE: Final = f"A store of Java is converted to PEM first, and its password left out: {_CONVERTED}"
_STORES: Final = (".jks", ".p12", ".pfx")
"""So the name of a store ends that is not in PEM."""

_REFUSED: Final = {
    "kafka.ssl.key.password": _OPEN_KEY,
    "kafka.ssl.keystore.password": f"{_OPEN_KEY}. {_OF_STORE}",
    "kafka.ssl.truststore.password": f"a file of authorities in PEM has no password: leave it out. {_OF_STORE}",
    "kafka.ssl.keystore.key": _GIVE_LOCATIONS,
    "kafka.ssl.keystore.certificate.chain": _GIVE_LOCATIONS,
    "kafka.ssl.truststore.certificates": f"give {CA}, a path",
}
_SASL: Final = "kafka.sasl."
_NO_SASL: Final = (
    f"brokers know clients by certificates ({CERTS}) and by tokens ({TOKEN_LOCATION}, or {MECHANISM}=PLAIN with "
    f"{USERNAME} and {PASSWORD}, or {MECHANISM}={_OAUTHBEARER} with {TOKEN_URL}=file:///PATH)"
)
_NO_ENDPOINT: Final = (
    f"{TOKEN_URL} is no file:///PATH, and no token is asked for at an issuer from here: have something write the token "
    f"into a file, anew before it expires, and give its path so, or as {TOKEN_LOCATION}"
)
_IS_SECRET: Final = "its value is a secret and not shown"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Where the files are: all in the directory `certs`, of `user` if there are several; or each by itself. Paths are
    as they were given: relative ones are looked for on each machine. `token_file` or `token`: what is shown instead of
    a certificate."""

    certs: str = ""
    user: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    token: Secret | None = None


def parse_security(options: Mapping[str, str]) -> SecurityOptions | None:
    """What a connection is secured with; None for plain text. `options` are under their documented names. Raises
    `InvalidSetting`."""
    given = [name for name in SECURITY if name in options and name != PROTOCOL]
    of_tokens = [name for name in given if name in _OF_TOKENS]
    default = _SASL_SSL if of_tokens else _SSL if given else _PLAINTEXT
    protocol = options.get(PROTOCOL, default).strip().upper()
    if protocol == "SASL_PLAINTEXT":
        raise InvalidSetting(f"{PROTOCOL}={protocol}: a token is never sent in plain text; give SASL_SSL")
    if protocol not in _PROTOCOLS:
        raise InvalidSetting(
            f"{PROTOCOL}={protocol[:20]!r} is not known{did_you_mean(protocol, _PROTOCOLS)} (PLAINTEXT, SSL, SASL_SSL)"
        )
    if protocol == _PLAINTEXT:
        if given:
            raise InvalidSetting(f"{PROTOCOL}={_PLAINTEXT} and {given[0]} contradict each other: leave one out")
        return None
    _check_types(options)
    for name in given:
        if not options[name].strip():
            raise InvalidSetting(f"{name} is empty: give a value, or leave it out")
        if name in _PATHS and is_no_path(options[name]):
            raise InvalidSetting(f"{name} is no path: write the text into a file, and give its path")
    if protocol == _SASL_SSL:
        return _of_token(options)
    if of_tokens:
        raise InvalidSetting(f"{of_tokens[0]} goes with {PROTOCOL}={_SASL_SSL}: give that, or leave one out")
    return _of_directory(options) if CERTS in options else _of_files(options)


def why_refused(written: str) -> str | None:
    """What to do instead of a Kafka option that would hold a secret; None for any other."""
    lower = written.lower()
    return _REFUSED.get(lower) or (_NO_SASL if lower.startswith(_SASL) else None)


# ------------------------------------------------------------------ private


def _check_types(options: Mapping[str, str]) -> None:
    for name, location in ((TRUSTSTORE_TYPE, TRUSTSTORE), (KEYSTORE_TYPE, KEYSTORE)):
        is_store = options.get(location, "").strip().lower().endswith(_STORES)
        if options.get(name, "JKS" if is_store else "PEM").strip().upper() != "PEM":
            raise InvalidSetting(f"{name} must be PEM: {_CONVERTED}, and give STORE.pem as {location}")
    if options.get(HOST_CHECK, "https").strip().lower() != "https":
        raise InvalidSetting(f"{HOST_CHECK} can only be https: the names of brokers are always checked")


def _of_token(options: Mapping[str, str]) -> SecurityOptions:
    for name in _OF_CERTIFICATES:
        if name in options:
            raise InvalidSetting(f"{name} belongs to a certificate, and a token is shown instead: leave one out")
    mechanism = options.get(MECHANISM, _OAUTHBEARER if TOKEN_URL in options else "PLAIN").strip().upper()
    if mechanism not in _MECHANISMS:
        near = did_you_mean(mechanism, _MECHANISMS)
        raise InvalidSetting(f"{MECHANISM}={mechanism[:20]!r} is not known{near}: {_NO_SASL}")
    if TOKEN_URL in options and mechanism != _OAUTHBEARER:
        raise InvalidSetting(f"{TOKEN_URL} goes with {MECHANISM}={_OAUTHBEARER}: give that, or leave one out")
    says = f": it says where the authorities are that are believed ({CERTS}/ca.crt, or {CA})"
    where = _only_one_of((CA, TRUSTSTORE, CERTS), options, f"{CERTS} is missing", says)
    ca = "" if where == CERTS else options[where]
    if mechanism == _OAUTHBEARER:
        return SecurityOptions(options.get(CERTS, ""), ca=ca, token_file=_of_oauthbearer(options))
    missing = f"the token is missing: give {TOKEN_LOCATION}"
    given = _only_one_of((TOKEN_LOCATION, PASSWORD, JAAS), options, missing)
    if given == TOKEN_LOCATION:
        if USERNAME in options:
            raise InvalidSetting(f"{USERNAME} goes with {PASSWORD}: leave it out, the token says who it is")
        return SecurityOptions(options.get(CERTS, ""), ca=ca, token_file=options[TOKEN_LOCATION])
    if given == JAAS:
        if USERNAME in options:
            raise InvalidSetting(f"{USERNAME} and {JAAS} are given: leave one out")
        return SecurityOptions(options.get(CERTS, ""), ca=ca, token=_of_jaas(options[JAAS]))
    token = _of_password(options.get(USERNAME, "").strip(), options[PASSWORD].strip(), f"{USERNAME} and {PASSWORD}")
    return SecurityOptions(options.get(CERTS, ""), ca=ca, token=token)


def _of_oauthbearer(options: Mapping[str, str]) -> str:
    """The file with the token, as Kafka's `FileJwtRetriever` has it."""
    for name in (USERNAME, PASSWORD):
        if name in options:
            raise InvalidSetting(f"{name} goes with {MECHANISM}=PLAIN: leave it out, the token says who it is")
    if JAAS in options and not _JAAS_OF_OAUTHBEARER.fullmatch(options[JAAS].strip()):
        raise InvalidSetting(
            f"{JAAS} with {MECHANISM}={_OAUTHBEARER} is to be: CLASS required; without anything else, of Kafka's "
            f"OAuthBearerLoginModule. Leave it out: {TOKEN_URL} says where the token is"
        )
    missing = f"the token is missing: give {TOKEN_URL}=file:///PATH"
    given = _only_one_of((TOKEN_LOCATION, TOKEN_URL), options, missing)
    return options[TOKEN_LOCATION] if given == TOKEN_LOCATION else _path_in(options[TOKEN_URL].strip())


def _only_one_of(names: tuple[str, ...], options: Mapping[str, str], missing: str, says: str = "") -> str:
    """That which is given. `says`: what it is for, after what is wrong."""
    given = [name for name in names if name in options]
    if len(given) != 1:
        raise InvalidSetting((f"{' and '.join(given)} are given: leave one out" if given else missing) + says)
    return given[0]


def _path_in(url: str) -> str:
    """What is not a path is not shown: some keep a secret in an address."""
    try:
        found = urlsplit(url)
        path = unquote(found.path, errors="strict")
    except ValueError:
        raise InvalidSetting(_NO_ENDPOINT) from None
    here = found.netloc in ("", "localhost")
    if found.scheme.lower() != "file" or not here or not path.startswith("/") or is_no_path(path):
        raise InvalidSetting(_NO_ENDPOINT)
    if found.query or found.fragment or "\0" in path or path.endswith("/"):
        raise InvalidSetting(_NO_ENDPOINT)
    return path


def _of_password(username: str, password: str, where: str) -> Secret:
    """`password`: the part behind the id, or the whole token."""
    token = Secret(password) if password.startswith(API_TOKEN_PREFIX) else api_token(username, password)
    if not username or api_token_id(token.reveal()) != username:
        raise InvalidSetting(
            f"{where} are not the id and the secret of an API token, which is tmq_ID_SECRET: `tritonmq token create` "
            f"makes one ({_IS_SECRET})"
        )
    return token


def _of_jaas(line: str) -> Secret:
    """`CLASS required username="..." password="...";`, of two classes and no other: what a class does with the rest is
    not for a text to choose."""
    name, _, rest = line.strip().partition(" ")
    if len(line) > _JAAS_MAX or not _JAAS_CLASS.fullmatch(name):
        raise InvalidSetting(f"{JAAS} is read for PlainLoginModule and ScramLoginModule of Kafka alone: {_NO_SASL}")
    rest = rest.strip().removesuffix(";")
    found = {match[1]: match[2] or match[3] or "" for match in _JAAS_VALUE.finditer(rest)}
    if _JAAS_VALUE.sub("", rest).strip() != "required" or found.keys() != {"username", "password"}:
        raise InvalidSetting(f'{JAAS} is to be: CLASS required username="ID" password="SECRET"; ({_IS_SECRET})')
    log.warning("%s holds a secret under a name that Spark does not hide: give %s and %s", JAAS, USERNAME, PASSWORD)
    return _of_password(found["username"], found["password"], f"username and password in {JAAS}")


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
