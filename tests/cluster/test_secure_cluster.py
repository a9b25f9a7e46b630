"""Brokers as processes, over TLS: a cluster is secured while it works, and its certificates are replaced under load."""

from __future__ import annotations

import itertools
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.coordination.credential import Credential
from mq_client import Admin, Reader, Security
from mq_client.cluster import credentials
from mq_dev.certificates import ADMIN, Authority, write_broker, write_client
from mq_dev.embedded_zookeeper import free_port
from mq_dev.local_cluster import HOST
from mq_protocol.access.pem import CA_FILE, context, read
from tests.cluster.harness import Cluster, wait_until
from tests.cluster.traffic import Traffic
from tests.securing import Certs
from tests.switch import plain_text

ROTATION_S = 60 * float(os.environ.get("TRITONMQ_ROTATION_MINUTES", "0"))
"""For so long certificates and authorities are replaced, and once at least; `make rotation` sets it."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 + 2 * ROTATION_S)]

TOPIC = "t"
BROKERS = (1, 2, 3)


def check_each_is_there_once(bootstrap: str, security: Security | None, *counts: int) -> None:
    """What several producers, one after the other, had acknowledged."""
    with Admin(bootstrap, security=security) as admin, Reader(bootstrap, security=security) as reader:
        found: list[int] = []
        for partition, (start, end) in admin.offsets(TOPIC).items():
            for batch in reader.read(TOPIC, partition, start, end):
                found += [int(value.rpartition(b" ")[2]) for value in batch.column("value").to_pylist()]
    expected = sorted(number for count in counts for number in range(count))
    assert sorted(found) == expected


def shown_by(address: str, security: Security) -> str:
    """The serial number of the certificate that the broker shows in a new handshake."""
    import socket

    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            context(read(security.files()), server=False).wrap_socket(plain, server_hostname=host) as secured,
        ):
            return str((secured.getpeercert() or {})["serialNumber"])
    except (OSError, ssl.SSLError):
        return ""


class Rotation:
    """Replaces files of a cluster that runs, and waits until all take them."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.certs is not None
        assert cluster.security is not None
        self.cluster, self.certs, self.security = cluster, cluster.certs, cluster.security

    def _taken(self, change: Callable[[], None], *, shown_anew: bool) -> None:
        addresses = [broker.address for broker in self.cluster.brokers.values()]
        before = {address: shown_by(address, self.security) for address in addresses}
        generation = credentials.current(self.security).generation
        logs = {broker: broker.log_path.read_text().count("certificate was replaced") for broker in self._brokers()}
        change()
        for broker in self._brokers():
            broker.send_if_running(signal.SIGHUP)
        for broker, told in logs.items():
            wait_until(
                lambda broker=broker, told=told: broker.log_path.read_text().count("certificate was replaced") > told,
                f"broker {broker.id} takes the new files",
            )
        wait_until(lambda: credentials.current(self.security).generation > generation, "the client takes the new files")
        if shown_anew:
            for address in addresses:
                assert shown_by(address, self.security) not in ("", before[address])

    def _brokers(self) -> list:  # type: ignore[type-arg]
        return list(self.cluster.brokers.values())

    def leaves(self, authority: Authority) -> None:
        def change() -> None:
            for broker in BROKERS:
                kept = (self.certs / f"broker.{broker}" / CA_FILE).read_bytes()
                write_broker(authority, self.certs, broker, [HOST])
                (self.certs / f"broker.{broker}" / CA_FILE).write_bytes(kept)
            for user in {ADMIN, self.security.user or ADMIN}:
                write_client(authority, self.certs, user)

        self._taken(change, shown_anew=True)

    def trust(self, *authorities: bytes) -> None:
        def change() -> None:
            for directory in (self.certs, *(self.certs / f"broker.{broker}" for broker in BROKERS)):
                (directory / CA_FILE).write_bytes(b"".join(authorities))

        self._taken(change, shown_anew=False)


@pytest.mark.long
def test_certificates_and_then_the_authority_are_replaced_under_load(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster(certs=tmp_path / "certs")
    cluster.admin.create_topic(TOPIC, partitions=3, replicas=3)
    rotation = Rotation(cluster)
    authority = Authority.open(rotation.certs, tmp_path / "certs.ca.key")
    end = time.monotonic() + ROTATION_S
    with Traffic(cluster.bootstrap, TOPIC, 3, security=cluster.security) as at_work:
        for number in itertools.count(1):
            other, old_ca = Certs(tmp_path / f"other-{number}"), (rotation.certs / CA_FILE).read_bytes()
            at_work.until_acknowledged()
            rotation.leaves(authority)
            at_work.until_acknowledged()
            rotation.trust(old_ca, other.ca)
            at_work.until_acknowledged()
            rotation.leaves(other.authority)
            at_work.until_acknowledged()
            rotation.trust(other.ca)
            at_work.until_acknowledged()
            victim = BROKERS[number % len(BROKERS)]
            cluster.kill(victim)  # what connects anew needs what is new
            cluster.restart(victim)
            cluster.wait_for_isr(TOPIC, 3)
            at_work.until_acknowledged()
            authority = other.authority
            if time.monotonic() > end:
                break
        count = at_work.end()
    assert count > 500
    check_each_is_there_once(cluster.bootstrap, rotation.security, count)


@pytest.mark.long
@plain_text("it begins in plain text")
def test_a_running_cluster_is_secured_broker_by_broker(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """Each step is a restart in turn: TLS beside plain text, then the clients, then TLS alone."""
    cluster = start_cluster()
    plain = {number: broker.address for number, broker in cluster.brokers.items()}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=3, replicas=3)
    certs = Certs(tmp_path / "certs", *BROKERS)
    security = certs.user("admin")
    secure = {number: f"{HOST}:{free_port(HOST)}" for number in BROKERS}

    def restart(number: int, *options: str, address: str) -> None:
        broker = cluster.brokers[number]
        at = broker.arguments.index("--listen")
        broker.terminate()
        assert broker.wait(30)
        broker.arguments[at + 1] = secure[number]
        broker.arguments = [each for each in broker.arguments if each not in drop] + list(options)
        broker.address, broker.port = address, int(address.rpartition(":")[2])
        broker.start()

    drop: set[str] = set()
    with Traffic(",".join(plain.values()), TOPIC, 3) as at_work:
        at_work.until_acknowledged()
        for number in BROKERS:
            restart(number, "--certs", str(certs.path), "--also-plaintext", plain[number], address=plain[number])
            cluster.wait_until_serving()
            with Admin(",".join(plain.values())) as admin:
                _wait_for_isr(admin)
            at_work.until_acknowledged()
        first = at_work.end()
    bootstrap = ",".join(secure.values())
    with Traffic(bootstrap, TOPIC, 3, security=security) as at_work:
        at_work.until_acknowledged()
        for number in BROKERS:
            drop = {"--also-plaintext", plain[number]}
            restart(number, address=secure[number])
            with Admin(bootstrap, security=security) as admin:
                wait_until(lambda number=number, admin=admin: _answers(secure[number], security), "it serves")  # type: ignore[misc]
                _wait_for_isr(admin)
            at_work.until_acknowledged()
        second = at_work.end()
    check_each_is_there_once(bootstrap, security, first, second)


def _wait_for_isr(admin: Admin) -> None:
    wait_until(
        lambda: all(len(each.isr) == 3 for each in admin.describe_topic(TOPIC).partitions), "all replicas are in sync"
    )


def _answers(address: str, security: Security) -> bool:
    with Admin(address, timeout_ms=2_000, security=security) as admin:
        return len(admin.describe_cluster().brokers) == 3


def secure_zookeeper(cluster: Cluster, credential: Path, *more: str) -> subprocess.Popen[str]:
    """The command, with its output in one pipe."""
    words = ["cluster", "secure-zookeeper", "--zookeeper", cluster.hosts, "--zookeeper-auth", str(credential), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "mq_cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.long
@plain_text("it begins with open nodes, and with the switch they are closed from the start")
def test_the_nodes_of_a_running_cluster_are_closed_and_kill_9_of_the_command_does_no_harm(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster()
    credential = tmp_path / "zookeeper.auth"
    Credential.make(credential)
    access = lambda: cluster.admin.describe_cluster().coordination_access  # noqa: E731
    cluster.admin.create_topic(TOPIC, partitions=3, replicas=3)
    with Traffic(cluster.bootstrap, TOPIC, 3) as at_work:
        for number, broker in cluster.brokers.items():
            refused = secure_zookeeper(cluster, credential)
            assert "runs without the credential" in refused.communicate(timeout=60)[0]
            broker.terminate()
            assert broker.wait(60)
            broker.arguments += ["--zookeeper-auth", str(credential)]
            cluster.restart(number)
            wait_until(lambda: not out_of_sync(cluster), "every replica is in sync again")
            at_work.until_acknowledged()
        assert access() == "open"
        command = secure_zookeeper(cluster, credential)
        wait_until(lambda: access() == "closing", "brokers know that their nodes are being closed")
        command.kill()
        command.communicate(timeout=60)
        at_work.until_acknowledged()
        checked = secure_zookeeper(cluster, credential, "--check")
        assert " open, such as /" in checked.communicate(timeout=60)[0]
        assert checked.returncode == 1
        assert access() == "closing"
        cluster.admin.create_topic("later", partitions=1, replicas=3)
        done = secure_zookeeper(cluster, credential)
        assert "only the brokers" in done.communicate(timeout=60)[0]
        assert done.returncode == 0
        wait_until(lambda: access() == "closed", "brokers know that their nodes are closed")
        cluster.admin.create_topic("last", partitions=1, replicas=3)
        cluster.kill(cluster.leader(TOPIC))
        at_work.until_acknowledged()
        checked = secure_zookeeper(cluster, credential, "--check")
        assert " 0 open" in checked.communicate(timeout=60)[0]
        assert checked.returncode == 0
        check_each_is_there_once(cluster.bootstrap, None, at_work.end())


def out_of_sync(cluster: Cluster) -> bool:
    return any(
        set(partition.replicas) != set(partition.isr) for partition in cluster.admin.describe_topic(TOPIC).partitions
    )
