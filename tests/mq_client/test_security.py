"""Which files a client is to use."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mq_client import Admin, Security
from mq_client.cluster import credentials
from mq_client.errors import InvalidSetting
from mq_client.security import given
from tests.securing import Certs


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONMQ_CERTS", raising=False)
    monkeypatch.delenv("TRITONMQ_USER", raising=False)


def test_the_only_user_of_a_directory_is_meant(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.user("etl")
    assert Security(certs.path).files().certificate.name == "client.etl.crt"
    certs.user("ann")
    with pytest.raises(InvalidSetting, match="ann, etl"):
        Security(certs.path).files()
    assert Security(certs.path, "ann").files().key.name == "client.ann.key"
    (certs.path / "client.crt").touch()
    assert Security(certs.path).files().certificate.name == "client.crt"


def test_an_unknown_user_is_told_the_nearest(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.user("etl-job")
    with pytest.raises(InvalidSetting, match="did you mean 'etl-job'"):
        Security(certs.path, "etl-jab").files()
    with pytest.raises(InvalidSetting, match="create-client bob"):
        Security(certs.path, "bob").files()


@pytest.mark.parametrize(
    "fields",
    [{}, {"certs": ""}, {"user": "etl"}, {"ca": "a", "key": "b"}, {"certs": "c", "ca": "a"},
     {"ca": "a", "certificate": "b", "key": "c", "user": "etl"}],
)  # fmt: skip
def test_too_little_and_too_much_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting):
        Security(**fields)


def test_equal_paths_are_equal_however_written_and_travel(tmp_path: Path) -> None:
    one, other = Security(tmp_path, "etl"), Security(str(tmp_path), "etl")
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == other


def test_the_environment_counts_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(None) is None
    monkeypatch.setenv("TRITONMQ_CERTS", "there")
    monkeypatch.setenv("TRITONMQ_USER", "etl")
    assert given(None) == Security("there", "etl")
    assert given(Security("here")) == Security("here")
    with pytest.raises(InvalidSetting, match="Security"):
        given("there")  # type: ignore[arg-type]


def test_certificates_of_no_use_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="create-client"):
        Admin("127.0.0.1:1", security=Security(tmp_path))


def test_a_replaced_pair_is_taken_and_one_that_does_not_match_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(credentials, "LOOK_S", 0.0)
    certs = Certs(tmp_path / "certs")
    security = certs.user()
    first = credentials.current(security)
    assert credentials.current(security) == first
    certs.authority.client("etl").write(certs.path, "client.etl")
    second = credentials.current(security)
    assert second.generation == first.generation + 1
    (certs.path / "client.etl.key").write_bytes(certs.authority.client("etl").key)
    assert credentials.current(security) == second
    assert "do not belong together" in caplog.text
    certs.authority.client("etl").write(certs.path, "client.etl")
    assert credentials.current(security).generation == second.generation + 1


def test_a_clients_key_that_others_read_is_told_once_and_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    security = Certs(tmp_path / "certs").user()
    security.files().key.chmod(0o644)
    credentials.current(security)
    credentials.current(security)
    assert caplog.text.count("chmod 600") == 1
