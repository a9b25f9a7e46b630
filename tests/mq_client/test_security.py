"""Which files a client is to use."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from mq_client import Admin, Secret, Security
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
    with pytest.raises(InvalidSetting, match=r"ann, etl\).*Security\(user=\) or Spark's option user"):
        Security(certs.path).files()
    assert Security(certs.path, "ann").files().key.name == "client.ann.key"
    (certs.path / "client.crt").touch()
    assert Security(certs.path).files().certificate.name == "client.crt"


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    for user in (None, "etl"):
        with pytest.raises(InvalidSetting, match=f"there is no directory {tmp_path / 'none'}: correct --certs"):
            Security(tmp_path / "none", user).files()


def test_an_unknown_user_is_told_the_nearest(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.user("etl-job")
    with pytest.raises(InvalidSetting, match="did you mean 'etl-job'"):
        Security(certs.path, "etl-jab").files()
    with pytest.raises(InvalidSetting, match="create-client bob"):
        Security(certs.path, "bob").files()


def test_a_user_is_named_as_rules_name_it_or_without_its_kind(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.user("etl")
    assert Security(certs.path, "User:etl") == Security(certs.path, "etl")
    assert Security(certs.path, "User:etl").files().certificate.name == "client.etl.crt"
    for text in ("Group:etl", "Broker:1"):
        with pytest.raises(InvalidSetting, match=f"'{text}' is no user: write NAME or User:NAME"):
            Security(certs.path, text)


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


# ------------------------------------------------------------------ tokens

MARKER = "marker.of-a-token"


def test_a_token_is_given_or_read_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f" {MARKER}\n")
    given_, read = Security(ca="ca.crt", token=MARKER), Security(tmp_path, token_file=file)
    assert given_.read_token() == read.read_token() == Secret(MARKER)
    assert given_ == Security(ca="ca.crt", token=Secret(f"{MARKER}\n"))
    assert hash(given_) == hash(Security(ca="ca.crt", token=MARKER))
    assert given_ != Security(ca="ca.crt", token=f"{MARKER}x")
    assert read.authorities() == tmp_path / "ca.crt"
    for security in (given_, read):
        again = pickle.loads(pickle.dumps(security))
        assert again == security
        assert again.read_token() == Secret(MARKER)
        assert MARKER not in f"{security} {security!r}" + pickle.dumps(security).decode("latin-1")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"token": MARKER}, "ca= names the authorities"),
        ({"ca": "c", "token": MARKER, "token_file": "t"}, "leave one out"),
        ({"certs": "c", "user": "etl", "token": MARKER}, "user belongs to a certificate"),
        ({"ca": "c", "certificate": "x", "token": MARKER}, "certificate belongs to a certificate"),
        ({"certs": "c", "ca": "c", "token": MARKER}, "leave out ca"),
        ({"ca": "c", "token": f"{MARKER}\n{MARKER}"}, "characters that no token has"),
        ({"ca": "c", "token": MARKER * 1_000}, "at most"),
        ({"ca": "c", "token": ""}, "empty"),
        ({"ca": "c", "token": 7}, "no text"),
        ({"ca": "c", "token_file": ""}, "token_file is empty"),
    ],
)
def test_a_token_that_says_too_little_or_too_much_is_refused_and_not_shown(
    fields: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Security(**fields)  # type: ignore[arg-type]
    assert told in str(refused.value)
    assert MARKER not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"a b", b"\xff\xfe", b"a" * 10_000, None])
def test_a_file_with_something_else_is_refused_and_not_shown(data: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if data is not None:
        file.write_bytes(MARKER.encode() + data if data else data)
    with pytest.raises(InvalidSetting, match="token file") as refused:
        Security(ca="c", token_file=file).read_token()
    assert MARKER not in str(refused.value)


def test_a_pipe_or_a_directory_in_place_of_a_tokens_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(InvalidSetting, match="token"):
            Security(ca="c", token_file=tmp_path / name).read_token()


def test_the_environment_names_a_token_file_beside_the_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONMQ_TOKEN_FILE", "t")
    monkeypatch.setenv("TRITONMQ_USER", "etl")
    monkeypatch.delenv("TRITONMQ_CERTS", raising=False)
    with pytest.raises(
        InvalidSetting, match=r"\(--token-file or TRITONMQ_TOKEN_FILE\), and no .* \(--certs or TRITONMQ_CERTS\)"
    ):
        given(None)
    monkeypatch.setenv("TRITONMQ_CERTS", "c")
    assert given(None) == Security("c", token_file="t")
