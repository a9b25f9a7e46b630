"""`tritonmq completion bash|zsh|fish`: a script that has the shell complete commands, options, and names that the
cluster has.

The script calls `tritonmq` itself, with what was typed so far in the environment (click's protocol). Brokers then have
300 ms to say which topics and groups there are. If they do not, nothing is offered and nothing is said.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from mq_cli.commands import CommandGroup, argument, command
from mq_cli.connection import Connection

if TYPE_CHECKING:
    from mq_client import Admin

VARIABLE: Final = "_TRITONMQ_COMPLETE"
ASK_MS: Final = 300

_HARMLESS: Final = re.compile(r"[\w.:@%+=-]+", re.ASCII)
"""Names that a shell takes as they are. Others are not offered: a shell would run what stands in `$(…)`."""

Ask = Callable[["Admin"], list[str]]


def _topics(admin: Admin) -> list[str]:
    return admin.list_topics()


def _groups(admin: Admin) -> list[str]:
    return admin.list_groups()


def _brokers(admin: Admin) -> list[str]:
    return [str(broker.id) for broker in admin.describe_cluster().brokers]


_BY_NAME: Final[dict[str, Ask]] = {"topic": _topics, "group": _groups, "broker": _brokers}


@command(short_help="Write a script that completes commands and names in a shell.")
def completion(shell: str = argument(type=click.Choice(["bash", "zsh", "fish"]))) -> None:
    """Write a script for SHELL, which completes commands, options, topics, groups and brokers.

    For bash and zsh add `eval "$(tritonmq completion bash)"` to ~/.bashrc, or the same with zsh to ~/.zshrc. For fish:
    `tritonmq completion fish > ~/.config/fish/completions/tritonmq.fish`. Names come from the brokers of
    TRITONMQ_BOOTSTRAP, or of --bootstrap where it stands before the name.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(click.get_current_context().find_root().command, {}, "tritonmq", VARIABLE).source())


def prepare() -> None:
    """Commands complete names from now on, and nothing is logged."""
    logging.disable(logging.CRITICAL)
    CommandGroup.when_found.append(attach)


def attach(group: click.Group, command: click.Command) -> None:
    """Have the parameters of a command that are names complete them."""
    for param in command.params:
        ask = _asks_for(group.name or "", command.name or "", param.name or "")
        if ask is not None:
            param._custom_shell_complete = _completer(ask)  # noqa: SLF001 - what `shell_complete=` sets


def _asks_for(group: str, command: str, param: str) -> Ask | None:
    if group == "storage" or (group, command) == ("topic", "create"):
        return None  # no broker is asked there, or what is typed is a new name
    if param in ("name", "names"):
        return {"topic": _topics, "group": _groups}.get(group)
    return _BY_NAME.get(param)


def _completer(ask: Ask) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = _within_time(ask, Connection.of(ctx.params))
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and _HARMLESS.fullmatch(name)]

    return complete


def _within_time(ask: Ask, connection: Connection) -> list[str]:
    """What brokers say in time; nothing if they do not."""
    found: list[str] = []

    def answer() -> None:
        try:
            with connection.admin(ASK_MS / 1000, must_listen=False) as admin:
                found.extend(ask(admin))
        except Exception:  # noqa: BLE001 - whoever completes a word is told nothing
            found.clear()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(ASK_MS / 1000)
    return [] if thread.is_alive() else found
