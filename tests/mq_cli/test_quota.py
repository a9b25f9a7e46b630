"""What the words of `tritonmq quota` mean."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mq_cli import quota as module
from mq_cli.in_force import NOT_EVERYWHERE
from mq_cli.quota import quota
from mq_client import AclVerdict, QuotaDescription
from mq_client.acl_admin import KnownEntry


class Admin:
    """Notes what it is asked to change."""

    def __init__(self) -> None:
        self.changed: list[tuple[str, dict[str, int | None]]] = []
        self.late: tuple[str, ...] = ()
        self.nameless: tuple[str, ...] = ()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def set_quotas(self, principal: str, **limits: int | None) -> tuple[str, ...]:
        self.changed.append((principal, limits))
        return self.late

    def check_acl(self, principal: str, operation: str, kind: str) -> AclVerdict:
        return AclVerdict(False, "no rule allows it")

    def known_to_brokers(self, *who: str) -> list[KnownEntry]:
        return [KnownEntry(each, each) for each in who]

    def without_names(self) -> tuple[str, ...]:
        return self.nameless

    def delete_quotas(self, principal: str) -> tuple[str, ...]:
        return self.set_quotas(principal)

    def quotas(self) -> list[QuotaDescription]:
        return [
            QuotaDescription("*", {"streams": 1_000}, built_in=True),
            QuotaDescription("*", {"produce": 20 << 20}),
            QuotaDescription("User:etl", {"produce": -1, "requests": 500}),
        ]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(module, "open_admin", lambda *_: made)
    return made


def run(words: str) -> Any:
    return CliRunner().invoke(quota, shlex.split(words), standalone_mode=False)


def test_what_is_said_is_set_and_no_more(admin: Admin) -> None:
    done = run("set User:etl --produce 50MiB/s --requests 500/s --streams unlimited --topics default")
    assert done.return_value == 0
    limits = {"produce": 50 << 20, "requests": 500, "streams": -1, "topics": None}
    assert admin.changed == [("User:etl", limits)]
    assert done.output == "User:etl: produce 50MiB/s, requests 500/s, streams unlimited, topics default\n"


def test_where_nobody_has_a_name_a_users_quota_is_said_to_bound_nobody(admin: Admin) -> None:
    admin.nameless = ("h:1", "h:2")
    assert "at h:1, h:2 everybody is User:ANONYMOUS" in run("set User:etl --streams 5").stderr
    assert run("set User:ANONYMOUS --streams 5").stderr == ""
    assert run("set --default --streams 5").stderr == ""
    admin.nameless = ()
    assert run("set User:etl --streams 5").stderr == ""


@pytest.mark.parametrize(
    ("text", "told"), [("50MB/s", "50MiB/s"), ("1gb/s", "1GiB/s"), ("4kb", "4KiB/s"), ("50MiB/s", ""), ("5m/s", "")]
)
def test_powers_of_ten_are_told_to_be_powers_of_two(admin: Admin, text: str, told: str) -> None:
    done = run(f"set --default --fetch {text}")
    assert done.stderr == (f"{text} is taken as {told}: sizes are powers of two\n" if told else "")


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ("--produce 1", "produce 1B/s"),
        ("--fetch 1023/s", "fetch 1023B/s"),
        ("--produce 1KiB/s", ""),
        ("--produce unlimited --fetch default", ""),
        ("--requests 1/s --staged-bytes 1 --streams 1", ""),
    ],
)
def test_a_rate_of_few_bytes_is_set_with_a_warning(admin: Admin, words: str, warned: str) -> None:
    done = run(f"set User:etl {words}")
    assert done.return_value == 0
    assert len(admin.changed) == 1
    assert done.stderr.startswith(f"warning: {warned} holds a batch back") if warned else done.stderr == ""


def test_default_is_everybody_else(admin: Admin) -> None:
    assert run("set --default --fetch 1GiB/s").return_value == 0
    assert run("delete --default").return_value == 0
    assert run("delete User:etl").return_value == 0
    assert admin.changed == [("*", {"fetch": 1 << 30}), ("*", {}), ("User:etl", {})]


def test_where_nothing_was_set_nothing_is_taken_back(admin: Admin) -> None:
    done = run("delete User:never")
    assert (done.return_value, done.stderr, done.stdout) == (0, "User:never: nothing was set\n", "")
    assert admin.changed == []
    assert run("delete User:etl").output == "User:etl: all that was set is taken back\n"


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
def test_what_says_too_little_or_too_much_is_refused(admin: Admin, words: str) -> None:
    assert isinstance(run(words).exception, click.UsageError)
    assert admin.changed == []


def test_brokers_that_do_not_answer_are_named(admin: Admin) -> None:
    admin.late = ("h:1",)
    done = run("set User:etl --produce 5")
    assert done.return_value == NOT_EVERYWHERE
    assert "it is done, and not yet known to be in force at h:1" in done.output


def test_lists_are_tables_and_json(admin: Admin) -> None:
    lines = run("list").output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["(built", "(everybody", "User:etl"]
    assert "20MiB/s" in lines[2]
    assert "unlimited" in lines[3]
    assert json.loads(run("list User:etl --json").output) == [
        {"principal": "User:etl", "limits": {"produce": -1, "requests": 500}, "built_in": False}
    ]
