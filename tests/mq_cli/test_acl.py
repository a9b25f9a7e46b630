"""What the words of `tritonmq acl` mean."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mq_cli import acl as module
from mq_cli.acl import acl
from mq_cli.in_force import NOT_EVERYWHERE
from mq_client import AclChange, AclRule, AclVerdict
from mq_client.acl_admin import KnownEntry
from mq_protocol.rights import CLUSTER_NAME, Kind, Operation, command


class Admin:
    """Notes what it is asked to change."""

    def __init__(self) -> None:
        self.added: list[AclRule] = []
        self.removed: list[AclRule] = []
        self.late: tuple[str, ...] = ()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def alter_acls(self, add: Sequence[AclRule], remove: Sequence[AclRule]) -> AclChange:
        self.added += add
        self.removed += remove
        return AclChange(len(add), len(remove), self.late)

    def acls(self, principal: str = "") -> list[AclRule]:
        return [
            AclRule(principal or "*", "Read", "Topic", "t", prefix=True),
            AclRule("*", "Acls", "Cluster", deny=True),
        ]

    def not_judging(self) -> tuple[str, ...]:
        return ()

    def known_to_brokers(self, *who: str) -> list[KnownEntry]:
        return [KnownEntry(each, each) for each in who]

    def check_acl(self, principal: str, operation: str, kind: str, name: str = CLUSTER_NAME) -> AclVerdict:
        allowed = name == "t"
        return AclVerdict(allowed, "a rule allows it" if allowed else "no rule allows it")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(module, "open_admin", lambda *_: made)
    return made


def run(words: str) -> Any:
    return CliRunner().invoke(acl, shlex.split(words), standalone_mode=False)


def said(rules: list[AclRule]) -> list[str]:
    return [str(rule) for rule in rules]


def test_every_operation_is_allowed_on_every_resource_that_has_it(admin: Admin) -> None:
    assert (
        run(
            "allow User:etl --read --create --topic 'orders-*' --topic t --group g --transaction q --write"
        ).return_value
        == 0
    )
    assert said(admin.added) == [
        "User:etl allow Read on Topic orders-*",
        "User:etl allow Write on Topic orders-*",
        "User:etl allow Create on Topic orders-*",
        "User:etl allow Read on Topic t",
        "User:etl allow Write on Topic t",
        "User:etl allow Create on Topic t",
        "User:etl allow Read on Group g",
        "User:etl allow Create on Group g",
        "User:etl allow Write on Transaction q",
    ]
    assert admin.added[0] == AclRule("User:etl", "Read", "Topic", "orders-", prefix=True)


def test_a_spark_query_is_allowed_what_it_needs(admin: Admin) -> None:
    run("allow User:etl --spark-source in --spark-sink 'out-*'")
    assert said(admin.added) == [
        "User:etl allow Read on Topic in",
        "User:etl allow Write on Topic out-*",
        "User:etl allow Read on Group spark-*",
    ]
    admin.added.clear()
    run("allow User:etl --spark-source 'in*' --literal --group 'spark-*' --read")
    assert admin.added == [
        AclRule("User:etl", "Read", "Group", "spark-*"),
        AclRule("User:etl", "Read", "Topic", "in*"),
        AclRule("User:etl", "Read", "Group", "spark-", prefix=True),
    ]


def test_rules_that_deny_are_made_and_removed_as_such(admin: Admin) -> None:
    run("deny '*' --describe --topic 'secret-*'")
    run("remove '*' --describe --topic 'secret-*' --deny --yes")
    run("remove User:a --alter --cluster --yes")
    assert said(admin.added) == said(admin.removed[:1]) == ["* deny Describe on Topic secret-*"]
    assert admin.removed[1] == AclRule("User:a", "Alter", "Cluster", CLUSTER_NAME)


def test_rules_are_removed_only_with_yes(admin: Admin) -> None:
    for words, asked in (
        ("--all", "Remove 2 rules of User:a?"),
        ("--write --topic t --deny", "Remove the rule User:a deny Write on Topic t?"),
        ("--read --topic t --topic u", "Remove 2 rules of User:a?"),
    ):
        refused = run(f"remove User:a {words}")
        assert isinstance(refused.exception, click.ClickException)
        assert "give --yes" in refused.exception.message
        assert asked in refused.exception.message
    assert admin.removed == []
    assert run("remove User:a --all --yes").output == "2 rules removed\n"
    assert isinstance(run("remove User:a --all --read --topic t").exception, click.UsageError)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("allow User:etl", "say what is done, such as --read"),
        ("allow User:etl --read", "say what it is done with, such as --topic orders"),
        ("allow User:etl --topic t", "say what is done"),
        ("allow User:etl --abort --topic t", "--abort goes with --transaction"),
        ("allow User:etl --read --topic t --cluster", "--cluster goes with --describe, --alter, --acls, --metrics"),
        ("allow User:etl --read --topic ''", "--topic was given no name: write \\* for all"),
        ("allow User:etl --read --topic '*a'", r"topic '\*a': a \* stands for the rest of a name at its end alone"),
        ("deny User:etl --read --group 'a*b*'", r"group 'a\*b\*': .* If it is a letter of the name, give --literal"),
        ("deny User:etl --spark-sink 'a**'", "--literal"),
        ("allow 'User:etl-*' --read --topic t", r"nobody: name one user, or Group:NAME .*, or \* alone for everybody"),
    ],
)
def test_words_that_go_with_nothing_are_refused(words: str, told: str, admin: Admin) -> None:
    result = run(words)
    assert isinstance(result.exception, click.UsageError)
    with pytest.raises(click.UsageError, match=told):
        raise result.exception
    assert admin.added == []


@pytest.mark.parametrize(
    "words", ["allow User:etl --consume --topic t", "deny User:etl --operation Read", "check User:etl --all"]
)
def test_an_operation_that_there_is_not_is_told_all_that_there_are(words: str, admin: Admin) -> None:
    refused = run(words).exception
    assert isinstance(refused, click.UsageError)
    assert refused.message.startswith(
        f"no such option: {words.split()[2]}. Operations are --describe, --read, --write,"
    )
    assert refused.message.endswith("is --topic, --group, --transaction, --lock, --cluster")


def test_what_is_not_in_force_everywhere_is_said(admin: Admin) -> None:
    admin.late = ("b:1",)
    result = run("allow User:etl --read --topic t")
    assert result.return_value == NOT_EVERYWHERE
    assert "it is done, and not yet known to be in force at b:1" in result.output


def test_a_check_says_why_and_its_exit_code_whether(admin: Admin) -> None:
    allowed, denied = run("check User:etl --read --topic t"), run("check User:etl --read --topic u --topic t")
    assert (allowed.return_value, allowed.output) == (0, "Read topic t: allowed, a rule allows it\n")
    assert (denied.return_value, denied.output.splitlines()[0]) == (1, "Read topic u: denied, no rule allows it")


def test_rules_are_listed(admin: Admin) -> None:
    assert run("list").output.splitlines() == [
        "principal\teffect\toperation\tkind\tname",
        "*\tallow\tRead\ttopic\tt*",
        "*\tdeny\tAcls\tcluster\t",
    ]


@pytest.mark.parametrize("name", ["t", "it's", "ends-with-*", "a*b", "a b", "--odd", "é"])
@pytest.mark.parametrize("prefix", [False, True])
def test_the_command_that_an_error_names_makes_or_removes_the_rule(name: str, prefix: bool, admin: Admin) -> None:
    made = AclRule("User:etl", "Read", "Topic", name, prefix)
    for verb, noted in (("allow", admin.added), ("remove", admin.removed)):
        if prefix and "*" in name and verb == "allow":
            continue  # no command makes such a rule; one that is there is removed
        words = command(verb, "User:etl", Operation.READ, Kind.TOPIC, name, prefix=prefix)
        assert words.startswith("tritonmq acl ")
        result = run(words.removeprefix("tritonmq acl ") + " --yes" * (verb == "remove"))
        assert result.exception is None, result.exception
        assert noted == [made]
