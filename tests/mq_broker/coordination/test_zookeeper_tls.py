"""TLS towards ZooKeeper: a real server, which demands certificates, and names that are checked."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient

from mq_broker.coordination.credential import Credential
from mq_broker.coordination.interface import TopicSpec
from mq_broker.coordination.kazoo_session import TlsHandler
from mq_broker.coordination.service import CoordinationService
from mq_broker.coordination.zookeeper import ZooKeeperStore
from mq_dev.embedded_zookeeper import EmbeddedZooKeeper
from mq_protocol.access.pem import Files, files_in, files_of_broker
from mq_protocol.errors import CoordinationUnavailable, InvalidSetting
from tests.coroutines import real_time
from tests.mq_broker.coordination.wire import LASTING_MS, WAIT_S, Heard, eventually, id_of, state_of
from tests.securing import HOST, Certs

pytestmark = pytest.mark.cluster

CREDENTIAL = Credential("tritonmq", "0f1e2d3c4b5a", "zookeeper.auth")
PARTITIONS = 400


class Secured(NamedTuple):
    server: EmbeddedZooKeeper
    certs: Certs

    @property
    def port(self) -> int:
        return self.server.port


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with the certificate of broker 1, which is for 127.0.0.1."""
    certs = Certs(tmp_path_factory.mktemp("certs") / "certs", 1, 2)
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), tls=files_of_broker(certs.path, 1))
    try:
        server.start()
        yield Secured(server, certs)
    finally:
        server.stop()


async def work(hosts: str, root: str, files: Files | None, connect_timeout_ms: int = 10_000) -> list[str]:
    service = CoordinationService(
        ZooKeeperStore(hosts, LASTING_MS, root, connect_timeout_ms=connect_timeout_ms, credential=CREDENTIAL, tls=files)
    )
    await service.start(Heard())
    try:
        if not await service.topics():
            topic = TopicSpec("orders", id_of("1"), ((1,),) * PARTITIONS)
            await service.create_topic(topic, (state_of(),) * PARTITIONS)
        states = await asyncio.gather(*(service.read_state(id_of("1"), number) for number in range(PARTITIONS)))
        assert None not in states
        lone = [await service.read_state(id_of("1"), number) for number in range(50)]
        assert None not in lone
        return list(await service.topics())
    finally:
        await service.stop()


def refusal(hosts: str, root: str, files: Files | None, says: str) -> str:
    """Asked again until it says that: a handshake has to fail within the time to connect for its fault to be told."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with pytest.raises((CoordinationUnavailable, InvalidSetting)) as error:
            asyncio.run(work(hosts, root, files, connect_timeout_ms=1_500))
        if says in str(error.value):
            return str(error.value)
        assert time.monotonic() < deadline, str(error.value)


def test_a_broker_works_over_tls_and_waits_for_nothing(secured: Secured, root: str) -> None:
    assert asyncio.run(work(secured.server.hosts, root, files_of_broker(secured.certs.path, 2))) == ["orders"]


def test_several_answers_in_one_record_of_tls_are_all_seen_at_once(tmp_path: Path) -> None:
    """A server that encrypts two answers together."""
    certs = Certs(tmp_path / "certs", 1)
    files = files_of_broker(certs.path, 1)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(files.certificate, files.key)
    with socket.create_server((HOST, 0)) as listening:
        handler = TlsHandler(files)

        async def both() -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
            def accept() -> ssl.SSLSocket:
                return accepting.wrap_socket(listening.accept()[0], server_side=True)

            def dial() -> ssl.SSLSocket:
                address = (HOST, listening.getsockname()[1])
                return handler.create_connection(address=address, hostname=HOST, timeout=WAIT_S)

            accepted, dialled = await asyncio.gather(asyncio.to_thread(accept), asyncio.to_thread(dial))
            return accepted, dialled

        accepted, dialled = asyncio.run(both())
        with accepted, dialled:
            accepted.sendall(b"firstsecond")
            assert dialled.recv(5) == b"first"
            assert handler.select([dialled], [], [], 0) == ([dialled], [], [])
            assert dialled.recv(6) == b"second"
            assert handler.select([dialled], [], [], 0) == ([], [], [])


def test_strangers_are_not_served(secured: Secured, root: str, tmp_path: Path) -> None:
    other = Certs(tmp_path / "other", 2)
    theirs = replace(files_of_broker(other.path, 2), ca=secured.certs.path / "ca.crt")
    told = refusal(secured.server.hosts, root, theirs, f"It does not take {theirs.certificate}")
    assert "no ZooKeeper answers" in told
    assert f"{secured.server.hosts} answers, and ends the connection over TLS" in told
    refusal(secured.server.hosts, root, None, "does it demand TLS? give --zookeeper-certs")
    stranger = KazooClient(secured.server.hosts, use_ssl=True, ca=str(secured.certs.path / "ca.crt"))
    with pytest.raises(stranger.handler.timeout_exception):
        stranger.start(timeout=1.5)
    stranger.stop()
    stranger.close()


def test_files_of_no_use_are_refused_at_the_start(secured: Secured, root: str, tmp_path: Path) -> None:
    here = tmp_path / "broker"
    shutil.copytree(secured.certs.path / "broker.2", here)
    (here / "broker.key").chmod(0o644)
    refusal(secured.server.hosts, root, files_of_broker(here, 2), "chmod 600")
    refusal(secured.server.hosts, root, files_in(tmp_path / "none"), "cannot be read")


@real_time
async def test_replaced_files_count_from_the_next_connection_on(secured: Secured, root: str, tmp_path: Path) -> None:
    here = tmp_path / "broker"
    shutil.copytree(secured.certs.path / "broker.2", here)
    files = files_of_broker(here, 2)
    service = CoordinationService(
        ZooKeeperStore(secured.server.hosts, LASTING_MS, root, credential=CREDENTIAL, tls=files)
    )
    await service.start(Heard())
    try:
        client = service._store._session._client
        assert client is not None
        good = files.key.read_bytes()
        files.key.write_bytes(b"")  # in the middle of being replaced
        client._connection._socket.shutdown(socket.SHUT_RDWR)

        async def told() -> bool:
            return "broker.key" in client.handler.fault

        await eventually(told)
        files.key.write_bytes(good)
        assert await service.topics() == {}
    finally:
        await service.stop()


def test_the_key_of_an_embedded_server_is_closed_to_others(secured: Secured) -> None:
    pair = secured.server.data_dir / "zookeeper.pem"
    assert pair.stat().st_mode & 0o777 == 0o600
    config = (secured.server.data_dir / "zoo.cfg").read_text()
    assert not re.search("^clientPort=", config, re.MULTILINE)  # no port in plain text beside
    assert os.fspath(pair) in config


def test_a_server_that_is_not_the_one_that_is_meant_is_not_believed_and_it_is_said_why(
    zookeeper: str, secured: Secured, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Certs(tmp_path / "other", 2)
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.certs.path / "ca.crt"))  # though the system trusts it
    files = files_of_broker(secured.certs.path, 2)
    asked = {
        "an authority signed it that is not in ca.crt": (
            secured.server.hosts,
            replace(files, ca=other.path / "ca.crt"),
        ),
        "it is for another host": (f"localhost:{secured.port}", files),
        "does not speak TLS 1.3 there": (zookeeper, files),
    }
    with ThreadPoolExecutor() as pool:  # each takes as long as it may try to connect
        list(pool.map(lambda why: refusal(asked[why][0], root, asked[why][1], why), asked))
