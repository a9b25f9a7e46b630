"""`tritonmq quota`: how much each user may use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import click

from mq_cli.access.principals import ANONYMOUS, SOMEBODY, is_superuser, say_if_unknown, told_of_late
from mq_cli.commands import command_group, flag, option, several
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import Column, say, write
from mq_cli.values import checking_what_was_typed
from mq_protocol.access.quotas import EVERYBODY, IN_BYTES, MEANINGS, RATES, Quota, limit_text, parse_limit, parse_quota
from mq_protocol.errors import TritonMQError

if TYPE_CHECKING:
    from mq_client import Admin, QuotaDescription

_UNSET = "default"


def _shown(principal: str) -> str:
    return "(everybody else)" if principal == EVERYBODY else principal


def _whose_row(found: QuotaDescription) -> str:
    return "(built in)" if found.built_in else _shown(found.principal)


def _limit(quota: Quota) -> Callable[[QuotaDescription], str]:
    return lambda found: limit_text(quota, found.limits[quota]) if quota in found.limits else ""


_COLUMNS = (
    Column("principal"),
    Column("", "principal", _whose_row),
    Column("limits", value=lambda found: dict(found.limits)),
    Column("built_in"),
    *(Column("", str(each), _limit(each)) for each in Quota),
)


@command_group()
def quota() -> None:
    """How much each user may use of every broker, or have in the cluster.

    Whoever is above a rate (produce, fetch, requests) waits. What is above a number (connections, streams, topics,
    partitions, transactions, staged batches) is refused. What is not set for a user is as it is set for everybody, by
    --default. Superusers have no quotas.
    """


EVERYBODY_ELSE: Final = flag("Everybody for whom it is not set otherwise.", "--default")
LIMITS: Final = several(
    {
        each: option(MEANINGS[each], metavar=("BYTES" if each in IN_BYTES else "N") + ("/s" if each in RATES else ""))
        for each in Quota
    }
)


@quota.command("set")
def set_quotas(
    principal: str = SOMEBODY,
    everybody: bool = EVERYBODY_ELSE,
    said: dict[str, str | None] = LIMITS,
    connection: Connection = CONNECTION,
) -> int:
    """Set quotas of PRINCIPAL (`User:NAME`), or with --default of everybody else. Others stay as they are.

    `tritonmq quota set User:etl --produce 50MiB/s --fetch 200MiB/s --requests 500/s`. The word `unlimited` takes a
    limit away; `default` takes back what was set.
    """
    who = _principal(principal, everybody)
    limits: dict[str, int | None] = {}
    with checking_what_was_typed():
        for name, text in said.items():
            if text is not None:
                limits[name] = None if text == _UNSET else parse_limit(parse_quota(name), text)
        _say_units(said)
    if not limits:
        raise click.UsageError("say which quota, such as --produce 50MiB/s")
    with connection.admin() as admin:
        late = admin.set_quotas(who, **limits)
        if any(limit is not None for limit in limits.values()):
            with contextlib.suppress(TritonMQError):  # it is done, whatever can be said of it
                _warn_of_who_is_not_bounded(admin, who)
    write(f"{_shown(who)}: {', '.join(_said(name, limit) for name, limit in limits.items())}")
    _warn_of_low_rates(limits)
    return told_of_late(late)


@quota.command("delete")
def delete_quotas(
    principal: str = SOMEBODY, everybody: bool = EVERYBODY_ELSE, connection: Connection = CONNECTION
) -> int:
    """Take back all that was set for PRINCIPAL, or with --default for everybody else."""
    who = _principal(principal, everybody)
    with connection.admin() as admin:
        if not any(each.principal == who and not each.built_in for each in admin.quotas()):
            say(f"{_shown(who)}: nothing was set")
            return 0
        late = admin.delete_quotas(who)
    write(f"{_shown(who)}: all that was set is taken back")
    return told_of_late(late)


@quota.command("list", columns=_COLUMNS)
def list_quotas(admin: Admin, principal: str = SOMEBODY) -> list[QuotaDescription]:
    """List what was set: for PRINCIPAL alone, or for all. What is built in comes first."""
    return [each for each in admin.quotas() if principal in ("", each.principal)]


_IN_TENS = re.compile(r"[0-9_ ]+[kmg]b(/s)?", re.IGNORECASE)


def _say_units(said: Mapping[str, str | None]) -> None:
    """What is written as a power of ten is taken as one of two, as everywhere in TritonMQ and in Spark."""
    for name, text in said.items():
        if text is not None and _IN_TENS.fullmatch(text.strip()):
            quota_ = parse_quota(name)
            say(f"{text} is taken as {limit_text(quota_, parse_limit(quota_, text))}: sizes are powers of two")


_FEW_BYTES = 1 << 10


def _warn_of_low_rates(limits: Mapping[str, int | None]) -> None:
    """They are not refused: it is a way to stop somebody without taking a right away, and Python sets them too."""
    for name, limit in limits.items():
        quota_ = parse_quota(name)
        if quota_ in IN_BYTES and quota_ in RATES and limit is not None and 0 < limit < _FEW_BYTES:
            say(
                f"warning: {name} {limit_text(quota_, limit)} holds a batch back for so long that clients give up. "
                "Write a unit if more was meant, such as 50MiB/s"
            )


def _warn_of_who_is_not_bounded(admin: Admin, principal: str) -> None:
    """Where nobody has a name; else a superuser, and who is most likely misspelt."""
    if principal in (EVERYBODY, ANONYMOUS):
        return
    addresses = admin.without_names()
    if not addresses:
        if is_superuser(admin, principal):
            say(f"warning: {principal} is a superuser, and has no quotas")
        else:
            for known in admin.known_to_brokers(principal):
                say_if_unknown(known)
    else:
        say(
            f"warning: at {', '.join(addresses)} everybody is {ANONYMOUS}, so nobody is bounded by what is set for "
            f"{principal}: set it for {ANONYMOUS} or with --default, or start the brokers with --certs (docs/tls.md)"
        )


def _principal(principal: str, everybody: bool) -> str:
    if everybody == bool(principal):
        raise click.UsageError("name one user, such as User:etl, or give --default")
    return EVERYBODY if everybody else principal


def _said(name: str, limit: int | None) -> str:
    return f"{name} {_UNSET if limit is None else limit_text(parse_quota(name), limit)}"
