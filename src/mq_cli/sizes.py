"""Sizes on the command line: `17MiB`, `1GiB`, or bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mq_protocol.names import parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType  # takes no type in click 8.1


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


SIZE = Size()
