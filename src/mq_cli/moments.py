"""Times on the command line: `2026-01-31T08:30:00Z`, or how long ago: `15m`, `1h30m`, `2d ago`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import click

from mq_protocol.names import did_you_mean

T = TypeVar("T")

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
