"""`tritonmq quota` against a broker."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest

from mq_cli.access.principals import NOT_EVERYWHERE, told_of_late
from mq_cli.main import DONE, MISUSED
from mq_dev.local_cluster import LocalCluster
from tests.mq_cli.processes import Outcome, tritonmq


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("quota")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(autouse=True)
def _there(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", bootstrap)


def quota(words: str) -> Outcome:
    return tritonmq("quota", *shlex.split(words))


def limits(who: str) -> dict[str, int]:
    found = json.loads(quota(f"list {who} --json").stdout)
    return next((each["limits"] for each in found if each["principal"] == who and not each["built_in"]), {})


def test_what_is_said_is_set_and_no_more_until_it_is_taken_back() -> None:
    assert quota("set User:etl --topics 5 --fetch 4k").returncode == DONE
    done = quota("set User:etl --produce 50MiB/s --requests 500/s --streams unlimited --topics default")
    assert done.stdout == b"User:etl: produce 50MiB/s, requests 500/s, streams unlimited, topics default\n"
    assert limits("User:etl") == {"produce": 50 << 20, "fetch": 4 << 10, "requests": 500, "streams": -1}
    assert quota("set --default --fetch 1GiB/s").returncode == DONE
    listed = quota("list").stdout.decode().splitlines()
    assert {line.split()[0] for line in listed[1:]} >= {"(everybody", "User:etl"}
    assert any("1GiB/s" in line for line in listed)
    assert quota("delete --default").returncode == quota("delete User:etl").returncode == DONE
    assert limits("User:etl") == {}
    never = quota("delete User:etl")
    assert (never.returncode, never.stdout, never.stderr) == (DONE, b"", b"User:etl: nothing was set\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--fetch 50MB/s", "50MB/s is taken as 50MiB/s: sizes are powers of two"),
        ("--fetch 4kb", "4kb is taken as 4KiB/s: sizes are powers of two"),
        ("--fetch 50MiB/s", ""),
        ("--produce 1", "warning: produce 1B/s holds a batch back"),
        ("--fetch 1023/s", "warning: fetch 1023B/s holds a batch back"),
        ("--produce 1KiB/s", ""),
        ("--produce unlimited --fetch default", ""),
        ("--requests 1/s --staged-bytes 1 --streams 1", ""),
    ],
)
def test_what_may_not_be_what_was_meant_is_set_and_told(words: str, told: str) -> None:
    done = quota(f"set --default {words}")
    assert quota("delete --default").returncode == done.returncode == DONE
    assert done.stderr.decode().startswith(told) if told else done.stderr == b""


@pytest.mark.parametrize(
    "words",
    [
        "set",
        "set User:etl",
        "set User:etl --default --produce 5",
        "set --produce 5",
        "set User:etl --produce fast",
        "set User:etl --streams 5/s",
        "delete",
        "delete User:etl --default",
    ],
)
def test_what_says_too_little_or_too_much_is_refused(words: str) -> None:
    assert quota(words).returncode == MISUSED
    assert limits("User:etl") == {}


def test_brokers_that_do_not_answer_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert (told_of_late(()), told_of_late(["h:1"])) == (DONE, NOT_EVERYWHERE)
    assert "it is done, and not yet known to be in force at h:1" in capsys.readouterr().err
