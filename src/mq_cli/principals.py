"""What is said of users, and groups of them, whom a command names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from mq_cli.output import checking_what_was_typed, say
from mq_protocol.quotas import EVERYBODY
from mq_protocol.rights import Kind, Operation

if TYPE_CHECKING:
    from mq_client import Admin
    from mq_client.security_admin import KnownEntry

ANONYMOUS: Final = "User:ANONYMOUS"
"""Everybody without a name."""


def checked(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """Of an argument: `User:NAME`, `Group:NAME`, `*` for everybody, or nothing if it may be left out. Raises
    `click.UsageError`: rules and quotas of what is no principal would be an empty list."""
    from mq_broker.security.names import kind_of_kept

    if text not in ("", EVERYBODY):
        with checking_what_was_typed():
            kind_of_kept(text)
    return text


def say_if_unknown(known: KnownEntry) -> None:
    """That a user is most likely misspelt: brokers do not know it."""
    if not known.whose:
        near = f": did you mean {known.near!r}?" if known.near else ""
        say(f"warning: no broker has seen {known.entry} since it started, and no rule names it{near}")


def is_superuser(admin: Admin, principal: str) -> bool:
    """Whether it may change rules without a rule that says so."""
    verdict = admin.check_acl(principal, Operation.ACLS, Kind.CLUSTER)
    return verdict.allowed and verdict.rule is None
