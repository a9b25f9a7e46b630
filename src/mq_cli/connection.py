"""Where a command finds the brokers and how it speaks with them: the options for that, and the value that they make."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from mq_cli.commands import flag, option, several
from mq_cli.settings_file import PROFILE, config_option, for_client
from mq_cli.values import SOME_SECONDS, checking_what_was_typed
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import CONNECT_TIMEOUT_MS

if TYPE_CHECKING:
    from mq_client import Admin, Security

DEFAULT_BOOTSTRAP = "127.0.0.1:7400"
"""Where `tritonmq dev` listens."""

REFUSED_S: Final = 1.0
"""For so long it is tried again after each address has refused: a broker that is being restarted is back within it."""

_PAUSE_S: Final = 0.1


def variable(help_: str, name: str, metavar: str) -> Any:
    return option(f"{help_} [env var: {name}]", envvar=name, metavar=metavar)


@dataclass(frozen=True, slots=True)
class Connection:
    """What the options say, with what the environment and the file say where an option is not given. `config` and
    `profile`: which part of which file that is."""

    bootstrap: str = option(
        "Addresses of brokers. One that answers is enough.",
        envvar="TRITONMQ_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_envvar=True,
        metavar="HOST:PORT,…",
    )
    certs: str | None = variable("Speak TLS, with the certificates in this directory.", "TRITONMQ_CERTS", "DIR")
    user: str | None = variable(
        "Whose certificate in --certs: NAME or User:NAME. Default: the only one.", "TRITONMQ_USER", "NAME"
    )
    token_file: str | None = variable(
        "Show the token in this file instead of a certificate.", "TRITONMQ_TOKEN_FILE", "FILE"
    )
    config: Path | None = config_option(
        "A TOML file with settings. Default: ~/.config/tritonmq/config.toml, if it is there.", for_client
    )
    profile: str | None = PROFILE
    forward: bool | None = flag(
        "Reach no broker but those of the bootstrap addresses: they pass on what is meant for others. "
        "[env var: TRITONMQ_FORWARD]",
        default=None,
        envvar="TRITONMQ_FORWARD",
    )
    timeout_s: float = option(
        f"How long to retry. The first answer must come within {CONNECT_TIMEOUT_MS // 1000} s.",
        "--timeout",
        envvar="TRITONMQ_TIMEOUT_S",
        type=SOME_SECONDS,
        default=30.0,
        metavar="SECONDS",
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Connection:
        """Of the values of the options, by name."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if values.get(each.name) is not None})

    @classmethod
    def typed(cls, **values: Any) -> Connection:
        """Of the command that runs. Raises `click.UsageError`."""
        connection = cls.of(values)
        connection.check(click.get_current_context())
        return connection

    def check(self, context: click.Context) -> None:
        """A user from the environment or a file is for all commands, and gives way. One that was typed is meant. Raises
        `click.UsageError`: the command would run as somebody else."""
        if not self.user or context.get_parameter_source("user") is not ParameterSource.COMMANDLINE:
            return
        if self.token_file:
            raise click.UsageError(
                "--user belongs to a certificate, and a token is given (--token-file, TRITONMQ_TOKEN_FILE): leave one "
                "out"
            )
        if not self.certs:
            raise click.UsageError(
                "--user chooses among the certificates in a directory: give --certs or TRITONMQ_CERTS"
            )

    @property
    def addresses(self) -> list[str]:
        """Raises `InvalidSetting`."""
        from mq_client.cluster.connection import parse_bootstrap

        return list(parse_bootstrap(self.bootstrap))

    @property
    def security(self) -> Security | None:
        """Raises `InvalidSetting`."""
        from mq_client import Security

        if not self.certs:
            if self.token_file:
                raise InvalidSetting(
                    "a file with a token is given (--token-file or TRITONMQ_TOKEN_FILE), and no certificates: a token "
                    "is sent over TLS alone, so give a directory with the cluster's ca.crt (--certs or TRITONMQ_CERTS)"
                )
            return None
        if self.token_file:
            return Security(self.certs, token_file=self.token_file)
        return Security(self.certs, self.user or None)

    def for_client(self) -> dict[str, Any]:
        """What every client of the brokers is made with. Raises `InvalidSetting`."""
        security = self.security
        if security is None and self.certs is not None:  # typed, and empty: a client would read the variable
            os.environ.pop("TRITONMQ_CERTS", None)
        return {"bootstrap": self.addresses, "security": security, "forward": bool(self.forward)}

    def admin(self, timeout_s: float | None = None, *, must_listen: bool = True) -> Admin:
        """To be closed by the caller, who waits `timeout_s` for each answer; if it is None, as long as the option says.
        With `must_listen` it raises within 2 s if nobody listens anywhere."""
        from mq_client import Admin

        with checking_what_was_typed():
            admin = Admin(**self.for_client(), timeout_ms=milliseconds(timeout_s or self.timeout_s))
        if must_listen:
            self.check_somebody_listens()
        return admin

    def check_somebody_listens(self) -> None:
        check_somebody_listens(self.addresses)

    def environment(self) -> dict[str, str]:
        """For a process that is to speak with brokers as this command does: the variables that say so."""
        said = {
            "TRITONMQ_CERTS": self.certs,
            "TRITONMQ_USER": self.user,
            "TRITONMQ_TOKEN_FILE": self.token_file,
            "TRITONMQ_FORWARD": None if self.forward is None else str(int(self.forward)),
        }
        return {name: value for name, value in said.items() if value is not None}


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


CONNECTION: Final = several(Connection, make=Connection.typed)
BOOTSTRAP: Final = several(Connection, make=Connection.typed, but=("timeout_s",))
"""Of a command that has a time-out of its own, or none."""

SECURITY: Final = several(Connection, make=Connection.typed, but=("bootstrap", "forward", "timeout_s"))
"""Of a command that names the broker itself: with which certificate or token it is spoken with."""


# ------------------------------------------------------------------ whether anybody is there


def check_somebody_listens(addresses: Sequence[str]) -> None:
    """Raise `click.ClickException` if every address has refused a connection, or has no such host, for `REFUSED_S`: a
    client of the cluster would go on asking.

    An address that does not answer at all may be far away or busy: it is left to the client, which waits longer.
    """
    from mq_client.cluster.listening import why_unreachable

    deadline = time.monotonic() + REFUSED_S
    while True:
        reasons: dict[str, str] = {}
        for address in addresses:
            reason = why_unreachable(address)
            if reason is None:
                return
            reasons[address] = reason
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"no broker listens at {'; '.join(f'{address}: {reason}' for address, reason in reasons.items())}\n"
                "Start one with `tritonmq dev`, or say where yours are: --bootstrap HOST:PORT or TRITONMQ_BOOTSTRAP"
            )
        time.sleep(_PAUSE_S)
