"""Replicas on their way, as the command line shows them: what is to move, how far it is, and that it goes on without
us.

Moves carry themselves once they are started: whoever waits here only watches, and may stop watching at any time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console

from mq_cli.commands import flag, option, several
from mq_cli.output import Column, both, cell, counted, or_null, say
from mq_cli.values import SOME_SECONDS
from mq_process.patience import Patience

if TYPE_CHECKING:
    from mq_client import Admin, PartitionMove

LOOK_S = 0.3

Told = Callable[[int], None]
"""How many are done."""


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


@dataclass(frozen=True, slots=True)
class Watching:
    """Whether, and for how long, moves that were started are watched."""

    no_wait: bool = flag("Start the moves and exit. They continue by themselves.")
    wait_s: float = option(
        "How long to watch. After that the moves continue by themselves, and the exit code is 1.",
        "--wait",
        type=SOME_SECONDS,
        default=3_600.0,
        metavar="SECONDS",
    )

    def start(self, admin: Admin, moves: Sequence[PartitionMove]) -> bool:
        """Start the moves and, unless told not to, watch them to their end. False if they were not over in time."""
        admin.start_moves(moves)
        if self.no_wait:
            say(f"{counted(len(moves), 'partition')} on the way")
            return True
        places = {(move.topic, move.partition) for move in moves}
        return self.to_the_end(
            lambda: sum((move.topic, move.partition) in places for move in admin.moves()), len(moves)
        )

    def to_the_end(self, remaining: Callable[[], int], total: int) -> bool:
        """As `until_over`, and it is said if that was not in time."""
        over = self.until_over(remaining, total)
        if not over:
            say(
                f"not finished after {self.wait_s:g} s: the moves continue by themselves; `tritonmq cluster moves` "
                "shows them"
            )
        return over

    def until_over(self, remaining: Callable[[], int], total: int) -> bool:
        """Until nothing remains: whether that was in time. Shows a bar on a terminal."""
        patience, deadline = Patience(say), time.monotonic() + self.wait_s
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


WATCHING: Final = several(Watching)


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
