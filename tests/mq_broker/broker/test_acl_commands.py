"""`tritonmq acl` and `tritonmq quota` at a broker that judges rights: what can mean nothing is refused or told."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import click
from click.testing import CliRunner, Result

from mq_broker.broker.config import BrokerConfig
from mq_cli.access.acl import acl
from mq_cli.access.quota import quota
from mq_client import AclRule, Admin
from mq_client.errors import InvalidRequest
from tests.mq_broker.broker.cluster import Broker
from tests.securing import HOST, Certs

ETL = "User:etl"


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
