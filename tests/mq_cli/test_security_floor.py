"""What the words of `tritonmq cluster security` mean."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mq_cli import security_floor as module
from mq_cli.security_floor import security
from mq_client import SecurityFloor


class Admin:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.floor = SecurityFloor(("tls",), ("tls",), {1: ("tls", "authorize"), 2: ("tls", "authorize")}, (), "open")

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def security_floor(self) -> SecurityFloor:
        return self.floor

    def raise_security_floor(self, *demands: str, force: bool = False) -> SecurityFloor:
        self.asked.append(("raise", demands, force))
        return dataclasses.replace(self.floor, demands=self.floor.demands + demands)

    def lower_security_floor(self, *demands: str) -> SecurityFloor:
        self.asked.append(("lower", demands))
        return dataclasses.replace(self.floor, demands=())


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(module, "open_admin", lambda *_: made)
    return made


def run(words: str) -> Any:
    return CliRunner().invoke(security, shlex.split(words), standalone_mode=False)


def test_raise_demands_what_every_broker_offers_or_what_is_named(admin: Admin) -> None:
    done = run("raise")
    assert (done.return_value, done.output) == (0, "demanded before: tls; now: tls, authorize\n")
    assert run("raise zk_auth --force").return_value == 0
    assert admin.asked == [("raise", ("authorize",), False), ("raise", ("zk_auth",), True)]


def test_raise_with_nothing_more_to_demand_says_who_lacks_what(admin: Admin) -> None:
    admin.floor = dataclasses.replace(admin.floor, offers={1: ("tls", "authorize"), 2: ("tls",)})
    done = run("raise")
    assert done.return_value == 3
    assert "demanded as before: tls" in done.output
    assert admin.asked == []


def test_zk_auth_is_not_among_all_while_nodes_are_open(admin: Admin) -> None:
    both = {1: ("zk_auth",), 2: ("zk_auth",)}
    admin.floor = dataclasses.replace(admin.floor, demands=(), offers=both)
    assert admin.floor.can_demand == ()
    assert dataclasses.replace(admin.floor, coordination_access="closed").can_demand == ("zk_auth",)
    assert dataclasses.replace(admin.floor, offers={}).can_demand == ()


def test_nothing_is_lowered_without_a_word(admin: Admin) -> None:
    refused = run("lower tls")
    assert isinstance(refused.exception, click.UsageError)
    assert "--yes" in str(refused.exception)
    assert admin.asked == []
    assert run("lower tls --yes").output == "demanded before: tls; now: nothing\n"
    assert admin.asked == [("lower", ("tls",))]
    assert isinstance(run("lower --yes").exception, click.UsageError)


def test_show_says_what_each_broker_offers(admin: Admin) -> None:
    admin.floor = dataclasses.replace(admin.floor, absent=(3,))
    shown = run("show").output
    assert "demanded: tls\n" in shown
    assert "offers authorize: `tritonmq cluster security raise`" in shown
    assert "brokers [3] hold replicas" in shown
    assert json.loads(run("show --json").output) == {
        "demands": ["tls"],
        "can_demand": ["authorize"],
        "brokers": [{"id": 1, "offers": ["tls", "authorize"]}, {"id": 2, "offers": ["tls", "authorize"]}],
        "absent_brokers": [3],
    }
