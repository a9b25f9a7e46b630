"""Where a machine of Spark's finds the files, and whose environment counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

from mq_protocol.access.secrets import Secret
from mq_protocol.errors import InvalidSetting
from mq_spark.datasource.securing import on_this_machine, with_environment
from mq_spark.planning.security_options import SecurityOptions


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Spark puts what it brings."""
    brought, here = tmp_path / "brought", tmp_path / "here"
    brought.mkdir()
    here.mkdir()
    monkeypatch.setattr(SparkFiles, "_root_directory", str(brought))
    monkeypatch.chdir(here)
    return tmp_path


def touch(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def found(certs: str) -> str:
    security = on_this_machine(SecurityOptions(certs=certs, user="etl"))
    assert security is not None
    assert security.user == "etl"
    return str(security.certs)


def test_plain_text_needs_no_files() -> None:
    assert on_this_machine(None) is None


def test_an_absolute_directory_is_that_one(root: Path) -> None:
    touch(root / "elsewhere/ca.crt")
    touch(root / "brought/ca.crt")
    assert found(str(root / "elsewhere")) == str(root / "elsewhere")


def test_a_relative_one_is_looked_for_among_what_spark_brought_and_below_the_working_directory(root: Path) -> None:
    touch(root / "here/certs/ca.crt")
    assert found("certs") == str(root / "here/certs")
    touch(root / "brought/certs/ca.crt")
    assert found("certs") == str(root / "brought/certs")


def test_files_that_spark_brought_one_by_one_lie_side_by_side(root: Path) -> None:
    touch(root / "brought/ca.crt")
    assert found("certs") == str(root / "brought")
    each = SecurityOptions(ca="x/ca.crt", certificate=touch(root / "me.crt"), key="me.key")
    touch(root / "here/me.key")
    security = on_this_machine(each)
    assert security is not None
    assert [security.ca, security.certificate, security.key] == [
        str(root / "brought/ca.crt"), str(root / "me.crt"), str(root / "here/me.key")
    ]  # fmt: skip


def test_the_drivers_processes_for_streams_find_them_above_the_folder_that_spark_names(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(root / "brought/ca.crt")
    monkeypatch.setattr(SparkFiles, "_root_directory", str(root / "brought/streaming_job"))
    assert found("certs") == str(root / "brought")
    monkeypatch.setattr(SparkFiles, "_root_directory", str(root / "brought/another"))
    with pytest.raises(InvalidSetting):
        found("certs")


def test_what_is_nowhere_is_named_with_the_places(root: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"certs 'certs' is not on this machine .*brought/certs.*here/certs"):
        found("certs")
    with pytest.raises(InvalidSetting, match=r"the file 'no\.key' is not on this machine"):
        on_this_machine(SecurityOptions(ca=touch(root / "a"), certificate=touch(root / "b"), key="no.key"))


def test_the_drivers_environment_counts_where_no_option_is_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONMQ_CERTS", raising=False)
    monkeypatch.delenv("TRITONMQ_TOKEN_FILE", raising=False)
    assert with_environment({"a": "b"}) == {"a": "b"}
    monkeypatch.setenv("TRITONMQ_CERTS", "certs")
    monkeypatch.setenv("TRITONMQ_USER", "etl")
    sent = {"a": "b", "certs": str(root / "here/certs"), "user": "etl"}
    assert with_environment({"a": "b"}) == sent
    for given in ({"CERTS": "mine"}, {"kafka.ssl.ca.location": "x"}, {"kafka.security.protocol": "PLAINTEXT"}):
        assert with_environment(given) == given


def test_the_drivers_environment_says_that_brokers_pass_on_unless_an_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITONMQ_CERTS", raising=False)
    monkeypatch.setenv("TRITONMQ_FORWARD", "1")
    assert with_environment({"a": "b"}) == {"a": "b", "forward": "true"}
    assert with_environment({"Forward": "false"}) == {"Forward": "false"}
    monkeypatch.setenv("TRITONMQ_FORWARD", "0")
    assert with_environment({"a": "b"}) == {"a": "b"}
    monkeypatch.setenv("TRITONMQ_FORWARD", "perhaps")
    with pytest.raises(InvalidSetting, match="TRITONMQ_FORWARD"):
        with_environment({"a": "b"})


def test_a_token_is_read_on_each_machine_and_its_path_alone_is_sent(root: Path) -> None:
    touch(root / "brought/etl.token")
    touch(root / "here/certs/ca.crt")
    security = on_this_machine(SecurityOptions(certs="certs", token_file="etl.token"))
    assert security is not None
    assert (security.ca, security.token_file) == (str(root / "here/certs/ca.crt"), str(root / "brought/etl.token"))
    security = on_this_machine(SecurityOptions(ca=touch(root / "a"), token=Secret("abc")))
    assert security is not None
    assert (security.ca, security.token) == (str(root / "a"), Secret("abc"))


def test_the_drivers_token_counts_before_its_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CERTS", "certs"), ("USER", "etl"), ("TOKEN_FILE", "t")):
        monkeypatch.setenv(f"TRITONMQ_{name}", value)
    here = root / "here"
    assert with_environment({}) == {"certs": str(here / "certs"), "tritonmq.token.location": str(here / "t")}
    for given in ({"tritonmq.token.location": "mine"}, {"kafka.sasl.password": "x"}):
        assert with_environment(given) == given
