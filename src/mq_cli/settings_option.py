"""`--set NAME=VALUE`, for commands that take settings."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mq_protocol.names import Setting


def parse_pairs(given: tuple[str, ...], *, empty: bool = False) -> dict[str, str]:
    """`empty`: `NAME=` is allowed, and stands for the default. Raises `click.BadParameter`."""
    settings: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name or not (value or empty):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        if name in settings:
            raise click.BadParameter(f"{name} is given twice", param_hint="--set")
        settings[name] = value
    return settings


def settings_help(table: Mapping[str, Setting]) -> str:
    """All settings of a table, for the end of a command's help."""
    lines = [
        f"  {setting.name} ({setting.allowed}; default {setting.default}): {setting.reason}"
        for setting in table.values()
    ]
    return "\n\n".join(["Settings:", *lines])
