"""`tritonmq acl` and `tritonmq quota` at a broker that judges rights: what can mean nothing is refused or told."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mq_broker.broker.config import BrokerConfig
from mq_broker.coordination.file import FileCoordination
from mq_cli.acl import acl
from mq_cli.quota import quota
from mq_client import AclRule, Admin
from mq_client.errors import CoordinationUnavailable, InvalidRequest
from tests.mq_broker.broker.cluster import Broker
from tests.securing import HOST, Certs

ETL = "User:etl"
Run = Callable[..., Result]


class Place:
    """A broker and its administrator, whose words are run."""

    def __init__(self, certs: Certs, address: str) -> None:
        self.address = address
        self._certs = certs

    def admin(self, user: str = "admin") -> Admin:
        return Admin(self.address, security=self._certs.user(user))

    def run(self, words: str, command: click.Command = acl) -> Result:
        shown = ["--bootstrap", self.address, "--certs", str(self._certs.path), "--user", "admin"]
        return CliRunner().invoke(command, [*shlex.split(words), *shown], standalone_mode=False)


def beside(tmp_path: Path, job: Callable[[Place], None]) -> None:
    certs = Certs(tmp_path / "certs", 1)
    certs.user("admin")

    async def main() -> None:
        broker = await Broker(BrokerConfig(1, f"{HOST}:0", tmp_path / "data", certs=certs.path)).start()
        try:
            await asyncio.to_thread(job, Place(certs, broker.address))
        finally:
            await broker.stop()

    asyncio.run(main())


def test_a_rule_about_a_name_that_nothing_can_have_is_refused(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        for words in ("--topic '/orders.x/'", "--topic 'orders,late*'", "--group a/b", "--spark-source a/b"):
            refused = place.run(f"deny {ETL} --read {words}" if "spark" not in words else f"deny {ETL} {words}")
            assert isinstance(refused.exception, InvalidRequest), words
            assert "the rule would be about nothing, since no" in str(refused.exception)
        with place.admin() as admin:
            assert admin.acls() == []
            admin.alter_acls(add=[AclRule(ETL, "Read", "Topic", "my ", prefix=True)])

    beside(tmp_path, job)


def test_what_is_no_principal_has_no_empty_list_of_rules(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        told = "'etl' names no principal: write User:NAME, Group:NAME or Broker:ID. Did you mean 'User:etl'?"
        for command, words in (
            (acl, "list etl"),
            (acl, "remove etl --all --yes"),
            (acl, "check etl --read --topic t"),
            (acl, "deny etl --read --topic t"),
            (quota, "list etl"),
            (quota, "delete etl"),
            (quota, "set etl --produce 1MiB"),
        ):
            refused = place.run(words, command)
            assert isinstance(refused.exception, click.UsageError), words
            assert str(refused.exception) == told
        with place.admin() as admin, pytest.raises(InvalidRequest, match=re.escape(told)):
            admin.acls("etl")
        for words in ("list '*'", "list Group:night", "list"):
            assert place.run(words).exception is None

    beside(tmp_path, job)


def test_a_rule_whose_name_has_a_star_is_listed_so_and_removed_by_what_is_told(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        for words in ("--topic 'star*' --literal", "--topic 't*'"):
            assert place.run(f"allow 'User:a b' --read {words}").exception is None
        listed = [line.split("\t") for line in place.run("list").stdout.splitlines()]
        assert [line[-1] for line in listed] == ["name", "star* (literal)", "t*"]
        for words, told in (
            ("--topic 'star*'", "User:a b allow Read on Topic star* (literal)"),
            ("--topic 't*' --literal", "User:a b allow Read on Topic t*"),
        ):
            missed = place.run(f"remove 'User:a b' --read {words} --yes")
            assert missed.stdout == "0 rules removed, 1 was not there\n"
            hint, _, how = missed.stderr.partition(" is another rule: ")
            assert hint == told
            words = how.removeprefix("`tritonmq acl ").removesuffix("` removes it\n")
            assert place.run(f"{words} --yes").output == "1 rule removed\n"
        assert place.run("remove 'User:a b' --read --topic 't*' --yes").stderr == ""

    beside(tmp_path, job)


def test_to_deny_somebody_unknown_or_a_superuser_is_warned_of(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        with place.admin("etl") as mine:
            mine.list_topics()
        deny = "--describe --topic 'secret-*'"
        near = "warning: no broker has seen User:elt since it started, and no rule names it: did you mean 'User:etl'?\n"
        for who, warned in (
            ("User:admin", "warning: User:admin is a superuser, and no rule stops it\n"),
            ("User:elt", near),
            (ETL, ""),
            ("User:elt", ""),
            ("User:ANONYMOUS", ""),
            ("Group:night", ""),
            ("'*'", ""),
        ):
            said = place.run(f"deny {who} {deny}")
            assert (said.exception, said.stderr) == (None, warned), who
        assert place.run("allow User:new --read --topic t").stderr == ""

    beside(tmp_path, job)


def test_a_quota_of_somebody_unknown_or_of_a_superuser_is_warned_of(tmp_path: Path) -> None:
    def job(place: Place) -> None:
        with place.admin("etl") as mine:
            mine.list_topics()
            mine_may = AclRule(ETL, "Acls", "Cluster")
        with place.admin() as admin:
            admin.alter_acls(add=[mine_may])  # who may change rules by a rule is no superuser
        near = "warning: no broker has seen User:elt since it started, and no rule names it: did you mean 'User:etl'?\n"
        for who, warned in (
            ("User:admin", "warning: User:admin is a superuser, and has no quotas\n"),
            ("User:elt", near),
            (ETL, ""),
            ("User:ANONYMOUS", ""),
            ("--default", ""),
        ):
            said = place.run(f"set {who} --produce 1MiB/s", quota)
            assert (said.exception, said.stderr) == (None, warned), who

    beside(tmp_path, job)


def test_a_quota_that_is_set_or_taken_back_is_no_failure_though_nobody_can_be_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done already. An earlier release set quotas for names that have a star, of which nothing can be asked."""

    async def of_an_earlier_release() -> None:
        stored = FileCoordination(tmp_path / "data")
        await stored.start(lambda _event: None)
        await stored.security.write({"quotas": (-1, b'{"quotas":{"User:etl-*":{"produce":5}}}')})
        await stored.stop()

    def away(*_what: object) -> None:
        raise CoordinationUnavailable("away")

    def job(place: Place) -> None:
        for who in ("'User:etl-*'", "User:unknown", "User:admin"):
            taken = place.run(f"set {who} --produce default", quota)
            assert (taken.exception, taken.return_value, taken.stderr) == (None, 0, ""), who
        monkeypatch.setattr(Admin, "check_acl", away)
        done = place.run(f"set {ETL} --produce 1MiB/s", quota)
        assert (done.exception, done.return_value, done.stderr) == (None, 0, "")
        with place.admin() as admin:
            assert [each.principal for each in admin.quotas() if not each.built_in] == [ETL]

    asyncio.run(of_an_earlier_release())
    beside(tmp_path, job)
