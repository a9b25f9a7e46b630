"""Times and sizes as people write them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from mq_cli.values import SIZE, parse_moment

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("15m", timedelta(minutes=15)),
        ("15m ago", timedelta(minutes=15)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("500ms", timedelta(milliseconds=500)),
        ("0s", timedelta()),
    ],
)
def test_how_long_ago_is_a_time(text: str, ago: timedelta) -> None:
    assert parse_moment(text, NOW) == NOW - ago


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert parse_moment("2026-01-31T08:30") == datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    assert parse_moment("2026-01-31T10:30+02:00") == datetime(2026, 1, 31, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "ago", "m", "15", "15x", "-15m", "1.5h", "yesterday", "999999999w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_moment(text, NOW)


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("17MiB", 17 << 20), ("1g", 1 << 30), ("64 KiB", 64 << 10)])
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5MiB", "17 apples"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.UsageError, match="17MiB"):
        SIZE.convert(text, None, None)
