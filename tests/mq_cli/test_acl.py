"""`tritonmq acl` against a broker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mq_cli.access.acl import acl
from mq_client import AclRule, Admin
from mq_dev.local_cluster import LocalCluster
from mq_protocol.access.rights import CLUSTER_NAME, Kind, Operation, command


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("acl")) as cluster:
        yield cluster.bootstrap


@pytest.fixture(autouse=True)
def _there(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has a rule after a test."""
    monkeypatch.setenv("TRITONMQ_BOOTSTRAP", bootstrap)
    yield
    with Admin(bootstrap) as admin:
        if left := [rule for rule in admin.acls() if rule.principal in (USER, "*")]:
            admin.alter_acls([], left)


USER = "User:etl"


def run(words: str) -> Any:
    return CliRunner().invoke(acl, shlex.split(words), standalone_mode=False)


def rules(bootstrap: str, principal: str = USER) -> list[AclRule]:
    with Admin(bootstrap) as admin:
        return [rule for rule in admin.acls() if rule.principal == principal]


def said(found: list[AclRule]) -> set[str]:
    return {str(rule) for rule in found}


def test_every_operation_is_allowed_on_every_resource_that_has_it(bootstrap: str) -> None:
    done = run("allow User:etl --read --create --topic 'orders-*' --topic t --group g --transaction q --write")
    assert (done.return_value, done.stdout) == (0, "9 rules added\n")
    assert said(rules(bootstrap)) == {
        "User:etl allow Read on Topic orders-*",
        "User:etl allow Write on Topic orders-*",
        "User:etl allow Create on Topic orders-*",
        "User:etl allow Read on Topic t",
        "User:etl allow Write on Topic t",
        "User:etl allow Create on Topic t",
        "User:etl allow Read on Group g",
        "User:etl allow Create on Group g",
        "User:etl allow Write on Transaction q",
    }
    assert AclRule("User:etl", "Read", "Topic", "orders-", prefix=True) in rules(bootstrap)


def test_a_spark_query_is_allowed_what_it_needs(bootstrap: str) -> None:
    run("allow User:etl --spark-source in --spark-sink 'out-*'")
    assert said(rules(bootstrap)) == {
        "User:etl allow Read on Topic in",
        "User:etl allow Write on Topic out-*",
        "User:etl allow Read on Group spark-*",
    }
    run("remove User:etl --all --yes")
    run("allow User:etl --spark-source 'in*' --literal --group 'spark-*' --read")
    assert set(rules(bootstrap)) == {
        AclRule("User:etl", "Read", "Group", "spark-*"),
        AclRule("User:etl", "Read", "Topic", "in*"),
        AclRule("User:etl", "Read", "Group", "spark-", prefix=True),
    }


def test_rules_that_deny_are_made_listed_and_removed_as_such(bootstrap: str) -> None:
    run("deny '*' --describe --topic 'secret-*'")
    run("allow '*' --alter --cluster")
    assert said(rules(bootstrap, "*")) == {
        "* deny Describe on Topic secret-*",
        str(AclRule("*", "Alter", "Cluster", CLUSTER_NAME)),
    }
    header, *lines = run("list '*'").stdout.splitlines()
    assert header == "principal\teffect\toperation\tkind\tname"
    assert set(lines) == {"*\tdeny\tDescribe\ttopic\tsecret-*", "*\tallow\tAlter\tcluster\t"}
    run("remove '*' --describe --topic 'secret-*' --deny --yes")
    run("remove '*' --alter --cluster --yes")
    assert rules(bootstrap, "*") == []


def test_rules_are_removed_only_with_yes(bootstrap: str) -> None:
    run("allow User:etl --read --topic t --topic u")
    for words, asked in (
        ("--all", "Remove 2 rules of User:etl?"),
        ("--write --topic t --deny", "Remove the rule User:etl deny Write on Topic t?"),
        ("--read --topic t --topic u", "Remove 2 rules of User:etl?"),
    ):
        refused = run(f"remove User:etl {words}")
        assert isinstance(refused.exception, click.ClickException)
        assert "give --yes" in refused.exception.message
        assert asked in refused.exception.message
    assert len(rules(bootstrap)) == 2
    assert run("remove User:etl --all --yes").stdout == "2 rules removed\n"
    assert isinstance(run("remove User:etl --all --read --topic t").exception, click.UsageError)


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
def test_words_that_go_with_nothing_are_refused(words: str, told: str, bootstrap: str) -> None:
    result = run(words)
    assert isinstance(result.exception, click.UsageError)
    with pytest.raises(click.UsageError, match=told):
        raise result.exception
    assert rules(bootstrap) == []


@pytest.mark.parametrize(
    "words", ["allow User:etl --consume --topic t", "deny User:etl --operation Read", "check User:etl --all"]
)
def test_an_operation_that_there_is_not_is_told_all_that_there_are(words: str) -> None:
    refused = run(words).exception
    assert isinstance(refused, click.UsageError)
    assert refused.message.startswith(
        f"no such option: {words.split()[2]}. Operations are --describe, --read, --write,"
    )
    assert refused.message.endswith("is --topic, --group, --transaction, --lock, --cluster")


def test_a_check_says_why_and_its_exit_code_whether() -> None:
    run("allow User:etl --read --topic t")
    allowed, denied = run("check User:etl --read --topic t"), run("check User:etl --read --topic u --topic t")
    assert (allowed.return_value, denied.return_value) == (0, 1)
    assert allowed.stdout.startswith("Read topic t: allowed, ")
    assert denied.stdout.splitlines()[0].startswith("Read topic u: denied, ")


@pytest.mark.parametrize("name", ["t", "it's", "ends-with-*", "a*b", "a b", "--odd", "é"])
@pytest.mark.parametrize("prefix", [False, True])
def test_the_command_that_an_error_names_makes_or_removes_the_rule(name: str, prefix: bool, bootstrap: str) -> None:
    made = AclRule("User:etl", "Read", "Topic", name, prefix)
    for verb, left in (("allow", [made]), ("remove", [])):
        if prefix and "*" in name and verb == "allow":
            with Admin(bootstrap) as admin:
                admin.alter_acls([made])  # no command makes such a rule; one that is there is removed
            continue
        words = command(verb, "User:etl", Operation.READ, Kind.TOPIC, name, prefix=prefix)
        assert words.startswith("tritonmq acl ")
        result = run(words.removeprefix("tritonmq acl ") + " --yes" * (verb == "remove"))
        assert result.exception is None, result.exception
        assert rules(bootstrap) == left
