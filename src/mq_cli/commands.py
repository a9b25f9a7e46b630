"""The table of commands: how a row of it is written, and how `click` is told of it.

A row is a function in the module of its group: its name and docstring are the command and its help, its parameters are
what may be typed, its body is what the cluster is asked, and `columns` how the rows of the answer are shown. What is
typed is said once, as the default of the parameter that it fills:

    @topic.command("list", columns=COLUMNS)
    def list_topics(admin: Admin) -> Sequence[TopicDescription]:
        \"""List the topics.\"""
        return admin.describe_topics()

    @queue.command()
    def pause(admin: Admin, topic: str = TOPIC, group: str = GROUP) -> None:
        \"""Lend nothing more of GROUP.\"""
        admin.pause_queue(topic, group)
        say(f"paused queue {group} of topic {topic}")

`admin` asks the brokers, and brings the options of the connection; a command that looks at its words before it asks has
`connection: Connection = CONNECTION` instead. With `columns`, what the function gives is shown as a table, or as JSON
with `--json`. What belongs together is one value: `several` makes a dataclass of its fields' options, or a dict of a
table of them. The exit code is the number that a function gives, or 0.

Groups import their commands when they are asked for, and name the nearest right word for a wrong one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import click

from mq_protocol.names import did_you_mean

if TYPE_CHECKING:
    from mq_cli.output import Column

# ------------------------------------------------------------------ what may be typed


class _Word(NamedTuple):
    """An option or an argument. `spelled`: how, if not just as its parameter is called."""

    kind: type[click.Parameter]
    spelled: tuple[str, ...]
    settings: Mapping[str, Any]

    def params(self, name: str) -> Iterator[click.Parameter]:
        spelled = self.spelled
        if self.kind is click.Option and not any(each.startswith("--") or not each for each in spelled):
            spelled = (f"--{name.lower().replace('_', '-')}", *spelled)
        yield self.kind([name, *filter(None, spelled)], **self.settings)

    def value(self, name: str, given: Mapping[str, Any]) -> Any:
        return given[name]


class _Several(NamedTuple):
    """What makes one value."""

    words: Mapping[str, _Word | _Several]
    make: Callable[..., Any]

    def params(self, _name: str) -> Iterator[click.Parameter]:
        for name, word in self.words.items():
            yield from word.params(name)

    def value(self, _name: str, given: Mapping[str, Any]) -> Any:
        return self.make(**{name: word.value(name, given) for name, word in self.words.items()})


_SAID = "said"


def _said(what: _Word | _Several, default: Any = None) -> Any:
    return field(default=default, metadata={_SAID: what})


def option(help_: str = "", *spelled: str, **settings: Any) -> Any:
    """`help_`, and how it is spelled beside `--name`, or instead: `-n`, `--other`; with an empty word there is no long
    one. The rest is click's. A default is shown."""
    usual = () if settings.get("multiple") else False if settings.get("is_flag") else None
    default = settings.get("default", usual)
    if default is not usual and default not in (None, ""):
        settings.setdefault("show_default", True)
    return _said(_Word(click.Option, spelled, {"help": help_ or None, **settings}), default)


def flag(help_: str, *spelled: str, **settings: Any) -> Any:
    return option(help_, *spelled, is_flag=True, **settings)


def argument(metavar: str | None = None, **settings: Any) -> Any:
    return _said(_Word(click.Argument, (), {"metavar": metavar, **settings}))


def several(kind: Any, *, but: Sequence[str] = (), make: Callable[..., Any] | None = None) -> Any:
    """Of a dataclass the options among its fields, but for some; of a table `{name: option}` all. `make`: what makes
    the value of them; left out: the dataclass, or a dict."""
    said = kind if isinstance(kind, Mapping) else {each.name: each for each in fields(kind) if _SAID in each.metadata}
    words = {name: each.metadata[_SAID] for name, each in said.items() if name not in but}
    return _said(_Several(words, make or (dict if isinstance(kind, Mapping) else kind)))


def params_of(said: Any, name: str = "") -> list[click.Parameter]:
    """What click is told of one of these."""
    return list(said.metadata[_SAID].params(name))


# ------------------------------------------------------------------ what makes commands of functions


def taking(function: Callable[..., Any], columns: Sequence[Column] = ()) -> Callable[..., Any]:
    """What click calls for the command: with its parameters, and with values in place of what was typed."""
    from mq_cli.connection import CONNECTION
    from mq_cli.output import JSON, show

    parameters = inspect.signature(function).parameters
    said = {name: each.default for name, each in parameters.items() if isinstance(each.default, Field)}
    asks = "admin" in parameters
    if columns:
        said["as_json"] = JSON
    if asks:
        said["connection"] = CONNECTION
    of = {name: each.metadata[_SAID] for name, each in said.items()}

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        values = {name: each.value(name, given) for name, each in of.items()}
        as_json = values.pop("as_json") if columns else False
        if asks:
            with values.pop("connection").admin() as admin:
                answer = function(admin, **values)
        else:
            answer = function(**values)
        return show(answer, columns, as_json=as_json) if columns else answer

    run.__click_params__ = [param for name, each in of.items() for param in each.params(name)][::-1]  # type: ignore[attr-defined]
    return run


def command(
    name: str | None = None, *, columns: Sequence[Column] = (), **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that belongs to no group."""
    return lambda function: click.command(name, click.Command, **settings)(taking(function, columns))


class CommandGroup(click.Group):
    """`lazy` maps a command's name to where it is (`module:name`) and its line in the help, which is shown without
    importing it. `when_found`: told of each command that is looked up, and of the group that has it."""

    when_found: ClassVar[list[Callable[[click.Group, click.Command], None]]] = []

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = dict(lazy or {})

    def command(  # type: ignore[override]
        self, name: str | None = None, *, columns: Sequence[Column] = (), **settings: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """A row of the table."""
        register = super().command
        return lambda function: register(name, **settings)(taking(function, columns))

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


def command_group(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], CommandGroup]:
    """A group of commands, empty as yet."""
    return click.group(name, cls=CommandGroup, **settings)
