"""`tritonmq lock`: a command that runs while it has a lock, as with `flock`, but among all machines of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from mq_cli.commands import argument, command, option
from mq_cli.connection import BOOTSTRAP, Connection
from mq_cli.interrupts import handling
from mq_cli.values import COMMAND, Seconds, checking_what_was_typed

if TYPE_CHECKING:
    from mq_client import Lock

VARIABLE: Final = "TRITONMQ_LOCK_TOKEN"

_GRACE_S: Final = 10.0
"""For so long a command whose lock is lost may end by itself, before it is killed."""

_LOOK_S: Final = 0.1
_SIGNALLED: Final = 128
"""Shells add this to the number of the signal that ended a command."""


@command()
def lock(
    name: str = argument(),
    command: tuple[str, ...] = COMMAND,
    wait_s: float | None = option(
        "How long to wait for the lock. 0: run the command only if the lock is free.  [default: until it is free]",
        "--wait",
        type=Seconds(min=0),
        metavar="SECONDS",
    ),
    connection: Connection = BOOTSTRAP,
) -> int:
    """Run COMMAND while having the lock NAME, which one holder in the cluster has at a time.

    The exit code is the command's. It is 1 if the lock was not free in time, or was lost: then the command is told to
    end (SIGTERM), and killed ten seconds later. TRITONMQ_LOCK_TOKEN tells the command its fencing token, which grows
    from holder to holder.

    Example: tritonmq lock nightly --wait 60 -- ./report.sh --all
    """
    from mq_client import Lock

    with checking_what_was_typed():
        wait_ms = float("inf") if wait_s is None else wait_s * 1000
        held = Lock(**connection.for_client(), name=name, timeout_ms=wait_ms)
    connection.check_somebody_listens()
    with held:
        return _run(command, held, {**os.environ, **connection.environment(), VARIABLE: str(held.token)})


def _run(command: Sequence[str], held: Lock, environment: Mapping[str, str]) -> int:
    try:
        child = subprocess.Popen(command, env=environment)  # noqa: S603 - to run it is what the user asks for
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be run: {error.strerror or error}") from error
    with _passing_on_signals(child):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(_LOOK_S)
                return code if code >= 0 else _SIGNALLED - code
            if held.lost:
                return _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        return child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _passing_on_signals(child: subprocess.Popen[bytes]) -> AbstractContextManager[None]:
    """The command decides what a signal means, and the lock stays until it has ended. A terminal's Ctrl-C reaches it by
    itself."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    return handling({signal.SIGTERM: pass_on, signal.SIGHUP: pass_on, signal.SIGINT: lambda _number, _frame: None})
