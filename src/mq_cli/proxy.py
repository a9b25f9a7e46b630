"""`tritonmq proxy`: one address through which clients reach every broker."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

import click

from mq_cli.connection import Connection, direct_bootstrap_option
from mq_cli.listening import listening_at
from mq_cli.output import checking_what_was_typed, say
from mq_cli.terminal import log_to_stderr
from mq_protocol.addresses import is_loopback, parse_address

if TYPE_CHECKING:
    from mq_cli.tunnel import Addresses, Bounds

DEFAULT_LISTEN = "127.0.0.1:7490"
CONNECTIONS_MAX = 2_000
_FILES_BESIDE = 400
"""Of this process: connections that have said nothing yet, and what it has open else."""


@click.command()
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    envvar="TRITONMQ_PROXY_LISTEN",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Where clients connect. Port 0 is a free one.",
)
@click.option(
    "--connections-max",
    type=click.IntRange(1, 100_000),
    default=CONNECTIONS_MAX,
    show_default=True,
    help="Connections in all. A client process has about two for each broker.",
)
@click.option(
    "--connections-per-address-max",
    type=click.IntRange(1, 100_000),
    help="Connections from one address. Default: half of all.",
)
@click.option("--insecure", is_flag=True, help="Lead other machines to brokers that are reached without TLS.")
@click.option("--stop-at-eof", is_flag=True, hidden=True, help="End when standard input ends.")
@direct_bootstrap_option
def proxy(
    listen: str,
    connections_max: int,
    connections_per_address_max: int | None,
    insecure: bool,
    stop_at_eof: bool,
    connection: Connection,
) -> int:
    """Be an HTTP CONNECT tunnel to the brokers: clients with --via HOST:PORT need to reach no other address.

    Prints `proxy HOST:PORT` once it serves. Ctrl-C ends it. It connects clients to the addresses at which brokers serve
    clients, and to nothing else. It asks the brokers for them with a certificate or a token of its own, which needs no
    rights. TLS is between clients and brokers.
    """
    from mq_cli.tunnel import Addresses, Bounds
    from mq_client.cluster import connection as client

    with checking_what_was_typed():
        host, port = parse_address(listen)
        cluster = client.Connection(**connection.for_client())
    if cluster.client.security is None and not insecure and not is_loopback(host):
        raise click.UsageError(
            f"--listen {listen} can be reached from other machines, and this tunnel speaks with the brokers in plain "
            "text: give --certs, or --insecure, with which whoever reaches it may do everything"
        )
    bounds = Bounds(connections_max, connections_per_address_max or max(1, connections_max // 2))
    _open_files(2 * connections_max + _FILES_BESIDE)
    log_to_stderr("info")
    with listening_at(host, port) as listener:
        click.echo(f"proxy {host}:{listener.getsockname()[1]}")
        sys.stdout.flush()
        asyncio.run(_run(listener, Addresses(cluster), bounds, stop_at_eof=stop_at_eof))
    return 0


async def _run(listener: socket.socket, addresses: Addresses, bounds: Bounds, *, stop_at_eof: bool) -> None:
    from mq_cli.tunnel import run

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)

    def heard_from_stdin() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    if stop_at_eof:
        loop.add_reader(sys.stdin.fileno(), heard_from_stdin)
    await run(listener, addresses, bounds, stop)


def _open_files(wanted: int) -> None:
    """Let this process have so many files open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        say(f"this process may have {most:,} files open, and all its connections need {wanted:,}: raise ulimit -n")
