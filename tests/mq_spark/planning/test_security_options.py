"""The options for certificates, by this package's names and by Kafka's. No secret is an option."""

from __future__ import annotations

import pytest

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


def error(**options: str) -> str:
    with pytest.raises(InvalidSetting) as refused:
        parse_sink({**GIVEN, **{name.replace("__", "."): value for name, value in options.items()}}, streaming=True)
    return str(refused.value)


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
        ({"kafka.security.protocol": "SASL_SSL"}, "by certificates alone"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, "by certificates alone"),
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
        ({**FILES, "kafka.ssl.endpoint.identification.algorithm": ""}, "can only be https"),
        ({**FILES, "kafka.ssl.endpoint.identification.algorithm": "none"}, "can only be https"),
    ],
)
def test_what_contradicts_itself_is_refused_and_says_what_to_give(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_security(options)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.password",
        "kafka.ssl.truststore.password",
        "kafka.ssl.keystore.key",
        "kafka.ssl.keystore.certificate.chain",
        "kafka.sasl.jaas.config",
        "kafka.sasl.password",
        "KAFKA.SASL.OAUTHBEARER.CLIENT.SECRET",
        "kafka.ssl.provider",
        "kafka.ssl.key.pasword",
    ],
)
def test_what_would_hold_a_secret_is_refused_and_its_value_not_shown(name: str) -> None:
    told = error(**{name.replace(".", "__"): MARKER})
    assert MARKER not in told
    assert name in told
