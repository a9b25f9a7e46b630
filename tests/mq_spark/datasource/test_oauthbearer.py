"""`kafka.sasl.mechanism=OAUTHBEARER` with a file, as Kafka's users have it: an issuer's token, read again as it is
replaced."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, StructType

from mq_client import AclRule, Admin, NotAuthenticated, Producer
from mq_protocol.access.pem import CA_FILE
from mq_spark.datasource.readers import StreamReader
from mq_spark.planning.options import parse_source
from tests.issuer import AUDIENCE, Issuer
from tests.mq_broker.broker.by_token import Place, beside

VALUE = StructType().add("value", BinaryType())
RULES = [AclRule("User:etl", each, "Topic", "t") for each in ("Describe", "Read")]
BOUND_S = 60.0


def options(place: Place, file: Path) -> dict[str, str]:
    return {
        "bootstrap.servers": place.address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        "kafka.ssl.ca.location": str(place.certs.path / CA_FILE),
    }


def next_values(reader: StreamReader, at: Any) -> tuple[list[bytes], Any]:
    """Of the next micro-batch that has rows."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        parts = reader.partitions(at, end)
        at = json.loads(json.dumps(end))
        if found := [row["value"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]:
            return found, at
        time.sleep(0.05)
    raise AssertionError(f"no rows behind {at}")


def wait_until_refused(place: Place, token: str) -> None:
    deadline = time.monotonic() + BOUND_S
    with Admin(place.address, timeout_ms=10_000, security=place.security(token)) as admin:
        while time.monotonic() < deadline:
            try:
                admin.list_topics()
            except NotAuthenticated:
                return
            time.sleep(0.05)
    raise AssertionError("a token that was revoked is taken")


def test_a_query_goes_on_with_the_issuers_token_that_replaces_one_which_is_not_taken_any_more(tmp_path: Path) -> None:
    file = tmp_path / "etl token.jwt"  # a space is %20 in an address

    def job(place: Place) -> None:
        with place.admin() as admin, Producer(place.address, security=place.certs.user("admin")) as producer:
            admin.create_topic("t", partitions=1, replicas=1)
            admin.alter_acls(add=RULES)
            producer.publish("t", b"first").result(BOUND_S)
            former = place.made().secret.reveal()
            file.write_text(f"{former}\n")
            given = {**options(place, file), "subscribe": "t", "startingOffsets": "earliest"}
            reader = StreamReader(parse_source(given, streaming=True), VALUE)
            try:
                found, at = next_values(reader, reader.initialOffset())
                assert found == [b"first"]
                newer = tmp_path / "newer"
                newer.write_text(issuer.token())
                newer.replace(file)
                admin.revoke_token(former[4:20])
                wait_until_refused(place, former)
                producer.publish("t", b"second").result(BOUND_S)
                assert next_values(reader, at)[0] == [b"second"]
            finally:
                reader.stop()

    with Issuer(tmp_path / "issuer") as issuer:
        beside(tmp_path, job, oidc_issuer=issuer.url, oidc_audience=AUDIENCE, oidc_ca=issuer.ca)
    assert issuer.asked
