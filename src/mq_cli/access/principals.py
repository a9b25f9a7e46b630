"""What is said of users, and groups of them, whom a command names, and of brokers that do not, or not yet, judge by
what was just changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mq_cli.commands import argument
from mq_cli.output import say
from mq_cli.values import checking
from mq_protocol.access.quotas import EVERYBODY
from mq_protocol.access.rights import Kind, Operation

if TYPE_CHECKING:
    from mq_client import Admin
    from mq_client.administration.security_admin import AclChange, KnownEntry

ANONYMOUS: Final = "User:ANONYMOUS"
"""Everybody without a name."""


def _check(text: str) -> None:
    """`User:NAME`, `Group:NAME`, `*` for everybody, or nothing if it may be left out. Rules and quotas of what is no
    principal would be an empty list."""
    from mq_broker.security.names import kind_of_kept

    if text not in ("", EVERYBODY):
        kind_of_kept(text)


PRINCIPAL: Final = argument("PRINCIPAL", callback=checking(_check))
SOMEBODY: Final = argument("[PRINCIPAL]", default="", callback=checking(_check))


def say_if_unknown(known: KnownEntry) -> None:
    """That a user is most likely misspelt: brokers do not know it."""
    if not known.whose:
        near = f": did you mean {known.near!r}?" if known.near else ""
        say(f"warning: no broker has seen {known.entry} since it started, and no rule names it{near}")


def is_superuser(admin: Admin, principal: str) -> bool:
    """Whether it may change rules without a rule that says so."""
    verdict = admin.check_acl(principal, Operation.ACLS, Kind.CLUSTER)
    return verdict.allowed and verdict.rule is None


NOT_EVERYWHERE: Final = 4
"""The exit status of a change that is made, and that a broker has not said to obey. It is down, as a rule: scripts must
be able to tell that from a change that is not made."""


def told_of_brokers(done: AclChange) -> int:
    """The exit status: `NOT_EVERYWHERE` if a broker has not said that it judges by the change."""
    tell_of_those_that_do_not_judge(done.not_judging)
    return told_of_late(done.late)


def told_of_late(addresses: Sequence[str]) -> int:
    """The exit status: `NOT_EVERYWHERE` if one of the brokers has not said that it knows of the change."""
    if addresses:
        say(
            f"it is done, and not yet known to be in force at {', '.join(addresses)}: a broker reads changes within "
            f"2 s, once it reaches ZooKeeper (exit status {NOT_EVERYWHERE})"
        )
    return NOT_EVERYWHERE if addresses else 0


def tell_of_those_that_do_not_judge(addresses: Sequence[str]) -> None:
    if addresses:
        say(
            f"rights are not judged at {', '.join(addresses)}: there everybody may do everything, whatever the rules "
            "say, until the broker is started with --certs or --authorize (docs/rights.md)"
        )
