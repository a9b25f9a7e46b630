"""Groups of commands: imported when they are asked for, and with the nearest right word for a wrong one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import click

from mq_protocol.names import did_you_mean


class CommandGroup(click.Group):
    """`lazy` maps a command's name to where it is (`module:name`) and its line in the help, which is shown without
    importing it. `when_found`: told of each command that is looked up, and of the group that has it."""

    when_found: ClassVar[list[Callable[[click.Group, click.Command], None]]] = []

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *(name for name in self.commands if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._lazy and cmd_name not in self.commands:
            module, _, name = self._lazy[cmd_name][0].partition(":")
            self.commands[cmd_name] = getattr(importlib.import_module(module), name)
        found = self.commands.get(cmd_name)
        if found is not None:
            for tell in self.when_found:
                tell(self, found)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            raise click.UsageError(f"no such command: {word!r}{did_you_mean(word, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if path := self._whose_option(ctx, error.option_name, given):
                whole = f"{ctx.command_path} {path} {error.option_name} ..."
                raise click.UsageError(f"{error.option_name} belongs behind the command: {whole}", ctx) from error
            raise

    def _whose_option(self, ctx: click.Context, option: str, words: list[str]) -> str:
        """The command that is named among these words, as its path from here, if it has the option; else empty."""
        command: click.Command = self
        path: list[str] = []
        for word in words:
            if isinstance(command, click.Group) and (found := command.get_command(ctx, word)) is not None:
                command = found
                path.append(word)
        has_it = any(option in (*each.opts, *each.secondary_opts) for each in command.params)
        return " ".join(path) if has_it else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        loaded = {name: command.get_short_help_str(limit=90) for name, command in self.commands.items()}
        lines = [
            (name, self._lazy[name][1] if name in self._lazy else loaded[name]) for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(lines)
