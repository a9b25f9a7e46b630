"""The options for certificates and tokens, by this package's names and by Kafka's. No key is an option, and no secret
is shown."""

from __future__ import annotations

import pytest

from mq_protocol.access.secrets import Secret
from mq_protocol.errors import InvalidSetting
from mq_spark.planning.options import parse_sink, parse_source
from mq_spark.planning.security_options import SecurityOptions, parse_security

FILES = {
    "kafka.ssl.ca.location": "ca.pem",
    "kafka.ssl.certificate.location": "me.crt",
    "kafka.ssl.key.location": "me.key",
}
GIVEN = {"bootstrap.servers": "a:1"}
MARKER = "s3cr3t-marker"
ID, HIDDEN = "0123456789abcdef", MARKER.replace("-", "_") + "x" * (43 - len(MARKER))


def refusal(options: dict[str, str]) -> str:
    """Why these are refused; it shows nothing that is secret."""
    with pytest.raises(InvalidSetting) as refused:
        parse_security(options)
    told = str(refused.value)
    assert MARKER not in told
    assert HIDDEN not in told
    assert len(told) < 700
    return told


def test_without_any_of_them_it_is_plain_text() -> None:
    assert parse_security({}) is None
    assert parse_security({"kafka.security.protocol": "plaintext"}) is None


def test_a_directory_or_each_file_is_named() -> None:
    assert parse_security({"certs": "c", "user": "etl"}) == SecurityOptions(certs="c", user="etl")
    each = SecurityOptions(ca="ca.pem", certificate="me.crt", key="me.key")
    assert parse_security(FILES) == each
    assert parse_security({**FILES, "kafka.security.protocol": "ssl"}) == each
    stores = {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.keystore.location": "me.pem"}
    assert parse_security({**stores, "kafka.ssl.keystore.type": "PEM"}) == SecurityOptions(
        ca="ca.pem", certificate="me.pem", key="me.pem"
    )


def test_source_and_sink_take_them_however_spark_writes_them() -> None:
    written = {**GIVEN, **{name.upper(): value for name, value in FILES.items()}}
    assert parse_sink(written, streaming=True).security == parse_security(FILES)
    assert parse_source({**written, "subscribe": "t"}, streaming=True).security == parse_security(FILES)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, "never sent in plain text"),
        ({"kafka.security.protocol": "SLS"}, "did you mean 'SSL'"),
        ({"kafka.security.protocol": "PLAINTEXT", "certs": "c"}, "contradict each other"),
        ({"kafka.security.protocol": "SSL"}, "kafka.ssl.ca.location is missing"),
        ({"certs": ""}, "certs is empty"),
        ({"certs": "c", **FILES}, "leave one out"),
        ({"user": "etl", **FILES}, "user chooses among"),
        ({**FILES, "kafka.ssl.keystore.location": "x"}, "say the same"),
        ({**FILES, "kafka.ssl.truststore.location": "x"}, "say the same"),
        ({"kafka.ssl.ca.location": "ca", "kafka.ssl.key.location": "k"}, "kafka.ssl.certificate.location is missing"),
        ({**FILES, "kafka.ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({"kafka.ssl.truststore.location": "Trust.JKS"}, "give STORE.pem as kafka.ssl.truststore.location"),
        ({"kafka.ssl.keystore.location": "me.p12"}, "kafka.ssl.keystore.type must be PEM"),
        ({**FILES, "kafka.ssl.endpoint.identification.algorithm": ""}, "can only be https"),
        ({**FILES, "kafka.ssl.endpoint.identification.algorithm": "none"}, "can only be https"),
    ],
)
def test_what_contradicts_itself_is_refused_and_says_what_to_give(options: dict[str, str], told: str) -> None:
    assert told in refusal(options)


@pytest.mark.parametrize("name", ["kafka.ssl.keystore.password", "kafka.ssl.truststore.password"])
def test_the_password_of_a_store_is_refused_with_what_converts_the_store(name: str) -> None:
    with pytest.raises(InvalidSetting, match="keytool -importkeystore") as refused:
        parse_sink({**GIVEN, name: MARKER}, streaming=True)
    assert MARKER not in str(refused.value)


def test_a_store_that_is_said_to_be_in_pem_may_have_any_name() -> None:
    stores = {"kafka.ssl.truststore.location": "ca.pem", "kafka.ssl.keystore.location": "me.p12"}
    assert parse_security({**stores, "kafka.ssl.keystore.type": "PEM"}) is not None


TOKEN = Secret(f"tmq_{ID}_{HIDDEN}")
PLAIN = {"kafka.sasl.username": ID, "kafka.sasl.password": HIDDEN}
CA = {"kafka.ssl.ca.location": "ca.pem"}
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def jaas(name: str = MODULE, rest: str = "") -> dict[str, str]:
    return {"kafka.sasl.jaas.config": f'{name} required username="{ID}" password="{HIDDEN}"{rest};'}


def test_a_token_is_in_a_file_or_given_by_its_id_and_secret() -> None:
    by_file = {"certs": "c", "tritonmq.token.location": "t"}
    assert parse_security(by_file) == SecurityOptions(certs="c", token_file="t")
    assert parse_security({**by_file, "kafka.security.protocol": "sasl_ssl"}) == parse_security(by_file)
    by_secret = SecurityOptions(ca="ca.pem", token=TOKEN)
    assert parse_security({**CA, **PLAIN}) == by_secret
    assert parse_security({**CA, **PLAIN, "kafka.sasl.mechanism": "scram-sha-512"}) == by_secret
    assert parse_security({**CA, **PLAIN, "kafka.sasl.password": TOKEN.reveal()}) == by_secret
    assert parse_security({"kafka.ssl.truststore.location": "ca.pem", **PLAIN}) == by_secret
    for name in (MODULE, f"kafkashaded.{MODULE}", "org.apache.kafka.common.security.scram.ScramLoginModule"):
        assert parse_security({**CA, **jaas(name)}) == by_secret


SASL = {"kafka.security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({**SASL}, "certs is missing"),
        ({**SASL, **CA}, "the token is missing"),
        ({**CA, **PLAIN, "certs": "c"}, "leave one out"),
        ({**CA, **PLAIN, "tritonmq.token.location": "t"}, "leave one out"),
        ({**CA, **PLAIN, **jaas()}, "leave one out"),
        ({**CA, **jaas(), "kafka.sasl.username": ID}, "leave one out"),
        ({**CA, **PLAIN, "kafka.ssl.key.location": "k"}, "belongs to a certificate"),
        ({"certs": "c", "user": "etl", "tritonmq.token.location": "t"}, "belongs to a certificate"),
        ({**CA, **PLAIN, "kafka.security.protocol": "SSL"}, "goes with kafka.security.protocol=SASL_SSL"),
        ({**CA, **PLAIN, "kafka.security.protocol": "PLAINTEXT"}, "contradict"),
        ({**CA, **PLAIN, "kafka.security.protocol": "SASL_PLAINTEXT"}, "never sent in plain text"),
        ({**CA, **PLAIN, "kafka.sasl.mechanism": "GSSAPI"}, "is not known"),
        ({**CA, **PLAIN, "kafka.sasl.username": "alice"}, "not the id and the secret of an API token"),
        ({**CA, **PLAIN, "kafka.sasl.username": "f" * 16, "kafka.sasl.password": TOKEN.reveal()}, "not the id"),
        ({**CA, **PLAIN, "kafka.sasl.password": MARKER}, "not the id and the secret of an API token"),
        ({**CA, "kafka.sasl.password": HIDDEN}, "not the id and the secret"),
        ({**CA, **jaas("com.sun.security.auth.module.JndiLoginModule")}, "alone"),
        ({**CA, **jaas(f"{MODULE}Evil")}, "alone"),
        ({**CA, **jaas(rest=' user.provider.url="ldap://x"')}, "is to be: CLASS required"),
        ({**CA, "kafka.sasl.jaas.config": f'{MODULE} required password="{HIDDEN}";'}, "is to be: CLASS required"),
        ({**CA, "kafka.sasl.jaas.config": f"{MODULE} {HIDDEN}" + " " * 5_000}, "alone"),
    ],
)  # fmt: skip
def test_what_makes_no_token_is_refused_and_no_secret_is_shown(options: dict[str, str], told: str) -> None:
    assert told in refusal(options)


URL = "kafka.sasl.oauthbearer.token.endpoint.url"
OAUTH = {"kafka.sasl.mechanism": "OAUTHBEARER"}
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///run/etl.jwt", "/run/etl.jwt"),
        ("file:/run/etl.jwt", "/run/etl.jwt"),  # as Java writes it
        (" FILE://localhost/run/etl.jwt ", "/run/etl.jwt"),
        ("file:///run/a%20b/%C3%A9.jwt", "/run/a b/é.jwt"),
    ],
)
def test_an_issuers_token_is_in_a_file_by_kafkas_name(url: str, path: str) -> None:
    expected = SecurityOptions(ca="ca.pem", token_file=path)
    assert parse_security({**CA, **OAUTH, URL: url}) == expected
    assert parse_security({**CA, URL: url, **SASL}) == expected
    assert parse_security({**CA, "kafka.sasl.mechanism": "oauthbearer", "tritonmq.token.location": path}) == expected
    for line in (f"{OAUTH_MODULE} required;", f"kafkashaded.{OAUTH_MODULE} required ;", f" {OAUTH_MODULE} required"):
        assert parse_security({**CA, **OAUTH, URL: url, "kafka.sasl.jaas.config": line}) == expected


NO_FILE = "have something write the token into a file"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(
            ({**CA, **OAUTH, URL: url}, NO_FILE)
            for url in (
                f"https://login.example/{HIDDEN}",
                f"http://u:{HIDDEN}@login.example/token",
                f"file://host/{HIDDEN}",
                f"file:{HIDDEN}",
                f"file:///{HIDDEN}?x",
                f"file:///{HIDDEN}#x",
                f"file:///{HIDDEN}%00",
                f"file:///{HIDDEN}%ff",
                f"file:///{HIDDEN}/",
                f"/run/{HIDDEN}",
                f"https://[{HIDDEN}",
                "file:///eyJhbGciOiJub25lIn0.%0Aeyx",
                TOKEN.reveal(),
            )
        ),
        ({**CA, **OAUTH}, f"the token is missing: give {URL}=file:///PATH"),
        ({**CA, **OAUTH, URL: " "}, f"{URL} is empty"),
        ({**CA, **OAUTH, URL: "file:///t", "tritonmq.token.location": "t"}, "leave one out"),
        ({**CA, **OAUTH, URL: "file:///t", "kafka.sasl.username": ID}, "goes with kafka.sasl.mechanism=PLAIN"),
        ({**CA, **OAUTH, URL: "file:///t", "kafka.sasl.password": HIDDEN}, "goes with kafka.sasl.mechanism=PLAIN"),
        ({**CA, **OAUTH, URL: "file:///t", **jaas()}, "OAuthBearerLoginModule. Leave it out"),
        ({**CA, **OAUTH, URL: "file:///t", **jaas(OAUTH_MODULE)}, "Leave it out"),
        ({**CA, "kafka.sasl.mechanism": "PLAIN", URL: "file:///t"}, "goes with kafka.sasl.mechanism=OAUTHBEARER"),
        ({**CA, "kafka.security.protocol": "SSL", URL: "file:///t"}, "goes with kafka.security.protocol=SASL_SSL"),
        ({**CA, "kafka.security.protocol": "PLAINTEXT", URL: "file:///t"}, "contradict"),
        ({"kafka.ssl.key.location": "k", **CA, **OAUTH, URL: "file:///t"}, "belongs to a certificate"),
    ],
)
def test_an_issuer_is_not_asked_and_what_to_do_instead_is_said(options: dict[str, str], told: str) -> None:
    assert told in refusal(options)


def test_given_twice_shows_neither() -> None:
    with pytest.raises(InvalidSetting, match="given twice") as refused:
        parse_sink({**GIVEN, "kafka.sasl.password": HIDDEN, "KAFKA.SASL.PASSWORD": MARKER}, streaming=True)
    assert MARKER not in str(refused.value)
    assert HIDDEN not in str(refused.value)
