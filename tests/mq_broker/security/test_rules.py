"""Rules against an oracle that knows nothing of how they are looked up."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from mq_broker.security import rules
from mq_broker.security.rules import Effect, Rule, RuleBook, check_new
from mq_protocol.access.rights import OPERATIONS, Kind, Operation
from mq_protocol.errors import InvalidRequest

ETL = "User:etl"


class Written(NamedTuple):
    """A rule as an administrator would say it."""

    who: str
    effect: str
    operation: str
    kind: str
    name: str


def oracle(written: list[Written], who: str, operation: str, kind: str, name: str) -> bool:
    """The verdict, the long way: a name that ends with `*` stands for all that begin so."""
    mine = [
        rule
        for rule in written
        if rule.who in (who, "*")
        and rule.kind == kind
        and (name.startswith(rule.name[:-1]) if rule.name.endswith("*") else name == rule.name)
    ]
    if any(rule.effect == "deny" and rule.operation in (operation, "Describe") for rule in mine):
        return False
    enough = {operation}
    if operation == "Describe":
        enough |= {"Read", "Write", "Alter", "Delete"}
    return any(rule.effect == "allow" and rule.operation in enough for rule in mine)


def compiled(written: list[Written]) -> RuleBook:
    return RuleBook(
        Rule(
            each.who,
            Effect(each.effect),
            Operation(each.operation),
            Kind(each.kind),
            each.name.removesuffix("*"),
            each.name.endswith("*"),
        )
        for each in written
    )


PEOPLE = (ETL, "User:ann", "User:ANONYMOUS", "*")
NAMES = ("a", "ab", "abc", "b", "ba", "é", "éa")
PATTERNS = (*NAMES, "*", "a*", "ab*", "abcd*", "b*", "é*")
KINDS = (Kind.TOPIC, Kind.GROUP, Kind.LOCK)


def chosen(rng: random.Random) -> Written:
    kind = rng.choice(KINDS)
    return Written(
        rng.choice(PEOPLE),
        rng.choice(("allow", "allow", "deny")),
        rng.choice(OPERATIONS[kind]),
        kind,
        rng.choice(PATTERNS),
    )


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_sets_of_rules_give_the_oracles_verdicts(count: int) -> None:
    rng = random.Random(17)
    allowed = 0
    for number in range(count):
        written = [chosen(rng) for _ in range(rng.randrange(8))]
        book = compiled(written)
        for _ in range(3):
            kind = rng.choice(KINDS)
            asked = rng.choice(PEOPLE[:3]), rng.choice(OPERATIONS[kind]), kind, rng.choice(NAMES)
            expected = oracle(written, *asked)
            allowed += expected
            assert book.verdict(*asked).allowed is expected, (number, written, asked)
            assert book.verdict(*asked).allowed is expected, "remembered"
    assert count / 10 < allowed < 2 * count


def test_there_is_a_name_exactly_if_the_oracle_finds_one() -> None:
    rng = random.Random(18)
    tried = [*NAMES, *(pattern.removesuffix("*") + "zz" for pattern in PATTERNS)]
    found = 0
    for _ in range(3_000):
        written = [chosen(rng) for _ in range(rng.randrange(6))]
        kind = rng.choice(KINDS)
        who, operation = rng.choice(PEOPLE[:3]), rng.choice(OPERATIONS[kind])
        expected = any(oracle(written, who, operation, kind, name) for name in tried)
        found += expected
        assert compiled(written).any_name(who, operation, kind).allowed is expected, (written, who, operation, kind)
    assert found > 150


@pytest.mark.parametrize("written", [[], [Written(ETL, "allow", "Read", "Topic", "*")]])
def test_rules_that_cannot_all_be_read_allow_nothing(written: list[Written]) -> None:
    book = RuleBook(compiled(written)._rules[ETL, Kind.TOPIC].all() if written else (), readable=False)
    verdict = book.verdict(ETL, Operation.READ, Kind.TOPIC, "t")
    assert (verdict.allowed, verdict.why) == (False, rules.UNREADABLE.why)
    assert not book.any_name(ETL, Operation.READ, Kind.TOPIC).allowed


def test_a_verdict_names_the_rule_that_decided() -> None:
    allow, deny = (Rule(ETL, effect, Operation.READ, Kind.TOPIC, "t", prefix=True) for effect in Effect)
    assert RuleBook([allow]).verdict(ETL, Operation.DESCRIBE, Kind.TOPIC, "top").rule == allow
    assert RuleBook([allow, deny]).verdict(ETL, Operation.READ, Kind.TOPIC, "top").rule == deny
    assert RuleBook([allow]).verdict("User:Etl", Operation.READ, Kind.TOPIC, "top").rule is None


def about(**changes: object) -> Callable[[], Rule]:
    said = {
        "principal": ETL,
        "effect": Effect.ALLOW,
        "operation": Operation.READ,
        "kind": Kind.TOPIC,
        "name": "t",
        "prefix": False,
        **changes,
    }
    return lambda: Rule(**said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (about(principal="etl"), r"'etl' names no principal.*Did you mean 'User:etl'\?"),
        (about(principal="user:etl"), "'user:etl' names no principal: write User:NAME, Group:NAME or Broker:ID$"),
        (about(principal="Broker:1"), "rules are for users"),
        (about(operation=Operation.ABORT), "Topic has no operation Abort"),
        (about(operation=Operation.ALTER, kind=Kind.CLUSTER), "there is one cluster"),
        (about(operation=Operation.ALTER, kind=Kind.CLUSTER, name="cluster", prefix=True), "there is one cluster"),
        (about(name=""), "a rule without a name"),
        (about(name="é" * 513), "more than 1024 bytes"),
        (about(name="a\nb"), "characters that no name has"),
        (about(name="\ud800"), "characters that no name has"),
    ],
)
def test_a_rule_that_says_nothing_possible_is_refused(rule: Callable[[], Rule], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        rule()


def test_everything_has_a_rule_that_may_name_it() -> None:
    for name in ("", "é" * 512, "\u3000blank\u00a0"):
        about(name=name, prefix=True)()
    about(operation=Operation.ALTER, kind=Kind.CLUSTER, name="cluster")()
    about(principal="*")()


def test_a_new_rule_may_name_the_brokers_own_topics() -> None:
    """As one that denies all of them by their beginning."""
    check_new(about(name="__transactions")())
    check_new(about(name="__", prefix=True)())


@pytest.mark.parametrize(
    "rule",
    [
        about(name="/orders.*/"),
        about(name="orders,late"),
        about(name=" a"),
        about(name="a "),
        about(name=" a", prefix=True),
        about(name="a/", prefix=True),
        about(name=".."),
        about(name="t" * 256, prefix=True),
        about(kind=Kind.GROUP, name="a,b"),
        about(kind=Kind.LOCK, operation=Operation.WRITE, name="a/b"),
        about(kind=Kind.LOCK, operation=Operation.WRITE, name="zoe\u0308"),
    ],
)
def test_no_rule_is_made_about_a_name_that_nothing_of_the_kind_can_have(rule: Callable[[], Rule]) -> None:
    with pytest.raises(InvalidRequest, match=r"the rule would be about nothing, since no (topic|group|lock) is"):
        check_new(rule())  # it can be read


@pytest.mark.parametrize("who", ["User:*", "User:etl-*", "Group:*"])
def test_no_rule_is_made_for_a_pattern(who: str) -> None:
    with pytest.raises(InvalidRequest, match=r"would be about nobody: name one user, or Group:NAME .* or \* alone"):
        check_new(about(principal=who)())


def test_rules_are_made_about_all_names_that_something_can_have() -> None:
    transaction = {"kind": Kind.TRANSACTION, "operation": Operation.WRITE}
    for made in (
        about(name="t" * 255),
        about(name="t" * 255, prefix=True),
        about(name="", prefix=True),
        about(name="my ", prefix=True),
        about(name="..", prefix=True),
        about(name="zoe\u0308"),
        about(name="a*b"),
        about(kind=Kind.GROUP, name="g"),
        about(kind=Kind.LOCK, operation=Operation.WRITE, name="l"),
        about(**transaction, name="app:a/b,c"),
        about(operation=Operation.ALTER, kind=Kind.CLUSTER, name="cluster"),
    ):
        check_new(made())


def test_rules_of_groups_count_for_who_is_in_them_against_the_oracle() -> None:
    rng = random.Random(18)
    people = (ETL, "Group:a", "Group:b", "*")
    decided = 0
    for _ in range(3_000):
        written = [chosen(rng)._replace(who=rng.choice(people)) for _ in range(rng.randrange(1, 6))]
        groups = tuple(sorted(rng.sample(("Group:a", "Group:b", "Group:c"), rng.randrange(4))))
        mine = {ETL, *groups}
        as_own = [rule._replace(who=ETL) for rule in written if rule.who in (*mine, "*")]
        kind = rng.choice(KINDS)
        operation, name, book = rng.choice(OPERATIONS[kind]), rng.choice(NAMES), compiled(written)
        expected = oracle(as_own, ETL, operation, kind, name)
        assert book.verdict(ETL, operation, kind, name, groups).allowed == expected, (written, groups)
        alone = oracle(written, ETL, operation, kind, name)
        assert book.verdict(ETL, operation, kind, name).allowed == alone, "nothing of it is remembered for others"
        decided += expected != alone
    assert decided > 45
