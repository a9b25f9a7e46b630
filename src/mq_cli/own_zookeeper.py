"""The ZooKeeper of `tritonmq broker --zookeeper embedded`, which runs beside the broker."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mq_protocol.errors import TritonMQError

if TYPE_CHECKING:
    from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
    from mq_protocol.pem import Files

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
