"""How things look: tables for people, JSON for programs, and the options that every client command has.

Standard output carries the answer and nothing else; everything said beside it goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mq_cli.reach import check_somebody_listens
from mq_cli.settings_file import client_settings
from mq_cli.terminal import LINES, printable, printable_json
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName
from mq_protocol.limits import CONNECT_TIMEOUT_MS
from mq_protocol.shown import bytes_text as bytes_text
from mq_protocol.shown import counted as counted
from mq_protocol.shown import duration_text as duration_text
from mq_protocol.shown import time_text as time_text

if TYPE_CHECKING:
    from mq_client import Admin

F = TypeVar("F", bound=Callable[..., Any])

Progress = Callable[[int], None]
"""Told how many there are so far."""


class InputFault(click.ClickException):
    """What came in is not what it must be: wrong use, like a wrong option."""

    exit_code = 2


DEFAULT_BOOTSTRAP = "127.0.0.1:7400"
"""Where `tritonmq dev` listens."""


def security_options(command: F) -> F:
    """With which certificate or token brokers are spoken with, how they are reached, and from which file that and the
    rest is taken if it is not given."""
    return _security_options(way_options(command))


def way_options(command: F) -> F:
    """How brokers are reached, if not each by itself."""
    return via_option(
        click.option(
            "--forward",
            is_flag=True,
            default=None,
            envvar="TRITONMQ_FORWARD",
            expose_value=False,
            callback=_into_environment("TRITONMQ_FORWARD"),
            help="Reach no broker but those of the bootstrap addresses: they pass on what is meant for others. "
            "[env var: TRITONMQ_FORWARD]",
        )(command)
    )


def via_option(command: F) -> F:
    return click.option(
        "--via",
        envvar="TRITONMQ_VIA",
        metavar="HOST:PORT",
        expose_value=False,
        callback=_into_environment("TRITONMQ_VIA"),
        help="Reach brokers through this HTTP CONNECT tunnel. [env var: TRITONMQ_VIA]",
    )(command)


def _security_options(command: F) -> F:
    command = client_settings(command)
    command = click.option(
        "--token-file",
        envvar="TRITONMQ_TOKEN_FILE",
        metavar="FILE",
        expose_value=False,
        callback=_identity("TRITONMQ_TOKEN_FILE"),
        help="Show the token in this file instead of a certificate. [env var: TRITONMQ_TOKEN_FILE]",
    )(command)
    command = click.option(
        "--user",
        envvar="TRITONMQ_USER",
        metavar="NAME",
        expose_value=False,
        callback=_identity("TRITONMQ_USER"),
        help="Whose certificate in --certs: NAME or User:NAME. Default: the only one. [env var: TRITONMQ_USER]",
    )(command)
    return click.option(
        "--certs",
        envvar="TRITONMQ_CERTS",
        metavar="DIR",
        expose_value=False,
        callback=_identity("TRITONMQ_CERTS"),
        help="Speak TLS, with the certificates in this directory. [env var: TRITONMQ_CERTS]",
    )(command)


def bootstrap_option(command: F) -> F:
    """`--bootstrap`, and how the brokers there are spoken with."""
    return direct_bootstrap_option(way_options(command))


def direct_bootstrap_option(command: F) -> F:
    """The same of who reaches brokers through no tunnel, whatever the environment says."""
    return click.option(
        "--bootstrap",
        envvar="TRITONMQ_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,…",
        help="Addresses of brokers. One that answers is enough.",
    )(_security_options(command))


def _into_environment(variable: str) -> Callable[[click.Context, click.Parameter, str | bool | None], None]:
    """Every client of this process finds it there until the command ends, and those of the commands that it starts."""

    def put(context: click.Context, _option: click.Parameter, value: str | bool | None) -> None:
        if value is not None:
            before = os.environ.get(variable)
            os.environ[variable] = str(int(value)) if isinstance(value, bool) else value
            context.find_root().call_on_close(lambda: _put_back(variable, before))

    return put


_IDENTITY: Final = ("certs", "user", "token_file")


def _identity(variable: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """The same of the options that say who asks, which are checked once all are known."""
    put = _into_environment(variable)

    def note(context: click.Context, option: click.Parameter, value: str | None) -> None:
        put(context, option, value)
        said = context.meta.setdefault(__name__, {})
        said[option.name] = value
        if all(name in said for name in _IDENTITY):
            _check_user_is_of_use(context, said)

    return note


def _check_user_is_of_use(context: click.Context, said: Mapping[str, str | None]) -> None:
    """A user from the environment or a file is for all commands, and gives way. One that was typed is meant. Raises
    `click.UsageError`: the command would run as somebody else."""
    if not said["user"] or context.get_parameter_source("user") is not ParameterSource.COMMANDLINE:
        return
    if said["token_file"]:
        raise click.UsageError(
            "--user belongs to a certificate, and a token is given (--token-file, TRITONMQ_TOKEN_FILE): leave one out"
        )
    if not said["certs"]:
        raise click.UsageError("--user chooses among the certificates in a directory: give --certs or TRITONMQ_CERTS")


def _put_back(variable: str, before: str | None) -> None:
    """Whoever runs commands inside a process of its own meets no settings of the last one in the next."""
    if before is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = before


class Seconds(click.FloatRange):
    """A number of seconds, without a unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            known = not math.isnan(float(value))
        except ValueError:
            known = False
        if not known:
            self.fail(f"{value!r} is no number of seconds: write 90 for a minute and a half", param, ctx)
        return super().convert(value, param, ctx)


def timeout_option(command: F) -> F:
    return click.option(
        "--timeout",
        "timeout_s",
        envvar="TRITONMQ_TIMEOUT_S",
        type=Seconds(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help=f"How long to retry. The first answer must come within {CONNECT_TIMEOUT_MS // 1000} s.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Write JSON instead of a table.")(command)


@contextmanager
def checking_what_was_typed() -> Iterator[None]:
    """What is refused in this block nobody was asked about: it is wrong use (exit code 2), not the cluster's answer."""
    try:
        yield
    except (InvalidSetting, InvalidRequest, InvalidTopicName) as error:
        raise click.UsageError(str(error)) from error


def open_admin(bootstrap: str, timeout_s: float, *, must_listen: bool = True) -> Admin:
    """To be closed by the caller, who waits `timeout_s` for each answer. With `must_listen` it raises within 2 s if
    nobody listens anywhere."""
    from mq_client import Admin
    from mq_client.cluster.connection import parse_bootstrap

    with checking_what_was_typed():
        addresses = parse_bootstrap(bootstrap)
        admin = Admin(addresses, timeout_ms=milliseconds(timeout_s))
    if must_listen:
        check_somebody_listens(addresses)
    return admin


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def write_json(value: Any) -> None:
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")  # in a text they are escapes
    click.echo("\n".join(map(printable_json, lines)))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """For a person, columns whose name begins with `#` are numbers, set to the right. In a pipe or a file each row is a
    line with tabs between its cells, for cut and awk: nothing is padded, cut or folded.
    """
    if not sys.stdout.isatty():
        click.echo("\t".join(column.removeprefix("#") for column in columns))
        for row in rows:
            click.echo("\t".join(printable(cell.plain if isinstance(cell, Text) else str(cell)) for cell in row))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix("#"), justify="right" if column.startswith("#") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


def confirm(question: str, *, yes: bool) -> None:
    """Ask whoever sits at the terminal, unless `yes` was given. Raises `click.ClickException` unless they agree: in a
    script, where nobody can be asked, at once."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f'give --yes: there is no terminal at which to ask "{question}"')
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done")


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation. Required in scripts.")(command)


@contextmanager
def counting(*, show: bool, total: int | None = None, things: str = "messages") -> Iterator[Progress]:
    """How many `things`, their rate and, where `total` is known, a bar: on standard error, and only if that is a
    terminal."""
    if not show or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    measure = SpinnerColumn() if total is None else BarColumn()
    columns = (
        measure,
        TextColumn("{task.completed:,.0f} " + things),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    began = time.monotonic()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")
        yield lambda count: bar.update(
            task, completed=count, rate=f"{count / max(time.monotonic() - began, 1e-3):,.0f}/s"
        )


def write(text: str) -> None:
    """A part of the answer for people, of one line or several."""
    click.echo(printable(text, LINES))


def write_line(text: object) -> None:
    """One line of it, whatever is in the text: brokers and ZooKeeper have said a part of it."""
    click.echo(printable(str(text)))


def say(text: str) -> None:
    """A remark, on standard error."""
    click.echo(printable(text, LINES), err=True)
