"""The gRPC server of a broker process: its options, its port. What it serves is given to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grpc import aio

from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import (
    CALL_METADATA_BYTES_MAX,
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_IDLE_MS,
    CONNECTIONS_MAX,
    HANDSHAKE_TIMEOUT_MS,
    STREAMS_PER_CONNECTION_MAX,
)
from mq_protocol.transport import CHANNEL_OPTIONS, MESSAGE_OPTIONS

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),  # two brokers on one port: the second is told, not given half of the clients
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients may keep idle connections alive
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.max_metadata_size", CALL_METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", CALL_METADATA_BYTES_MAX),
)


def client_options(
    message_bytes_max: int = CLIENT_MESSAGE_BYTES_MAX, connections_max: int = CONNECTIONS_MAX
) -> tuple[tuple[str, int], ...]:
    """Of the port for clients, which anybody may reach."""
    return (
        *(option for option in SERVER_OPTIONS if option[0] != "grpc.max_receive_message_length"),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
    )


def listen(
    address: str, option: str = "--listen", options: Iterable[tuple[str, int]] = SERVER_OPTIONS
) -> tuple[aio.Server, int]:
    """A server bound to `host:port` (port 0: a free one), without services and not yet started, and its port.

    Raises `InvalidSetting` when the port cannot be had, naming the option that gives another.
    """
    server = aio.server(options=_options(options))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise InvalidSetting(
            f"cannot listen on {address}: it is taken, or no address of this machine; choose another {option}"
        )
    return server, port


def dial(address: str) -> aio.Channel:
    """A channel to another broker; connects when it is first used."""
    return aio.insecure_channel(address, options=_options(CHANNEL_OPTIONS))


def _options(options: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return list(options)
