"""`tritonmq user` and `tritonmq token`: users who speak with a token instead of a certificate."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mq_cli.command_group import CommandGroup
from mq_cli.connection import Connection, answer_options, connection_options
from mq_cli.in_force import told_of_brokers, told_of_late
from mq_cli.output import (
    Column,
    F,
    checking_what_was_typed,
    confirm,
    documents,
    say,
    show,
    write,
    write_table,
    yes_option,
)
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import API_TOKEN_VALID_S, API_TOKEN_VALID_S_MAX
from mq_protocol.names import user_named
from mq_protocol.rights import Kind, shown_name
from mq_protocol.secrets import api_token_id_in
from mq_protocol.shown import counted

if TYPE_CHECKING:
    from mq_client.security_admin import NewApiToken, TokenUser

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


def _new_token_options(command: F) -> F:
    command = click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the token to this new file, at mode 0600. Default: to standard output.",
    )(command)
    command = click.option(
        "--minutes",
        type=click.IntRange(1, API_TOKEN_VALID_S_MAX // _MINUTE_S),
        help="The same in minutes, such as to see what becomes of a client whose token expires.",
    )(command)
    return click.option(
        "--days",
        type=click.IntRange(1, API_TOKEN_VALID_S_MAX // _DAY_S),
        help=f"How long the token is valid. [default: {API_TOKEN_VALID_S // _DAY_S}]",
    )(command)


def _valid_s(days: int | None, minutes: int | None) -> int:
    if minutes is None:
        return API_TOKEN_VALID_S if days is None else days * _DAY_S
    if days is not None:
        raise click.UsageError("--days and --minutes are given: leave one out")
    return minutes * _MINUTE_S


def _named(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    with checking_what_was_typed():
        return user_named(text)


@click.group(cls=CommandGroup)
def user() -> None:
    """Users who speak with a token, which brokers with --certs take."""


@user.command("create")
@click.argument("name", callback=_named)
@_new_token_options
@connection_options
def create_user(name: str, days: int | None, minutes: int | None, out: Path | None, connection: Connection) -> int:
    """Make a user, and show its first token. It is shown once: brokers keep no more than its SHA-256.

    `tritonmq acl allow User:NAME …` gives it rights.
    """
    valid_s = _valid_s(days, minutes)
    with _Out(out) as keep, connection.admin() as admin:
        return keep(admin.create_user(name, valid_s))


@user.command("list")
@answer_options
def list_users(as_json: bool, connection: Connection) -> None:
    """Show the users, and how many tokens of each are valid."""
    with connection.admin() as admin:
        users = admin.token_users()
    show(users, _USERS, as_json=as_json)


@user.command("delete")
@click.argument("name", callback=_named)
@yes_option
@connection_options
def delete_user(name: str, yes: bool, connection: Connection) -> int:
    """Delete a user with all tokens, and end what it has open. Asks first; in a script it needs --yes.

    Certificates in its name stay good, and its rules stay.
    """
    with connection.admin() as admin:
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


@click.group(cls=CommandGroup)
def token() -> None:
    """Tokens of users. Two of a user may be valid at once, so that one can take the place of the other."""


@token.command("create")
@click.argument("name", metavar="USER", callback=_named)
@_new_token_options
@connection_options
def create_token(name: str, days: int | None, minutes: int | None, out: Path | None, connection: Connection) -> int:
    """Make a further token of a user. It is shown once: brokers keep no more than its SHA-256."""
    valid_s = _valid_s(days, minutes)
    with _Out(out) as keep, connection.admin() as admin:
        return keep(admin.create_token(name, valid_s))


@token.command("list")
@click.argument("name", metavar="[USER]", default="", callback=_named)
@answer_options
def list_tokens(name: str, as_json: bool, connection: Connection) -> None:
    """Show the tokens of a user, or of all: their ids, and until when they are valid."""
    with connection.admin() as admin:
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
@click.argument("number", metavar="ID")
@connection_options
def revoke_token(number: str, connection: Connection) -> int:
    """Refuse a token from now on, at every broker, and end what it has open.

    `tritonmq token list` shows ids. A whole token is taken for its id, and is not shown.
    """
    with checking_what_was_typed():
        number = api_token_id_in(number)
    with connection.admin() as admin:
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
