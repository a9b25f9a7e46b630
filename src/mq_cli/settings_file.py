"""Settings from a file: what `tritonmq.toml` may hold, what it holds, and how a command comes to it.

A flag wins over the environment, that over the file, the file over the default; click sees to it, for a file's values
are its `default_map`. The keys are those of the options themselves: a command that gains an option gains a key.

    [broker]                 of `tritonmq broker`, by the names of its flags
    [log]                    level, format
    [client]                 of every command that speaks with brokers
    [profiles.NAME]          the same keys; `--profile NAME` puts them before those of [client]

A secret is no setting: it is a file's content, and only the file is named.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from mq_cli.commands import option, params_of
from mq_cli.values import SIZE
from mq_protocol.names import did_you_mean, quoted

BROKER, LOG, CLIENT, PROFILES = "broker", "log", "client", "profiles"
CONFIG_ENVIRONMENT: Final = "TRITONMQ_CONFIG"
PROFILE_ENVIRONMENT: Final = "TRITONMQ_PROFILE"
HOSTNAME: Final = "hostname"
"""As a broker's id: the number at the end of the machine's name, plus one."""

T = TypeVar("T")

FILE_BYTES_MAX: Final = 1 << 20

_NO_SETTINGS: Final = ("help", "config", "profile", "verbose", "stop_at_eof")


class SettingsFault(click.ClickException):
    """The file is not what it must be: wrong use, like a wrong option."""

    exit_code = 2


if TYPE_CHECKING:
    _ParamType = click.ParamType[Path]
else:
    _ParamType = click.ParamType  # takes no type in click 8.1


class _ConfigPath(_ParamType):
    """A file that is there."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if not path.is_file():
            self.fail(f"there is no file {quoted(str(value))}", param, ctx)
        return path


class Key(NamedTuple):
    """A setting: `section.name` in the file, an option of a command, a variable of the environment."""

    section: str
    name: str
    option: click.Option
    environment: str

    @property
    def flag(self) -> str:
        return max(self.option.opts, key=len)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file says, checked. `tables`: [broker], [log] and [client]; `profiles`: by name."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Any]]

    def client(self, profile: str | None) -> Mapping[str, Any]:
        """The values for commands that speak with brokers. Raises `SettingsFault` for a profile that there is not."""
        if profile is None:
            return self.tables[CLIENT]
        if profile not in self.profiles:
            known = f"it has {', '.join(sorted(self.profiles))}" if self.profiles else "it has none"
            raise SettingsFault(
                f"{self.path} has no profile {quoted(profile)}{did_you_mean(profile, self.profiles)} ({known})"
            )
        return {**self.tables[CLIENT], **self.profiles[profile]}


def keys() -> dict[str, dict[str, Key]]:
    """All settings, by section and name."""
    from mq_cli.connection import CONNECTION
    from mq_cli.machines.broker import broker

    named = [(*_broker_name(each), each) for each in _settings(broker.params)]
    named += [(CLIENT, str(each.name), each) for each in _settings(params_of(CONNECTION))]
    found: dict[str, dict[str, Key]] = {BROKER: {}, LOG: {}, CLIENT: {}}
    for section, name, each in named:
        found[section][name] = Key(section, name, each, each.envvar if isinstance(each.envvar, str) else "")
    return found


def _settings(params: Iterable[click.Parameter]) -> list[click.Option]:
    return [each for each in params if isinstance(each, click.Option) and each.name not in _NO_SETTINGS]


def _broker_name(option: click.Option) -> tuple[str, str]:
    """Section and name of an option of `tritonmq broker`."""
    name = max(option.opts, key=len).removeprefix("--").replace("-", "_")
    return (LOG, name.removeprefix("log_")) if name.startswith("log_") else (BROKER, name)


def with_variables(command: click.Command) -> click.Command:
    """Each option of `tritonmq broker` gets its variable: `TRITONMQ_BROKER_LISTEN`, `TRITONMQ_LOG_LEVEL`."""
    for each in _settings(command.params):
        each.envvar = f"TRITONMQ_{'_'.join(_broker_name(each))}".upper()
    return command


def load(path: Path) -> SettingsFile:
    """Raises `SettingsFault` for a file that cannot be read, a key that means nothing, or a value that its option
    does not take."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise SettingsFault(f"{path} has more than {FILE_BYTES_MAX} bytes: it is no file of settings")
        document = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsFault(f"{path} cannot be read as TOML: {error}") from error
    known = keys()
    for name in document:
        if name not in known and name != PROFILES:
            near = did_you_mean(name, [*known, PROFILES])
            raise SettingsFault(f"{path}: [{name}] means nothing{near} (there are {', '.join(known)}, profiles.NAME)")
    tables = {section: _checked(path, section, document.get(section, {}), known[section]) for section in known}
    profiles = document.get(PROFILES, {})
    if not isinstance(profiles, dict):
        raise SettingsFault(f"{path}: profiles is no table: write [profiles.NAME]")
    return SettingsFile(
        path,
        tables,
        {name: _checked(path, f"{PROFILES}.{name}", table, known[CLIENT]) for name, table in profiles.items()},
    )


def _checked(path: Path, section: str, table: object, known: Mapping[str, Key]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SettingsFault(f"{path}: {section} is no table: write [{section}]")
    for name, value in table.items():
        key = known.get(name)
        if key is None:
            near = did_you_mean(name, known)
            raise SettingsFault(f"{path}: {section}.{name} means nothing{near} (in [{section}]: {', '.join(known)})")
        _check_value(path, f"{section}.{name}", value, key.option)
    return dict(table)


def _check_value(path: Path, where: str, value: object, option: click.Option) -> None:
    number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    if option.is_flag:
        fits, wanted = type(value) is bool, "true or false"
    elif number:  # a whole number may be text as well, e.g. "hostname"
        whole = isinstance(option.type, click.types.IntParamType)
        fits = type(value) in ((int, str) if whole else (int, float, str))
        wanted = "a whole number" if whole else "a number"
    else:
        fits, wanted = type(value) is str or (type(value) is int and option.type is SIZE), 'text, like "…"'
    if not fits:
        raise SettingsFault(f"{path}: {where} must be {wanted}")
    if value == HOSTNAME and option.name == "broker":
        return  # of the broker's machine, which may be another one
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as error:
        raise SettingsFault(f"{path}: {where}: {error.message}") from error


# ------------------------------------------------------------------ how commands come to it


_Read: TypeAlias = Callable[[click.Context, click.Parameter, Path | None], Path | None]


def config_option(help_: str, read: _Read) -> Any:
    return option(
        help_,
        type=_ConfigPath(),
        envvar=CONFIG_ENVIRONMENT,
        show_envvar=True,
        is_eager=True,
        callback=read,
        metavar="FILE",
    )


def for_broker(context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """`--config` of `tritonmq broker`."""
    if path is not None:
        tables, known = load(path).tables, keys()
        context.default_map = {
            str(known[section][name].option.name): value
            for section in (BROKER, LOG)
            for name, value in tables[section].items()
        }
    return path


def for_client(context: click.Context, option: click.Parameter, value: T) -> T:
    """`--config` or `--profile` of a command that speaks with brokers: once both are known, whichever came last."""
    context.meta[_SEEN[option.name or ""]] = value
    if all(key in context.meta for key in _SEEN.values()):
        path, profile = (context.meta[key] for key in _SEEN.values())
        context.default_map = dict(client_values(path, profile))
    return value


_SEEN: Final = {name: f"{__name__}.{name}" for name in ("config", "profile")}

PROFILE: Final = option(
    "Take the settings of [profiles.NAME] before those of [client].",
    envvar=PROFILE_ENVIRONMENT,
    show_envvar=True,
    is_eager=True,
    callback=for_client,
    metavar="NAME",
)


def client_values(path: Path | None, profile: str | None) -> Mapping[str, Any]:
    """What holds for commands that speak with brokers. Raises `SettingsFault`."""
    path = path or users_file()
    if path is None:
        if profile is not None:
            raise SettingsFault(f"there is no file that could have a profile {quoted(profile)}: give --config FILE")
        return {}
    return load(path).client(profile)


def users_file() -> Path | None:
    """The file of the user who runs this, if it is there."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    path = Path(home) / "tritonmq" / "config.toml"
    return path if path.is_file() else None
