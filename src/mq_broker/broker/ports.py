"""The ports of a broker: for clients and for other brokers, in plain text or over TLS, and what others are told of
them.

With certificates the ports that `--listen` and `--peer-listen` name speak TLS. While a cluster is being secured there
are two further ones without it (`--also-plaintext`), and links of both kinds are held at the link port. Clients that
show a token have a port of their own (`--listen-token`). So have clients of Arrow Flight (`--flight`), which speaks TLS
alone if there are certificates; who shows a token asks it at the port for tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc
from grpc import aio

from mq_broker.broker.config import BrokerConfig, Role
from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.rpc import server as rpc_server
from mq_broker.rpc.arriving import Memory
from mq_broker.rpc.certificates import LOOK_S, Certificates
from mq_broker.rpc.dialling import Dialling
from mq_broker.rpc.framed import Converse, LinkServer, bind
from mq_broker.rpc.outgoing import PeerAddress
from mq_broker.rpc.service import Conversation
from mq_broker.rpc.streams import StreamServer
from mq_broker.rpc.token_port import TokenDoor, TokenHandlers
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import FLIGHT_REQUEST_BYTES_MAX
from mq_protocol.versions import ours

log = logging.getLogger(__name__)

REMIND_S: Final = 3_600.0
"""So often the log says that everybody may do everything."""


class Ports:
    """Owns the servers, and the certificate that they show. `alone`: no other broker is served.

    Raises `InvalidSetting` for a port that cannot be had, and for certificates of no use.
    """

    def __init__(self, config: BrokerConfig, *, alone: bool) -> None:
        self._config = config
        self.certificates = Certificates(config.certs, config.broker) if config.certs is not None else None
        self._plain_peers: set[str] = set()
        self.dialling = Dialling(self.certificates, self._plain_peers.__contains__)
        self.link_tls = self.certificates.client_context if self.certificates is not None else None
        self._clients: list[aio.Server] = []
        self._with_tokens: list[aio.Server] = []
        self._peers: list[aio.Server] = []
        self._flight: list[aio.Server] = []
        self._links: LinkServer | None = None
        self._link_listener: socket.socket | None = None
        self.address = self.tls_address = self.peer_address = self.tls_peer_address = ""
        self.link_address = self.tls_link_address = self.token_address = ""
        self.stream_address = self.tls_stream_address = ""
        self.flight_address = self.tls_flight_address = ""
        self._streams: StreamServer | None = None
        self._stream_listener: socket.socket | None = None
        for_clients = rpc_server.client_options(config.message_bytes_max, config.connections_max)
        if self.certificates is None:
            clients_port = self._open(self._clients, config.listen, "--listen", for_clients)
            self.address = config.address(clients_port)
            self.flight_address = self._open_flight(())
            if not alone:
                port = self._open(self._peers, config.peers_at, "--peer-listen", rpc_server.peer_options())
                self.peer_address = config.peer_address(port)
                self._link_listener, port = bind(config.links_at, "--link-listen")
                self.link_address = config.link_address(port)
            self.stream_address = self._open_streams(clients_port)
            return
        aged = (*for_clients, *rpc_server.aged(config.connection_age_ms))
        given = self.certificates.server_credentials()
        clients_port = self._open(self._clients, config.listen, "--listen", aged, given)
        self.address = self.tls_address = config.address(clients_port)
        self.tls_flight_address = self._open_flight(rpc_server.aged(config.connection_age_ms))
        if not alone:
            port = self._open(
                self._peers,
                config.peers_at,
                "--peer-listen",
                rpc_server.peer_options(),
                self.certificates.server_credentials(),
            )
            self.peer_address = self.tls_peer_address = config.peer_address(port)
            self._link_listener, port = bind(config.links_at, "--link-listen")
            self.tls_link_address = config.link_address(port)
        if config.listen_token:
            given = self.certificates.server_credentials(demanded=False)
            port = self._open(self._with_tokens, config.listen_token, "--listen-token", aged, given)
            self.token_address = config.token_address(port)
        if config.also_plaintext:
            self._open_plain(for_clients, alone=alone)
        self.tls_stream_address = self._open_streams(clients_port)

    def _open_streams(self, clients_port: int) -> str:
        """What clients dial; empty if they are not told, or not served."""
        if self._config.role is Role.PROXY:
            return ""
        try:
            self._stream_listener, port = bind(self._config.streams_at, "--stream-listen")
        except InvalidSetting:
            if self._link_listener is not None:
                self._link_listener.close()
            raise
        return self._config.stream_address(port, clients_port)

    def _open_flight(self, options: tuple[tuple[str, int], ...]) -> str:
        """What clients of Flight dial; empty if they are not served."""
        config = self._config
        if not config.flight:
            return ""
        bounds = rpc_server.client_options(FLIGHT_REQUEST_BYTES_MAX, config.connections_max)
        given = self.certificates.server_credentials() if self.certificates is not None else None
        port = self._open(self._flight, config.flight, "--flight", (*bounds, *options), given)
        return config.flight_address(port)

    def _open_plain(self, for_clients: tuple[tuple[str, int], ...], *, alone: bool) -> None:
        config = self._config
        port = self._open(self._clients, config.also_plaintext, "--also-plaintext", for_clients)
        self.address = config.plain_address(port)
        if not alone:
            options = rpc_server.peer_options()
            port = self._open(self._peers, config.plain_peers_at, "--also-plaintext-peer", options)
            self.peer_address = config.plain_peer_address(port)
            self.link_address = self.tls_link_address

    @staticmethod
    def _open(
        servers: list[aio.Server],
        address: str,
        option: str,
        options: tuple[tuple[str, int], ...],
        credentials: grpc.ServerCredentials | None = None,
    ) -> int:
        server, port = rpc_server.listen(address, option, options, credentials)
        servers.append(server)
        return port

    # ------------------------------------------------------------------ serving

    def serve(
        self,
        for_clients: tuple[Any, ...],
        for_peers: tuple[Any, ...],
        links: Converse | None,
        streams: Mapping[str, Conversation],
        door: TokenDoor,
        flight: tuple[Any, ...],
        memory: Memory,
    ) -> None:
        """What is served, to be called before `start`: handlers of gRPC, and what holds links (None: there are none)
        and clients' streams. `door`: what stands before those for clients at the port for tokens. `flight`: handlers of
        the port for Flight. `memory`: where what clients send by streams is counted."""
        config = self._config
        tls = self.certificates.server_context if self.certificates is not None else None
        if self._link_listener is not None and links is not None:
            self._links = LinkServer(self._link_listener, links, tls, also_plain=bool(config.also_plaintext))
        age_ms = None if tls is None else config.connection_age_ms
        bounds = config.message_bytes_max, config.connections_max
        if self._stream_listener is not None:
            self._streams = StreamServer(self._stream_listener, streams, *bounds, memory, tls, age_ms)
        for server in self._clients:
            server.add_generic_rpc_handlers(for_clients)
        by_token = (*for_clients, *flight) if config.flight else for_clients
        for server in self._with_tokens:
            server.add_generic_rpc_handlers((TokenHandlers(by_token, door),))
        for server in self._flight:
            server.add_generic_rpc_handlers(flight)
        for server in self._peers:
            server.add_generic_rpc_handlers(for_peers)

    async def start(self) -> None:
        for server in (*self._clients, *self._with_tokens, *self._flight, *self._peers):
            await server.start()
        if self._links is not None:
            self._links.start()
        if self._streams is not None:
            self._streams.start()

    async def stop(self, grace_s: float) -> None:
        if self._links is not None:
            await self._links.stop()
        if self._streams is not None:
            await self._streams.stop()
        servers = (*self._clients, *self._with_tokens, *self._flight, *self._peers)
        await asyncio.gather(*(server.stop(grace_s) for server in servers))

    def periodic(self) -> Iterator[Periodic]:
        """What replaces the certificate when its files are replaced, and what reminds of what is open to all."""
        kept = self.certificates
        if kept is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # a loop in another thread hears no signals
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, kept.look_now)
            yield Periodic("keep the ports' certificate", LOOK_S, kept.look, at_once=True, hint=kept.hint)
        if self._config.is_open_to_all:
            yield Periodic("remind of who may do everything", REMIND_S, self._remind, at_once=True)

    def _remind(self) -> None:
        option = "--insecure" if self._config.insecure else f"--also-plaintext {self._config.also_plaintext}"
        log.warning("INSECURE: with %s whoever reaches the port may do everything, and read all traffic", option)

    @property
    def serial(self) -> str:
        """Of this broker's certificate, as `serial_of` tells it (names.py); empty without one."""
        return "" if self.certificates is None else self.certificates.shown.serial.lower().lstrip("0")

    # ------------------------------------------------------------------ what others are told, and told us

    def registration(self, incarnation: int) -> BrokerRegistration:
        config = self._config
        return BrokerRegistration(
            config.broker,
            incarnation,
            self.address,
            config.rack,
            self.peer_address,
            config.message_bytes_max,
            ours(),
            self.link_address,
            self.tls_address,
            self.tls_peer_address,
            self.tls_link_address,
            zookeeper_auth=config.zookeeper_auth is not None,
            token_address=self.token_address,
            judges=config.judges,
            stream_address=self.stream_address,
            tls_stream_address=self.tls_stream_address,
            flight_address=self.flight_address,
            tls_flight_address=self.tls_flight_address,
            insecure=bool(config.plain_to_others),
        )

    def peer_address_of(self, registration: BrokerRegistration) -> str:
        """Where this broker dials that one; empty if it cannot."""
        if self.certificates is None:
            return registration.peer_address_for(tls=False)
        secured = registration.peer_address_for(tls=True)
        if secured or not self._config.also_plaintext:
            self._plain_peers.discard(secured)
            return secured
        plain = registration.peer_address_for(tls=False)
        self._plain_peers.add(plain)
        return plain

    def link_address_of(self, registration: BrokerRegistration) -> PeerAddress:
        """Where this broker holds a link with that one."""
        secured, plain = registration.tls_link_address, registration.link_address
        if self.certificates is not None and (secured or not self._config.also_plaintext):
            return PeerAddress(secured, registration.incarnation)
        return PeerAddress(plain, registration.incarnation, plain=True)
