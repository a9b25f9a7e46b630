"""Where a command finds the brokers and how it speaks with them: the options for that, and the value that they make."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from mq_cli.output import F, Seconds, checking_what_was_typed, json_option
from mq_cli.settings_file import client_settings
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import CONNECT_TIMEOUT_MS

if TYPE_CHECKING:
    from mq_client import Admin, Security

DEFAULT_BOOTSTRAP = "127.0.0.1:7400"
"""Where `tritonmq dev` listens."""

REFUSED_S: Final = 1.0
"""For so long it is tried again after each address has refused: a broker that is being restarted is back within it."""

_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Connection:
    """What the options say, with what the environment and the file say where an option is not given."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    timeout_s: float = 30.0
    certs: str | None = None
    user: str | None = None
    token_file: str | None = None
    forward: bool | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Connection:
        """Of the values of the options, by name."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if values.get(each.name) is not None})

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


# ------------------------------------------------------------------ options


def answer_options(command: F) -> F:
    """Of a command that asks and shows the answer: `as_json`, and the `connection`."""
    return json_option(connection_options(command))


def connection_options(command: F) -> F:
    """All of them. The command is given their `connection`."""
    return bootstrap_option(timeout_option(command))


def bootstrap_option(command: F) -> F:
    """All but the time-out."""
    return click.option(
        "--bootstrap",
        envvar="TRITONMQ_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,…",
        help="Addresses of brokers. One that answers is enough.",
    )(security_options(_forward_option(command)))


def timeout_option(command: F) -> F:
    return click.option(
        "--timeout",
        "timeout_s",
        envvar="TRITONMQ_TIMEOUT_S",
        type=Seconds(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help=f"How long to retry. The first answer must come within {CONNECT_TIMEOUT_MS // 1000} s.",
    )(command)


def _forward_option(command: F) -> F:
    return click.option(
        "--forward",
        is_flag=True,
        default=None,
        envvar="TRITONMQ_FORWARD",
        help="Reach no broker but those of the bootstrap addresses: they pass on what is meant for others. "
        "[env var: TRITONMQ_FORWARD]",
    )(command)


def security_options(command: F) -> F:
    """With which certificate or token brokers are spoken with, and from which file that and the rest is taken if it is
    not given."""
    command = client_settings(_given_the_connection(command))
    for name, metavar, what in (
        ("TOKEN_FILE", "FILE", "Show the token in this file instead of a certificate."),
        ("USER", "NAME", "Whose certificate in --certs: NAME or User:NAME. Default: the only one."),
        ("CERTS", "DIR", "Speak TLS, with the certificates in this directory."),
    ):
        option, variable = f"--{name.lower().replace('_', '-')}", f"TRITONMQ_{name}"
        command = click.option(option, envvar=variable, metavar=metavar, help=f"{what} [env var: {variable}]")(command)
    return command


def _given_the_connection(command: F) -> F:
    """The command is given one value in place of one for each option of the connection."""
    names = {field.name for field in fields(Connection)}

    @functools.wraps(command)
    def run(*arguments: Any, **values: Any) -> Any:
        connection = Connection.of(values)
        connection.check(click.get_current_context())
        others = {name: value for name, value in values.items() if name not in names}
        return command(*arguments, connection=connection, **others)

    return cast("F", run)


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
