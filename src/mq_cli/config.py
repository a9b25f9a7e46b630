"""`tritonmq config`: which settings hold here, and where each is from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mq_cli.commands import argument, command_group, option
from mq_cli.output import JSON, Column, both, counted, say, show
from mq_cli.settings_file import (
    CLIENT,
    CONFIG_ENVIRONMENT,
    PROFILE_ENVIRONMENT,
    Key,
    client_values,
    keys,
    load,
    users_file,
)
from mq_cli.values import FILE_THERE


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else "" if value is None else str(value)


_COLUMNS = (
    *both("setting"),
    Column("value", "value", text=_text),
    *both("from", "option"),
    Column("environment", "variable"),
)


@command_group()
def config() -> None:
    """Settings come from options, then from the environment, then from a file, then there is a default."""


@config.command("show")
def show_settings(
    path: Path | None = option(
        "Default: ~/.config/tritonmq/config.toml, for what clients use.",
        "--config",
        envvar=CONFIG_ENVIRONMENT,
        show_envvar=True,
        type=FILE_THERE,
        metavar="FILE",
    ),
    profile: str | None = option(
        "With those of [profiles.NAME].", envvar=PROFILE_ENVIRONMENT, show_envvar=True, metavar="NAME"
    ),
    as_json: bool = JSON,
) -> None:
    """Show every setting with its value and where it is from: a variable of the environment, the file, or the default.

    An option that is given to a command goes before all of them. No secret is shown, for none is a setting: secrets are
    in files, and settings name those.
    """
    rows = rows_of(path, profile)
    if not as_json and path is None and users_file() is None:
        say("no file: --config, TRITONMQ_CONFIG and ~/.config/tritonmq/config.toml name none")
    show(rows, _COLUMNS, as_json=as_json)


@config.command()
def check(path: Path = argument("FILE", type=FILE_THERE)) -> None:
    """Check FILE: exit status 2, and the nearest right word, for a key that means nothing or a value that does not
    fit."""
    found = load(path)
    count = sum(map(len, [*found.tables.values(), *found.profiles.values()]))
    say(f"{path} is right: {counted(count, 'setting')}, {counted(len(found.profiles), 'profile')}")


def rows_of(
    path: Path | None = None, profile: str | None = None, environment: Mapping[str, str] = os.environ
) -> list[dict[str, Any]]:
    """Every setting, its value, and where it is from."""
    found = _from_file(path, profile)
    return [_row(key, *_value(key, found, environment)) for section in keys().values() for key in section.values()]


def _from_file(path: Path | None, profile: str | None) -> dict[str, tuple[Any, str]]:
    """Values by `section.name`, each with where it is from. The user's own file is for clients."""
    client_values(path, profile)  # raises for a profile that there is not
    file = path or users_file()
    if file is None:
        return {}
    loaded = load(file)
    sections = {CLIENT: loaded.tables[CLIENT]} if path is None else loaded.tables
    found = {f"{section}.{name}": (table[name], str(file)) for section, table in sections.items() for name in table}
    for name, value in loaded.profiles[profile].items() if profile is not None else ():
        found[f"{CLIENT}.{name}"] = (value, f"{file} [profiles.{profile}]")
    return found


def _value(key: Key, from_file: dict[str, tuple[Any, str]], environment: Mapping[str, str]) -> tuple[Any, str]:
    text = environment.get(key.environment)
    if text:
        return text, "environment"
    if (found := from_file.get(f"{key.section}.{key.name}")) is not None:
        return found
    default = key.option.to_info_dict().get("default")
    return default, "must be given" if key.option.required else "default"


def _row(key: Key, value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, str | int | float | bool | None):
        value = str(value)
    return {
        "setting": f"{key.section}.{key.name}",
        "value": value,
        "from": source,
        "option": key.flag,
        "environment": key.environment,
    }
