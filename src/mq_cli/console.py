"""`tritonmq console`: pages that show the cluster, served to a browser."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mq_cli.connection import Connection, bootstrap_option
from mq_cli.output import checking_what_was_typed, say
from mq_cli.terminal import log_to_stderr
from mq_protocol.addresses import is_loopback, parse_address

DEFAULT_LISTEN = "127.0.0.1:7480"
KEY_BYTES = 16
_KEY_CHARACTERS_MIN = 16


@click.command()
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    envvar="TRITONMQ_CONSOLE_LISTEN",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Where to serve the pages. Port 0 is a free one.",
)
@click.option(
    "--actions",
    is_flag=True,
    envvar="TRITONMQ_CONSOLE_ACTIONS",
    help="Also allow changes: topics, groups, moves. Without it pages only show.",
)
@click.option(
    "--hide-values",
    is_flag=True,
    envvar="TRITONMQ_CONSOLE_HIDE_VALUES",
    help="Show where records are and how large, and nothing that is in them.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="The key that must be shown to see pages, in place of a new one at each start.",
)
@click.option("--open-to-all", is_flag=True, help="Ask for no key, where one is asked for otherwise.")
@click.option(
    "--host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers may call this console, beside addresses and localhost. May be repeated.",
)
@click.option(
    "--https-certificate",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Serve over HTTPS with this certificate, in PEM.",
)
@click.option(
    "--https-key",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Its private key.",
)
@click.option("--insecure", is_flag=True, help="Serve addresses that other machines reach without HTTPS.")
@click.option("--stop-at-eof", is_flag=True, hidden=True, help="End when standard input ends.")
@bootstrap_option
def console(
    listen: str,
    actions: bool,
    hide_values: bool,
    key_file: Path | None,
    open_to_all: bool,
    names: tuple[str, ...],
    https_certificate: Path | None,
    https_key: Path | None,
    insecure: bool,
    stop_at_eof: bool,
    connection: Connection,
) -> int:
    """Serve pages that show the cluster to a browser: what is wrong, brokers, topics, rows, groups, queues, sinks.

    Prints `console http://…` once it serves. Ctrl-C ends it. Whoever opens the page sees what you may see. So where the
    cluster asks for certificates, with --actions, or where other machines reach it, the printed address has a key.
    """
    serving = _serving_module()
    with checking_what_was_typed():
        host, port = parse_address(listen)
    _check_mode(host, listen, https_certificate, https_key, insecure=insecure)
    secured = bool(connection.certs)
    needs_key = (secured or actions or not is_loopback(host)) and not open_to_all
    key = _key(key_file) if key_file is not None else secrets.token_urlsafe(KEY_BYTES) if needs_key else None
    if actions and key is None:
        raise click.UsageError("--actions needs a key: leave out --open-to-all")
    log_to_stderr("warning")
    with _listening(host, port) as listener, checking_what_was_typed():
        os.environ.update(connection.environment())  # its readers find there how brokers are reached
        made = serving.Console(
            connection.bootstrap, serving.Settings(hide_values=hide_values, actions=actions), connection.security
        )
        try:
            how = serving.Serving(names, key, https_certificate, https_key)
            server = serving.Server(made, listener, how)
            _end_when_told(server, stop_at_eof=stop_at_eof)
            scheme = "https" if https_certificate else "http"
            shown_key = f"/?key={key}" if key is not None and key_file is None else ""
            click.echo(f"console {scheme}://{_shown(host)}:{listener.getsockname()[1]}{shown_key}")
            sys.stdout.flush()
            if key is not None and not is_loopback(host) and scheme == "http":
                say("the key and all that is shown are sent in plain text")
            server.run_until_told()
        finally:
            made.close()
    return 0


def _serving_module() -> Any:
    try:
        return import_module("mq_console.serving")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "jinja2", "markupsafe", "anyio"):
            raise
        raise click.ClickException(
            "the console needs packages that are not installed: pip install '.[console]' in a clone of TritonMQ"
        ) from error


def _check_mode(host: str, listen: str, certificate: Path | None, private_key: Path | None, *, insecure: bool) -> None:
    """Nobody opens the pages to other machines without a word."""
    if (certificate is None) != (private_key is None):
        raise click.UsageError("--https-certificate and --https-key go together")
    if certificate is None and not insecure and not is_loopback(host):
        raise click.UsageError(
            f"--listen {listen} can be reached from other machines: give --https-certificate and --https-key, or "
            "--insecure to send everything in plain text"
        )


def _key(path: Path) -> str:
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
