"""`tritonmq doctor --bundle`: what a bug report needs, and no secret."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq_cli.machines import doctor
from mq_cli.machines.doctor import redacted
from mq_client import Producer
from tests.mq_broker.broker.cluster import standalone

TOKEN = "tmq_k3f9_" + "aZ09-_" * 7 + "a"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJldGwifQ.c2lnbmF0dXJl"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI\nQWxpY2U=\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"shown {TOKEN}, and", TOKEN[9:]),
        (f"a {KEY} b", "QWxpY2U"),
        ("-----BEGIN PRIVATE KEY-----\nMHcCAQ\nQWxpY2U", "QWxpY2U"),
        ("QWxpY2U\n-----END PRIVATE KEY-----\nafter", "QWxpY2U"),
        ("authorization: Bearer abcdef123456", "abcdef123456"),
        ('{"password": "hunter2", "a": 1}', "hunter2"),
        ("TRITONMQ_TOKEN=hunter2 next", "hunter2"),
        ("client-secret: hunter2", "hunter2"),
        (f"who shows {JWT} is", JWT.split(".")[1]),
        (f"who shows {JWT} is", JWT.split(".")[2]),
        ("--zookeeper-auth etc/zookeeper.auth: tritonmq:" + "0f" * 32, "0f0f"),
        ("zookeeper.auth = tritonmq:hunter2", "hunter2"),
        ("addauth digest tritonmq:hunter2", "hunter2"),
        ("acl 'digest,'tritonmq:aGFzaA==", "aGFzaA"),
        ('password = "two words"', "words"),
        ("password: two words", "words"),
        ('{"message": "said \\"password\\": \\"two words\\", and"}', "words"),
        ("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
        ("basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
        ("GET https://user:hunter2@example.org/x", "hunter2"),
        ("git+https://aTokenOfMine@example.org/x", "aTokenOfMine"),
        ("api_key=hunter2", "hunter2"),
        ("X-Api-Key: hunter2", "hunter2"),
        ("ssl.key.passphrase -> hunter2", "hunter2"),
        ("Set-Cookie: a=hunter2; Path=/", "hunter2"),
        ("cookie: one=1; session=hunter2", "hunter2"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)


def test_what_is_none_stays() -> None:
    for text in (
        "TRITONMQ_TOKEN_FILE=etl.token",
        '{"setting": "client.token_file", "value": "/etc/etl.token"}',
        "a token was revoked",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "QWxpY2U before",
        "see https://example.org/x, and mail a@example.org",
        "sha256:" + "0f" * 32,
        '{"setting": "broker.zookeeper_auth", "value": "/etc/zookeeper.auth"}',
        "the password of a credential, and its passphrase, are in no log",
    ):
        assert redacted(text) == text


def test_a_bundle_has_what_a_report_needs_and_no_records(tmp_path: Path) -> None:
    path, log = tmp_path / "report.zip", tmp_path / "broker-1.log"
    log.write_text("x" * (doctor.LOG_BYTES_MAX + 10) + f"\nthe end, {TOKEN}\n")

    def ask(address: str) -> None:
        with Producer(address) as producer:
            producer.publish("flights", {"n": 1, "s": "a record's value"}).result(20)
        words = ["--bootstrap", address, "--bundle", str(path), "--log", str(log)]
        CliRunner().invoke(doctor.doctor, words, standalone_mode=False)

    async def scene() -> None:
        async with standalone(tmp_path / "data") as broker:
            await broker.create_topic("flights")
            await asyncio.to_thread(ask, broker.address)

    asyncio.run(scene())
    with zipfile.ZipFile(path) as written:
        files = {name: written.read(name).decode() for name in written.namelist()}
    names = {"doctor", "versions", "settings", "observation", "topics"}
    assert set(files) == {*(f"{name}.json" for name in names), "log-1-broker-1.log"}
    read = {name: json.loads(files[f"{name}.json"]) for name in names}
    assert read["observation"]["brokers"][0]["id"] == 1
    assert read["topics"][0]["name"] == "flights"
    assert any(line["kind"] == "ok" for line in read["doctor"])
    assert "pyarrow" in read["versions"]
    assert any(row["setting"] == "client.bootstrap" for row in read["settings"])
    assert len(files["log-1-broker-1.log"]) <= doctor.LOG_BYTES_MAX
    assert "the end" in files["log-1-broker-1.log"]
    everything = "".join(files.values())
    assert TOKEN not in everything
    assert "a record's value" not in everything


def test_a_bundle_shows_what_the_options_say(tmp_path: Path) -> None:
    path = tmp_path / "report.zip"
    CliRunner().invoke(doctor.doctor, ["--here", "--forward", "--bundle", str(path)])
    with zipfile.ZipFile(path) as written:
        settings = {row["setting"]: row["value"] for row in json.loads(written.read("settings.json"))}
    assert settings["client.forward"] == "1"


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "report.zip"
    path.write_text("mine")
    result = CliRunner().invoke(doctor.doctor, ["--here", "--bundle", str(path)])
    assert result.exit_code == 2
    assert "is there already" in result.output
    assert path.read_text() == "mine"
    lonely = CliRunner().invoke(doctor.doctor, ["--here", "--log", str(path)])
    assert lonely.exit_code == 2
    assert "--bundle" in lonely.output
