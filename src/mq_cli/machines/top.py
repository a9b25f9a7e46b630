"""`tritonmq top`: brokers, topics by traffic and groups by lag, drawn anew every second. What is wrong comes first.

The figures are those of `Admin.observe`, and what came in is the difference of two looks. Nothing is drawn where there
is no terminal: two looks, one answer, the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mq_cli.commands import command, flag, option
from mq_cli.connection import CONNECTION, Connection
from mq_cli.output import bytes_text, duration_text, write, write_table
from mq_cli.terminal import printable
from mq_cli.values import Seconds

if TYPE_CHECKING:
    from mq_client import Admin
    from mq_client.shown.looks import Look

ORDERS: Final = ("traffic", "records", "size", "name")
_CTRL_C, _ESCAPE, _BACKSPACE = "\x03", "\x1b", ("\x7f", "\b")
_FILTER_MAX: Final = 100
_ROWS_ONCE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What the keys have asked for. `typing`: the filter is being typed. `over`: the end."""

    order: str = ORDERS[0]
    only: str = ""
    typing: bool = False
    over: bool = False

    def key(self, key: str) -> Wish:
        """After one key: q ends, s sorts by the next column, / begins a filter, which Enter ends and Esc takes away."""
        if key == _CTRL_C:
            return replace(self, over=True)
        if key == _ESCAPE:
            return replace(self, only="", typing=False)
        if self.typing:
            if key in "\r\n":
                return replace(self, typing=False)
            if key in _BACKSPACE:
                return replace(self, only=self.only[:-1])
            return replace(self, only=(self.only + key)[:_FILTER_MAX]) if key.isprintable() else self
        match key:
            case "q":
                return replace(self, over=True)
            case "s":
                return replace(self, order=ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)])
            case "/":
                return replace(self, only="", typing=True)
            case _:
                return self


Rows = tuple[list[str], list[tuple[object, ...]]]


def brokers(look: Look) -> Rows:
    rows: list[tuple[object, ...]] = []
    for each in look.observed.brokers:
        free, size = each.values.get("disk_free_bytes", 0), each.values.get("disk_size_bytes", 0)
        disk = f"{100 * free / size:.0f} %" if size else ""
        memory = bytes_text(int(each.values.get("client_memory_bytes", 0)))
        rows.append((each.id, each.address, each.state, each.version, look.leads[each.id], memory, disk))
    return ["#broker", "address", "state", "version", "#leads", "#for clients", "#disk free"], rows


def topics(look: Look, before: Look | None, wish: Wish) -> Rows:
    rates = look.per_second(before)
    names = [name for name in look.ends if wish.only in name]
    worth: Mapping[str, float] = {}
    match wish.order:
        case "traffic":
            worth = rates
        case "records":
            worth = look.kept
        case "size":
            worth = look.sizes
        case _:
            pass  # by name
    names.sort(key=lambda name: (-worth.get(name, 0), name))
    rows: list[tuple[object, ...]] = [
        (name, f"{rates[name]:,.0f}" if name in rates else "", f"{look.kept[name]:,}", bytes_text(look.sizes[name]))
        for name in names
    ]
    return ["topic", "#records/s", "#records", "#size"], rows


def groups(look: Look, wish: Wish) -> Rows:
    chosen = [
        each for each in look.observed.groups if any(wish.only in text for text in (each.group, each.topic, each.label))
    ]
    chosen.sort(key=lambda each: (-each.lag_us, -each.lag, each.group, each.topic))
    rows: list[tuple[object, ...]] = [
        (
            each.topic,
            each.label or each.group,
            each.members,
            f"{each.lag:,}",
            duration_text(each.lag_us // 1000),
            each.group if each.label else "",
        )
        for each in chosen
    ]
    return ["topic", "group", "#members", "#lag", "#behind", "its name"], rows


# ------------------------------------------------------------------ the command


@command()
def top(
    once: bool = flag("Write it once, and end. So it is without a terminal, too."),
    every_s: float = option(
        "How often to look.", "--every", type=Seconds(min=0.5, max=3600), default=1.0, metavar="SECONDS"
    ),
    connection: Connection = CONNECTION,
) -> None:
    """Brokers, topics by traffic, groups by how far they are behind, drawn anew every second.

    q ends, s sorts topics by the next column, / shows only the topics and groups that have a text in their names, Esc
    all again.
    """
    with connection.admin() as admin:
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            before = _look(admin)
            time.sleep(every_s)
            _write_once(_look(admin), before)
        else:
            with _keys() as pressed, contextlib.suppress(KeyboardInterrupt):
                _draw(admin, every_s, pressed)


def _look(admin: Admin) -> Look:
    from mq_client.shown.looks import Look

    return Look(admin.observe("partitions"), time.monotonic())


def _wrong(look: Look) -> list[str]:
    from mq_client.shown.looks import problems

    return [each.text for each in problems(look)]


def _write_once(look: Look, before: Look) -> None:
    for problem in _wrong(look):
        write(f"wrong: {problem}")
    for columns, rows in (brokers(look), topics(look, before, Wish()), groups(look, Wish())):
        write_table(columns, rows[:_ROWS_ONCE_MAX])


def _draw(admin: Admin, every_s: float, pressed: _Keys) -> None:
    from mq_client import Unreachable

    wish, before, look = Wish(), None, _look(admin)
    lost = ""
    with Live(screen=True, auto_refresh=False) as live:
        while not wish.over:
            live.update(_screen(look, before, wish, lost, live.console.height), refresh=True)
            next_s = time.monotonic() + every_s
            while not wish.over and (left_s := next_s - time.monotonic()) > 0:
                keys = pressed.wait(left_s)
                for key in keys:
                    wish = wish.key(key)
                if keys and not wish.over:
                    live.update(_screen(look, before, wish, lost, live.console.height), refresh=True)
            if not wish.over:
                try:
                    look, before, lost = _look(admin), look, ""
                except Unreachable as error:  # it may come back
                    lost = str(error)


def _screen(look: Look, before: Look | None, wish: Wish, lost: str, height: int) -> Group:
    """Sections that fit: the brokers whole, what is left is shared by topics and groups."""
    wrong = [lost, *_wrong(look)] if lost else _wrong(look)
    parts: list[Text | Table] = [Text(printable(each), style="bold red") for each in wrong[: max(1, height // 4)]]
    parts.append(_table(brokers(look), max(2, height // 4)))
    left = max(6, height - 8 - len(parts) - min(len(look.observed.brokers), height // 4))
    parts.append(_table(topics(look, before, wish), left * 2 // 3))
    parts.append(_table(groups(look, wish), left // 3))
    only = f"/{wish.only}{'_' if wish.typing else ''}  " if wish.typing or wish.only else ""
    parts.append(Text(printable(f"{only}q ends · s sorts (by {wish.order}) · / filters · Esc all"), style="dim"))
    return Group(*parts)


def _table(rows: Rows, most: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column in rows[0]:
        right = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if right else "left", no_wrap=True)
    for row in rows[1][:most]:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    if len(rows[1]) > most:
        table.add_row(Text(f"and {len(rows[1]) - most:,} more", style="dim"))
    return table


class _Keys:
    """Keys as they are pressed."""

    def wait(self, seconds: float) -> str:
        """Those pressed by then, at the first of them; empty if none was. Ctrl-C at the end of the input."""
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], seconds)
        if not ready:
            return ""
        return os.read(sys.stdin.fileno(), 1024).decode("utf-8", "replace") or _CTRL_C


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """The terminal gives keys at once and does not show them; afterwards it is as it was."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin.fileno())
    tty.setcbreak(sys.stdin.fileno())
    try:
        yield _Keys()
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
