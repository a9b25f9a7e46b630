"""The ports of a broker: the one for clients and brokers, in plain text or over TLS, those of gRPC, and what others are
told of them.

With certificates the port that `--listen` names speaks TLS, and while a cluster is being secured there is a second one
without it (`--also-plaintext`). Clients in other languages use gRPC (`--grpc`, `--grpc-token`), and those of Arrow
Flight `--flight`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mq_broker.broker.config import BrokerConfig
from mq_broker.broker.runtime.periodic import Periodic
from mq_broker.coordination.interface import BrokerRegistration
from mq_broker.rpc.call import Conversation
from mq_broker.rpc.wire.accepting import bind
from mq_broker.rpc.wire.arriving import Memory
from mq_broker.rpc.wire.certificates import LOOK_S, Certificates
from mq_broker.rpc.wire.entering import Entering, ForwardedDoor, TokenDoor
from mq_broker.rpc.wire.framed import Tls
from mq_broker.rpc.wire.lines import Dialling
from mq_broker.rpc.wire.outgoing import PeerAddress
from mq_broker.rpc.wire.port import Bounds, Converse, Port, Served
from mq_protocol.limits import FLIGHT_REQUEST_BYTES_MAX
from mq_protocol.methods import BROKER
from mq_protocol.versions import ours
from mq_protocol.wire.flight import SERVICE as FLIGHT

if TYPE_CHECKING:
    from grpc import aio

log = logging.getLogger(__name__)

REMIND_S: Final = 3_600.0
"""So often the log says that everybody may do everything."""

Options = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ForBrokers:
    """What other brokers are served: their links, and their calls by the name of the method. `door` stands before calls
    of clients that they pass on."""

    links: Converse
    calls: Mapping[str, Conversation]
    door: ForwardedDoor


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served to clients, and to those of Flight, by the name of the method. `tokens`: what verifies them.
    `memory`: where what is received is counted. `brokers` None: no other broker is served."""

    clients: Mapping[str, Conversation]
    tokens: TokenDoor
    memory: Memory
    flight: Mapping[str, Conversation] = field(default_factory=dict)
    brokers: ForBrokers | None = None


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
        self.address = self.tls_address = self.peer_address = self.tls_peer_address = ""
        self._listeners: list[tuple[socket.socket, Tls | None]] = []
        self._ports: list[Port] = []
        try:
            self._bind(alone=alone)
            self.grpc_address, self._by_grpc = self._open_grpc(config.grpc, "--grpc", config.grpc_address)
            self.grpc_token_address, self._by_token = self._open_grpc(
                config.grpc_token, "--grpc-token", config.grpc_token_address, demanded=False
            )
            self.flight_address, self._flight = self._open_grpc(
                config.flight, "--flight", config.flight_address, FLIGHT_REQUEST_BYTES_MAX
            )
        except BaseException:
            for listener, _ in self._listeners:
                listener.close()
            raise

    def _bind(self, *, alone: bool) -> None:
        config, certificates = self._config, self.certificates
        listener, port = bind(config.listen, "--listen")
        tls = None if certificates is None else certificates.server_context
        self._listeners.append((listener, tls))
        self.address = config.address(port)
        self.peer_address = "" if alone else config.peer_address(port)
        if certificates is None:
            return
        self.tls_address, self.tls_peer_address = self.address, self.peer_address
        if config.also_plaintext:
            listener, port = bind(config.also_plaintext, "--also-plaintext")
            self._listeners.append((listener, None))
            self.address = config.plain_address(port)
            self.peer_address = "" if alone else self.address

    def _open_grpc(
        self,
        listen: str,
        option: str,
        address: Callable[[int], str],
        message_bytes_max: int = 0,
        *,
        demanded: bool = True,
    ) -> tuple[str, aio.Server | None]:
        """A server of gRPC, and what is dialled; none if nothing is to listen."""
        if not listen:
            return "", None
        from mq_broker.rpc import grpc_door

        config = self._config
        options: Options = grpc_door.client_options(
            message_bytes_max or config.message_bytes_max, config.connections_max
        )
        given = None
        if self.certificates is not None:
            options = (*options, *grpc_door.aged(config.connection_age_ms))
            given = grpc_door.server_credentials(self.certificates, demanded=demanded)
        server, port = grpc_door.listen(listen, option, options, given)
        return address(port), server

    # ------------------------------------------------------------------ serving

    def serve(self, offer: Offer) -> None:
        """What is served, to be called before `start`."""
        config, brokers = self._config, offer.brokers
        entering = Entering(offer.tokens, None if brokers is None else brokers.door)
        served = (
            Served(offer.clients, entering, offer.memory)
            if brokers is None
            else Served(offer.clients, entering, offer.memory, brokers.calls, brokers.links)
        )
        for listener, tls in self._listeners:
            age_ms = None if tls is None else config.connection_age_ms
            bounds = Bounds(config.message_bytes_max, config.connections_max, age_ms)
            self._ports.append(Port(listener, served, bounds, tls))
        by_certificate = Entering(offer.tokens)
        by_token = Entering(offer.tokens, demands_token=True)
        self._add(self._by_grpc, offer, by_certificate, clients=True)
        self._add(self._by_token, offer, by_token, clients=True, flight=bool(config.flight))
        self._add(self._flight, offer, by_certificate, flight=True)

    @staticmethod
    def _add(
        server: aio.Server | None, offer: Offer, entering: Entering, *, clients: bool = False, flight: bool = False
    ) -> None:
        if server is None:
            return
        from mq_broker.rpc.grpc_door import GrpcHandlers, flight_refused

        if clients:
            server.add_generic_rpc_handlers((GrpcHandlers(BROKER.name, offer.clients, entering.enter),))
        if flight:
            server.add_generic_rpc_handlers((GrpcHandlers(FLIGHT, offer.flight, entering.enter), flight_refused()))

    @property
    def _servers(self) -> tuple[aio.Server, ...]:
        return tuple(server for server in (self._by_grpc, self._by_token, self._flight) if server is not None)

    async def start(self) -> None:
        for server in self._servers:
            await server.start()
        for port in self._ports:
            port.start()

    async def stop(self, grace_s: float) -> None:
        for port in self._ports:
            await port.stop()
        if not self._ports:
            for listener, _ in self._listeners:
                listener.close()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))

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
        config, secured = self._config, self.certificates is not None
        return BrokerRegistration(
            config.broker,
            incarnation,
            self.address,
            config.rack,
            self.peer_address,
            config.message_bytes_max,
            ours(),
            self.tls_address,
            self.tls_peer_address,
            zookeeper_auth=config.zookeeper_auth is not None,
            judges=config.judges,
            insecure=bool(config.plain_to_others),
            grpc_address="" if secured else self.grpc_address,
            tls_grpc_address=self.grpc_address if secured else "",
            grpc_token_address=self.grpc_token_address,
            flight_address="" if secured else self.flight_address,
            tls_flight_address=self.flight_address if secured else "",
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
        """The same for a link."""
        address = self.peer_address_of(registration)
        plain = self.certificates is not None and address in self._plain_peers
        return PeerAddress(address, registration.incarnation, plain=plain)
