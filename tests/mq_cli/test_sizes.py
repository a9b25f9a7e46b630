"""Sizes on the command line."""

from __future__ import annotations

import click
import pytest

from mq_cli.sizes import SIZE


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("17MiB", 17 << 20), ("1g", 1 << 30), ("64 KiB", 64 << 10)])
def test_a_size_is_bytes_or_has_a_unit(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5MiB", "17 apples"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.UsageError, match="17MiB"):
        SIZE.convert(text, None, None)
