"""Where consuming begins, in words. Reading itself is tested on real brokers, in tests/cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from mq_cli import consume


def parse(given: str) -> object:
    command = consume.consume
    return consume._parse_start(click.Context(command), command.params[1], given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("42", 42),
        ("2026-01-31T08:30:00Z", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31T10:30:00+02:00", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31T08:30", datetime(2026, 1, 31, 8, 30, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(given: str, expected: object) -> None:
    assert parse(given) == expected


def test_a_start_may_be_how_long_ago() -> None:
    found = parse("15m")
    assert isinstance(found, datetime)
    assert 14 * 60 < (datetime.now(UTC) - found).total_seconds() < 60 * 60


@pytest.mark.parametrize("given", ["", "-1", "erliest", "yesterday", "2026-13-01", "1.5"])
def test_a_start_that_is_none_of_them_is_misuse(given: str) -> None:
    with pytest.raises(click.BadParameter, match="neither earliest, latest, an offset, nor a time"):
        parse(given)
