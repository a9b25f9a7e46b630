"""How things look: tables for people, JSON for programs.

Standard output carries the answer and nothing else; everything said beside it goes to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mq_cli.commands import flag
from mq_cli.terminal import LINES, printable, printable_json
from mq_protocol.shown import bytes_text as bytes_text
from mq_protocol.shown import counted as counted
from mq_protocol.shown import duration_text as duration_text
from mq_protocol.shown import time_text as time_text

Progress = Callable[[int], None]
"""Told how many there are so far."""


class InputFault(click.ClickException):
    """What came in is not what it must be: wrong use, like a wrong option."""

    exit_code = 2


JSON: Final = flag("Write JSON instead of a table.", "--json")
YES: Final = flag("Do not ask for confirmation. Required in scripts.", "-y")


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


def cell(value: Any) -> object:
    """How a table has a value, if its column does not say otherwise."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return " ".join(map(str, value))
        case _:
            return value


class Column(NamedTuple):
    """What is shown of each row: as `name` in JSON, and under `heading` in a table; empty: not there.

    `value`: what makes it of the row, or which attribute (or key) of the row it is; left out: `name`. `text`: how a
    person is shown it.
    """

    name: str
    heading: str = ""
    value: str | Callable[[Any], Any] = ""
    text: Callable[[Any], object] = cell

    def of(self, row: Any) -> Any:
        if callable(self.value):
            return self.value(row)
        key = self.value or self.name
        return row[key] if isinstance(row, Mapping) else getattr(row, key)


def yes_or_blank(value: bool) -> str:
    return "yes" if value else ""


def both(*headings: str) -> tuple[Column, ...]:
    """Columns that are called in JSON as they are in a table."""
    return tuple(Column(heading.removeprefix("#"), heading) for heading in headings)


def or_null(name: str, heading: str = "", text: Callable[[Any], object] = lambda value: value or "") -> Column:
    """A column of an attribute that is null in JSON where it is empty or 0."""
    return Column(name, heading, lambda row: getattr(row, name) or None, text)


def json_only(*names: str) -> tuple[Column, ...]:
    return tuple(map(Column, names))


def document(row: Any, columns: Iterable[Column]) -> dict[str, Any]:
    """The row in JSON."""
    return {column.name: column.of(row) for column in columns if column.name}


def documents(rows: Iterable[Any], columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [document(row, columns) for row in rows]


def write_rows(rows: Iterable[Any], columns: Iterable[Column]) -> None:
    """A table for people."""
    shown = [column for column in columns if column.heading]
    write_table([each.heading for each in shown], [[each.text(each.of(row)) for each in shown] for row in rows])


def show(rows: Iterable[Any], columns: Sequence[Column], *, as_json: bool) -> None:
    """All that a command says that only asks: JSON, or a table."""
    if as_json:
        write_json(documents(rows, columns))
    else:
        write_rows(rows, columns)


def confirm(question: str, *, yes: bool) -> None:
    """Ask whoever sits at the terminal, unless `yes` was given. Raises `click.ClickException` unless they agree: in a
    script, where nobody can be asked, at once."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f'give --yes: there is no terminal at which to ask "{question}"')
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was done")


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


def write_settings(settings: Iterable[tuple[str, str, bool]]) -> None:
    """Of each the name, the value, and whether that is the default."""
    for name, value, is_default in settings:
        write(f"  {name} = {value}{' (default)' if is_default else ''}")


def say(text: str) -> None:
    """A remark, on standard error."""
    click.echo(printable(text, LINES), err=True)


def say_settings(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        say(f"  {name} = {value}")
