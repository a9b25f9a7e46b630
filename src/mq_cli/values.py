"""What is written on the command line for a value: seconds, sizes (`17MiB`), settings (`NAME=VALUE`), paths, and times,
`2026-01-31T08:30:00Z`, or how long ago: `15m`, `1h30m`, `2d ago`."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mq_cli.commands import argument, option
from mq_protocol.errors import InvalidRequest, InvalidSetting, InvalidTopicName
from mq_protocol.names import Setting, did_you_mean, parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType  # takes no type in click 8.1

T = TypeVar("T")

DIRECTORY: Final[Any] = click.Path(file_okay=False, path_type=Path)
DIRECTORY_THERE: Final[Any] = click.Path(file_okay=False, exists=True, path_type=Path)
FILE: Final[Any] = click.Path(dir_okay=False, path_type=Path)
FILE_THERE: Final[Any] = click.Path(dir_okay=False, exists=True, path_type=Path)


@contextmanager
def checking_what_was_typed() -> Iterator[None]:
    """What is refused in this block nobody was asked about: it is wrong use (exit code 2), not the cluster's answer."""
    try:
        yield
    except (InvalidSetting, InvalidRequest, InvalidTopicName) as error:
        raise click.UsageError(str(error)) from error


def parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Callback of what is typed: what `parse` makes of it, or of each of several. Of nothing it is nothing."""

    def callback(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
        with checking_what_was_typed():
            if isinstance(given, tuple):
                return tuple(map(parse, given))
            return None if given is None else parse(given)

    return callback


def checking(check: Callable[[Any], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Callback of what may be typed only if `check` takes it, or each of several."""

    def parse(given: Any) -> Any:
        check(given)
        return given

    return parsed(parse)


def _to_be_found(_context: click.Context, _argument: click.Parameter, command: tuple[str, ...]) -> tuple[str, ...]:
    if shutil.which(command[0]) is None:  # before anything is taken for it
        raise click.UsageError(f"there is no command {command[0]!r} to run: check its name and PATH")
    return command


COMMAND: Final = argument("-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED, callback=_to_be_found)


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


SOME_SECONDS: Final = Seconds(min=0, min_open=True)


class Size(_ParamType):
    """A number of bytes, as topic settings are written."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError:
            self.fail(f"{value!r} is no size: give bytes, or e.g. 64KiB, 17MiB, 1GiB", param, ctx)


SIZE: Final = Size()

# ------------------------------------------------------------------ settings


def pairs(help_: str, *, empty: bool = False, **more: Any) -> Any:
    """`--set`, as a dict. `empty`: `NAME=` is allowed, and stands for the default."""

    def parse(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        settings: dict[str, str] = {}
        for pair in given:
            name, separator, value = pair.partition("=")
            if not separator or not name or not (value or empty):
                raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
            if name in settings:
                raise click.BadParameter(f"{name} is given twice", param_hint="--set")
            settings[name] = value
        return settings

    return option(help_, "--set", multiple=True, metavar="NAME=VALUE", callback=parse, **more)


def settings_help(table: Mapping[str, Setting]) -> str:
    """All settings of a table, for the end of a command's help."""
    lines = [
        f"  {setting.name} ({setting.allowed}; default {setting.default}): {setting.reason}"
        for setting in table.values()
    ]
    return "\n\n".join(["Settings:", *lines])


# ------------------------------------------------------------------ times


_PART: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_AGO: Final = re.compile(rf"(?:{_PART.pattern})+")
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}

EARLIEST, LATEST = "earliest", "latest"

TIME: Final = "a time like 2026-01-31T08:30:00Z"
WORDS: Final = f"{TIME}, or how long ago, like 15m, 2h or 1d"


def meaning(
    parse: Callable[[str], T], fault: str = ""
) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Callback of an option: what its text means. `fault`: what is said of a text that means nothing; left out: what
    `parse` says."""

    def read(_context: click.Context, _option: click.Parameter, text: str | None) -> T | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} {fault}" if fault else str(error)) from None

    return read


def parse_place(text: str) -> str | int | datetime:
    """Where to begin in a log: "earliest", "latest", an offset or a time. Raises `ValueError` with a sentence for
    anything else."""
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return parse_moment(text)
    except ValueError:
        near = did_you_mean(text, (EARLIEST, LATEST)) if text.isalpha() else ""
        raise ValueError(f"{text!r} is neither earliest, latest, an offset, nor {WORDS}{near}") from None


def parse_moment(text: str, now: datetime | None = None) -> datetime:
    """The time, with a zone: UTC if the text names none. Raises `ValueError` for a text that is no time.

    `now` is given by tests alone.
    """
    stripped = text.strip()
    length = stripped.removesuffix("ago").rstrip()
    if _AGO.fullmatch(length):
        try:
            ago = sum((int(count) * _UNITS[unit] for count, unit in _PART.findall(length)), timedelta())
            return (datetime.now(UTC) if now is None else now) - ago
        except OverflowError:
            raise ValueError(f"{text!r} is before all times") from None
    return parse_time(stripped)


def parse_time(text: str) -> datetime:
    """As `parse_moment`, but never how long ago."""
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
