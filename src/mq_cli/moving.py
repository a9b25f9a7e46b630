"""Replicas on their way, as the command line shows them: what is to move, how far it is, and that it goes on without
us.

Moves carry themselves once they are started: whoever waits here only watches, and may stop watching at any time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from mq_cli.output import Column, F, Seconds, both, cell, counted, or_null, say
from mq_process.patience import Patience

if TYPE_CHECKING:
    from mq_client import Admin, PartitionMove

LOOK_S = 0.3
DEFAULT_WAIT_S = 3_600.0

Told = Callable[[int], None]
"""How many are done."""


def wait_options(command: F) -> F:
    command = click.option(
        "--wait",
        "wait_s",
        type=Seconds(min=0, min_open=True),
        default=DEFAULT_WAIT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long to watch. After that the moves continue by themselves, and the exit code is 1.",
    )(command)
    return click.option("--no-wait", is_flag=True, help="Start the moves and exit. They continue by themselves.")(
        command
    )


def change(move: PartitionMove) -> str:
    """What the move does to its partition."""
    came = [broker for broker in move.target if broker not in move.origin]
    went = [broker for broker in move.origin if broker not in move.target]
    said = [f"to broker {_brokers(came)}"] if came else []
    said += [f"away from broker {_brokers(went)}"] if went else []
    if move.leader != move.target[0]:
        said.append(f"led by broker {move.target[0]}")
    return ", ".join(said) or f"in the order {_brokers(move.target)}"


def _brokers(members: Sequence[int]) -> str:
    return " ".join(map(str, members))


_PLACE = both("topic", "#partition")
_LEADER = or_null("leader", "#leader", cell)
MOVES: Final = (
    *_PLACE,
    Column("from", "from", "origin"),
    Column("to", "to", "target"),
    _LEADER,
    Column("isr", "in sync", lambda move: sorted(move.isr)),
)
"""Of moves that are on their way."""

PLAN: Final = (
    *_PLACE,
    Column("from", "replicas", "origin"),
    Column("to", value="target"),
    _LEADER,
    Column("", "change", change),
)
"""Of moves that would be made."""


def watch(admin: Admin, wait_s: float, remaining: Callable[[], int], total: int) -> bool:
    """Until nothing remains: whether that was in time. Shows a bar on a terminal."""
    patience, deadline = Patience(say), time.monotonic() + wait_s
    with _bar(total) as told:
        while True:
            left = remaining()
            told(max(0, total - left))
            if left == 0:
                return True
            if time.monotonic() > deadline:
                return False
            if not sys.stderr.isatty():
                patience.waits_for(f"{counted(left, 'partition')} on the way")
            time.sleep(LOOK_S)


def start_and_watch(admin: Admin, moves: Sequence[PartitionMove], *, no_wait: bool, wait_s: float) -> bool:
    """Start the moves and, unless told not to, watch them to their end. False if they were not over in time."""
    admin.start_moves(moves)
    if no_wait:
        say(f"{counted(len(moves), 'partition')} on the way")
        return True
    places = {(move.topic, move.partition) for move in moves}

    def remaining() -> int:
        return sum((move.topic, move.partition) in places for move in admin.moves())

    return watch(admin, wait_s, remaining, len(moves)) or not_over(wait_s)


def not_over(wait_s: float) -> bool:
    say(f"not finished after {wait_s:g} s: the moves continue by themselves; `tritonmq cluster moves` shows them")
    return False


@contextmanager
def _bar(total: int) -> Iterator[Told]:
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
