"""A socket that listens, for commands that serve."""

from __future__ import annotations

import socket

import click


def listening_at(host: str, port: int, backlog: int = 128) -> socket.socket:
    """To be closed by the caller. Raises `click.ClickException`."""
    made = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(backlog)
    except OSError as error:
        if made is not None:
            made.close()
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made
