"""What is said of brokers that do not, or not yet, judge by what was just changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mq_cli.output import say

if TYPE_CHECKING:
    from mq_client.security_admin import AclChange

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
