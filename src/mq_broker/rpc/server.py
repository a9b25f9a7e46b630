"""The gRPC server of a broker process: its options, its port. What it serves is given to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc
from grpc import aio

from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import (
    CALL_METADATA_BYTES_MAX,
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_AGE_GRACE_MS,
    CONNECTION_AGE_MS,
    CONNECTION_IDLE_MS,
    CONNECTIONS_MAX,
    HANDSHAKE_TIMEOUT_MS,
    PEER_CONNECTIONS_MAX,
    PEER_METADATA_BYTES_MAX,
    STREAMS_MAX,
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


def peer_options(connections_max: int = PEER_CONNECTIONS_MAX) -> tuple[tuple[str, int], ...]:
    """Of the port for other brokers. They pass on the groups of a client's token, beside what a client says itself, and
    by one connection the streams of all their clients.

    Whoever reaches the port may connect. Who has all connections that there are keeps brokers out that have none yet;
    but who might have more would take the descriptors and the memory that all of the broker needs.
    """
    return (
        *(option for option in SERVER_OPTIONS if not option[0].endswith("max_metadata_size")),
        ("grpc.max_metadata_size", PEER_METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", PEER_METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
    )


def aged(connection_age_ms: int = CONNECTION_AGE_MS) -> tuple[tuple[str, int], ...]:
    """Of a port for clients over TLS: a connection ends after about an hour, so that a certificate which has expired
    meanwhile is of no use for longer. Who had it open connects again, as after a connection that was lost."""
    return (
        ("grpc.max_connection_age_ms", connection_age_ms),
        ("grpc.max_connection_age_grace_ms", min(CONNECTION_AGE_GRACE_MS, connection_age_ms)),
    )


def listen(
    address: str,
    option: str = "--listen",
    options: Iterable[tuple[str, int]] = SERVER_OPTIONS,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[aio.Server, int]:
    """A server bound to `host:port` (port 0: a free one), without services and not yet started, and its port. Without
    `credentials` it serves in plain text.

    Raises `InvalidSetting` when the port cannot be had, naming the option that gives another.
    """
    server = aio.server(options=_options(options))
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        port = 0
    if port == 0:
        raise InvalidSetting(
            f"cannot listen on {address}: it is taken, or no address of this machine; choose another {option}"
        )
    return server, port


def dial(address: str) -> aio.Channel:
    """A channel to another broker, in plain text; connects when it is first used."""
    return aio.insecure_channel(address, options=_options(CHANNEL_OPTIONS))


def dial_securely(address: str, credentials: grpc.ChannelCredentials) -> aio.Channel:
    """As `dial`, over TLS. The far side's certificate must be for the host in the address."""
    return aio.secure_channel(address, credentials, options=_options(CHANNEL_OPTIONS))


def _options(options: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return list(options)
