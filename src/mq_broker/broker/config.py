"""What a broker process is started with."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mq_broker.coordination.credential import Credential
from mq_broker.coordination.file import FileStore
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_broker.security.names import Principal
from mq_broker.security.oidc import Issuer
from mq_process.patience import LONG_S
from mq_protocol.access.pem import Files, files_of_broker
from mq_protocol.addresses import ANY_ADDRESS, is_loopback, parse_address
from mq_protocol.errors import InvalidSetting
from mq_protocol.limits import (
    BALANCE_LEADERS_MS,
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_AGE_MS,
    CONNECTIONS_MAX,
    DEDUP_MEMORY_MAX,
    HOLD_MAX,
    MEMORY_HIGH_FLOOR,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICAS_MAX,
    SCRUB_RATE,
    SESSION_TIMEOUT_MS,
)
from mq_protocol.names import check_rack

ADMIN = Principal("User", "admin")
"""The superuser, unless others are named."""

_BROKER_MAX = (1 << 31) - 1


class Role(StrEnum):
    """What a process is: one that holds partitions, or one that passes on to those."""

    BROKER = "broker"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class AutoCreate:
    """Topics of records that are made when a producer or a consumer first names them. Raises `InvalidSetting`."""

    partitions: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidSetting(
                f"--auto-create-partitions={self.partitions} is out of range: give 1 to {PARTITIONS_PER_TOPIC_MAX}"
            )
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise InvalidSetting(f"--auto-create-replicas={self.replicas} is out of range: give 1 to {REPLICAS_MAX}")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """`listen` is `host:port` (port 0: a free one). `advertised` is what clients dial; by default `listen`, with this
    machine's name where that says "any address". Other brokers dial `peer_advertised`, by default the same. `grpc` is
    where clients in other languages are served; empty: nowhere. `flight` is where clients of Arrow Flight read; empty:
    nowhere. `grpc_advertised` and `flight_advertised` are what those dial. `zookeeper` is `host:port,…`;
    empty: a broker that stands alone, its cluster kept in the data directory. `stop_timeout_ms` bounds handing over
    leadership at a clean stop. `balance_leaders_ms`: a partition whose first replica has been in sync for so long is
    led by it again; 0: when somebody asks for it. `message_bytes_max`: of one message from a client.
    `connections_max`: of clients. `memory_high`: how many bytes may be held for clients' streams before no more is read
    from them; 0 is half of the memory. `topic_name_max` bounds the names of topics that this broker is asked to make,
    in bytes. `coordination`, if given, is used instead. `auto_create`: whether and how topics are made that a producer
    or a consumer names and nobody has made. `http`: where metrics are served, over HTTPS with `certs`; empty: nowhere.
    `ready_in_sync_timeout_s`: after so long the broker counts as ready although replicas of it are not in sync.
    `dedup_memory_max`: bytes of memory for the UUIDs that partitions remember, beyond which the log says so.
    `scrub_rate`: how quickly what a start did not read is verified, at most; 0: not at all.
    `authorize`: rights are judged, whoever asks; `superusers`: who may do all then. `audit_reads`: the audit log also
    tells who reads.

    `certs` is a directory with `ca.crt`, `broker.crt` and `broker.key`: then every port speaks TLS, and demands of
    whoever connects a certificate, or of each call a token. `also_plaintext` is a further port without TLS, for clients
    and brokers that are moved to TLS one after another. gRPC cannot leave it to the client what it shows: at `grpc` it
    is a certificate, and at `grpc_token` a token; `grpc_token_advertised` is what the latter dial. The `oidc_…` say
    whose JWTs are taken, and which authorities its https address is checked against. `authenticators` are further ones,
    by the names of entry points. An address that other machines reach needs
    `certs`, or `insecure`. `connection_age_ms`: of clients over TLS.

    `encrypt` names the keys with which what is written to disk is sealed: `file:PATH`, or another provider's. Empty:
    it is written in plain.

    `role`: of a proxy `broker` is the id, which no broker has. `hold_max`: how many bytes of requests it holds while
    their partitions have no leader.

    `zookeeper_auth`: a file with the brokers' credential for ZooKeeper. `zookeeper_certs`: as `certs`, for TLS towards
    ZooKeeper; None: plain text.

    Raises `InvalidSetting` naming what is wrong.
    """

    broker: int
    listen: str
    data_dir: Path
    zookeeper: str = ""
    advertised: str = ""
    rack: str = ""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    stop_timeout_ms: int = 10_000
    balance_leaders_ms: int = BALANCE_LEADERS_MS
    topic_name_max: int = NAME_BYTES_MAX
    coordination: Callable[[], CoordinationService] | None = None
    peer_advertised: str = ""
    grpc: str = ""
    grpc_advertised: str = ""
    grpc_token: str = ""
    grpc_token_advertised: str = ""
    flight: str = ""
    flight_advertised: str = ""
    message_bytes_max: int = CLIENT_MESSAGE_BYTES_MAX
    connections_max: int = CONNECTIONS_MAX
    memory_high: int = 0
    auto_create: AutoCreate | None = None
    dedup_memory_max: int = DEDUP_MEMORY_MAX
    scrub_rate: int = SCRUB_RATE
    http: str = ""
    ready_in_sync_timeout_s: float = 300.0
    authorize: bool = False
    superusers: tuple[Principal, ...] = (ADMIN,)
    audit_reads: bool = False
    certs: Path | None = None
    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_user_claim: str = "sub"
    oidc_groups_claim: str = "groups"
    oidc_ca: Path | None = None
    authenticators: tuple[str, ...] = ()
    insecure: bool = False
    also_plaintext: str = ""
    connection_age_ms: int = CONNECTION_AGE_MS
    zookeeper_auth: Path | None = None
    zookeeper_certs: Path | None = None
    encrypt: str = ""
    role: Role = Role.BROKER
    hold_max: int = HOLD_MAX

    def __post_init__(self) -> None:
        if not 1 <= self.broker <= _BROKER_MAX:
            raise InvalidSetting(f"broker id {self.broker} is out of range: give --id 1 or more")
        self._check_addresses()
        check_rack(self.rack)
        for principal in self.superusers:
            if principal.kind != "User":
                raise InvalidSetting(f"--superusers: {principal} is no user: write User:NAME")
        if not CLIENT_MESSAGE_BYTES_MAX <= self.message_bytes_max <= MESSAGE_BYTES_MAX:
            raise InvalidSetting(
                f"--message-bytes-max={self.message_bytes_max} is out of range: "
                f"give {CLIENT_MESSAGE_BYTES_MAX} to {MESSAGE_BYTES_MAX}"
            )
        if self.balance_leaders_ms < 0:
            raise InvalidSetting(
                f"--balance-leaders-ms={self.balance_leaders_ms} is out of range: give milliseconds, or 0 for never"
            )
        if self.connections_max < 1:
            raise InvalidSetting(f"--connections-max={self.connections_max} refuses every client: give 1 or more")
        if self.memory_high != 0 and self.memory_high < MEMORY_HIGH_FLOOR:
            raise InvalidSetting(
                f"--memory-high={self.memory_high} is too little to work with: give {MEMORY_HIGH_FLOOR} or more"
            )
        if self.dedup_memory_max < 1:
            raise InvalidSetting(f"--dedup-memory-max={self.dedup_memory_max} is out of range: give 1 or more bytes")
        if self.scrub_rate < 0:
            raise InvalidSetting(f"--scrub-rate={self.scrub_rate} is out of range: give bytes a second, or 0")
        if not 1 <= self.topic_name_max <= NAME_BYTES_MAX:
            raise InvalidSetting(f"--topic-name-max={self.topic_name_max} is out of range: give 1 to {NAME_BYTES_MAX}")
        self._check_role()
        self._check_mode()

    def _check_addresses(self) -> None:
        _split(self.listen, "--listen")
        for address, option in (
            (self.advertised, "--advertise"),
            (self.peer_advertised, "--peer-advertise"),
            (self.grpc, "--grpc"),
            (self.grpc_advertised, "--grpc-advertise"),
            (self.grpc_token, "--grpc-token"),
            (self.grpc_token_advertised, "--grpc-token-advertise"),
            (self.flight, "--flight"),
            (self.flight_advertised, "--flight-advertise"),
            (self.also_plaintext, "--also-plaintext"),
            (self.http, "--http"),
        ):
            if address:
                _split(address, option)
        for advertised, listened, option in (
            (self.flight_advertised, self.flight, "--flight"),
            (self.grpc_advertised, self.grpc, "--grpc"),
            (self.grpc_token_advertised, self.grpc_token, "--grpc-token"),
        ):
            if advertised and not listened:
                raise InvalidSetting(f"{option}-advertise goes with {option}")

    def _check_role(self) -> None:
        """A proxy holds no records, and no broker dials it."""
        if self.hold_max < 0:
            raise InvalidSetting(f"--hold-max={self.hold_max} is out of range: give bytes, or 0 to hold nothing")
        if self.role is not Role.PROXY:
            return
        if not self.zookeeper and self.coordination is None:
            raise InvalidSetting("--role proxy needs --zookeeper HOSTS: it passes on to the brokers of a cluster")
        given = (
            ("--peer-advertise", self.peer_advertised),
            ("--flight", self.flight),
            ("--http", self.http),
            ("--encrypt", self.encrypt),
            ("--rack", self.rack),
            ("--auto-create", self.auto_create),
        )
        for option, value in given:
            if value:
                raise InvalidSetting(f"--role proxy has no {option}: it keeps no records, and no broker dials it")

    def _check_mode(self) -> None:
        """Nobody opens a broker to other machines without a word."""
        if self.certs is None:
            for value, option in (
                (self.grpc_token, "--grpc-token"),
                (self.authenticators, "--authenticators"),
                (self.issuer, "--oidc-issuer"),
            ):
                if value:
                    raise InvalidSetting(f"{option} goes with --certs DIR: a token is never sent in plain text")
        if self.issuer is None and (self.oidc_audience or self.oidc_ca is not None):
            raise InvalidSetting("--oidc-audience and --oidc-ca go with --oidc-issuer")
        if self.certs is not None:
            if self.insecure:
                raise InvalidSetting("--certs and --insecure exclude each other: --also-plaintext is for a transition")
            return
        if self.also_plaintext:
            raise InvalidSetting("--also-plaintext goes with --certs DIR: without it every port is in plain text")
        plain = self.plain_to_others
        if plain and not self.insecure:
            option, address = plain[0]
            raise InvalidSetting(
                f"{option} {address} can be reached from other machines: give --certs DIR (tritonmq cert makes it), or "
                "--insecure to let everybody do everything"
            )

    @property
    def plain_to_others(self) -> tuple[tuple[str, str], ...]:
        """The ports in plain text that other machines reach: each by its option and its address."""
        listened = (
            (("--also-plaintext", self.also_plaintext),)
            if self.certs is not None
            else (
                ("--listen", self.listen),
                ("--grpc", self.grpc),
                ("--flight", self.flight),
                ("--http", self.http),
            )
        )
        return tuple(
            (option, address) for option, address in listened if address and not is_loopback(_split(address, option)[0])
        )

    @property
    def issuer(self) -> Issuer | None:
        """Whose JWTs are taken. Raises `InvalidSetting`."""
        if not self.oidc_issuer:
            return None
        return Issuer(self.oidc_issuer, self.oidc_audience, self.oidc_user_claim, self.oidc_groups_claim)

    @property
    def judges(self) -> bool:
        """Whether rights are judged: asked for, or since everybody has a name. While plain text is served, too, some
        have none yet."""
        return self.authorize or (self.certs is not None and not self.also_plaintext)

    @property
    def is_open_to_all(self) -> bool:
        """Whether it was said that everybody may do everything, or some still may."""
        return self.insecure or bool(self.also_plaintext)

    def address(self, port: int) -> str:
        """What clients dial, given the port that was bound."""
        return self.advertised or f"{_dialled(_split(self.listen, '--listen')[0])}:{port}"

    def peer_address(self, port: int) -> str:
        """What other brokers dial, given the port that was bound."""
        return self.peer_advertised or self.address(port)

    def flight_address(self, port: int) -> str:
        """What clients of Flight dial, given the port that was bound."""
        return self.flight_advertised or self._beside(self.flight, "--flight", port)

    def grpc_address(self, port: int) -> str:
        """What clients of gRPC dial, given the port that was bound."""
        return self.grpc_advertised or self._beside(self.grpc, "--grpc", port)

    def grpc_token_address(self, port: int) -> str:
        """What those dial that show a token, given the port that was bound."""
        return self.grpc_token_advertised or self._beside(self.grpc_token, "--grpc-token", port)

    def _beside(self, listened: str, option: str, port: int) -> str:
        """The host of a further port, or the one that other clients dial if it is any address."""
        host, _ = _split(listened, option)
        if self.advertised and host in ANY_ADDRESS:
            host, _ = _split(self.advertised, "--advertise")
        return f"{_dialled(host)}:{port}"

    def plain_address(self, port: int) -> str:
        """What clients and brokers dial that do not know TLS yet, given the port that was bound."""
        return f"{_dialled(_split(self.also_plaintext, '--also-plaintext')[0])}:{port}"

    @property
    def zookeeper_files(self) -> Files | None:
        return None if self.zookeeper_certs is None else files_of_broker(self.zookeeper_certs, self.broker)

    @property
    def _credential(self) -> Credential | None:
        return None if self.zookeeper_auth is None else Credential.read(self.zookeeper_auth)

    def make_coordination(self) -> CoordinationService:
        if self.coordination is not None:
            return self.coordination()
        if self.zookeeper:
            store = ZooKeeperStore(
                self.zookeeper,
                self.session_timeout_ms,
                connect_timeout_ms=int(LONG_S * 1000),
                credential=self._credential,
                tls=self.zookeeper_files,
            )
            return CoordinationService(store)
        return CoordinationService(FileStore(self.data_dir))


def http_listener(address: str) -> socket.socket:
    """A socket that listens at `--http`. Raises `InvalidSetting` if that cannot be."""
    host, port = _split(address, "--http")
    listening = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InvalidSetting(f"--http {address} cannot be used ({error.strerror}): choose another port") from error
    listening.setblocking(False)
    return listening


def _dialled(host: str) -> str:
    return socket.gethostname() if host in ANY_ADDRESS else host


def _split(address: str, option: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    try:
        parse_address(f"localhost:{port}" if host in ANY_ADDRESS else address)
    except InvalidSetting as error:
        raise InvalidSetting(f"{option}: {error}") from None
    return host, int(port)
