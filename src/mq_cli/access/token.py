"""`tritonmq user` and `tritonmq token`: users who speak with a token instead of a certificate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mq_cli.access.principals import told_of_brokers, told_of_late
from mq_cli.commands import argument, command_group, option, several
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import JSON, YES, Column, confirm, documents, say, show, write, write_table
from mq_cli.values import FILE, parsed
from mq_protocol.access.rights import Kind, shown_name
from mq_protocol.access.secrets import api_token_id_in
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import API_TOKEN_VALID_S, API_TOKEN_VALID_S_MAX
from mq_protocol.names import user_named
from mq_protocol.shown import counted

if TYPE_CHECKING:
    from mq_client import Admin
    from mq_client.administration.security_admin import NewApiToken, TokenUser

_DAY_S = 86_400
_MINUTE_S = 60


def _day(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC")


def _valid(user: TokenUser) -> int:
    now = datetime.now(UTC)
    return sum(token.expires_at > now for token in user.tokens)


_TOKEN = (
    Column("id"),
    Column("created_at", value=lambda token: token.created_at.isoformat()),
    Column("expires_at", value=lambda token: token.expires_at.isoformat()),
)
_USERS = (
    Column("name", "user"),
    Column("", "valid tokens", _valid),
    Column("created_at", value=lambda user: user.created_at.isoformat()),
    Column("", "since", lambda user: _day(user.created_at)),
    Column("tokens", value=lambda user: documents(user.tokens, _TOKEN)),
)


def _valid_s(days: int | None, minutes: int | None) -> int:
    if minutes is None:
        return API_TOKEN_VALID_S if days is None else days * _DAY_S
    if days is not None:
        raise click.UsageError("--days and --minutes are given: leave one out")
    return minutes * _MINUTE_S


VALID_S: Final = several(
    {
        "days": option(
            f"How long the token is valid. [default: {API_TOKEN_VALID_S // _DAY_S}]",
            type=click.IntRange(1, API_TOKEN_VALID_S_MAX // _DAY_S),
        ),
        "minutes": option(
            "The same in minutes, such as to see what becomes of a client whose token expires.",
            type=click.IntRange(1, API_TOKEN_VALID_S_MAX // _MINUTE_S),
        ),
    },
    make=_valid_s,
)
OUT: Final = option(
    "Write the token to this new file, at mode 0600. Default: to standard output.", type=FILE, metavar="FILE"
)


@command_group()
def user() -> None:
    """Users who speak with a token, which brokers with --certs take."""


@user.command("create")
def create_user(
    name: str = argument(callback=parsed(user_named)),
    valid_s: int = VALID_S,
    out: Path | None = OUT,
    connection: Connection = CONNECTION,
) -> int:
    """Make a user, and show its first token. It is shown once: brokers keep no more than its SHA-256.

    `tritonmq acl allow User:NAME …` gives it rights.
    """
    with _Out(out) as keep, connection.admin() as admin:
        return keep(admin.create_user(name, valid_s))


@user.command("list", columns=_USERS)
def list_users(admin: Admin) -> Sequence[TokenUser]:
    """Show the users, and how many tokens of each are valid."""
    return admin.token_users()


@user.command("delete")
def delete_user(admin: Admin, name: str = argument(callback=parsed(user_named)), yes: bool = YES) -> int:
    """Delete a user with all tokens, and end what it has open. Asks first; in a script it needs --yes.

    Certificates in its name stay good, and its rules stay.
    """
    rules = admin.acls(f"User:{name}")
    confirm(f"Delete user {name} and all its tokens?", yes=yes)
    done = admin.delete_user(name)
    write(f"{name}: deleted, with all tokens")
    if rules:
        there = f"{counted(len(rules), 'rule')} of User:{name} {'stays' if len(rules) == 1 else 'stay'}"
        say(f"{there}: `tritonmq acl remove User:{name} --all` removes what stays")
        for rule in rules:
            name = shown_name(rule.name, prefix=rule.prefix)
            resource = "cluster" if rule.kind == Kind.CLUSTER else f"{rule.kind.lower()} {name}"
            say(f"  {'deny' if rule.deny else 'allow'} {rule.operation} {resource}")
    return told_of_brokers(done)


@command_group()
def token() -> None:
    """Tokens of users. Two of a user may be valid at once, so that one can take the place of the other."""


@token.command("create")
def create_token(
    name: str = argument("USER", callback=parsed(user_named)),
    valid_s: int = VALID_S,
    out: Path | None = OUT,
    connection: Connection = CONNECTION,
) -> int:
    """Make a further token of a user. It is shown once: brokers keep no more than its SHA-256."""
    with _Out(out) as keep, connection.admin() as admin:
        return keep(admin.create_token(name, valid_s))


@token.command("list")
def list_tokens(
    admin: Admin, name: str = argument("[USER]", default="", callback=parsed(user_named)), as_json: bool = JSON
) -> None:
    """Show the tokens of a user, or of all: their ids, and until when they are valid."""
    users = admin.token_users(name)
    if as_json:
        show(users, _USERS, as_json=True)
        return
    now = datetime.now(UTC)
    rows = [
        (each.name, one.id, _day(one.created_at), _day(one.expires_at) + ("" if one.expires_at > now else ", expired"))
        for each in users
        for one in each.tokens
    ]
    write_table(("user", "token", "made", "valid until"), rows)


@token.command("revoke")
def revoke_token(admin: Admin, number: str = argument("ID", callback=parsed(api_token_id_in))) -> int:
    """Refuse a token from now on, at every broker, and end what it has open.

    `tritonmq token list` shows ids. A whole token is taken for its id, and is not shown.
    """
    done = admin.revoke_token(number)
    write(f"{number}: revoked")
    return told_of_brokers(done)


class _Out:
    """Where a new token goes. The file is made before the token is, and removed if none is made."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done = False

    def __enter__(self) -> Callable[[NewApiToken], int]:
        if self._path is not None:
            try:
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            except OSError as error:
                raise InvalidSetting(f"--out {self._path} cannot be made: {error.strerror}") from error
        return self._keep

    def __exit__(self, *_: object) -> None:
        if self._path is not None and not self._done:
            self._path.unlink(missing_ok=True)

    def _keep(self, made: NewApiToken) -> int:
        if self._path is None:
            write(made.secret.reveal())
            say("this is shown once: keep it in a file that nobody else can read")
        else:
            self._path.write_text(made.secret.reveal() + "\n", encoding="ascii")
        self._done = True
        say(f"token {made.id} of User:{made.user}, valid until {_day(made.expires_at)}")
        if made.nowhere_taken:
            say(
                "warning: no broker takes tokens now. Start brokers with --certs DIR; in a trial, "
                "`tritonmq dev --secure`"
            )
        return told_of_late(made.late)
