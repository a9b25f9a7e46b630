"""`tritonmq cert`, as somebody uses it who has nothing yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mq_cli.main import run
from mq_dev.certificates import Authority, certificates_of, hosts_of, principal_of
from tests.documents.blocks import blocks
from tests.mq_cli.processes import tritonmq_process

TLS_PAGE = Path(__file__).parents[2] / "docs" / "tls.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(["cert", "create-ca"]) == 0
    assert run(["cert", "create-broker", "--id", "1", "--id", "2", "--host", "127.0.0.1", "--host", "h.example"]) == 0
    assert run(["cert", "create-client", "etl"]) == 0
    capsys.readouterr()
    return here


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_are_closed_and_the_authoritys_is_not_among_the_certificates(made: Path) -> None:
    credentials = [made / "zookeeper.auth", made / "certs/broker.1/zookeeper.auth"]
    keys = [made / "ca.key", made / "certs/broker.1/broker.key", made / "certs/client.etl.key"]
    assert [mode(key) for key in (*keys, *credentials)] == [0o600] * 5
    assert sorted(path.name for path in (made / "certs").rglob("*.key")) == [
        "broker.key",
        "broker.key",
        "client.etl.key",
    ]
    assert (made / "certs/broker.2/ca.crt").read_bytes() == (made / "certs/ca.crt").read_bytes()


def test_all_brokers_have_one_credential_for_zookeeper_also_those_that_are_added_later(made: Path) -> None:
    assert run(["cert", "create-broker", "--id", "3", "--host", "127.0.0.1"]) == 0
    first = (made / "zookeeper.auth").read_bytes()
    assert first.startswith(b"tritonmq:")
    assert [(made / f"certs/broker.{number}/zookeeper.auth").read_bytes() for number in (1, 2, 3)] == [first] * 3


def test_certificates_say_whose_they_are(made: Path) -> None:
    [broker] = certificates_of(made / "certs/broker.2/broker.crt")
    [client] = certificates_of(made / "certs/client.etl.crt")
    assert (str(principal_of(broker)), sorted(hosts_of(broker))) == ("Broker:2", ["127.0.0.1", "h.example"])
    assert (str(principal_of(client)), hosts_of(client)) == ("User:etl", [])


def test_show_and_check_name_every_file(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "show"]) == 0
    shown = capsys.readouterr().out
    assert "client.etl.crt\tUser:etl" in shown
    assert "broker.1/broker.crt\tBroker:1\th.example, 127.0.0.1" in shown
    assert run(["cert", "check"]) == 0
    assert capsys.readouterr().out.count(": good") == 6


def test_the_commands_of_the_document_replace_the_authority(made: Path) -> None:
    """`tests/cluster/test_secure_cluster.py` does the same under load, by the files alone."""
    section = re.split("^#+ ", TLS_PAGE.read_text(), flags=re.MULTILINE)
    [text] = [each for each in section if each.startswith("Another authority\n")]
    both, renewed, alone = (block.code for block in blocks(text))

    def paste(code: str) -> list[str]:
        command = f'set -e; tritonmq() {{ {sys.executable} -m mq_cli.main "$@"; }}\n{code}'
        done = subprocess.run(["bash", "-c", command], cwd=made, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    former, before = certificates_of(made / "certs/ca.crt"), (made / "zookeeper.auth").read_bytes()
    shown = [line.split("\t") for line in paste(both)]
    authorities = [line for line in shown if line[1:2] == ["authority"]]
    assert [line[0] for line in authorities] == ["ca.crt"] * 2 + ["broker.1/ca.crt"] * 2 + ["broker.2/ca.crt"] * 2
    assert {line[4] for line in authorities} == {
        f"{each.serial_number:x}" for each in (*former, *certificates_of(made / "new/ca.crt"))
    }
    paste(renewed)
    paste(alone)
    assert certificates_of(made / "certs/broker.2/ca.crt") == certificates_of(made / "new/ca.crt") != former
    Authority.open(made / "certs", made / "ca.key")
    assert run(["cert", "create-broker", "--id", "3", "--host", "h"]) == 0
    assert (made / "certs/broker.3/zookeeper.auth").read_bytes() == before


def test_check_finds_what_is_wrong(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "certs/client.etl.key").chmod(0o644)
    (made / "certs/broker.1/broker.key").write_bytes((made / "certs/broker.2/broker.key").read_bytes())
    assert run(["cert", "create-client", "soon", "--days", "3"]) == 0
    assert run(["cert", "check", "--bootstrap", "127.0.0.1:1", "--user", "soon"]) == 1
    told = capsys.readouterr().out
    assert "client.etl.crt: certs/client.etl.key can be read by others (mode 0644): chmod 600" in told
    assert "broker.1/broker.crt: the certificate and the key do not belong together" in told
    assert "client.soon.crt: it ends in 2 days: `tritonmq cert renew`" in told
    assert "127.0.0.1:1: connection refused" in told


def test_renew_makes_anew_what_ends_soon_for_the_same_names(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "create-client", "soon", "--days", "3"]) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (made / "certs").rglob("*.crt")}
    assert run(["cert", "renew"]) == 0
    assert capsys.readouterr().out == "certs/client.soon.crt\n"
    changed = [path for path, data in before.items() if path.read_bytes() != data]
    assert changed == [made / "certs/client.soon.crt"]
    assert str(principal_of(certificates_of(changed[0])[0])) == "User:soon"
    assert run(["cert", "renew", "--within", "36500"]) == 0
    assert len(capsys.readouterr().out.split()) == 4
    assert run(["cert", "check"]) == 0


def test_nothing_that_is_there_is_replaced(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["create-ca"],
        ["create-broker", "--id", "3", "--id", "1", "--host", "h"],
        ["create-client", "etl"],
    ):
        assert run(["cert", *words]) == 2
        said = capsys.readouterr().err
        assert "is there already" in said
    assert "`tritonmq cert create-client etl --replace` makes another in its place" in said
    assert not (made / "certs/broker.3").exists()
    assert run(["cert", "create-broker", "--id", "1", "--host", "h"]) == 2
    assert "For others move certs/broker.1 away first" in capsys.readouterr().err
    assert run(["cert", "create-ca", "--dir", "other"]) == 2
    assert "ca.key is there already: an authority is made once. Choose another --ca-key" in capsys.readouterr().err
    assert not Path("other").exists()


def test_a_user_is_given_another_certificate_and_nobody_else_is(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (made / "certs").rglob("*") if path.is_file()}
    assert run(["cert", "create-client", "etl", "--replace"]) == 0
    changed = [path.name for path, data in before.items() if path.read_bytes() != data]
    assert sorted(changed) == ["client.etl.crt", "client.etl.key"]
    assert run(["cert", "check"]) == 0
    capsys.readouterr()
    assert run(["cert", "create-client", "elt", "--replace"]) == 2
    assert "there is no certs/client.elt.crt to replace" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ANONYMOUS", "a/b", "", "a\nb", "*", "etl-*"])
def test_a_name_that_nobody_can_have_is_refused(made: Path, name: str) -> None:
    assert run(["cert", "create-client", name]) == 2


def test_a_user_is_named_as_rules_name_it_or_without_its_kind(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "create-client", "User:bob"]) == 0
    assert (made / "certs/client.bob.crt").exists()
    assert str(principal_of(certificates_of(made / "certs/client.bob.crt")[0])) == "User:bob"
    assert run(["cert", "create-client", "Broker:1"]) == 2
    assert "create-broker" in capsys.readouterr().err


def test_the_key_of_another_authority_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "create-ca", "--dir", "others", "--ca-key", "others.key"]) == 0
    assert run(["cert", "create-client", "x", "--ca-key", "others.key"]) == 2
    assert "is not the key of an authority in certs/ca.crt" in capsys.readouterr().err


def test_a_broker_open_to_other_machines_says_what_to_give(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["broker", "--id", "1", "--listen", "0.0.0.0:7400", "--data", "d", "--standalone"]
    assert run(words) == 2
    assert (
        "--listen 0.0.0.0:7400 can be reached from other machines: give --certs DIR (tritonmq cert makes it), or "
        "--insecure to let everybody do everything"
    ) in " ".join(capsys.readouterr().err.split())
    assert not (here / "d").exists()


@pytest.mark.parametrize("words", [["--standalone"], ["--zookeeper", "127.0.0.1:1", "--zookeeper-certs", "certs"]])
@pytest.mark.processes
@pytest.mark.usefixtures("made")
def test_a_broker_without_a_certificate_is_told_what_makes_it(words: list[str]) -> None:
    broker = ["broker", "--id", "101", "--listen", "127.0.0.1:0", "--data", "d", "--certs", "certs", *words]
    done = tritonmq_process(*broker)
    assert done.returncode != 0
    said = " ".join(done.stderr.decode().split())
    assert "certs has no certificate of broker 101: neither broker.crt nor broker.101/broker.crt is there" in said
    assert "`tritonmq cert create-broker --id 101 --host ...` makes broker.101" in said
