"""`tritonmq broker`: one broker in this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq_cli.commands import command, flag, option, several
from mq_cli.settings_file import HOSTNAME, config_option, for_broker, with_variables
from mq_cli.terminal import log_to_stderr
from mq_cli.values import DIRECTORY, FILE, SIZE, checking_what_was_typed, parsed
from mq_process.allocator import keep_freed_memory
from mq_process.grpc_core import refuse_older_tls, wait_without_event_engine, write_nothing
from mq_process.imports import without_pandas
from mq_process.logs import dump_stacks_when_asked
from mq_process.tracing import exporting
from mq_protocol.errors import TritonMQError
from mq_protocol.limits import (
    BALANCE_LEADERS_MS,
    CLIENT_MESSAGE_BYTES_MAX,
    CONNECTION_AGE_MS,
    CONNECTIONS_MAX,
    HOLD_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    REPLICAS_MAX,
    SESSION_TIMEOUT_MS,
)

if TYPE_CHECKING:
    from mq_broker.broker.config import BrokerConfig
    from mq_broker.security.names import Principal
    from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
    from mq_protocol.access.pem import Files

PROXY = "proxy"
_LEVELS = ["debug", "info", "warning", "error"]

_log = logging.getLogger("mq_cli.broker")

EMBEDDED = "embedded"
EMBEDDED_PORT = 2181
_LOOK_AT_ZOOKEEPER_S = 1.0


@contextlib.contextmanager
def coordination(zookeeper: str, data: Path, number: int, tls: Files | None) -> Iterator[str]:
    """The addresses to use; for `embedded` of a server that runs as long as the block, alone or as one of an
    ensemble, over TLS with those files."""
    name, _, port = zookeeper.partition(":")
    if name != EMBEDDED:
        yield zookeeper
        return
    if "@" in port:
        with _in_ensemble(port, data, number, tls) as hosts:
            yield hosts
        return
    if port and not (port.isdigit() and 0 < int(port) < 65_536):
        raise click.UsageError(f"--zookeeper {zookeeper}: write {EMBEDDED} or {EMBEDDED}:PORT")
    from mq_dev.embedded_zookeeper import EmbeddedZooKeeper

    server = EmbeddedZooKeeper(data / "zookeeper", int(port) if port else EMBEDDED_PORT, tls=tls)
    server.start(_log.warning)
    _log.info("ZooKeeper runs on %s, for brokers of this machine; it ends with this broker", server.hosts)
    try:
        with _kept(server, restarted=False):
            yield server.hosts
    finally:
        server.stop()


@contextlib.contextmanager
def _in_ensemble(text: str, data: Path, number: int, tls: Files | None) -> Iterator[str]:
    """The addresses of an ensemble. If this broker's id is one of its servers', that server runs here, and again when
    it ends."""
    from mq_dev.embedded_zookeeper import EmbeddedZooKeeper, parse_ensemble
    from mq_protocol.errors import InvalidSetting

    try:
        servers = parse_ensemble(text)
    except InvalidSetting as error:
        raise click.UsageError(str(error)) from error
    if number not in {server.number for server in servers}:
        yield ",".join(server.client_address for server in servers)
        return
    server = EmbeddedZooKeeper(data / "zookeeper", number=number, ensemble=servers, tls=tls)
    _log.info(
        "ZooKeeper %d of %d starts on %s:%d, and waits for most of them", number, len(servers), server.host, server.port
    )
    try:
        server.start(_log.warning)
        _log.info("ZooKeeper %d runs, with most of its ensemble; it ends with this broker", number)
        with _kept(server, restarted=True):
            yield server.hosts
    finally:
        server.stop()


@contextlib.contextmanager
def _kept(server: EmbeddedZooKeeper, *, restarted: bool) -> Iterator[None]:
    """As long as the block, the server is given certificates that are replaced. `restarted`: and is started again
    whenever it ends by itself."""
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(server, over, restarted), name="tritonmq-zookeeper", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def _keep(server: EmbeddedZooKeeper, over: threading.Event, restarted: bool) -> None:
    fault = ""
    while not over.wait(_LOOK_AT_ZOOKEEPER_S):
        if restarted and server.pid is None:
            _log.error(
                "ZooKeeper on %s:%d has ended, and is started again: see %s", server.host, server.port, server.log_path
            )
            try:
                server.launch()
            except (TritonMQError, OSError) as error:
                _log.error("ZooKeeper cannot be started: %s", error)
        try:
            if server.renew():
                _log.info("ZooKeeper on %s:%d takes the new certificate and authorities", server.host, server.port)
            fault = ""
        except (TritonMQError, OSError) as error:
            if str(error) != fault:
                _log.error("ZooKeeper goes on with its former certificate and authorities: %s", error)
            fault = str(error)


_address = partial(option, default="", metavar="HOST:PORT")
_size = partial(option, type=SIZE, metavar="SIZE")
_file = partial(option, type=FILE, metavar="FILE")
_directory = partial(option, type=DIRECTORY, metavar="DIR")


def _principals(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Principal, ...]:
    from mq_broker.security.names import Principal

    try:
        return tuple(Principal.parse(each.strip()) for each in text.split(",") if each.strip())
    except TritonMQError as error:
        raise click.UsageError(f"--superusers: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


class _BrokerId(click.IntRange):
    """A broker's id, or `hostname`: the number at the end of this machine's name, plus one."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value != HOSTNAME:
            return super().convert(value, param, ctx)
        name = socket.gethostname().partition(".")[0]
        found = re.search(r"[0-9]{1,9}$", name)
        if found is None:
            self.fail(f"the name of this machine, {name!r}, has no number at its end: give the id itself", param, ctx)
        return super().convert(int(found[0]) + 1, param, ctx)


_OPTIONS = {
    "config": config_option(
        "A TOML file with settings: what is not given as an option is taken from [broker] and [log].",
        for_broker,
    ),
    "broker": option(
        "The broker's id: unique in the cluster, and always the same for a data directory. `hostname`: the number at "
        "the end of this machine's name, plus one.",
        "--id",
        type=_BrokerId(min=1),
        metavar="N|hostname",
        required=True,
    ),
    "role": option(
        "`proxy`: hold no partitions, and pass on all that clients ask (docs/one-address.md).",
        type=click.Choice(["broker", PROXY]),
        default="broker",
    ),
    "hold_max": _size(
        "With --role proxy: how much of requests it holds while their partitions have no leader; 0: nothing.",
        default=f"{HOLD_MAX >> 20}MiB",
    ),
    "listen": option("Address on which clients are served.", required=True, metavar="HOST:PORT"),
    "advertised": _address("Address that clients connect to. Default: --listen.", "--advertise"),
    "peer_advertised": _address("Address that other brokers connect to. Default: --advertise.", "--peer-advertise"),
    "grpc": _address("Serve clients in other languages here, by gRPC (docs/protocol.md). Default: not at all."),
    "grpc_advertised": _address("Address that they connect to. Default: --grpc.", "--grpc-advertise"),
    "flight": _address(
        "Serve clients of Arrow Flight here, which may only read (docs/flight.md). Default: not at all."
    ),
    "flight_advertised": _address("Address that they connect to. Default: --flight.", "--flight-advertise"),
    "certs": _directory(
        "Serve over TLS with ca.crt, broker.crt and broker.key of this directory (`tritonmq cert` makes them)."
    ),
    "grpc_token": _address(
        "With --certs: serve clients here by gRPC that show a token. At --grpc they show a certificate."
    ),
    "grpc_token_advertised": _address(
        "Address that those clients connect to. Default: --grpc-token.", "--grpc-token-advertise"
    ),
    "oidc_issuer": option(
        "With --certs: take JWTs of this OpenID Connect issuer too. Its keys are read from there, by https.",
        default="",
        metavar="URL",
    ),
    "oidc_audience": option("For whom those JWTs must be (claim aud).", default="", metavar="NAME"),
    "oidc_user_claim": option("The claim with the user.", default="sub", metavar="CLAIM"),
    "oidc_groups_claim": option(
        "The claim with the user's groups: rules may be for Group:NAME.", default="groups", metavar="CLAIM"
    ),
    "oidc_ca": _file("Authorities that the issuer's certificate is checked against, in PEM. Default: this machine's."),
    "authenticators": option(
        "With --certs: further kinds of tokens, known to packages that bring entry points of these names.",
        callback=parsed(_names),
        default="",
        metavar="NAME,…",
    ),
    "also_plaintext": _address(
        "With --certs: serve clients and brokers without TLS here too, until all of them use it."
    ),
    "insecure": flag("Serve addresses that other machines reach without TLS: everybody may do everything."),
    "connection_age_ms": option(
        "How old a client's connection over TLS becomes. Clients then connect again.",
        type=click.IntRange(1_000),
        default=CONNECTION_AGE_MS,
    ),
    "data_dir": option(
        "The data directory. broker.pid in it holds the process id.", "--data", type=DIRECTORY, required=True
    ),
    "zookeeper": option(
        f"HOST:PORT,… of the cluster's ZooKeeper; or `{EMBEDDED}`[:PORT] to run one here (port {EMBEDDED_PORT}); or "
        f"`{EMBEDDED}:ID@HOST[:PEERPORT:ELECTIONPORT:CLIENTPORT],…` for one beside each of three brokers, named by "
        "their ids.",
        metavar="HOSTS",
    ),
    "zookeeper_auth": _file(
        "A file with USER:PASSWORD, the same for every broker: only brokers may then read and write their nodes."
    ),
    "zookeeper_certs": _directory(
        "Speak TLS with ZooKeeper, with ca.crt, broker.crt and broker.key of this directory, as with --certs."
    ),
    "encrypt": option(
        "Seal what is written to disk with these keys, e.g. file:/etc/tritonmq/keys.json (`tritonmq keys create`).",
        default="",
        metavar="KEYREF",
    ),
    "standalone": flag("Run a cluster of this one broker, without ZooKeeper."),
    "rack": option(
        "The broker's rack. Replicas of a partition are placed in different racks if there are enough.",
        default="",
        metavar="NAME",
    ),
    "topic_name_max": option(
        "Longest name of a new topic. Give it to every broker of the cluster.",
        type=click.IntRange(1, NAME_BYTES_MAX),
        default=NAME_BYTES_MAX,
        metavar="BYTES",
    ),
    "auto_create": flag("Create a topic when a producer or a consumer first names it."),
    "auto_create_partitions": option(
        "Partitions of a topic that is created so.", type=click.IntRange(1, PARTITIONS_PER_TOPIC_MAX), default=1
    ),
    "auto_create_replicas": option(
        "Copies of each partition. Default: 3, or 1 with --standalone. With fewer live brokers no topic is created.",
        type=click.IntRange(1, REPLICAS_MAX),
    ),
    "message_bytes_max": _size(
        "The largest message from a client. A topic's batch_bytes_max is at most 1 MiB less. Give it to every broker.",
        default=f"{CLIENT_MESSAGE_BYTES_MAX >> 20}MiB",
    ),
    "connections_max": option(
        "The largest number of connections from clients.", type=click.IntRange(1), default=CONNECTIONS_MAX
    ),
    "memory_high": option(
        "Memory for clients' streams. Above it, streams that hold much are not read. Default: half of the "
        "machine's memory.",
        type=SIZE,
        default=None,
        metavar="SIZE",
    ),
    "dedup_memory_max": _size(
        "Memory for UUIDs above which the broker warns in its log, e.g. 512MiB. No UUID is forgotten.", default="1GiB"
    ),
    "scrub_rate": _size(
        "Verify what a start did not read at no more than so many bytes a second; 0: not at all.", default="32MiB"
    ),
    "http": _address(
        "Serve /metrics, /livez, /readyz and /observation here: by HTTPS with --certs, else by HTTP. "
        "Default: not at all."
    ),
    "ready_in_sync_timeout_s": option(
        "After this time the broker counts as ready although replicas are not in sync. Not while it lacks a key.",
        type=click.FloatRange(min=0),
        default=300.0,
        metavar="SECONDS",
    ),
    "authorize": flag("Allow only what rules allow (tritonmq acl). Without certificates everybody is User:ANONYMOUS."),
    "superusers": option(
        "Who may do everything where rules are judged.",
        callback=_principals,
        default="User:admin",
        metavar="User:NAME,…",
    ),
    "audit_reads": flag("Note in the audit log who reads, too, where rules are judged."),
    "session_timeout_ms": option(
        "ZooKeeper session time-out: after this silence the broker counts as dead.",
        type=click.IntRange(500, 60_000),
        default=SESSION_TIMEOUT_MS,
    ),
    "stop_timeout_ms": option(
        "The longest time to hand over leadership at a stop.", type=click.IntRange(0), default=10_000
    ),
    "balance_leaders_ms": option(
        "A partition whose first replica has been in sync for so long is led by it again. 0: only `tritonmq cluster "
        "balance` sees to that.",
        type=click.IntRange(0),
        default=BALANCE_LEADERS_MS,
    ),
    "log_level": option(
        "The lowest level that is written to standard error.", type=click.Choice(_LEVELS), default="info"
    ),
    "log_format": option(
        "Lines for people, or a JSON object a line.", type=click.Choice(["text", "json"]), default="text"
    ),
    "verbose": flag("The same as --log-level debug.", "-v"),
    "stop_at_eof": flag("Stop when standard input ends: with the process that holds its other end.", hidden=True),
}
"""By the fields of `BrokerConfig`, and what is no field of it: `_OTHERS`."""

_OTHERS = (
    "config",
    "standalone",
    "auto_create_partitions",
    "auto_create_replicas",
    "log_level",
    "log_format",
    "verbose",
    "stop_at_eof",
)


@command(short_help="Run one broker.")
def broker(given: dict[str, Any] = several(_OPTIONS)) -> int:
    """Run one broker until SIGTERM or Ctrl-C, at which it hands over what it leads and ends with status 0."""
    others = {name: given.pop(name) for name in _OTHERS}
    _check_company(given, standalone=others["standalone"])
    os.umask(0o027)  # before anything is written: others read nothing of it
    level = "debug" if others["verbose"] else others["log_level"]
    _log_to_stderr(level, as_json=others["log_format"] == "json", broker=given["broker"])
    if given["grpc"] or given["grpc_token"] or given["flight"]:
        _choose_for_grpc()
    from mq_broker.broker.config import AutoCreate, BrokerConfig, Role

    replicas = others["auto_create_replicas"] or (1 if others["standalone"] else 3)
    given |= {
        "role": Role(given["role"]),
        "zookeeper": given["zookeeper"] or "",
        "memory_high": given["memory_high"] or 0,
        "auto_create": AutoCreate(others["auto_create_partitions"], replicas) if given["auto_create"] else None,
    }
    with checking_what_was_typed():
        config = BrokerConfig(**given)
    with coordination(config.zookeeper, config.data_dir, config.broker, config.zookeeper_files) as hosts:
        return _run(dataclasses.replace(config, zookeeper=hosts), stop_at_eof=others["stop_at_eof"])


with_variables(broker)


def _check_company(given: dict[str, Any], *, standalone: bool) -> None:
    """A broker either belongs to a cluster or stands alone: refuse options of both."""
    if standalone and given["peer_advertised"]:
        raise click.UsageError("a broker that stands alone serves no other: leave out --peer-advertise")
    if standalone == bool(given["zookeeper"]):
        raise click.UsageError(
            "give either --zookeeper HOSTS, for a broker of a cluster, or --standalone, for one without"
        )
    if standalone and (given["zookeeper_auth"] or given["zookeeper_certs"]) is not None:
        raise click.UsageError(
            "a broker that stands alone has no ZooKeeper: leave out --zookeeper-auth and --zookeeper-certs"
        )
    if given["role"] == PROXY and (given["zookeeper"] or "").partition(":")[0] == EMBEDDED:
        raise click.UsageError("--role proxy runs no ZooKeeper: give the HOST:PORT,… of the cluster's")


def _run(config: BrokerConfig, *, stop_at_eof: bool) -> int:
    keep_freed_memory()
    without_pandas()
    try:
        with exporting("tritonmq-broker", str(config.broker), os.environ):
            asyncio.run(_serve(config, stop_at_eof=stop_at_eof))
    except ExceptionGroup as group:
        # Tasks failed together; what the person at the terminal can act on is our own error among them.
        ours, others = group.split(TritonMQError)
        if others is not None or ours is None:
            _log.error("broker %d ended by itself", config.broker, exc_info=group)
        if ours is None:
            return 1
        raise _leaf(ours) from group
    except asyncio.CancelledError:
        _log.warning("broker %d ended without handing over", config.broker)
        return 1
    return 0


def _leaf(group: ExceptionGroup[TritonMQError]) -> TritonMQError:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, ExceptionGroup) else first


async def _serve(config: BrokerConfig, *, stop_at_eof: bool) -> None:
    from mq_broker.broker.runtime.garbage import LOOK_S, Garbage
    from mq_broker.broker.runtime.loop_watch import LoopWatch
    from mq_broker.broker.runtime.periodic import Periodic
    from mq_broker.broker.server import serve

    loop = asyncio.get_running_loop()
    # What is there before the first partition lives as long as the process: it is out of the collector's sight
    garbage = Garbage()
    watch = LoopWatch(loop)
    stop = asyncio.Event()
    serving = asyncio.current_task()
    assert serving is not None

    def asked_to_stop() -> None:
        if stop.is_set():
            serving.cancel()  # asked twice: end now
        stop.set()

    def heard_from_stdin() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    dump_stacks_when_asked(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop)
    if stop_at_eof:
        loop.add_reader(sys.stdin.fileno(), heard_from_stdin)
    looking = asyncio.create_task(Periodic("look at memory", LOOK_S, garbage.look).run())
    try:
        await serve(config, stop=stop)
    finally:
        looking.cancel()
        watch.close()


def _choose_for_grpc() -> None:
    """What it reads from the environment once: before anything of ours imports it."""
    write_nothing()
    wait_without_event_engine()
    refuse_older_tls()


def _log_to_stderr(level: str, *, as_json: bool, broker: int) -> None:
    log_to_stderr(level, as_json=as_json, broker=broker)
    if level == "info":
        # Tells of every connection
        logging.getLogger("mq_broker.coordination.kazoo_session.kazoo").setLevel(logging.WARNING)
