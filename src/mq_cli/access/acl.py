"""`tritonmq acl`: who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from mq_cli.access.principals import (
    ANONYMOUS,
    PRINCIPAL,
    SOMEBODY,
    is_superuser,
    say_if_unknown,
    tell_of_those_that_do_not_judge,
    told_of_brokers,
)
from mq_cli.commands import command_group, flag, option, several
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import JSON, YES, Column, confirm, counted, document, say, write, write_json
from mq_cli.values import checking_what_was_typed
from mq_protocol.access.rights import CLUSTER_NAME, OPERATIONS, Kind, Operation, shown_name
from mq_protocol.access.rights import command as command_for

if TYPE_CHECKING:
    from mq_client import AclRule, AclVerdict, Admin

_NAMED = tuple(kind for kind in Kind if kind is not Kind.CLUSTER)

_SOURCE = ((Kind.TOPIC, Operation.READ),)
_SINK = ((Kind.TOPIC, Operation.WRITE),)
_PROGRESS = (Operation.READ, Kind.GROUP, "spark-", True)
"""A query reports how far it is as a group of this name, unless it was given another."""


@command_group()
def acl() -> None:
    """Who may do what.

    A rule allows, or denies, a user one operation on one resource. A name that ends with `*` stands for all names that
    begin so. What no rule allows is denied, and what a rule denies no other allows. Superusers may do everything.
    """


def _shown(rule: AclRule) -> str:
    return "" if rule.kind == Kind.CLUSTER else shown_name(rule.name, prefix=rule.prefix)


_COLUMNS = (
    Column("principal", "principal"),
    Column("effect", "effect", lambda rule: "deny" if rule.deny else "allow"),
    Column("operation", "operation"),
    Column("kind", "kind", lambda rule: rule.kind.lower()),
    Column("name"),
    Column("", "name", _shown),
    Column("prefix"),
)


class _RightsCommand(click.Command):
    """Who writes an operation in another way is told all of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            operations, kinds = (", ".join(f"--{each.lower()}" for each in words) for words in (Operation, Kind))
            raise click.UsageError(
                f"no such option: {error.option_name}. Operations are {operations}. What they are done with is {kinds}",
                ctx,
            ) from error


_DONE_WITH: dict[str, Any] = {
    **{kind: option(f"A {kind.lower()}.", multiple=True, metavar=f"{kind.upper()}[*]") for kind in _NAMED},
    "cluster": flag("The cluster itself."),
    "literal": flag("A * is a letter of the name."),
    **{
        operation: flag(f"Of: {', '.join(kind.lower() for kind in Kind if operation in OPERATIONS[kind])}.")
        for operation in Operation
    },
}
"""The operations, and what they are done with."""

_WHOLE: dict[str, Any] = {
    "spark_source": option("All that a Spark query needs to read this topic.", multiple=True, metavar="TOPIC[*]"),
    "spark_sink": option("All that a Spark query needs to write this topic.", multiple=True, metavar="TOPIC[*]"),
}
RIGHTS: Final = several(_DONE_WITH)
RULES: Final = several({**_DONE_WITH, **_WHOLE})


@acl.command(cls=_RightsCommand)
def allow(principal: str = PRINCIPAL, said: dict[str, Any] = RULES, connection: Connection = CONNECTION) -> int:
    """Allow PRINCIPAL (`User:NAME`, or `*` for everybody) to do something.

    `tritonmq acl allow User:etl --read --topic 'orders-*' --group etl`: every operation that is named, on every
    resource that is named and has it.
    """
    return _change(connection, add=_new_rules(principal, said, deny=False))


@acl.command(cls=_RightsCommand)
def deny(principal: str = PRINCIPAL, said: dict[str, Any] = RULES, connection: Connection = CONNECTION) -> int:
    """Deny PRINCIPAL something, whatever other rules allow. Whoever is denied to describe is denied everything."""
    rules = _new_rules(principal, said, deny=True)
    if principal.startswith("User:"):
        with connection.admin() as admin:
            _warn_of_whom_it_does_not_stop(admin, principal)
    return _change(connection, add=rules)


@acl.command(cls=_RightsCommand)
def remove(
    principal: str = PRINCIPAL,
    said: dict[str, Any] = RULES,
    denying: bool = flag("Rules that deny; else those that allow.", "--deny"),
    everything: bool = flag("Every rule of PRINCIPAL.", "--all"),
    yes: bool = YES,
    connection: Connection = CONNECTION,
) -> int:
    """Remove rules of PRINCIPAL: just those that the same words would make. Others are left alone.

    Asks first; in a script it needs --yes.
    """

    if everything and (any(said.values()) or denying):
        raise click.UsageError("--all removes every rule: leave out the others")
    named = [] if everything else _rules(principal, said, deny=denying)
    with connection.admin() as admin:
        there = admin.acls(principal)
    if everything and not there:
        say(f"{principal} has no rules")
        return 0
    _tell_of_those_that_look_alike(named, there)
    rules = there if everything else named
    what = f"the rule {rules[0]}" if len(rules) == 1 else f"{counted(len(rules), 'rule')} of {principal}"
    confirm(f"Remove {what}?", yes=yes)
    return _change(connection, remove=rules)


@acl.command("list", columns=_COLUMNS)
def list_rules(admin: Admin, principal: str = SOMEBODY) -> Sequence[AclRule]:
    """List the rules: of PRINCIPAL alone, or all."""
    found = admin.acls(principal)
    tell_of_those_that_do_not_judge(admin.not_judging())
    return found


@acl.command(cls=_RightsCommand)
def check(
    principal: str = PRINCIPAL, said: dict[str, Any] = RIGHTS, as_json: bool = JSON, connection: Connection = CONNECTION
) -> int:
    """Say whether PRINCIPAL may do something, and by which rule. Exit code 1: it may not.

    `tritonmq acl check User:etl --read --topic orders`
    """
    asked = _rules(principal, {**said, "literal": True}, deny=False)
    with connection.admin() as admin:
        answers = [(rule, admin.check_acl(principal, rule.operation, rule.kind, rule.name)) for rule in asked]
        tell_of_those_that_do_not_judge(admin.not_judging())
    if as_json:
        asked_columns = [column for column in _COLUMNS if column.name in ("operation", "kind", "name")]
        write_json([document(rule, asked_columns) | _answer(verdict) for rule, verdict in answers])
    else:
        for rule, verdict in answers:
            because = f"{verdict.why}: {verdict.rule}" if verdict.rule is not None else verdict.why
            write(f"{rule.operation} {_resource(rule)}: {'allowed' if verdict.allowed else 'denied'}, {because}")
    return 0 if all(verdict.allowed for _, verdict in answers) else 1


# ---------------------------------------------------------------- what was said


def _rules(principal: str, said: dict[str, Any], *, deny: bool) -> list[AclRule]:
    """Every operation with every resource that has it. Raises `click.UsageError` for one that goes with none."""
    from mq_client import AclRule

    pairs: list[tuple[Kind, Operation, str]] = []
    operations = [operation for operation in Operation if said.get(operation)]
    resources: list[tuple[Kind, str]] = [(kind, name) for kind in _NAMED for name in said.get(kind, ())]
    if said.get("cluster"):
        resources.append((Kind.CLUSTER, CLUSTER_NAME))
    whole = [(topic, _SOURCE) for topic in said.get("spark_source", ())]
    whole += [(topic, _SINK) for topic in said.get("spark_sink", ())]
    _check_company(operations, resources, bool(whole))
    pairs += [
        (kind, operation, name) for kind, name in resources for operation in operations if operation in OPERATIONS[kind]
    ]
    pairs += [(kind, operation, topic) for topic, rights in whole for kind, operation in rights]
    rules: list[AclRule] = []
    with checking_what_was_typed():
        for kind, operation, name in dict.fromkeys(pairs):
            if not name:
                raise click.UsageError(f"--{kind.lower()} was given no name: write * for all")
            prefix = name.endswith("*") and not said.get("literal")
            rules.append(AclRule(principal, operation, kind, name[:-1] if prefix else name, prefix, deny))
        progress = AclRule(principal, *_PROGRESS, deny)
    return [*rules, progress] if said.get("spark_source") and progress not in rules else rules


def _new_rules(principal: str, said: dict[str, Any], *, deny: bool) -> list[AclRule]:
    """Raises `click.UsageError` as well for a name that looks like a pattern and is none."""
    from mq_broker.security.rules import check_new_principal

    with checking_what_was_typed():
        check_new_principal(principal)
    rules = _rules(principal, said, deny=deny)
    for rule in rules:
        if "*" in rule.name and not said.get("literal"):
            typed = f"{rule.name}*" if rule.prefix else rule.name
            raise click.UsageError(
                f"{rule.kind.lower()} {typed!r}: a * stands for the rest of a name at its end alone. If it is a letter "
                "of the name, give --literal"
            )
    return rules


def _warn_of_whom_it_does_not_stop(admin: Admin, user: str) -> None:
    """Rules that allow are often made before their user comes, so they are not asked about."""
    if is_superuser(admin, user):
        say(f"warning: {user} is a superuser, and no rule stops it")
    elif user != ANONYMOUS:
        for known in admin.known_to_brokers(user):
            say_if_unknown(known)


def _check_company(operations: Sequence[Operation], resources: Sequence[tuple[Kind, str]], whole: bool) -> None:
    if not (operations and resources) and (operations or resources or not whole):
        missing = "what is done, such as --read" if not operations else "what it is done with, such as --topic orders"
        raise click.UsageError(f"say {missing}")
    for operation in operations:
        if not any(operation in OPERATIONS[kind] for kind, _ in resources):
            kinds = ", ".join(f"--{kind.lower()}" for kind in Kind if operation in OPERATIONS[kind])
            raise click.UsageError(f"--{operation.lower()} goes with {kinds}")
    for kind, _ in resources:
        if not any(operation in OPERATIONS[kind] for operation in operations):
            known = ", ".join(f"--{operation.lower()}" for operation in OPERATIONS[kind])
            raise click.UsageError(f"--{kind.lower()} goes with {known}")


def _change(connection: Connection, add: Sequence[AclRule] = (), remove: Sequence[AclRule] = ()) -> int:
    with connection.admin() as admin:
        done = admin.alter_acls(add, remove)
    if add:
        write(f"{counted(done.added, 'rule')} added" + _there(len(add) - done.added, "there already"))
    else:
        write(f"{counted(done.removed, 'rule')} removed" + _there(len(remove) - done.removed, "not there"))
    return told_of_brokers(done)


def _tell_of_those_that_look_alike(named: Sequence[AclRule], there: Sequence[AclRule]) -> None:
    """A name that ends with * is told of where the rule has it for a letter, and the other way round."""
    for rule in named:
        if rule not in there and (rule.prefix or rule.name.endswith("*")):
            name = f"{rule.name}*" if rule.prefix else rule.name[:-1]
            alike = replace(rule, name=name, prefix=not rule.prefix)
            if alike in there:
                said = (alike.principal, Operation(alike.operation), Kind(alike.kind), alike.name)
                how = command_for("remove", *said, prefix=alike.prefix, deny=alike.deny)
                say(f"{alike} is another rule: `{how}` removes it")


def _there(count: int, words: str) -> str:
    return f", {count:,} {'was' if count == 1 else 'were'} {words}" if count > 0 else ""


def _resource(rule: AclRule) -> str:
    return "the cluster" if rule.kind == Kind.CLUSTER else f"{rule.kind.lower()} {rule.name}"


def _answer(verdict: AclVerdict) -> dict[str, object]:
    rule = None if verdict.rule is None else document(verdict.rule, _COLUMNS)
    return {"allowed": verdict.allowed, "why": verdict.why, "rule": rule}
