"""`tritonmq console`: pages that show the cluster, served to a browser."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mq_cli.commands import command, flag, option, several
from mq_cli.connection import BOOTSTRAP, Connection
from mq_cli.output import say
from mq_cli.terminal import log_to_stderr
from mq_cli.values import FILE_THERE, checking_what_was_typed
from mq_protocol.addresses import is_loopback, parse_address

DEFAULT_LISTEN = "127.0.0.1:7480"
KEY_BYTES = 16
_KEY_CHARACTERS_MIN = 16


@dataclass(frozen=True, slots=True)
class Serving:
    """Where the pages are served, to whom, and what they may do."""

    listen: str = option(
        "Where to serve the pages. Port 0 is a free one.",
        default=DEFAULT_LISTEN,
        envvar="TRITONMQ_CONSOLE_LISTEN",
        show_envvar=True,
        metavar="HOST:PORT",
    )
    actions: bool = flag(
        "Also allow changes: topics, groups, moves. Without it pages only show.", envvar="TRITONMQ_CONSOLE_ACTIONS"
    )
    hide_values: bool = flag(
        "Show where records are and how large, and nothing that is in them.", envvar="TRITONMQ_CONSOLE_HIDE_VALUES"
    )
    key_file: Path | None = option(
        "The key that must be shown to see pages, in place of a new one at each start.",
        type=FILE_THERE,
        metavar="FILE",
    )
    open_to_all: bool = flag("Ask for no key, where one is asked for otherwise.")
    names: tuple[str, ...] = option(
        "A name by which browsers may call this console, beside addresses and localhost. May be repeated.",
        "--host",
        multiple=True,
        metavar="NAME",
    )
    https_certificate: Path | None = option(
        "Serve over HTTPS with this certificate, in PEM.", type=FILE_THERE, metavar="FILE"
    )
    https_key: Path | None = option("Its private key.", type=FILE_THERE, metavar="FILE")
    insecure: bool = flag("Serve addresses that other machines reach without HTTPS.")

    def check(self, host: str) -> None:
        """Nobody opens the pages to other machines without a word."""
        if (self.https_certificate is None) != (self.https_key is None):
            raise click.UsageError("--https-certificate and --https-key go together")
        if self.https_certificate is None and not self.insecure and not is_loopback(host):
            raise click.UsageError(
                f"--listen {self.listen} can be reached from other machines: give --https-certificate and --https-key, "
                "or --insecure to send everything in plain text"
            )

    def key(self, host: str, *, secured: bool) -> str | None:
        """What must be shown to see pages."""
        needed = (secured or self.actions or not is_loopback(host)) and not self.open_to_all
        if self.key_file is None and needed:
            return secrets.token_urlsafe(KEY_BYTES)
        if self.key_file is None and self.actions:
            raise click.UsageError("--actions needs a key: leave out --open-to-all")
        return None if self.key_file is None else _read_key(self.key_file)


@command()
def console(
    how: Serving = several(Serving),
    stop_at_eof: bool = flag("End when standard input ends.", hidden=True),
    connection: Connection = BOOTSTRAP,
) -> None:
    """Serve pages that show the cluster to a browser: what is wrong, brokers, topics, rows, groups, queues, sinks.

    Prints `console http://…` once it serves. Ctrl-C ends it. Whoever opens the page sees what you may see. So where the
    cluster asks for certificates, with --actions, or where other machines reach it, the printed address has a key.
    """
    serving = _serving_module()
    with checking_what_was_typed():
        host, port = parse_address(how.listen)
    how.check(host)
    key = how.key(host, secured=bool(connection.certs))
    log_to_stderr("warning")
    with _listening(host, port) as listener, checking_what_was_typed():
        os.environ.update(connection.environment())  # its readers find there how brokers are reached
        settings = serving.Settings(hide_values=how.hide_values, actions=how.actions)
        made = serving.Console(connection.bootstrap, settings, connection.security)
        try:
            served = serving.Serving(how.names, key, how.https_certificate, how.https_key)
            server = serving.Server(made, listener, served)
            _end_when_told(server, stop_at_eof=stop_at_eof)
            scheme = "https" if how.https_certificate else "http"
            shown_key = f"/?key={key}" if key is not None and how.key_file is None else ""
            click.echo(f"console {scheme}://{_shown(host)}:{listener.getsockname()[1]}{shown_key}")
            sys.stdout.flush()
            if key is not None and not is_loopback(host) and scheme == "http":
                say("the key and all that is shown are sent in plain text")
            server.run_until_told()
        finally:
            made.close()


def _serving_module() -> Any:
    try:
        return import_module("mq_console.serving")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "jinja2", "markupsafe", "anyio"):
            raise
        raise click.ClickException(
            "the console needs packages that are not installed: pip install '.[console]' in a clone of TritonMQ"
        ) from error


def _read_key(path: Path) -> str:
    key = path.read_text().strip()
    if len(key) < _KEY_CHARACTERS_MIN or not key.isascii() or any(each.isspace() for each in key):
        raise click.UsageError(f"the key in {path} is no word of at least {_KEY_CHARACTERS_MIN} ASCII characters")
    return key


def _listening(host: str, port: int) -> socket.socket:
    """To be closed by the caller. Raises `click.ClickException`."""
    made = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(128)
    except OSError as error:
        if made is not None:
            made.close()
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made


def _shown(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - what a browser here can open


def _end_when_told(server: Any, *, stop_at_eof: bool) -> None:
    def end(_number: int = 0, _frame: FrameType | None = None) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    if stop_at_eof:

        def watch() -> None:
            while os.read(sys.stdin.fileno(), 4096):
                pass
            end()

        threading.Thread(target=watch, name="end at eof", daemon=True).start()
